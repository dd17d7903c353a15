"""Time normalization kernels and the GPU's ceilings; resumable shape by shape.

The kernels are in ``cuda_sources/normalization.cu``, which also specifies their results. This module selects their
configurations, checks each against double precision, times it with a cold and a warm L2, and writes the input of the
study ``normalization_roofline``.
"""

import logging
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.record import cuda, normalization_torch
from gpuledger.record import normalization_kernels as kernels
from gpuledger.record.cuda import DeviceArray
from gpuledger.record.cuda_timing import Capture, Launch, Timing, capture_graph, rotation, time_in_turn
from gpuledger.record.parts import Recorded
from gpuledger.record.recording import ending_after, hash_sources, read_state

#: Normalizes or copies one array into another.
Launcher = Callable[[DeviceArray, DeviceArray], object]
LOG = logging.getLogger("gpuledger")
#: Without contraction of a·b + c, rounding follows the source exactly, as on a CPU.
OPTIONS = (*cuda.OPTIONS, "--fmad=false", f"--include-path={cuda.SOURCES}")
#: Shapes (rows, length): the four of the source document, larger ones, and unaligned rows.
SHAPES = (
    *((1024, 128), (4096, 256), (8192, 512), (16384, 1024)),
    *((65536, 1024), (16384, 4096), (8192, 8192), (4096, 16384), (4096, 32768), (1024, 131072)),
    *((131072, 128), (16384, 1023), (16384, 4095)),
)
#: Shapes of fp16 and bf16: large ones.
SHAPES_16 = ((131072, 128), (65536, 1024), (16384, 4095), (8192, 8192), (4096, 32768), (1024, 131072))
#: Bytes that the copies of the sweep move, read and written together.
COPY_BYTES = tuple(2**power for power in range(18, 31))
#: Lengths beyond the registers of a block, and of a cluster, which :meth:`Bench.check_hostile` checks as well.
LONG_LENGTHS = (40_000, 40_001, 100_000, 100_003, 150_001, 200_000)
CACHES = ("cold", "warm")
#: Timed batches per kernel, shape and cache state.
SAMPLES = 30
#: Crashes of the process in a step after which the step is left out, and when a step counts as hanging (s).
TRIES, STEP_S = 2, 120.0
#: Work before a timing that follows work of the host (ms).
WARM_UP_MS = 50.0
#: Values that are compared with double precision for each launch; all are checked for having been written. More would
#: take longer than timing; these are all of :meth:`Bench.check_hostile`.
CHECKED_VALUES = 5_000_000
#: Outputs are filled with this byte: a number that is not a result of any row.
POISON_BYTE = 0xF5
ROW_COLUMNS = ("kernel", "rows", "length", "cache", "configuration")
CEILING_COLUMNS = ("ceiling", "cache", "moved_bytes", "flops", "configuration")
TIME_COLUMNS = ("time_median_ns", "time_p5_ns", "time_p95_ns", "launches")


