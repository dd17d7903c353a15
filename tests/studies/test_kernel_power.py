"""Power readings: a simulated sensor whose law comes out again, samples told from digits, bad tables in one line."""

import dataclasses
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from own_cases import own_case, reduced
from support.notebooks import run_notebook

from gpuledger.errors import InputError
from gpuledger.ledger import viewer
from gpuledger.models.power import (
    PowerConstants,
    fit_power,
    mean_power_w,
    power_constants,
    power_w,
)
from gpuledger.models.sustained import at_clock, sustained, sustained_products
from gpuledger.models.time_model.constants.table import read_table
from gpuledger.models.time_model.gemms.law import gemm_time_s
from gpuledger.models.time_model.work import attention_work, expert_work
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.engines import read_moe
from gpuledger.studies.kernel_power.figures import draw_predictions, judged
from gpuledger.studies.kernel_power.readings import digits_samples, kernels_share, run_s, samples
from gpuledger.studies.kernel_power.sustained_products import LINEAR
from gpuledger.studies.kernel_power.tables import power_table, settling_table

LAW = PowerConstants(400.0, 90.0, 980.0, 1.2, 0.5)
TOKENS = [1, 2, 4, 8, 16, 32, *range(48, 97, 16), 128, 160, 192, 256, 320, 384, 512]
TOKENS += [768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
LAYERS = itertools.product(("bfloat16", "fp8"), (4096, 6144, 7168), (1024, 2048, 4096), ((2, 8), (8, 128), (6, 160)))
IDLE_W, SETTING_UP_S = 250.0, 3.0


def sensed(drawn_w, time_s, before_w):
    """Return what a benchmark reads of kernels that it runs one after the other, by a sensor of the last second."""
    readings, ends, watts = [], [0.0, SETTING_UP_S], [before_w]
    for drawn, time in zip(drawn_w, time_s, strict=True):
        start = ends[-1]
        ends.append(start + run_s(np.array([time]))[0])
        watts.append(drawn)
        energy = np.r_[0, np.cumsum(np.diff(ends) * watts)]
        at = start + 0.1 * np.arange(np.ceil((ends[-1] - start) / 0.1 - 1e-9))
        last_second = np.interp(at, ends, energy) - np.interp(at - 1, ends, energy)
        readings.append(np.mean(np.rint(1000 * last_second) / 1000))
    return readings


def simulated():
    """Make up a table of experts on a B200 that follow `LAW`, at rates that depend on the layer."""
    gpu, chance, parts = find_gpu("b200"), np.random.default_rng(1), []
    for dtype, hidden, inter, (chosen, experts) in LAYERS:
        part = pd.DataFrame({"num_tokens": TOKENS, "moe_dtype": dtype, "hidden_size": hidden, "inter_size": inter})
        part = part.assign(topk=chosen, num_experts=experts, moe_tp_size=1, moe_ep_size=1, distribution="balanced")
        rows = np.array(TOKENS) * chosen
        shapes = {"hidden": hidden, "inter": inter, "gates": 2, "rows": rows, "active": np.minimum(rows, experts)}
        name, size = ("fp8", 1) if dtype == "fp8" else ("bf16", 2)
        flop, moved = expert_work(shapes, size, size)
        share = chance.uniform(0.1, 0.5)
        time = np.maximum(flop / gpu.peak_flop_per_s(name), moved / gpu.dram_bytes_per_s) / share + 1e-5
        drawn = power_w(LAW, flop / time, moved / time, np.full(len(time), name))
        parts.append(part.assign(latency=1e3 * time, power=sensed(drawn, time, IDLE_W), drawn=drawn))
    table = pd.concat(parts).assign(kernel_source="fused", power_limit=1000.0)
    return table.reset_index(drop=True)


def attention():
    """Make up a table of decode attention, of which each shape is set up by itself."""
    table = pd.DataFrame({"batch_size": [1, 8, 64, 256] * 40, "step": np.repeat(np.arange(1, 41) * 500, 4)})
    table = table.assign(op_name="generation_attention", kernel_source="flash", attn_dtype="bfloat16", isl=1)
    table = table.assign(kv_cache_dtype="bfloat16", num_heads=32, num_key_value_heads=8, head_dim=128)
    moved = 4096 * table["batch_size"] * table["step"]
    time = (moved / 6e12 + 5e-6).to_numpy()
    power = [sensed([900.0], [each], IDLE_W)[0] for each in time]
    return table.assign(latency=1e3 * time, power=power, power_limit=1000.0)


EXPERTS = simulated()


def opened(folder, table=EXPERTS, beside=None, **inputs):
    folder.mkdir(exist_ok=True)
    table.drop(columns="drawn", errors="ignore").to_csv(folder / "moe.csv", index=False)
    if beside is not None:
        beside.to_csv(folder / "decode.csv", index=False)
        inputs["attention"] = ["decode.csv"]
    return own_case(folder, "kernel_power", {"moe": "moe.csv", "gpu": "b200", "unit": "ms"} | inputs)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return reduced(opened(tmp_path_factory.mktemp("power"), beside=attention()))


def test_the_law_comes_out_again(result):
    # What is left of the kernel before in a steady reading moves the energies by some per cent.
    for name, value in (("static", 400), ("bf16_flop", 1.2), ("fp8_flop", 0.5), ("dram_byte", 90), ("most", 980)):
        assert result[name] == pytest.approx(value, rel=0.03), name
        assert result[f"{name}_other_half"] == pytest.approx(value, rel=0.05), name
    assert result["median_error_percent"] < 1 < result["constant_median_error_below_limit_percent"]
    assert result["median_error_below_limit_percent"] < 2
    # The one power that the law is compared with below the limit is of readings below it.
    below = result.data[result.data["steady"] & (result.data["power_w"] < 970)]
    half = below.groupby("held_back")["power_w"]
    error = 100 * np.median(np.abs(half.median()[False] / half.get_group(True) - 1))
    assert result["constant_median_error_below_limit_percent"] == pytest.approx(error)
    assert result.finding.startswith("Experts on NVIDIA B200 (HGX) draw ")


def test_steady_readings_are_what_was_drawn_and_others_are_not(result):
    experts = result.data[result.data["kind"] == "experts"].reset_index(drop=True)
    error = np.abs(experts["power_w"] / EXPERTS["drawn"] - 1)
    assert 50 < experts["steady"].sum() < len(experts)
    # Within the 3 % by which neighbours may differ, and what a reading still holds of the kernel before.
    assert error[experts["steady"]].max() < 0.05
    assert error[experts["samples"] < 5].median() > 0.1
    assert not result.data[result.data["kind"] == "decode"]["steady"].any()


def test_layers_are_held_back_as_a_whole(result):
    assert (result.data.groupby("layer")["held_back"].nunique()[lambda count: count.index >= 0] == 1).all()
    assert set(judged(result.data)["layer"]) == set(
        result.data[result.data["steady"] & result.data["held_back"]]["layer"]
    )


def test_tables_count_every_steady_reading(result):
    table = power_table(result.data, result["limit"])
    assert table["readings"].sum() == result["steady_readings"] == result.data["steady"].sum()
    assert (table["energy_pj_per_flop"] > 0).all() and table["at_limit_percent"].between(0, 100).all()
    settling = settling_table(result.data, result["dram_bandwidth"])
    decode = settling[settling["kind"] == "decode"].sort_values("samples")
    # Kernels of one rate: the longer the run, the more of the reading is theirs.
    assert len(decode) > 2 and decode["power_w"].is_monotonic_increasing
    expected = IDLE_W + decode["kernels_percent"] / 100 * (900 - IDLE_W)
    assert decode["power_w"].to_numpy() == pytest.approx(expected.to_numpy(), rel=0.02)


@given(st.lists(st.integers(50_000, 1_200_000), min_size=1, max_size=13))
def test_digits_tell_how_many_samples_a_mean_has(milliwatts):
    reading = float(np.mean(np.array(milliwatts) / 1000))
    found = int(digits_samples(np.array([reading]))[0])
    assert len(milliwatts) % found == 0
    assert (found * sum(milliwatts)) % len(milliwatts) == 0
    # With the length of the run, exactly.
    assert samples(np.array([reading]), np.array([0.1 * len(milliwatts)])) == len(milliwatts)


@given(st.integers(1, 40))
def test_the_kernels_share_is_the_mean_over_the_samples(count):
    own = np.mean(np.minimum(0.1 * np.arange(count), 1.0))
    assert kernels_share(np.array([count]))[0] == pytest.approx(own, abs=1e-12)


def test_a_fit_says_nothing_of_types_that_it_has_not_seen():
    chance = np.random.default_rng(2)
    flop, moved = chance.uniform(1e13, 3e14, 60), chance.uniform(1e11, 4e12, 60)
    names = np.full(60, "bf16")
    found = fit_power(flop, moved, names, power_w(LAW, flop, moved, names), 1000.0)
    assert found.bf16_pj_per_flop == pytest.approx(1.2, rel=0.03)
    assert np.isnan(found.fp8_pj_per_flop)
    assert np.isnan(power_w(LAW, flop[:1], moved[:1], np.array(["fp4"]))).all()
    drawn = power_w(LAW, flop, moved, names)
    with pytest.raises(ValueError, match="at least 20 readings"):
        fit_power(flop[:19], moved[:19], names[:19], drawn[:19], 1000.0)


@pytest.mark.parametrize(
    ("limit_w", "static_w", "flop", "byte"),
    [(72, 20, 1.2, 60), (300, 60, 8, 30), (400, 90, 0.9, 90), (700, 120, 0.5, 60), (1000, 500, 1, 110)],
)
def test_the_law_of_a_small_gpu_comes_out_as_that_of_a_large_one(limit_w, static_w, flop, byte):
    # Where a fit started at the limit with every kernel, no constant had an effect and all stayed where they were.
    chance = np.random.default_rng(4)
    moved = chance.uniform(0.05, 1.0, 60) * 0.5 * (limit_w - static_w) / (1e-12 * byte)
    rate = chance.uniform(0.0, 1.0, 60) * 0.5 * (limit_w - static_w) / (1e-12 * flop)
    names = np.full(60, "bf16")
    law = PowerConstants(static_w, byte, limit_w, flop)
    found = fit_power(rate, moved, names, power_w(law, rate, moved, names), limit_w)
    constants = (found.static_w, found.bf16_pj_per_flop, found.dram_pj_per_byte)
    assert constants == pytest.approx((static_w, flop, byte), rel=0.01)


def test_readings_far_below_the_limit_are_within_the_axes():
    rows = pd.DataFrame({"power_w": [95.0, 300.0], "predicted_w": [100.0, 290.0], "products": "bf16"})
    rows = rows.assign(steady=True, held_back=True, kind="kernels")
    axes = Figure().subplots()
    draw_predictions(axes, rows, 400.0)
    assert axes.get_xlim()[0] < 95 and axes.get_xlim()[1] > 400


def test_shipped_constants_are_those_that_the_study_fits():
    tracked = ROOT / "results/aiconfigurator/kernel_power/b200_vllm/summary.json"
    summary = {name: entry["value"] for name, entry in json.loads(tracked.read_text("utf-8")).items()}
    shipped = power_constants("b200")
    found = [summary[name] for name in ("static", "dram_byte", "most", "bf16_flop", "fp8_flop")]
    assert found == list(dataclasses.astuple(shipped)[:5])
    assert power_constants("h100-sxm") is None
    tracked = ROOT / "results/nvidia-h200/kernel_power/kernels/summary.json"
    summary = {name: entry["value"] for name, entry in json.loads(tracked.read_text("utf-8")).items()}
    names = {
        "static": "static_w",
        "dram_byte": "dram_pj_per_byte",
        "most": "most_w",
        "clock_exponent": "clock_exponent",
    }
    names |= {"bf16_flop": "bf16_pj_per_flop", "fp8_flop": "fp8_pj_per_flop"}
    shipped = dataclasses.asdict(power_constants("h200-sxm"))
    assert {name: summary[name] for name in names} == {name: shipped[of] for name, of in names.items()}


@pytest.mark.parametrize(
    ("name", "clock_mhz", "bf16"),
    # Data sheets give matrix units at the boost clock of an A100, at 1,830 MHz of an H200, whose SMs reach 1,980.
    [("a100-sxm-80gb", 1410, 108 * 2048), ("h200-sxm", 1830, 132 * 4096), ("h200-sxm", 990, 132 * 4096)],
)
def test_matrix_units_do_a_power_of_two_of_flop_per_cycle(name, clock_mhz, bf16):
    slower = at_clock(find_gpu(name), clock_mhz * 1e6)
    assert slower.flops["bf16"] == pytest.approx(bf16 * clock_mhz * 1e6)
    assert slower.flops["fp32"] == pytest.approx(
        2 * 64 * (1 + (name == "h200-sxm")) * slower.sms * clock_mhz * 1e6, 0.01
    )
    assert slower.dram_bytes_per_s == find_gpu(name).dram_bytes_per_s


def test_readings_with_less_than_the_full_clock_tell_how_power_falls_with_it():
    chance = np.random.default_rng(5)
    law = PowerConstants(150.0, 110.0, 700.0, 1.1, clock_exponent=1.3)
    flop, moved = chance.uniform(0, 9e14, 160), chance.uniform(1e11, 3e12, 160)
    names = np.full(160, "bf16")
    wanted = power_w(dataclasses.replace(law, most_w=np.inf), flop, moved, names)
    # The clock at which such rates take no more than the limit.
    share = np.minimum(1.0, (700 / wanted) ** (1 / 1.3))
    drawn = power_w(law, flop, moved, names, share)
    assert (share < 0.98).sum() > 30 and drawn.max() <= 700.0001
    found = fit_power(flop, moved, names, drawn, 700.0, share)
    assert dataclasses.astuple(found)[:4] == pytest.approx(dataclasses.astuple(law)[:4], rel=0.01)
    assert found.clock_exponent == pytest.approx(1.3, rel=0.02)
    # Without clocks, nothing is said of them.
    assert np.isnan(fit_power(flop, moved, names, drawn, 700.0).clock_exponent)


@given(
    st.lists(st.tuples(st.floats(0, 2e12), st.floats(0, 1e9)), min_size=1, max_size=5),
    st.floats(0.3, 3),
    st.floats(1e-6, 1e-2),
)
def test_a_kernel_settles_at_the_highest_clock_within_the_limit(work, exponent, full_s):
    law = PowerConstants(150.0, 110.0, 700.0, 1.1, clock_exponent=exponent)
    gpu = find_gpu("h200-sxm")
    flop, moved = np.array(work).T
    names = np.full(len(flop), "bf16")

    def time_s(at):
        return np.full(len(flop), full_s * gpu.clock_hz / at.clock_hz)

    def drawn(share):
        return power_w(
            dataclasses.replace(law, most_w=np.inf), flop * share / full_s, moved * share / full_s, names, share
        )

    clock_hz, found_s = sustained(law, gpu, flop, moved, names, time_s)
    share = clock_hz / gpu.clock_hz
    assert ((share >= 0.3 - 1e-9) & (share <= 1)).all()
    free = drawn(1.0) <= 700
    assert (share[free] == 1).all() and found_s[free] == pytest.approx(full_s)
    held = ~free & (share > 0.3 + 1e-9)
    assert drawn(share)[held] == pytest.approx(700, rel=0.03)
    assert found_s * share == pytest.approx(np.full(len(flop), full_s), rel=0.01)


def test_a_gpu_of_that_name_with_another_limit_has_no_sustained_clock():
    entry = next(one for one in read_table("gemm") if (one.gpu, one.kernel) == ("h200-sxm", LINEAR))
    sizes, gpu = (np.array([4096]),) * 3, find_gpu("h200-sxm")
    clock_hz, time_s = sustained_products(gpu, entry.constants, *sizes, "bf16")
    assert clock_hz[0] < 0.9 * gpu.clock_hz and time_s[0] > 0
    for other in (dataclasses.replace(gpu, board_power_w=500.0), find_gpu("h100-sxm")):
        assert np.isnan(sustained_products(other, entry.constants, *sizes, "bf16")).all()


def test_a_kernel_without_a_known_energy_has_no_sustained_clock():
    law = power_constants("h200-sxm")
    one = np.array([1e12])
    clock_hz, time_s = sustained(law, find_gpu("h200-sxm"), one, one, np.array(["fp4"]), lambda at: np.array([1e-3]))
    assert np.isnan([clock_hz, time_s]).all()


def test_the_power_of_a_pass_is_the_mean_over_its_time():
    gpu, law = find_gpu("b200"), power_constants("b200")
    rows = pd.DataFrame({"time_s": [1e-3, 2e-3, 1e-3], "count": [3, 1, 1], "macs": [1e11, 0.0, 1e11]})
    rows = rows.assign(dram_bytes=[1e9, 2e9, 0.0], precision=["bf16", "fp32", "fp4"])
    expected = [law.static_w + 0.979 * 200 + 109, law.static_w + 109]
    found = mean_power_w(rows, gpu, np.array([0, 0, 1]), 2)
    assert found[0] == pytest.approx((3 * expected[0] + 2 * expected[1]) / 5)
    # Nobody measured the energy of products in four bits.
    assert np.isnan(found[1])
    for other in (find_gpu("h100-sxm"), dataclasses.replace(gpu, board_power_w=700.0)):
        assert np.isnan(mean_power_w(rows, other, np.array([0, 0, 1]), 2)).all()


def test_work_is_counted_pair_by_pair():
    shapes = {"requests": 2, "tokens": 5, "context": 7, "heads": 4, "head_dim": 16, "cache_values": 64, "window": 6}
    seen = [set(range(max(7 + token + 1 - 6, 0), 7 + token + 1)) for token in range(5)]
    pairs, keys = sum(map(len, seen)), len(set.union(*seen))
    flop, moved = attention_work(
        {name: np.array([float(of)]) for name, of in shapes.items()}
        | {"value_bytes": np.array([2.0]), "cache_bytes": np.array([1.0])}
    )
    assert flop[0] == 2 * 4 * 4 * 16 * pairs
    assert moved[0] == 2 * 5 * 2 * 16 * 4 * 2 + 2 * keys * 64
    flop, moved = expert_work({"hidden": 8, "inter": 3, "gates": 2, "rows": 10, "active": 4}, 1, 2)
    assert (flop, moved) == (2 * 10 * 3 * 3 * 8, 4 * 3 * 3 * 8 + 2 * 10 * 8 * 2)


def test_rows_with_powers_keep_their_order_and_none_is_merged(tmp_path):
    table = EXPERTS.iloc[[5, 5, 2]].drop(columns="drawn")
    table.to_csv(tmp_path / "moe.csv", index=False)
    with_powers, _ = read_moe(tmp_path / "moe.csv", "ms", powers=True)
    assert with_powers["power_w"].tolist() == table["power"].tolist()
    assert len(read_moe(tmp_path / "moe.csv", "ms")[0]) == 2


def test_rows_without_a_reading_are_counted(tmp_path):
    table = EXPERTS.assign(power=EXPERTS["power"].where(EXPERTS.index % 50 > 0))
    found = reduced(opened(tmp_path / "some", table))
    assert found["rows_without_reading"] == table["power"].isna().sum() > 0
    assert found["readings"] == len(table) - found["rows_without_reading"]
    # What ran before a reading is not known if its own reading is missing.
    places = table.index[table["power"].notna()]
    after = places.isin(table.index[table["power"].isna()] + 1)
    assert after.any() and not found.data["steady"][after].any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.drop(columns="power"), "the column 'power' is missing"),
        (lambda table: table.assign(power=np.nan), "no row has a reading"),
        (lambda table: table.assign(power=-1.0), "'-1.0' is not a positive number"),
        (lambda table: table.assign(power=1000 * table["power"]), "is beyond a limit of 1000 W; give watts"),
        (lambda table: table.assign(power_limit=700.0 + (table.index > 9)), "power limits from 700 to 701 W"),
        (lambda table: table.assign(power_limit=""), "is not a positive number"),
        (lambda table: table.assign(latency=0.01), "of 0 steady readings below the limit"),
        (lambda table: table.assign(power=table["power"] * np.where(table.index % 2, 0.5, 1)), "0 steady readings"),
    ],
)
def test_bad_tables_are_one_line(tmp_path, change, words):
    with pytest.raises(InputError) as refused:
        reduced(opened(tmp_path / "bad", change(EXPERTS)))
    assert words in str(refused.value)


