"""From readings of a power sensor to the power that kernels draw."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, rounded
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets
from gpuledger.models.power import (
    AT_LIMIT,
    FLOP_CONSTANTS,
    FULL_CLOCK,
    LEAST_READINGS,
    PowerConstants,
    fit_power,
    power_w,
)
from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.models.time_model.constants.neighbours import Near, shared
from gpuledger.readers.gpus import Gpu, find_gpu, known_gpus
from gpuledger.studies.kernel_power.readings import kernels_share, read_readings, read_steady
from gpuledger.studies.kernel_power.sustained_products import add_sustained

#: Readings above this share of the limit are broken (the sensor lags behind what holds the power down).
_IMPLAUSIBLE = 1.5
#: Sizes by which a look-up finds the nearest measured layers, or other kernels, and how many it takes.
_LAYER, _WORK = ("tokens", "hidden", "inter", "chosen", "experts", "ranks", "rows"), ("flop", "bytes", "measured_s")
_NEIGHBOURS = 4


def reduce(case: Case, steady_percent: float = 3.0) -> CaseResult:
    """Tell which readings are the kernel's own, and fit what a GPU draws to half of those.

    Parameters
    ----------
    steady_percent : float
        By how much a reading may differ from the one before it in the same layer, or its halves from each other.

    Returns
    -------
    CaseResult
        Data: a row per reading; see :func:`gpuledger.studies.kernel_power.readings.read_readings`, and ``predicted_w``
        (not of attention), ``lookup_w`` (steady, held back only).
    """
    known = known_gpus(case.path("hardware") if "hardware" in case.inputs else None)
    gpu = find_gpu(case.inputs["gpu"], known, case.dataset.file, f"{case.place}.gpu")
    benchmark = "moe" in case.inputs
    frame, unread = read_readings(case, steady_percent) if benchmark else (read_steady(case, gpu, steady_percent), 0)
    file = case.path("moe" if benchmark else "readings")
    limit = _limit_w(file, frame, gpu)
    frame["flop_per_s"], frame["bytes_per_s"] = (frame[name] / frame["measured_s"] for name in ("flop", "bytes"))
    frame["clock_share"] = frame["clock_mhz"] * 1e6 / gpu.clock_hz if _has_clocks(frame) else np.nan
    frame["limited"] = (frame["power_w"] >= AT_LIMIT * limit) | (frame["clock_share"] < FULL_CLOCK)
    steady, back = frame["steady"], frame["held_back"]
    fitted, judged = frame[steady & ~back], frame[steady & back]
    columns = ("flop_per_s", "bytes_per_s", "products", "power_w")
    try:
        constants, others = (
            fit_power(*(half[name].to_numpy() for name in columns), limit, _clocks(half)) for half in (fitted, judged)
        )
    except ValueError:
        told = frame[steady & (frame["power_w"] < AT_LIMIT * limit) & (frame["bytes"] > 0)]
        problem = f"of {len(told)} steady readings below the limit of kernels that move bytes,"
        problem += f" {int(told['held_back'].sum())} are in the half to judge, by a hash of the work, and the others in"
        problem += f" the half to fit; each half needs {LEAST_READINGS} of one type of products"
        remedy = "measure layers with launches of 0.33 ms and longer, one number of tokens after the other"
        raise InputError(file, "", problem, remedy if benchmark else "measure more kernels") from None
    share = _clocks(frame)
    rates = (frame[name].to_numpy() for name in columns[:3])
    predicted_w = power_w(constants, *rates, 1.0 if share is None else share)
    frame["predicted_w"] = np.where(frame["layer"] >= 0, predicted_w, np.nan)
    frame["lookup_w"] = _look_up(fitted, judged, _LAYER if benchmark else _WORK).reindex(frame.index)
    frame, sums = add_sustained(frame, gpu, constants, others)
    computed = ["flop_per_s", "bytes_per_s", "predicted_w", "lookup_w"]
    computed += [name for name in ("nominal_s", "sustained_s") if name in frame]
    frame[computed] = rounded(frame[computed])
    result = CaseResult(_tidy(frame))
    result.add("gpu", gpu.title, "text")
    result.add("limit", limit, "W")
    result.add("dram_bandwidth", gpu.dram_bytes_per_s, "byte/s")
    result.add("readings", len(frame), "reading")
    if benchmark:
        result.add("experts_readings", int((frame["kind"] == "experts").sum()), "reading")
        result.add("rows_without_reading", unread, "row")
        result.add("one_sample_percent", 100 * (frame["samples"] == 1).mean(), "%")
        result.add("half_kernel_percent", 100 * (kernels_share(frame["samples"]) >= 0.5).mean(), "%")
    result.add("steady_readings", int(steady.sum()), "reading")
    result.add("at_limit_percent", 100 * frame[steady]["limited"].mean(), "%")
    for name, constant in FLOP_CONSTANTS.items():
        if np.isfinite(getattr(constants, constant)) and gpu.flops.get(name):
            result.add(f"{name}_peak", gpu.flops[name], "FLOP/s")
    _add_constants(result, constants)
    # What the other half would have said: how well each number is known.
    _add_constants(result, others, "_other_half")
    _add_errors(result, frame.loc[fitted.index], frame.loc[judged.index], limit)
    for name, (value, unit) in sums.items():
        result.add(name, value, unit)
    result.add("finding", _finding(result, "Experts" if benchmark else "Kernels"), "text")
    result.provenance = {
        "label": f"{case.label}; the law is fitted to half of it",
        "inputs": describe_data_sheets([gpu], case.dataset.folder),
    }
    return result


def _has_clocks(frame: pd.DataFrame) -> bool:
    return "clock_mhz" in frame and bool(frame["clock_mhz"].notna().all())


def _clocks(frame: pd.DataFrame) -> np.ndarray | None:
    """Return clocks over the full one, at most 1; None if they were not read."""
    return np.minimum(frame["clock_share"].to_numpy(), 1.0) if frame["clock_share"].notna().all() else None


def _limit_w(file: Path, frame: pd.DataFrame, gpu: Gpu) -> float:
    limits = frame["limit_w"].unique()
    if len(limits) > 1:
        problem = f"power limits from {limits.min():g} to {limits.max():g} W"
        raise InputError(file, "column power_limit", problem, "keep the rows of one limit")
    limit = float(limits[0])
    if not limit > 0:
        raise InputError(gpu.file, f"GPU {gpu.name}", "the board power is missing", "add board_power_w")
    if (most := frame["power_w"].max()) > _IMPLAUSIBLE * limit:
        raise InputError(file, "", f"a reading of {most:g} W is beyond a limit of {limit:g} W", "give watts")
    return limit


def _look_up(fitted: pd.DataFrame, judged: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Return the mean reading of the nearest shapes in the fitting half, of the same kernel and type."""
    found = pd.Series(np.nan, judged.index)
    for key, rows in judged.groupby(["kernel", "precision"]):
        others = fitted[(fitted["kernel"] == key[0]) & (fitted["precision"] == key[1])]
        if len(others) >= _NEIGHBOURS:
            sizes = [of[list(by)].to_numpy(dtype=float) for of in (others, rows)]
            found[rows.index] = shared(others["power_w"].to_numpy(), *Near(*sizes, _NEIGHBOURS).weigh(_NEIGHBOURS))
    return found


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    sizes = ["hidden", "inter", "chosen", "experts", "shards", "ranks"] if "hidden" in frame else []
    frame = frame.assign(**{name: frame[name].astype("Int64") for name in sizes})
    names = ["kind", "kernel", "precision", "products", "layer", *["tokens"] * len(sizes[:1]), *sizes]
    names += [name for name in ("sizes", "clock_mhz") if name in frame]
    names += ["flop", "bytes", "measured_s", "flop_per_s", "bytes_per_s", *["run_s", "samples"] * len(sizes[:1])]
    names += ["steady", "held_back", "limited", "power_w", "predicted_w", "lookup_w"]
    return frame[[*names, *(name for name in ("nominal_s", "sustained_s", "sustained_mhz") if name in frame)]]


