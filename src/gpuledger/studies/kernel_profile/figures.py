"""Panels: the roofline of DRAM and L2, and the time of each kernel with what limits it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from matplotlib.transforms import blended_transform_factory

from gpuledger.ledger import column_layout, figures
from gpuledger.ledger.case_result import CaseResult, brief, time_unit
from gpuledger.ledger.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, SKY, YELLOW, plain
from gpuledger.ledger.label_placement import place_labels
from gpuledger.readers.kernel_names import labels
from gpuledger.studies.kernel_profile.roofs import LATENCY_PERCENT, RESOURCES

#: Kernels with this share of the time (percent) get a label in the roofline.
LABELLED_PERCENT = 5
COLOURS = {
    "dram": ORANGE,
    "l2": SKY,
    "l1": PURPLE,
    "memory": "#9A6324",  # brown: any level
    "sm": YELLOW,
    "fp64": BLACK,
    "fp32": BLUE,
    "tensor": GREEN,
    "latency": GREY,
}
_PEAKS = {"tensor": ("tensor cores", "-"), "fp32": ("FP32", "-"), "fp64": ("FP64", ":")}
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_INSTRUCTIONS = (("fma", "FMA", BLUE), ("multiply", "multiplication", SKY), ("add", "addition", ORANGE))
_LEAST_AREA, _AREA = 8, 900
_PLACE = ("dram_intensity_flop_per_byte", "flop_per_s")
_SAME = 8  # points that are closer than this share a label (printer's points)
#: What the points of a baseline are called.
BASELINE = "baseline"
_ROOF = "roof"  # marks the names of roofs


def roofline_points(table: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels that a roofline can show, with ``flop_per_s`` and ``area`` (square points, as time)."""
    rows = table[(table["launches"] > 0) & (table["time_s"] > 0) & (table["flops"].fillna(0) > 0)]
    rows = rows[(rows["dram_bytes"] > 0) | (rows["l2_bytes"] > 0)]
    rate = rows["flops"].astype("float64") / rows["time_s"]
    return rows.assign(flop_per_s=rate, area=_LEAST_AREA + _AREA * rows["share_percent"] / 100)


def draw_roofline(axes: Axes, points: pd.DataFrame, result: CaseResult) -> None:
    """Draw kernels below the roofs: filled over DRAM traffic, hollow over L2 traffic; the area of a dot is its time.

    Parameters
    ----------
    points : DataFrame
        From `roofline_points`.
    """
    kinds = {"dram": points["dram_intensity_flop_per_byte"], "l2": points["l2_intensity_flop_per_byte"]}
    found = pd.concat(list(kinds.values())).dropna()
    found = found[found > 0]
    roofs = {name: _roof(result, name) for name in ("dram", "l2", *_PEAKS)}
    reached = [found.min(), found.max(), roofs["fp32"] / roofs["dram"]]
    low, high = np.nanmin(reached) / 4, np.nanmax(reached) * 6
    work = points["flops"].sum()
    used = ["fp32", *(kind for kind in ("tensor", "fp64") if points[f"{kind}_flops"].fillna(0).sum() > work / 100)]
    peaks = {name: roofs[name] for name in used if not np.isnan(roofs[name])}
    top = max([*peaks.values(), points["flop_per_s"].max()])
    bottom = points["flop_per_s"].min() / 5
    ceiling = max(peaks.values(), default=np.inf)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top * 3))
    axes.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="FLOP/s")
    axes.yaxis.set_major_formatter(lambda value, _: _scaled(value))
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_major_formatter(lambda value, _: brief(float(value), 3))
    axes.grid(which="major")
    x = np.geomspace(low, high, 200)
    for name, style in (("dram", "-"), ("l2", "--")):
        if not np.isnan(roofs[name]):
            y = np.minimum(x * roofs[name], ceiling)
            axes.plot(x, y, color=COLOURS[name], linestyle=style, linewidth=1.3, zorder=2)
            at = max(low * 1.15, bottom * 2 / roofs[name])
            text = f"{name.upper()} {_scaled(roofs[name])}B/s"
            place = {"textcoords": "offset points", "rotation_mode": "anchor", "fontsize": 7, "gid": _ROOF}
            away = (0, 5 if name == "l2" else -9)
            axes.annotate(text, (at, at * roofs[name]), away, color=COLOURS[name], **place)
    for name, peak in peaks.items():
        axes.plot(x, np.full(len(x), peak), color=COLOURS[name], linestyle=_PEAKS[name][1], linewidth=1.1, zorder=2)
        text = f"{_PEAKS[name][0]} {_scaled(peak)}FLOP/s"
        axes.annotate(text, (low, peak), (3, 3), color=COLOURS[name], textcoords="offset points", fontsize=7)
    for kind, intensity in kinds.items():
        shown = points[intensity > 0]
        colours = [COLOURS.get(bound, GREY) for bound in shown["bound"]]
        style = {"color": colours} if kind == "dram" else {"facecolor": "none", "edgecolor": colours, "linewidth": 1}
        axes.scatter(intensity[shown.index], shown["flop_per_s"], s=shown["area"], alpha=0.85, zorder=4, **style)
    for bound in dict.fromkeys(points["bound"].dropna()):
        axes.scatter([], [], s=30, color=COLOURS[bound], label=bound_in_words(bound))
    axes.scatter([], [], s=30, facecolor="none", edgecolor=GREY, label="over L2 traffic")


