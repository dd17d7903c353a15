"""How long launches take: CUDA events around batches, with the L2 cache cold or warm, medians and spread.

>>> from gpuledger.record import cuda, cuda_timing
>>> copy = cuda.load_module("ceilings.cu", device).kernel("copy_float4")  # doctest: +SKIP
>>> warm = cuda_timing.time_in_turn([lambda: copy.launch(132, 512, target, source, count)])  # doctest: +SKIP
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from gpuledger.record.cuda import cupy, named_errors

#: Most launches in one graph: beyond it, instantiation takes longer than what it measures.
MOST_LAUNCHES = 4096

Launch = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Time of one launch (ns): median and spread over samples, each the mean of a batch of launches.

    Attributes
    ----------
    median_ns, p5_ns, p95_ns : float
        Over the samples.
    samples : int
    launches : int
        In all samples together.
    """

    median_ns: float
    p5_ns: float
    p95_ns: float
    samples: int
    launches: int

    @classmethod
    def of(cls, batches_ns: Sequence[float], launches: int) -> Timing:
        """Summarise batches of `launches` launches each, given the time of each batch (ns)."""
        low, median, high = np.percentile(np.asarray(batches_ns, float) / launches, [5, 50, 95]).tolist()
        return cls(median, low, high, len(batches_ns), launches * len(batches_ns))


def rotation(footprint_bytes: int, l2_bytes: int) -> int:
    """How many sets of buffers to use in turn so that each is met cold.

    Between two uses of a set, the others bring in more than twice the L2.

    Parameters
    ----------
    footprint_bytes : int
        What one launch reads and writes.
    l2_bytes : int

    Returns
    -------
    int
        At least 2.

    Raises
    ------
    ValueError
        When it would take more than :data:`MOST_LAUNCHES`.
    """
    sets = 1 + max(1, math.ceil((2 * l2_bytes + 1) / footprint_bytes))
    if sets > MOST_LAUNCHES:
        raise ValueError(f"{footprint_bytes} bytes are too few to empty an L2 of {l2_bytes} bytes in turn")
    return sets


Capture = Callable[[Sequence[Launch], Any], Launch]


def capture_graph(launches: Sequence[Launch], stream: Any) -> Launch:
    """Capture launches on a CuPy stream into a CUDA graph; return what replays it on that stream.

    In a graph the host's time to launch, often longer than a small kernel, does not show.
    """
    with stream:
        stream.begin_capture()
        try:
            for launch in launches:
                launch()
        finally:
            graph = stream.end_capture()
    return lambda: graph.launch(stream)


def time_in_turn(
    launches: Sequence[Launch],
    *,
    samples: int = 30,
    batch_ms: float = 1.0,
    warm_up_ms: float = 20.0,
    capture: Capture = capture_graph,
) -> Timing:
    """Time launches that follow one another without a pause, by events around batches of them.

    With one launch in the list its data stay in L2 as far as they fit (warm); with :func:`rotation` many, each on
    buffers of its own, each finds its data gone (cold), and pays for writing back what its forerunners left. The time
    of a launch is what it adds to the batch: an empty kernel timed likewise gives the launch floor.

    Parameters
    ----------
    launches : sequence of callables
        Each enqueues the same work on CuPy's current stream, on buffers of its own. Nothing may be allocated.
    samples : int
        Batches that are timed.
    batch_ms : float
        A batch repeats the round of launches until it takes so long.
    warm_up_ms : float
        Run before, so that clocks have risen.
    capture : callable
        From launches and a CuPy stream to what replays them; see :func:`capture_graph`.

    Raises
    ------
    InputError
        Whatever CUDA reports; out of memory.
    """
    cuda = cupy().cuda
    with named_errors("timing", "run it alone on the GPU"):
        stream = cuda.Stream(non_blocking=True)
        cuda.runtime.deviceSynchronize()
        replay = capture(launches, stream)
        _batches_ns(cuda, stream, replay, 2)
        round_ns = max(float(np.median(_batches_ns(cuda, stream, replay, 5))), 1.0)
        rounds = math.ceil(batch_ms * 1e6 / round_ns)
        rounds = max(1, min(rounds, MOST_LAUNCHES // len(launches)))
        if rounds > 1:
            replay = capture([*launches] * rounds, stream)
        warm_up = max(1, min(200, math.ceil(warm_up_ms * 1e6 / (rounds * round_ns))))
        batches = _batches_ns(cuda, stream, replay, samples, warm_up)
    return Timing.of(batches, rounds * len(launches))


def _batches_ns(cuda: ModuleType, stream: Any, replay: Launch, samples: int, warm_up: int = 1) -> list[float]:
    """Time replays that follow one another (ns). The host runs ahead: only the first could wait for it."""
    events = [cuda.Event() for _ in range(samples + 1)]
    for _ in range(warm_up):
        replay()
    events[0].record(stream)
    for event in events[1:]:
        replay()
        event.record(stream)
    stream.synchronize()
    return [1e6 * cuda.get_elapsed_time(*pair) for pair in pairwise(events)]
