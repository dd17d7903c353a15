"""CUDA sources compile for every architecture without spills, and what cuda.py and cuda_timing.py do, without a GPU."""

import re
import shutil
import subprocess
from pathlib import Path

import compiled
import numpy as np
import pytest
from conftest import ROOT
from fake_driver import FakeDriver

from gpuledger.errors import InputError
from gpuledger.record import cuda, cuda_timing, driver, normalization, nvrtc
from gpuledger.record.normalization_kernels import ELEMENTS
from gpuledger.record.probes.launch import PROBES

SOURCES = ROOT / "src/gpuledger/record/cuda_sources"
#: Ampere and Hopper data-centre GPUs; Blackwell where the compiler knows it.
ARCHITECTURES = ("80", "90", "100")
OWN = ("normalization.cu", "ceilings.cu")


def compile_cubin(name, architecture):
    """Compile a source, all its kernels; return what the compiler says of them.

    With NVRTC, which a recording uses; with nvcc, which compiles the same, only where there is no NVRTC. It takes
    seconds, so what a compiler said of the same sources is kept.
    """
    source = SOURCES / name
    if (compiler := nvrtc.find_library()) is not None:
        options = [*normalization.OPTIONS, "--ptxas-options=-v"]

        def make(folder):
            image, said = nvrtc.compile_source(source.read_text("utf-8"), f"sm_{architecture}", name, options)
            assert image[:4] == b"\x7fELF"
            (folder / "said").write_text(said)
            return folder / "said"

    elif (compiler := shutil.which("nvcc")) is not None:
        listed = subprocess.run([compiler, "--list-gpu-arch"], capture_output=True, text=True, check=False)
        if f"compute_{architecture}" not in listed.stdout.split():
            pytest.skip(f"this nvcc does not know sm_{architecture}")
        options = ["-std=c++17", f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v", "--fmad=false"]

        def make(folder):
            command = [compiler, *options, "-o", folder / "out.cubin", source]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:2000]
            (folder / "said").write_text(done.stderr)
            return folder / "said"

    else:
        pytest.skip("neither NVRTC nor nvcc is installed: the CUDA sources are not compiled")
    about = Path(compiler).resolve().stat()
    made_of = repr((str(compiler), about.st_size, about.st_mtime_ns, architecture, options)).encode()
    files = [Path(nvrtc.__file__), *sorted(path for path in SOURCES.iterdir() if path.is_file())]
    made_of += b"\0".join(path.read_bytes() for path in files)
    return compiled.kept(f"{name}-{architecture}", ".said", made_of, make, Path.read_text)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", OWN)
def test_sources_compile_without_spills(name, architecture):
    said = compile_cubin(name, architecture)
    assert "warning" not in said
    kernels = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
        said,
        re.DOTALL,
    )
    source = (SOURCES / name).read_text("utf-8")
    pairs = re.findall(r"^KERNEL\((\w+)", source, re.MULTILINE)
    declared = (
        2 * len([name for name in pairs if name != "CLUSTERS" or int(architecture) >= 90])
        + source.count('extern "C" __global__')
        - (2 if "#define KERNEL" in source else 0)
    )
    assert len(kernels) == declared
    clustered = {kernel for kernel, *_ in kernels if kernel.startswith("clustered")}
    assert bool(clustered) == (name == "normalization.cu" and int(architecture) >= 90)
    spilled = {kernel: int(stores) + int(loads) for kernel, stores, loads, _ in kernels if int(stores) + int(loads)}
    # 1,024 threads with 64 registers each leave Blackwell's compiler four short for the widest configuration.
    allowed = {"one_pass_1024x8_aligned": 32} if architecture == "100" else {}
    assert all(bytes_ <= allowed.get(kernel, 0) for kernel, bytes_ in spilled.items()), spilled


needs_nvrtc = pytest.mark.skipif(nvrtc.find_library() is None, reason="NVRTC is not installed")


