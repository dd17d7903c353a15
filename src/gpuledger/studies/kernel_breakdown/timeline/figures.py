"""Panels of a recorded step's figures; the notebook composes them."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult, brief, time_unit
from gpuledger.studies.kernel_breakdown.formatting import format_time
from gpuledger.studies.kernel_breakdown.parts import made
from gpuledger.studies.kernel_breakdown.timeline.activity import ACTIVITIES, busy, longest_pause
from gpuledger.studies.kernel_breakdown.timeline.case import describe_pause, pause_activity

#: Colours of kernel classes; all others are grey.
COLOURS = {
    "gemm": figures.BLUE,
    "attention": figures.PURPLE,
    "communication": figures.BLACK,
    "norm": figures.GREEN,
    "elementwise": figures.SKY,
    "copy": figures.ORANGE,
    "moe": figures.YELLOW,
}
OTHER = figures.GREY
#: Colour of kernels that compute, whatever their class, and the form of predicted bars.
_RUNNING, _HATCHED = "#636363", {"hatch": "//////", "linewidth": 0.8}
_DARK_YELLOW = "#b3a81f"
_MOST_PARTS = 16  # of a step that have bars of their own; all others are one
# In grey, 7 of 100 apart from one another, and 15 from the next in a bar; the last one only stands beside the first.
_IDLE_COLOURS = ("#7a5aa6", "#d6d6d6", "#cb7f52", "#9acd96", "#748a3f", "#e2ecf8", "#3f5468", "#9ab0c6", "#c9c9c9")
#: Colours of what goes on while no kernel runs.
IDLE_COLOURS = dict(zip(ACTIVITIES, _IDLE_COLOURS, strict=True))


def colour_of(kernel_class: str) -> str:
    return COLOURS.get(kernel_class, OTHER)


def draw_step(axes: Axes, result: CaseResult, predicted: bool) -> None:
    """Draw a step's span as a bar, divided into kernels and none, and below it the predicted time of its kernels."""
    span, idle = float(result["span"]), float(result["idle_time"])
    running, wide = span - idle, idle > 0.4 * span
    scale, unit = time_unit(span)
    axes.barh(0, scale * running, color=_RUNNING)
    axes.barh(0, scale * idle, left=scale * running, color=figures.PALE)
    words = f"no kernel for {format_time(idle)}, {100 * idle / span:.0f} %"
    pause = f" ({figures.plain(describe_pause(result))})" if describe_pause(result) else ""
    # Where it fits into its bar, with signs of about 0.055 inches.
    if not figures.for_columns and 0.055 * len(words + pause) < idle / span * (axes.figure.get_figwidth() - 1):
        words += pause
    style = {"textcoords": "offset points", "va": "center", "fontsize": 7}
    place = (scale * (span - idle / 2 if wide else span), 0)
    axes.annotate(words, place, (0 if wide else 4, 0), **style).set_ha("center" if wide else "left")
    names, end = [made(result)], span * (1 if wide else 1.4)
    if predicted:
        # Of a training step all kernels and copies are predicted, otherwise the kernels that are matched.
        training = "predicted_kernel_time" not in result.summary
        kernels = float(result["model_kernel_time" if training else "predicted_kernel_time"])
        end = max(end, 1.25 * kernels)
        axes.barh(1, scale * kernels, facecolor="white", edgecolor=_RUNNING, **_HATCHED)
        words = f"kernels{' and copies' * training} for {format_time(kernels)}"
        axes.annotate(words, (scale * kernels, 1), (4, 0), **style)
        names.append("predicted")
    axes.set_yticks(range(len(names)), names, fontsize=6.8)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, scale * end), xlabel=f"the step ({unit})")


def draw_no_times() -> Figure:
    """Draw in place of a figure over time that the report has none."""
    figure, axes = plt.subplots(figsize=(5, 1))
    axes.text(0.5, 0.5, "the report has sums only, not when kernels ran", ha="center", va="center")
    axes.axis("off")
    return figure


