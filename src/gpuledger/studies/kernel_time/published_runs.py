"""Kernels that others measured on many GPUs: the errors of their predictions, by group of kernels, GPU and run."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.studies.kernel_time.judgement import in_percent

#: Whose constants predict a kernel, as the tables call it.
OWN, OTHER_FORMAT, OTHER_GPU = "its own", "its own, of another format", "another GPU's"
#: The library's kernel was not measured anywhere near: those of engines stand in.
OTHER_KERNEL = "another kernel's"
#: The share of the peak, in fp32, was fitted to these products.
FITTED = "fitted to these products"
SLUGS = {
    OWN: "own",
    OTHER_FORMAT: "other_format",
    OTHER_GPU: "other_gpu",
    OTHER_KERNEL: "other_kernel",
    FITTED: "fitted",
}
#: Groups of kernels, in the order of tables; those of the fastest kernels come first.
_LEADING = ("16-bit", "causal", "full")
_GROUPS = (*_LEADING, "tf32", "fp32", "fp8", "backward", "decode", "latent")
_ORDER = {name: place for place, name in enumerate(_GROUPS)}
#: What speeds are known of.
_WAYS = ("measured", "predicted", "roofline")


def with_speeds(rows: pd.DataFrame, least: pd.Series) -> pd.DataFrame:
    """Return rows with speeds and errors in place of their times (s), and which of them are judged.

    Parameters
    ----------
    rows : DataFrame
        ``flop, measured_s, predicted_s`` (NaN: not predicted)``, roofline_s``, and others, which are kept.
    least : bool Series
        Which rows take long enough: the host's launches are a part of the others' times.

    Returns
    -------
    DataFrame
        ``measured_tflop_per_s, predicted_tflop_per_s, roofline_tflop_per_s``; ``error_percent``, by how much the
        predicted time is longer than the measured one, and ``roofline_error_percent``; ``judged``.
    """
    rates = {f"{way}_tflop_per_s": rows["flop"] / rows[f"{way}_s"] / 1e12 for way in _WAYS}
    errors = {
        f"{prefix}error_percent": 100 * (rows[f"{way}_s"] / rows["measured_s"] - 1)
        for prefix, way in (("", "predicted"), ("roofline_", "roofline"))
    }
    judged = least & rows["predicted_s"].notna()
    return rows.drop(columns=["flop", *(f"{way}_s" for way in _WAYS)]).assign(**rates, **errors, judged=judged)


def add_summary(result: CaseResult, noun: str) -> None:
    """Enter counts, and the errors of each group of kernels by whose constants predict them.

    Parameters
    ----------
    result : CaseResult
        Data: ``run, gpu, group, constants`` (a key of `SLUGS`), optionally ``library``, and what :func:`with_speeds`
        returns.
    noun : str
        What a row is, such as "product".
    """
    data = result.data
    result.add(f"{noun}s", len(data), noun)
    result.add("gpus", data["gpu"].nunique(), "GPU")
    result.add("runs", data.groupby(_run(data)).ngroups, "run")
    for (group, constants), rows in data[data["judged"]].groupby(["group", "constants"], sort=True):
        suffix = f"_{slug(group)}_{SLUGS[constants]}"
        runs = run_errors(rows)
        result.add(f"{noun}s{suffix}", len(rows), noun)
        result.add(f"gpus{suffix}", rows["gpu"].nunique(), "GPU")
        result.add(f"runs{suffix}", len(runs), "run")
        # A run counts once, however many kernels it has.
        result.add(f"run_mape_percent{suffix}", round(float(runs["error_percent"].median()), 4), "%")
        result.add(f"run_roofline_percent{suffix}", round(float(runs["roofline_error_percent"].median()), 4), "%")
        result.add(f"bias_percent{suffix}", round(float(rows["error_percent"].median()), 4), "%")


def finding(what: str, rows: pd.DataFrame, words: Mapping[str, str]) -> str:
    """Say within how much half of the runs are predicted by each kind of constants, in the words for them."""
    said = []
    for constants, whose in words.items():
        errors = run_errors(rows[rows["judged"] & (rows["constants"] == constants)])
        if not len(errors):
            continue
        runs = f"half of {len(errors)} runs" if len(errors) > 1 else "1 run"
        near, roofline = (in_percent(errors[f"{prefix}error_percent"].median()) for prefix in ("", "roofline_"))
        if not said:
            runs += " are predicted" if len(errors) > 1 else " is predicted"
            whose = whose if len(errors) > 1 else whose.replace("their", "its")
            whose, roofline = f"{whose} constants", f"roofline: {roofline}"
        said.append(f"{runs} within {near} by {whose} ({roofline})")
    return f"{what}: {', '.join(said)}" if said else ""


def run_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean absolute errors (%) of each run on each GPU, with each library."""
    errors = rows.set_index(_run(rows))[["error_percent", "roofline_error_percent"]].abs()
    return errors.groupby(_run(rows), sort=False).mean()