def bound_in_words(bound: str) -> str:
    """Return what the legend says of a colour."""
    return f"below {LATENCY_PERCENT} % of every roof" if bound == "latency" else f"near {RESOURCES[bound]}"


def draw_baseline(axes: Axes, points: pd.DataFrame, before: pd.DataFrame) -> None:
    """Draw where each kernel was in the baseline: hollow and black, with a thin line to where it is now.

    Parameters
    ----------
    axes : Axes
        With the points drawn.
    points, before : DataFrame
        From `roofline_points`, of the report (with ``baseline_kernel``) and of the baseline.
    """
    before = before.set_index("kernel")
    for kernel, x, y in zip(*(points[name] for name in ("baseline_kernel", *_PLACE)), strict=True):
        if kernel in before.index:
            earlier = before.loc[kernel]
            axes.plot([earlier[_PLACE[0]], x], [earlier[_PLACE[1]], y], color=BLACK, linewidth=0.7, zorder=5)
            axes.scatter(*earlier[list(_PLACE)], s=earlier["area"], facecolor="none", edgecolor=BLACK, zorder=5)
    axes.scatter([], [], s=30, facecolor="none", edgecolor=BLACK, label=BASELINE)


def label_points(axes: Axes, points: pd.DataFrame) -> None:
    """Name the kernels that take 5 % of the time or more, others where there is room, and turn the roofs' names.

    The figure must have its final layout.
    """
    for text in axes.texts:
        if text.get_gid() == _ROOF:
            text.set_rotation(_angle(axes))
    needed = int((points["share_percent"] >= LABELLED_PERCENT).sum())
    points = points.sort_values("share_percent", ascending=False, kind="stable")
    x = points["dram_intensity_flop_per_byte"].fillna(points["l2_intensity_flop_per_byte"])
    names = labels(points["kernel"], 20 if figures.for_columns else 24)
    texts = [f"{plain(name)} {_percent(share)} %" for name, share in zip(names, points["share_percent"], strict=True)]
    if texts:
        places, radii = np.column_stack([x, points["flop_per_s"]]).astype(float), np.sqrt(points["area"].to_numpy()) / 2
        place_labels(axes, places, texts, radii, near=_SAME, needed=needed, most=3)


