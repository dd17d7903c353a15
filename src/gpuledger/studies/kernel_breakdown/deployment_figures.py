"""Panels about a deployment: where passes spend their time, throughput against speed, and what fills the memory."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from scipy.optimize import isotonic_regression

from gpuledger.ledger import figures
from gpuledger.models.deployment import RESERVE, Deployment, Objective, memory_of
from gpuledger.models.transformer import decode
from gpuledger.studies.kernel_breakdown.formatting import format_binary, format_decimal, format_time
from gpuledger.studies.kernel_breakdown.groups import GROUPS, group_of, step_shares

_GROUP_COLOURS = (
    figures.PURPLE,
    figures.SKY,
    figures.BLUE,
    figures.GREEN,
    figures.ORANGE,
    figures.GREY,
    "#882255",  # wine, of Tol's muted scheme, which is apart from the others for any colour vision
    figures.YELLOW,
    figures.BLACK,
)
#: Colour of each group of kernels.
COLOURS = dict(zip(GROUPS, _GROUP_COLOURS, strict=True))
LAUNCHES = "launches"
#: What fills the memory: name and colour.
MEMORY = {
    "weight_bytes": ("weights", figures.BLUE),
    "cache_bytes": ("KV cache", figures.PURPLE),
    "activation_bytes": ("activations", figures.GREEN),
}
_LINES = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PURPLE, figures.SKY, figures.BLACK)
#: Around text that crosses lines or colours.
HALO = [withStroke(linewidth=2.2, foreground="white")]
#: Width of a letter of size 6.5 in inches, about.
_LETTER = 0.053
#: Segments narrower than this share of a bar (%) have no label.
_LEAST = 0.8


def draw_passes(
    axes: Axes, passes: Sequence[tuple[str, str, pd.DataFrame]], width: float, colours: Mapping[str, str] = COLOURS
) -> None:
    """Draw each pass as one stacked bar of its groups of kernels, communication and the launches of kernels, labelled.

    Parameters
    ----------
    passes : sequence of (phase, GPU, kernels)
        Kernels as for :func:`gpuledger.studies.kernel_breakdown.groups.step_shares`. Bars of one phase are as long as
        their time, relative to the slowest GPU.
    width : float
        Of the axes (inches): what labels have room for.
    """
    times = [float((rows["time_s"] * rows["count"]).sum()) for *_, rows in passes]
    longest: dict[str, float] = {}
    for (phase, *_), time in zip(passes, times, strict=True):
        longest[phase] = max(longest.get(phase, 0.0), time)
    for place, ((phase, _, rows), time) in enumerate(zip(passes, times, strict=True)):
        _draw_pass(axes, place, rows, 100 * time / longest[phase], width / 116, colours)
        axes.text(100 * time / longest[phase] + 1, place, format_time(time), va="center", fontsize=7.6, weight="bold")
    axes.set(xlim=(0, 116), ylim=(len(passes) - 0.45, -0.5), xticks=[])
    # The space leaves room for what hinting adds to a text's width at the resolution of print.
    names = ["\n".join(f"\N{EN SPACE}{part}" for part in labels[:2] if part) for labels in passes]
    axes.set_yticks(range(len(passes)), names)
    axes.tick_params(axis="y", length=0, labelsize=7.4)
    axes.spines[:].set_visible(False)


def _draw_pass(
    axes: Axes, place: int, rows: pd.DataFrame, length: float, inches: float, colours: Mapping[str, str]
) -> None:
    shares = step_shares(rows)
    launch = float(shares["launch_percent"].sum())
    parts = [(group, percent - own, colours[group]) for group, (percent, own) in shares.iterrows()]
    parts += [(LAUNCHES, launch, figures.PALE)] if launch > 0 else []
    left, below = 0.0, []
    for name, percent, colour in parts:
        size = length * percent / 100
        hatch = "////" if name == LAUNCHES else None
        axes.barh(place, size, 0.56, left=left, color=colour, edgecolor="white", linewidth=0.6, hatch=hatch)
        label = f"{percent:.0f} %" if percent >= 0.95 else f"{percent:.1f} %"
        # Bars of a column are too low for two lines.
        text = f"{name} {label}" if figures.for_columns else f"{name}\n{label}"
        if size * inches > _LETTER * max(map(len, text.split("\n"))) + 0.06:
            shade = figures.BLACK if name == LAUNCHES else figures.ink_on(colour)
            inside = {"color": shade, "ha": "center", "va": "center", "fontsize": 6.5, "linespacing": 1.1}
            axes.text(left + size / 2, place, text, **inside)
        elif percent >= _LEAST and not figures.for_columns:  # which has no room for them
            below.append((left + size / 2, f"{name} {label}"))
        left += size
    # Labels of what is narrow are below the bar, beside one another.
    middles = np.array([middle for middle, _ in below])
    halves = np.array([_LETTER * len(text) / inches / 2 + 0.6 for _, text in below])
    for middle, centre, half, (_, text) in zip(middles, keep_apart(middles, halves), halves, below, strict=True):
        # To the nearest letter of the label: a line to its middle would run along its neighbour's top.
        end = np.clip(middle, centre - half + 1.5, centre + half - 1.5)
        line = [middle, middle, end], [place + 0.28, place + 0.31, place + 0.36]
        axes.plot(*line, color="#777777", linewidth=0.5)
        axes.text(centre, place + 0.365, text, ha="center", va="top", fontsize=6.5)


def keep_apart(middles: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Return where labels of half widths `halves`, from 0 to 116, do not overlap, each as near its middle as may be."""
    offsets = np.cumsum(np.r_[0, halves[:-1] + halves[1:]])[: len(halves)]
    # Labels that touch move as one, to the mean of where each would be.
    centres = offsets + (isotonic_regression(middles - offsets).x if len(middles) else 0)
    for i, half in enumerate(halves):
        centres[i] = max(centres[i], half if i == 0 else centres[i - 1] + halves[i - 1] + half)
    for i in reversed(range(len(halves))):
        centres[i] = min(centres[i], (116 if i + 1 == len(halves) else centres[i + 1] - halves[i + 1]) - halves[i])
    return centres


