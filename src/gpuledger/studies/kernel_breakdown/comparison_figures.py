"""Panels and tables of two recordings beside each other; the notebook composes them."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult, time_unit
from gpuledger.ledger.parts import one_part
from gpuledger.ledger.trace_json import PerfettoTrace
from gpuledger.readers.kernel_names import labels
from gpuledger.studies.kernel_breakdown.comparison import RECORDINGS, in_words, signed_time, step_times
from gpuledger.studies.kernel_breakdown.formatting import format_time

#: What became shorter, what became longer, and whole steps.
SHORTER, LONGER, WHOLE = figures.BLUE, figures.VERMILLION, "#636363"
#: Changes of components below this share of the longer step are summed up; a tenth of it tells a kernel's.
SMALL = 0.005


def changes(result: CaseResult, most: int = 12) -> pd.Series:
    """Return by how much each component of a step changed (s), the largest first; small ones are one, at the end."""
    table = one_part(result.data, "components").set_index("component")
    change = (table["after_s"] - table["before_s"]).rename(in_words)
    change = change.loc[change.abs().sort_values(ascending=False, kind="stable").index]
    whole = max(float(table["before_s"].sum()), float(table["after_s"].sum()))
    large = (change.abs() >= SMALL * whole) & (np.arange(len(change)) < most)
    rest = change[~large]
    return change[large] if not rest.any() else pd.concat([change[large], pd.Series({"all others": rest.sum()})])


def draw_waterfall(axes: Axes, result: CaseResult, change: pd.Series) -> None:
    """Draw the step before and after, and between them what each component of `changes` takes off or adds."""
    before, after = float(result["before_time"]), float(result["after_time"])
    scale, unit = time_unit(max(before, after))
    style = {"textcoords": "offset points", "va": "center", "fontsize": 7}
    end = max(before, after, *(before + change.cumsum()))
    reached = before
    for row, time in enumerate(change, start=1):
        low, high = sorted((reached, reached + time))
        axes.barh(row, scale * (high - low), 0.7, left=scale * low, color=SHORTER if time < 0 else LONGER)
        axes.plot([scale * reached] * 2, [row - 0.75, row + 0.35], color=figures.GREY, linewidth=0.7, zorder=0)
        axes.annotate(signed_time(time), (scale * high, row), (4, 0), **style)
        reached += time
    last = len(change) + 1
    axes.plot([scale * after] * 2, [last - 1 + 0.35, last - 0.35], color=figures.GREY, linewidth=0.7, zorder=0)
    for row, time in ((0, before), (last, after)):
        axes.barh(row, scale * time, 0.7, color=WHOLE)
        axes.annotate(format_time(time), (scale * time, row), (4, 0), **style)
    axes.set_yticks(range(last + 1), ["before", *map(figures.plain, change.index), "after"], fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(last + 0.5, -0.5), xlim=(0, 1.15 * scale * end))
    axes.set_xlabel(f"{result['time_is']} ({unit})")


def label_kernels(compared: pd.DataFrame, length: int = 40) -> pd.Series:
    """Name each row of ``compared``: operator and sizes where they were recorded, else the kernel."""
    if (compared["kernel"] != "").all():
        before, after = (labels(compared[f"{name}_kernels"], length // 2) for name in RECORDINGS)
        renamed = (compared["matched_by"] != "") & (compared["before_kernels"] != compared["after_kernels"])
        return labels(compared["kernel"], length).mask(renamed, before + " → " + after)
    operator = compared["after_operator"].where(compared["after_operator"] != "", compared["before_operator"])
    operator = operator.str.rpartition("::")[2].str.strip("_")
    sizes = compared["sizes"].str.replace(r"[\[\]]", "", regex=True).str.replace(", ", "·")
    words = (operator + " " + sizes).str.strip()
    return words.where(words.str.len() <= length, words.str.slice(0, length - 1) + "…")


def changed_kernels(result: CaseResult) -> pd.DataFrame:
    """Return the part ``compared`` of the kernels whose change is worth showing, the largest first."""
    rows = one_part(result.data, "compared")
    whole = max(float(result["before_time"]), float(result["after_time"]))
    return rows[(rows["after_s"] - rows["before_s"]).abs() > SMALL / 10 * whole].reset_index(drop=True)


def draw_kernels(axes: Axes, changed: pd.DataFrame) -> None:
    """Draw the kernels whose time changed most: by how much, and how long a launch takes before and after.

    Parameters
    ----------
    changed : DataFrame
        Of `changed_kernels`.
    """
    rows = changed.head(14)
    change = (rows["after_s"] - rows["before_s"]).to_numpy()
    scale, unit = time_unit(float(np.abs(change).max()))
    axes.barh(rows.index, scale * change, 0.65, color=np.where(change < 0, SHORTER, LONGER))
    axes.axvline(0, color=figures.BLACK, linewidth=0.8)
    reach = scale * float(np.abs(change).max())
    for place, row in rows.iterrows():
        words = " → ".join(
            f"{row[f'{name}_launches']:,} × {format_time(row[f'{name}_launch_s'])}"
            if row[f"{name}_launches"]
            else "none"
            for name in RECORDINGS
        )
        at, away = (scale * change[place], 4) if change[place] > 0 else (0, 4)
        axes.annotate(words, (at, place), (away, 0), textcoords="offset points", va="center", fontsize=6.8)
    axes.set_yticks(rows.index, [figures.plain(name) for name in label_kernels(rows, 34)], fontsize=6.8)
    axes.tick_params(axis="y", length=0)
    low = min(float(scale * change.min()), 0.0)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(1.05 * low, max(float(scale * change.max()), 0.0) + 1.1 * reach))
    axes.set_xlabel(f"change of its time in the step ({unit}); launches × time of one, before → after")


def kernel_headline(changed: pd.DataFrame) -> str:
    """Return what the bars of `draw_kernels` say in sum."""
    if changed.empty:
        return f"No kernel's time changed by {100 * SMALL / 10:g} % of a step"
    change = changed["after_s"] - changed["before_s"]
    parts = ((change[change < 0], "takes less", "take less"), (change[change > 0], "takes longer", "take longer"))
    words = [
        f"{len(part):,} {f'kernel {one}' if len(part) == 1 else f'kernels {more}'} ({signed_time(part.sum())})"
        for part, one, more in parts
        if len(part)
    ]
    first = label_kernels(changed.head(1)).iloc[0]
    return f"{first} changed most ({signed_time(change.iloc[0])}): {' and '.join(words)}"


def draw_steps(axes: Axes, result: CaseResult) -> None:
    """Draw a dot for the time of every step of both recordings, and a line at their median."""
    spans, known = one_part(result.data, "spans"), str(result["time_is"])
    found = [step_times(spans[spans["recording"] == name], known) for name in RECORDINGS]
    scale, unit = time_unit(float(np.concatenate(found).max()))
    for row, times in enumerate(scale * each for each in found):
        # One above the other in the order of time, so that a drift shows.
        places = row + np.linspace(-0.3, 0.3, len(times)) if len(times) > 1 else [row]
        axes.scatter(times, places, s=18, color=WHOLE, linewidth=0, alpha=0.8)
        axes.plot([np.median(times)] * 2, [row - 0.42, row + 0.42], color=figures.BLACK, linewidth=1)
    axes.set_yticks(range(2), RECORDINGS, fontsize=7.5)
    axes.set(ylim=(1.6, -0.6), xlabel=f"{known} ({unit}); the first ones above")
    axes.margins(x=0.08)


def span_headline(result: CaseResult) -> str:
    """Return what `draw_steps` shows."""
    if "pairs_shorter_percent" not in result.summary:
        return "One step was recorded: how much steps differ is not known"
    share, pairs = float(result["pairs_shorter_percent"]), int(result["pairs_of_steps"])
    if pairs == 1:
        words = {0: "is longer than", 50: "takes as long as", 100: "is shorter than"}
        return f"One step was recorded each time: the one after {words[round(share)]} the one before"
    return f"Of {pairs:,} pairs of a step before and one after, the latter is the shorter in {share:.0f} %"


def component_table(result: CaseResult) -> pd.DataFrame:
    """Return what a step consists of, before and after, in ms and in percent of the earlier step."""
    table = one_part(result.data, "components")
    change = table["after_s"] - table["before_s"]
    before = float(table["before_s"].sum())
    frame = pd.DataFrame({"component": [in_words(name) for name in table["component"]]})
    # Without what the rounding of moments leaves.
    frame["before_ms"], frame["after_ms"], frame["change_ms"] = (
        (1e3 * times).round(9) for times in (table["before_s"], table["after_s"], change)
    )
    frame["change_of_step_percent"] = (100 * change / before).round(6) if before else np.nan
    total = {name: frame[name].sum() for name in frame if name != "component"}
    return pd.concat([frame, pd.DataFrame([{"component": "all", **total}])], ignore_index=True)


def compared_table(result: CaseResult) -> pd.DataFrame:
    """Return the kernels before and after, the largest change first."""
    rows = one_part(result.data, "compared")
    frame = pd.DataFrame({"kernel": label_kernels(rows), "class": rows["kernel_class"]})
    for name in RECORDINGS:
        frame[f"{name}_launches"] = rows[f"{name}_launches"]
        frame[f"{name}_launch_us"] = 1e6 * rows[f"{name}_launch_s"]
        frame[f"{name}_ms"] = 1e3 * rows[f"{name}_s"]
    frame["change_ms"] = 1e3 * (rows["after_s"] - rows["before_s"])
    frame["matched_by"] = rows["matched_by"].where(rows["matched_by"] != "", "–")
    return frame


def describe_recordings(result: CaseResult) -> str:
    """Say in Markdown what was recorded, how the steps were found, and how much of them has a partner."""
    lines = []
    for name in RECORDINGS:
        device = "" if result[f"{name}_device"] == "unknown" else f" on {result[f'{name}_device']}"
        if gpu := result.get(f"{name}_analysed_gpu"):
            device += f" ({gpu})"
        found = f"one of {result[f'{name}_steps']}, found by {result[f'{name}_step_found_by']}"
        found = "all of it" if result[f"{name}_step_found_by"] == "whole recording" else found
        matched = f"{float(result[f'{name}_matched_percent']):.1f} % of its kernel time has a partner in the other"
        lines.append(f"* **{name}**: {result[f'{name}_recording']}{device}; {found}; {matched}.")
    return "\n".join(lines)


def export_steps(result: CaseResult) -> PerfettoTrace:
    """Make a trace of both steps, each from its first kernel on; an empty one of recordings that have sums only."""
    trace, rows = PerfettoTrace(), one_part(result.data, "launches")
    if "start_s" not in rows:
        return trace
    for row in rows.itertuples():
        about = {"kernel": row.kernel, "class": row.kernel_class, "part_of_the_step_s": row.own_s}
        trace.add(
            f"GPU, {row.recording}",
            f"stream {row.stream}",
            row.name,
            row.start_s,
            row.duration_s,
            row.kernel_class,
            **about,
        )
    return trace