def _add_constants(result: CaseResult, constants: PowerConstants, suffix: str = "") -> None:
    result.add(f"static{suffix}", constants.static_w, "W")
    for name, constant in FLOP_CONSTANTS.items():
        if np.isfinite(value := getattr(constants, constant)):
            result.add(f"{name}_flop{suffix}", value, "pJ/FLOP")
    result.add(f"dram_byte{suffix}", constants.dram_pj_per_byte, "pJ/byte")
    result.add(f"most{suffix}", constants.most_w, "W")
    if np.isfinite(constants.clock_exponent):
        result.add(f"clock_exponent{suffix}", constants.clock_exponent, "1")


def _add_errors(result: CaseResult, fitted: pd.DataFrame, judged: pd.DataFrame, limit: float) -> None:
    """Add the held-back errors of the law, of a look-up, of a constant and of the limit."""
    measured = judged["power_w"]
    result.add("held_back_readings", len(judged), "reading")
    result.add("held_back_layers", judged["layer"].nunique(), "layer")
    own, free = fitted["power_w"], ~judged["limited"]
    guesses = {
        "": judged["predicted_w"],
        "lookup_": judged["lookup_w"],
        "constant_": pd.Series(own.median(), judged.index),
        "limit_": pd.Series(limit, judged.index),
    }
    # Readings below the limit are judged against a constant of such readings, too.
    below = guesses | {"constant_": pd.Series(own[~fitted["limited"]].median(), judged.index)}
    for name, guess in guesses.items():
        error, error_below = (errors_percent(one, measured).abs() for one in (guess, below[name]))
        result.add(f"{name}median_error_percent", error.median(), "%")
        result.add(f"{name}mape_percent", error.mean(), "%")
        result.add(f"{name}median_error_below_limit_percent", error_below[free].median(), "%")


def _finding(result: CaseResult, kernels: str) -> str:
    flops = {name: result.get(f"{name}_flop") for name in FLOP_CONSTANTS}
    energies = [(f"{value:.2f}", name) for name, value in flops.items() if value]
    others = ", ".join(f"{value} in {name}" for value, name in energies[1:])
    law = [f"{result['static']:.0f} W"]
    law += [f"{value} pJ per FLOP in {name}" + f" ({others})" * bool(others) for value, name in energies[:1]]
    law.append(f"{result['dram_byte']:.0f} pJ per byte")
    names = ("", "constant_", "lookup_")
    own, constant, lookup = (result[f"{name}median_error_below_limit_percent"] for name in names)
    limit, below = f", at most {result['most']:.0f} W", " below that limit"
    if not result["at_limit_percent"]:
        limit = below = ""
    finding = f"{kernels} on {result['gpu']} draw {' + '.join(law)}{limit}"
    if slowed := result.get("slowed_products"):
        errors = (result[f"{name}_mape_slowed_percent"] for name in ("sustained", "nominal"))
        finding += f" (median error below the limit, held back: {own:.1f} %); at the clock that follows, the times of"
        finding += f" {slowed} of {result['products']} products that lose clock have a mean error of"
        return finding + " {:.1f} % instead of {:.1f} %".format(*errors)
    finding += f"; the median error of held-back readings{below} is {own:.1f} % (one power for all: {constant:.0f} %"
    return f"{finding}, look-up: {lookup:.1f} %)"