def record_normalization(folder: str | Path) -> Recorded:
    """Check and time every kernel at every shape, and the ceilings, on this machine's GPU.

    Finished steps are kept in ``<folder>/parts``, so that an interrupted recording can be resumed; ``rows.csv``,
    likewise for fp16 and bf16, and ``ceilings.csv`` are written at the end. Steps of another device, other sources or
    settings are repeated.
    """
    device, target = cuda.open_device(), Path(folder)
    sources = hash_sources([*cuda.SOURCES.glob("normalization*"), cuda.SOURCES / "ceilings.cu"])
    stamp = {"device": asdict(device), "samples": SAMPLES, "sources": sources}
    bench = Bench(device)
    if missing := [name for name in normalization_torch.BASELINES if name not in bench.baselines]:
        LOG.warning("not installed here, and left out: %s", ", ".join(missing))
    work: list[tuple[str, Callable[[], list[dict]]]]
    work = [(f"hostile_{kernel}", partial(bench.check_hostile, kernel)) for kernel in bench.hostile_lengths]
    work += [("launch", bench.launch), ("multiply_add", bench.multiply_add)]
    work += [(f"copy_{size}", partial(bench.copy, size)) for size in COPY_BYTES]
    for element in kernels.ELEMENTS:
        for rows, length in SHAPES if element == "fp32" else SHAPES_16:
            work.append((f"{element}_{rows}x{length}", partial(bench.normalize, rows, length, element)))
    parts: dict[str, list[dict]] = {}
    failed: dict[str, str] = {}
    wrong: list[str] = []
    for number, (name, measure) in enumerate(work, 1):
        LOG.info("normalization: step %d of %d, %s", number, len(work), name)
        state = _step(target / "parts" / f"{name}.json", stamp, measure)
        parts[name] = state["rows"]
        if "failed" in state:
            failed[name] = state["failed"]
            LOG.error("%s is left out: %s", name, failed[name])
        if name.startswith("hostile_"):
            found = parts.pop(name)
            wrong += [f"{row['kernel']}: {row['wrong']}" for row in found]
            if found or "failed" in state:
                bench.wrong.add(name.removeprefix("hostile_"))
    shared = {"ceilings": "ceilings.csv", "l2_bytes": device.l2_bytes, **_data_sheet(device)}
    cases: dict[str, dict] = {}
    for element in kernels.ELEMENTS:
        measured = [row for name, rows in parts.items() if name.startswith(f"{element}_") for row in rows]
        if not any(row["kernel"] == "one_pass" for row in measured):
            LOG.error("no configuration is right in %s: its case is left out", element)
            continue
        suffix = "" if element == "fp32" else f"_{element}"
        write_rows(target / f"rows{suffix}.csv", measured, ROW_COLUMNS)
        which = {} if element == "fp32" else {"element": element}
        cases[f"measured{suffix}"] = {"rows": f"rows{suffix}.csv", **shared, **which}
    if not cases:
        problem = f"no kernel is right: {'; '.join([*wrong, *failed.values()][:1])}"
        raise InputError("normalization.cu", "", problem, "report the GPU and CUDA version")
    others = [row for name, rows in parts.items() if name.partition("_")[0] not in kernels.ELEMENTS for row in rows]
    write_rows(target / "ceilings.csv", others, CEILING_COLUMNS)
    shutil.rmtree(target / "parts")
    about = {"baselines": normalization_torch.versions(), "wrong": wrong, "failed": failed}
    return Recorded({"normalization_roofline": cases}, about)


def _step(part: Path, stamp: dict, measure: Callable[[], list[dict]]) -> dict:
    """Return ``rows`` of a step, from its file or measured now.

    If it fails, or its process crashed in it twice, there are none, and ``failed`` says why: one step must not cost the
    recording of all others.
    """
    state = read_state(part, stamp)
    if "rows" in state:
        return state
    crashed = state.get("crashed", 0)
    if crashed < TRIES:
        files.write_json(part, {"stamp": stamp, "crashed": crashed + 1})
        try:
            with ending_after(STEP_S):
                state = {"rows": measure()}
        except InputError as error:
            state = {"rows": [], "failed": f"{error.place}: {error.problem}"}
        except KeyboardInterrupt:
            files.write_json(part, {"stamp": stamp, "crashed": crashed})
            raise
    else:
        state = {"rows": [], "failed": f"its process crashed {crashed} times"}
    files.write_json(part, {"stamp": stamp, **state})
    if "failed" in state:
        with cuda.named_errors("normalization", "record again: finished steps are kept, and this one is left out"):
            DeviceArray(1, np.uint8).get()  # some failures make every later call of this process fail
    return state


def _data_sheet(device: cuda.CudaDevice) -> dict[str, str]:
    """Return the key ``gpu`` of the case if the GPU's data sheet can be found here."""
    try:
        # Imported here: it needs packages that a machine with little more than PyTorch does not have.
        from gpuledger.readers import gpus

        return {"gpu": gpus.find_gpu(device.name).name}
    except ImportError as error:
        LOG.warning("the case has no key gpu: %s; add it for the roofs of the data sheet", error)
    except InputError:
        remedy = "add it, and gpu: <its id> to the case, for the roofs of the data sheet"
        LOG.warning("%s is not in resources/gpus.csv: %s", device.name, remedy)
    return {}


