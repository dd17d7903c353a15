"""Runs probed kernels on the CPU: gpuledger's CUDA sources, compiled as C++ with tests/cuda_*on_cpu.hpp."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpuledger.readers.neutrino import PAGE_BYTES
from gpuledger.record import cuda
from gpuledger.record.probes.launch import (
    FLUSH_BYTES,
    PROBES,
    SAVES,
    TOOLS,
    Built,
    Launched,
    on_pages,
    split_records,
    words_of,
)

COMPILER = shutil.which("g++") or shutil.which("c++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA kernels with")
WRAPPER = """
#include "{header}"
#define PROBE {probe}
#include "{source}"
struct Pointer {{ void *p; template <class T> operator T *() const {{ return (T *)p; }} }};
extern "C" const char *launch(const unsigned *grid, unsigned threads, int backwards, {parameters}) {{
    return emulation::run({{grid[0], grid[1], grid[2]}}, threads, backwards, [&] {{ {function}({arguments}); }});
}}
"""
TYPES = {
    np.dtype("u4"): ("unsigned int", ctypes.c_uint),
    np.dtype("u8"): ("unsigned long long", ctypes.c_ulonglong),
    np.dtype("f4"): ("float", ctypes.c_float),
}


@functools.cache
def library(source, function, probe, tensors, scalars):
    """Compile one kernel with one probe; `scalars` are the types of what follows the tensors."""
    number = list(PROBES).index(probe)
    parameters = [f"void *t{i}" for i in range(tensors)] + [f"{TYPES[t][0]} s{i}" for i, t in enumerate(scalars)]
    arguments = [f"Pointer{{t{i}}}" for i in range(tensors)] + [f"s{i}" for i in range(len(scalars))]
    if number:
        parameters += ["unsigned long long *records", "unsigned int slots"]
        arguments += ["records", "slots"]
    text = WRAPPER.format(
        header=Path(__file__).with_name("cuda_instructions_on_cpu.hpp"),
        source=cuda.SOURCES / source,
        probe=number,
        parameters=", ".join(parameters),
        function=function,
        arguments=", ".join(arguments),
    )
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-emulation-"))
    (folder / "kernel.cpp").write_text(text, "utf-8")
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", str(folder / "kernel.so")]
    done = subprocess.run([COMPILER, *options, str(folder / "kernel.cpp")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    launch = ctypes.CDLL(str(folder / "kernel.so")).launch
    launch.restype = ctypes.c_char_p
    shutil.rmtree(folder)
    return launch


class EmulatedRunner:
    """As gpuledger.record.probes.launch.Runner, on the CPU. Times are made up, records are what kernels save."""

    def __init__(self, sms=4, backwards=False):
        self.device = cuda.CudaDevice(0, "emulated GPU", "8.0", sms, 1 << 20, 1 << 30, 1_000_000_000)
        self.backwards = backwards

    def execute(self, workload, probe, slots=0):
        """Run a kernel; return its tensors and what its probe saved, as 64-bit words."""
        random = np.random.default_rng(7)
        tensors = {}
        for tensor in workload.tensors:
            memory = np.empty(tensor.size_bytes + PAGE_BYTES, np.uint8)
            tensors[tensor.name] = on_pages(memory, memory.ctypes.data, tensor)
            tensors[tensor.name][...] = 1 if tensor.written else random.standard_normal(tensor.shape)
        types = tuple(scalar.dtype for scalar in workload.scalars)
        launch = library(workload.source, workload.function, probe, len(tensors), types)
        arguments = [array.ctypes.data_as(ctypes.c_void_p) for array in tensors.values()]
        arguments += [TYPES[scalar.dtype][1](scalar.item()) for scalar in workload.scalars]
        if probe == "count":
            words = workload.blocks * workload.threads
        else:
            words = words_of(workload, probe, slots) if probe != "none" else 0
        records = np.zeros(words, np.uint64)
        if words:
            arguments += [records.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint(slots)]
        grid = np.array(workload.grid, np.uint32)
        start = (grid.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint(workload.threads), ctypes.c_int(self.backwards))
        failure = launch(*start, *arguments)
        assert failure is None, failure.decode()
        return tensors, records

    def run(self, workload, probe, repeats=1):
        slots = TOOLS[SAVES.get(probe, (probe,))[0]].cap
        if slots is None:
            slots = int(self.execute(workload, "count", 1)[1].max())
        tensors, words = self.execute(workload, probe, slots)
        assert workload.largest_error(tensors) < 5e-3
        records = split_records(words, workload, probe, slots)
        addresses = {name: array.ctypes.data for name, array in tensors.items()}
        plain, probed = Built(40, 0, 0), Built(46, 0, 0)
        return Launched(workload, probe, "sm_80", plain, probed, records, addresses, 0, 0.5, 0.25, 1.0, 0.125)

    def check_alive(self):
        pass

    def time_ns(self, workload, repeats=1):
        return 1000.0

    def memset_ns(self, size_bytes, repeats=1):
        return 900.0

    def resident_blocks(self, workload):
        return 2 * self.device.sms


class Memory(np.ndarray):
    """An array as CuPy has it, as far as probes need one."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, memset_async=self._fill)

    def _fill(self, value, size):
        assert size <= self.nbytes
        self.gpu.log.append("flush" if size == FLUSH_BYTES else "memset")
        if size != FLUSH_BYTES:
            ctypes.memset(self.ctypes.data, value, size)

    def __array_finalize__(self, parent):
        self.gpu = getattr(parent, "gpu", None)

    def set(self, values):
        assert (values.dtype, values.shape) == (self.dtype, self.shape)
        np.copyto(self, values)

    def get(self):
        return np.array(self, subok=False)