def test_the_page_runs_on_such_a_case(tmp_path, result):
    variables, shown = run_notebook("kernel_power", result, tmp_path)
    assert len(variables["settling"]) > 2 and result.finding.split(",")[0] in shown[0]
    assert (tmp_path / "figure.pdf").exists() and (tmp_path / "settling.csv").exists()


def own_readings(folder, rows, **more):
    folder.mkdir(exist_ok=True)
    rows.to_csv(folder / "kernels.csv", index=False)
    return own_case(folder, "kernel_power", {"readings": "kernels.csv", "gpu": "a100-sxm-80gb"} | more)


def kernels_of_ones_own(count=200):
    """Make up steady readings of copies, FMA loops and GEMMs on an A100, none of them at its limit."""
    chance = np.random.default_rng(3)
    law = PowerConstants(90.0, 60.0, 400.0, 0.7, fp32_pj_per_flop=9.0)
    kind = np.arange(count) % 3
    rates = np.select(
        [kind == 0, kind == 1], [0.0, chance.uniform(1e12, 1.9e13, count)], chance.uniform(5e13, 2.5e14, count)
    )
    moved = chance.uniform(1e11, 1.6e12, count)
    names = np.where(kind == 1, "fp32", "bf16")
    rows = pd.DataFrame({"kernel": np.array(["copy", "fma", "gemm"])[kind], "precision": names})
    time_us = chance.uniform(50, 5000, count)
    rows = rows.assign(flop=np.rint(rates * time_us / 1e6), bytes=np.rint(moved * time_us / 1e6), time_us=time_us)
    return rows.assign(power_w=power_w(law, rates, moved, names) * chance.normal(1, 0.005, count))


