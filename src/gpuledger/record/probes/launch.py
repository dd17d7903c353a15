"""Launch workloads with and without a probe on a GPU, and return the probe's records."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from statistics import median

import numpy as np

from gpuledger.errors import InputError
from gpuledger.readers.neutrino import PAGE_BYTES, Build
from gpuledger.readers.neutrino.records import TOOLS as SHIPPED
from gpuledger.readers.neutrino.records import ProbeMap
from gpuledger.record import cuda
from gpuledger.record.cuda import DeviceArray
from gpuledger.record.driver import driver
from gpuledger.record.probes.workloads import ProbeWorkload

#: Macros of the probes in the sources; ``count`` determines how long the slices of ``dmat`` must be.
PROBES = {
    "none": "PROBE_NONE",
    "block_sched": "PROBE_BLOCK_SCHED",
    "gmem_bytes": "PROBE_GMEM_BYTES",
    "tensorop_count": "PROBE_TENSOROP_COUNT",
    "dmat": "PROBE_DMAT",
    "program_progress": "PROBE_PROGRAM_PROGRESS",
    "count": "PROBE_COUNT",
    "timeline": "PROBE_TIMELINE",
}
#: Records of the probes: Neutrino's tools, and ``warp_progress``, which is ``program_progress`` per warp and for fewer
#: iterations, and so takes a hundredth of the memory.
TOOLS = {**SHIPPED, "warp_progress": replace(SHIPPED["program_progress"], level="warp", cap=64)}
#: A timeline records the progress of warps together with ``block_sched`` of the same launch.
SAVES = {"timeline": ("warp_progress", "block_sched")}
#: Largest error of fp16 results relative to the largest value; a wrong fragment layout causes errors of order 1.
TOLERANCE = 5e-3
#: Buffer that is read between timed launches to flush the L2: larger than any L2, and a multiple of 16.
FLUSH_BYTES = 256_000_000
#: Passes over it before every timed launch: about 10 ms, in which the host enqueues the launch and the SM clock, which
#: falls while the host checks results, rises again; and before the first one.
FLUSH_PASSES, WARM_UP_PASSES = 100, 600
#: Launches of which :meth:`Runner.time_ns` and the like return the median time.
TIMED_LAUNCHES = 20
#: The clock is measured for this long after a timed launch (ns).
CLOCK_NS = 1_000_000
#: Shared memory that CUDA reserves per block, from compute capability 8.0 on (CUDA C++ Programming Guide).
RESERVED_BYTES = 1024
#: Fill of output tensors before a launch whose result is checked: NaN in fp16.
BLANK_BYTE = 0xFF


@dataclass(frozen=True)
class Launched:
    """The result of a launch with a probe."""

    workload: ProbeWorkload
    probe: str
    #: The kernel without and with the probe.
    plain: Build
    probed: Build
    #: dict of ndarray of the tool's record type, (blocks, units, slots): by tool; a timeline has two.
    records: dict[str, np.ndarray]
    addresses: dict[str, int]  # address of each tensor
    dynamic_bytes: int  # dynamic shared memory per block
    #: Time of the kernel without a probe, after an L2 flush. With a probe: time to allocate and clear the probe's
    #: memory, to run the kernel (after a flush), and to copy the records to the host. Medians of repeated launches.
    original_ms: float
    prologue_ms: float
    kernel_ms: float
    epilogue_ms: float
    clock_mhz: float  # SM clock right after the launch with the probe, median of repeated launches


@dataclass
class Runner:
    """Runs workloads on one GPU."""

    device: cuda.CudaDevice
    as_ptx: bool = False  # whether kernels are loaded as PTX; see :func:`gpuledger.record.cuda.load_module`
    _modules: dict[tuple[str, str], cuda.LoadedModule] = field(default_factory=dict)
    _flushed: DeviceArray | None = None

    def run(self, workload: ProbeWorkload, probe: str, repeats: int = 1) -> Launched:
        """Launch a workload without and with a probe.

        Parameters
        ----------
        probe : str
            A tool of :data:`TOOLS`, or ``timeline``.
        repeats : int
            Number of launches; times are medians, records are from the last launch. One more comes first and does not
            count, because it fetches the kernel's instructions.
        """
        with cuda.named_errors(workload.name, "free the GPU, or update the driver"):
            plain, probed = self._kernel(workload, "none"), self._kernel(workload, probe)
            dynamic = self._dynamic_bytes(workload, plain)
            for kernel in (plain, probed):
                self._check_resident(workload, kernel, dynamic)
            arrays = self._arrays(workload)
            arguments = (*arrays.values(), *workload.scalars)
            self._launch(plain, workload, arguments, dynamic)
            self._check(workload, arrays)
            slots = self._slots(workload, probe, arguments, dynamic)
            times: list[tuple[float, ...]] = []
            self._read(WARM_UP_PASSES)
            for _ in range(1 + repeats):
                original = self._timed(lambda: self._launch(plain, workload, arguments, dynamic))[0]
                self._blank(workload, arrays)
                # A user's launch allocates its buffer, so an earlier one must be neither reused nor kept.
                records = words = more = None
                driver().synchronize()
                start = time.perf_counter()
                records = DeviceArray(words_of(workload, probe, slots), np.uint64)
                records.fill_bytes(0)
                driver().synchronize()
                prologue = time.perf_counter() - start
                more = (*arguments, records, np.uint32(slots))
                kernel, clock = self._timed(lambda more=more: self._launch(probed, workload, more, dynamic))
                start = time.perf_counter()
                words = records.get()
                times.append((original, 1e3 * prologue, kernel, 1e3 * (time.perf_counter() - start), clock))
            self._check(workload, arrays)
            addresses = {name: array.address for name, array in arrays.items()}
        original_ms, prologue_ms, kernel_ms, epilogue_ms, clock_mhz = map(median, zip(*times[1:], strict=True))
        return Launched(
            workload,
            probe,
            self._build(plain),
            self._build(probed),
            split_records(words, workload, probe, slots),
            addresses,
            dynamic,
            original_ms,
            prologue_ms,
            kernel_ms,
            epilogue_ms,
            clock_mhz,
        )

    def launch_once(self, workload: ProbeWorkload) -> None:
        """Launch a workload once, without a probe, and check its result."""
        with cuda.named_errors(workload.name, "free the GPU, or update the driver"):
            kernel, arrays = self._kernel(workload, "none"), self._arrays(workload)
            self._launch(kernel, workload, (*arrays.values(), *workload.scalars), 0)
            self._check(workload, arrays)

    def time_ns(self, workload: ProbeWorkload) -> float:
        """Median time (ns) of a workload without a probe, each launch after an L2 flush."""
        return self._median_ns(workload.name, self.launcher(workload))

    def empty_ns(self) -> float:
        """Median time (ns) of an empty kernel, which the times of all kernels contain as well."""
        kernel = self._ceilings().kernel("empty")
        return self._median_ns("empty kernel", lambda: kernel.launch(1, 32))

    def memset_ns(self, size_bytes: int) -> float:
        """Median time (ns) of a memset, each after an L2 flush."""
        with cuda.named_errors("memset", "free the GPU, or update the driver"):
            target = DeviceArray(size_bytes, np.uint8)
        return self._median_ns("memset", lambda: target.fill_bytes(0))

    def launcher(self, workload: ProbeWorkload) -> Callable[[], None]:
        """Return a function that launches a workload without a probe on allocated tensors, without waiting."""
        with cuda.named_errors(workload.name, "free the GPU, or update the driver"):
            kernel = self._kernel(workload, "none")
            dynamic = self._dynamic_bytes(workload, kernel)
            arguments = (*self._arrays(workload).values(), *workload.scalars)
        return lambda: self._launch(kernel, workload, arguments, dynamic)

    def resident_blocks(self, workload: ProbeWorkload) -> int:
        """Blocks of a workload that the GPU runs at the same time."""
        return self.device.sms * self._kernel(workload, "none").blocks_per_sm(workload.threads)

    def check_alive(self) -> None:
        """Check that this process can still use the GPU: some failures make every later call fail."""
        with cuda.named_errors(self.device.name, "record again; finished steps are kept"):
            driver().synchronize()

    def _kernel(self, workload: ProbeWorkload, probe: str) -> cuda.LoadedKernel:
        if workload.tensor_cores and int(self.device.compute_capability.partition(".")[0]) < 8:
            problem = f"{self.device.name} has compute capability {self.device.compute_capability}"
            remedy = "record on a GPU of 8.0 (Ampere) or newer, which the kernel's asynchronous copies and MMAs need"
            raise InputError("GPU", workload.name, problem, remedy)
        key = (workload.source, probe)
        if key not in self._modules:
            options = (*cuda.OPTIONS, f"--include-path={cuda.SOURCES}", f"--define-macro=PROBE={PROBES[probe]}")
            self._modules[key] = cuda.load_module(workload.source, self.device, options, as_ptx=self.as_ptx)
        return self._modules[key].kernel(workload.function)

    def _build(self, kernel: cuda.LoadedKernel) -> Build:
        # These kernels have no local arrays, so all local memory is spills. The driver does not distinguish spill
        # stores from spill loads.
        return Build(
            arch=self.device.architecture,
            registers=kernel.registers,
            stack_bytes=kernel.local_bytes,
            spill_store_bytes=kernel.local_bytes,
            spill_load_bytes=0,
            shared_bytes=kernel.shared_bytes,
        )

    def _dynamic_bytes(self, workload: ProbeWorkload, kernel: cuda.LoadedKernel) -> int:
        """Dynamic shared memory with which the wanted number of blocks fit on an SM, and no more."""
        if not (wanted := workload.blocks_per_sm):
            return 0
        share = self.device.shared_bytes_per_sm // wanted - RESERVED_BYTES
        # In the allocation granularity of 1 KiB.
        dynamic = min(share, self.device.shared_bytes) // 1024 * 1024 - kernel.shared_bytes
        if dynamic < 0:
            problem = f"{wanted} blocks do not fit on an SM of {self.device.name}"
            raise InputError("GPU", workload.name, problem, "record on a GPU with more shared memory")
        # As much as possible; less, should the driver keep more of the SM for itself than is documented.
        enough = (size for size in range(dynamic, -1, -1024) if kernel.blocks_per_sm(workload.threads, size) >= wanted)
        return next(enough, dynamic)

    def _check_resident(self, workload: ProbeWorkload, kernel: cuda.LoadedKernel, dynamic: int) -> None:
        """Check that an SM runs as many blocks at once as the workload requires; registers may limit them."""
        wanted = workload.blocks_per_sm
        if wanted and (found := kernel.blocks_per_sm(workload.threads, dynamic)) != wanted:
            problem = f"an SM of {self.device.name} runs {found} of its blocks at once, not {wanted}"
            raise InputError("GPU", workload.name, problem, "report it with the GPU's name")

    def _arrays(self, workload: ProbeWorkload) -> dict[str, DeviceArray]:
        # Values are generated and results checked on the host, so that the reference does not depend on the code under
        # test. Every tensor starts on a page of its own, so that no page has two tensors.
        random, arrays = np.random.default_rng(20), {}
        for tensor in workload.tensors:
            array = arrays[tensor.name] = DeviceArray(tensor.shape, np.float16, PAGE_BYTES)
            if not tensor.written:
                array.set(random.standard_normal(tensor.shape, np.float32).astype(np.float16))
        self._blank(workload, arrays)
        return arrays

    @staticmethod
    def _blank(workload: ProbeWorkload, arrays: dict[str, DeviceArray]) -> None:
        """Fill output tensors with NaN, so that elements that are not written are noticed."""
        for tensor in workload.tensors:
            if tensor.written:
                arrays[tensor.name].fill_bytes(BLANK_BYTE)

    def _slots(self, workload: ProbeWorkload, probe: str, arguments: tuple, dynamic: int) -> int:
        """Records per thread or warp; accesses are counted by a separate run."""
        if probe != "dmat":
            return TOOLS[SAVES.get(probe, (probe,))[0]].cap
        counts = DeviceArray(workload.blocks * workload.threads, np.uint64)
        counts.fill_bytes(0)
        self._launch(self._kernel(workload, "count"), workload, (*arguments, counts, np.uint32(1)), dynamic)
        return int(counts.get().max())

    @staticmethod
    def _launch(kernel: cuda.LoadedKernel, workload: ProbeWorkload, arguments: tuple, dynamic: int) -> None:
        kernel.launch(workload.grid, workload.block, *arguments, shared_bytes=dynamic)

    def _ceilings(self) -> cuda.LoadedModule:
        key = ("ceilings.cu", "")
        if key not in self._modules:
            self._modules[key] = cuda.load_module("ceilings.cu", self.device)
        return self._modules[key]

    def _read(self, passes: int) -> None:
        """Flush the L2 by reading."""
        if self._flushed is None:
            self._flushed = DeviceArray(FLUSH_BYTES, np.uint8)
            self._flushed.fill_bytes(0)
        sizes = np.int64(FLUSH_BYTES // 16), np.int32(passes)
        self._ceilings().kernel("read_all").launch(8 * self.device.sms, 512, self._flushed, self._flushed, *sizes)

    def _median_ns(self, place: str, launch: Callable[[], None]) -> float:
        with cuda.named_errors(place, "free the GPU, or update the driver"):
            self._read(WARM_UP_PASSES)
            return 1e6 * median(self._timed(launch)[0] for _ in range(TIMED_LAUNCHES))

    def _timed(self, launch: Callable[[], None]) -> tuple[float, float]:
        """Time (ms) between two events around a launch that follows an L2 flush, and the SM clock (MHz) after it."""
        api, stream = driver(), 0  # of launches, outside of a capture
        # Everything else is ready before the flush, during which the host enqueues what follows.
        start, end, counted = api.event(), api.event(), DeviceArray(2, np.uint64)
        clock = self._ceilings().kernel("measure_clock")
        self._read(FLUSH_PASSES)
        api.record(start, stream)
        launch()
        api.record(end, stream)
        clock.launch(1, 1, counted, np.uint64(CLOCK_NS))
        time_ms = api.elapsed_ms(start, end)
        cycles, nanoseconds = counted.get().tolist()
        for event in (start, end):
            api.free_event(event)
        return time_ms, 1e3 * cycles / nanoseconds

    def _check(self, workload: ProbeWorkload, arrays: dict[str, DeviceArray]) -> None:
        error = workload.largest_error({name: array.get() for name, array in arrays.items()})
        if not error <= TOLERANCE:
            problem = f"the kernel's result is wrong on {self.device.name} (relative error {error:.2g})"
            raise InputError("GPU", workload.name, problem, "report it with the GPU's name; nothing is recorded")


def words_of(workload: ProbeWorkload, probe: str, slots: int) -> int:
    """Size of a probe's buffer in 8-byte words, with `slots` records per slice (for a timeline: in its first part)."""
    return sum(prod(shape) * tool.dtype.itemsize // 8 for tool, shape in _parts(workload, probe, slots))


def split_records(words: np.ndarray, workload: ProbeWorkload, probe: str, slots: int) -> dict[str, np.ndarray]:
    """Split a probe's buffer into records by tool."""
    records, start = {}, 0
    for name, (tool, shape) in zip(SAVES.get(probe, (probe,)), _parts(workload, probe, slots), strict=True):
        end = start + prod(shape) * tool.dtype.itemsize // 8
        records[name], start = words[start:end].view(tool.dtype).reshape(shape), end
    return records


def _parts(workload: ProbeWorkload, probe: str, slots: int) -> list[tuple[ProbeMap, tuple[int, int, int]]]:
    tools = [TOOLS[name] for name in SAVES.get(probe, (probe,))]
    counts = [slots, *(tool.cap for tool in tools[1:])]
    units = [workload.threads // (32 if tool.level == "warp" else 1) for tool in tools]
    return [(tool, (workload.blocks, unit, count)) for tool, unit, count in zip(tools, units, counts, strict=True)]
