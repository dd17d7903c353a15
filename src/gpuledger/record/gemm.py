"""What cuBLAS launches for matrix multiplications on this GPU, and how long it takes; resumable chunk by chunk.

y (m × n) = x (m × k) · wᵀ (n × k), as linear layers compute it, in bf16 and, where the GPU has it, in fp8 with a scale
for each operand. The profiler says which kernels were launched. Sizes are those of layers of models, whole and divided
among GPUs, and powers of two.
"""

import logging
import random
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from gpuledger.errors import InputError
from gpuledger.record.parts import Recorded
from gpuledger.record.profiled_launches import REFERENCE, append_rows, duration_ns, profiled, whole_rows

LOG = logging.getLogger("gpuledger")
TABLE = "gemm_tiles/gemm.csv"
#: Hidden size, columns of all queries, columns of all keys, and of the gate, as the models' config.json have them.
MODELS = {
    "Llama-3.1-8B": (4096, 4096, 1024, 14336),
    "Llama-3.1-70B": (8192, 8192, 1024, 28672),
    "Qwen2.5-7B": (3584, 3584, 512, 18944),
    "Qwen3-32B": (5120, 8192, 1024, 25600),
    "gemma-3-27b": (5376, 4096, 2048, 21504),
}
#: GPUs that share a layer, and rows of x.
GPUS, ROWS = (1, 2, 4, 8), (*(2**power for power in range(14)), 3, 7, 17, 33, 97, 193, 385, 1025, 2561)
#: Powers of two: rows, and both other sizes.
SQUARE_ROWS, SIDES = (1, 8, 64, 512, 4096), tuple(2**power for power in range(5, 16))
#: A larger product is left out, a large one launched once instead of `TURNS` times (FLOP).
MOST_FLOP, LONG_FLOP, TURNS = 2e12, 2e11, 3
#: Shapes between two writes of the table, and launches between two of the reference product.
CHUNK, BETWEEN = 500, 60
#: By the word of a table, the operator that the profiler names; those of fp8 need compute capability 8.9.
OPERATORS = {"bfloat16": "aten::mm", "fp8_static": "aten::_scaled_mm"}
_TIMES = ("first_ns", "first_reduction_ns", "second_reduction_ns", "third_ns", "third_reduction_ns")
COLUMNS = (
    *("gemm_dtype", "m", "n", "k", "framework", "kernel_source", "latency", "kernel", "grid_x", "grid_y"),
    *("threads", "registers", "shared_bytes", *_TIMES, "reference_ns", "order"),
)
_NOTE = (
    "A row a shape, in the order of the recording. Three launches of a shape follow one another (products over "
    f"{LONG_FLOP / 1e9:g} GFLOP have one), with the operands of all shapes at the same addresses. latency (ms): the "
    "second's kernels together, without pauses between them. first_ns, third_ns: the product's kernel alone; "
    "<launch>_reduction_ns: the kernel that adds the parts of a split k. reference_ns: the product of "
    f"{'×'.join(map(str, REFERENCE))} that was launched last before, whose time tells the clock. Random values."
)


class Call(NamedTuple):
    """One launch to make."""

    m: int
    n: int
    k: int
    turn: int  # which launch of its shape; -1: the reference product


