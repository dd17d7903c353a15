"""FLOP reconciliation launch by launch: a recording worked out by hand, the public one, and what is refused."""

import csv
import os
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from linear_recording import COUNTERS, LAUNCHES, SHAPES, write_launches, write_shapes
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.ledger import claims, notebooks
from gpuledger.ledger import figures as ledger_figures
from gpuledger.ledger.datasets import Dataset, Repository
from gpuledger.ledger.download.dataset import fetch_dataset
from gpuledger.studies.flop_reconciliation import figures as study_figures
from gpuledger.studies.flop_reconciliation import tables
from gpuledger.studies.flop_reconciliation.launches import read_recording

#: What the contract asks of every case with launches.
CONTRACT = [
    *("launches", "tiled_launches", "tiled_exact", "reduce_launches", "reduce_exact"),
    *("mape_2mnk_percent", "mape_predicted_percent"),
]


def case_of(folder, **inputs):
    return own_case(folder, "flop_reconciliation", inputs, "linear", kind="local")


def result(folder, **inputs):
    return reduced(case_of(folder, **inputs))


@pytest.fixture
def linear(folder):
    write_launches(folder / "a.csv")
    write_shapes(folder / "a.json")
    return result(folder, launches="a.csv", shapes="a.json", l2_reach_bytes=50_000)


def test_every_launch_of_the_recording_by_hand(linear):
    data = linear.data
    assert data["role"].tolist() == [
        *("bias_copy", "gemm", "split_k_reduce", "bias_copy", "gemm", "gemm", "other", "gemm"),
    ]
    assert data["exact"].astype(object).where(data["exact"].notna(), None).tolist() == [True] * 6 + [None] * 2
    assert data["residual_flops"].dropna().tolist() == [0] * 6
    assert data["s"].dropna().tolist() == [2, 2, 1, 2]
    assert set(data.loc[data["tiled"], "split_k_source"]) == {"grid"}
    # C is read by the second layer's GEMM; the first one's is read by its reduction.
    assert data.index[data["reads_c"]].tolist() == [4]
    gemm = data[data["role"] == "gemm"]
    assert (gemm["dram_expected_bytes"] == gemm["dram_bytes"]).all()
    excess = data.loc[1, [f"excess_{name}" for name in ("padding", "alpha", "slices", "accumulation", "split_k_sum")]]
    assert excess.tolist() == [2 * (1024 * 128 - 20_000), 8192, 6144, 0, 600 + 200 + 2 * 200]
    assert data.loc[2, "explanation"] == "each output: alpha, 3 additions for 2 parts, and C"
    assert data["explanation"].str.len().min() > 0


def test_summary_of_the_recording_by_hand(linear):
    assert all(quantity in linear.summary for quantity in CONTRACT)
    wanted = {
        "launches": 8,
        "matrix_launches": 4,
        "tiled_launches": 3,
        "tiled_exact": 3,
        "reduce_launches": 1,
        "reduce_exact": 1,
        "reduce_adds_one_more": 1,
        "reduce_reads_c": 1,
        "split_k_from_counters": 0,
        "mape_predicted_percent": 0,
        "dram_read_mape_percent": 0,
        "dram_within_l2_launches": 3,
        "dram_beyond_l2_launches": 1,
        "padding_flops": 2 * (1024 * 128 - 20_000),
        "accumulation_flops": 2 * (8192 + 4096),
    }
    assert {name: linear[name] for name in wanted} == wanted
    counted = [6144 + 8192 + 2 * 131_072, 8192 + 2 * 532_480, 8192 + 2 * 69_632]
    errors = [100 * (2 * m * n * k - flops) / flops for (m, n, k), flops in zip(SHAPES, counted, strict=False)]
    assert linear["mape_2mnk_percent"] == pytest.approx(-sum(errors) / 3)
    assert linear["worst_2mnk_percent"] == pytest.approx(min(errors))
    together = 100 * (1 - sum(2 * m * n * k for m, n, k in SHAPES[:3]) / sum(counted))
    assert f"on average ({together:.1f} % of the FLOPs of all), at worst" in linear.finding
    assert "exact for 4 of 4 launches" in linear.finding


