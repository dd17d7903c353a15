"""The baseline of the normalization roofline: the formula in plain PyTorch, if PyTorch is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gpuledger.record.cuda import DeviceArray
from gpuledger.record.cuda_timing import Launch


def available() -> bool:
    """Whether PyTorch is installed and sees a GPU."""
    return find_spec("torch") is not None and bool(import_module("torch").cuda.is_available())


def baseline() -> Callable[[DeviceArray, DeviceArray], None]:
    """Return a function that normalizes an array x into y with PyTorch.

    It uses the population's standard deviation. Rows of equal values become NaN.
    """
    torch = import_module("torch")
    tensors: dict[int, Any] = {}

    def launch(x: DeviceArray, y: DeviceArray) -> None:
        for array in (x, y):
            if array.address not in tensors:  # only once: a capture allows no conversion
                tensors[array.address] = torch.as_tensor(array, device="cuda")
        source, target = tensors[x.address], tensors[y.address]
        std = source.std(dim=1, correction=0, keepdim=True)
        torch.div(source - source.mean(dim=1, keepdim=True), std, out=target)

    return launch


def capture_torch_graph(launches: Sequence[Launch], stream: int) -> Launch:
    """Capture into a CUDA graph like :func:`gpuledger.record.cuda_timing.capture_graph`, with PyTorch's allocator."""
    torch = import_module("torch")
    external = torch.cuda.ExternalStream(stream)
    with torch.cuda.stream(external):
        for launch in dict.fromkeys(launches):
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=external):
        for launch in launches:
            launch()

    def replay() -> None:
        with torch.cuda.stream(external):
            graph.replay()

    return replay
