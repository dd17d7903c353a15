"""Panels of predicted against measured kernel times; each draws into the given axes, of the held-back half."""

import re
import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.studies.kernel_time.judgement import suffix_of

#: What predicts a time: its name, colour and marker. The simplest first, the model with a table's help last.
PREDICTORS = {
    "roofline_s": ("roofline", figures.GREY, "o"),
    "derate_s": ("derated roofline", figures.ORANGE, "s"),
    "derated_s": ("fitted roofline", figures.GREEN, "D"),
    "lookup_s": ("look-up", figures.PURPLE, "^"),
    "predicted_s": ("time model", figures.BLUE, "o"),
    "corrected_s": ("corrected model", figures.SKY, "v"),
}
#: Ratios of predicted to measured time are clipped to this range.
RATIOS = (0.4, 2.2)
#: Error (%) at which the colour of a map is lightest.
LIGHTEST_PERCENT = 30
#: Error (%) that the headline of a map takes for large.
MARKED_PERCENT = 15
#: With more kernels than this, a panel shows how many fall into a cell instead of dots.
MOST_DOTS = 300
#: Height of a bar with the mean error of a predictor, in inches.
BAR_INCHES = 0.125


def panels(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the held-back rows of each panel by title: per operator, or per data type of one, 16-bit first."""
    # Choosing rows takes longest of texts, of which the data have more.
    columns = ["operator", "group", "flop", "bytes", "measured_s", *PREDICTORS]
    back = data.loc[data["held_back"], [name for name in columns if name in data]]
    column = "group" if back["operator"].nunique() == 1 else "operator"
    names = sorted(dict.fromkeys(back[column]), key=lambda name: not name.startswith("16-bit"))
    return {name: back[back[column] == name] for name in names}


def noise_floor(result: CaseResult, title: str) -> float:
    """Return the engine-blind floor (%) of a panel of :func:`panels`; NaN where no other framework measured it."""
    floor = result.get(f"noise_floor_percent{suffix_of(title)}")
    return floor if isinstance(floor, float) else np.nan


def mape_percent(part: pd.DataFrame, predictor: str = "predicted_s") -> float:
    """Return the mean absolute percentage error of a predictor, a column of times; NaN where it predicts none."""
    return float(errors_percent(part[predictor], part["measured_s"]).abs().mean())


def draw_errors(axes: Axes, part: pd.DataFrame, title: str, floor: float = np.nan) -> None:
    """Draw predicted over measured time by size, and above it a strip with the mean error of every predictor.

    The time model is drawn as dots, or as cells that are darker where more kernels fall into them; of the rooflines
    only the median by size. Panels at the left of a figure name the predictors, beside their bars.

    Parameters
    ----------
    part : DataFrame, shape (kernels, …)
        One of :func:`panels`. The x axis is FLOP for GEMMs and bytes for other operators.
    floor : float
        The engine-blind floor (%), a pale bar; NaN for none.
    """
    x = part["flop" if (part["operator"] == "gemm").all() else "bytes"].to_numpy(float)
    ratios = {name: (part[name] / part["measured_s"]).to_numpy(float) for name in PREDICTORS if name in part}
    model, color = np.clip(ratios["predicted_s"], *RATIOS), PREDICTORS["predicted_s"][1]
    edges = np.geomspace(x.min(), max(1.001 * x.max(), 2 * x.min()), 37)
    axes.axhspan(0.9, 1.1, color=figures.PALE, linewidth=0, zorder=0)
    if len(part) > MOST_DOTS:
        heights = np.geomspace(*RATIOS, 41)
        count = np.histogram2d(x, model, bins=(edges, heights))[0].T
        shades = LinearSegmentedColormap.from_list("", [(*to_rgb(color), 0.12), (*to_rgb(color), 1.0)])
        style = {"cmap": shades, "norm": LogNorm(1, max(2, count.max())), "rasterized": True, "zorder": 2}
        axes.pcolormesh(edges, heights, np.where(count > 0, count, np.nan), **style)
    else:
        axes.scatter(x, model, color=color, s=12, linewidth=0, zorder=2)
    bins = np.searchsorted(edges[::3], x, side="right")
    for name in ("roofline_s", "derate_s" if "derate_s" in ratios else "derated_s"):
        medians = pd.DataFrame({"x": x, "ratio": ratios.get(name, np.nan)}).groupby(bins).median()
        halo = [withStroke(linewidth=2.4, foreground="white")]
        line = {"color": PREDICTORS[name][1], "linewidth": 1.4, "zorder": 3, "path_effects": halo}
        axes.plot(medians["x"], medians["ratio"], **line)
    _name_limits(axes, ratios["predicted_s"], edges)
    axes.axhline(1, color=figures.BLACK, linewidth=0.6, zorder=3)
    columns = axes.get_subplotspec().get_gridspec().ncols
    axes.set(xscale="log", yscale="log", ylim=(0.38, 2.35))
    axes.set_yticks([0.5, 1, 2])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(LogLocator(numticks=4 if figures.for_columns else 8 // columns + 2))
    axes.xaxis.set_minor_locator(NullLocator())
    _draw_strip(axes, {name: mape_percent(part, name) for name in ratios} | {"floor": floor}, title)


def _name_limits(axes: Axes, ratios: np.ndarray, edges: np.ndarray) -> None:
    """Say at which limits ratios were clipped, in the corner that the drawn lines leave free."""
    lines = np.concatenate([line.get_xydata() for line in axes.lines])
    lines = np.log(lines[(lines > 0).all(axis=1)])  # a horizontal line begins at 0, the left edge
    low, high = np.log(edges[[0, -1]])
    for limit, beyond, words in zip(RATIOS, (np.less, np.greater), ("less", "more"), strict=True):
        if beyond(ratios, limit).any():
            near = lines[np.abs(lines[:, 1] - np.log(limit)) < 0.25, 0]
            left = (near < (2 * low + high) / 3).sum() < (near > (low + 2 * high) / 3).sum()
            at, side = (0.01, "left") if left else (0.99, "right")
            above, turned = (3, "bottom") if words == "less" else (-3, "top")
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": side, "va": turned}
            style = {"color": "#555555", "fontsize": 6.5, "zorder": 5}
            halo = [withStroke(linewidth=2, foreground="white")]
            text = f"edge: {limit} or {words}"
            axes.annotate(text, (at, limit), (0, above), path_effects=halo, **style, **place)


def _draw_strip(axes: Axes, errors: Mapping[str, float], title: str) -> None:
    """Draw a bar with the mean error (%) of each predictor above a panel, under the panel's title; all to one scale."""
    errors = {name: error for name, error in errors.items() if not np.isnan(error)}
    bars = PREDICTORS | {"floor": ("engine-blind floor", figures.PALE)}
    shown = [(*bars[name][:2], error) for name, error in errors.items()]
    strip = axes.inset_axes([0, 1, 1, 1])

    def place(_: Axes, __: object) -> Bbox:
        """Keep the height of text, whatever the panel's."""
        inch, frame = 1 / axes.figure.get_figheight(), axes.get_position()
        return Bbox.from_bounds(frame.x0, frame.y1 + 0.06 * inch, frame.width, BAR_INCHES * len(shown) * inch)

    strip.set_axes_locator(place)
    names, colors, values = zip(*shown, strict=True)
    strip.barh(range(len(shown)), np.minimum(values, 100), height=0.72, color=colors, linewidth=0)
    for row, (name, value) in enumerate(errors.items()):
        words = f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"
        weight = "bold" if name == "predicted_s" else "normal"
        beside = {"textcoords": "offset points", "va": "center_baseline", "fontsize": 6.5, "fontweight": weight}
        strip.annotate(words, (min(value, 100), row), (3, 0), **beside)
    strip.set(xlim=(0, 125), ylim=(len(shown) - 0.5, -0.5), xticks=[])
    strip.spines[["bottom", "left"]].set_visible(False)
    spec = axes.get_subplotspec()
    named = spec.is_first_col() or figures.for_columns
    strip.set_yticks(range(len(shown)), names if named else [""] * len(shown), fontsize=6.5)
    strip.tick_params(length=0, pad=2)
    strip.set_title(figures.plain(title), fontsize=7.5, pad=3)
    # In a column, more than three panels are beside one another, too narrow for it.
    grid = spec.get_gridspec()
    if spec.is_first_col() and spec.is_first_row() and (grid.nrows * grid.ncols < 4 or not figures.for_columns):
        strip.set_title("mean error", loc="right", fontsize=6.5, fontweight="normal", color="#555555", pad=3)


def error_cells(data: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Sort the held-back GEMMs of a case into cells of tokens m and weights n·k, which all maps of a figure share.

    Returns
    -------
    tuple
        A table ``group, row, column, error_percent, shapes, least_m, most_m`` with the mean absolute percentage error
        of every cell; the smallest m of each row (if there are many m, powers of two); and the edges of the columns in
        weights.
    """
    back = data[data["held_back"]]
    m, weights = np.unique(back["m"]), back["n"] * back["k"]
    edges = np.geomspace(weights.min(), max(weights.max() * 1.001, weights.min() * 2), 13)
    if len(m) > 24:
        m = np.unique(2 ** np.floor(np.log2(m)).astype(int))
    places = {"row": np.searchsorted(m, back["m"], side="right") - 1}
    places["column"] = np.searchsorted(edges, weights, side="right") - 1
    cells = back.assign(**places, error=errors_percent(back["predicted_s"], back["measured_s"]).abs()).groupby(
        ["group", "row", "column"], sort=False
    )
    found = cells.agg(
        error_percent=("error", "mean"), shapes=("error", "size"), least_m=("m", "min"), most_m=("m", "max")
    )
    return found.round(4).reset_index(), m, edges


def worst_cell(data: pd.DataFrame) -> str:
    """Say in one sentence what the maps of GEMMs show: how large errors are, and in which cell they are largest."""
    cells, _, edges = error_cells(data)
    worst, many = cells.loc[cells["error_percent"].idxmax()], cells["group"].nunique() > 1
    shapes, step = int(worst["shapes"]), MARKED_PERCENT
    below = int((cells["error_percent"] < step).sum())
    weights = figures.magnitude(float(f"{np.sqrt(edges[worst['column']] * edges[worst['column'] + 1]):.1e}"))
    least, most = int(worst["least_m"]), int(worst["most_m"])
    tokens = f"m = {least:,}" + f" to {most:,}" * (most > least)
    where = f"{worst['group']}, " * many + f"{tokens}, n·k near {weights}"
    return (
        f"{below:,} of {len(cells):,} cells have a mean error below {step} %; the largest (outlined: {where}) "
        f"has {worst['error_percent']:.1f} %, of {shapes:,} shape{'s' * (shapes > 1)}"
    )


def draw_map(axes: Axes, data: pd.DataFrame, group: str) -> ScalarMappable:
    """Draw the mean absolute percentage error of a case's GEMMs of one data type over tokens m and weights n·k.

    The cell with the largest error of all types has an outline.
    """
    cells, m, edges = error_cells(data)
    values = np.full((len(m), len(edges) - 1), np.nan)
    own = cells[cells["group"] == group]
    values[own["row"], own["column"]] = own["error_percent"]
    shades = {"cmap": "cividis", "vmin": 0, "vmax": LIGHTEST_PERCENT, "rasterized": True}
    mesh = axes.pcolormesh(edges, np.arange(len(m) + 1), values, **shades)
    worst = cells.loc[cells["error_percent"].idxmax()]
    if worst["group"] == group:
        column, row = worst["column"], worst["row"]
        style = {"fill": False, "edgecolor": figures.VERMILLION, "linewidth": 1.5, "zorder": 4, "clip_on": False}
        axes.add_patch(Rectangle((edges[column], row), edges[column + 1] - edges[column], 1, **style))
    axes.set(xscale="log", xlim=edges[[0, -1]])
    columns = axes.get_subplotspec().get_gridspec().ncols
    figures.set_magnitudes(axes.xaxis, *edges[[0, -1]], most=8 // columns + 2)
    step = max(1, len(m) // 8)
    axes.set_yticks(np.arange(len(m))[::step] + 0.5, [f"{value:,}" for value in m[::step]])
    axes.tick_params(length=2)
    return mesh


def draw_regions(axes: Axes, data: pd.DataFrame) -> None:
    """Draw and write the mean absolute percentage error of the held-back rows, per operator and region."""
    back = data[data["held_back"]]
    back = back.assign(error_percent=errors_percent(back["predicted_s"], back["measured_s"]).abs())
    row = "operator" if back["operator"].nunique() > 1 else "group"
    cells = back.pivot_table(index=row, columns="region", values="error_percent", sort=False)
    rows = list(panels(data))
    # Regions of one operator stand side by side; types of one operator share regions.
    place = back[row].map(rows.index) if row == "operator" else 0
    order = back.assign(place=place).sort_values(["place", "region_order"], kind="stable")["region"].drop_duplicates()
    cells = cells.reindex(index=rows, columns=order)
    axes.pcolormesh(cells.to_numpy(), cmap="cividis", vmin=0, vmax=LIGHTEST_PERCENT, edgecolors="white", linewidth=1)
    names = [re.sub(" (rows|tokens|cached tokens)( and more)?", r"\2\n\1", name) for name in cells.columns]
    if len(names) > 8:
        names = [textwrap.fill(name, 10) for name in names]
    axes.set_xticks(np.arange(len(names)) + 0.5, names)
    axes.set_yticks(np.arange(len(cells)) + 0.5, cells.index)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, column in np.ndindex(cells.shape):
        value = cells.iloc[row, column]
        if not np.isnan(value):
            shade = figures.BLACK if value > LIGHTEST_PERCENT / 2 else "white"
            weight = "bold" if value == np.nanmax(cells) else "normal"
            style = {"ha": "center", "va": "center_baseline", "color": shade, "fontsize": 8, "fontweight": weight}
            axes.text(column + 0.5, row + 0.5, f"{value:.1f} %", **style)
