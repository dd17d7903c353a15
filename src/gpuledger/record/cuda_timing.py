"""Timing of launches: CUDA events around batches, with a cold or warm L2 cache; median and spread.

>>> from gpuledger.record import cuda, cuda_timing
>>> copy = cuda.load_module("ceilings.cu", device).kernel("copy_4")  # doctest: +SKIP
>>> warm = cuda_timing.time_in_turn([lambda: copy.launch(132, 512, source, target, count)])  # doctest: +SKIP
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from gpuledger.record import cuda
from gpuledger.record.driver import driver

#: Maximum number of launches in one graph; instantiating larger ones takes longer than running them.
MOST_LAUNCHES = 4096

Launch = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Time per launch (ns): median and spread over samples, each of which is the mean of a batch."""

    #: Percentiles of the samples.
    median_ns: float
    p5_ns: float
    p95_ns: float
    samples: int
    launches: int  # launches in all samples together

    @classmethod
    def of(cls, batches_ns: Sequence[float], launches: int) -> Self:
        """Summarise the times (ns) of batches of `launches` launches each."""
        low, median, high = np.percentile(np.asarray(batches_ns, float) / launches, [5, 50, 95]).tolist()
        return cls(median, low, high, len(batches_ns), launches * len(batches_ns))


def rotation(footprint_bytes: int, l2_bytes: int) -> int:
    """Number of buffer sets to cycle through so that each launch finds a cold L2.

    Between two uses of a set, the others move more than twice the size of the L2.

    Parameters
    ----------
    footprint_bytes : int
        Bytes that one launch reads and writes.

    Returns
    -------
    int
        At least 2.

    Raises
    ------
    ValueError
        More than :data:`MOST_LAUNCHES` sets would be needed.
    """
    sets = 1 + max(1, math.ceil((2 * l2_bytes + 1) / footprint_bytes))
    if sets > MOST_LAUNCHES:
        raise ValueError(f"buffers of {footprint_bytes} bytes are too small to flush an L2 of {l2_bytes} bytes")
    return sets


Capture = Callable[[Sequence[Launch], int], Launch]


class Graph:
    """Launches captured on a stream; calling it replays them there."""

    def __init__(self, executable: int, stream: int):
        self._driver, self._executable, self._stream = driver(), executable, stream

    def __call__(self) -> None:
        self._driver.run_graph(self._executable, self._stream)

    def __del__(self):
        self._driver.free_graph(self._executable)


def capture_graph(launches: Sequence[Launch], stream: int) -> Launch:
    """Capture launches on a stream into a CUDA graph; return what replays it.

    A graph hides the host's launch time, which often exceeds the time of a small kernel.
    """
    with cuda.on_stream(stream):
        driver().begin_capture(stream)
        try:
            for launch in launches:
                launch()
        finally:
            executable = driver().end_capture(stream)
    return Graph(executable, stream)


def time_in_turn(
    launches: Sequence[Launch],
    *,
    samples: int = 30,
    batch_ms: float = 1.0,
    warm_up_ms: float = 20.0,
    capture: Capture = capture_graph,
) -> Timing:
    """Time back-to-back launches with events around batches of them.

    A single launch in the list finds its data in L2 as far as they fit (warm). With :func:`rotation` launches, each on
    its own buffers, every launch finds its data evicted (cold) and pays for writing back its predecessors' results.
    The time of a launch is what it adds to the batch; an empty kernel timed in the same way gives the launch floor.

    Parameters
    ----------
    launches : sequence of callables
        Each enqueues the same work on the current stream, on its own buffers, without allocating.
    batch_ms : float
        A batch repeats the round of launches for about this long.
    warm_up_ms : float
        Warm-up time, so that the clocks have settled.
    capture : callable
        From launches and a stream to a function that replays them; see :func:`capture_graph`.
    """
    with cuda.named_errors("timing", "run it alone on the GPU"):
        stream = driver().stream()  # the default stream cannot be captured
        try:
            driver().synchronize()
            rounds, enough = 0, 1
            # Short graphs follow each other only as fast as the host launches them, so longer ones are measured again.
            while enough > 1.2 * rounds:
                rounds = enough
                replay = capture([*launches] * rounds, stream)
                _batches_ns(stream, replay, 2)
                took_ns = max(float(np.median(_batches_ns(stream, replay, 5))), 1.0)
                enough = min(math.ceil(rounds * batch_ms * 1e6 / took_ns), MOST_LAUNCHES // len(launches))
            warm_up = max(1, min(200, math.ceil(warm_up_ms * 1e6 / took_ns)))
            batches = _batches_ns(stream, replay, samples, warm_up)
        finally:
            driver().free_stream(stream)
    return Timing.of(batches, rounds * len(launches))


def _batches_ns(stream: int, replay: Launch, samples: int, warm_up: int = 1) -> list[float]:
    """Time consecutive replays (ns). The host runs ahead, so that only the first could wait for it."""
    api = driver()
    events = [api.event() for _ in range(samples + 1)]
    for _ in range(warm_up):
        replay()
    api.record(events[0], stream)
    for event in events[1:]:
        replay()
        api.record(event, stream)
    api.wait_for_stream(stream)
    times = [1e6 * api.elapsed_ms(*pair) for pair in pairwise(events)]
    for event in events:
        api.free_event(event)
    return times