@needs_nvrtc
@pytest.mark.parametrize("number", [number for name, (number, *_) in ELEMENTS.items() if name != "fp32"])
def test_nvrtc_compiles_elements_of_16_bits(number):
    """The narrowest and the widest of the kernels: types differ in a few instructions only, and all take seconds."""
    code = (SOURCES / "normalization.cu").read_text("utf-8")
    code = re.sub(r"^KERNEL\((?!.*(4, 1, 256|1024, \d, 1024)\)).*\n", "", code, flags=re.MULTILINE)
    options = (*normalization.OPTIONS, f"--define-macro=ELEMENT={number}")
    image, said = nvrtc.compile_source(code, "sm_90", "normalization.cu", options)
    assert image[:4] == b"\x7fELF" and not said
    for kernel in ("two_pass", "one_pass_4x1", "one_pass_1024x8_aligned", "streaming_1024x4", "clustered_1024x4"):
        assert kernel.encode() in image


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nvrtc_compiles_probed_kernels(architecture):
    """Every probe for the oldest architecture; newer ones know what it knows: none and the largest probe there."""
    for path in (SOURCES / name for name in ("fill.cu", "gemm.cu", "attention.cu")):
        code = path.read_text("utf-8")
        for probe in PROBES if architecture == "sm_80" else ("none", "dmat"):
            options = (*cuda.OPTIONS, f"--include-path={SOURCES}", f"--define-macro=PROBE={PROBES[probe]}")
            image, log = nvrtc.compile_source(code, architecture, path.name, options)
            assert image[:4] == b"\x7fELF" and not log, (path.name, probe, log)
        # As Neutrino wants it.
        image, _ = nvrtc.compile_source(code, architecture.replace("sm", "compute"), path.name, options)
        assert f".target {architecture}".encode() in image and image.endswith(b"\0")


@needs_nvrtc
def test_what_nvrtc_cannot_compile_is_one_line():
    with pytest.raises(InputError, match=r"bad\.cu, line 2: does not compile: identifier \"y\" is undefined"):
        nvrtc.compile_source("\n__device__ int x = y;\n", "sm_90", "bad.cu", ())
    with pytest.raises(InputError, match="architecture sm_1: does not compile"):
        nvrtc.compile_source("", "sm_1", "bad.cu", ())


