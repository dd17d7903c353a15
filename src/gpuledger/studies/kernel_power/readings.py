"""Readings of a GPU's power sensor while a benchmark repeats a kernel, and which of them are the kernel's.

AIConfigurator's benchmarks (``collector/helper.py``, ``benchmark_with_power``) repeat a kernel for a second, or 3,000
times if that is less, read NVML's ``nvmlDeviceGetPowerUsage`` at the start and every 0.1 s, and keep the mean. Since
Ampere (GA100 excepted) that call returns the mean of the last second (NVML's reference). So most of a reading is what
ran before the kernel: of a run of a second, 45 % are the kernel's, of one of 0.3 s, 10 %. It is the kernel's power only
if what ran before drew the same: the layer with other tokens, which the benchmark measures in one go.
"""

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.models.power import FLOP_CONSTANTS
from gpuledger.models.time_model import held_back
from gpuledger.models.time_model.moe import DTYPES, element_bytes, load_table
from gpuledger.models.time_model.work import attention_work, expert_work
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.kernel_tables.engines import read_attention, read_moe
from gpuledger.readers.tabular import Column, by_value, numbers_of, read_csv

#: A benchmark's longest run (s), most launches, time between samples (s), and least launches.
RUN_S, LAUNCHES, SAMPLE_S, LEAST_LAUNCHES = 1.0, 3000, 0.1, 6
#: Runs of launches shorter than this (s) end after less time (s).
_SHORT_S, _SHORT_RUN_S = 1e-4, 0.3
#: Most samples of a mean whose digits tell their number.
_MOST_SAMPLES = 40
#: The sizes of a layer that stay the same while the benchmark goes through numbers of tokens.
LAYER = ["kernel", "precision", "hidden", "inter", "chosen", "experts", "shards", "ranks", "power"]
#: Of these, what layers are hashed by; in all types and kernels the same.
_SIZES = ("hidden", "inter", "chosen", "experts", "ranks")
_ATTENTION = ("requests", "tokens", "context", "heads", "head_dim", "cache_values", "window")
_EXPERTS = ("hidden", "inter", "gates", "rows", "active")
#: Columns of steady readings of kernels as users measure them.
_READINGS = (
    Column("kernel"),
    Column("precision", choices=tuple(FLOP_CONSTANTS)),
    Column("flop", "number", minimum=0, maximum=1e18),
    Column("bytes", "number", minimum=0, maximum=1e18),
    Column("time_us", "number", minimum=1e-3, maximum=1e10),
    Column("power_w", "number", minimum=1e-3, maximum=1e6),
    Column("clock_mhz", "number", optional=True, minimum=1, maximum=1e5),
    Column("sizes", optional=True),
    *(Column(name, "number", optional=True) for name in ("first_half_w", "second_half_w", "temperature_c", "order")),
    *(Column(name, "number", optional=True) for name in ("seconds", "waited_s")),
)


def read_steady(case: Case, gpu: Gpu, steady_percent: float) -> pd.DataFrame:
    """Read steady readings of kernels of any kind, which are steady because who measured them waited.

    A reading whose halves are given is steady if these differ by less than `steady_percent`.

    Returns
    -------
    DataFrame
        As :func:`read_readings` without ``run_s`` and ``samples``; the limit is the GPU's board power. Where the table
        has them, ``clock_mhz`` and ``sizes``.
    """
    frame = read_csv(case.path("readings"), _READINGS)
    work = [np.rint(frame[name]).astype(np.int64) for name in ("flop", "bytes")]
    steady = np.ones(len(frame), dtype=bool)
    if {"first_half_w", "second_half_w"} <= set(frame):
        steady = ~((frame["first_half_w"] / frame["second_half_w"] - 1).abs() >= steady_percent / 100)
    return frame.assign(
        kind="kernels",
        products=frame["precision"],
        layer=np.arange(len(frame)),
        measured_s=frame["time_us"] * 1e-6,
        limit_w=gpu.board_power_w,
        steady=steady,
        held_back=held_back(*work),
    )