def _run(rows: pd.DataFrame) -> list[str]:
    return [name for name in ("run", "gpu", "library") if name in rows]


def published_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of judged kernels by group and GPU, and by library where there are several.

    Returns
    -------
    DataFrame
        ``group, gpu, [library,] constants_of`` (empty: the GPU itself)``, runs, shapes, best_tflop_per_s``
        (measured)``, of_peak_percent`` (of the data sheet's peak)``, mape_percent, bias_percent`` (the median)``,
        roofline_percent``.
    """
    keys = ["group", "gpu", *(["library"] if "library" in data else [])]
    table = (
        data[data["judged"]]
        .groupby(keys, sort=False)
        .agg(
            constants_of=("constants_of", "first"),
            runs=("run", "nunique"),
            shapes=("run", "size"),
            best_tflop_per_s=("measured_tflop_per_s", "max"),
            peak_tflop_per_s=("peak_tflop_per_s", "max"),
            mape_percent=("error_percent", lambda errors: errors.abs().mean()),
            bias_percent=("error_percent", "median"),
            roofline_percent=("roofline_error_percent", lambda errors: errors.abs().mean()),
        )
    )
    table.insert(4, "of_peak_percent", 100 * table["best_tflop_per_s"] / table.pop("peak_tflop_per_s"))
    table = table.reset_index().round(4)
    places = table["group"].map(_ORDER).fillna(len(_ORDER))
    return table.iloc[np.argsort(places.to_numpy(), kind="stable")].reset_index(drop=True)


def bias_sentence(data: pd.DataFrame) -> str:
    """Say by how much predictions are off in each group: medians of the runs' medians."""
    runs = data[data["judged"]].groupby(["group", *_run(data)])["error_percent"].median()
    bias = runs.groupby("group").median()
    said = [
        f"{in_percent(abs(value))} too {'short' if value < 0 else 'long'} in {name}" for name, value in bias.items()
    ]
    listed = ", ".join(said[:-1]) + f" and {said[-1]}" if len(said) > 1 else said[0]
    return f"In the median run, predicted times are {listed.replace('in 16-bit', 'in 16 bits')}"


def best_runs(data: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest judged 16-bit kernel of each GPU, from the largest share of the peak to the smallest."""
    rows = data[data["judged"] & data["group"].isin(_LEADING)]
    best = rows.loc[rows.groupby("gpu", sort=False)["measured_tflop_per_s"].idxmax()]
    share = best["measured_tflop_per_s"] / best["peak_tflop_per_s"]
    return best.loc[share.sort_values(ascending=False, kind="stable").index]


def groups_of(data: pd.DataFrame) -> list[str]:
    """Return the groups of judged kernels, in the order of the table."""
    return sorted(data.loc[data["judged"], "group"].unique(), key=lambda group: _ORDER.get(group, len(_ORDER)))
