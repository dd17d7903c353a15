"""Engines and versions compared: planted differences that come out again, noise that is no finding, hostile tables."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_cases import own_case, reduced
from support.notebooks import run_notebook

from gpuledger.errors import InputError
from gpuledger.ledger import figures
from gpuledger.models.transformer import Parallel, decode, kernels, read_model
from gpuledger.studies import engine_comparison
from gpuledger.studies.engine_comparison.noise import beyond, distances, nearest_three
from gpuledger.studies.engine_comparison.real_shapes import CACHED
from gpuledger.studies.engine_comparison.shapes import repeated_percent

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048), (512, 1024, 2048, 4096, 8192), (1024, 2048, 4096, 8192)
GRID = pd.DataFrame(itertools.product(*SIZES), columns=["m", "n", "k"]).assign(gemm_dtype="bfloat16")


def times(table):
    """Make up times (ms) of GEMMs: a launch, and what a GPU computes and reads."""
    flop, values = 2.0 * table["m"] * table["n"] * table["k"], table["n"] * table["k"]
    return 2e-3 + 1e3 * np.maximum(flop / 7e14, 2 * values / 3e12)


def noisy(table, seed, deviation=0.02):
    return times(table) * np.exp(np.random.default_rng(seed).normal(0, deviation, len(table)))


def opened(folder, tables, key="measurements", **inputs):
    """Write tables by name, and open a case that compares them."""
    folder.mkdir(exist_ok=True)
    for number, table in enumerate(tables.values()):
        table.to_csv(folder / f"{number}.csv", index=False)
    declared = {name: f"{number}.csv" for number, name in enumerate(tables)}
    return own_case(folder, "engine_comparison", {key: declared, "gpu": "h100-sxm", "unit": "ms"} | inputs)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    rng, tables = iter(range(3)), {}
    for name, low, high in (("vLLM 2.0", 1.3, 1.0), ("SGLang 3.0", 1.0, 1.3), ("mine", 1.0, 1.0)):
        factor = np.where(GRID["m"] <= 32, low, high)
        tables[name] = GRID.assign(kernel_source=name.lower(), latency=factor * noisy(GRID, next(rng), 0.01))
    return reduced(opened(tmp_path_factory.mktemp("engines"), tables))


def test_planted_differences_come_out_again(compared):
    table = engine_comparison.statistics(compared).set_index("table")
    table = table.loc[["vLLM 2.0", "SGLang 3.0", "mine"]]
    half = 50.0  # m up to 32 are half of the sizes
    assert table["slower_percent"].tolist() == pytest.approx([half, half, 0], abs=1)
    assert (table["faster_percent"] == 0).all(), "never is one ahead of both others"
    assert table["mean_ratio"].tolist() == pytest.approx([1.3**0.5, 1.3**0.5, 1.0], rel=0.02)
    assert table["slowest_ratio"][:2].tolist() == pytest.approx([1.3, 1.3], rel=0.03)
    assert "tokens m 1 to 9" in table.loc["vLLM 2.0", "slowest_where"]
    assert (
        "tokens m 1k to 10k" in table.loc["SGLang 3.0", "slowest_where"]
        or "100 to 999" in table["slowest_where"].iloc[1]
    )
    assert compared.finding.startswith("16-bit GEMMs on NVIDIA H100 SXM5: mine takes 1 % longer than the fastest")
    assert compared.finding.endswith("; beyond noise none leads in as many as 1 % of 240 shapes")


def test_the_largest_differences_name_shape_kernel_and_rival(compared):
    largest = engine_comparison.largest(compared.data, engine_comparison.names_of(compared), versions=False)
    assert set(largest["table"]) == {"vLLM 2.0", "SGLang 3.0"} and (largest["ratio"] > 1.2).all()
    row = largest[largest["table"] == "vLLM 2.0"].iloc[0]
    assert row["kernel"] == "vllm 2.0" and row["other"] in ("SGLang 3.0", "mine") and "m " in row["shape"]
    assert row["time_us"] / row["other_us"] == pytest.approx(row["ratio"], rel=1e-3)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), deviation=st.floats(0.001, 0.08))
def test_a_table_against_itself_with_noise_is_no_finding(tmp_path_factory, seed, deviation):
    old, new = (GRID.assign(latency=noisy(GRID, [seed, which], deviation)) for which in (1, 2))
    result = reduced(opened(tmp_path_factory.mktemp("noise"), {"old": old, "new": new}, baseline="old"))
    assert result["16_bit_new_slower_percent"] == result["16_bit_new_faster_percent"] == 0
    assert result["16_bit_new_mean_ratio"] == pytest.approx(1, abs=0.02)
    assert engine_comparison.largest(result.data, ["old", "new"], versions=True).empty


def test_single_bad_measurements_do_not_count(tmp_path):
    old = GRID.assign(latency=noisy(GRID, 1))
    new = GRID.assign(latency=noisy(GRID, 2))
    bad = np.random.default_rng(3).random(len(GRID)) < 0.04
    new.loc[bad, "latency"] *= 5
    result = reduced(opened(tmp_path, {"old": old, "new": new}, baseline="old"))
    assert result["16_bit_new_slower_percent"] < 0.5 < 100 * bad.mean()


def test_a_regression_of_one_region_is_found_and_shown(tmp_path):
    old = GRID.assign(latency=noisy(GRID, 1), kernel_source="k1")
    worse = (GRID["k"] == 8192) & (GRID["m"] >= 256)
    new = GRID.assign(latency=noisy(GRID, 2) * np.where(worse, 2.0, 1.0), kernel_source="k2")
    result = reduced(opened(tmp_path, {"vLLM 0.1": old, "vLLM 0.2": new}, baseline="vLLM 0.1"))
    assert result["16_bit_vllm_0_2_slower_percent"] == pytest.approx(100 * worse.mean(), abs=1)
    assert result.finding.startswith("vLLM 0.2 against 0.1, GEMMs on NVIDIA H100 SXM5: 16-bit")
    largest = engine_comparison.largest(result.data, ["vLLM 0.1", "vLLM 0.2"], versions=True)
    assert len(largest) == 5 and largest["shape"].str.contains("k 8,192").all()
    assert set(largest["other_kernel"]) == {"k1"} and set(largest["kernel"]) == {"k2"}


def test_repeated_rows_say_how_noisy_a_table_is(tmp_path):
    rng = np.random.default_rng(0)
    twice = [GRID.assign(latency=noisy(GRID, seed, 0.1)) for seed in (1, 2)]
    pd.concat(twice).sample(frac=1, random_state=1).to_csv(tmp_path / "twice.csv", index=False)
    percent, count = repeated_percent([tmp_path / "twice.csv"])
    assert count == len(GRID) and percent == pytest.approx(100 * np.expm1(1.96 * 0.1 * 2**0.5), rel=0.15)
    GRID.assign(latency=rng.random(len(GRID)) + 1).to_csv(tmp_path / "once.csv", index=False)
    assert repeated_percent([tmp_path / "once.csv"])[1] == 0
    new = GRID.assign(latency=noisy(GRID, 3, 0.01) * 1.2)
    result = reduced(opened(tmp_path / "mine", {"old": pd.concat(twice), "new": new}, baseline="old"))
    assert result["least_percent"] == pytest.approx(percent, rel=0.05)
    assert result["16_bit_new_slower_percent"] < 1, "20 % is less than what two measurements of one table differ by"


def test_a_table_of_host_calls_is_named_and_left_out(tmp_path):
    tables = {name: GRID.assign(latency=noisy(GRID, seed)) for seed, name in enumerate("abc")}
    tables["c"]["latency"] = np.maximum(tables["c"]["latency"], 0.15)
    tables["d"] = tables["b"].assign(latency=noisy(GRID, 4) * 30)  # slow, but a kernel
    result = reduced(opened(tmp_path, tables))
    table = engine_comparison.statistics(result).set_index("table")
    assert table["compared"].to_dict() == {"a": "yes", "b": "yes", "c": "host", "d": "yes"}
    assert np.isfinite(result.data["a_s"]).all() and result.data["c_s"].isna().all()
    assert " c takes" not in result.finding and result.finding.endswith("; left out: c, whose times are the host's")
    del tables["b"], tables["d"]
    with pytest.raises(InputError, match=r"no shape was measured by all tables"):
        reduced(opened(tmp_path, tables))
    # The shortest kernel may be long in all tables.
    long = {name: GRID.assign(latency=noisy(GRID, seed) + 0.1) for seed, name in enumerate("ab")}
    assert set(engine_comparison.statistics(reduced(opened(tmp_path, long)))["compared"]) == {"yes"}


def test_only_shapes_of_all_tables_and_the_fastest_kernel_of_each(tmp_path):
    tables = {name: GRID.assign(latency=times(GRID), kernel_source="slow") for name in "abc"}
    tables["b"] = pd.concat([tables["b"].assign(latency=9.0), tables["b"].assign(kernel_source="fast")])
    tables["c"] = tables["c"][tables["c"]["m"] > 1]
    only = GRID[:9].assign(gemm_dtype="fp8", latency=1.0, kernel_source="alone")
    tables["a"] = pd.concat([tables["a"], only, only[:3].assign(gemm_dtype="odd")])
    result = reduced(opened(tmp_path, tables))
    assert result["shapes"] == (GRID["m"] > 1).sum() and set(result.data["b_kernel"]) == {"fast"}
    table = engine_comparison.statistics(result)
    assert table[table["panel"] == "fp8"]["compared"].tolist() == ["no"]
    assert set(table[table["panel"] == "16-bit"]["mean_ratio"]) == {1.0}


def test_what_was_not_measured_alike_is_no_finding(tmp_path):
    both = pd.concat([GRID, GRID.assign(gemm_dtype="fp8")], ignore_index=True)
    slower = np.where(both["gemm_dtype"] == "fp8", 3.0, 1.5)
    tables = {"a": both.assign(latency=times(both)), "b": both.assign(latency=slower * times(both))}
    result = reduced(opened(tmp_path, tables, unlike={"fp8": "b also sorts"}))
    assert result.finding.startswith("16-bit") and result["fp8_unlike"] == "b also sorts"
    assert list(engine_comparison.panels(result)) == ["16-bit", "fp8 (not measured alike)"]
    result = reduced(opened(tmp_path, tables, unlike={"all": "b also sorts"}))
    assert result.finding.endswith("the benchmarks differ (see notes)")
    result = reduced(opened(tmp_path, tables, unlike={"fp8": "b also sorts"}, baseline="a"))
    assert "16-bit 1.50 times" in result.finding and result.finding.endswith("not measured alike: fp8 3.00 times")
    with pytest.raises(InputError, match=r"unlike: no table has numbers of the type 'fp9'"):
        reduced(opened(tmp_path, tables, unlike={"fp9": "b also sorts"}))


def test_eager_collectives_do_not_stand_for_an_engine(tmp_path):
    grid = pd.DataFrame(itertools.product((2, 4, 8), 2 ** np.arange(8, 24)), columns=["num_gpus", "message_size"])
    grid = grid.assign(op_name="all_reduce", allreduce_dtype="bfloat16")
    time = 5e-3 + grid["message_size"] * 1e-8
    graph, eager = (
        grid.assign(latency=time * by, kernel_source=name) for name, by in (("x_graph", 1), ("x_eager", 0.5))
    )
    tables = {"a": pd.concat([graph, eager]), "b": graph.assign(latency=1.5 * time)}
    result = reduced(opened(tmp_path, tables, "collectives"))
    assert set(result.data["a_kernel"]) == {"x_graph"}
    assert result["16_bit_a_faster_percent"] == 100 and result["16_bit_b_mean_ratio"] == pytest.approx(1.5)


def test_a_models_kernels_add_up_to_a_step(tmp_path):
    model = read_model("Llama-3.1-8B")
    rows = kernels(model, decode([CACHED], batch=64), parallel=Parallel(tensor=8))
    rows = rows[(rows["kind"] == "gemm") & (rows["layers"] >= 0)]
    own = rows[["m", "n", "k"]].drop_duplicates().assign(gemm_dtype="bfloat16")
    table = pd.concat([GRID, own]).drop_duplicates(["m", "n", "k"], ignore_index=True)
    tables = {"a": table.assign(latency=times(table)), "b": table.assign(latency=1.1 * times(table))}
    result = reduced(opened(tmp_path, tables))
    found = engine_comparison.model_table(result)
    (row,) = found[
        (found["model"] == "Llama-3.1-8B") & (found["gpus"] == 8) & found["pass"].str.contains("64")
    ].itertuples()
    wanted = (rows["count"] * times(rows)).sum() * 1e3
    assert row.a_us == pytest.approx(wanted, rel=1e-4) and row.launches == rows["count"].sum()
    assert row.fastest == "a" and row.ahead_percent == pytest.approx(10, abs=0.01)


def test_distances_are_zero_on_a_line_and_scaled_to_one_shape():
    sizes = pd.DataFrame({"m": [1, 2, 8, 64] * 2, "n": [1] * 4 + [2] * 4})
    line = np.log(sizes["m"].to_numpy(float)) * 0.1
    found = distances(line, sizes, "m")
    assert np.isnan(found[[0, 3, 4, 7]]).all() and found[[1, 2, 5, 6]] == pytest.approx(0)
    rng = np.random.default_rng(0)
    many = pd.DataFrame({"m": np.tile(np.arange(1, 11), 2000), "n": np.repeat(np.arange(2000), 10)})
    found = distances(rng.normal(0, 0.1, len(many)), many, "m")
    assert 1.4826 * np.nanmedian(found) == pytest.approx(0.1, rel=0.03)


def test_three_in_a_row_at_the_ends_and_short_lines():
    sizes = pd.DataFrame({"m": [4, 1, 3, 2, 1, 2], "n": [1, 1, 1, 1, 2, 2]})
    low, high = nearest_three(np.array([4.0, 1.0, 3.0, 2.0, 9.0, 9.0]), sizes, "m")
    assert low[:4].tolist() == [2, 1, 2, 1] and high[:4].tolist() == [4, 3, 4, 3]
    assert np.isnan(low[4:]).all()


@settings(max_examples=40)
@given(
    ratio=st.lists(st.floats(-1, 1), min_size=24, max_size=24), least=st.floats(0.01, 0.2), deviations=st.floats(0.5, 4)
)
def test_slower_one_way_is_faster_the_other(ratio, least, deviations):
    sizes = pd.DataFrame(itertools.product(range(1, 9), range(1, 4)), columns=["m", "n"])
    ratio, time_s = np.array(ratio), np.full(24, 1e-5)
    sign, threshold = beyond(ratio, time_s, sizes, ("m", "n"), least=least, deviations=deviations)
    turned, same = beyond(-ratio, time_s, sizes, ("m", "n"), least=least, deviations=deviations)
    assert (sign == -turned).all() and threshold == pytest.approx(same)
    assert (np.abs(ratio[sign != 0]) > threshold[sign != 0]).all() and (threshold >= np.log1p(least)).all()


@pytest.mark.parametrize("versions", [False, True])
def test_the_notebook_draws_and_writes_everything(compared, tmp_path, versions):
    result = compared
    if versions:
        tables = {name: GRID.assign(latency=noisy(GRID, seed)) for seed, name in enumerate(("old", "new"))}
        result = reduced(
            opened(tmp_path, tables, baseline="old", unlike={"16-bit": "a <b> of $x$"}, remarks=["why|not"])
        )
    _, shown = run_notebook("engine_comparison", result, tmp_path / "out")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"figure.pdf", "table.csv", "largest.md", "models.tex"} <= names
    text = "\n".join(shown)
    assert ("a &lt;b&gt; of \\$x\\$" in text) == versions == ("* why\\|not" in text)


def test_a_figure_fits_a_column(compared, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "for_columns", True)
    run_notebook("engine_comparison", compared, tmp_path)
    assert (tmp_path / "figure_column.pdf").exists()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"measurements": {"a b": "0.csv", "a-b": "0.csv"}}, "two names differ in signs alone"),
        ({"measurements": {"?": "0.csv", "b": "0.csv"}}, "one has no letter or digit"),
        ({"measurements": {"a": "0.csv", "b": "none.csv"}}, r"measurements\.b: the file .* does not exist"),
        ({"measurements": {"a": "0.csv", "b": "0.csv", "c": "0.csv"}, "baseline": "a"}, "give two, or no baseline"),
        ({"measurements": {"old": "0.csv", "new": "0.csv"}, "baseline": "odl"}, "no table is called 'odl'; .*old"),
        ({"measurements": {"a": "0.csv"}}, "measurements"),
        ({"measurements": {"a": "0.csv", "b": "0.csv"}, "unit": "hours"}, "unit"),
        ({"measurements": {"a": "0.csv", "b": "0.csv"}, "gpu": "h1000"}, "h1000"),
        ({"measurements": {"a": "0.csv", "b": "../0.csv"}}, "leaves the folder"),
        ({"collectives": {"a": "0.csv", "b": "0.csv"}, "unit": "TFLOP/s"}, "TFLOP/s is for measurements of GEMMs"),
        ({"moe": {"a": "0.csv", "b": "0.csv"}}, r"0\.csv, line 1: the column 'kernel_source' is missing"),
        ({"measurements": {"a": "0.csv", "b": "1.csv"}}, "no shape was measured by all tables"),
    ],
)
def test_bad_input_is_one_line(tmp_path, inputs, message):
    GRID.assign(latency=1.0).to_csv(tmp_path / "0.csv", index=False)
    GRID.assign(latency=1.0, m=GRID["m"] + 5000).to_csv(tmp_path / "1.csv", index=False)
    with pytest.raises(InputError, match=message):
        reduced(own_case(tmp_path, "engine_comparison", {"gpu": "h100-sxm", "unit": "ms"} | inputs))


def test_encoders_are_not_compared_with_decoders(tmp_path):
    rows = pd.DataFrame({"batch_size": [1, 2, 4], "isl": 128, "num_heads": 8, "head_dim": 64, "latency": 0.1})
    rows = rows.assign(kernel_source="k", attn_dtype="bfloat16")
    encoder = rows.assign(op_name="encoder_attention")
    context = rows.assign(op_name="context_attention", kv_cache_dtype="bfloat16", step=0, num_key_value_heads=8)
    with pytest.raises(InputError, match=r"attention\.b: a table of another kind of kernel"):
        reduced(opened(tmp_path, {"a": context, "b": encoder}, "attention"))


def test_shapes_without_neighbours_never_count(tmp_path):
    few = GRID[(GRID["m"] == 1) & (GRID["k"] == 1024)][:2]
    tables = {"a": few.assign(latency=1.0), "b": few.assign(latency=9.0)}
    result = reduced(opened(tmp_path, tables))
    assert result["16_bit_b_slower_percent"] == 0 and result["16_bit_b_mean_ratio"] == pytest.approx(9)
