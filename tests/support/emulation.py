"""Runs probed kernels on the CPU: gpuledger's CUDA sources, compiled as C++ with tests/cuda_*on_cpu.hpp."""

import ctypes
import functools

import compiled
import numpy as np

from gpuledger.readers.neutrino import PAGE_BYTES, Build
from gpuledger.record import cuda
from gpuledger.record.probes import workloads
from gpuledger.record.probes.launch import PROBES, SAVES, TOOLS, Launched, split_records, words_of

HEAD = """
#include "cuda_instructions_on_cpu.hpp"
#include "instructions.cuh"
struct Pointer { void *p; template <class T> operator T *() const { return (T *)p; } };
"""
#: A source with each probe, in a namespace of its own.
VARIANT = """
#undef PROBE
#undef PROBE_PARAMETERS
#undef PROBE_BEGIN
#define PROBE {probe}
namespace probe_{probe} {{
#include "{source}"
}}
"""
LAUNCH = """
extern "C" const char *{function}_{probe}(const unsigned *grid, unsigned threads, int backwards, {parameters}) {{
    return emulation::run({{grid[0], grid[1], grid[2]}}, threads, backwards, [&] {{
        probe_{probe}::{function}({arguments});
    }});
}}
"""
TYPES = {
    np.dtype("u4"): ("unsigned int", ctypes.c_uint),
    np.dtype("u8"): ("unsigned long long", ctypes.c_ulonglong),
    np.dtype("f4"): ("float", ctypes.c_float),
}


#: Source, tensors and types of the scalars of each kernel.
SIGNATURES = {
    work.function: (work.source, len(work.tensors), tuple(scalar.dtype for scalar in work.scalars))
    for work in (workloads.fill(64, 512), workloads.fill_persistent(1), workloads.gemm(128), workloads.attention(1, 64))
}


def repeatable(source):
    """Return a source and what it includes, by name, to be included once for each probe."""
    texts = {name: (cuda.SOURCES / name).read_text("utf-8") for name in (source, "probes.cuh")}
    return {name: text.replace("#pragma once", "") for name, text in texts.items()}


@functools.cache
def library(source):
    """Compile the kernels of a source with every probe at once: most of the time goes into the headers."""
    text = HEAD
    for number in range(len(PROBES)):
        text += VARIANT.format(probe=number, source=source)
        for function, (place, tensors, scalars) in SIGNATURES.items():
            if place != source:
                continue
            parameters = [f"void *t{i}" for i in range(tensors)]
            parameters += [f"{TYPES[t][0]} s{i}" for i, t in enumerate(scalars)]
            arguments = [f"Pointer{{t{i}}}" for i in range(tensors)] + [f"s{i}" for i in range(len(scalars))]
            if number:
                parameters += ["unsigned long long *records", "unsigned int slots"]
                arguments += ["records", "slots"]
            words = {"parameters": ", ".join(parameters), "arguments": ", ".join(arguments)}
            text += LAUNCH.format(probe=number, function=function, **words)
    return compiled.library(source.partition(".")[0], text, repeatable(source))


def launcher(function, probe):
    """The function that launches a kernel with a probe."""
    launch = library(SIGNATURES[function][0])[f"{function}_{list(PROBES).index(probe)}"]
    launch.restype = ctypes.c_char_p
    return launch


class EmulatedRunner:
    """As gpuledger.record.probes.launch.Runner, on the CPU. Times are made up, records are what kernels save."""

    def __init__(self, sms=4, backwards=False):
        self.device = cuda.CudaDevice("emulated GPU", "8.0", sms, 1 << 20, 1 << 30, 164 << 10, 163 << 10)
        self.backwards = backwards

    def execute(self, workload, probe, slots=0):
        """Run a kernel; return its tensors and what its probe saved, as 64-bit words."""
        random = np.random.default_rng(7)
        tensors = {}
        for tensor in workload.tensors:
            memory = np.empty(tensor.size_bytes + PAGE_BYTES, np.uint8)
            start = -memory.ctypes.data % PAGE_BYTES
            tensors[tensor.name] = memory[start : start + tensor.size_bytes].view(np.float16).reshape(tensor.shape)
            tensors[tensor.name][...] = 1 if tensor.written else random.standard_normal(tensor.shape)
        launch = launcher(workload.function, probe)
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
        plain, probed = (Build("sm_80", registers, 0, 0, 0, shared_bytes=0) for registers in (40, 46))
        return Launched(workload, probe, plain, probed, records, addresses, 0, 0.5, 0.25, 1.0, 0.125, 1500.0)

    def check_alive(self):
        pass

    def time_ns(self, workload):
        return 1000.0

    def empty_ns(self):
        return 3000.0

    def memset_ns(self, size_bytes):
        return 900.0

    def resident_blocks(self, workload):
        return 2 * self.device.sms


#: Static shared memory of gemm.cu, and what the others need at most.
STATIC_BYTES = 40 * 1024
#: Nanoseconds of the kernels of ceilings.cu, and of all others.
TIMES_NS = {"read_all": 80_000.0, "empty": 3000.0, "measure_clock": 1e6}
KERNEL_NS = 500_000.0


def run_on_cpu(fails, image, name, grid, block, shared_bytes, arguments):
    """Run a kernel for :class:`fake_driver.FakeDriver`; `fails` are the probes with which it writes nothing."""
    if name == "measure_clock":
        address = int.from_bytes(arguments[0], "little")
        ctypes.memmove(address, np.array([1_500_000, 1_000_000], np.uint64).ctypes.data, 16)
    if name in TIMES_NS:
        return TIMES_NS[name]
    macro = image.rpartition("PROBE=")[2]
    probe = next(probe for probe, known in PROBES.items() if known == macro)
    if probe in fails:
        return KERNEL_NS
    _, tensors, types = SIGNATURES[name]
    own, more = arguments[: tensors + len(types)], arguments[tensors + len(types) :]
    values = [ctypes.c_void_p(int.from_bytes(value, "little")) for value in own[:tensors]]
    values += [
        TYPES[dtype][1](np.frombuffer(value, dtype)[0].item())
        for value, dtype in zip(own[tensors:], types, strict=True)
    ]
    if more:
        values += [ctypes.c_void_p(int.from_bytes(more[0], "little")), ctypes.c_uint(int.from_bytes(more[1], "little"))]
    sizes = np.array(grid, np.uint32)
    start = (ctypes.c_void_p(sizes.ctypes.data), ctypes.c_uint(int(np.prod(block))), ctypes.c_int(0))
    failure = launcher(name, probe)(*start, *values)
    assert failure is None, failure.decode()
    return KERNEL_NS
