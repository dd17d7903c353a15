"""CUDA sources compile for every architecture without spills, and what cuda.py and cuda_timing.py do, without a GPU."""

import re
import shutil
import subprocess
import sys
import types

import pytest
from conftest import ROOT

from gpuledger.errors import InputError
from gpuledger.record import cuda, cuda_timing

SOURCES = ROOT / "src/gpuledger/record/cuda_sources"
#: Ampere and Hopper data-centre GPUs; Blackwell where the compiler knows it.
ARCHITECTURES = ("80", "90", "100")
OWN = ("normalization.cu", "ceilings.cu")


@pytest.fixture(scope="module")
def nvcc():
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("nvcc is not installed: the CUDA sources are not compiled")
    return found


def compile_cubin(nvcc, folder, name, architecture):
    known = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=False).stdout.split()
    if f"compute_{architecture}" not in known:
        pytest.skip(f"this nvcc does not know sm_{architecture}")
    command = [nvcc, "-std=c++17", f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v", "-o", folder / "out.cubin"]
    if name == "normalization.cu":
        command.append("--fmad=false")
    done = subprocess.run([*command, SOURCES / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    assert "warning" not in done.stderr
    return re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
        done.stderr,
        re.DOTALL,
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", OWN)
def test_sources_compile_without_spills(nvcc, tmp_path, name, architecture):
    kernels = compile_cubin(nvcc, tmp_path, name, architecture)
    source = (SOURCES / name).read_text("utf-8")
    declared = (
        2 * len(re.findall(r"^KERNEL\(", source, re.MULTILINE))
        + source.count('extern "C" __global__')
        - (2 if "#define KERNEL" in source else 0)
    )
    assert len(kernels) == declared
    spilled = {kernel: int(stores) + int(loads) for kernel, stores, loads, _ in kernels if int(stores) + int(loads)}
    # 1,024 threads with 64 registers each leave Blackwell's compiler four short for the widest configuration.
    allowed = {"one_pass_1024x8_aligned": 32} if architecture == "100" else {}
    assert all(bytes_ <= allowed.get(kernel, 0) for kernel, bytes_ in spilled.items()), spilled


@pytest.mark.parametrize("architecture", ["compute_80", "sm_90", "compute_100"])
def test_nvrtc_compiles_the_sources(architecture):
    pytest.importorskip("cupy", reason="CuPy is not installed: the sources are not compiled with NVRTC")
    for name in OWN:
        image, log = cuda.compile_source(cuda.read_source(name), architecture, name, (*cuda.OPTIONS, "--fmad=false"))
        assert image[:4] == b"\x7fELF" if architecture.startswith("sm_") else b".target" in image
        assert "error" not in log
    with pytest.raises(InputError, match=r"bad\.cu, line 2: does not compile: identifier \"y\" is undefined"):
        cuda.compile_source("\n__device__ int x = y;\n", architecture, "bad.cu")
    with pytest.raises(InputError, match="architecture sm_1: does not compile"):
        cuda.compile_source("", "sm_1", "bad.cu")


# What stands between this and a GPU is CuPy: here a made-up one, with a clock that launches move on.


class NvrtcError(RuntimeError):
    pass


class Fake:
    """A CuPy with one stream, whose work takes the nanoseconds that it says."""

    def __init__(self, log="", devices=1):
        self.now, self.pending, self.capturing, self.devices = 0.0, [], None, devices
        self.nvrtc = types.SimpleNamespace()
        self.nvrtc.NVRTCError = NvrtcError
        self.nvrtc.createProgram = lambda code, name, headers, names: (code, name)
        self.nvrtc.destroyProgram = lambda program: None
        self.nvrtc.getProgramLog = lambda program: log
        self.nvrtc.getCUBIN = lambda program: b"\x7fELF"
        self.nvrtc.getPTX = lambda program: b".target"

        def compile_program(program, options):
            self.options = options
            if log:
                raise NvrtcError("NVRTC_ERROR_COMPILATION (6)")

        self.nvrtc.compileProgram = compile_program
        properties = {"name": b"NVIDIA Test", "major": 9, "minor": 0, "multiProcessorCount": 132, "l2CacheSize": 1000}
        properties |= {"totalGlobalMem": 10**9, "maxThreadsPerMultiProcessor": 2048, "regsPerMultiprocessor": 65536}
        properties["sharedMemPerBlockOptin"] = 232448
        runtime = types.SimpleNamespace(
            getDeviceCount=lambda: self.devices,
            setDevice=lambda index: None,
            getDeviceProperties=lambda index: properties,
            deviceGetAttribute=lambda attribute, index: 1980000,
            deviceSynchronize=lambda: None,
        )
        self.module = types.ModuleType("cupy")
        self.module.cuda = types.SimpleNamespace(
            nvrtc=self.nvrtc,
            runtime=runtime,
            Stream=lambda non_blocking: self,
            Event=self.event,
            get_elapsed_time=lambda start, end: (end.at - start.at) / 1e6,
        )

    def event(self):
        event = types.SimpleNamespace(at=None)
        event.record = lambda stream: setattr(event, "at", self.now)
        return event

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def begin_capture(self):
        self.capturing = []

    def end_capture(self):
        captured, self.capturing = self.capturing, None
        return types.SimpleNamespace(launch=lambda stream: [self.work(nanoseconds) for nanoseconds in captured])

    def synchronize(self):
        pass

    def work(self, nanoseconds):
        if self.capturing is not None:
            self.capturing.append(nanoseconds)
        else:
            self.now += nanoseconds


@pytest.fixture
def fake(monkeypatch):
    def install(**how):
        made = Fake(**how)
        monkeypatch.setitem(sys.modules, "cupy", made.module)
        monkeypatch.setattr(cuda, "import_module", lambda name: sys.modules[name])
        return made

    return install


def test_without_cupy_one_line_says_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError("No module named 'cupy'")

    monkeypatch.setattr(cuda, "import_module", missing)
    with pytest.raises(
        InputError, match=r"GPU: CuPy cannot be imported .*; install CuPy for the installed CUDA version"
    ):
        cuda.open_device()


def test_a_device_is_described_and_a_missing_one_named(fake):
    fake()
    device = cuda.open_device()
    assert (device.name, device.architecture, device.sms, device.clock_hz) == ("NVIDIA Test", "sm_90", 132, 1980000000)
    with pytest.raises(InputError, match="device 1: there are only 1 devices"):
        cuda.open_device(1)
    kernel = types.SimpleNamespace(registers=61)
    assert cuda.resident_blocks(device, kernel, 256) == 4
    kernel.registers = 32
    assert cuda.resident_blocks(device, kernel, 256) == 8
    assert cuda.resident_blocks(device, kernel, 96) == 21


def test_what_cuda_reports_becomes_one_line(fake):
    made = fake()

    class CUDARuntimeError(RuntimeError):
        __module__ = "cupy_backends.cuda.api.runtime"

    class OutOfMemoryError(MemoryError):
        __module__ = "cupy.cuda.memory"

    def fail():
        raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient\nmore")

    made.module.cuda.runtime.getDeviceCount = fail
    with pytest.raises(InputError) as error:
        cuda.open_device()
    assert str(error.value).endswith("is insufficient; check the driver with nvidia-smi")
    with pytest.raises(InputError, match="free memory on the GPU"), cuda.named_errors("timing", "x"):
        raise OutOfMemoryError("Out of memory allocating 5 bytes")
    with pytest.raises(ZeroDivisionError), cuda.named_errors("timing", "x"):
        raise ZeroDivisionError


def test_compiler_errors_name_the_line(fake):
    made = fake()
    assert cuda.compile_source("code", "sm_90") == (b"\x7fELF", "")
    assert made.options == ("--std=c++17", "--gpu-architecture=sm_90")
    assert cuda.compile_source("code", "compute_90")[0] == b".target"
    fake(log='a.cu(12): error: identifier "x" is undefined\n\n1 error detected\n')
    with pytest.raises(InputError, match=r'a\.cu, line 12: does not compile: identifier "x" is undefined; fix'):
        cuda.compile_source("code", "sm_90", "a.cu")
    fake(log="nvrtc: error: invalid value for --gpu-architecture (-arch)")
    with pytest.raises(InputError, match="architecture sm_1: does not compile: nvrtc: error: invalid value"):
        cuda.compile_source("code", "sm_1", "a.cu")


def test_launches_in_turn_are_timed_each_as_often(fake):
    made = fake()
    counts = [0, 0]

    def launch(which, nanoseconds):
        counts[which] += made.capturing is not None
        made.work(nanoseconds)

    launches = [lambda: launch(0, 1000), lambda: launch(1, 3000)]
    timing = cuda_timing.time_in_turn(launches, samples=7, batch_ms=1.0)
    # 4 µs a round: 250 rounds make a batch of a millisecond.
    assert timing == cuda_timing.Timing(2000, 2000, 2000, 7, 7 * 2 * 250)
    assert counts == [251, 251]
    few = cuda_timing.time_in_turn(launches * 1500, samples=3)
    assert few.launches == 3 * 3000, "one round even where it takes longer than a batch"
    slow = cuda_timing.time_in_turn([lambda: launch(0, 5e6)], samples=3)
    assert (slow.median_ns, slow.launches) == (5e6, 3)


def test_spread_is_over_batches():
    timing = cuda_timing.Timing.of([100.0 * n for n in range(1, 102)], 10)
    assert (timing.p5_ns, timing.median_ns, timing.p95_ns) == (60, 510, 960)
    assert (timing.samples, timing.launches) == (101, 1010)


@pytest.mark.parametrize("footprint", [2**18, 2**20, 10**6, 50 * 2**20, 2**30])
def test_rotation_passes_more_than_twice_the_l2_between_two_uses(footprint):
    sets = cuda_timing.rotation(footprint, 50 * 2**20)
    assert (sets - 1) * footprint > 2 * 50 * 2**20 or sets == 2
    assert sets == 2 or (sets - 2) * footprint <= 2 * 50 * 2**20, "no more than needed"


def test_rotation_refuses_what_would_take_too_many():
    with pytest.raises(ValueError, match="too small to flush an L2"):
        cuda_timing.rotation(1000, 50 * 2**20)
