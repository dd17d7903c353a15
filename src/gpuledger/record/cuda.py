"""CUDA kernels at run time: compile, load and launch them, and arrays in device memory.

Needs only NumPy, the driver (:mod:`gpuledger.record.driver`) and NVRTC (:mod:`gpuledger.record.nvrtc`). Times are
measured by :mod:`gpuledger.record.cuda_timing`.

>>> from gpuledger.record import cuda
>>> device = cuda.open_device()  # doctest: +SKIP
>>> kernel = cuda.load_module("ceilings.cu", device).kernel("copy_4")  # doctest: +SKIP
>>> kernel.launch(grid, 512, source, target, np.int64(count))  # doctest: +SKIP
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np

from gpuledger.errors import InputError
from gpuledger.record import driver as library
from gpuledger.record import nvrtc
from gpuledger.record.driver import CudaError, driver

#: gpuledger's CUDA sources.
SOURCES = Path(__file__).with_name("cuda_sources")
#: Default options of NVRTC.
OPTIONS = ("--std=c++17",)
#: The stream of launches and copies; 0 is the default stream. See :func:`on_stream`.
_stream = 0


@dataclass(frozen=True)
class CudaDevice:
    """A working NVIDIA GPU."""

    name: str  # the driver's name of the device
    compute_capability: str  # ``9.0``
    sms: int  # streaming multiprocessors
    l2_bytes: int
    memory_bytes: int
    shared_bytes_per_sm: int  # shared memory of an SM (bytes)
    shared_bytes: int  # maximum shared memory per block (bytes), static and dynamic

    @property
    def architecture(self) -> str:
        """The target architecture for NVRTC: ``sm_90``."""
        return f"sm_{self.compute_capability.replace('.', '')}"


def open_device() -> CudaDevice:
    """Select the first visible GPU and describe it."""
    with named_errors("device 0", "check the driver with nvidia-smi"):
        api = driver()
        handle = api.device(0)
        api.use(handle)

        def attribute(number: int) -> int:
            return api.attribute(handle, number)

        return CudaDevice(
            name=api.name(handle),
            compute_capability=f"{attribute(library.CAPABILITY_MAJOR)}.{attribute(library.CAPABILITY_MINOR)}",
            sms=attribute(library.MULTIPROCESSORS),
            l2_bytes=attribute(library.L2_BYTES),
            memory_bytes=api.memory_bytes(handle),
            shared_bytes_per_sm=attribute(library.SHARED_BYTES_PER_SM),
            shared_bytes=attribute(library.SHARED_BYTES_PER_BLOCK),
        )


@contextlib.contextmanager
def on_stream(stream: int) -> Iterator[None]:
    """Enqueue launches and copies within the block on a stream of the driver."""
    global _stream
    before, _stream = _stream, stream
    try:
        yield
    finally:
        _stream = before


class DeviceArray:
    """An array in device memory; PyTorch takes it without a copy (``torch.as_tensor(array, device="cuda")``).

    Parameters
    ----------
    alignment : int
        Bytes to which the address is aligned, beyond the driver's own 256.
    """

    def __init__(self, shape: int | Sequence[int], dtype: Any, alignment: int = 1):
        self.shape = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
        self.dtype = np.dtype(dtype)
        self.nbytes = prod(self.shape) * self.dtype.itemsize
        self._driver = driver()
        self._allocated = self._driver.allocate(self.nbytes + alignment - 1)
        self.address = -(-self._allocated // alignment) * alignment

    def __del__(self):
        with contextlib.suppress(AttributeError, CudaError):  # not allocated, or the context is gone
            self._driver.free(self._allocated)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3}

    def set(self, values: np.ndarray) -> None:
        """Copy values from the host."""
        values = np.ascontiguousarray(values, self.dtype)
        driver().upload(self.address, values.ctypes.data, values.nbytes)

    def get(self) -> np.ndarray:
        """Copy the array to the host, after everything that was enqueued before."""
        driver().synchronize()
        values = np.empty(self.shape, self.dtype)
        driver().download(values.ctypes.data, self.address, self.nbytes)
        return values

    def fill_bytes(self, byte: int) -> None:
        """Set every byte, without waiting."""
        driver().fill(self.address, byte, self.nbytes, _stream)

    def copy(self) -> Self:
        """Return a copy in device memory."""
        array = DeviceArray(self.shape, self.dtype)
        array.copy_from(self)
        return array

    def copy_from(self, other: Self) -> None:
        """Copy an array of the same size in device memory, without waiting."""
        driver().copy(self.address, other.address, self.nbytes, _stream)


def to_device(values: np.ndarray) -> DeviceArray:
    """Copy an array into device memory."""
    array = DeviceArray(values.shape, values.dtype)
    array.set(values)
    return array


class LoadedKernel:
    """A loaded kernel.

    Attributes
    ----------
    registers : int
        Registers per thread.
    local_bytes : int
        Local memory per thread: spilled registers and large arrays, ideally 0.
    shared_bytes : int
        Static shared memory per block.
    """

    def __init__(self, name: str, function: int):
        self.name, self._function = name, function
        self.registers = driver().function_attribute(function, library.REGISTERS)
        self.local_bytes = driver().function_attribute(function, library.LOCAL_BYTES)
        self.shared_bytes = driver().function_attribute(function, library.STATIC_SHARED_BYTES)
        self._configured = 0  # dynamic shared memory that the function is configured for; 0: as it was loaded

    def blocks_per_sm(self, threads: int, shared_bytes: int = 0) -> int:
        """CUDA's occupancy: blocks of `threads` that an SM runs at once with this dynamic shared memory."""
        with named_errors(self.name, "update the driver"):
            self._set_shared(shared_bytes)
            return driver().resident_blocks(self._function, threads, shared_bytes)

    def launch(
        self, grid: int | Sequence[int], block: int | Sequence[int], *arguments: Any, shared_bytes: int = 0
    ) -> None:
        """Launch on the current stream, without waiting.

        Parameters
        ----------
        grid, block : int or up to three
        *arguments
            Device arrays, and NumPy scalars of exactly the declared types (``np.int32(n)``).
        """
        with named_errors(self.name, "check grid, block and shared memory"):
            self._set_shared(shared_bytes)
            values = [_parameter(argument) for argument in arguments]
            driver().launch(self._function, _three(grid), _three(block), shared_bytes, _stream, values)

    def _set_shared(self, shared_bytes: int) -> None:
        """Configure the function for a launch with this dynamic shared memory.

        Attributes stay with the function. They are set only when they change: the call may wait for copies, and so
        delay a launch that is timed. With dynamic shared memory, the carveout favours it, because the driver may favour
        L1 and run fewer blocks than fit; otherwise the driver decides.
        """
        if shared_bytes == self._configured:
            return
        driver().set_function_attribute(self._function, library.MOST_DYNAMIC_SHARED_BYTES, shared_bytes)
        carveout = 100 if shared_bytes else -1
        driver().set_function_attribute(self._function, library.SHARED_CARVEOUT_PERCENT, carveout)
        self._configured = shared_bytes


