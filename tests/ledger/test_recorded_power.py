"""What docs/RECORDED.md, MODELS.md, ARTIFACT.md and FINDINGS.md say of power is what was recorded."""

import json

import numpy as np
import pandas as pd
import pytest
from own_cases import reduced

from gpuledger.ledger.datasets import Repository

CASE = "results/nvidia-h200/kernel_power/kernels/summary.json"


@pytest.fixture(scope="module")
def texts(root):
    names = ("docs/RECORDED.md", "docs/MODELS.md", "docs/ARTIFACT.md", "docs/FINDINGS.md")
    return {name: " ".join((root / name).read_text("utf-8").replace("**", "").split()) for name in names}


@pytest.mark.parametrize(
    ("page", "form", "quantities"),
    [
        (
            "docs/RECORDED.md",
            "{:.0f} W, {:.2f} pJ for a FLOP in bf16, {:.2f} in fp8, {:.0f} pJ for a byte of DRAM",
            ("static", "bf16_flop", "fp8_flop", "dram_byte"),
        ),
        ("docs/RECORDED.md", "for {} of {} products in bf16", ("slowing_predicted", "products")),
        (
            "docs/RECORDED.md",
            "the clock of the {} that do within {:.1f} % (mean)",
            ("slowed_products", "clock_mape_slowed_percent"),
        ),
        ("docs/RECORDED.md", "for {:.1f} % too short or long", ("sustained_mape_slowed_percent",)),
        ("docs/RECORDED.md", "for {:.1f} % shorter than they are", ("nominal_mape_slowed_percent",)),
        (
            "docs/MODELS.md",
            "| {:.0f} W | {:.2f} pJ | {:.2f} pJ | {:.0f} pJ | {:.2f} | {:.0f} W |",
            ("static", "bf16_flop", "fp8_flop", "dram_byte", "clock_exponent", "most"),
        ),
        (
            "docs/MODELS.md",
            "| {:.0f} W | {:.2f} pJ | | {:.0f} pJ | {:.2f} | {:.0f} W |",
            tuple(f"{name}_other_half" for name in ("static", "bf16_flop", "dram_byte", "clock_exponent", "most")),
        ),
        (
            "docs/MODELS.md",
            "the median error is {:.1f} % (mean {:.1f} %), below the limit {:.1f} %",
            ("median_error_percent", "mape_percent", "median_error_below_limit_percent"),
        ),
        (
            "docs/MODELS.md",
            "Of {} bf16 products, {} lose clock. Their times are predicted with a mean error of {:.1f} %"
            " and their clocks with {:.1f} %",
            ("products", "slowed_products", "sustained_mape_slowed_percent", "clock_mape_slowed_percent"),
        ),
        ("docs/ARTIFACT.md", "within {:.1f} % (without the clock", ("sustained_mape_slowed_percent",)),
        ("docs/ARTIFACT.md", "(without the clock {:.1f} %)", ("nominal_mape_slowed_percent",)),
        (
            "docs/FINDINGS.md",
            "the time at it: {:.1f} % off instead of {:.1f}.",
            ("sustained_mape_slowed_percent", "nominal_mape_slowed_percent"),
        ),
    ],
)
def test_pages_say_what_is_tracked(root, texts, page, form, quantities):
    summary = json.loads((root / CASE).read_text("utf-8"))
    words = form.format(*(summary[name]["value"] for name in quantities))
    assert words in texts[page], f"{page} does not have '{words}'"


def test_products_that_run_all_the_time_take_longer_as_said(root, texts):
    folder = root / "traces/nvidia-h200"
    readings = pd.read_csv(folder / "kernel_power/readings.csv").query("kernel == 'gemm'")
    steady = (readings["first_half_w"] / readings["second_half_w"] - 1).abs() < 0.03
    assert (texts["docs/MODELS.md"].count("111 steady readings"), len(readings)) == (1, 96)
    readings = readings[steady].join(readings["sizes"].str.extract(r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)").astype(int))
    single = pd.read_csv(folder / "gemm_tiles/gemm.csv")
    single["precision"] = single["gemm_dtype"].map({"bfloat16": "bf16", "fp8_static": "fp8"})
    both = readings.merge(single, on=["precision", "m", "n", "k"], suffixes=("", "_single"))
    rows = both[(both["time_us"] > 40) & (both["clock_mhz"] < 0.98 * 1980)]
    ratio = rows["time_us"] / (1e3 * rows["latency"])
    words = f"The {len(rows)} products of 40 µs and more that both parts recorded take "
    words += (
        f"{np.exp(np.log(ratio).mean()):.2f} times as long (geometric mean; {ratio.min():.2f} to {ratio.max():.2f})"
    )
    page = texts["docs/RECORDED.md"]
    assert words in page and f"take {np.exp(np.log(ratio).mean()):.2f} times as long" in texts["docs/FINDINGS.md"]
    low, high = rows["clock_mhz"].min(), rows["clock_mhz"].max()
    assert f"settle at {round(low, -1):,.0f} to {round(high, -1):,.0f} MHz" in page
    rates = {
        kind: ((of["flop"] / of["latency"]).max() / 1e9, (of["flop"] / of["time_us"]).max() / 1e6)
        for kind, of in rows.groupby("precision")
    }
    assert "from {:,.0f} to {:,.0f} TFLOP/s, 69 % of the data sheet".format(*rates["bf16"]) in page
    assert round(100 * rates["bf16"][1] / 989.4) == 69
    assert "in fp8 from {:,.0f} to {:,.0f}.".format(*rates["fp8"]) in page


def test_kernels_that_the_law_does_not_fit_are_named(root, texts):
    data = reduced(Repository.find(root).case("nvidia-h200", "kernel_power", "kernels")).data
    assert data["steady"].sum() == 111 and data[data["steady"]]["limited"].sum() == 63
    more = 100 * (data["power_w"] / data["predicted_w"] - 1)
    silu, fill = more[data["kernel"] == "silu"], more[data["kernel"] == "fill"]
    words = f"SiLU, which computes more than is counted, draws {silu.min():.0f} to {silu.max():.0f} % more"
    assert words in texts["docs/RECORDED.md"]
    assert f"writing one value everywhere {-fill.mean():.0f} % less" in texts["docs/RECORDED.md"]
    clock = data[data["steady"] & data["limited"] & (data["kernel"] == "gemm")]["clock_mhz"]
    words = (
        f"half of the {len(clock)} products of cuBLAS among them run at less than {round(clock.median(), -1):,.0f} MHz"
    )
    assert words in texts["docs/MODELS.md"], words


def test_zeros_draw_less_as_said(root, texts):
    rows = pd.read_csv(root / "traces/nvidia-h200-programs/power_of_zeros.csv").set_index(["kernel", "sizes", "values"])
    product = rows[rows["precision"] == "bf16"].loc[("gemm", "4096x28672x4096")]
    power, clock, time = (product[name] for name in ("power_w", "clock_mhz", "time_us"))
    one, zeros = (f"{power[name]:.0f} W at {clock[name]:,} MHz" for name in ("random", "zeros"))
    words = f"draws {one} with random values; with zeros {zeros}"
    words += f", in {time['zeros'] / 1e3:.2f} instead of {time['random'] / 1e3:.2f} ms"
    copy = rows.loc[("copy", "536870912")]["power_w"]
    words += f". A copy of zeros draws {copy['zeros']:.0f} instead of {copy['random']:.0f} W"
    assert words in texts["docs/RECORDED.md"], words
    assert f"{one}, with zeros {zeros}" in texts["docs/MODELS.md"]
