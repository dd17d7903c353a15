"""Shapes of the figures over context and batch, and whether they fit into memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from gpuledger.studies.kernel_breakdown.case import Question
from gpuledger.studies.kernel_breakdown.prediction import BOUNDS
from gpuledger.studies.kernel_breakdown.tidy import settled

#: From a phase and shapes (``tokens, requests``) to kernels: ``shape, group, time_s`` (of all launches), ``bound``.
Model = Callable[[str, pd.DataFrame], pd.DataFrame]
#: Least context of the figures (tokens), and least input of the map, where prefill still waits for weights.
LEAST_CONTEXT, LEAST_INPUT = 256, 16
#: What a case decodes that does not say so.
USUAL = {"batch": 32, "context": 4096}


def stack_times(question: Question, model: Model, largest_context: int, largest_batch: int) -> pd.DataFrame:
    """Compute the groups' times along context and along batch, the other one being the case's.

    Returns
    -------
    DataFrame
        ``axis`` (``decode context``, ``decode batch``, ``prefill context``), ``tokens, requests, group, time_s, fits``.
    """
    found = []
    for axis, shapes in _lines(question, largest_context, largest_batch).items():
        rows = model(axis.split()[0], shapes)
        frame = rows.groupby(["shape", "group"])["time_s"].sum().reset_index()
        shapes = shapes.assign(fits=_fits(question, shapes))
        found.append(frame.join(shapes, on="shape").drop(columns="shape").assign(axis=axis))
    return settled(pd.concat(found, ignore_index=True))


def map_bounds(question: Question, model: Model, largest_context: int, largest_batch: int) -> pd.DataFrame:
    """Compute which part of the time each bound takes, of prefill and decode over context and batch.

    Returns
    -------
    DataFrame
        ``phase, tokens, requests, time_s, compute_percent, dram_percent, …`` (`BOUNDS`), ``fits``.
    """
    found = []
    for phase, shapes in _maps(question, largest_context, largest_batch).items():
        rows = model(phase, shapes)
        shape, time, bound = (rows[name].to_numpy() for name in ("shape", "time_s", "bound"))
        whole = np.bincount(shape, time, len(shapes))
        shares = {
            f"{name}_percent": 100 * np.bincount(shape, time * (bound == name), len(shapes)) / whole for name in BOUNDS
        }
        found.append(shapes.assign(phase=phase, time_s=whole, **shares, fits=_fits(question, shapes)))
    return settled(pd.concat(found, ignore_index=True))


def _lines(question: Question, largest_context: int, largest_batch: int) -> dict[str, pd.DataFrame]:
    most = _most(question, largest_context)
    contexts, batches = _grid(min(LEAST_CONTEXT, most), most, 4), _grid(1, largest_batch, 4)
    given = question.phases.get("decode", USUAL)
    prompts = question.phases.get("prefill", {"batch": 1})["batch"]
    return {
        "decode context": pd.DataFrame({"tokens": contexts, "requests": given["batch"]}),
        "decode batch": pd.DataFrame({"tokens": min(given["context"], most), "requests": batches}),
        "prefill context": pd.DataFrame({"tokens": contexts, "requests": prompts}),
    }


def _maps(question: Question, largest_context: int, largest_batch: int) -> dict[str, pd.DataFrame]:
    most = _most(question, largest_context)
    found = {}
    for phase, least in (("prefill", LEAST_INPUT), ("decode", LEAST_CONTEXT)):
        tokens, requests = np.meshgrid(_grid(min(least, most), most, 2), _grid(1, largest_batch, 2), indexing="ij")
        found[phase] = pd.DataFrame({"tokens": tokens.ravel(), "requests": requests.ravel()})
    return found


def _fits(question: Question, shapes: pd.DataFrame) -> np.ndarray:
    """Whether weights and cache of each shape fit into the DRAM of all devices; where it is not known, they do."""
    model, precision = question.model, question.precision
    cache = model.kv_bytes(shapes["tokens"].to_numpy(), precision) * shapes["requests"].to_numpy()
    needed = model.weight_bytes(precision) + cache
    return ~(needed > question.gpus[0].dram_bytes * question.parallel.devices)


def _most(question: Question, largest_context: int) -> int:
    return min(largest_context, question.model.max_positions or largest_context)


def _grid(least: int, most: int, steps: int) -> np.ndarray:
    """Return whole numbers from least to most, so many to a factor of two, and both ends."""
    octaves = np.log2(most / least)
    return np.unique(np.rint(least * 2.0 ** np.arange(0, octaves + 1e-9, 1 / steps)).astype(np.int64))
