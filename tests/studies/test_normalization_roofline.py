"""The study normalization_roofline: exact shapes, known rates, a model with a known answer, bad input."""

import json
from itertools import combinations
from statistics import geometric_mean

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT
from own_cases import own_case, reduced, refused

from gpuledger.errors import InputError
from gpuledger.ledger import claims
from gpuledger.ledger.datasets import Dataset
from gpuledger.models.simulate import normalization as model
from gpuledger.models.simulate import simulate_dataset
from gpuledger.models.simulate.normalization import KERNELS, SHAPES, simulate_normalization, time_kernel
from gpuledger.readers import gpus
from gpuledger.studies import normalization_roofline
from gpuledger.studies.normalization_roofline import figures, tables
from notebooks import run_notebook

ROWS = """kernel,rows,length,cache,time_median_ns,time_p5_ns,time_p95_ns,launches
copy,16384,1024,cold,32000,31000,33000,600
one_pass,16384,1024,cold,33000,32500,34000,600
two_pass,16384,1024,cold,66000,65000,70000,300
copy,1024,128,cold,1600,1500,1700,6000
one_pass,1024,128,cold,2000,1900,2100,6000
two_pass,1024,128,cold,2000,1900,2100,6000
one_pass,1024,128,warm,1800,1700,1900,6000
"""
CEILINGS = """ceiling,cache,moved_bytes,flops,time_median_ns
launch,warm,0,0,1500
multiply_add,warm,0,66000000000,1000000
copy,cold,1073741824,0,250000
copy,warm,33554432,0,5000
"""


def open_case(folder, kind="recorded", rows=ROWS, ceilings=CEILINGS, gpu="h200-sxm", **more):
    (folder / "rows.csv").write_text(rows)
    case = {"rows": "rows.csv", **more}
    if ceilings is not None:
        (folder / "ceilings.csv").write_text(ceilings)
        case["ceilings"] = "ceilings.csv"
    if gpu is not None:
        case["gpu"] = gpu
    return own_case(folder, "normalization_roofline", case, "measured", kind=kind)


def reduce(folder, **how):
    return reduced(open_case(folder, **how))


def test_bytes_flops_and_intensity_are_exact():
    shapes = {(1024, 128): 787456, (4096, 256): 6295552, (8192, 512): 25174016, (16384, 1024): 100679680}
    for (rows, length), flops in shapes.items():
        assert normalization_roofline.flops_of(rows, length) == flops
        assert normalization_roofline.intensity(length) == flops / (8 * rows * length)
    assert normalization_roofline.intensity(128) == 769 / 1024
    assert all(0.75 < normalization_roofline.intensity(length) <= 0.875 for length in range(1, 5000))


def test_rates_shares_and_roofs(folder):
    result = reduce(folder)
    data = result.data.set_index(["kernel", "rows", "cache"])
    large = data.loc["one_pass", 16384, "cold"]
    assert large["moved_bytes"] == 134217728
    assert large["bandwidth_byte_per_s"] == pytest.approx(134217728 / 33e-6)
    assert large["achieved_flop_per_s"] == pytest.approx(100679680 / 33e-6)
    assert large["copy_share_percent"] == pytest.approx(100 * 32 / 33)
    assert data.loc["two_pass", 16384, "cold"]["speedup_ratio"] == 2
    assert np.isnan(data.loc["one_pass", 1024, "warm"]["copy_share_percent"]), "no warm copy of this shape"
    assert np.isnan(data.loc["copy", 1024, "cold"]["achieved_flop_per_s"]), "a copy does no arithmetic"
    assert result["dram_roof"] == pytest.approx(1073741824 / 250e-6)
    assert result["l2_roof"] == pytest.approx(33554432 / 5e-6)
    assert result["launch_floor"] == 1500
    assert result["fp32_roof"] == 66e12
    assert result["machine_balance"] == 66.9e12 / 4.8e12
    assert result["balance_of_roofs"] == pytest.approx(66e12 * 250e-6 / 1073741824)
    assert result["large_shapes"] == 1
    assert result["large_cold_copy_min_percent"] == pytest.approx(100 * 32 / 33)
    # 1 MiB takes 0.24 µs at the DRAM roof, less than the launch.
    assert data.loc["one_pass", 1024, "cold"]["bound"] == "launch"
    assert large["bound"] == "DRAM"
    assert result["launch_bound_shapes"] == 1