def test_ones_own_steady_readings_give_the_law_too(tmp_path):
    rows = kernels_of_ones_own()
    found = reduced(own_readings(tmp_path / "own", rows))
    values = {"static": 90, "dram_byte": 60, "most": 400, "bf16_flop": 0.7, "fp32_flop": 9}
    assert {name: found[name] for name in values} == pytest.approx(values, rel=0.03)
    assert "fp8_flop" not in found.summary and found["median_error_percent"] < 1
    assert found.finding.startswith("Kernels on NVIDIA A100-SXM4-80GB draw 90 W + 0.70 pJ per FLOP in bf16")
    # A loop of FMAs may move nothing, and a copy computes nothing.
    rows.loc[rows["kernel"] == "fma", "bytes"] = 0
    found = reduced(own_readings(tmp_path / "still", rows))
    table = power_table(found.data, found["limit"])
    assert table["readings"].sum() == len(rows)
    assert np.isfinite(table.drop(columns=["precision", "intensity"]).fillna(0).to_numpy(float)).all()
    variables, _ = run_notebook("kernel_power", found, tmp_path)
    assert set(variables["grid"]) == {"P", "E"} and len(viewer.of_case("kernel_power", found).marks)
    low, high = variables["grid"]["P"].get_xlim()
    assert low < judged(found.data)[["power_w", "predicted_w"]].min(axis=None) and high > found.data["power_w"].max()


