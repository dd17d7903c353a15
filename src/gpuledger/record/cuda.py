"""CUDA kernels at run time: compile with NVRTC, load, launch (timing: gpuledger.record.cuda_timing).

A thin layer over CuPy, which is only imported when a function needs it. Compiling needs CuPy with NVRTC but no GPU;
everything else needs a GPU.

>>> from gpuledger.record import cuda
>>> device = cuda.open_device()  # doctest: +SKIP
>>> kernel = cuda.load_module("ceilings.cu", device).kernel("copy_float4")  # doctest: +SKIP
>>> kernel.launch(grid, 512, target, source, np.int64(count))  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from gpuledger.errors import InputError

#: gpuledger's CUDA sources.
SOURCES = Path(__file__).with_name("cuda_sources")
#: Default options of NVRTC.
OPTIONS = ("--std=c++17",)


@dataclass(frozen=True)
class CudaDevice:
    """A working NVIDIA GPU.

    Attributes
    ----------
    index : int
        CUDA's number of the device.
    name : str
        The driver's name of the device.
    compute_capability : str
        ``9.0``.
    sms : int
        Streaming multiprocessors.
    l2_bytes, memory_bytes : int
    clock_hz : int
        Maximum SM clock (Hz); 0: unknown.
    threads_per_sm, registers_per_sm : int
        Limits of an SM; 0: not needed.
    shared_bytes : int
        Maximum shared memory per block (bytes), static and dynamic.
    """

    index: int
    name: str
    compute_capability: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    clock_hz: int
    threads_per_sm: int = 0
    registers_per_sm: int = 0
    shared_bytes: int = 0

    @property
    def architecture(self) -> str:
        """The target architecture for NVRTC: ``sm_90``."""
        return f"sm_{self.compute_capability.replace('.', '')}"


def cupy() -> ModuleType:
    """Import CuPy.

    Raises
    ------
    InputError
        CuPy is not installed, or its CUDA libraries cannot be loaded.
    """
    try:
        return import_module("cupy")
    except ImportError as error:
        problem = f"CuPy cannot be imported ({_first_line(error)})"
        remedy = "install CuPy for the installed CUDA version, e.g. pip install 'cupy-cuda13x[ctk]'"
        raise InputError("GPU", "", problem, remedy) from None


def open_device(index: int = 0) -> CudaDevice:
    """Select a GPU and describe it.

    Raises
    ------
    InputError
        CuPy, the driver or the GPU is missing.
    """
    runtime = cupy().cuda.runtime
    with named_errors(f"device {index}", "check the driver with nvidia-smi"):
        count = runtime.getDeviceCount()
        if index >= count:
            raise InputError("GPU", f"device {index}", f"there are only {count} devices", "choose one of them")
        runtime.setDevice(index)
        found = runtime.getDeviceProperties(index)
        # Some CUDA versions have no clockRate in the properties; attribute 13 (kHz) works in all of them.
        clock_khz = runtime.deviceGetAttribute(13, index)
    name = found["name"]
    return CudaDevice(
        index=index,
        name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
        compute_capability=f"{found['major']}.{found['minor']}",
        sms=int(found["multiProcessorCount"]),
        l2_bytes=int(found["l2CacheSize"]),
        memory_bytes=int(found["totalGlobalMem"]),
        clock_hz=1000 * int(clock_khz),
        threads_per_sm=int(found["maxThreadsPerMultiProcessor"]),
        registers_per_sm=int(found["regsPerMultiprocessor"]),
        shared_bytes=int(found["sharedMemPerBlockOptin"]),
    )


def read_source(name: str) -> str:
    """Return the text of one of gpuledger's CUDA sources, e.g. ``normalization.cu``."""
    return (SOURCES / name).read_text("utf-8")


def compile_source(
    code: str, architecture: str, name: str = "kernel.cu", options: Sequence[str] = OPTIONS
) -> tuple[bytes, str]:
    """Compile CUDA C++ with NVRTC; needs no GPU.

    Parameters
    ----------
    code : str
        Kernels as ``extern "C" __global__``; NVRTC has no host headers.
    architecture : str
        ``sm_90`` for machine code (cubin), ``compute_90`` for PTX.
    name : str
        File name for error messages.
    options : sequence of str
        Options of NVRTC; see :data:`OPTIONS`.

    Returns
    -------
    image : bytes
        The cubin or PTX.
    log : str
        Warnings of the compiler.

    Raises
    ------
    InputError
        The first compiler error with its line; an architecture that this NVRTC does not support.
    """
    nvrtc = cupy().cuda.nvrtc
    try:
        program = nvrtc.createProgram(code, name, (), ())
    except (RuntimeError, ImportError) as error:
        remedy = "install the NVRTC of the same CUDA version, e.g. pip install 'cupy-cuda13x[ctk]'"
        raise InputError(name, "", f"NVRTC cannot be used ({_first_line(error)})", remedy) from None
    try:
        nvrtc.compileProgram(program, (*options, f"--gpu-architecture={architecture}"))
        read = nvrtc.getCUBIN if architecture.startswith("sm_") else nvrtc.getPTX
        return bytes(read(program)), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        found = re.search(r"\((\d+)\): (?:catastrophic )?error\s*:?\s*(.+)", log)
        place = f"line {found[1]}" if found else f"architecture {architecture}"
        problem = found[2] if found else _first_line(log or str(error))
        raise InputError(name, place, f"does not compile: {problem}", "fix the source or the architecture") from None
    finally:
        nvrtc.destroyProgram(program)