def test_tables_add_up(linear):
    data = linear.data
    table = tables.launch_table(data)
    assert len(table) == len(LAUNCHES)
    assert table["kernel"][2] == "splitKreduce_kernel"
    shares = tables.by_size(data)
    assert shares["size"].tolist() == ["9–16", "17–32", "33–64"]
    assert shares.filter(like="_percent").sum(axis=1).tolist() == pytest.approx([100] * 3)
    assert tables.by_kernel(data)["launches"].sum() == len(LAUNCHES)
    launch, steps = tables.worked_example(data)
    assert launch["launch"] == 1
    named = steps["what"].isin(["predicted", "counted"])
    for _, rows in steps.groupby("launch"):
        sums = rows[named[rows.index]]["flops"].tolist()
        assert sums == [rows[~named[rows.index]]["flops"].sum()] * 2


def test_what_is_no_recording_in_a_folder_is_named(folder):
    """A file left out silently would shift all shapes after it."""
    (folder / "runs" / "older").mkdir(parents=True)
    write_launches(folder / "runs" / "older" / "a.csv")
    with pytest.raises(InputError, match="runs: the folder has no recording"):
        read_recording(folder / "runs")
    write_launches(folder / "runs" / "a.csv")
    assert len(read_recording(folder / "runs")) == len(LAUNCHES)
    for name, text, problem in (("b.csv", "", "is empty"), ("README.md", "two runs\n", "no metric table")):
        (folder / "runs" / name).write_text(text, "utf-8")
        with pytest.raises(InputError, match=rf"runs/{name}: .*{problem}"):
            read_recording(folder / "runs")
        (folder / "runs" / name).unlink()
    (folder / "runs" / "c.csv").symlink_to("gone.csv")
    with pytest.raises(InputError, match=r"runs/c\.csv: "):
        read_recording(folder / "runs")


def test_without_shapes_only_what_names_and_grids_say(folder):
    write_launches(folder / "a.csv", leave_out=["dram__bytes.sum"])
    alone = result(folder, launches="a.csv")
    assert all(quantity in alone.summary for quantity in CONTRACT)
    assert (alone["tiled_launches"], alone["tiled_exact"]) == (3, 3)
    assert alone["mape_2mnk_percent"] == "unknown"
    assert "FADD and FMUL of 3 of 3 tiled GEMMs" in alone.finding
    tiled = alone.data[alone.data["tiled"]]
    assert tiled["ffma_predicted"].isna().all()
    assert (tiled["fmul_predicted"] == tiled["fmul"]).all()


def test_a_recording_without_any_tiled_gemm(folder):
    write_launches(folder / "a.csv", LAUNCHES[-1:])
    write_shapes(folder / "a.json", SHAPES[-1:])
    vectors = result(folder, launches="a.csv", shapes="a.json")
    assert (vectors["matrix_launches"], vectors["tiled_launches"]) == (1, 0)
    assert vectors.finding.startswith(
        "No launch is a tiled fp32 GEMM that the closed form describes; the study kernel_pr"
    )


@pytest.mark.parametrize(
    ("launches", "inputs", "said"),
    [
        (LAUNCHES, {"shapes": "a.json"}, "One launch, step by step"),
        (LAUNCHES, {}, "Without shapes only"),
        (LAUNCHES[-1:], {"shapes": "a.json"}, "No launch is a tiled fp32 GEMM"),
    ],
)
def test_the_notebook_draws_every_kind_of_recording(root, folder, launches, inputs, said):
    write_launches(folder / "a.csv", launches)
    write_shapes(folder / "a.json", SHAPES[-len(launches) :] if len(launches) == 1 else SHAPES)
    result(folder, launches="a.csv", **inputs).write(folder / "reduced")
    parameters = {"dataset": "mine", "case": "linear", "results": str(folder / "reduced"), "save_to": str(folder)}
    notebooks.execute(root / "notebooks/flop_reconciliation_launches.ipynb", folder / "out.ipynb", parameters)
    assert (folder / "figure.pdf").is_file()
    assert len((folder / "table.csv").read_text().splitlines()) == 1 + len(launches)
    assert said in (folder / "out.ipynb").read_text()