def write_rows(path: Path, rows: Sequence[dict], columns: Sequence[str]) -> None:
    """Write measurements as a CSV, times rounded to a tenth of a nanosecond."""
    rounded = (row | {name: f"{row[name]:.1f}" for name in TIME_COLUMNS[:3]} for row in rows)
    files.write_csv(path, [*columns, *TIME_COLUMNS], rounded)


class Expected:
    """Expected results of rows of elements: of all of them or, if they are many, of evenly spaced ones."""

    def __init__(self, x: np.ndarray, element: str = "fp32"):
        rows, length = x.shape
        count = max(2, min(rows, CHECKED_VALUES // length))
        self.element = element
        self._rows = np.unique(np.linspace(0, rows - 1, count).astype(int))
        self._values = kernels.reference(kernels.from_elements(x[self._rows], element))

    def largest_error(self, y: np.ndarray) -> float:
        """Largest error of a result, see :func:`kernels.largest_error`; infinite if a value was not written."""
        blank = np.array(POISON_BYTE, np.uint8).repeat(y.itemsize).view(f"u{y.itemsize}")
        if (y.view(blank.dtype) == blank).any():
            return math.inf
        return kernels.largest_error(kernels.from_elements(y[self._rows], self.element), self._values)


class Bench:
    """The kernels, loaded for one device."""

    def __init__(self, device: cuda.CudaDevice):
        self.device = device
        self.clusters = int(device.compute_capability.partition(".")[0]) >= 9
        self.baselines = normalization_torch.baselines()
        #: Kernels with a wrong result, which are not timed.
        self.wrong: set[str] = set()
        self._modules: dict[tuple[str, ...], cuda.LoadedModule] = {}
        #: By kernel, the lengths at which :meth:`check_hostile` checks it.
        self.hostile_lengths: dict[str, list[int]] = {}
        lengths = {4 * lanes * slots + more for lanes, slots, _ in kernels.CONFIGURATIONS for more in (-4, -3, 0, 1)}
        for length in sorted({*range(1, 10), *lengths, *LONG_LENGTHS}):
            for configuration in self._choices(length):
                self.hostile_lengths.setdefault(configuration.kernel, []).append(length)

    def normalization(self, name: str, element: str) -> cuda.LoadedKernel:
        """Return a normalization kernel."""
        return self._kernel("normalization.cu", name, f"-DELEMENT={kernels.ELEMENTS[element][0]}")

    def ceiling(self, name: str, cache: str = "warm") -> cuda.LoadedKernel:
        """Return a kernel of a ceiling. With a warm cache, data should stay in L2: no streaming loads."""
        return self._kernel("ceilings.cu", name, f"-DSTREAMING={int(cache == 'cold')}")

    def _kernel(self, source: str, name: str, option: str) -> cuda.LoadedKernel:
        if (key := (source, option)) not in self._modules:
            self._modules[key] = cuda.load_module(source, self.device, (*OPTIONS, option))
        return self._modules[key].kernel(name)

    def launch(self) -> list[dict]:
        """Time an empty kernel: the launch floor."""
        kernel = self.ceiling("empty")
        timing = time_in_turn([lambda: kernel.launch(1, 32)], samples=SAMPLES)
        return [_row({"ceiling": "launch", "cache": "warm", "moved_bytes": 0, "flops": 0}, timing)]

    def multiply_add(self) -> list[dict]:
        """Time fused multiply-adds: the FP32 ceiling."""
        kernel = self.ceiling("multiply_add")
        blocks, iterations = 8 * self.device.sms, 4096
        out = DeviceArray(256 * blocks, np.float32)
        arguments = (out, np.int32(iterations), np.float32(0.999), np.float32(0.001))
        timing = time_in_turn([lambda: kernel.launch(blocks, 256, *arguments)], samples=SAMPLES, batch_ms=10.0)
        flops = 2 * 8 * 16 * iterations * 256 * blocks
        return [_row({"ceiling": "multiply_add", "cache": "warm", "moved_bytes": 0, "flops": flops}, timing)]

    def copy(self, moved_bytes: int) -> list[dict]:
        """Time a copy that reads and writes `moved_bytes` in total."""
        values = moved_bytes // 8
        keys = {"ceiling": "copy", "moved_bytes": 8 * values, "flops": 0}
        copied = self._copy(values)
        return [_row(keys | {"cache": cache, "configuration": what}, timing) for cache, what, timing in copied]

    def normalize(self, rows: int, length: int, element: str = "fp32") -> list[dict]:
        """Check and time every kernel, and a copy, at one shape."""
        values = np.random.default_rng(rows * length).standard_normal((rows, length), dtype=np.float32)
        values = kernels.to_elements(values, element)
        x, expected = cuda.to_device(values), Expected(values, element)
        del values
        keys = {"rows": rows, "length": length}
        copied = self._copy(x.nbytes // 4)
        found = [_row(keys | {"kernel": "copy", "cache": c, "configuration": what}, t) for c, what, t in copied]
        choices = kernels.configurations(length, self.clusters, element)
        candidates = [("two_pass", [kernels.TWO_PASS]), ("one_pass", choices)]
        for name, choices in candidates:
            launches = {}
            for configuration, at_most in self._grids(choices, rows, length, element):
                if configuration.kernel in self.wrong:
                    continue
                launch = self._launcher(configuration, at_most, length, element)
                if problem := self._problem(launch, x, expected):
                    words = configuration.kernel, rows, length, element, problem
                    LOG.error("%s, %d×%d, %s: %s; it is not timed", *words)
                    continue
                launches[_describe(configuration, at_most)] = launch
            for cache in CACHES if launches else ():
                what, timing = self._fastest(launches, cache, x)
                found.append(_row(keys | {"kernel": name, "cache": cache, "configuration": what}, timing))
        del expected
        for name, make in self.baselines.items():
            for cache in CACHES:
                capture = normalization_torch.capture_torch_graph
                try:
                    what, timing = self._fastest({"": make(element)}, cache, x, capture)
                except Exception as error:  # a library's own: Liger refuses long rows, Triton needs a C compiler
                    LOG.warning("%s is not timed at %d×%d, %s: %s", name, rows, length, element, error)
                    break
                found.append(_row(keys | {"kernel": name, "cache": cache, "configuration": what}, timing))
        return found

    def check_hostile(self, kernel: str) -> list[dict]:
        """Check a kernel on difficult lengths and values; return a row if a result is wrong.

        Kernel by kernel, because the GPU may be unusable to this process after one that fails.
        """
        for length in self.hostile_lengths[kernel]:
            values = np.concatenate([kernels.hostile_rows(length, seed) for seed in range(3)])
            x, expected = cuda.to_device(values), Expected(values)
            (configuration,) = (choice for choice in self._choices(length) if choice.kernel == kernel)
            for _, at_most in self._grids([configuration], *x.shape):
                if problem := self._problem(self._launcher(configuration, at_most, length), x, expected):
                    LOG.error("%s, length %d: %s; it is not timed", kernel, length, problem)
                    return [{"kernel": kernel, "wrong": f"length {length}: {problem}"}]
        return []

    def _choices(self, length: int) -> list[kernels.Configuration]:
        return [kernels.TWO_PASS, *kernels.configurations(length, self.clusters)]

    def _grids(
        self, choices: Sequence[kernels.Configuration], rows: int, length: int, element: str = "fp32"
    ) -> Iterator[tuple[kernels.Configuration, int | None]]:
        """Each configuration with one block per group of rows, and with as many blocks as the GPU runs at once."""
        for configuration in choices:
            yield configuration, None
            kernel = self.normalization(configuration.kernel, element)
            kept = self._kept(configuration, length, kernel, element)
            try:
                at_once = self.device.sms * kernel.blocks_per_sm(configuration.threads, kept)
            except InputError:  # not known for this kernel: one grid fewer
                continue
            if configuration.blocks(rows) > at_once:
                yield configuration, at_once

    def _kept(self, configuration: kernels.Configuration, length: int, kernel: cuda.LoadedKernel, element: str) -> int:
        return configuration.kept_bytes(length, self.device.shared_bytes - kernel.shared_bytes, element)

    def _launcher(
        self, configuration: kernels.Configuration, at_most: int | None, length: int, element: str = "fp32"
    ) -> Launcher:
        kernel = self.normalization(configuration.kernel, element)
        kept = self._kept(configuration, length, kernel, element)

        def launch(x: DeviceArray, y: DeviceArray) -> None:
            rows, length = x.shape
            blocks, sizes = configuration.blocks(rows, at_most), (np.int64(rows), np.int32(length))
            kernel.launch(blocks, configuration.threads, x, y, *sizes, shared_bytes=kept)

        return launch

    def _problem(self, launch: Launcher, x: DeviceArray, expected: Expected) -> str:
        """Return how a result differs from double precision, or why the kernel cannot be launched; empty if neither."""
        y = DeviceArray(x.shape, x.dtype)
        y.fill_bytes(POISON_BYTE)
        try:
            launch(x, y)
        except InputError as error:
            return error.problem
        with cuda.named_errors("normalization", "record again; finished steps are kept"):
            error = expected.largest_error(y.get())
        tolerance = kernels.tolerance(x.shape[1], expected.element)
        return "" if error <= tolerance else f"differs from double precision by {error:.3g}, more than {tolerance:.3g}"

    def _copy(self, values: int) -> list[tuple[str, str, Timing]]:
        vectors = math.ceil(values / 4)
        # Random, as the kernels' data: zeros take less power, and so allow higher clocks.
        random = np.random.default_rng(vectors).standard_normal(min(4 * vectors, 2**20), dtype=np.float32)
        source = cuda.to_device(np.resize(random, 4 * vectors))
        found = []
        for cache in CACHES:
            launches: dict[str, Launcher] = {}
            for unroll in (1, 4, 8):
                kernel = self.ceiling(f"copy_{unroll}", cache)
                full = math.ceil(vectors / (512 * unroll))
                at_once = self.device.sms * kernel.blocks_per_sm(512)
                for blocks in {full, min(full, at_once)}:
                    launches[f"copy_{unroll}, {blocks} blocks"] = partial(_copy_launch, kernel, blocks)
            launches["memcpy"] = lambda x, y: y.copy_from(x)
            found.append((cache, *self._fastest(launches, cache, source)))
        return found

    def _fastest(
        self, launches: dict[str, Launcher], cache: str, x: DeviceArray, capture: Capture = capture_graph
    ) -> tuple[str, Timing]:
        """Time every configuration briefly, and the fastest one thoroughly."""
        sets = rotation(2 * x.nbytes, self.device.l2_bytes) if cache == "cold" else 1
        pairs = [(x.copy(), DeviceArray(x.shape, x.dtype)) for _ in range(sets)]
        in_turn: dict[str, list[Launch]] = {
            what: [lambda pair=pair, launch=launch: launch(*pair) for pair in pairs]
            for what, launch in launches.items()
        }
        best = next(iter(in_turn))
        if len(in_turn) > 1:
            # Long enough for the SM clock, which falls while the host checks results: else the first one loses.
            time_in_turn(in_turn[best], samples=1, warm_up_ms=WARM_UP_MS, capture=capture)
            tried = {
                what: time_in_turn(launch, samples=5, warm_up_ms=2.0, capture=capture).median_ns
                for what, launch in in_turn.items()
            }
            best = min(tried, key=tried.__getitem__)
        return best, time_in_turn(in_turn[best], samples=SAMPLES, warm_up_ms=WARM_UP_MS, capture=capture)


def _copy_launch(kernel: cuda.LoadedKernel, blocks: int, x: DeviceArray, y: DeviceArray) -> None:
    kernel.launch(blocks, 512, x, y, np.int64(x.nbytes // 16))


def _describe(configuration: kernels.Configuration, at_most: int | None) -> str:
    return configuration.kernel if at_most is None else f"{configuration.kernel}, {at_most} blocks"


def _row(keys: dict, timing: Timing) -> dict:
    times = (timing.median_ns, timing.p5_ns, timing.p95_ns, timing.launches)
    return keys | dict(zip(TIME_COLUMNS, times, strict=True))