def test_speedups_are_averaged_geometrically(folder):
    result = reduce(folder)
    assert result["speedup_over_two_pass_cold_geometric_mean"] == pytest.approx(geometric_mean([2, 1]))
    sums = [(100679680, 33, 66), (787456, 2, 2)]
    optimised, other = (sum(flops / row[at] for flops, *row in sums) for at in (0, 1))
    assert result["speedup_over_two_pass_cold_of_sums"] == pytest.approx(optimised / other)
    assert (
        "97 % of the speed of a copy; over all sizes it is 1.4 times as fast as the straightforward kernel"
        in result.finding
    )


@pytest.mark.parametrize(("ceilings", "gpu"), [(None, "h200-sxm"), (CEILINGS, None), (CEILINGS, "NVIDIA H200")])
def test_one_of_ceilings_and_data_sheet_is_enough(folder, ceilings, gpu):
    result = reduce(folder, ceilings=ceilings, gpu=gpu)
    assert ("launch_floor" in result.summary) == (ceilings is not None)
    assert ("machine_balance" in result.summary) == (gpu is not None)
    run_notebook("normalization_roofline", result, folder / "out")
    assert len(pd.read_csv(folder / "out/table.csv")) == 7
    assert (folder / "out/figure.png").is_file()


def test_baselines_are_told_apart(folder):
    more = "".join(
        f"{name},16384,1024,cold,{time},1,99999,9\n" for name, time in (("torch", 80000), ("torch_nn", 40000))
    )
    result = reduce(folder, rows=ROWS + more)
    assert result["speedup_over_torch_cold_geometric_mean"] == 2 * result["speedup_over_torch_nn_cold_geometric_mean"]
    styles = [figures.STYLES[name] for name in ("one_pass", "two_pass", "torch", "torch_nn")]
    assert len({style[1:] for style in styles}) == 4


def test_liger_s_published_speed_is_beside_a_measured_one(folder):
    more = "".join(f"{name},4096,16384,cold,200000,1,999999,9\n" for name in ("copy", "one_pass"))
    assert tables.beside_liger(reduce(folder)) == "", "not the same shape"
    result = reduce(folder, rows=ROWS + more)
    words = tables.beside_liger(result)
    assert "the kernels here move one_pass 2,684 GB/s" in words, words
    assert "H100 SXM: Liger 2,906, PyTorch's layer 1,750" in words
    _, shown = run_notebook("normalization_roofline", result)
    assert any(words in text for text in shown)


def test_a_kernel_of_ones_own_is_drawn_too(folder):
    result = reduce(folder, rows=ROWS + "triton $x$,16384,1024,cold,40000,39000,41000,9\n")
    assert result["triton_x_16384x1024_cold_copy_percent"] == 80
    variables, _ = run_notebook("normalization_roofline", result)
    assert list(variables["styles"]) == ["one_pass", "two_pass", "triton $x$"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rows": ROWS.replace("cold", "tepid", 1)}, "line 2, column cache: 'tepid' is not one of cold, warm"),
        ({"rows": ROWS.replace("_ns,time_p5", "_us,time_p5")}, "wrong unit: column 'time_median_us'"),
        ({"rows": ROWS.replace("31000", "32001")}, "line 2, column time_p5_ns: time_p5_ns is larger than time_median"),
        ({"rows": ROWS.replace("34000", "9")}, "line 3, column time_median_ns: time_median_ns is larger than time_p95"),
        ({"rows": ROWS.replace("one_pass", "mine")}, "no row is of 'one_pass'"),
        ({"rows": ROWS + ROWS.splitlines()[1] + "\n"}, "line 9: a second row for copy, 16384, 1024, cold"),
        ({"rows": ROWS.replace(",1024,cold,32000", ",0,cold,32000")}, "line 2, column length: '0' is not within"),
        ({"ceilings": CEILINGS.replace("launch", "lunch", 1)}, "'lunch' is not one of copy, launch, multiply_add"),
        ({"ceilings": None, "gpu": None}, "neither ceilings nor gpu is given"),
        ({"optimised": "copy"}, "measured.optimised: the copy sets the roof, and is no kernel in question"),
        (
            {"rows": ROWS.replace("copy", "mine"), "ceilings": CEILINGS.split("copy")[0], "gpu": None},
            "measured: neither rows nor ceilings have a copy with a cold cache, and there is no gpu",
        ),
        ({"gpu": "h2000"}, "measured.gpu: unknown GPU 'h2000'"),
        (
            {"rows": ROWS.replace(",33000,32500", ",33,32")},
            "measured: a large input moves 847 times as fast as the data sheet of h200-sxm allows",
        ),
    ],
)
def test_bad_input_is_one_line_with_its_place(folder, how, message):
    with refused(message):
        reduce(folder, **how)


