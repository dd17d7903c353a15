"""Baselines of the normalization roofline, if PyTorch is installed: the formula in operators, and its own kernel."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gpuledger.record.cuda import DeviceArray
from gpuledger.record.cuda_timing import Launch

#: Normalizes one array into another.
Normalize = Callable[[DeviceArray, DeviceArray], object]


def available() -> bool:
    """Whether PyTorch is installed and sees a GPU."""
    return find_spec("torch") is not None and bool(import_module("torch").cuda.is_available())


def formula(element: str = "fp32") -> Normalize:
    """Return a function that normalizes an array x into y with PyTorch's operators.

    It uses the population's standard deviation. Rows of equal values become NaN.

    Parameters
    ----------
    element : str
        Of :data:`gpuledger.record.normalization_kernels.ELEMENTS`.
    """
    torch = import_module("torch")

    def launch(x: Any, y: Any) -> None:
        std = x.std(dim=1, correction=0, keepdim=True)
        torch.div(x - x.mean(dim=1, keepdim=True), std, out=y)

    return _on_tensors(launch, element)


def layer_norm(element: str = "fp32") -> Normalize:
    """Return a function that normalizes by PyTorch's kernel of LayerNorm, with an epsilon of 1e-5 and no weights.

    The kernel writes into memory that PyTorch allocates; the array y is not used.
    """
    normalize = import_module("torch").nn.functional.layer_norm
    return _on_tensors(lambda x, y: normalize(x, x.shape[1:]), element)


#: Baselines by the name of their rows.
BASELINES = {"torch": formula, "torch_nn": layer_norm}


def _on_tensors(launch: Callable[[Any, Any], object], element: str) -> Normalize:
    """Return a function of device arrays that calls `launch` with tensors of the same memory."""
    torch = import_module("torch")
    tensors: dict[int, Any] = {}

    def tensor(array: DeviceArray) -> Any:
        if array.address not in tensors:  # only once: a capture allows no conversion
            found = torch.as_tensor(array, device="cuda")
            tensors[array.address] = found.view(torch.bfloat16) if element == "bf16" else found
        return tensors[array.address]

    return lambda x, y: launch(tensor(x), tensor(y))


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
