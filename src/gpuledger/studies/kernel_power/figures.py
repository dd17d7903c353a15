"""Panels: predicted against measured power, energy over intensity, products that run all the time, and readings by how
long a benchmark ran."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult

#: Colours of types of products, and of kinds of kernels.
PRODUCTS = {"bf16": figures.BLUE, "fp8": figures.ORANGE, "fp4": figures.PURPLE, "fp32": figures.GREEN}
KINDS = {"experts": figures.GREEN, "decode": figures.PURPLE, "prefill": figures.GREY}
#: Most marks of a type of product: every so many-th reading is drawn.
MOST_MARKS = 1500


def draw_settling(axes: Axes, table: pd.DataFrame, limit_w: float) -> None:
    """Draw the quartiles of readings over samples, of kinds of kernels that read memory at about the same rate."""
    for kind, color in KINDS.items():
        rows = table[(table["kind"] == kind) & (table["readings"] >= 20)]
        if len(rows) < 3:
            continue
        axes.fill_between(rows["samples"], rows["low_w"], rows["high_w"], color=color, alpha=0.2, linewidth=0)
        name = "decode attention" if kind == "decode" else kind
        axes.plot(rows["samples"], rows["power_w"], color=color, marker="o", markersize=3, label=name)
    _draw_limit(axes, limit_w)
    axes.set(xlabel="samples in a reading (0.1 s each)", ylabel="reading (W)", ylim=(0, 1.12 * limit_w))
    if axes.lines[:-1]:
        axes.legend(loc="lower right")


def _draw_limit(axes: Axes, limit_w: float) -> None:
    axes.axhline(limit_w, color=figures.BLACK, linewidth=0.6, linestyle=(0, (4, 2)))
    axes.annotate(
        f"limit {limit_w:,.0f} W",
        (0.02, limit_w),
        (0, 2),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        fontsize=6.5,
    )


def judged(data: pd.DataFrame) -> pd.DataFrame:
    """Return the steady readings of held-back layers."""
    return data[data["steady"] & data["held_back"] & data["predicted_w"].notna()]


def draw_predictions(axes: Axes, data: pd.DataFrame, limit_w: float) -> None:
    """Draw predicted over measured power of held-back steady readings."""
    rows = judged(data)
    # From the least reading or prediction: no mark is cut off.
    least = 0.95 * np.nanmin(rows[["power_w", "predicted_w"]], initial=np.inf)
    ends = np.array([min(0.4 * limit_w, least), 1.05 * limit_w])
    axes.plot(ends, ends, color=figures.BLACK, linewidth=0.6)
    _scatter(axes, rows, rows["power_w"], rows["predicted_w"])
    for name in [name for name in PRODUCTS if (rows["products"] == name).any()]:
        kind = rows.loc[rows["products"] == name, "kind"].iloc[0]
        axes.scatter([], [], s=13, color=PRODUCTS[name], label=f"{kind} in {name}")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=6.5, handletextpad=0.1, borderaxespad=0)
    axes.set(xlim=ends, ylim=ends, xlabel="measured power (W)", ylabel="predicted power (W)")


def _scatter(axes: Axes, rows: pd.DataFrame, x: pd.Series, y: pd.Series) -> None:
    """Draw marks in the colours of their products, from the lowest to the highest: none of the types covers another."""
    every = (np.flatnonzero(rows["products"] == name) for name in PRODUCTS)
    at = np.concatenate([own[:: max(1, len(own) // MOST_MARKS)] for own in every])
    at = at[np.argsort(y.to_numpy()[at], kind="stable")]
    colors = rows["products"].map(PRODUCTS).to_numpy()[at]
    axes.scatter(x.to_numpy()[at], y.to_numpy()[at], s=3, c=colors, linewidth=0, alpha=0.5, rasterized=True)


def panels(data: pd.DataFrame, settling: pd.DataFrame) -> str:
    """Return which panels there is something for: P(redictions), E(nergies), C(locks), S(ettling)."""
    clocks = "sustained_s" in data
    return "P" + "E" * bool(len(_with_intensity(data))) + "C" * clocks + "S" * bool(len(settling))


def draw_clocks(axes: Axes, data: pd.DataFrame) -> None:
    """Draw predicted over measured times of products over the clock at which they ran."""
    rows = data[data["sustained_s"].notna()]
    axes.axhspan(0.95, 1.05, color=figures.GREY, alpha=0.2, linewidth=0)
    axes.axhline(1, color=figures.BLACK, linewidth=0.6)
    marks = {"nominal_s": (figures.GREY, "of single launches"), "sustained_s": (figures.GREEN, "at the law's clock")}
    for name, (color, label) in marks.items():
        axes.scatter(rows["clock_mhz"], rows[name] / rows["measured_s"], s=9, color=color, linewidth=0, label=label)
    axes.legend(loc="lower right", fontsize=6.5, handletextpad=0.1, borderaxespad=0)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.25 * (high - low), high)  # room for the legend
    axes.set(xlabel="measured clock (MHz)\nband: ±5 %", ylabel="predicted /\nmeasured time")


def _with_intensity(data: pd.DataFrame) -> pd.DataFrame:
    return data[data["steady"] & (data["flop"] > 0) & (data["bytes"] > 0)]


def draw_energies(axes: Axes, result: CaseResult) -> None:
    """Draw the energy of a FLOP over arithmetic intensity, and the least by the law: at the data sheet's rates."""
    rows = _with_intensity(result.data)
    intensity = rows["flop"] / rows["bytes"]
    _scatter(axes, rows, intensity, 1e12 * rows["power_w"] / rows["flop_per_s"])
    for name, color in PRODUCTS.items():
        if not (peak := result.get(f"{name}_peak")):
            continue
        at = np.geomspace(intensity.min(), intensity.max(), 200)
        rate = np.minimum(peak, at * result["dram_bandwidth"])
        drawn = result["static"] + 1e-12 * rate * (result[f"{name}_flop"] + result["dram_byte"] / at)
        axes.plot(at, 1e12 * np.minimum(drawn, result["most"]) / rate, color=color, linewidth=0.9)
    words = "arithmetic intensity (FLOP/byte)\nline: the law at the data sheet's rates"
    axes.set(xscale="log", yscale="log", xlabel=words, ylabel="energy (pJ/FLOP)")