def shapes() -> list[tuple[int, int, int]]:
    """Return all (m, n, k) once, in an order that is random but always the same."""
    layers = set()
    for (hidden, queries, keys, gate), gpus in product(MODELS.values(), GPUS):
        layers |= {((queries + 2 * keys) // gpus, hidden), (hidden, queries // gpus)}
        layers |= {(2 * gate // gpus, hidden), (hidden, gate // gpus)}
    found = {(m, n, k) for m, (n, k) in product(ROWS, layers)} | set(product(SQUARE_ROWS, SIDES, SIDES))
    small = sorted((m, n, k) for m, n, k in found if 2 * m * n * k <= MOST_FLOP)
    random.Random(1).shuffle(small)
    return small


def calls_of(part: Sequence[tuple[int, int, int]]) -> list[Call]:
    """Return the launches of some shapes, with the reference product before the first and among them."""
    calls: list[Call] = []
    since = BETWEEN
    for m, n, k in part:
        if since >= BETWEEN:
            calls += [Call(*REFERENCE, -1)] * 2
            since = 0
        turns = TURNS if 2 * m * n * k <= LONG_FLOP else 1
        calls += [Call(m, n, k, turn) for turn in range(turns)]
        since += turns
    return calls


def record_gemm(folder: str | Path) -> Recorded:
    """Record all shapes; what a call before this one has recorded is kept."""
    torch = import_module("torch")
    path = Path(folder, TABLE)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["gemm_dtype"], *(int(row[size]) for size in "mnk")) for row in whole_rows(path)}
    device = torch.cuda.get_device_name(0)
    types = list(OPERATORS) if torch.cuda.get_device_capability(0) >= (8, 9) else ["bfloat16"]
    for dtype in types:
        waiting = [shape for shape in shapes() if (dtype, *shape) not in done]
        products = Products(torch, dtype) if waiting else None
        for at in range(0, len(waiting), CHUNK):
            LOG.info("gemm: %s, %d shapes left", dtype, len(waiting) - at)
            part = waiting[at : at + CHUNK]
            rows = rows_of(products.profile(calls := calls_of(part)), calls, dtype, len(done))
            if len(rows) < len(part):
                problem = f"of {len(part)} products the profiler shows {len(rows)}"
                raise InputError("torch.profiler", dtype, problem, "record again; see whether another profiler runs")
            append_rows(path, COLUMNS, rows)
            done |= {(dtype, *shape) for shape in part}
    gemm = {"measurements": TABLE, "gpu": device, "unit": "ms"}
    cases = {"gemm_tiles": {"cublas": {"launches": TABLE, "gpu": device}}, "kernel_time": {"gemm": gemm}}
    return Recorded(cases, {"shapes": len(shapes()), "types": types}, {TABLE: _NOTE})


class Products:
    """Operands for all shapes in one type, and PyTorch's profiler around their products."""

    def __init__(self, torch: Any, dtype: str):
        self.torch, self.dtype = torch, dtype
        torch.manual_seed(0)
        every = [*shapes(), REFERENCE]
        sizes = (max(m * k for m, _, k in every), max(n * k for _, n, k in every), max(m * n for m, n, _ in every))
        x, w = (torch.randn(size, device="cuda", dtype=torch.bfloat16).mul_(0.1) for size in sizes[:2])
        if dtype == "fp8_static":
            x, w = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
        self._operands = x, w, torch.empty(sizes[2], device="cuda", dtype=torch.bfloat16)
        self._one = torch.ones((), device="cuda")
        self.call(*REFERENCE)
        torch.cuda.synchronize()

    def call(self, m: int, n: int, k: int) -> None:
        """Launch one product."""
        x, w, y = self._operands
        x, w, y = x[: m * k].view(m, k), w[: n * k].view(n, k), y[: m * n].view(m, n)
        if self.dtype == "fp8_static":
            scales = {"scale_a": self._one, "scale_b": self._one}
            self.torch._scaled_mm(x, w.t(), **scales, out_dtype=self.torch.bfloat16, out=y)
        else:
            self.torch.mm(x, w.t(), out=y)

    def profile(self, calls: Sequence[Call]) -> list[dict]:
        """Make the launches and return the events that the profiler saw."""

        def launch() -> None:
            for call in calls:
                self.call(*call[:3])

        return profiled(self.torch, launch)


def rows_of(events: Sequence[dict], calls: Sequence[Call], dtype: str, before: int) -> list[dict]:
    """Return a row a shape; one without all of its launches is left out.

    Parameters
    ----------
    events : sequence of dict
        Of the profiler, in any order.
    calls : sequence of Call
        In the order of their launches.
    before : int
        How many shapes were recorded before these.
    """
    name = OPERATORS[dtype]
    names = name, f"{name}_out"
    operators = [event for event in events if event.get("cat") == "cpu_op" and event["name"] in names]
    operators.sort(key=lambda event: event["ts"])
    if len(operators) != len(calls):
        problem = f"{len(operators)} operators {name} for {len(calls)} calls"
        raise InputError("torch.profiler", dtype, problem, "report the version of PyTorch")
    place = {operator["args"]["External id"]: at for at, operator in enumerate(operators)}
    kernels: list[dict[str, dict]] = [{} for _ in calls]
    for event in events:
        if event.get("cat") == "kernel" and (at := place.get(event["args"].get("External id"))) is not None:
            kernels[at]["reduction" if "splitKreduce" in event["name"] else "product"] = event
    return [row | {"order": before + at} for at, row in enumerate(_rows(calls, kernels, dtype))]


def _rows(calls: Sequence[Call], kernels: Sequence[dict[str, dict]], dtype: str) -> Iterator[dict]:
    reference: int | str = ""
    row: dict[str, Any] = {}
    for call, own in zip(calls, kernels, strict=True):
        times = {name: duration_ns(event) for name, event in own.items()}
        if "product" not in own:
            row = {}
            continue
        if call.turn < 0:
            reference = times["product"]
            continue
        if call.turn == 0:
            row = _facts(call, own["product"], dtype) | {"first_ns": times["product"], "reference_ns": reference}
        elif not row:
            continue
        word = ("first", "second", "third")[call.turn]
        if call.turn == 2:
            row["third_ns"] = times["product"]
        if "reduction" in times:
            row[f"{word}_reduction_ns"] = times["reduction"]
        last = TURNS - 1 if 2 * call.m * call.n * call.k <= LONG_FLOP else 0
        if call.turn == min(1, last):
            row["latency"] = f"{(times['product'] + times.get('reduction', 0)) / 1e6:.6f}"
        if call.turn == last:
            yield row


def _facts(call: Call, kernel: dict, dtype: str) -> dict[str, Any]:
    said = kernel["args"]
    return {
        **dict(zip(("gemm_dtype", "m", "n", "k"), (dtype, *call[:3]), strict=True)),
        **{"framework": "gpuledger", "kernel_source": "cublas", "kernel": kernel["name"]},
        **{"grid_x": said["grid"][0], "grid_y": said["grid"][1] * said["grid"][2]},
        **{"threads": said["block"][0], "registers": said["registers per thread"]},
        "shared_bytes": said["shared memory"],
    }