def draw_throughput(axes: Axes, rows: pd.DataFrame, tpot_s: float | None = None) -> None:
    """Draw tokens/s of a GPU against tokens/s of a request over batch, one line per deployment.

    Parameters
    ----------
    rows : DataFrame
        ``hardware, requests, user_tokens_per_s, gpu_tokens_per_s, fits``; batches that do not fit are hollow.
    tpot_s : float, optional
        Objective: the line that marks the longest allowed time per output token.
    """
    noted: list[tuple[str, float]] = []
    for colour, (name, own) in zip(_LINES * 9, rows.groupby("hardware", sort=False), strict=False):
        own = own.sort_values("requests", kind="stable")
        fits = own["fits"].to_numpy(bool)
        x, y = own["user_tokens_per_s"].to_numpy(), own["gpu_tokens_per_s"].to_numpy()
        shown = np.where(fits, y, np.nan)
        dots = {"marker": "o", "markersize": 2.6} if len(x) <= 24 else {}
        axes.plot(x, shown, color=colour, label=name, linewidth=1.3, zorder=3, **dots)
        axes.plot(x[~fits], y[~fits], color=colour, linestyle="none", marker="o", markersize=2.8, mfc="white", mew=0.6)
        # The first and the last batch that fits.
        for at in sorted({int(np.argmax(fits)), int(len(fits) - 1 - np.argmax(fits[::-1]))} if fits.any() else set()):
            text = format_binary(own["requests"].iloc[at])
            # Where lines meet, one number does for both.
            if any(text == other and abs(np.log(x[at] / place)) < 0.1 for other, place in noted):
                continue
            noted.append((text, x[at]))
            axes.annotate(text, (x[at], y[at]), (4, 2), textcoords="offset points", fontsize=6.5, color=colour)
    axes.set(
        xscale="log", yscale="log", xlabel="tokens/s of a request (numbers: batch)", ylabel="output tokens/s per GPU"
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(format_decimal)
        axis.set_minor_locator(NullLocator())
    if tpot_s:
        axes.axvline(1 / tpot_s, color=figures.GREY, linestyle="--", linewidth=1, zorder=1)
        style = {"fontsize": 6.5, "color": "#555555", "ha": "center", "va": "bottom"}
        axes.text(1 / tpot_s, 1.01, f"{1e3 * tpot_s:g} ms per token", transform=axes.get_xaxis_transform(), **style)
    # Lines bulge to the upper right, and what does not fit is above on the left.
    blank = {"frameon": True, "framealpha": 1, "edgecolor": "none", "fancybox": False}
    axes.legend(fontsize=6.5, loc="lower left", borderaxespad=0.1, handlelength=1.4, **blank)


def draw_memory(axes: Axes, rows: pd.DataFrame, dram_bytes: float | str, reserve: float = RESERVE) -> None:
    """Stack what fills a GPU's memory over context, with its capacity.

    Parameters
    ----------
    rows : DataFrame
        ``tokens`` and the columns of `MEMORY`.
    dram_bytes : float or str
        ``"unknown"`` where the GPU's table does not say.
    reserve : float
        Share of it that is kept free.
    """
    tokens, sizes = rows["tokens"].to_numpy(), [rows[name].to_numpy(float) / 1e9 for name in MEMORY]
    names, colours = zip(*MEMORY.values(), strict=True)
    axes.stackplot(tokens, sizes, colors=colours, edgecolor="white", linewidth=0.4)
    total, most = np.sum(sizes, axis=0), np.nan if isinstance(dram_bytes, str) else dram_bytes / 1e9
    top = total.max() if np.isnan(most) else 1.25 * most
    axes.set(xscale="log", xlim=(tokens[0], tokens[-1]), ylim=(0, min(top, 1.15 * total.max()) if top else 1))
    if not np.isnan(most):
        axes.set_ylim(0, 1.25 * most)
        usable = (1 - reserve) * most
        axes.axhline(usable, color=figures.BLACK, linewidth=1)
        axes.axhspan(usable, most, facecolor="none", edgecolor="#999999", hatch="////", linewidth=0)
        text = {"fontsize": 6.5, "path_effects": HALO}
        axes.text(
            tokens[0] * 1.08,
            usable + 0.02 * most,
            f"kept free, of {most:,.0f} GB ({dram_bytes / 2**30:.4g} GiB)",
            va="bottom",
            **text,
        )
        over = np.flatnonzero(total > usable)
        if len(over) and over[0]:
            # Between the last context that fits and the first that does not, on straight lines.
            span = slice(over[0] - 1, over[0] + 1)
            edge = float(np.interp(usable, total[span], tokens[span]))
            axes.plot([edge, edge], [0, usable], color=figures.BLACK, linestyle=":", linewidth=0.9)
            axes.plot(edge, usable, marker="o", color=figures.BLACK, markersize=3.5)
            text |= {"xytext": (-6, -3), "textcoords": "offset points", "ha": "right", "va": "top"}
            axes.annotate(f"{format_binary(round(edge))} tokens fit", (edge, usable), **text)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=4, numticks=6))
    axes.xaxis.set_major_formatter(format_binary)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    # Names where the bands are thickest, if they are thick enough.
    floor, ceiling = np.zeros(len(tokens)), axes.get_ylim()[1] if np.isnan(most) else (1 - reserve) * most
    for size, name, colour in zip(sizes, names, colours, strict=True):
        seen = np.clip(ceiling - floor, 0, size)
        if seen.max() > 0.06 * axes.get_ylim()[1]:
            at = len(tokens) - 1 - int(np.argmax(seen[::-1]))
            at = min(max(at, len(tokens) // 8), len(tokens) - len(tokens) // 6)
            place = tokens[at], floor[at] + seen[at] / 2
            axes.text(*place, name, color=figures.ink_on(colour), fontsize=7, ha="center", va="center")
        floor = floor + size


def draw_deployments(
    deployments: Sequence[Deployment], parts: Sequence[pd.DataFrame], objective: Objective | None = None
) -> Figure:
    """Draw the passes of up to six deployments, throughput against speed, and the memory of the first over context.

    Parameters
    ----------
    parts : sequence of DataFrame
        Of each, :func:`gpuledger.models.deployment.passes`.
    """
    bars, lines = [], []
    # The largest batch that fits all deployments that any batch fits.
    fitting = [part.loc[(part["phase"] == "decode") & part["fits"], "batch"] for part in parts]
    batch = min([int(own.max()) for own in fitting if len(own)], default=int(parts[0]["batch"].max()))
    for deployment, part in zip(deployments, parts, strict=True):
        split = zip(("TP", "PP", "EP"), ("tensor", "pipeline", "expert"), strict=True)
        degrees = [f" {short}{getattr(deployment.parallel, name)}" for short, name in split]
        name = deployment.gpu.name + "".join(degree for degree in degrees if degree[3:] != "1")
        steps = part[part["phase"] == "decode"]
        lines.append(
            pd.DataFrame(
                {
                    "hardware": name,
                    "requests": steps["batch"],
                    "user_tokens_per_s": 1 / steps["served_tpot_s"],
                    "gpu_tokens_per_s": steps["served_tokens_per_s"] / deployment.parallel.devices,
                    "fits": steps["fits"],
                }
            )
        )
        work = deployment.workload(np.array([batch]), deployment.input_tokens + deployment.output_tokens // 2)
        rows = deployment.predict(work)
        rows["group"] = group_of(rows)
        bars += [(phase, name, own) for phase, own in rows.groupby(rows["phase"].astype(str), sort=False)]
    sizes = {"prefill": f"prefill {deployments[0].input_tokens:,}", "decode": f"decode × {batch}"}
    bars = [(sizes[phase], *rest) for phase, *rest in sorted(bars[:12], key=lambda bar: bar[0] != "prefill")]
    figure, grid = plt.subplot_mosaic(
        [["passes", "passes"], ["throughput", "memory"]],
        figsize=(7.2, 3.2 + 0.5 * len(bars)),
        height_ratios=[0.5 * len(bars), 2.7],
    )
    draw_passes(grid["passes"], bars, 5.7)
    tpot_s = objective.tpot_s if objective and np.isfinite(objective.tpot_s) else None
    draw_throughput(grid["throughput"], pd.concat(lines, ignore_index=True), tpot_s)
    # Above the objective's name, which is above its line.
    title = {"fontsize": 8.5, "pad": 17 if tpot_s else 6}
    first = deployments[0]
    grid["throughput"].set_title(f"served, {first.input_tokens:,} tokens in, {first.output_tokens:,} out", **title)
    longest = first.model.max_positions or 131072
    tokens = np.unique(np.geomspace(min(256, longest), longest, 40).astype(np.int64))
    needed = memory_of(first, decode(tokens - 1, np.full(len(tokens), batch), first.new_tokens))
    draw_memory(grid["memory"], needed.assign(tokens=tokens), first.gpu.dram_bytes)
    grid["memory"].set(xlabel="context (tokens)", ylabel="GB on a GPU")
    grid["memory"].set_title(f"memory, batch {batch}, {first.gpu.name}", **title)
    return figure
