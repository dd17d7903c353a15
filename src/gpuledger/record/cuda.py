"""CUDA kernels at run time: compile with NVRTC, load, launch. How long they take says gpuledger.record.cuda_timing.

A thin layer over CuPy, which is imported only when a function needs it: nothing else of gpuledger depends on it.
Compiling needs CuPy with NVRTC but no GPU; everything else needs a GPU.

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

#: The CUDA sources that come with gpuledger.
SOURCES = Path(__file__).with_name("cuda_sources")
#: Of NVRTC, unless a caller says otherwise.
OPTIONS = ("--std=c++17",)


@dataclass(frozen=True)
class CudaDevice:
    """A working NVIDIA GPU.

    Attributes
    ----------
    index : int
        As CUDA counts them.
    name : str
        As the driver gives it.
    compute_capability : str
        ``9.0``.
    sms : int
        Streaming multiprocessors.
    l2_bytes, memory_bytes : int
    clock_hz : int
        Highest SM clock (Hz); 0 where the driver does not say.
    threads_per_sm, registers_per_sm : int
        What an SM has for resident blocks; 0 where that does not matter.
    shared_bytes : int
        Shared memory that a block can have at most (bytes), static and dynamic.
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
        """What NVRTC compiles for: ``sm_90``."""
        return f"sm_{self.compute_capability.replace('.', '')}"


def cupy() -> ModuleType:
    """Import CuPy.

    Raises
    ------
    InputError
        When it is not installed, or its CUDA libraries cannot be loaded.
    """
    try:
        return import_module("cupy")
    except ImportError as error:
        problem = f"CuPy cannot be imported ({_first_line(error)})"
        remedy = "install the CuPy of the CUDA version at hand, e.g. pip install 'cupy-cuda13x[ctk]'"
        raise InputError("GPU", "", problem, remedy) from None


def open_device(index: int = 0) -> CudaDevice:
    """Make a GPU the current one and describe it.

    Raises
    ------
    InputError
        CuPy, driver or GPU missing, or no GPU of this index.
    """
    runtime = cupy().cuda.runtime
    with named_errors(f"device {index}", "check the driver with nvidia-smi"):
        count = runtime.getDeviceCount()
        if index >= count:
            raise InputError("GPU", f"device {index}", f"there are {count} devices", "choose one of them")
        runtime.setDevice(index)
        found = runtime.getDeviceProperties(index)
        # Some versions of CUDA have no clockRate in the properties; the attribute (13, in kHz) stays.
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
    """Return the text of one of the sources that come with gpuledger, e.g. ``normalization.cu``."""
    return (SOURCES / name).read_text("utf-8")


def compile_source(
    code: str, architecture: str, name: str = "kernel.cu", options: Sequence[str] = OPTIONS
) -> tuple[bytes, str]:
    """Compile CUDA C++ with NVRTC; needs no GPU.

    Parameters
    ----------
    code : str
        Kernels as ``extern "C" __global__``; NVRTC has no headers of the host.
    architecture : str
        ``sm_90`` for machine code (cubin), ``compute_90`` for PTX.
    name : str
        The file's name in messages.
    options : sequence of str
        Of NVRTC; see :data:`OPTIONS`.

    Returns
    -------
    image : bytes
        The cubin or the PTX.
    log : str
        What the compiler said: warnings.

    Raises
    ------
    InputError
        The first error of the compiler with its line; an architecture that this NVRTC does not know.
    """
    nvrtc = cupy().cuda.nvrtc
    try:
        program = nvrtc.createProgram(code, name, (), ())
    except (RuntimeError, ImportError) as error:
        remedy = "install NVRTC of the same CUDA version, e.g. pip install 'cupy-cuda13x[ctk]'"
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
        raise InputError(name, place, f"does not compile: {problem}", "mend the source or the architecture") from None
    finally:
        nvrtc.destroyProgram(program)