def time_headline(table: pd.DataFrame, finding: str) -> str:
    """Return what the bars of `draw_times` say in sum: the time at each limit, else how few kernels have most of it.

    Of a single kernel, of a comparison and of bars without a length that is the `finding` of the case.
    """
    own = table[table["launches"] > 0]
    if len(table) == 1 or "speedup" in table or not (own["time_s"].sum() > 0 or own["flops"].sum() > 0):
        return finding
    limits = own.groupby("bound")["share_percent"].sum().sort_values(ascending=False, kind="stable")
    if limits.sum() > 0:
        parts = [
            (_percent(share), "limited by latency" if at == "latency" else f"near {RESOURCES[at]}")
            for at, share in limits.items()
        ]
        (first, where), *others = parts
        return ", ".join(
            [f"Kernels {where} take {first} % of the time", *(f"{where} {share} %" for share, where in others)]
        )
    timed = own["time_s"].sum() > 0
    values = own["time_s" if timed else "flops"].astype("float64").sort_values(ascending=False, kind="stable")
    running = 100 * values.cumsum() / values.sum()
    most = int((running < 90).sum()) + 1
    verb, of_what = ("take", "time") if timed else ("execute", "FLOPs")
    return (
        f"{most} of {len(own)} kernels {verb}{'s' if most == 1 else ''} {running.iloc[most - 1]:.0f} % of the {of_what}"
    )


def draw_times(axes: Axes, table: pd.DataFrame, shown: int = 15) -> None:
    """Draw the time of each kernel as a bar with what limits it; a baseline as a pale bar behind.

    Without times, the bars are FLOPs, without these launches, with their share of all.

    Parameters
    ----------
    table : DataFrame
        From `gpuledger.studies.kernel_profile.tables.kernel_table`.
    shown : int
        At most so many kernels; the others are summed up.
    """
    known = next(name for name in ("time_s", "flops", "launches") if table[name].notna().any())
    timed, values = known == "time_s", table[known].astype("float64")
    before = table.get("baseline_time_s", pd.Series(np.nan, table.index)) if timed else pd.Series(np.nan, table.index)
    most = np.nanmax([values.max(), before.max(), 0])
    size, prefix = _prefix(most)
    factor, unit = time_unit(most) if timed else (1 / size, f"executed {prefix}FLOP")
    if known == "launches":
        factor, unit = 1, "launches"
    names = labels(table["kernel"], 22 if figures.for_columns else 32)
    head, rest = table.index[:shown], table.index[shown:]
    of_all = 100 * values / values.sum()
    if timed:
        notes = [_note(table.loc[at]) for at in head]
    else:
        notes = ["" if np.isnan(of_all[at]) else f"{brief(float(of_all[at]), 2)} %" for at in head]
    rows = [
        (plain(names[at]), values[at], before[at], table["bound"][at], note)
        for at, note in zip(head, notes, strict=True)
    ]
    if len(rest):
        rows.append((f"{len(rest)} more kernels", values[rest].sum(), before[rest].sum(min_count=1), None, ""))
    ends = []
    for position, (_, value, earlier, bound, note) in enumerate(rows):
        if not np.isnan(earlier):
            axes.barh(position, earlier * factor, height=0.82, color=PALE, zorder=2)
        colour = COLOURS.get(bound, GREY)
        if not np.isnan(value):
            axes.barh(position, value * factor, height=0.5, color=colour, zorder=3)
        end = np.nanmax([value, earlier, 0]) * factor
        place = {"textcoords": "offset points", "va": "center", "fontsize": 7}
        axes.annotate(plain(note), (end, position), (4, 0), **place).set_in_layout(False)
        ends.append((end, len(note)))
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    # Room for the texts, whose signs are about 0.058 inches wide.
    width = column_layout.WIDTH if figures.for_columns else axes.figure.get_figwidth()
    width -= 0.35 + 0.062 * max(len(row[0]) for row in rows)
    axes.set_xlim(0, max(end / max(1 - (0.058 * signs + 0.1) / width, 0.1) for end, signs in ends) or 1)
    axes.tick_params(axis="y", length=0, labelsize=7.5)
    axes.grid(axis="x")
    share = ", and share of all" if figures.for_columns or not timed else ""
    pale = "; pale: the baseline" if before.notna().any() else ""
    axes.set_xlabel(f"time ({unit}){share}{pale}" if timed else f"{unit}{share}")


