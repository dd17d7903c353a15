"""Predictions for measured kernels: the model with fitted and with foreign constants, and the baselines to beat."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from gpuledger.models.time_model import Constants, constants_of, fit_constants, gemm_plan, gemm_time_s, held_back
from gpuledger.models.time_model.gemms import cublas
from gpuledger.models.time_model.gemms.dispatch import ANY, dispatch_of
from gpuledger.models.time_model.operators import OperatorConstants, fit_operator_constants, operator_times
from gpuledger.readers.gpus import Gpu, roofline_time_s
from gpuledger.readers.tabular import by_value
from gpuledger.studies.kernel_time.benchmark_loops import copies_in_turn, shown
from gpuledger.studies.kernel_time.measurements import ELEMENT_BYTES, WEIGHT_BYTES

#: The derate baseline: shares of the peak and of the bandwidth, and a launch (s).
DERATE = (0.8, 0.8, 3e-6)
#: A GEMM from here on counts as large.
LARGE_FLOP = 1e10
#: Fewer held-in shapes than this are not fitted to.
LEAST_SHAPES = 20
#: A fit to a table uses at most about so many: more change no constant's third digit by much.
FIT_SHAPES = 2000
#: Digits of a predicted time: what holds on every machine.
DIGITS = 6

#: Units of the constants of a GEMM.
GEMM_UNITS: Mapping[str, str] = {
    "launch_s": "s",
    "dram_share": "1",
    "tensor_share": "1",
    "l2_bytes_per_clock": "byte/cycle",
    "step_s": "s",
    "conversion_bytes": "byte",
    "conversion_row_s": "s",
    "split_s": "s",
    "result_factor": "1",
    "throttled": "1",
    "host_s": "s",
    "first_s": "s",
}


def baselines(gpu: Gpu, frame: pd.DataFrame) -> pd.DataFrame:
    """Add FLOP, bytes and the two baselines to measured kernels.

    Parameters
    ----------
    frame : DataFrame
        ``group, precision, m, n, k``; with ``read_bytes`` and ``write_bytes`` also elementwise kernels (``law``).

    Returns
    -------
    DataFrame
        With ``flop`` (2·m·n·k of a GEMM, else 0), ``bytes`` (each tensor once), ``roofline_s`` (the larger of FLOP /
        peak and bytes / bandwidth) and ``derate_s`` (the same at `DERATE` shares, and a launch).
    """
    gemm = frame["law"] == "gemm" if "law" in frame else pd.Series(True, frame.index)
    m, n, k = (frame[name].to_numpy(dtype=float) for name in ("m", "n", "k"))
    flop = np.where(gemm, 2 * m * n * k, 0.0)
    if "read_bytes" in frame:
        moved = frame["read_bytes"].to_numpy(dtype=float) + frame["write_bytes"].to_numpy(dtype=float)
    else:
        operand, result = (by_value(frame["precision"], {p: b[i] for p, b in ELEMENT_BYTES.items()}) for i in (0, 1))
        moved = operand.to_numpy() * m * k + weight_bytes(frame) + result.to_numpy() * m * n
    roofline, derate = np.empty(len(frame)), np.empty(len(frame))
    peak_share, dram_share, launch_s = DERATE
    for precision in frame["precision"].unique():
        rows = (frame["precision"] == precision).to_numpy()
        name = "fp8" if precision == "fp8_block" else precision
        roofline[rows] = roofline_time_s(gpu, flop[rows], moved[rows], name)
        derate[rows] = roofline_time_s(gpu, flop[rows] / peak_share, moved[rows] / dram_share, name) + launch_s
    return frame.assign(flop=flop, bytes=moved, roofline_s=rounded(roofline), derate_s=rounded(derate))


def weight_bytes(frame: pd.DataFrame) -> np.ndarray:
    """Return the bytes of the weights of GEMMs, from ``group, precision, n, k``."""
    operands = {name: operand for name, (operand, _) in ELEMENT_BYTES.items()}
    stored = by_value(frame["group"], WEIGHT_BYTES).fillna(by_value(frame["precision"], operands))
    return stored.to_numpy(dtype=float) * frame["n"].to_numpy() * frame["k"].to_numpy()


def hold_back(frame: pd.DataFrame, sizes: Sequence[str] = ("m", "n", "k")) -> np.ndarray:
    """Return which kernels are held back: about every second shape, by its hash; `sizes` are a shape's columns."""
    return held_back(*(frame[name].to_numpy().astype(np.int64) for name in sizes))