class LoadedKernel:
    """A loaded kernel.

    Attributes
    ----------
    name : str
    registers : int
        Of a thread.
    local_bytes : int
        Of a thread: spilled registers and arrays that did not fit; 0 is what one wants.
    shared_bytes : int
        Declared in the source, for a block.
    """

    def __init__(self, name: str, function: Any):
        self.name, self._function = name, function
        self.registers = int(function.num_regs)
        self.local_bytes = int(function.local_size_bytes)
        self.shared_bytes = int(function.shared_size_bytes)

    def allow_shared(self, shared_bytes: int) -> None:
        """Allow so much dynamic shared memory in a block; launches with more than 48 KiB need it.

        With any, the SM's memory is divided in favour of shared memory: the driver's own choice may be for L1, and
        hold fewer blocks than fit.
        """
        with named_errors(self.name, "ask for less shared memory"):
            self._function.max_dynamic_shared_size_bytes = shared_bytes
            if shared_bytes:
                self._function.preferred_shared_memory_carveout = 100

    def blocks_per_sm(self, threads: int, shared_bytes: int = 0) -> int:
        """How many blocks of `threads` an SM runs at once with so much dynamic shared memory each, as CUDA says."""
        with named_errors(self.name, "update CuPy and the driver"):
            occupancy = cupy().cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            return int(occupancy(self._function.kernel.ptr, threads, shared_bytes))

    def launch(self, grid: int | Sequence[int], block: int | Sequence[int], *arguments: Any, shared_bytes: int = 0):
        """Launch on CuPy's current stream, without waiting.

        Parameters
        ----------
        grid, block : int or up to three
        *arguments
            CuPy arrays, and NumPy scalars of the very types that the kernel declares (``np.int32(n)``): a plain int
            would be passed as 64 bits, a plain float as a double.
        shared_bytes : int
            Dynamic shared memory of a block.

        Raises
        ------
        InputError
            When CUDA refuses the launch.
        """
        with named_errors(self.name, "check grid, block and shared memory"):
            self._function(_three(grid), _three(block), arguments, shared_mem=shared_bytes)


def resident_blocks(device: CudaDevice, kernel: LoadedKernel, threads: int) -> int:
    """How many blocks of `threads` an SM holds at once, by its registers and threads (not by shared memory)."""
    # Registers are given to warps in units of 256, eight to a thread.
    registers = -(-kernel.registers // 8) * 8 * (-(-threads // 32) * 32)
    return max(1, min(device.threads_per_sm // threads, device.registers_per_sm // registers))


class LoadedModule:
    """A loaded cubin or PTX."""

    def __init__(self, module: Any, name: str, folder: TemporaryDirectory | None = None):
        # CuPy may read the file again for a kernel: the folder goes when the module goes.
        self._module, self.name, self._folder = module, name, folder

    def kernel(self, name: str) -> LoadedKernel:
        """Return a kernel by its ``extern "C"`` name.

        Raises
        ------
        InputError
            When the module has none of this name.
        """
        with named_errors(f"{self.name}, kernel {name}", "check the kernel's name"):
            return LoadedKernel(name, self._module.get_function(name))


def load_module(
    name: str, device: CudaDevice, code: str | None = None, options: Sequence[str] = OPTIONS
) -> LoadedModule:
    """Compile a source for a GPU and load it.

    Parameters
    ----------
    name : str
        Of a source that comes with gpuledger; with `code`, what messages call it.
    device : Device
    code : str, optional
        The source itself.
    options : sequence of str
        Of NVRTC; see :data:`OPTIONS`.

    Raises
    ------
    InputError
        See :func:`compile_source`; an image that the driver refuses.
    """
    code = read_source(name) if code is None else code
    image, _ = compile_source(code, device.architecture, name, options)
    return load_image(image, name)


def load_image(image: bytes, name: str) -> LoadedModule:
    """Load a cubin or PTX, for instance one that nvcc has made.

    Raises
    ------
    InputError
        When the driver refuses it.
    """
    folder = TemporaryDirectory(prefix="gpuledger-")
    path = Path(folder.name, "module.cubin" if image.startswith(b"\x7fELF") else "module.ptx")
    path.write_bytes(image)
    with named_errors(name, "compile it for this GPU, and update the driver"):
        module = cupy().RawModule(path=str(path))
        module.compile()
    return LoadedModule(module, name, folder)


@contextlib.contextmanager
def named_errors(place: str, remedy: str) -> Iterator[None]:
    """Turn what CUDA reports within the block into one line; `place` says where it came up."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # CuPy's exceptions have no common base class; their modules tell them from errors of this program.
        if not type(error).__module__.startswith(("cupy", "torch")):
            raise
        if "OutOfMemory" in type(error).__name__ or "out of memory" in str(error).lower():
            remedy = "free memory on the GPU (nvidia-smi names who holds it), or choose smaller shapes"
        raise InputError("GPU", place, _first_line(error), remedy) from None


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _three(size: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    return tuple(int(part) for part in sizes) + (1,) * (3 - len(sizes))