def test_copies_alone_and_types_without_a_peak_make_a_page(tmp_path):
    rows = kernels_of_ones_own()
    copies = reduced(own_readings(tmp_path / "copies", rows[rows["kernel"] == "copy"]))
    variables, _ = run_notebook("kernel_power", copies, tmp_path)
    assert set(variables["grid"]) == {"P"}, "no energy of a FLOP"
    # A data sheet without the type says nothing of its peak.
    unlisted = reduced(own_readings(tmp_path / "unlisted", rows[rows["kernel"] == "gemm"].assign(precision="fp8")))
    assert "fp8_flop" in unlisted.summary and "fp8_peak" not in unlisted.summary
    run_notebook("kernel_power", unlisted, tmp_path)


def test_products_that_run_all_the_time_are_judged_by_the_law_of_the_other_half(tmp_path):
    law, gpu = power_constants("h200-sxm"), find_gpu("h200-sxm")
    sizes = [
        (m, n, k)
        for m in (1, 2, 4, 8, 16, 32, 64, 200, 256, 384, 512, 768, 1000, 2048, 3000, 4096)
        for n in (700, 1500, 4096, 9000)
        for k in (900, 4096)
    ]
    m, n, k = np.array(sizes).T
    flop, moved = 2.0 * m * n * k, 2.0 * (m * n + n * k + m * k)
    names = np.full(len(sizes), "bf16")
    entry = next(one for one in read_table("gemm") if (one.gpu, one.kernel) == ("h200-sxm", LINEAR))
    cool = dataclasses.replace(entry.constants, throttled=0.0)

    def time_s(at):
        return gemm_time_s(at, cool, m, n, k, weights_in_turn=64)

    clock_hz, at_it = sustained(law, gpu, flop, moved, names, time_s)
    drawn = power_w(law, flop / at_it, moved / at_it, names, clock_hz / gpu.clock_hz)
    rows = pd.DataFrame({"kernel": "gemm", "precision": names, "sizes": ["x".join(map(str, each)) for each in sizes]})
    rows = rows.assign(flop=flop, bytes=moved, time_us=at_it * 1e6, power_w=drawn, clock_mhz=clock_hz / 1e6)
    found = reduced(own_readings(tmp_path / "h200", rows, gpu="h200-sxm"))
    assert found["products"] == 128 and 20 < found["slowed_products"] < 80
    assert found["slowing_predicted"] >= 120 and found["sustained_mape_slowed_percent"] < 1
    assert found["nominal_mape_slowed_percent"] > 5 and "products that lose clock" in found.finding
    variables, _ = run_notebook("kernel_power", found, tmp_path)
    assert set(variables["grid"]) == {"P", "E", "C"}
    # A reading whose halves differ is not used, and without clocks nothing is said of them.
    halves = rows.assign(first_half_w=drawn, second_half_w=np.where(rows.index == 7, 0.9 * drawn, drawn))
    assert reduced(own_readings(tmp_path / "halves", halves, gpu="h200-sxm"))["steady_readings"] == 127
    without = reduced(own_readings(tmp_path / "without", rows.drop(columns="clock_mhz"), gpu="h200-sxm"))
    assert "products" not in without.summary and "sustained_s" not in without.data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.assign(power_w=rows["power_w"] * 1000), "is beyond a limit of 400 W"),
        (lambda rows: rows.assign(precision="int3"), "int3"),
        (lambda rows: rows.assign(time_us=0), "time_us"),
        (lambda rows: rows.rename(columns={"time_us": "time_ms"}), "wrong unit"),
        (lambda rows: rows[rows["kernel"] != "copy"].head(60), "each half needs 20 of one type of products"),
        (lambda rows: rows.head(30), "of 30 steady readings below the limit of kernels that move bytes"),
        # What the limit cuts tells no energy, what moves nothing none of a byte, and one kernel cannot be held back.
        (lambda rows: rows.assign(power_w=400.0), "of 0 steady readings below the limit"),
        (lambda rows: rows.assign(bytes=0), "of 0 steady readings below the limit of kernels that move bytes"),
        (lambda rows: pd.concat([rows.head(1)] * 100), "in the half to judge, by a hash of the work"),
    ],
)
def test_bad_readings_of_ones_own_are_one_line(tmp_path, change, words):
    with pytest.raises(InputError) as refused:
        reduced(own_readings(tmp_path / "bad", change(kernels_of_ones_own())))
    assert words in str(refused.value)


def test_the_viewer_has_every_judged_reading(result):
    found = viewer.of_case("kernel_power", result)
    assert len(found.marks) == result["held_back_readings"]
    energy = found.marks["x"] * found.fields["time (ms)"] / 1e3
    assert found.fields["energy of a launch (J)"].to_numpy() == pytest.approx(energy.to_numpy())