def test_times_with_a_warm_cache_alone_are_said_to_be_that(folder):
    warm = reduce(folder, rows=ROWS.replace("cold", "warm").replace("one_pass,1024,128,warm,1800,1700,1900,6000\n", ""))
    assert warm.finding.startswith("The optimised kernel is not timed beside a copy at a large shape with a cold cache")


def test_a_kernel_of_any_name_is_in_question(folder):
    """What is computed of `one_pass` by default."""
    usual = reduce(folder)
    own = reduce(folder, rows=ROWS.replace("one_pass", "my_norm"), optimised="my_norm")
    assert own.finding == usual.finding.replace("The optimised kernel", "my_norm")
    for name in ("copy_share_percent", "speedup_ratio", "bound"):
        pd.testing.assert_series_equal(own.data[name], usual.data[name])
    assert {key.replace("my_norm", "one_pass") for key in own.summary} == set(usual.summary)


def test_the_model_adds_launches_and_bytes_over_bandwidth(monkeypatch):
    machine = {"DRAM_BYTES_PER_S": 1e12, "COPY_SHARE": 0.5, "L2_BYTES_PER_S": 2e12, "L2_BYTES": 1e6, "LAUNCH_S": 1e-6}
    for name, value in machine.items():
        monkeypatch.setattr(model, name, value)
    assert time_kernel(KERNELS["copy"], 10**9, "cold") == pytest.approx(1e-6 + 2e-3)
    assert time_kernel(KERNELS["copy"], 10**6, "warm") == pytest.approx(1e-6 + 5e-7)
    # Half of it stays in L2.
    assert time_kernel(KERNELS["copy"], 2 * 10**6, "warm") == pytest.approx(1e-6 + 5e-7 + 2e-6)
    assert time_kernel(KERNELS["torch"], 8, "cold") == pytest.approx(4e-6, rel=1e-3)
    rows, ceilings = simulate_normalization()
    assert len(rows) == len(SHAPES) * len(KERNELS) * 2
    assert "time_p5_ns" not in rows, "the model has no spread, so it gives none"
    assert rows.drop_duplicates(["kernel", "rows", "length", "cache"]).shape == rows.shape
    assert set(ceilings["ceiling"]) == {"launch", "multiply_add", "copy"}


def test_the_simulated_case_finds_what_its_model_was_given(tmp_path):
    folder = tmp_path / "simulated"
    folder.mkdir()
    declared = yaml.safe_load((ROOT / "traces/simulated/dataset.yaml").read_text("utf-8"))
    only = {"normalization_roofline": declared["studies"]["normalization_roofline"]}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(declared | {"studies": only}))
    dataset = Dataset.load(folder / "dataset.yaml")
    written = simulate_dataset(dataset)
    assert sorted(path.name for path in written) == ["ceilings.csv", "rows.csv"]
    assert all("not measured" in origin for origin in written.values())
    case = dataset.case("normalization_roofline", "model_h200")
    result = reduced(case)
    assert result.provenance["label"] == "simulated, not measured"
    assert result.finding.startswith("In a simple model")
    assert result["dram_roof"] == pytest.approx(model.COPY_SHARE * model.DRAM_BYTES_PER_S, rel=0.01)
    assert 96 <= result["large_cold_copy_min_percent"] < 96.3
    first = {path.name: path.read_bytes() for path in written}
    simulate_dataset(dataset)
    assert {path.name: path.read_bytes() for path in written} == first
    # Claims that follow from shapes are met, if by construction; none about speed is judged by a model.
    content = claims.load(ROOT / "resources/claims/normalization_roofline.yaml")
    outcome = claims.Outcome("simulated", case.study, case.name, result.summary, result.provenance)
    card = claims.scorecard({case.study: content}, [outcome])
    verdicts = card.set_index("id")["verdict"]
    about_model = [claim["id"] for claim in content["claims"] if claim["case"] == "model_h200"]
    # The assumptions beside what an H200 was measured to do.
    measured = {name for name in about_model if name.startswith("h200-")}
    assert (
        len(measured) == 5 and verdicts[list(measured)].isin(["differs", "within tolerance", "by construction"]).all()
    )
    assert verdicts["h200-dram-read"] == verdicts["h200-launch"] == "differs"
    assert verdicts[[name for name in about_model if name not in measured]].eq("by construction").all()
    assert verdicts[["optimised-near-copy", "fusion-at-least", "fusion-at-most"]].eq("needs GPU").all()
    assert not card["why"].str.contains("but simulated gives").any()
    json.dumps(result.summary)


