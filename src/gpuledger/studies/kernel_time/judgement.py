"""Errors of predictions beside those of the baselines, in the summary and in tables."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.models.time_model.constants.fit_gemm import HOST_BOUND_S
from gpuledger.models.time_model.constants.neighbours import COUNTS, Near, correction, fit_sharing
from gpuledger.studies.kernel_time import prediction
from gpuledger.studies.kernel_time.baselines import fit_derate, look_up, noise_floor
from gpuledger.studies.kernel_time.prediction import LARGE_FLOP

#: Ways to predict, by the stem of their column, and what tables call them.
PREDICTORS: Mapping[str, str] = {
    "predicted": "this model",
    "corrected": "this model, corrected by what its errors at the nearest measured shapes have in common",
    "shipped": "this model, constants as they come",
    "lookup": "look-up of the 4 nearest measured shapes",
    "derated": "roofline with 3 fitted constants",
    "derate": "roofline (0.8, 0.8, + 3 µs)",
    "roofline": "roofline",
}
#: Fitted to one half or taken from it: they are judged on the other half only.
FITTED = ("lookup", "derated", "corrected")


def add_errors(result: CaseResult, rows: pd.DataFrame, prefix: str = "", suffix: str = "") -> None:
    """Enter the errors of the model and of the baselines (of all shapes, and of the held-back ones)."""
    back = rows[rows["held_back"]]
    error = _error_percent(back, "predicted")
    result.add(f"{prefix}shapes{suffix}", len(rows), "shape")
    result.add(f"{prefix}shapes_held_back{suffix}", len(back), "shape")
    result.add(f"{prefix}mape_held_back_percent{suffix}", error.abs().mean(), "%")
    result.add(f"{prefix}median_held_back_percent{suffix}", error.abs().median(), "%")
    result.add(f"{prefix}bias_held_back_percent{suffix}", error.median(), "%")
    large = error[back["flop"] >= LARGE_FLOP]
    # Without any, "unknown" for GEMMs; operators may have no FLOP at all.
    if len(large) or not prefix:
        result.add(f"{prefix}mape_held_back_large_percent{suffix}", large.abs().mean(), "%")
    for name in predictors(rows)[1:]:
        off = _error_percent(rows, name).abs()
        if name not in FITTED:
            result.add(f"{prefix}mape_{name}_held_back_percent{suffix}", off[rows["held_back"]].mean(), "%")
        counted = off[rows["held_back"]] if name in FITTED else off
        result.add(f"{prefix}mape_{name}_percent{suffix}", counted.mean(), "%")


def predictors(data: pd.DataFrame) -> list[str]:
    """Return the keys of `PREDICTORS` that the data have predictions of."""
    return [name for name in PREDICTORS if f"{name}_s" in data and data[f"{name}_s"].notna().any()]


def add_baselines(
    rows: pd.DataFrame, predicted_s: pd.Series, compute_s: np.ndarray, traffic_s: np.ndarray, sizes: Sequence[str]
) -> pd.DataFrame:
    """Return what one kernel's fitting half says of its rows without the law, and beside it; NaN below 20 rows.

    Returns
    -------
    DataFrame
        ``derated_s``; of held-back rows ``lookup_s``, between the nearest measured times, and ``corrected_s``, the
        prediction corrected by what its errors at the nearest shapes have in common.
    """
    held = rows["held_back"].to_numpy()
    if (~held).sum() < prediction.LEAST_SHAPES:
        return pd.DataFrame({"derated_s": np.nan, "lookup_s": np.nan, "corrected_s": np.nan}, index=rows.index)
    measured = rows["measured_s"].to_numpy()[~held]
    few = slice(None, None, max(1, len(measured) // prediction.FIT_SHAPES))
    derate = fit_derate(compute_s[~held][few], traffic_s[~held][few], measured[few])
    shapes = rows[list(sizes)].fillna(0).to_numpy(dtype=float)
    model = predicted_s.to_numpy()
    known, ratios = shapes[~held], measured / model[~held]
    found = np.full((len(rows), 2), np.nan)
    near = Near(known, shapes[held], max(COUNTS))
    found[held, 0] = look_up(near, measured)
    found[held, 1] = model[held] * correction(fit_sharing(known, ratios), near, ratios)
    columns = {"derated_s": derate.time_s(compute_s, traffic_s), "lookup_s": found[:, 0], "corrected_s": found[:, 1]}
    return pd.DataFrame({name: prediction.rounded(times) for name, times in columns.items()}, index=rows.index)


def add_groups(
    result: CaseResult, frame: pd.DataFrame, unseen_s: pd.Series, beside: Sequence[pd.DataFrame], keys: list[str]
) -> str:
    """Enter the errors of every group of kernels, and what else is known of it; return the group that matters most.

    Parameters
    ----------
    unseen_s : Series
        Held-back times as predicted with the constants of other GPUs only; NaN where no other has them.
    beside : sequence of DataFrame
        The kernels as this framework and as others measured them; `keys` are the columns of a shape.
    """
    judged = set(frame["group"][frame["held_back"]])
    groups = sorted(frame["group"].unique(), key=lambda name: (name not in judged, name != "16-bit", name))
    for group in groups:
        suffix, rows = suffix_of(group), frame[frame["group"] == group]
        add_errors(result, rows, suffix=suffix)
        back = rows[rows["held_back"]]
        error = percent(unseen_s[back.index] / back["measured_s"] - 1).abs()
        result.add(f"mape_unseen_percent{suffix}", error.mean(), "%")
        _add_noise_floor(result, [table[table["group"] == group] for table in beside], keys, suffix)
        _add_host_bound(result, rows, suffix)
    return groups[0]


def suffix_of(group: str) -> str:
    """Return what the names of a group's quantities end with: nothing for 16-bit ones."""
    return "" if group == "16-bit" else f"_{slug(group)}"