def draw_instructions(axes: Axes, table: pd.DataFrame) -> None:
    """Draw what the FP32 instructions of each kernel are, and which share of the FP32 peak they can reach at most.

    Parameters
    ----------
    table : DataFrame
        From `gpuledger.studies.kernel_profile.tables.instruction_table`.
    """
    rows = table.head(15).reset_index(drop=True)
    left = np.zeros(len(rows))
    for name, label, colour in _INSTRUCTIONS:
        percent = (100 * rows[name] / _instructions(rows)).to_numpy()
        axes.barh(rows.index, percent, 0.6, left=left, color=colour, label=label, zorder=2)
        left += percent
    for place, peak in enumerate(_peak_percent(rows)):
        words = f"≤ {peak:.0f} % of the FP32 peak"
        axes.annotate(words, (100, place), (4, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(rows.index, [plain(name) for name in labels(rows["kernel"], 22 if figures.for_columns else 32)])
    axes.tick_params(axis="y", length=0, labelsize=7.5)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, 190 if figures.for_columns else 130), xticks=range(0, 101, 20))
    axes.set_xlabel("FP32 instructions (%)")


def instruction_headline(table: pd.DataFrame) -> str:
    """Return what the bars of `draw_instructions` say in sum."""
    whole = table[["fma", "multiply", "add"]].sum().to_frame().T
    share, peak = 100 * whole["fma"] / _instructions(whole), _peak_percent(whole)
    return (
        f"{share.item():.0f} % of the FP32 instructions are FMAs: "
        f"the kernels reach {peak.item():.0f} % of the FP32 peak at most"
    )


def _instructions(table: pd.DataFrame) -> pd.Series:
    return table["fma"] + table["multiply"] + table["add"]


def _peak_percent(table: pd.DataFrame) -> pd.Series:
    """Return the share of the peak with all issue slots filled: an FMA is two operations, others are one."""
    return 100 * (_instructions(table) + table["fma"]) / (2 * _instructions(table))


def draw_shares(axes: Axes, table: pd.DataFrame, before: pd.DataFrame | None = None, shown: int = 12) -> None:
    """Draw how near each kernel comes to each roof, for reports that a roofline cannot show; a baseline as an outline.

    Parameters
    ----------
    table : DataFrame
        From `gpuledger.studies.kernel_profile.tables.kernel_table`.
    before : DataFrame, optional
        From `gpuledger.studies.kernel_profile.tables.baseline_table`.
    shown : int
        At most so many kernels, the longest first.
    """
    rows = table[table["launches"] > 0].head(shown)
    earlier = pd.DataFrame() if before is None else before.set_index("kernel").reindex(rows["baseline_kernel"])
    roofs = [name for name in RESOURCES if rows[f"{name}_percent"].notna().any()]
    height, most = 0.8 / len(roofs), 165 if figures.for_columns else 124
    axes.axvspan(0, LATENCY_PERCENT, color="#f3f3f3", linewidth=0, zorder=0)
    axes.axvline(100, color=BLACK, linewidth=1)
    for number, name in enumerate(roofs):
        places = np.arange(len(rows)) + (number - (len(roofs) - 1) / 2) * height
        shares = rows[f"{name}_percent"].to_numpy(float)
        axes.barh(places, shares, 0.85 * height, color=COLOURS[name], label=RESOURCES[name], zorder=2)
        was = earlier[f"{name}_percent"].to_numpy(float) if len(earlier) else np.full(len(rows), np.nan)
        axes.barh(places, was, 0.85 * height, facecolor="none", edgecolor=BLACK, linewidth=0.8, zorder=3)
        for place, share, old in zip(places, shares, was, strict=True):
            words = f"{share:.0f} %" if np.isnan(old) else f"{share:.0f} % (was {old:.0f} %)"
            if not np.isnan(share):
                style = {"textcoords": "offset points", "va": "center", "fontsize": 7, "zorder": 4}
                end = np.nanmax([share, old])
                if end >= 80 and share >= 50:  # in the bar: not across the line at 100 %
                    style |= {"ha": "right", "color": figures.ink_on(COLOURS[name])}
                    axes.annotate(words, (min(share, most), place), (-3, 0), **style)
                else:
                    axes.annotate(words, (end if end < 80 else min(max(end, 100), most), place), (3, 0), **style)
    if len(earlier):
        axes.plot([], [], "s", markerfacecolor="none", color=BLACK, label=BASELINE)
    axes.set_yticks(range(len(rows)), [plain(name) for name in labels(rows["kernel"], 32)])
    axes.tick_params(axis="y", length=0, labelsize=7.5)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, most), xticks=range(0, 101, 20))
    axes.set_xlabel("share of the roof (%); grey: limited by latency")


