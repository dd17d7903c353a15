"""How much power this GPU draws while it repeats a kernel, from NVML's energy counter; resumable kernel by kernel.

Each kernel runs back to back, as a CUDA graph, until the counter has advanced often enough; power is energy over time
between two advances. Products in bf16 and fp8, attention, and kernels that only move bytes. Values are random: a GPU
draws less for zeros.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from gpuledger.errors import InputError
from gpuledger.record.nvml import Nvml
from gpuledger.record.parts import Recorded
from gpuledger.record.profiled_launches import append_rows, torch_with_attention, whole_rows, why_refused

LOG = logging.getLogger("gpuledger")
TABLE = "kernel_power/readings.csv"
#: Sizes of products: rows of x, and (n, k): layers of Llama 3.1 8B, and small ones, which stay below the power limit.
ROWS = (1, 16, 64, 128, 256, 512, 1024, 4096)
LAYERS = ((6144, 4096), (28672, 4096), (4096, 14336), (2048, 2048), (1024, 1024), (1536, 3072))
#: Requests, tokens of each, heads of queries, of keys, and their dimensions; in prefill, and in the cache in decode.
PREFILLS = ((1, 4096, 32, 8, 128), (4, 2048, 32, 8, 128), (1, 16384, 32, 8, 128), (2, 8192, 16, 8, 256))
DECODES = ((16, 4096, 32, 8, 128), (64, 4096, 32, 8, 128), (128, 2048, 64, 8, 128), (32, 8192, 28, 4, 128))
#: Kernels that move bytes, of bf16: by name, values that each value of the tensor moves, and FLOP for it.
MOVES = {"copy": (2, 0), "fill": (1, 0), "sum": (1, 1), "add": (3, 1), "silu": (2, 4)}
#: Values of such tensors: on data-centre GPUs of today too many for L2.
VALUES = (2**28, 2**29, 2**30)
#: A reading is of the last `READ_S` (s) after `SETTLE_S` of the same kernel, as soon as its halves differ by less than
#: `STEADY`. At its power limit a GPU takes a second or two to find a clock; a reading waits `LONGEST_S` at most, in
#: which the counter must advance `FEWEST` times.
SETTLE_S, READ_S, LONGEST_S, STEADY, FEWEST = 0.3, 0.6, 3.0, 0.01, 5
#: A graph of launches takes about so long (s); so many are enqueued ahead of the host.
GRAPH_S, AHEAD = 0.03, 3
#: Operands are taken in turn from so many bytes, which no L2 holds.
ROTATED_BYTES = 2**29
COLUMNS = (
    *("kernel", "precision", "sizes", "flop", "bytes", "time_us", "power_w"),
    *("first_half_w", "second_half_w", "clock_mhz", "temperature_c", "seconds", "waited_s", "order"),
)
_NOTE = (
    "A row a kernel, in the order of the recording. sizes: m×n×k of a product; requests×tokens×heads×heads of keys×"
    "dimension of attention; else values of a tensor. flop, bytes: of a launch, each operand read once. time_us: of a "
    "launch with the pause after it, in a CUDA graph. power_w: NVML's energy counter between two of its advances, over "
    "`seconds`, after `waited_s` of the same kernel; where its halves differ, the GPU had found no steady clock. "
    "Random values."
)


class Reading(NamedTuple):
    """The energy counter when it has advanced."""

    at_s: float
    energy_mj: int
    clock_mhz: int
    temperature_c: int


class PowerKernel(NamedTuple):
    """A kernel to repeat."""

    kernel: str  # "gemm", "prefill", "decode" or one of `MOVES`
    precision: str
    sizes: tuple[int, ...]

    @property
    def label(self) -> tuple[str, str, str]:
        """Kernel, precision and sizes as the table has them."""
        return self.kernel, self.precision, "x".join(map(str, self.sizes))

    @property
    def work(self) -> tuple[int, int]:
        """FLOP and bytes of a launch, each operand read and each result written once."""
        if self.kernel == "gemm":
            m, n, k = self.sizes
            size = 1 if self.precision == "fp8" else 2
            return 2 * m * n * k, size * (m * k + n * k) + 2 * m * n
        if self.kernel in MOVES:
            moved, flop = MOVES[self.kernel]
            return flop * self.sizes[0], 2 * moved * self.sizes[0]
        requests, tokens, heads, kv_heads, dim = self.sizes
        queries, pairs = (tokens, tokens * (tokens + 1) // 2) if self.kernel == "prefill" else (1, tokens)
        return 4 * requests * heads * pairs * dim, 4 * requests * dim * (heads * queries + kv_heads * tokens)


def all_kernels() -> list[PowerKernel]:
    """Return what is measured, in an order that is random but always the same."""
    gemms = (
        PowerKernel("gemm", precision, (m, n, k)) for precision, m, (n, k) in product(("bf16", "fp8"), ROWS, LAYERS)
    )
    attention = [PowerKernel("prefill", "bf16", sizes) for sizes in PREFILLS]
    attention += [PowerKernel("decode", "bf16", sizes) for sizes in DECODES]
    moves = (PowerKernel(name, "bf16", (values,)) for name, values in product(MOVES, VALUES))
    found = [*gemms, *attention, *moves]
    random.Random(1).shuffle(found)
    return found


def record_power(folder: str | Path) -> Recorded:
    """Record all kernels; what a call before this one has recorded is kept."""
    torch = torch_with_attention()
    device = torch.cuda.get_device_name(0)
    if " MIG " in device:
        raise InputError("NVML", device, "an instance has no energy counter of its own", "record a whole GPU")
    bench = PowerBench(torch, Nvml(str(torch.cuda.get_device_properties(0).uuid)))
    path = Path(folder, TABLE)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = whole_rows(path)
    done = {(row["kernel"], row["precision"], row["sizes"]) for row in rows}
    types = ("bf16", "fp8") if torch.cuda.get_device_capability(0) >= (8, 9) else ("bf16",)
    kernels = [kernel for kernel in all_kernels() if kernel.precision in types]
    waiting = [kernel for kernel in kernels if kernel.label not in done]
    before = int(rows[-1]["order"]) + 1 if rows else 0
    refused = {}
    for at, kernel in enumerate(waiting):
        if at % 10 == 0:
            LOG.info("power: %d kernels left", len(waiting) - at)
        try:
            append_rows(path, COLUMNS, [bench.read(kernel) | {"order": before + at}])
        except RuntimeError as error:
            refused[" ".join(kernel.label)] = why_refused(error)
            torch.cuda.synchronize()  # fails if the process can no longer use the GPU
    if len(refused) == len(kernels):
        problem = "no kernel runs, such as {}: {}".format(*min(refused.items()))
        raise InputError("PyTorch", "power", problem, "use a GPU and a PyTorch that have these kernels")
    about = {"kernels": len(kernels), "refused": [f"{name}: {why}" for name, why in sorted(refused.items())]}
    return Recorded({"kernel_power": {"kernels": {"readings": TABLE, "gpu": device}}}, about, {TABLE: _NOTE})


class PowerBench:
    """Kernels of PyTorch, and the energy that the GPU takes while it repeats one."""

    def __init__(self, torch: Any, nvml: Nvml):
        self.torch, self._nvml = torch, nvml
        torch.manual_seed(0)

    def read(self, kernel: PowerKernel) -> dict[str, Any]:
        """Return a row of the table."""
        launches = self.launches(kernel)  # kept, because the graph reads their operands
        graph, count = self._graph(launches)
        start = perf_counter()
        window, ended = self._repeat(graph, start)
        timed = [event for at, event in ended if at >= window[0].at_s]
        if len(timed) < 2:
            raise RuntimeError("it takes too long")
        first, second = _halves(window)
        return {
            **dict(zip(("kernel", "precision", "sizes"), kernel.label, strict=True)),
            **dict(zip(("flop", "bytes"), kernel.work, strict=True)),
            "time_us": f"{1e3 * timed[0].elapsed_time(timed[-1]) / ((len(timed) - 1) * count):.4f}",
            "power_w": f"{_watts(window):.2f}",
            "first_half_w": f"{_watts(first):.2f}",
            "second_half_w": f"{_watts(second):.2f}",
            "clock_mhz": f"{sum(one.clock_mhz for one in window) / len(window):.0f}",
            "temperature_c": window[-1].temperature_c,
            "seconds": f"{window[-1].at_s - window[0].at_s:.3f}",
            "waited_s": f"{window[0].at_s - start:.3f}",
        }

    def _repeat(self, graph: Any, start: float) -> tuple[Sequence[Reading], list[tuple[float, Any]]]:
        """Replay a graph until readings are settled; return them, and when the host saw which replays' ends."""
        waiting: deque[Any] = deque()  # ends of replays that are enqueued
        ended: list[tuple[float, Any]] = []
        read: list[Reading] = []
        before = self._nvml.energy_mj()
        while not (window := settled(read, perf_counter() - start)):
            while waiting and waiting[0].query():
                ended.append((perf_counter(), waiting.popleft()))
            while len(waiting) < AHEAD:
                graph.replay()
                waiting.append(self._event())
            now, energy = perf_counter(), self._nvml.energy_mj()
            if energy != before and now - start > SETTLE_S:
                read.append(Reading(now, energy, self._nvml.clock_mhz(), self._nvml.temperature_c()))
            before = energy
        self.torch.cuda.synchronize()
        return window, ended

    def launches(self, kernel: PowerKernel) -> list[Callable[[], object]]:
        """Return launches of a kernel with different operands, more than L2 holds, to be called in turn."""
        copies = max(1, ROTATED_BYTES // kernel.work[1])
        make = self._gemm if kernel.kernel == "gemm" else self._move if kernel.kernel in MOVES else self._attention
        return [make(kernel) for _ in range(copies)]

    def _gemm(self, kernel: PowerKernel) -> Callable[[], object]:
        torch = self.torch
        m, n, k = kernel.sizes
        x, w, y = self._random(m, k), self._random(n, k), self._random(m, n)
        if kernel.precision == "bf16":
            return lambda: torch.mm(x, w.t(), out=y)
        x, w, one = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, out=y)

    def _attention(self, kernel: PowerKernel) -> Callable[[], object]:
        torch = self.torch
        requests, tokens, heads, kv_heads, dim = kernel.sizes
        causal = kernel.kernel == "prefill"
        query = self._random(requests, heads, tokens if causal else 1, dim)
        keys, values = (self._random(requests, kv_heads, tokens, dim) for _ in range(2))
        backend = torch.nn.attention.SDPBackend.CUDNN_ATTENTION

        def launch() -> object:
            with torch.nn.attention.sdpa_kernel([backend]):
                attend = torch.nn.functional.scaled_dot_product_attention
                return attend(query, keys, values, is_causal=causal, enable_gqa=heads != kv_heads)

        return launch

    def _move(self, kernel: PowerKernel) -> Callable[[], object]:
        torch = self.torch
        (count,) = kernel.sizes
        x = self._random(count)
        y, z = self._random(count), torch.empty_like(x)
        return {
            "copy": lambda: z.copy_(x),
            "fill": lambda: z.fill_(1.5),
            "sum": lambda: x.sum(),
            "add": lambda: torch.add(x, y, out=z),
            "silu": lambda: torch.ops.aten.silu.out(x, out=z),
        }[kernel.kernel]

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.bfloat16)

    def _event(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _graph(self, launches: Sequence[Callable[[], object]]) -> tuple[Any, int]:
        """Return a CUDA graph of launches that takes about `GRAPH_S`, and how many they are."""
        torch = self.torch
        with torch.no_grad():
            for launch in launches[:3]:  # libraries choose kernels and take their workspace
                launch()
            begin = self._event()
            for at in range(10):
                launches[at % len(launches)]()
            end = self._event()
        torch.cuda.synchronize()
        each_s = max(1e-3 * begin.elapsed_time(end) / 10, 1e-6)
        count = int(min(max(GRAPH_S / each_s, 1), 2000))
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            for at in range(count):
                launches[at % len(launches)]()
        return graph, count


def settled(read: Sequence[Reading], waited_s: float) -> Sequence[Reading]:
    """Return the latest advances, over `READ_S` and as soon as they are steady; none: go on.

    Raises
    ------
    InputError
        The counter does not advance.
    """
    late = waited_s > LONGEST_S
    if late and len(read) < FEWEST:
        problem, remedy = "the counter does not advance", "record a whole GPU, Volta or newer"
        raise InputError("NVML", "nvmlDeviceGetTotalEnergyConsumption", problem, remedy)
    since = [at for at in range(len(read) - 2) if read[-1].at_s - read[at].at_s >= READ_S]
    if since:
        first, second = map(_watts, _halves(window := read[since[-1] :]))
        if abs(first - second) < STEADY * second:
            return window
    return read[len(read) // 2 :] if late else ()


def _halves(window: Sequence[Reading]) -> tuple[Sequence[Reading], Sequence[Reading]]:
    """Return the advances before and after the middle one, which both have."""
    middle = len(window) // 2
    return window[: middle + 1], window[middle:]


def _watts(window: Sequence[Reading]) -> float:
    """Return the mean power between the first and the last advance of the counter."""
    first, last = window[0], window[-1]
    return 1e-3 * (last.energy_mj - first.energy_mj) / (last.at_s - first.at_s)