class EmulatedGpu:
    """As CuPy and one GPU, with what gpuledger.record.probes.launch uses of them and nothing else.

    Attributes
    ----------
    log : list of str
        What was done, in order.
    fails : dict of str to str
        By probe, ``nothing``: the kernel writes nothing.
    resident : int
        Blocks that an SM holds.
    most_bytes : int
        Largest allocation at one time, of what is of a megabyte or more.
    """

    def __init__(self):
        self.log, self.fails, self.resident, self.most_bytes = [], {}, 2, 0
        self._live = {}
        self.cuda = SimpleNamespace(
            Event=self._event,
            Stream=SimpleNamespace(null=SimpleNamespace(synchronize=lambda: None)),
            get_elapsed_time=lambda start, end: 0.5,
            runtime=SimpleNamespace(
                deviceSynchronize=lambda: None,
                getDeviceProperties=lambda index: {
                    "sharedMemPerMultiprocessor": 228 * 1024,
                    "sharedMemPerBlockOptin": 227 * 1024,
                },
            ),
        )

    def empty(self, size, dtype):
        memory = np.empty(size, dtype).view(Memory)
        memory.gpu = self
        if memory.nbytes >= 1_000_000 and memory.nbytes != FLUSH_BYTES:
            self._live[id(memory)] = memory.nbytes
            weakref.finalize(memory, self._live.pop, id(memory))
            self.most_bytes = max(self.most_bytes, sum(self._live.values()))
        return memory

    def zeros(self, size, dtype):
        memory = self.empty(size, dtype)
        memory[...] = 0
        return memory

    def get_default_memory_pool(self):
        return SimpleNamespace(free_all_blocks=lambda: self.log.append("free"))

    def _event(self):
        self.log.append("event")
        return SimpleNamespace(record=lambda: self.log.append("record"), synchronize=lambda: None)

    def load_module(self, source, device, options):
        """Stand in for :func:`gpuledger.record.cuda.load_module`."""
        names = {macro: probe for probe, macro in PROBES.items()}
        probe = names[options[-1].partition("PROBE=")[2]]
        return SimpleNamespace(kernel=lambda function: EmulatedKernel(self, source, function, probe))


class EmulatedKernel:
    registers, local_bytes, shared_bytes = 40, 0, 40960

    def __init__(self, gpu, source, function, probe):
        self.gpu, self.source, self.function, self.probe, self.allowed = gpu, source, function, probe, None

    def allow_shared(self, shared_bytes):
        self.allowed = shared_bytes

    def blocks_per_sm(self, threads, shared_bytes=0):
        return self.gpu.resident

    def launch(self, grid, block, *arguments, shared_bytes=0):
        assert self.allowed == shared_bytes, "what a launch asks for is allowed before"
        self.gpu.log.append(f"launch {self.probe}")
        if self.gpu.fails.get(self.probe) == "nothing":
            return
        arrays = [value for value in arguments if isinstance(value, np.ndarray)]
        scalars = [value for value in arguments if not isinstance(value, np.ndarray)]
        more = 0 if self.probe == "none" else 1
        own = scalars[: len(scalars) - more]
        run = library(self.source, self.function, self.probe, len(arrays) - more, tuple(s.dtype for s in own))
        pointers = [ctypes.c_void_p(array.data.ptr) for array in arrays]
        values = [TYPES[scalar.dtype][1](scalar.item()) for scalar in scalars]
        place = len(arrays) - more
        sizes = np.array(grid, np.uint32)
        start = (ctypes.c_void_p(sizes.ctypes.data), ctypes.c_uint(int(np.prod(block))), ctypes.c_int(0))
        failure = run(*start, *pointers[:place], *values[: len(own)], *pointers[place:], *values[len(own) :])
        assert failure is None, failure.decode()