def draw_parts(axes: Axes, rows: pd.DataFrame) -> list[str]:
    """Draw recorded and predicted time of the parts of a step that take most; return these parts, from the top."""
    groups = rows.groupby("part")
    table = groups.agg(time=("duration_s", "sum"), kernel_class=("kernel_class", "first")).assign(
        predicted=groups["predicted_s"].sum(min_count=1)
    )
    table = table.sort_values("time", ascending=False, kind="stable")
    if len(table) > _MOST_PARTS:
        rest = table.iloc[_MOST_PARTS:]
        others = pd.DataFrame(
            {"time": rest["time"].sum(), "kernel_class": "", "predicted": rest["predicted"].sum(min_count=1)},
            index=[f"{len(rest)} others"],
        )
        table = pd.concat([table.iloc[:_MOST_PARTS], others])
    at = np.arange(len(table))
    paired = table["predicted"].notna().any()
    height = 0.4 if paired else 0.75
    colours = [colour_of(name) for name in table["kernel_class"]]
    scale, unit = time_unit(float(table["time"].sum()))
    axes.barh(at - height / 2 * paired, scale * table["time"], height, color=colours)
    if paired:
        # Thin lines of yellow would not be seen on white.
        edges = [_DARK_YELLOW if colour == figures.YELLOW else colour for colour in colours]
        outline = {"facecolor": "white", "edgecolor": edges, **_HATCHED}
        axes.barh(at + height / 2, scale * table["predicted"], height, **outline)
    names = [figures.plain(name if len(name) <= 34 else f"{name[:33]}…") for name in table.index]
    if not paired:
        for row, seconds in enumerate(table["time"]):
            where = {"textcoords": "offset points", "va": "center_baseline", "fontsize": 6.3}
            axes.annotate(brief(scale * seconds, 3), (scale * seconds, row), (2, 0), **where)
        axes.margins(x=0.12)
    axes.set_yticks(at, names, fontsize=6.8)
    axes.invert_yaxis()
    axes.set_xlabel(f"time in the step ({unit})")
    return list(table.index)


def draw_errors(axes: Axes, result: CaseResult, rows: pd.DataFrame, parts: list[str]) -> None:
    """Draw by how much of the step's kernel time each part is mispredicted, in the order of :func:`draw_parts`."""
    total = rows["duration_s"].sum()
    known = rows[rows["predicted_s"].notna()]
    own = known["part"].where(known["part"].isin(parts), parts[-1])
    error = 100 * (known["predicted_s"] - known["duration_s"]).groupby(own).sum() / total
    error = error.reindex(parts)
    axes.barh(np.arange(len(parts)), error, 0.6, color=figures.VERMILLION)
    axes.axvline(0, color=figures.BLACK, linewidth=0.8)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"predicted − {made(result)}\n(% of the kernel time)")


def draw_purposes(axes: Axes, table: pd.DataFrame) -> None:
    """Draw what kernels of a training step take by what they are for, each above what is predicted.

    Parameters
    ----------
    table : DataFrame
        Of :func:`gpuledger.studies.kernel_breakdown.timeline.training.compare_purposes`.
    """
    at = np.arange(len(table))
    longest = float(table[["recorded_s", "predicted_s"]].max(axis=None))
    scale, unit = time_unit(longest)
    outline = {"facecolor": "white", "edgecolor": _RUNNING, **_HATCHED}
    kinds = {"recorded_s": {"color": _RUNNING}, "predicted_s": outline}
    for place, (name, style) in zip((-0.2, 0.2), kinds.items(), strict=True):
        axes.barh(at + place, scale * table[name], 0.4, **style)
        for row, seconds in enumerate(table[name]):
            where = {"textcoords": "offset points", "va": "center_baseline", "fontsize": 6.3}
            axes.annotate(f"{scale * seconds:.1f}", (scale * seconds, row + place), (2, 0), **where)
    axes.set_yticks(at, table["purpose"], fontsize=6.8)
    axes.set(ylim=(len(table) - 0.4, -0.6), xlim=(0, 1.2 * scale * longest), xlabel=f"time by purpose ({unit})")


def classes_of(rows: pd.DataFrame, parts: list[str]) -> list[str]:
    """Return the kernel classes of parts that have a bar of their own; of all others ``others``."""
    return list(rows["kernel_class"].where(rows["part"].isin(parts), "others").unique())


