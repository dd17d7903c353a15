"""Errors of predicted times per output token, by class of runs."""

import pandas as pd

from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.studies.serving_time import gain
from gpuledger.studies.serving_time.parallelism import WORKLOAD, averages
from gpuledger.studies.serving_time.runs import APART, TOGETHER

#: Columns that make a class.
CLASS = ("engine", "model", "precision")


def short_name(model: str) -> str:
    """Return a model's name without its organisation and what its checkpoint's name says of the precision."""
    name = model.rpartition("/")[2]
    for ending in ("-NVFP4", "-FP8", "-Instruct"):
        name = name.removesuffix(ending)
    return name


def error_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of every class of runs, those of all engines, and of all runs, each mode by itself.

    Returns
    -------
    DataFrame
        ``mode, engine, model, precision`` (all: of all), ``runs``; of kernels alone, ``median_unfitted_percent``,
        ``mape_unfitted_percent`` and ``bias_unfitted_percent`` (the signed median); given the measured time to the
        first token, ``median_given_ttft_percent``; of the held-back half,
        ``held_back_runs, median_unfitted_held_back_percent`` and, with the engine's term, ``median_percent,
        mape_percent``.
    """
    groups = {}
    for mode in (TOGETHER, APART):
        if len(own := data[data["mode"] == mode]):
            groups[mode, "all", "all", "all"] = own
            groups |= {(mode, engine, "all", "all"): part for engine, part in own.groupby("engine")}
            groups |= {(mode, *names): part for names, part in own.groupby(list(CLASS))}
    rows = []
    for names, part in groups.items():
        alone = errors_percent(part["kernels_s"], part["measured_s"])
        back = part[part["held_back"]]
        fitted = errors_percent(back["predicted_s"], back["measured_s"]).abs()
        given = errors_percent(part["given_ttft_s"], part["measured_s"])
        rows.append(
            {
                **dict(zip(("mode", *CLASS), names, strict=True)),
                "runs": len(part),
                "median_unfitted_percent": alone.abs().median(),
                "mape_unfitted_percent": alone.abs().mean(),
                "bias_unfitted_percent": alone.median(),
                "median_given_ttft_percent": given.abs().median(),
                "held_back_runs": len(back),
                "median_unfitted_held_back_percent": alone[part["held_back"]].abs().median(),
                "median_percent": fitted.median(),
                "mape_percent": fitted.mean(),
            }
        )
    return pd.DataFrame(rows)


def choice_table(decided: pd.DataFrame) -> pd.DataFrame:
    """Return what each chooser attains, of all, of every GPU, and of every model, precision and engine on it.

    Parameters
    ----------
    decided : DataFrame
        Of :func:`gpuledger.studies.serving_time.parallelism.choices`.

    Returns
    -------
    DataFrame
        ``gpu, model, precision, engine`` (all: of all), ``workloads, objectives`` and, in percent, the columns of
        :func:`gpuledger.studies.serving_time.parallelism.averages`.
    """
    names = ["gpu", "model", "precision", "engine"]
    groups = {("all",) * 4: decided} | {(gpu, *("all",) * 3): part for gpu, part in decided.groupby("gpu")}
    groups |= dict(iter(decided.groupby(names)))
    rows = [
        dict(zip(names, keys, strict=True))
        | {"workloads": part.groupby(WORKLOAD).ngroups, "objectives": len(part)}
        | averages(part)
        for keys, part in groups.items()
    ]
    return pd.DataFrame(rows)


def gain_table(found: pd.DataFrame) -> pd.DataFrame:
    """Return what disaggregation gains in each workload, for people.

    Parameters
    ----------
    found : DataFrame
        Of :func:`gpuledger.studies.serving_time.gain.gains`.

    Returns
    -------
    DataFrame
        `gpuledger.studies.serving_time.gain.WORKLOAD`, ``objectives``, the medians ``measured`` and ``predicted``, and
        for how many percent of the objectives both say the same way.
    """
    groups = found.assign(agreed=100.0 * gain.agreed(found)).groupby(gain.WORKLOAD)
    table = groups[["measured", "predicted"]].median().round(2).assign(objectives=groups.size())
    table["same way (%)"] = groups["agreed"].mean().round()
    names = {"measured": "measured gain (median)", "predicted": "predicted gain (median)"}
    return table.rename(columns=names).reset_index().rename(columns=lambda name: name.replace("_", " "))
