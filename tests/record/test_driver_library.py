"""libcuda through ctypes: a C library with its prototypes, in the memory of the host, takes its place."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

SOURCE = ROOT / "tests/support/libcuda.c"
COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a stand-in for libcuda with")
CODE = """
import numpy as np, pytest
from gpuledger.errors import InputError
from gpuledger.record import cuda, cuda_timing, driver, nvrtc
nvrtc.compile_source = lambda *_: (b"\\x7fELF" + bytes(60), "")
found = cuda.open_device()
assert (found.name, found.architecture, found.sms) == ("NVIDIA H100 80GB HBM3", "sm_90", 132)
assert (found.l2_bytes, found.shared_bytes_per_sm, found.shared_bytes) == (52428800, 233472, 232448)
assert found.memory_bytes == 81559 << 20 and driver.driver().version() == "13.0"
values = np.arange(1000, dtype=np.float32)
array = cuda.to_device(values)
assert np.array_equal(array.copy().get(), values) and cuda.DeviceArray(3, np.uint8, 4096).address % 4096 == 0
kernel = cuda.load_module("ceilings.cu", found).kernel("double_it")
assert (kernel.registers, kernel.local_bytes, kernel.shared_bytes) == (40, 0, 1024)
assert kernel.blocks_per_sm(256, 4096) == 8
kernel.launch((4, 65535), (16, 16), array, np.int64(1000), shared_bytes=4096)
assert np.array_equal(array.get(), 2 * values)
array.fill_bytes(0)
assert not array.get().any()
for grid, block, shared_bytes in (((1, 65536), 1, 0), (1, 1025, 0), (1, 1, 232448)):
    with pytest.raises(InputError, match="CUDA_ERROR_INVALID_VALUE: what it means"):
        kernel.launch(grid, block, array, np.int64(1000), shared_bytes=shared_bytes)
array.set(values)
stream = driver.driver().stream()
launches = [lambda: kernel.launch(1, 32, array, np.int64(1000))]
replay = cuda_timing.capture_graph(2 * launches, stream)
assert np.array_equal(array.get(), values), "captured, not launched"
replay()
assert np.array_equal(array.get(), 4 * values)
timing = cuda_timing.time_in_turn(launches, samples=3, batch_ms=0.1, warm_up_ms=0)
assert 0 < timing.median_ns < 1e9 and timing.samples == 3
driver.driver().start_profiler(), driver.driver().stop_profiler()
print("done")
"""


def test_the_library_is_called_with_the_types_of_its_prototypes(tmp_path):
    built = tmp_path / "libcuda.so.1"
    subprocess.run([COMPILER, "-O1", "-w", "-shared", "-fPIC", "-o", built, SOURCE], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-X", "faulthandler", "-c", CODE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_the_stand_in_has_every_function_that_is_called():
    called = re.findall(r'"(cu[A-Z]\w+)"', Path(ROOT, "src/gpuledger/record/driver.py").read_text())
    assert len(set(called)) > 35
    assert not set(called) - set(re.findall(r"^Result (cu\w+)\(", SOURCE.read_text(), re.MULTILINE))