def test_split_k_is_read_off_counters_where_there_is_no_grid(folder):
    write_launches(folder / "a.csv", grid=False)
    write_shapes(folder / "a.json")
    linear = result(folder, launches="a.csv", shapes="a.json")
    assert (linear["tiled_exact"], linear["split_k_from_counters"]) == (3, 3)
    assert "3 of them with the split-K factor read off the FMUL counter" in linear.finding
    assert "l2_reach_bytes" not in linear.summary


def test_shapes_as_a_table(folder, linear):
    pd.DataFrame(SHAPES, columns=["m", "n", "k"]).to_csv(folder / "a.csv.shapes.csv", index=False)
    again = result(folder, launches="a.csv", shapes="a.csv.shapes.csv")
    assert again["mape_2mnk_percent"] == linear["mape_2mnk_percent"]


def test_shapes_in_another_order_are_a_warning(folder, linear):
    """A product that is larger than its count was an error of thousands of percent, and nothing else."""
    assert not linear.warnings
    write_launches(folder / "a.csv")
    write_shapes(folder / "a.json", [SHAPES[1], SHAPES[0], *SHAPES[2:]])
    (words,) = result(folder, launches="a.csv", shapes="a.json").warnings
    assert "launch 1 counted less than 2·M·N·K of its shape; it is kept; check that" in words


def test_a_wrong_prediction_is_not_exact(folder):
    kernel, blocks, fadd, *rest = LAUNCHES[1]
    write_launches(folder / "a.csv", [LAUNCHES[0], (kernel, blocks, fadd + 1, *rest), *LAUNCHES[2:]])
    write_shapes(folder / "a.json")
    linear = result(folder, launches="a.csv", shapes="a.json")
    assert linear["tiled_exact"] == 2
    assert linear.data["residual_flops"].iloc[1] == 1
    assert "exact for 3 of 4 launches" in linear.finding


def test_bad_recordings_and_shapes_are_one_line(folder):
    write_launches(folder / "a.csv")
    write_shapes(folder / "a.json")
    write_launches(folder / "partial.csv", leave_out=[COUNTERS[1]])
    write_shapes(folder / "short.json", SHAPES[:3])
    (folder / "broken.json").write_text('[{"Input": ')
    for inputs, message in (
        ({"launches": "none.csv"}, "does not exist; put it there"),
        ({"launches": "partial.csv"}, "the counter fmul was not collected; collect smsp__sass_thread_inst_executed"),
        ({"launches": "a.csv", "shapes": "short.json"}, "4 matrix kernels but 3 shapes"),
        ({"launches": "a.csv", "shapes": "broken.json"}, "broken.json: cannot be read as JSON"),
    ):
        with pytest.raises(InputError, match=message):
            result(folder, **inputs)


@pytest.mark.parametrize(("layers", "times"), [(20, "0.50"), (4, "2.5")])
def test_another_network_than_the_recorded_one_is_a_warning(root, folder, layers, times):
    """It was said that counters exceed theory by -49 %."""
    case = Repository.find(root).case("published", "flop_reconciliation", "toy_network")
    inputs = {name: f"{name}.csv" for name in ("setup", "forward", "forward_backward")}
    for name, file in inputs.items():
        shutil.copy(case.path(name), folder / file)
    mine = result(folder, **inputs, network={**case.inputs["network"], "layers": layers})
    assert f"GEMMs of the forward pass execute {times}" in mine.warnings[0]
    assert mine.finding.startswith("Counters differ from theory by -4" if layers == 20 else "Counters exceed theory")