def class_handles(classes: list[str], predicted: bool) -> list[Patch]:
    """Return legend entries for kernel classes."""
    shown = [name for name in COLOURS if name in classes]
    handles = [Patch(color=COLOURS[name], label=name) for name in shown]
    if set(classes) - set(shown):
        handles.append(Patch(color=OTHER, label="others"))
    if predicted:
        style = {"facecolor": "white", "edgecolor": figures.BLACK, **_HATCHED}
        handles.append(Patch(label="predicted", **style))
    return handles


def draw_timeline(axes: Axes, rows: pd.DataFrame, idle: pd.DataFrame, first_s: float, last_s: float) -> None:
    """Draw what ran on each stream from `first_s` to `last_s`, and what went on while no kernel ran.

    Parameters
    ----------
    rows : DataFrame
        Launches with ``start_s, duration_s, stream, kind, kernel_class``.
    idle : DataFrame
        Of :func:`gpuledger.studies.kernel_breakdown.timeline.activity.explain_idle`.
    first_s, last_s : float
        The horizontal axis, from the step's first kernel.
    """
    scale, unit = time_unit(last_s)
    streams = sorted(rows.loc[rows["kind"] == "kernel", "stream"].unique())[:8]
    copies = rows[rows["kind"] != "kernel"]
    lanes = [(f"stream {stream}", rows[(rows["stream"] == stream) & (rows["kind"] == "kernel")]) for stream in streams]
    if len(copies):
        lanes.append(("copies", copies))
    for lane, (_, own) in enumerate(lanes):
        for kernel_class, part in own.groupby("kernel_class"):
            colour = figures.ORANGE if str(kernel_class).startswith("memory") else colour_of(str(kernel_class))
            _bars(axes, part, lane, colour, first_s, last_s, scale)
    for activity, part in idle.groupby("activity"):
        _bars(axes, part, len(lanes), IDLE_COLOURS[str(activity)], first_s, last_s, scale)
    axes.set_yticks(np.arange(len(lanes) + 1), [*(name for name, _ in lanes), "no kernel"], fontsize=6.8)
    axes.set(xlim=(scale * first_s, scale * last_s), ylim=(len(lanes) + 0.5, -0.5))
    axes.set_xlabel(f"time from the first kernel ({unit})")


def mark_longest_pause(axes: Axes, rows: pd.DataFrame) -> None:
    """Mark the longest time without a kernel in and above the lanes of :func:`draw_timeline`."""
    if (pause := longest_pause(rows)) is None:
        return
    last_s = float(busy(rows[rows["kind"] == "kernel"])[-1, 1])
    scale, unit = time_unit(last_s)
    start, end = scale * pause
    axes.axvspan(start, end, color=figures.VERMILLION, alpha=0.18, linewidth=0, zorder=0)
    mark = {"color": figures.VERMILLION, "linewidth": 2.5, "clip_on": False, "solid_capstyle": "butt"}
    axes.plot([start, end], [1.03, 1.03], transform=axes.get_xaxis_transform(), **mark)
    # As many digits as the axis can show.
    decimals = max(0, 3 - len(str(int(scale * last_s))))
    words = f"longest pause, from {start:.{decimals}f} {unit}"
    axes.set_title(words, loc="right", fontsize=6.8, color=figures.VERMILLION)


def _bars(axes: Axes, rows: pd.DataFrame, lane: int, colour: str, first_s: float, last_s: float, scale: float) -> None:
    seen = rows[(rows["start_s"] < last_s) & (rows["start_s"] + rows["duration_s"] > first_s)]
    bars = scale * seen[["start_s", "duration_s"]].to_numpy(float)
    axes.broken_barh(bars, (lane - 0.4, 0.8), color=colour, linewidth=0.15, rasterized=True)


def pause_headline(result: Mapping) -> str:
    """Return the headline of a step with pauses: the longest one, and what went on in it."""
    return f"The longest pause takes {format_time(float(result['longest_idle']))}{pause_activity(result)}"


def idle_handles(idle: pd.DataFrame) -> list[Patch]:
    """Return legend entries for what goes on while no kernel runs."""
    return [Patch(color=IDLE_COLOURS[name], label=name) for name in ACTIVITIES if name in set(idle["activity"])]