class LoadedKernel:
    """A loaded kernel.

    Attributes
    ----------
    name : str
    registers : int
        Registers per thread.
    local_bytes : int
        Local memory per thread: spilled registers and large arrays, ideally 0.
    shared_bytes : int
        Static shared memory per block.
    """

    def __init__(self, name: str, function: Any):
        self.name, self._function = name, function
        self.registers = int(function.num_regs)
        self.local_bytes = int(function.local_size_bytes)
        self.shared_bytes = int(function.shared_size_bytes)

    def allow_shared(self, shared_bytes: int) -> None:
        """Set the maximum dynamic shared memory per block, which launches with more than 48 KiB need.

        If it is not zero, the carveout favours shared memory, because the driver may favour L1 and then run fewer
        blocks than would fit.
        """
        with named_errors(self.name, "ask for less shared memory"):
            self._function.max_dynamic_shared_size_bytes = shared_bytes
            if shared_bytes:
                self._function.preferred_shared_memory_carveout = 100

    def blocks_per_sm(self, threads: int, shared_bytes: int = 0) -> int:
        """CUDA's occupancy: blocks of `threads` that an SM runs at once with this dynamic shared memory."""
        with named_errors(self.name, "update CuPy and the driver"):
            occupancy = cupy().cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            return int(occupancy(self._function.kernel.ptr, threads, shared_bytes))

    def launch(self, grid: int | Sequence[int], block: int | Sequence[int], *arguments: Any, shared_bytes: int = 0):
        """Launch on CuPy's current stream, without waiting.

        Parameters
        ----------
        grid, block : int or up to three
        *arguments
            CuPy arrays, and NumPy scalars of exactly the declared types (``np.int32(n)``): a plain int would be passed
            as 64 bits, a plain float as a double.
        shared_bytes : int
            Dynamic shared memory per block.

        Raises
        ------
        InputError
            CUDA rejects the launch.
        """
        with named_errors(self.name, "check grid, block and shared memory"):
            self._function(_three(grid), _three(block), arguments, shared_mem=shared_bytes)


def resident_blocks(device: CudaDevice, kernel: LoadedKernel, threads: int) -> int:
    """Blocks of `threads` that an SM can hold according to its registers and threads (not its shared memory)."""
    # Registers are allocated per warp in units of 256, eight per thread.
    registers = -(-kernel.registers // 8) * 8 * (-(-threads // 32) * 32)
    return max(1, min(device.threads_per_sm // threads, device.registers_per_sm // registers))


class LoadedModule:
    """A loaded cubin or PTX."""

    def __init__(self, module: Any, name: str, folder: TemporaryDirectory):
        # CuPy may read the file again for a kernel, so the folder lives as long as the module.
        self._module, self.name, self._folder = module, name, folder

    def kernel(self, name: str) -> LoadedKernel:
        """Return a kernel by its ``extern "C"`` name.

        Raises
        ------
        InputError
            The module has no such kernel.
        """
        with named_errors(f"{self.name}, kernel {name}", "check the kernel's name"):
            return LoadedKernel(name, self._module.get_function(name))


def load_module(name: str, device: CudaDevice, options: Sequence[str] = OPTIONS) -> LoadedModule:
    """Compile one of gpuledger's sources for a GPU and load it.

    Parameters
    ----------
    name : str
        See :func:`read_source`.
    device : CudaDevice
    options : sequence of str
        Options of NVRTC; see :data:`OPTIONS`.

    Raises
    ------
    InputError
        See :func:`compile_source`; the driver rejects the image.
    """
    image, _ = compile_source(read_source(name), device.architecture, name, options)
    folder = TemporaryDirectory(prefix="gpuledger-")
    path = Path(folder.name, "module.cubin")
    path.write_bytes(image)
    with named_errors(name, "compile it for this GPU, and update the driver"):
        module = cupy().RawModule(path=str(path))
        module.compile()
    return LoadedModule(module, name, folder)


@contextlib.contextmanager
def named_errors(place: str, remedy: str) -> Iterator[None]:
    """Convert CUDA errors within the block into an InputError with the given place and remedy."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # CuPy's exceptions have no common base class, but they are recognised by their module.
        if not type(error).__module__.startswith(("cupy", "torch")):
            raise
        if "OutOfMemory" in type(error).__name__ or "out of memory" in str(error).lower():
            remedy = "free memory on the GPU (nvidia-smi lists its users), or choose smaller shapes"
        raise InputError("GPU", place, _first_line(error), remedy) from None


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _three(size: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    return tuple(int(part) for part in sizes) + (1,) * (3 - len(sizes))