def test_nvrtc_of_a_package_comes_before_that_of_a_toolkit(monkeypatch, tmp_path):
    """PyTorch has loaded its own; the toolkit's may be newer than the driver."""
    for place in ("toolkit/lib64/libnvrtc.so.12.9.86", "site/nvidia/cu13/lib/libnvrtc.so.13"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
    (tmp_path / "site/nvidia/cu13/lib/libnvrtc-builtins.so.13.0").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setattr(nvrtc.sys, "path", ["", str(tmp_path / "site")])
    assert nvrtc.find_library() == tmp_path / "site/nvidia/cu13/lib/libnvrtc.so.13"
    monkeypatch.setattr(nvrtc.sys, "path", [])
    assert nvrtc.find_library() == tmp_path / "toolkit/lib64/libnvrtc.so.12.9.86"
    (tmp_path / "conda/lib").mkdir(parents=True)
    (tmp_path / "conda/lib/libnvrtc.so.12").touch()
    monkeypatch.setattr(nvrtc.sys, "base_prefix", str(tmp_path / "conda"))
    assert nvrtc.find_library() == tmp_path / "conda/lib/libnvrtc.so.12"


NVRTC = """
#include <dlfcn.h>
int nvrtcVersion(int *major, int *minor) {
    *major = 13, *minor = dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW) ? 0 : 99;
    return 0;
}
"""


@compiled.needs_compiler
def test_an_nvrtc_that_does_not_say_where_its_builtins_are_finds_them(monkeypatch, tmp_path):
    """As the wheels of NVRTC 13.0: without them every compilation fails, unless PyTorch has loaded them before."""
    folder = tmp_path / "nvidia/cu13/lib"
    folder.mkdir(parents=True)
    for name, code in (("libnvrtc.so.13", NVRTC), ("libnvrtc-builtins.so.13.0", "int made;")):
        command = [compiled.COMPILER, "-shared", "-fPIC", "-xc", "-", f"-Wl,-soname,{name}", "-ldl"]
        subprocess.run([*command, "-o", folder / name], input=code, text=True, check=True)
    monkeypatch.setattr(nvrtc.sys, "path", [str(tmp_path)])
    nvrtc._load.cache_clear()
    assert nvrtc.version() == "13.0"
    nvrtc._load.cache_clear()


@pytest.fixture
def fake(monkeypatch):
    return FakeDriver(lambda *_: 0.0).install(monkeypatch)


def test_a_device_is_described(fake):
    device = cuda.open_device()
    assert (device.name, device.architecture, device.sms) == ("NVIDIA H200", "sm_90", 132)
    assert device.l2_bytes == 60 * 2**20, "as the driver says it, not the data sheet"


def test_what_cuda_reports_becomes_one_line(fake, monkeypatch):
    def fail(index):
        raise driver.CudaError("CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\nmore")

    class OutOfMemoryError(RuntimeError):
        __module__ = "torch"

    monkeypatch.setattr(fake, "device", fail)
    with pytest.raises(InputError) as error:
        cuda.open_device()
    assert str(error.value).endswith("is detected; check the driver with nvidia-smi")
    with pytest.raises(InputError, match="free memory on the GPU"), cuda.named_errors("timing", "x"):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 5 bytes")
    with pytest.raises(ZeroDivisionError), cuda.named_errors("timing", "x"):
        raise ZeroDivisionError


def test_without_a_driver_one_line_says_so(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(driver.ctypes, "CDLL", missing)
    driver.driver.cache_clear()
    with pytest.raises(InputError, match=r"GPU: there is no NVIDIA driver .*; install the NVIDIA driver"):
        cuda.open_device()


def test_arrays_come_back_as_they_were_sent_and_are_freed(fake):
    values = np.arange(12, dtype=np.float16).reshape(3, 4)
    array = cuda.to_device(values)
    copy = array.copy()
    array.fill_bytes(0)
    assert np.array_equal(copy.get(), values) and not array.get().any()
    assert array.__cuda_array_interface__["typestr"] == "<f2"
    aligned = cuda.DeviceArray(10, np.uint8, 65_536)
    assert aligned.address % 65_536 == 0
    assert len(fake._memory) == 3
    del array, copy, aligned
    assert not fake._memory


def test_a_kernel_takes_arrays_and_scalars_of_its_types_and_nothing_else(fake, monkeypatch):
    seen = []
    monkeypatch.setattr(fake, "run", lambda *what: seen.append(what) or 0.0)
    kernel = cuda.load_module("ceilings.cu", cuda.open_device()).kernel("copy_1")
    array = cuda.DeviceArray(4, np.float32)
    kernel.launch(3, (32, 2), array, np.int32(-1), np.float32(1.5))
    (_, name, grid, block, _, arguments) = seen[0]
    assert (name, grid, block) == ("copy_1", (3, 1, 1), (32, 2, 1))
    assert arguments == [array.address.to_bytes(8, "little"), b"\xff" * 4, b"\x00\x00\xc0\x3f"]
    with pytest.raises(TypeError, match="device arrays and NumPy scalars, not int"):
        kernel.launch(1, 32, 5)
    with pytest.raises(InputError, match="copy_1: CUDA_ERROR_INVALID_VALUE"), monkeypatch.context() as patch:
        patch.setattr(fake, "set_function_attribute", lambda *_: None)
        kernel.launch(1, 32, array, shared_bytes=100 * 1024)


def test_launches_in_turn_are_timed_each_as_often(fake):
    counts = [0, 0]

    def launch(which, nanoseconds):
        counts[which] += fake._capturing is not None
        fake.work(nanoseconds)

    launches = [lambda: launch(0, 1000), lambda: launch(1, 3000)]
    timing = cuda_timing.time_in_turn(launches, samples=7, batch_ms=1.0)
    # 4 µs a round: 250 rounds make a batch of a millisecond.
    assert timing == cuda_timing.Timing(2000, 2000, 2000, 7, 7 * 2 * 250)
    assert counts == [251, 251]
    few = cuda_timing.time_in_turn(launches * 1500, samples=3)
    assert few.launches == 3 * 3000, "one round even where it takes longer than a batch"
    slow = cuda_timing.time_in_turn([lambda: launch(0, 5e6)], samples=3)
    assert (slow.median_ns, slow.launches) == (5e6, 3)
    assert fake.log.count("free stream") == 3 and not fake._handles, "streams, events and graphs are freed"


def test_a_batch_is_as_long_as_asked_for_where_the_host_is_slower_than_the_kernel(fake, monkeypatch):
    """A graph of one launch of a microsecond takes the host 8: what 125 of them took was a batch of 125 µs."""
    replay = fake.run_graph

    def run_graph(executable, stream):
        before = fake.now
        replay(executable, stream)
        fake.now = max(fake.now, before + 8000)

    monkeypatch.setattr(fake, "run_graph", run_graph)
    timing = cuda_timing.time_in_turn([lambda: fake.work(1000)], samples=3, batch_ms=1.0)
    assert timing == cuda_timing.Timing(1000, 1000, 1000, 3, 3 * 1000)


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