def test_wrong_peaks_of_the_source_are_wrong_by_what_the_claims_say():
    errors = claims.load(ROOT / "resources/claims/normalization_roofline.yaml")["source_errors"]
    known = gpus.read_gpus()
    by_id = {"peak-h100": "h100-sxm", "peak-gh200": "gh200-96gb", "peak-a100": "a100-sxm-80gb"}
    by_id |= {"peak-v100": "v100-sxm2", "peak-rtx-4090": "rtx-4090", "peak-rtx-3090": "rtx-3090"}
    found = {error["id"]: error for error in errors}
    for name, gpu in by_id.items():
        assert found[name]["right"] == pytest.approx(known[gpu].flops["fp32"] / 1e9)
        factor = found[name]["right"] / found[name]["claimed"]
        assert f"{factor:.0f} times too low" in found[name]["why"]
    assert found["bandwidth-a100-sxm"]["right"] == known["a100-sxm-80gb"].dram_bytes_per_s / 1e9
    for gpu, words in (("h200-sxm", "13.9"), ("h100-sxm", "20.0"), ("a100-sxm-80gb", "9.6"), ("rtx-4090", "81.9")):
        assert f"{known[gpu].flops['fp32'] / known[gpu].dram_bytes_per_s:.1f}" == words
        assert words in found["rule-of-ten"]["why"]


# ------------------------------------------------------------------------------------- times of Liger's benchmarks

LIGER = {"kernel": "layer_norm", "device": "NVIDIA H100 80GB HBM3", "version": "0.6.0", "gpu": "h100-sxm"}
HEADER = (
    "kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_value,y_value_50,"
    "extra_benchmark_config_str,gpu_name,liger_version\n"
)
SIZES = '"{""M"": 4096, ""dtype"": ""torch.float32"", ""eps"": 1e-06}"'
GROUPS = '"{""M"": 128, ""H"": 512, ""channels_per_group"": 4, ""dtype"": ""torch.float32""}"'
BENCHMARK = HEADER + "".join(
    f"{line}\n"
    for line in (
        f"layer_norm,liger,forward,speed,ms,N,16384,0.2,{SIZES},NVIDIA H100 80GB HBM3,0.6.0",
        f"layer_norm,huggingface,forward,speed,ms,N,16384,0.3,{SIZES},NVIDIA H100 80GB HBM3,0.6.0",
        f"layer_norm,liger,forward,speed,ms,N,1024,0.02,{SIZES},NVIDIA H100 80GB HBM3,0.6.0",
        # Another version, device, direction, quantity and kernel.
        f"layer_norm,liger,forward,speed,ms,N,16384,0.9,{SIZES},NVIDIA H100 80GB HBM3,0.5.0",
        f"layer_norm,liger,forward,speed,ms,N,16384,0.9,{SIZES},NVIDIA A100-SXM4-80GB,0.6.0",
        f"layer_norm,liger,backward,speed,ms,N,16384,0.9,{SIZES},NVIDIA H100 80GB HBM3,0.6.0",
        f"layer_norm,liger,forward,memory,MB,N,16384,0.9,{SIZES},NVIDIA H100 80GB HBM3,0.6.0",
        f"group_norm,liger,forward,speed,ms,C,2048,0.25,{GROUPS},NVIDIA H100 80GB HBM3,0.6.0",
    )
)


def reduce_benchmark(folder, text=BENCHMARK, **changed):
    (folder / "all.csv").write_text(text)
    inputs = {"benchmark": "all.csv", **LIGER, **changed}
    return reduced(own_case(folder, "normalization_roofline", inputs, kind="downloaded"))