def draw_repetitions(axes: Axes, rows: pd.DataFrame, word: str) -> None:
    """Stack the kernel time of every repetition by class; what is in none stands left and right of them.

    Parameters
    ----------
    word : str
        What repeats (:func:`gpuledger.studies.kernel_breakdown.timeline.tables.repeated`).
    """
    repetition = rows["repetition"].to_numpy()
    inside = np.flatnonzero(repetition >= 0)
    if not len(inside):
        axes.text(0.5, 0.5, "nothing repeats", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    last = int(repetition.max())
    place = np.where(repetition >= 0, repetition, np.where(np.arange(len(rows)) < inside[0], -3, last + 3))
    table = rows.assign(place=place).pivot_table(
        index="place", columns="kernel_class", values="duration_s", aggfunc="sum", fill_value=0.0
    )
    bottom, (scale, unit) = np.zeros(len(table)), time_unit(float(table.sum(axis=1).max()))
    order = sorted(table, key=lambda name: (list(COLOURS).index(name) if name in COLOURS else len(COLOURS), name))
    for name in order:
        axes.bar(table.index, scale * table[name], 0.85, bottom=bottom, color=colour_of(name))
        bottom += scale * table[name].to_numpy()
    ticks = [-3, *range(0, last + 1, max(1, (last + 1) // 6)), last + 3]
    axes.set_xticks(ticks, ["before", *map(str, ticks[1:-1]), "after"], fontsize=6.8)
    axes.set(xlabel=word, ylabel=f"kernel time ({unit})", xlim=(-5, last + 5), ylim=(0, 1.05 * bottom.max()))


def draw_span(axes: Axes, parts: Mapping[str, tuple[float, str]]) -> None:
    """Draw the parts of a step's span below one another, each beginning where the one above it ends.

    Parameters
    ----------
    parts : mapping of str to (percent, colour)
        Of :func:`span_parts`.
    """
    left = 0.0
    for row, (percent, colour) in enumerate(parts.values()):
        axes.barh(row, percent, 0.8, left=left, color=colour, edgecolor="#777777", linewidth=0.4)
        words = f"{percent:.0f} %" if percent >= 0.95 else f"{percent:.1g} %"
        # In the bar if it is wide, otherwise beside it where there is room.
        inside, right = percent > 12, left + percent < 88
        at, away = (left + percent, 3) if right and not inside else (left + percent if inside else left, -3)
        style = {"textcoords": "offset points", "va": "center_baseline", "ha": "left" if away > 0 else "right"}
        style["color"] = "white" if inside and sum(to_rgb(colour)) < 1.4 else figures.BLACK
        axes.annotate(words, (at, row), (away, 0), fontsize=6.8, **style)
        left += percent
    idle = [row for row, name in enumerate(parts) if name in ACTIVITIES]
    if idle:
        axes.axhline(idle[0] - 0.5, color=figures.GREY, linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(parts)), list(parts), fontsize=6.8)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 100), ylim=(len(parts) - 0.4, -0.6))
    axes.set_xlabel("share of the span (%)" + "; below the dotted line no kernel runs" * bool(idle))


def span_parts(result: Mapping, idle: pd.DataFrame) -> dict[str, tuple[float, str]]:
    """Divide the span: kernels that compute, communication alone (moving data, waiting), and no kernel by activity.

    Returns
    -------
    dict of str to (percent, colour)
    """
    span, alone = float(result["span"]), float(result["exposed_communication_time"])
    whole = float(result["communication_time"])
    waiting = alone * float(result["communication_wait_time"]) / whole if whole else 0.0
    running = span * (1 - float(result["idle_percent"]) / 100)
    found = {
        "kernels that compute": (running - alone, _RUNNING),
        "communication alone: moving data": (alone - waiting, figures.BLACK),
        "communication alone: waiting": (waiting, "#b0b0b0"),
    }
    for name in ACTIVITIES:
        found[name] = (float(idle.loc[idle["activity"] == name, "duration_s"].sum()), IDLE_COLOURS[name])
    return {name: (100 * time / span, colour) for name, (time, colour) in found.items() if time > 1e-6 * span}
