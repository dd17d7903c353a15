"""A driver without a GPU: memory of the host, kernels as Python functions, a clock that launches advance.

Like libcuda, it hands out the same function for the same name of a module, and attributes stay with the function.
"""

import ctypes
from itertools import count
from types import SimpleNamespace

import numpy as np

from gpuledger.record import cuda, nvrtc
from gpuledger.record import cuda_timing as timing
from gpuledger.record import driver as library
from gpuledger.record.probes import exposed, launch

#: Attributes of the device, by number.
H200 = {
    library.CAPABILITY_MAJOR: 9, library.CAPABILITY_MINOR: 0, library.MULTIPROCESSORS: 132,
    library.L2_BYTES: 60 * 2**20,
    library.SHARED_BYTES_PER_SM: 228 * 1024,
    library.SHARED_BYTES_PER_BLOCK: 227 * 1024,
}  # fmt: skip


class FakeDriver:
    """Stands in for :class:`gpuledger.record.driver.Driver`.

    Parameters
    ----------
    run : callable
        Runs a kernel: gets the image of its module, its name, grid, block, shared bytes and the bytes of the arguments;
        returns the nanoseconds that it takes.
    static : callable
        Static shared memory of a kernel, from the image of its module and its name.

    Attributes
    ----------
    log : list of str
        Calls, in order.
    images : list of str
        Modules, in order.
    resident : int
        Blocks that an SM holds.
    most_bytes : int
        Largest sum of live allocations of a megabyte or more, without the buffer that flushes the L2.
    """

    def __init__(self, run, static=lambda image, name: 0, name="NVIDIA H200"):
        self.run, self.static, self.device_name = run, static, name
        self.log, self.images, self.resident, self.most_bytes, self.now = [], [], 2, 0, 0.0
        self._memory, self._handles, self._functions, self._numbers = {}, {}, {}, count(1000)
        self._capturing = None

    def install(self, monkeypatch):
        """Take the place of the driver and of NVRTC, whose images are the name of the source and its options."""
        for module in (cuda, timing, launch, exposed, library):
            monkeypatch.setattr(module, "driver", lambda: self)

        def compile_source(code, architecture, name, options):
            return " ".join((name, architecture, *options)).encode(), ""

        monkeypatch.setattr(nvrtc, "compile_source", compile_source)
        return self

    def device(self, index):
        return index

    def name(self, device):
        return self.device_name

    def memory_bytes(self, device):
        return 141 * 10**9

    def attribute(self, device, number):
        return H200[number]

    def use(self, device):
        self.log.append(f"use {device}")

    def synchronize(self):
        pass

    def allocate(self, size):
        memory = np.full(size, 0xAB, np.uint8)
        self._memory[memory.ctypes.data] = memory
        live = sum(array.nbytes for array in self._memory.values() if 10**6 <= array.nbytes != launch.FLUSH_BYTES)
        self.most_bytes = max(self.most_bytes, live)
        return memory.ctypes.data

    def free(self, address):
        del self._memory[address]

    def upload(self, address, host, size):
        ctypes.memmove(address, host, size)

    def download(self, host, address, size):
        ctypes.memmove(host, address, size)

    def copy(self, target, source, size, stream):
        self._enqueue("copy", lambda: ctypes.memmove(target, source, size) and 10.0)

    def fill(self, address, byte, size, stream):
        self._enqueue("memset", lambda: ctypes.memset(address, byte, size) and 10.0)

    def load(self, image):
        self.images.append(image.decode())
        return self._new(image.decode())

    def function(self, module, name):
        image = self._handles[module]
        known = [handle for handle, found in self._functions.items() if (found.image, found.name) == (image, name)]
        if known:
            return known[0]
        static = self.static(image, name)
        attributes = {library.REGISTERS: 64, library.LOCAL_BYTES: 0, library.STATIC_SHARED_BYTES: static}
        attributes |= {library.MOST_DYNAMIC_SHARED_BYTES: 48 * 1024 - static, library.SHARED_CARVEOUT_PERCENT: -1}
        handle = next(self._numbers)
        self._functions[handle] = SimpleNamespace(image=image, name=name, attributes=attributes)
        return handle

    def function_attribute(self, function, number):
        return self._functions[function].attributes[number]

    def set_function_attribute(self, function, number, value):
        attributes = self._functions[function].attributes
        if number == library.MOST_DYNAMIC_SHARED_BYTES:
            assert value + attributes[library.STATIC_SHARED_BYTES] <= H200[library.SHARED_BYTES_PER_BLOCK]
        self.log.append(f"configure {self._functions[function].name}")
        attributes[number] = value

    def attributes(self, name):
        """Attributes of every function of this name."""
        return [found.attributes for found in self._functions.values() if found.name == name]

    def resident_blocks(self, function, threads, shared_bytes):
        return self.resident

    def launch(self, function, grid, block, shared_bytes, stream, arguments):
        found = self._functions[function]
        if shared_bytes > found.attributes[library.MOST_DYNAMIC_SHARED_BYTES]:
            raise library.CudaError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        carveout = found.attributes[library.SHARED_CARVEOUT_PERCENT]
        assert carveout == (100 if shared_bytes else -1), "left by an earlier launch of the same function"
        what = (found.image, found.name, grid, block, shared_bytes, arguments)
        self._enqueue(f"launch {found.name}", lambda: self.run(*what))

    def stream(self):
        return 7

    def free_stream(self, stream):
        self.log.append("free stream")

    def wait_for_stream(self, stream):
        pass

    def event(self):
        return self._new(None)

    def record(self, event, stream):
        self.log.append("record")
        self._handles[event] = self.now

    def elapsed_ms(self, start, end):
        return (self._handles[end] - self._handles[start]) / 1e6

    def free_event(self, event):
        del self._handles[event]

    def begin_capture(self, stream):
        assert stream, "the default stream cannot be captured"
        self._capturing = []

    def end_capture(self, stream):
        captured, self._capturing = self._capturing, None
        return self._new(captured)

    def run_graph(self, executable, stream):
        for work in self._handles[executable]:
            self.now += work()

    def free_graph(self, executable):
        del self._handles[executable]

    def start_profiler(self):
        self.log.append("profiler on")

    def stop_profiler(self):
        self.log.append("profiler off")

    def work(self, nanoseconds):
        """Enqueue work that takes so long, as a launch does."""
        self._enqueue("work", lambda: nanoseconds)

    def _enqueue(self, what, work):
        if self._capturing is not None:
            self._capturing.append(work)
            return
        self.log.append(what)
        self.now += work()

    def _new(self, value):
        handle = next(self._numbers)
        self._handles[handle] = value
        return handle
