"""Times over context and batch, and whether each shape fits into memory."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from gpuledger.models.deployment.memory import fits
from gpuledger.models.time_model.step import BOUNDS
from gpuledger.studies.kernel_breakdown.parts import settle_frame
from gpuledger.studies.kernel_breakdown.scenario import Scenario

#: From a phase and shapes (``tokens, requests``) to kernels: ``shape, group, time_s`` (of all launches), ``bound``.
TimeShapes = Callable[[str, pd.DataFrame], pd.DataFrame]
#: Smallest context of the figures (tokens), and smallest input of the map, where prefill still waits for weights.
LEAST_CONTEXT, LEAST_INPUT = 256, 16
#: The decode step shown for a case without the phase ``decode``.
DEFAULT_DECODE = {"batch": 32, "context": 4096}


def stack_times(scenario: Scenario, time_shapes: TimeShapes, largest_context: int, largest_batch: int) -> pd.DataFrame:
    """Return the time of each group of kernels over context and over batch; the other one is the case's.

    Returns
    -------
    DataFrame
        ``axis`` (``decode context``, ``decode batch``, ``prefill context``), ``tokens, requests, group, time_s, fits``.
    """
    found = []
    for axis, shapes in _lines(scenario, largest_context, largest_batch).items():
        phase = axis.split()[0]
        rows = time_shapes(phase, shapes)
        frame = rows.groupby(["shape", "group"])["time_s"].sum().reset_index()
        shapes = shapes.assign(fits=_fits(scenario, phase, shapes))
        found.append(frame.join(shapes, on="shape").drop(columns="shape").assign(axis=axis))
    return settle_frame(pd.concat(found, ignore_index=True))


def map_bounds(scenario: Scenario, time_shapes: TimeShapes, largest_context: int, largest_batch: int) -> pd.DataFrame:
    """Return the share of the time that each bound takes in prefill and decode, over context and batch.

    Returns
    -------
    DataFrame
        ``phase, tokens, requests, time_s, compute_percent, dram_percent, …`` (`BOUNDS`), ``fits``.
    """
    found = []
    for phase, shapes in _maps(scenario, largest_context, largest_batch).items():
        rows = time_shapes(phase, shapes)
        shape, time, bound = (rows[name].to_numpy() for name in ("shape", "time_s", "bound"))
        whole = np.bincount(shape, time, len(shapes))
        shares = {
            f"{name}_percent": 100 * np.bincount(shape, time * (bound == name), len(shapes)) / whole for name in BOUNDS
        }
        found.append(shapes.assign(phase=phase, time_s=whole, **shares, fits=_fits(scenario, phase, shapes)))
    return settle_frame(pd.concat(found, ignore_index=True))


def throughput(scenario: Scenario, largest_batch: int) -> pd.DataFrame:
    """Return how fast decode steps of many batch sizes are on every GPU, for the requests and for the GPUs.

    Returns
    -------
    DataFrame
        ``hardware, tokens`` (in each request's cache), ``requests, time_s, user_tokens_per_s`` (of one request),
        ``gpu_tokens_per_s`` (per GPU), ``fits``.
    """
    given, parallel = scenario.phases.get("decode", DEFAULT_DECODE), scenario.parallel
    requests = _grid(1, largest_batch, 2)
    shapes = pd.DataFrame({"tokens": min(given["context"], _most(scenario, given["context"])), "requests": requests})
    work, each = scenario.shapes("decode", shapes["tokens"], requests), scenario.tokens_per_step
    needed = scenario.memory_bytes(work)["memory_bytes"].to_numpy()
    found = []
    for gpu in scenario.gpus:
        times = scenario.predict([work], gpu)
        codes = times["shape"] * parallel.pipeline + times["stage"]
        stages = np.bincount(codes, times["time_s"] * times["count"], len(shapes) * parallel.pipeline)
        stages = stages.reshape(len(shapes), -1)
        # Stages that are all busy finish one batch after the other, each at the pace of the slowest.
        slowest = stages.max(axis=1)
        found.append(
            shapes.assign(
                hardware=gpu.name,
                time_s=stages.sum(axis=1),
                user_tokens_per_s=each / (parallel.pipeline * slowest),
                gpu_tokens_per_s=each * requests * parallel.replicas / slowest / parallel.devices,
                fits=fits(needed, gpu),
            )
        )
    return settle_frame(pd.concat(found, ignore_index=True))


def memory_over_context(scenario: Scenario, largest_context: int) -> pd.DataFrame:
    """Return what decode steps of the case's batch need on a GPU over context.

    Returns
    -------
    DataFrame
        ``tokens, requests, weight_bytes, cache_bytes, activation_bytes``.
    """
    most = _most(scenario, largest_context)
    shapes = pd.DataFrame({"tokens": _grid(min(LEAST_CONTEXT, most), most, 4)})
    shapes["requests"] = scenario.phases.get("decode", DEFAULT_DECODE)["batch"]
    needed = scenario.memory_bytes(scenario.shapes("decode", shapes["tokens"], shapes["requests"]))
    return settle_frame(shapes.join(needed[["weight_bytes", "cache_bytes", "activation_bytes"]]))


def _lines(scenario: Scenario, largest_context: int, largest_batch: int) -> dict[str, pd.DataFrame]:
    most = _most(scenario, largest_context)
    contexts, batches = _grid(min(LEAST_CONTEXT, most), most, 4), _grid(1, largest_batch, 4)
    given = scenario.phases.get("decode", DEFAULT_DECODE)
    prompts = scenario.phases.get("prefill", {"batch": 1})["batch"]
    return {
        "decode context": pd.DataFrame({"tokens": contexts, "requests": given["batch"]}),
        "decode batch": pd.DataFrame({"tokens": min(given["context"], most), "requests": batches}),
        "prefill context": pd.DataFrame({"tokens": contexts, "requests": prompts}),
    }


def _maps(scenario: Scenario, largest_context: int, largest_batch: int) -> dict[str, pd.DataFrame]:
    most = _most(scenario, largest_context)
    found = {}
    for phase, least in (("prefill", LEAST_INPUT), ("decode", LEAST_CONTEXT)):
        tokens, requests = np.meshgrid(_grid(min(least, most), most, 2), _grid(1, largest_batch, 2), indexing="ij")
        found[phase] = pd.DataFrame({"tokens": tokens.ravel(), "requests": requests.ravel()})
    return found


def _fits(scenario: Scenario, phase: str, shapes: pd.DataFrame) -> np.ndarray:
    work = scenario.shapes(phase, shapes["tokens"], shapes["requests"])
    needed = scenario.memory_bytes(work)["memory_bytes"].to_numpy()
    return fits(needed, scenario.gpus[0])


def _most(scenario: Scenario, largest_context: int) -> int:
    return min(largest_context, scenario.model.max_positions or largest_context)


def _grid(least: int, most: int, steps: int) -> np.ndarray:
    """Return integers from `least` to `most`, `steps` per octave."""
    octaves = np.log2(most / least)
    return np.unique(np.rint(least * 2.0 ** np.arange(0, octaves + 1e-9, 1 / steps)).astype(np.int64))