def test_unknown_kernels_of_a_network_are_a_part_of_their_own(root, folder, published):
    case = Repository.find(root).case("published", "flop_reconciliation", "toy_network")
    # Two launches end the backward pass; fadd, fmul and ffma are 1, 2 and 3: 9 FLOPs each.
    more = [
        f'"{number}","{kernel}","Command line profiler metrics","{counter}","inst","{value}"\n'
        for number, kernel in ((90, "zebra_v7"), (91, "ncclDevKernel_AllReduce"))
        for value, counter in enumerate(COUNTERS, start=1)
    ]
    for run in RUNS:
        text = case.path(run).read_text()
        (folder / f"{run}.csv").write_text(text + "".join(more if run == "forward_backward" else ()))
    inputs = {run: f"{run}.csv" for run in RUNS}
    mine = result(folder, **inputs, network=dict(case.inputs["network"]))
    assert len(mine.warnings) == 2
    assert "no class is known for 1 kernel: zebra_v7" in mine.warnings[0]
    assert "launch 91: ncclDevKernel_AllReduce is of class communication, which does not" in mine.warnings[1]
    assert (mine["backward_other_flops"], mine["backward_predicted_other_flops"]) == (18, "unknown")
    assert mine["backward_total_flops"] == published["backward_total_flops"] + 18
    assert "forward_other_flops" not in mine.summary
    network = {name: mine[name] for name in ("layers", "hidden_dim", "tokens")}
    steps = tables.steps(mine.data, network).query("`pass` == 'backward'")
    assert steps["flops"].sum() == mine["backward_total_difference_flops"]
    both = [{"name": "a", "regex": "zebra|nccl", "class": "elementwise"}]
    assert result(folder, **inputs, network=dict(case.inputs["network"]), kernel_patterns=both).warnings == []


NETWORK = {"layers": 1, "hidden_dim": 2, "tokens": 3}
RUNS = {"setup": "a", "forward": "b", "forward_backward": "c"}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"all required keys are missing; give either launches, or setup and forward and"),
        ({"launch": "a"}, "unknown key 'launch'; did you mean 'launches'"),
        ({"shapes": "a"}, "the key 'launches' is missing; add it: recording of Linear layers"),
        ({"setup": "a", "forward": "b"}, "the key 'forward_backward' is missing"),
        ({"launches": "a", "network": NETWORK}, "the keys 'network' and 'launches' do not go together"),
        ({**RUNS, "network": NETWORK, "shapes": "a"}, "the keys 'forward' and 'shapes' do not go together"),
        ({**RUNS, "network": {"layers": 1}}, r"linear.network: the key 'hidden_dim' is missing"),
        ({"launches": 3}, r"linear.launches: expected string, found 3"),
    ],
)
def test_a_case_is_a_network_or_launches(folder, inputs, message):
    with pytest.raises(InputError, match=message):
        case_of(folder, **inputs)


def test_both_kinds_of_case_are_valid(folder):
    assert case_of(folder, launches="a", shapes="b").inputs["shapes"] == "b"
    assert case_of(folder, **RUNS, network=NETWORK).inputs["network"] == NETWORK


#: Row, counter and value of the single launches that the source prints last; nine rows per launch.
PRINTED = [(347, "fmul", 1_048_576), (354, "fadd", 262_144), (356, "fmul", 131_072), (363, "fadd", 262_144)]


@pytest.fixture(scope="module")
def published(root):
    case = Repository.find(root).case("published", "flop_reconciliation", "toy_network")
    return reduced(case)


def test_three_runs_of_one_process_are_numbered_each_from_its_own_start(root):
    """As an H200 recorded them: ncu counts on from run to run."""
    recorded = reduced(Repository.find(root).case("nvidia-h200", "flop_reconciliation", "toy_network"))
    assert (recorded["setup_launches"], recorded["forward_launches"]) == (11, 30)
    assert recorded.data.groupby("pass")["launch"].first().to_dict() == {"forward": 11, "backward": 41}
    assert recorded["counts_predicted_exact"] == recorded["counts_predicted"] > 50


def test_every_product_of_a_sweep_on_a_hopper_is_exact(root):
    """cuBLAS 13's own SIMT kernels, those of a large K and CUTLASS's, split and not, of 15 sizes of GPT-2 in fp32."""
    sweep = reduced(Repository.find(root).case("nvidia-h200", "flop_reconciliation", "gpt2"))
    assert (sweep["tiled_launches"], sweep["tiled_exact"]) == (143, 143)
    assert (sweep["large_k_launches"], sweep["large_k_exact"]) == (60, 60)
    assert (sweep["reduce_launches"], sweep["reduce_exact"]) == (2, 2)
    products = sweep.data[sweep.data["role"] == "gemm"]
    assert len(products) == 203 and (products["residual_flops"] == 0).all()
    assert set(products["split_k_source"]) == {"grid"}
    assert products["s"].value_counts().to_dict() == {1: 129, 4: 29, 2: 29, 5: 8, 6: 2, 11: 2, 16: 2, 32: 2}


