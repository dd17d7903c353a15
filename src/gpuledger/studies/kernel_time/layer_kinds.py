"""Kinds of kernels beside attention: experts, collectives, linear attention and SSMs, and quantising."""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.models.time_model import collectives, moe, quantise, recurrent_law, triton_tiles, work
from gpuledger.models.time_model.collectives import CollectiveConstants
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.tabular import by_value, numbers_of
from gpuledger.studies.kernel_time.kind import FittedKernel, Kind

_MOE = (
    *("tokens", "chosen", "experts", "hidden", "inter", "gates", "own", "rows", "active", "arrived", "foreign"),
    *(f"tiles_{tile}" for tile in moe.TILES),
)


def _moe_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    peaks = {name: gpu.peak_flop_per_s(moe.DTYPES[name][2]) for name in rows["precision"].unique()}
    peak = by_value(rows["precision"], peaks).to_numpy(dtype=float)
    return *work.expert_work(numbers_of(rows, _MOE), *moe.element_bytes(rows["precision"])), peak


def _collective_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # The link in the place of DRAM.
    message, devices = numbers_of(rows, ("message_bytes", "devices")).values()
    sent = np.where(rows["precision"] == "all_reduce", 2, 1) * (devices - 1) / devices * message
    return np.zeros(len(rows)), sent, np.ones(len(rows))


_STATE = ("requests", "tokens", "key_heads", "key_dim", "heads", "value_dim")
_CHANNELS = ("requests", "tokens", "channels")
_UPDATED = (*_STATE, "decays", "read_state_bytes", "written_state_bytes")


def _recurrent_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    operator, peak = rows["operator"].iloc[0], np.full(len(rows), gpu.peak_flop_per_s("bf16"))
    if operator.startswith("convolution"):
        s = numbers_of(rows, (*_CHANNELS, "span"))
        flop = 2 * s["span"] * s["requests"] * s["tokens"] * s["channels"]
        return flop, recurrent_law.convolution_bytes(s), peak
    s = numbers_of(rows, _UPDATED)
    if operator == "chunked rule":
        state = 8 * s["requests"] * s["heads"] * s["key_dim"] * s["value_dim"]
        return recurrent_law.chunked_flop(s), recurrent_law.chunked_bytes(s) + state, peak
    flop = 6 * s["requests"] * s["tokens"] * s["heads"] * s["key_dim"] * s["value_dim"]
    return flop, recurrent_law.update_bytes(s), peak


_NEW_TOKENS = ("new_tokens", (0, 64, 1024, 2**14, 2**40))
_CONVOLUTION = Kind(
    "convolution",
    lambda gpu, rows: numbers_of(rows, (*_CHANNELS, "span")),
    lambda gpu, constants, shapes, _: recurrent_law.convolution_terms(gpu, constants, shapes),
    recurrent_law.CONVOLUTION_START,
    recurrent_law.CONVOLUTION_RANGES,
    {"pattern": recurrent_law.PATTERNS},
    _recurrent_work,
    _CHANNELS,
    _NEW_TOKENS,
)


_QUANTISE = ("tokens", "columns", "live_bytes", "second_reads")
_EXPERTS = ("tokens", "hidden", "inter", "chosen", "experts", "ranks")


def _quantise_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, columns = numbers_of(rows, _QUANTISE[:2]).values()
    return np.zeros(len(rows)), 3 * tokens * columns, np.ones(len(rows))


def _has_tiles(kernel: str, tiles: str) -> bool:
    """Whether a rule for tiles may be that of a kernel of experts, by its name."""
    if "marlin" in kernel or tiles == "marlin":
        return "marlin" in kernel and tiles in ("best", "marlin")
    if tiles in triton_tiles.RULES:
        sglang = kernel.startswith("sglang") == (tiles == triton_tiles.SGLANG)
        return sglang and bool(re.search(triton_tiles.KERNELS, kernel))
    return True


def _collective_starts(starts: list[CollectiveConstants], kernel: FittedKernel) -> list[CollectiveConstants]:
    return [begun for start in starts for begun in collectives.starts(start, kernel.name, kernel.least_s)]


#: By the operator of a row (collectives: any other).
LAYERS: Mapping[str, Kind] = {
    "moe": Kind(
        "moe",
        lambda gpu, rows: numbers_of(rows, _MOE),
        moe.moe_terms,
        moe.START,
        moe.RANGES,
        {"tiles": moe.RULES},
        _moe_work,
        _EXPERTS,
        ("tokens", (0, 64, 512, 4096, 2**20)),
        (*_EXPERTS, "power"),
        starts=lambda starts, kernel: [start for start in starts if _has_tiles(kernel.name, start.tiles)],
        started=lambda start, kernel, _: moe.started(start, kernel.name),
    ),
    "collective": Kind(
        "collective",
        lambda gpu, rows: numbers_of(rows, ("message_bytes", "devices")),
        lambda gpu, constants, shapes, name: collectives.collective_terms(gpu, constants, name, *shapes.values()),
        collectives.START,
        collectives.RANGES,
        {"pattern": ("ring", "one shot")},
        _collective_work,
        ("message_bytes", "devices"),
        ("message_bytes", (0, 2**14, 2**20, 2**26, 2**50)),
        starts=_collective_starts,
        started=lambda start, *_: (start, collectives.bounds_of(start)),
    ),
    "convolution": _CONVOLUTION,
    "convolution update": _CONVOLUTION,
    "chunked rule": Kind(
        "chunked_rule",
        lambda gpu, rows: numbers_of(rows, _STATE),
        lambda gpu, constants, shapes, _: recurrent_law.chunked_terms(gpu, constants, shapes),
        recurrent_law.CHUNKED_START,
        recurrent_law.CHUNKED_RANGES,
        {"resident": (1, 2, 4, 8)},
        _recurrent_work,
        _STATE,
        _NEW_TOKENS,
    ),
    "state update": Kind(
        "state_update",
        lambda gpu, rows: numbers_of(rows, _UPDATED),
        lambda gpu, constants, shapes, _: recurrent_law.update_terms(gpu, constants, shapes),
        recurrent_law.UPDATE_START,
        recurrent_law.UPDATE_RANGES,
        {},
        _recurrent_work,
        _STATE,
        _NEW_TOKENS,
        started=lambda start, _, shapes: recurrent_law.started(start, shapes["tokens"]),
    ),
    "quantise": Kind(
        "quantise",
        lambda gpu, rows: numbers_of(rows, _QUANTISE),
        lambda gpu, constants, shapes, _: quantise.quantise_terms(gpu, constants, shapes),
        quantise.START,
        quantise.RANGES,
        {},
        _quantise_work,
        ("tokens", "columns"),
        ("tokens", (0, 64, 512, 4096, 2**20)),
    ),
}