def tell_missing(axes: Axes, result: CaseResult, what: str) -> None:
    """Say in a panel without data what is missing, and how to collect it."""
    axes.set_axis_off()
    missing = {name[8:]: entry["value"] for name, entry in result.summary.items() if name.startswith("missing_")}
    wanted = [name for name in ("time_s", "flops", "dram_bytes") if name in missing]
    lines = [what, ""] + [f"{_NAMES[name]}: {missing[name]}" for name in wanted]
    # From the left edge of the figure; a part of the layout would squeeze the panel above it.
    across = blended_transform_factory(axes.figure.transFigure, axes.transAxes)
    axes.text(0.01, 1, plain("\n".join(lines)), va="top", fontsize=7.5, transform=across, in_layout=False)


_NAMES = {"time_s": "times", "flops": "FLOPs", "dram_bytes": "DRAM traffic"}


def _note(row: pd.Series) -> str:
    words = []
    if pd.notna(row.get("speedup")):
        words.append(f"{brief(1 / float(row['speedup']), 3)}× as long")
    if row["launches"] == 0:
        words.append("only in the baseline")
    if isinstance(row["limiter"], str):
        near = "" if pd.isna(row["achieved_percent"]) else f" {row['achieved_percent']:.0f} %"
        limiter = row["limiter"].split(":")[0] if figures.for_columns else row["limiter"]
        words.append(limiter if limiter.startswith("latency") else f"{limiter}{near}")
    if pd.notna(row["share_percent"]):
        words.append(f"{_percent(row['share_percent'])} %" + " of time" * (not figures.for_columns))
    return "; ".join(words)


def _percent(share: float) -> str:
    return f"{share:.0f}" if share >= 1 else brief(float(share), 1)


def _roof(result: CaseResult, name: str) -> float:
    unit = "bytes_per_s" if name in ("dram", "l2") else "flop_per_s"
    return float(result.get(f"roof_{name}_{unit}", np.nan))


def _scaled(value: float) -> str:
    size, prefix = _prefix(value)
    return f"{brief(float(value / size), 3)} {prefix}"


def _prefix(value: float) -> tuple[float, str]:
    return next(((size, prefix) for size, prefix in _UNITS if value >= size), (1, ""))


def _angle(axes: Axes) -> float:
    """Return the angle on paper of a line that grows as x (degrees)."""
    box = axes.get_position()
    (low, high), (bottom, top) = np.log10(axes.get_xlim()), np.log10(axes.get_ylim())
    width, height = axes.figure.get_size_inches() * (box.width, box.height)
    return float(np.degrees(np.arctan2(height / (top - bottom), width / (high - low))))