def gemm_constants(gpu: Gpu, frame: pd.DataFrame, precision: str) -> tuple[Constants, bool]:
    """Constants of a GPU for GEMMs, and whether they were fitted.

    Parameters
    ----------
    frame : DataFrame
        ``group, framework, kernel, precision, m, n, k, measured_s`` of the held-in half of one kernel's rows; too few
        are not fitted to.
    """
    dispatch = dispatch_of(gpu, str(frame["kernel"].iloc[0]), precision) if len(frame) else ANY
    if len(frame) < LEAST_SHAPES:
        known = constants_of if dispatch != ANY else older_constants
        return known(gpu, precision), False
    frame = frame.iloc[:: max(1, len(frame) // FIT_SHAPES)]
    sizes = (frame[name].to_numpy() for name in ("m", "n", "k", "measured_s"))
    options = {"dispatch": dispatch, "shown": _benchmark(gpu, frame)} | _operands(gpu, frame)
    return fit_constants(gpu, *sizes, precision, **options), True


def predict_gemms(gpu: Gpu, constants: Constants, frame: pd.DataFrame, precision: str) -> pd.DataFrame:
    """Return ``predicted_s`` and ``bound`` of GEMMs, in the frame's order and with its index."""
    plan = gemm_plan(gpu, constants, *_sizes(frame), 1, precision, **_operands(gpu, frame))
    time_s = _benchmark(gpu, frame)(plan["time_s"].to_numpy())
    return pd.DataFrame({"predicted_s": rounded(time_s), "bound": plan["bound"].to_numpy()}, index=frame.index)


def gemm_times_s(gpu: Gpu, constants: Constants, frame: pd.DataFrame, precision: str) -> np.ndarray:
    """Return the ``predicted_s`` of :func:`predict_gemms` alone, in half its time."""
    time_s = gemm_time_s(gpu, constants, *_sizes(frame), 1, precision, **_operands(gpu, frame))
    return rounded(_benchmark(gpu, frame)(time_s))


def _sizes(frame: pd.DataFrame) -> list[np.ndarray]:
    return [frame[name].to_numpy() for name in ("m", "n", "k")]


def _framework(frame: pd.DataFrame) -> str:
    return str(frame["framework"].iloc[0]) if "framework" in frame and len(frame) else ""


def _benchmark(gpu: Gpu, frame: pd.DataFrame) -> Callable[[np.ndarray], np.ndarray]:
    """Return what turns times into those that the benchmark of these kernels shows; a fit asks it hundreds of times."""
    return partial(shown, gpu, _framework(frame), frame["group"].to_numpy(), weight_bytes(frame))


def _operands(gpu: Gpu, frame: pd.DataFrame) -> dict:
    """Return where the operands of one kernel's GEMMs come from, as arguments of the model."""
    weights = weight_bytes(frame)
    copies, own = copies_in_turn(_framework(frame), frame["group"].to_numpy(), weights, gpu.l2_bytes)
    return {"weight_bytes": weights, "weights_in_turn": copies, "own_activations": own}


def older_constants(gpu: Gpu, precision: str) -> Constants:
    """Return a GPU's constants for GEMMs of a library of unknown version, which may choose any tile."""
    constants = constants_of(gpu, precision)
    return dataclasses.replace(constants, dispatch=ANY) if constants.dispatch == cublas.NAME else constants


def fit_tensor_share(gpu: Gpu, frame: pd.DataFrame, precision: str) -> tuple[Constants, bool]:
    """Fit only the share of the peak that the matrix units sustain; all else is as it comes with the checkout.

    Returns the constants, and whether there were enough rows to fit the share to.

    What a GPU sustains depends on its power limit, its cooling and the values that it multiplies; the rest does not.

    Parameters
    ----------
    frame : DataFrame
        ``m, n, k, measured_s`` of the held-in half.
    """
    constants = older_constants(gpu, precision)
    if len(frame) < LEAST_SHAPES:
        return constants, False
    sizes = [frame[name].to_numpy() for name in ("m", "n", "k")]
    measured = np.log(frame["measured_s"].to_numpy())

    def error(share: float) -> float:
        candidate = dataclasses.replace(constants, tensor_share=share)
        return float(np.abs(np.log(gemm_time_s(gpu, candidate, *sizes, 1, precision)) - measured).mean())

    # Two digits are what the data tell; a sum that differs in its last bits chooses the same one.
    share = min((round(error(share / 100), 9), share / 100) for share in range(30, 101))[1]
    return dataclasses.replace(constants, tensor_share=share, source=f"tensor_share fitted; {constants.source}"), True


def predict_operators(gpu: Gpu, constants: OperatorConstants, frame: pd.DataFrame) -> pd.DataFrame:
    """Return ``predicted_s`` and ``bound`` of elementwise kernels, in the frame's order and with its index."""
    sizes = (frame[name].to_numpy() for name in ("law", "m", "n", "read_bytes", "write_bytes"))
    times = operator_times(gpu, constants, *sizes)
    bounds = np.array(["launch", "dram", "l2", "issue", "latency"])
    terms = times[["launch_s", "dram_s", "l2_s", "issue_s", "chain_s"]].to_numpy()
    return pd.DataFrame(
        {"predicted_s": rounded(times["time_s"]), "bound": bounds[terms.argmax(axis=1)]}, index=frame.index
    )


def operator_constants(gpu: Gpu, frame: pd.DataFrame) -> tuple[OperatorConstants, bool]:
    """Constants of a GPU for elementwise kernels, and whether they were fitted; as :func:`gemm_constants`."""
    if len(frame) < LEAST_SHAPES:
        return OperatorConstants(), False
    names = {"operator": "law", "rows": "m", "columns": "n", "time_s": "measured_s"}
    same = {name: frame[name] for name in ("read_bytes", "write_bytes")}
    measured = pd.DataFrame({name: frame[column] for name, column in names.items()} | same)
    return fit_operator_constants(gpu, measured), True


def call_s(measured_s: pd.Series, work_s: pd.Series) -> float:
    """Return the time of an empty call (s), to four digits: what a kernel's work leaves of the measured time.

    It is the median of the rests, weighted by their inverse variance: a prediction's error grows with its time.
    """
    rest = (measured_s - work_s).to_numpy()
    if not len(rest):
        return 0.0
    order = np.argsort(rest, kind="stable")
    weights = np.cumsum(1 / measured_s.to_numpy()[order] ** 2)
    middle = rest[order][np.searchsorted(weights, weights[-1] / 2)]
    return float(f"{max(middle, 0.0):.4g}")


def constants_in_words(values: Mapping[str, float], units: Mapping[str, str]) -> str:
    """Put constants in words: ``launch 2.75 µs, DRAM share 0.74, …``."""
    words = []
    for name, value in values.items():
        unit = units[name]
        stem = name.removesuffix("_s").replace("_", " ").replace("dram", "DRAM").replace("l2", "L2")
        if unit == "s":
            words.append(f"{stem} {value * 1e6:.4g} µs")
        else:
            stem = stem.removesuffix(" per clock").removesuffix(" per cycle")
            words.append(f"{stem} {value:.4g}{'' if unit == '1' else f' {unit}'}")
    return ", ".join(words)


def rounded(values: np.ndarray | pd.Series) -> np.ndarray:
    """Round to `DIGITS` significant digits."""
    values = np.asarray(values, dtype=float)
    magnitude = np.abs(np.where(np.isfinite(values) & (values != 0), values, 1.0))
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(magnitude)))
    return np.round(values * scale) / scale