def test_a_pipe_in_a_folder_of_recordings_is_refused(folder):
    """It was read for ever."""
    (folder / "runs").mkdir()
    os.mkfifo(folder / "runs" / "a.csv")
    with pytest.raises(InputError, match=r"a\.csv: it is a pipe or a device; save what it gives as a file"):
        reduced(own_case(folder, "flop_reconciliation", {"launches": "runs"}))


def test_a_folder_without_a_recording_is_an_error(folder):
    (folder / "recordings").mkdir()
    with pytest.raises(InputError, match="the folder has no recording"):
        reduced(case_of(folder, launches="recordings"))


def test_printed_row_numbers_tell_how_many_launches_each_run_has(published):
    assert (published["setup_launches"], published["forward_launches"]) == (11, 30)
    forward = published.data[published.data["pass"] == "forward"].set_index("launch")
    assert forward["launches"].tolist() == [10, 10, 10]
    for row, counter, value in PRINTED:
        group = 11 + (row // 9 - 11) % 3
        assert forward.at[group, f"{counter}_predicted"] == 10 * value
    assert max(row // 9 for row, _, _ in PRINTED) == 11 + 30 - 1
    backward = published.data[published.data["pass"] == "backward"]
    # One more, a fill, executes no FLOPs: row 724 is of launch 80.
    assert backward["launches"].sum() + 1 == 724 // 9 + 1 - 41


def test_no_percentage_where_theory_has_nothing_to_compare(published):
    parts = tables.parts_table(published.data, {"layers": 10, "hidden_dim": 1024, "tokens": 128})
    assert parts["difference_percent"].map(tables.percent_text).tolist() == [
        *("0.68", "–", "–", "1.56"),
        *("0.39", "–", "57.89", "0.63"),
    ]


def test_what_was_read_off_a_count_is_not_called_predicted(published):
    counts = tables.count_table(published.data).set_index(["kernel", "counter"])["how"]
    gemms = [name for name in counts.index.get_level_values(0).unique() if "sgemm" in name]
    assert {counts[name, "fmul"] for name in gemms} == {"explained"}
    assert {counts[name, "ffma"] for name in gemms} == {"predicted"}
    assert set(counts["splitKreduce_kernel"]) == {"predicted"}
    forward = tables.count_table(published.data).query("`pass` == 'forward'")
    assert set(forward.loc[forward["kernel"].str.startswith("vectorized"), "how"]) == {"explained"}
    assert [published[f"counts{what}"] for what in ("", "_predicted", "_predicted_exact", "_explained")] == [
        18,
        11,
        11,
        7,
    ]
    assert "of 18 counts the closed form predicts 11, all exactly, and explains 7" in published.finding


@pytest.fixture(scope="module")
def recorded(root, mirror, tmp_path_factory):
    """The dataset linear-a100 as the repository declares it, with its files from the mirror, reduced."""
    folder = tmp_path_factory.mktemp("traces") / "linear-a100"
    folder.mkdir()
    text = (root / "traces/linear-a100/dataset.yaml").read_text("utf-8")
    (folder / "dataset.yaml").write_text(text, "utf-8")
    dataset = Dataset.load(folder / "dataset.yaml")
    done = fetch_dataset(dataset.content["download"], folder, mirror=mirror, source_file=dataset.file)
    assert {file.origin for file in done} == {"mirror"}
    return reduced(dataset.case("flop_reconciliation", "linear"))


def test_every_claim_about_the_public_recording_holds(root, recorded):
    stated = [
        claim
        for claim in claims.load(root / "resources/claims/flop_reconciliation.yaml")["claims"]
        if claim["case"] == "linear"
    ]
    assert len(stated) > 10
    for claim in stated:
        assert recorded.summary[claim["quantity"]]["unit"] == claim["unit"]
        assert claims.compare(claim, recorded[claim["quantity"]])[0] == "exact", claim["id"]


def test_the_public_recording_launch_by_launch(recorded):
    data = recorded.data
    assert len(data) == 2933
    predicted = data[data["role"].isin(["gemm", "split_k_reduce"]) & data["flops_predicted"].notna()]
    assert len(predicted) == 1207 + 1 + 298  # one of a large K
    assert (predicted["residual_flops"] == 0).all()
    for name in ("fadd", "fmul", "ffma"):
        assert (predicted[f"{name}_predicted"] == predicted[name]).all()
    tiled = data[data["tiled"]]
    parts = tiled[[f"excess_{name}" for name in ("padding", "alpha", "slices", "accumulation")]].sum(axis=1)
    assert (tiled["flops_2mnk"] + parts == tiled["flops_counted"]).all()
    assert recorded["dram_within_l2_close_launches"] / recorded["dram_within_l2_launches"] > 0.95
    launch, steps = tables.worked_example(data)
    assert abs(launch["error_2mnk_percent"]) == pytest.approx(recorded["mape_2mnk_percent"], abs=1)
    assert {"GEMM", "reduction"} == set(steps["launch"])


def test_counters_per_cycle_give_the_same_counts(folder):
    """1,000 cycles and six digits of the rate: the counts come back to the unit."""
    write_launches(folder / "a.csv", leave_out=["dram__bytes.sum"])
    whole = result(folder, launches="a.csv")
    rows = list(csv.reader((folder / "a.csv").open(newline="")))
    header, rows = rows[0], rows[1:]
    name, unit, value = (header.index(f"Metric {what}") for what in ("Name", "Unit", "Value"))
    for row in list(rows):
        if "_pred_on.sum" in row[name]:
            row[name] += ".per_cycle_elapsed"
            row[unit], row[value] = "inst/cycle", f"{float(row[value].replace(',', '')) / 1000:.6f}"
            cycles = [*row]
            cycles[name], cycles[unit], cycles[value] = "sm__cycles_elapsed.avg", "cycle", "1000.0"
            rows.append(cycles)
    unique = {tuple(row): row for row in sorted(rows, key=lambda row: int(row[0]))}
    with (folder / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *unique.values()])
    rates = result(folder, launches="a.csv")
    for counter in ("fadd", "fmul", "ffma", "exact"):
        assert rates.data[counter].tolist() == whole.data[counter].tolist()


@pytest.mark.parametrize(("smallest", "scale"), [(0.3, "log"), (29.0, "log"), (74.4, "linear"), (99.5, "linear")])
@pytest.mark.parametrize("for_columns", [False, True])
def test_words_about_formulas_stand_beside_all_points(monkeypatch, smallest, scale, for_columns):
    monkeypatch.setattr(ledger_figures, "for_columns", for_columns)
    counted = np.geomspace(1e5, 1e11, 40)
    shares = np.r_[smallest, np.linspace(max(smallest, 90), 100, 39)]
    data = pd.DataFrame({"flops_counted": counted, "flops_predicted": counted, "flops_2mnk": counted * shares / 100})
    data = data.assign(role="gemm", tiled=True, exact=True, m=128, n=192, k=768, error_2mnk_percent=shares - 100)
    figure, axes = plt.subplots(figsize=(3.3, 2.6) if for_columns else (7, 2.6))
    study_figures.draw_formulas(axes, data)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    points = [axes.transData.transform(np.c_[counted, values]) for values in (shares, np.full(40, 100.0))]
    plt.close(figure)
    assert axes.get_yscale() == scale and len(boxes) == 2
    assert ("at worst" in axes.texts[1].get_text()) == (smallest < 90)
    assert not boxes[0].overlaps(boxes[1])
    assert not any(box.padded(3).count_contains(np.concatenate(points)) for box in boxes)


def test_formulas_of_kernels_without_tiles_are_hollow():
    counted = np.geomspace(1e5, 1e11, 4)
    data = pd.DataFrame({"flops_counted": counted, "flops_predicted": counted, "flops_2mnk": counted * 0.99})
    data = data.assign(role="gemm", tiled=[False, True, True, True], exact=True, m=1, n=1, k=1, error_2mnk_percent=-1.0)
    figure, axes = plt.subplots()
    study_figures.draw_formulas(axes, data)
    plt.close(figure)
    filled, hollow, _ = axes.collections
    assert [len(dots.get_offsets()) for dots in (filled, hollow)] == [3, 1]
    assert not len(hollow.get_facecolors()) and "hollow" in axes.texts[1].get_text()
