"""Baselines of the normalization roofline, if PyTorch is installed: the formula in operators, PyTorch's own kernel, and
Liger-Kernel's where that is installed too."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from gpuledger.record.cuda import DeviceArray
from gpuledger.record.cuda_timing import Launch

#: Normalizes one array into another.
Normalize = Callable[[DeviceArray, DeviceArray], object]
#: Of LayerNorm, in PyTorch and in Liger-Kernel.
EPSILON = 1e-5


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
    """Return a function that normalizes by PyTorch's kernel of LayerNorm, without weights."""
    normalize = import_module("torch").nn.functional.layer_norm
    return _allocating(lambda x: normalize(x, x.shape[1:], eps=EPSILON), element)


def liger_layer_norm(element: str = "fp32") -> Normalize:
    """Return a function that normalizes by Liger-Kernel's LayerNorm, with weights of one and biases of zero."""
    torch = import_module("torch")
    normalize = import_module("liger_kernel.transformers.functional").liger_layer_norm
    weights: list[Any] = []

    def launch(x: Any) -> Any:
        if not weights:  # only once: a capture must not initialise them
            weights.extend(make(x.shape[1], dtype=x.dtype, device=x.device) for make in (torch.ones, torch.zeros))
        with torch.no_grad():
            return normalize(x, *weights, EPSILON)

    return _allocating(launch, element)


#: Baselines by the name of their rows, each with the package that it needs.
BASELINES = {
    "torch": ("torch", formula),
    "torch_nn": ("torch", layer_norm),
    "liger_layer": ("liger_kernel", liger_layer_norm),
}


def baselines() -> dict[str, Callable[[str], Normalize]]:
    """Return the baselines that can be timed here, by the name of their rows: PyTorch must see a GPU."""
    if find_spec("torch") is None or not import_module("torch").cuda.is_available():
        return {}
    return {name: make for name, (package, make) in BASELINES.items() if find_spec(package) is not None}


def versions() -> dict[str, str]:
    """Return the versions of the packages of the baselines that can be timed here."""
    return {package: _version(package) for package in dict.fromkeys(BASELINES[name][0] for name in baselines())}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # copied there rather than installed; this is no reason to lose a recording
        return "unknown"


def _allocating(normalize: Callable[[Any], Any], element: str) -> Normalize:
    """Return a function of device arrays for a kernel that writes into memory that PyTorch allocates.

    The result takes the place of the array y, which is not written: it is kept until the next launch with this y.
    Otherwise all launches would write into the same memory, which the L2 then holds also where it should be cold.
    """
    results: dict[int, Any] = {}

    def launch(x: Any, y: Any) -> Any:
        results.pop(y.data_ptr(), None)
        results[y.data_ptr()] = normalize(x)
        return results[y.data_ptr()]

    return _on_tensors(launch, element)


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