def _add_noise_floor(result: CaseResult, tables: list[pd.DataFrame], keys: list[str], suffix: str) -> None:
    """Enter how far frameworks are apart, where several measured a shape."""
    if len(tables) > 1:
        floor, shapes = noise_floor(tables, keys)
        result.add(f"noise_floor_percent{suffix}", floor if np.isnan(floor) else round(floor, 4), "%")
        result.add(f"noise_floor_shapes{suffix}", shapes, "shape")


def _add_host_bound(result: CaseResult, rows: pd.DataFrame, suffix: str) -> None:
    """Enter the first percentile of the times, and which kernels' tables hold the host's calls rather than kernels."""
    floors = rows.groupby("kernel")["measured_s"].quantile(0.01)
    result.add(f"time_p1{suffix}", float(f"{floors.min() * 1e6:.4g}"), "us")
    slow = [f"{name} ({floor * 1e6:.0f} µs)" for name, floor in floors.items() if floor > HOST_BOUND_S]
    result.add(f"host_bound{suffix}", ", ".join(slow) or "none", "text")


def add_constants(
    result: CaseResult, values: Mapping[str, float], units: Mapping[str, str], suffix: str, source: str
) -> None:
    result.add(f"constants{suffix}", prediction.constants_in_words(values, units), "text")
    result.add(f"constants_source{suffix}", source, "text")
    for name, value in values.items():
        result.add(f"constant_{name}{suffix}", value, units[name])


def percent(ratio: pd.Series) -> pd.Series:
    # To the digits that hold on every machine.
    return (100 * ratio).round(4)


def _error_percent(rows: pd.DataFrame, name: str) -> pd.Series:
    return percent(rows[f"{name}_s"] / rows["measured_s"] - 1)


def in_percent(percent: float | str) -> str:
    # With a space that does not break.
    return percent if isinstance(percent, str) else f"{percent:.1f}\N{NO-BREAK SPACE}%"


def error_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the mean absolute percentage errors by operator, type and region, of the held-back shapes.

    Returns
    -------
    DataFrame
        ``operator, type, region, shapes, held_back, mape_percent, median_percent, bias_percent,
        mape_<baseline>_percent …``; the last row of an operator and type is all of its shapes. `bias`
        is the median of the signed error.
    """
    names_of = predictors(data)
    rows = []
    # Choosing rows takes longest of texts, of which the data have more.
    times = [f"{name}_s" for name in ("measured", *names_of)]
    data = data[["operator", "group", "region", "region_order", "held_back", *times]]
    for (operator, group), part in data.groupby(["operator", "group"], sort=False):
        names = list(dict.fromkeys(part.sort_values("region_order", kind="stable")["region"]))
        for region in [*names, "all"]:
            chosen = part if region == "all" else part[part["region"] == region]
            back = chosen[chosen["held_back"]]
            errors = {name: _error_percent(back, name) for name in names_of}
            rows.append(
                {
                    "operator": operator,
                    "type": group,
                    "region": region,
                    "shapes": len(chosen),
                    "held_back": len(back),
                    "mape_percent": errors["predicted"].abs().mean(),
                    "median_percent": errors["predicted"].abs().median(),
                    "bias_percent": errors["predicted"].median(),
                    **{f"mape_{name}_percent": errors[name].abs().mean() for name in reversed(names_of[1:])},
                }
            )
    return pd.DataFrame(rows).round(4)


def worst_region(table: pd.DataFrame) -> str:
    """Say in one sentence where the prediction is worst, and how good it is as a whole; from :func:`error_table`."""
    regions = table[(table["region"] != "all") & (table["held_back"] > 0)]
    worst = regions.loc[regions["mape_percent"].idxmax()]
    names = [name for name in ("operator", "type") if table[name].nunique() > 1]
    where = ", ".join([*(str(worst[name]) for name in names), str(worst["region"])])
    whole = np.average(regions["mape_percent"], weights=regions["held_back"])
    count = int(worst["held_back"])
    return (
        f"Largest mean error: {where}, with {in_percent(worst['mape_percent'])} "
        f"({count:,} shape{'s' * (count > 1)}; all {regions['held_back'].sum():,}: {in_percent(whole)})"
    )


def predictor_table(result: CaseResult) -> pd.DataFrame:
    """Return every way of predicting beside the others: mean absolute percentage errors of the held-back shapes.

    Returns
    -------
    DataFrame
        ``predictor``, and a column ``<type>_mape_percent`` for every type.
    """
    data = result.data
    columns: dict[str, dict[str, float]] = {}
    for group, part in data[data["held_back"]].groupby("group"):
        column = {PREDICTORS[name]: _error_percent(part, name).abs().mean() for name in predictors(part)}
        columns[f"{slug(str(group))}_mape_percent"] = column
    for group in columns:
        suffix = group.removesuffix("_mape_percent")
        for stem, words in (
            ("mape_unseen", "this model, constants of other GPUs only"),
            ("noise_floor", "engine-blind floor"),
        ):
            name = f"{stem}_percent" if suffix == "16_bit" else f"{stem}_percent_{suffix}"
            if name in result.summary:
                columns[group][words] = result[name] if not isinstance(result[name], str) else np.nan
    return pd.DataFrame(columns).rename_axis("predictor").reset_index().round(4)
