"""Tables of other people: units that are missing or of the other thousand, zeros, whole grids, crowded axes."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.studies import metric_sweep
from gpuledger.studies.metric_sweep import figures as panels
from gpuledger.studies.metric_sweep import law_map, unit_switches
from gpuledger.studies.metric_sweep import tables as study_tables
from notebooks import run_notebook

SECTORS, BYTES, TIME = "dram__sectors_read.sum", "dram__bytes_read.sum", "gpu__time_duration.sum"
LENGTHS = np.array([64, 128, 256, 512, 1024, 2048, 4096])
COUNTED = 240 * LENGTHS + 2000
#: The same in KiB up to 1023, then in MiB.
BINARY = [round(b / 1024, 3) if b < 2**20 else round(b / 2**20, 3) for b in (32 * COUNTED).tolist()]


def series(values, metric=BYTES, unit="byte", sizes=LENGTHS, **more):
    about = {"kernel_class": "norm", "metric": metric, "unit": unit, "n_layer": 12, "hidden_dim": 768} | more
    return pd.DataFrame({**about, "seq_len": sizes, "value": values})


@pytest.fixture
def swept(tmp_path):
    """Reduce rows as a dataset of one case."""

    def swept(*parts):
        pd.concat(parts).to_csv(tmp_path / "sweep.csv", index=False)
        result = reduced(own_case(tmp_path, "metric_sweep", {"measurements": "sweep.csv"}, "sweep"))
        return result, metric_sweep.Sweep.from_frame(result.data)

    return swept


def test_sectors_say_in_which_unit_a_table_without_units_is(swept):
    sizes = LENGTHS[:5]
    counted = series([17652, 33020, 63765, 125224, 248119], SECTORS, "sector", sizes)
    _, sweep = swept(series([0.56, 1.05, 2.04, 4.0, 0.0079], BYTES, "unknown", sizes), counted)
    read = sweep.points[sweep.points["metric"] == BYTES]
    assert set(read["unit"]) == {"byte"}
    assert read["value"].tolist() == [560e3, 1050e3, 2040e3, 4e6, 7.9e6]
    assert sweep.anomalies[["kind", "seq_len"]].to_numpy().tolist() == [["unit_switch", 1024]]
    assert "proven by 248,119 sectors" in sweep.anomalies["evidence"][0]


def test_without_sectors_that_agree_a_unit_stays_unknown(swept):
    _, sweep = swept(series(5.5 * LENGTHS, BYTES, "unknown"), series(COUNTED, SECTORS, "sector"))
    assert set(sweep.points.loc[sweep.points["metric"] == BYTES, "unit"]) == {"unknown"}
    assert sweep.anomalies.empty


@pytest.mark.parametrize(("unit", "changed"), [("Kbyte", 7), ("Mbyte", 7), ("unknown", 2)])
def test_units_of_1024_are_found_and_proven(swept, unit, changed):
    _, sweep = swept(series(BINARY, BYTES, unit), series(COUNTED, SECTORS, "sector"))
    read = sweep.points[sweep.points["metric"] == BYTES]
    assert read["value"].to_numpy() == pytest.approx(32 * COUNTED, rel=1e-3)
    assert sweep.anomalies["kind"].tolist() == ["unit_switch"] * changed
    assert sweep.anomalies["evidence"].str.contains("proven by").all()
    assert sweep.anomalies["seq_len"].is_monotonic_increasing
    assert sweep.laws["law"].tolist() == ["affine", "affine"]


def test_what_does_not_agree_with_1024_either_stays_a_contradiction(swept):
    _, sweep = swept(series(np.multiply(BINARY, 1.1), BYTES, "Kbyte"), series(COUNTED, SECTORS, "sector"))
    assert set(sweep.anomalies["kind"]) == {"contradiction"}


def test_a_time_is_not_proven_by_sectors(swept):
    _, sweep = swept(series([120.5, 240.1, 480.9, 960.2, 1.92, 3.84, 7.68], TIME, "usecond"))
    assert sweep.anomalies["seq_len"].tolist() == [1024, 2048, 4096]
    assert sweep.anomalies["evidence"].str.contains("not proven, because no other counter").all()
    assert not sweep.anomalies["evidence"].str.contains("sectors").any()


def test_a_zero_among_counts_is_an_outlier(swept):
    values = 7 * LENGTHS + 1000
    values[2] = 0
    _, sweep = swept(series(values, "lts__t_requests.sum", "request"))
    assert sweep.anomalies[["kind", "seq_len"]].to_numpy().tolist() == [["outlier", 256]]
    assert (sweep.laws["formula"][0], sweep.laws["exact"][0]) == ("7·seq_len + 1000", True)


def test_zeros_up_to_a_size_are_no_outliers(swept):
    _, sweep = swept(series(np.maximum(LENGTHS - 256, 0), "lts__t_requests.sum", "request"))
    assert sweep.anomalies.empty
    assert sweep.laws["law"][0] == "knee"


def test_absurd_values_are_one_line(swept):
    with pytest.raises(InputError, match=r"line 8, column value: '1e\+?308' is not within 0 to 1e\+30"):
        swept(series([1, 2, 3, 4, 5, 6, 1e308], "lts__t_requests.sum", "request"))


def test_large_numbers_are_written_out():
    assert unit_switches.shown(127_712.4, "ns") == "127,700 ns"
    assert unit_switches.shown(12.3456, "ns") == "12.35 ns"
    assert unit_switches.shown(192_986.0, "ns") == "192,986 ns"
    assert unit_switches.power(1024**2 / 1000**2) == "1.048576"


def test_a_full_grid_has_one_law_for_each_pair_of_sizes(swept):
    rows = [
        series(3 * LENGTHS[:5] * h // 32 * n, SECTORS, "sector", LENGTHS[:5], hidden_dim=h, n_layer=n)
        for h in (256, 512, 1024, 2048)
        for n in (2, 4, 8)
    ]
    # One point more at four layers.
    rows.append(series([3 * 4096 // 32 * 64 * 4], SECTORS, "sector", [64], hidden_dim=4096, n_layer=4))
    _, sweep = swept(*rows)
    found = sweep.products.set_index("variable")
    assert found.index.tolist() == ["seq_len, hidden_dim", "seq_len, n_layer", "hidden_dim, n_layer"]
    assert found["exact"].all()
    assert found.loc["seq_len, hidden_dim", ["at", "points", "formula"]].tolist() == [
        "n_layer = 4",
        21,
        "3·seq_len·hidden_dim/8",
    ]


@pytest.mark.parametrize("sizes", [64 * 2 ** np.arange(9), 100 * np.arange(1, 15), np.arange(1000, 1009)])
def test_titles_stand_at_one_height_and_no_tick_covers_another(swept, sizes):
    parts = [series(3 * sizes + 6, SECTORS, "sector", sizes)]
    parts += [series(5 * sizes, TIME, "ns", sizes, kernel_class=name) for name in ("norm", "softmax", "copy")]
    variables, _ = run_notebook("metric_sweep", swept(*parts)[0])
    first = variables["plots"][:2]
    assert len({round(axes.title.get_window_extent().y0) for axes in first}) == 1
    for axes in first:
        shown = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert shown and all(one.x1 <= other.x0 for one, other in pairwise(shown))


def test_ticks_are_as_many_as_there_is_room_for():
    def kept(sizes, inches):
        at = np.log2(sizes)
        return panels.thin_ticks(sizes, at * inches / np.ptp(at)).tolist()

    assert kept(192 * 2 ** np.arange(6), 2.1) == [192, 384, 768, 1536, 3072, 6144]
    assert kept(64 * 2 ** np.arange(8), 2.2) == [64, 256, 1024, 4096]
    assert kept(100 * np.arange(1, 5), 1.7) == [100, 200, 300, 400]


def test_words_around_narrow_panels_stay_beside_each_other(swept):
    """The name of a metric that was longer than its panel made both narrow; their labels below then met."""
    laws = {"gemm": 3000 * LENGTHS[:5], "norm": 48 * LENGTHS[:5] + 1000}
    metrics = [f"sm__inst_executed_pipe_tensor_op_hmma{number}.sum.pct_of_peak_sustained_active" for number in range(2)]
    parts = [
        series(values, metric, "%", LENGTHS[:5], kernel_class=name, hidden_dim=2048)
        for name, values in laws.items()
        for metric in metrics
    ]
    variables, _ = run_notebook("metric_sweep", swept(*parts)[0])
    left, right = variables["plots"][:2]
    assert left.get_window_extent().width > 2.2 * left.figure.dpi
    for axes in (left, right):
        shown = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert shown and all(one.x1 <= other.x0 for one, other in pairwise(shown))
    for one, other in ((left.xaxis.label, right.xaxis.label), (left.texts[-1], right.texts[-1])):
        assert one.get_window_extent().x1 < other.get_window_extent().x0


def test_a_size_with_too_few_values_is_no_part_of_the_map_and_counts_say_whether_it_matters(swept):
    counts = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "sm__inst_executed.sum"
    rows = []
    for kernel in ("gemm", "norm"):
        rows += [series(7 * LENGTHS, metric, "inst", kernel_class=kernel, n_layer=1) for metric in counts]
        for layers in (2, 3):
            values = [448 + layers * (kernel == "gemm" and metric == counts[1]) for metric in counts]
            rows += [
                series([value], metric, "inst", LENGTHS[:1], kernel_class=kernel, n_layer=layers)
                for metric, value in zip(counts, values, strict=True)
            ]
    result, sweep = swept(*rows)
    assert (result["n_layer_compared_counts"], result["n_layer_same_counts"]) == (4, 3)
    words = study_tables.describe_few_sizes(sweep)
    assert words.startswith("`n_layer` has 3 sizes (1, 2, 3), too few for laws. Of 4 counts of instructions")
    assert words.endswith("not the same: `sm__inst_executed.sum` of gemm.")
    figure, axes = plt.subplots()
    law_map.draw(axes, sweep.laws, sweep.points)
    names = [text.get_text() for text in axes.texts]
    plt.close(figure)
    assert names == ["sequence length"]


def test_a_title_of_many_laws_leaves_its_panel_the_room(swept):
    """A line as long as two panels made all of them narrow."""
    laws = {"gemm": 3000 * LENGTHS, "norm": 48 * LENGTHS + 1000, "softmax": LENGTHS[:2], "copy": 7 + 0 * LENGTHS}
    parts = [series(values, TIME, "ns", LENGTHS[: len(values)], kernel_class=name) for name, values in laws.items()]
    variables, _ = run_notebook("metric_sweep", swept(*parts)[0])
    axes = variables["plots"][0]
    assert axes.get_title("left").count("\n") == 2
    assert axes.get_position().width > 0.3


@pytest.mark.parametrize(
    ("values", "given", "words"),
    [
        (
            [7.9e6, 37e6],
            [7.9e3, 37e3],
            "Two byte counts look a thousand times too small only because their unit changed",
        ),
        ([500.0], [500e3], "One byte count looks a thousand times too large only because its unit changed"),
        (
            [2e9, 3.0],
            [2e3, 3e3],
            "Two byte counts look up to 1,000,000 times too small or large only because their unit",
        ),
        ([1.0], [1.0], "what was found"),
    ],
)
def test_headline_says_how_far_off_values_look(values, given, words):
    panel = pd.DataFrame({"value": values, "value_as_given": given, "unit": "byte"})
    assert panels.headline_of([panel], "what was found").startswith(words)


def test_a_map_says_how_each_metric_grows_with_each_size(swept):
    """More metrics than panels: a map, two panels of different metrics, and a headline with the counts."""
    flat = {f"sm__flat_{number}.sum": 7 + 0 * LENGTHS for number in range(3)}
    parts = [series(values, name, "1") for name, values in {**flat, "sm__line.sum": 5 * LENGTHS}.items()]
    # What a counter is at its last size never lets an axis or a band fall below zero.
    late = series([0, 0, 0, 0, 0, 3e5, 9e6], "dram__bytes_write.sum")
    short = series(LENGTHS[:2], kernel_class="copy", metric="sm__line.sum", unit="1", sizes=LENGTHS[:2])
    result, sweep = swept(*parts, late, short)
    shown, more = panels.choose_panels(sweep)
    assert more and len({panel["metric"].iloc[0] for panel in shown}) == len(shown) == panels.SHOWN_WITH_MAP
    metrics, classes = law_map.choose(sweep.laws, sweep.points)
    assert metrics == sorted([*flat, "sm__line.sum", "dram__bytes_write.sum"])
    assert classes == ["norm"], "a class without any law is not shown"
    known = sweep.laws[sweep.laws["law"] != "undetermined"]
    changed = int((known["law"] != "constant").sum())
    words = law_map.finding(sweep.laws)
    assert words.startswith(
        f"Of the counters with a law, {changed} of {len(known)} change with sequence length (1 linear"
    )
    variables, _ = run_notebook("metric_sweep", result)
    for axes in variables["plots"]:
        reached = [path.vertices[:, 1].min() for mesh in axes.collections for path in mesh.get_paths()]
        assert axes.get_ylim()[0] > -0.2 * 3e5 and min(reached, default=0) >= 0
        labels = [text.get_position()[1] for text in axes.texts if text.get_fontweight() == "bold"]
        assert labels and all(0 < place < 1 for place in labels)


def test_the_summary_of_a_larger_sweep_names_laws_only(swept, tmp_path):
    swept(series(COUNTED, SECTORS, "sector"))
    case = own_case(tmp_path, "metric_sweep", {"measurements": "sweep.csv"}, "sweep")
    names = {
        most: {name for name in reduced(case, summarised_series=most).summary if name.startswith(("norm_", "dram_"))}
        for most in (0, 1)
    }
    laws = {"norm_dram__sectors_read_sum_by_seq_len_law", "dram__sectors_read_sum_depends_on"}
    assert names[0] == laws and "norm_dram__sectors_read_sum_by_seq_len_slope" in names[1] > laws