def test_a_benchmark_is_compared_with_the_data_sheet(folder):
    result = reduce_benchmark(folder)
    data = result.data.set_index(["kernel", "length"])
    assert list(data.index) == [("liger", 16384), ("torch_nn", 16384), ("liger", 1024)]
    large = data.loc["liger", 16384]
    assert large["bandwidth_byte_per_s"] == pytest.approx(8 * 4096 * 16384 / 200e-6)
    assert large["data_sheet_share_percent"] == pytest.approx(100 * 8 * 4096 * 16384 / 200e-6 / 3350e9)
    assert "copy_share_percent" not in data and result["large_shapes"] == 1
    assert result["speedup_over_torch_nn_cold_geometric_mean"] == pytest.approx(1.5)
    assert result.provenance["label"] == "downloaded, recorded on NVIDIA H100 80GB HBM3"
    assert result.finding.startswith("Liger-Kernel 0.6.0's LayerNorm moves large inputs at 80 % of the data sheet's")


def test_a_group_of_a_group_norm_is_a_row(folder):
    data = reduce_benchmark(folder, kernel="group_norm").data
    assert data[["rows", "length"]].to_numpy().tolist() == [[128 * 2048 // 4, 4 * 512]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("y_value_50", "y_value", "line 1: the column 'y_value_50' is missing; did you mean 'y_value'?"),
        ("0.6.0", "0.7.0", "column liger_version: there is no forward time for '0.6.0'; did you mean"),
        ("0.2,", "fast,", "line 2: sizes or time cannot be read"),
        ("0.2,", "-0.2,", "line 2: a size or the time is not positive"),
        ("0.2,", "nan,", "line 2: a size or the time is not positive"),
        ('""M"": 4096, ""dtype""', '""dtype""', "line 2: sizes or time cannot be read"),
        ('""M"": 4096', '""M"": 4096.5', "line 2: a size or the time is not positive"),
        ("torch.float32", "torch.bfloat16", "line 2: torch.bfloat16 in ms, not torch.float32 in ms"),
        ("N,1024,", "N,16384,", "liger, 4096×16384: two rows have this kernel and shape"),
        (",liger,", ",other,", "column kernel_provider: there is no row of liger"),
        ("0.6.0\n", "0.6.0,1\n", "line 2: more cells than the first line has names"),
        (SIZES, "[" * 100_000, "line 2: sizes or time cannot be read"),
    ],
)
def test_bad_benchmarks_are_one_line(folder, old, new, message):
    with refused(message):
        reduce_benchmark(folder, BENCHMARK.replace(old, new))


def test_groups_without_channels_are_one_line(folder):
    with pytest.raises(InputError, match="line 9: sizes or time cannot be read"):
        reduce_benchmark(folder, BENCHMARK.replace('group"": 4', 'group"": 0'), kernel="group_norm")


def test_the_public_benchmarks_reach_what_was_read_off_them(mirror, tmp_path):
    folder = tmp_path / "liger"
    folder.mkdir()
    text = (ROOT / "traces/liger/dataset.yaml").read_text("utf-8")
    (folder / "dataset.yaml").write_text(text)
    dataset = Dataset.load(folder / "dataset.yaml")
    entry = dataset.content["download"][0]
    (folder / "all_benchmark_data.csv").write_bytes((mirror / entry["url"].removeprefix("https://")).read_bytes())
    results = {name: reduced(dataset.case(study, name)) for study, name in dataset.cases()}
    largest = {name: result["large_cold_data_sheet_max_percent"] for name, result in results.items()}
    assert {name: round(share) for name, share in largest.items()} == {
        "layer_norm_a100": 82,
        "layer_norm_h100": 87,
        "group_norm_b200": 64,
    }


def test_labels_beside_the_last_shape_cover_neither_one_another_nor_the_lines_across():
    shares = {"one_pass": 91.0, "two_pass": 90.0, "torch": 89.0, "torch_nn": 88.5}
    rows = pd.DataFrame(
        [
            {"kernel": name, "rows": 8, "length": length, "moved_bytes": 64 * length, "cache": "cold", "bound": "DRAM"}
            | {"copy_share_percent": share, "time_median_ns": 100.0}
            for name, share in shares.items()
            for length in (8, 16)
        ]
    )
    figure, axes = plt.subplots()
    figures.draw_share(axes, rows, figures.kernel_styles(rows))
    figure.draw_without_rendering()
    named = [note for note in axes.texts if note.get_fontweight() == "bold" or note.get_text() in ("copy", "aim 90 %")]
    boxes = [note.get_window_extent() for note in named]
    assert len(boxes) == 6
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
