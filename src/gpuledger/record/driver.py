"""The NVIDIA driver's library, libcuda, through ctypes: nothing but the driver needs to be installed.

Handles are plain integers. Every call raises :class:`CudaError` if the driver reports a failure.

Source: CUDA Driver API reference.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_void_p
from functools import cache
from pathlib import Path

from gpuledger.errors import InputError

#: Numbers of device attributes (CUdevice_attribute).
MULTIPROCESSORS = 16
L2_BYTES = 38
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
SHARED_BYTES_PER_SM = 81
SHARED_BYTES_PER_BLOCK = 97
#: Numbers of function attributes (CUfunction_attribute).
STATIC_SHARED_BYTES, LOCAL_BYTES, REGISTERS = 1, 3, 4
MOST_DYNAMIC_SHARED_BYTES, SHARED_CARVEOUT_PERCENT = 8, 9

_NON_BLOCKING, _RELAXED_CAPTURE = 1, 2
_NAMES = ("libcuda.so.1", "libcuda.so")
#: States the release of the kernel module; libcuda only knows the newest CUDA version that it supports.
_MODULE = Path("/proc/driver/nvidia/version")
_NOT_LOADED = "there is no NVIDIA driver (libcuda cannot be loaded)"
_REMEDY = "install the NVIDIA driver; in a container, start it with --gpus all"


class CudaError(RuntimeError):
    """A failure that the driver reports, such as ``CUDA_ERROR_OUT_OF_MEMORY: out of memory``."""


@cache
def driver() -> Driver:
    """Load and initialise the driver's library.

    Raises
    ------
    InputError
        There is no driver.
    CudaError
        It cannot be initialised; for instance, it finds no GPU.
    """
    if (library := load_library()) is None:
        raise InputError("GPU", "", _NOT_LOADED, _REMEDY)
    return Driver(library)


def load_library() -> ctypes.CDLL | None:
    """Load the driver's library without initialising it; None where there is no driver."""
    for name in _NAMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def release() -> str:
    """Return the driver's release, such as ``580.65.06``; if the system hides it, the newest CUDA that it supports."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", _MODULE.read_text("utf-8"))
    except OSError:
        found = None
    return found[1] if found else f"for CUDA {driver().version()}"


class Driver:
    """The functions of libcuda that are needed to run kernels on one GPU."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        self._call("cuInit", c_uint(0))

    def version(self) -> str:
        """Newest CUDA version that the driver supports: ``13.0``."""
        number = self._get(c_int, "cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}"

    # Devices

    def device(self, index: int) -> int:
        return self._get(c_int, "cuDeviceGet", c_int(index))

    def name(self, device: int) -> str:
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, c_int(len(text)), c_int(device))
        return text.value.decode("utf-8", "replace")

    def memory_bytes(self, device: int) -> int:
        return self._get(c_size_t, "cuDeviceTotalMem_v2", c_int(device))

    def attribute(self, device: int, number: int) -> int:
        return self._get(c_int, "cuDeviceGetAttribute", c_int(number), c_int(device))

    def use(self, device: int) -> None:
        """Make the device's primary context, which PyTorch uses as well, current in this thread."""
        context = self._get(c_void_p, "cuDevicePrimaryCtxRetain", c_int(device))
        self._call("cuCtxSetCurrent", c_void_p(context))

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    # Memory

    def allocate(self, size_bytes: int) -> int:
        return self._get(c_void_p, "cuMemAlloc_v2", c_size_t(size_bytes))

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", c_void_p(address))

    def upload(self, address: int, host: int, size_bytes: int) -> None:
        """Copy from the host and wait."""
        self._call("cuMemcpyHtoD_v2", c_void_p(address), c_void_p(host), c_size_t(size_bytes))

    def download(self, host: int, address: int, size_bytes: int) -> None:
        """Copy to the host and wait."""
        self._call("cuMemcpyDtoH_v2", c_void_p(host), c_void_p(address), c_size_t(size_bytes))

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        size = c_size_t(size_bytes)
        self._call("cuMemcpyDtoDAsync_v2", c_void_p(target), c_void_p(source), size, c_void_p(stream))

    def fill(self, address: int, byte: int, size_bytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", c_void_p(address), c_ubyte(byte), c_size_t(size_bytes), c_void_p(stream))

    # Kernels

    def load(self, image: bytes) -> int:
        """Load a cubin, or PTX that ends with a zero byte."""
        return self._get(c_void_p, "cuModuleLoadData", c_char_p(image))

    def function(self, module: int, name: str) -> int:
        return self._get(c_void_p, "cuModuleGetFunction", c_void_p(module), c_char_p(name.encode()))

    def function_attribute(self, function: int, number: int) -> int:
        return self._get(c_int, "cuFuncGetAttribute", c_int(number), c_void_p(function))

    def set_function_attribute(self, function: int, number: int, value: int) -> None:
        self._call("cuFuncSetAttribute", c_void_p(function), c_int(number), c_int(value))

    def resident_blocks(self, function: int, threads: int, shared_bytes: int) -> int:
        """Blocks that an SM runs at once with this dynamic shared memory."""
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return self._get(c_int, name, c_void_p(function), c_int(threads), c_size_t(shared_bytes))

    def launch(
        self,
        function: int,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        stream: int,
        arguments: Sequence[bytes],
    ) -> None:
        """Launch a kernel without waiting; `arguments` are the bytes of each parameter."""
        held = [ctypes.create_string_buffer(value, len(value)) for value in arguments]
        pointers = (c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        sizes = (c_uint(size) for size in (*grid, *block, shared_bytes))
        self._call("cuLaunchKernel", c_void_p(function), *sizes, c_void_p(stream), pointers, None)

    # Streams, events and graphs

    def stream(self) -> int:
        return self._get(c_void_p, "cuStreamCreate", c_uint(_NON_BLOCKING))

    def free_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", c_void_p(stream))

    def wait_for_stream(self, stream: int) -> None:
        self._call("cuStreamSynchronize", c_void_p(stream))

    def event(self) -> int:
        return self._get(c_void_p, "cuEventCreate", c_uint(0))

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", c_void_p(event), c_void_p(stream))

    def elapsed_ms(self, start: int, end: int) -> float:
        """Time between two recorded events, once both have happened."""
        self._call("cuEventSynchronize", c_void_p(end))
        return self._get(c_float, "cuEventElapsedTime", c_void_p(start), c_void_p(end))

    def free_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", c_void_p(event))

    def begin_capture(self, stream: int) -> None:
        self._call("cuStreamBeginCapture_v2", c_void_p(stream), c_int(_RELAXED_CAPTURE))

    def end_capture(self, stream: int) -> int:
        """Return an executable graph of the launches since the capture began."""
        graph, executable = c_void_p(), c_void_p()
        self._call("cuStreamEndCapture", c_void_p(stream), byref(graph))
        try:
            self._call("cuGraphInstantiateWithFlags", byref(executable), graph, ctypes.c_ulonglong(0))
        finally:
            self._call("cuGraphDestroy", graph)
        return executable.value or 0

    def run_graph(self, executable: int, stream: int) -> None:
        self._call("cuGraphLaunch", c_void_p(executable), c_void_p(stream))

    def free_graph(self, executable: int) -> None:
        self._call("cuGraphExecDestroy", c_void_p(executable))

    # Profilers

    def start_profiler(self) -> None:
        self._call("cuProfilerStart")

    def stop_profiler(self) -> None:
        self._call("cuProfilerStop")

    def _get(self, kind: type, name: str, *arguments: object) -> int | float:
        """Call a function whose first argument receives its result, and return that; 0 for a null pointer."""
        result = kind()
        self._call(name, byref(result), *arguments)
        return result.value or 0

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudaError(self._explain(name, status))

    def _explain(self, name: str, status: int) -> str:
        found = []
        for ask in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            if not getattr(self._library, ask)(c_int(status), byref(text)) and text.value:
                found.append(text.value.decode("utf-8", "replace"))
        return ": ".join(found) or f"{name} failed with status {status}"