def read_readings(case: Case, steady_percent: float) -> tuple[pd.DataFrame, int]:
    """Read every reading of a benchmark of experts, and tell which are steady.

    A reading is steady if it and the one before it in the same layer are of runs of a whole second, and it differs from
    that one and, if there is one, the next by less than `steady_percent`.

    Returns
    -------
    frame : DataFrame
        ``kind`` (experts, decode, prefill), ``kernel, precision, products, tokens, layer`` (of attention, where each
        shape is measured by itself, -1), ``measured_s, power_w, limit_w, flop, bytes, run_s`` (of the benchmark, as its
        protocol has it), ``samples, steady, held_back`` (a layer as a whole), and of experts their sizes.
    unread : int
        Rows without a reading.
    """
    unit = case.inputs["unit"]
    path = case.path("moe")
    frame, _ = read_moe(path, unit, powers=True)
    products = by_value(frame["precision"], {name: of[2] for name, of in DTYPES.items()})
    frame = pd.concat([frame.assign(kind="experts", products=products), load_table(frame)], axis=1)
    frame["flop"], frame["bytes"] = expert_work(numbers_of(frame, _EXPERTS), *element_bytes(frame["precision"]))
    frame["layer"] = frame.groupby(LAYER, dropna=False, sort=False).ngroup()
    exponent = np.rint(100 * frame["power"].fillna(0)).astype(np.int64)
    frame["held_back"] = held_back(*(frame[name] for name in _SIZES), exponent)
    parts = [frame]
    for place, name in enumerate(case.inputs.get("attention", ())):
        rows, _ = read_attention(case.present(name, f"attention[{place}]"), unit, powers=True)
        types = by_value(rows["value_bytes"], {2: "bf16", 1: "fp8"})
        rows = rows.assign(kind=rows["operator"], products=types, layer=-1, held_back=False)
        rows["flop"], rows["bytes"] = attention_work(numbers_of(rows, (*_ATTENTION, "value_bytes", "cache_bytes")))
        parts.append(rows)
    frame = pd.concat(parts, ignore_index=True)
    frame["run_s"] = run_s(frame["measured_s"].to_numpy())
    # Before rows without a reading are left out: they ran, too.
    frame["steady"] = _steady(frame, steady_percent / 100)
    read = frame["power_w"].notna()
    frame = frame[read].reset_index(drop=True)
    if frame[frame["kind"] == "experts"].empty:
        raise InputError(path, "column power", "no row has a reading", "measure with the power sensor")
    frame["samples"] = samples(frame["power_w"].to_numpy(), frame["run_s"].to_numpy())
    return frame, int((~read).sum())


def run_s(time_s: np.ndarray) -> np.ndarray:
    """Return how long a benchmark repeats launches that take so long (s), without what is lost between them."""
    most = np.where(time_s < _SHORT_S, _SHORT_RUN_S, RUN_S)
    return np.maximum(np.minimum(LAUNCHES * time_s, most), LEAST_LAUNCHES * time_s)


def digits_samples(power_w: np.ndarray) -> np.ndarray:
    """Return the least number of samples whose mean a reading can be: each is a whole number of milliwatts.

    Returns
    -------
    ndarray of int64, shape (readings,)
        The number of samples, or a divisor of it; 0: more than 40, or no mean of milliwatts.
    """
    milliwatts = 1000.0 * np.asarray(power_w, dtype=float)
    found = np.zeros(len(milliwatts), dtype=np.int64)
    for count in range(_MOST_SAMPLES, 0, -1):
        total = count * milliwatts
        found[np.abs(total - np.rint(total)) < 1e-4] = count
    return found


def samples(power_w: np.ndarray, duration_s: np.ndarray) -> np.ndarray:
    """Return how many samples a reading is the mean of: the multiple of what its digits say nearest to its run's.

    Returns
    -------
    ndarray of int64, shape (readings,)
    """
    usual = np.ceil(duration_s / SAMPLE_S - 1e-9)
    least = np.maximum(digits_samples(power_w), 1)
    return (least * np.maximum(np.rint(usual / least), 1)).astype(np.int64)


def kernels_share(count: np.ndarray) -> np.ndarray:
    """Return the share of a reading of so many samples that is the kernel's, if each is the mean of the last second."""
    count = np.asarray(count, dtype=float)
    own = np.minimum(count, RUN_S / SAMPLE_S + 1)
    # Samples at 0, 0.1, 0.2 … s hold as much of the kernel, those after a second nothing else.
    return (SAMPLE_S / RUN_S * own * (own - 1) / 2 + (count - own)) / count


def _steady(frame: pd.DataFrame, within: float) -> np.ndarray:
    groups = frame.groupby(frame["layer"])[["power_w", "run_s"]]
    steady = (frame["layer"] >= 0) & _whole(frame["run_s"])
    before, after = groups.shift(1), groups.shift(-1)
    steady &= _whole(before["run_s"])
    for other, needed in ((before, True), (after, False)):
        near = (frame["power_w"] / other["power_w"] - 1).abs() < within
        steady &= near if needed else near | other["power_w"].isna()
    return steady.to_numpy()


def _whole(duration_s: pd.Series) -> pd.Series:
    return duration_s >= RUN_S * (1 - 1e-9)