class LoadedModule:
    """A loaded cubin or PTX."""

    def __init__(self, module: int, name: str):
        self._module, self.name = module, name
        self._kernels: dict[str, LoadedKernel] = {}

    def kernel(self, name: str) -> LoadedKernel:
        """Return a kernel by its ``extern "C"`` name, always the same one, which knows how its function is set up."""
        if name not in self._kernels:
            with named_errors(f"{self.name}, kernel {name}", "check the kernel's name"):
                self._kernels[name] = LoadedKernel(name, driver().function(self._module, name))
        return self._kernels[name]


def load_module(
    name: str, device: CudaDevice, options: Sequence[str] = OPTIONS, *, as_ptx: bool = False
) -> LoadedModule:
    """Compile one of gpuledger's sources for a GPU and load it.

    Parameters
    ----------
    name : str
        In :data:`SOURCES`, such as ``normalization.cu``.
    as_ptx : bool
        Whether the driver compiles PTX, which tools between program and driver can read and change, as Neutrino does.
    """
    architecture = device.architecture.replace("sm_", "compute_") if as_ptx else device.architecture
    image, _ = nvrtc.compile_source((SOURCES / name).read_text("utf-8"), architecture, name, options)
    with named_errors(name, "use an NVRTC that is not newer than the driver, or update the driver"):
        return LoadedModule(driver().load(image), name)


@contextlib.contextmanager
def named_errors(place: str, remedy: str) -> Iterator[None]:
    """Convert errors of CUDA and PyTorch within the block into an InputError with the given place and remedy."""
    try:
        yield
    except Exception as error:
        if not (isinstance(error, CudaError) or type(error).__module__.startswith("torch")):
            raise
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "out of memory" in str(error).lower():
            remedy = "free memory on the GPU (nvidia-smi lists its users), or choose smaller shapes"
        raise InputError("GPU", place, text, remedy) from None


def _parameter(argument: Any) -> bytes:
    if isinstance(argument, DeviceArray):
        return argument.address.to_bytes(8, "little")
    if isinstance(argument, np.generic):
        return argument.tobytes()
    raise TypeError(f"a kernel takes device arrays and NumPy scalars, not {type(argument).__name__}")


def _three(size: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    return tuple(int(part) for part in sizes) + (1,) * (3 - len(sizes))
