"""The part power: works of kernels, settled readings, NVML, and a recording with stand-ins whose time is made up."""

import csv
import sys
import types
import weakref
from contextlib import nullcontext
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.record import nvml, power, run
from gpuledger.record.parts import PARTS
from gpuledger.record.power import COLUMNS, LONGEST_S, MOVES, READ_S, STEADY, TABLE, PowerKernel, Reading, settled

COPY, PRODUCT = PowerKernel("copy", "bf16", (2**28,)), PowerKernel("gemm", "fp8", (64, 1024, 2048))
PREFILL, DECODE = PowerKernel("prefill", "bf16", (1, 64, 8, 2, 128)), PowerKernel("decode", "bf16", (4, 64, 8, 8, 128))
LAUNCH_S, WATTS = 1e-4, 300


@pytest.mark.parametrize(
    ("kernel", "precision", "sizes", "flop", "moved"),
    [
        # Of 2 × 4 and 3 × 4 values; the result always has 16 bits.
        ("gemm", "bf16", (2, 3, 4), 2 * 2 * 3 * 4, 2 * (2 * 4 + 3 * 4 + 2 * 3)),
        ("gemm", "fp8", (2, 3, 4), 2 * 2 * 3 * 4, 2 * 4 + 3 * 4 + 2 * (2 * 3)),
        # Two tokens see 1 + 2; two heads of 4 values; queries and results, and keys and values of one head.
        ("prefill", "bf16", (1, 2, 2, 1, 4), 2 * 2 * 2 * 3 * 4, 2 * 2 * (2 * 2 * 4 + 2 * 4)),
        # One token of each of three requests sees 5.
        ("decode", "bf16", (3, 5, 2, 1, 4), 3 * 2 * 2 * 2 * 5 * 4, 3 * 2 * 2 * (2 * 4 + 5 * 4)),
        ("copy", "bf16", (10,), 0, 40),
        ("fill", "bf16", (10,), 0, 20),
        ("sum", "bf16", (10,), 10, 20),
        ("add", "bf16", (10,), 10, 60),
        ("silu", "bf16", (10,), 40, 40),
    ],
)
def test_the_work_of_a_launch(kernel, precision, sizes, flop, moved):
    assert PowerKernel(kernel, precision, sizes).work == (flop, moved)


def test_kernels_and_their_order_are_those_of_the_tracked_recording(root):
    with (root / "traces/nvidia-h200" / TABLE).open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        rows = list(table)
    assert tuple(table.fieldnames) == COLUMNS
    recorded = [(row["kernel"], row["precision"], row["sizes"], int(row["flop"]), int(row["bytes"])) for row in rows]
    assert recorded == [(*kernel.label, *kernel.work) for kernel in power.all_kernels()]
    assert len(set(recorded)) == len(recorded) == 119


def test_a_recording_is_out_of_date_when_the_code_that_reads_nvml_changes():
    names = {path.name for path in run._sources(PARTS["power"])}
    assert {"power.py", "nvml.py", "profiled_launches.py"} <= names and "attention.py" not in names


# --- when a reading is settled


def readings(*powers, every_s=0.1):
    """Return readings, of which the first is at 0.3 s, with these powers (W) between them."""
    energies = accumulate((round(1000 * watts * every_s) for watts in powers), initial=7_000)
    return [Reading(0.3 + at * every_s, energy, 1980, 40) for at, energy in enumerate(energies)]


def test_a_steady_kernel_is_read_as_soon_as_there_is_enough_of_it():
    read = readings(*[300] * 8, every_s=0.11)
    assert all(settled(read[:count], 0.5) == () for count in range(6))
    assert settled(read[:7], 0.5) == read[:7]
    assert settled(read, 0.5) == read[2:], "the latest advances, over no more time than needed"


def test_a_gpu_that_looks_for_a_clock_is_waited_for():
    read = readings(600, 700, 650, 500, 520, 560, 500, *[450] * 6, every_s=0.11)
    assert all(settled(read[:count], 1.0) == () for count in range(13))
    assert settled(read, 1.0) == read[-7:] and {one.energy_mj for one in read[-7:]} < {one.energy_mj for one in read}


def test_a_gpu_that_finds_no_clock_is_read_when_time_is_up():
    read = readings(*[300, 500] * 2, *[400] * 4, *[300] * 4)
    assert settled(read, LONGEST_S) == ()
    assert settled(read, LONGEST_S + 0.001) == read[6:]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_counter_that_does_not_advance_is_one_line(count):
    read = readings(*[300] * 4)[:count]
    assert settled(read, LONGEST_S) == ()
    with pytest.raises(
        InputError, match=r"nvmlDeviceGetTotalEnergyConsumption: the counter does not advance; record a"
    ):
        settled(read, LONGEST_S + 0.001)


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 10**6)), max_size=40), st.floats(0, 4))
def test_settled_readings_have_two_halves(advances, waited_s):
    read = [Reading(0.3, 0, 1980, 40)]
    for after_s, energy_mj in advances:
        read.append(Reading(read[-1].at_s + after_s, read[-1].energy_mj + energy_mj, 1980, 40))
    try:
        window = settled(read, waited_s)
    except InputError:
        assert waited_s > LONGEST_S and len(read) < 5
        return
    assert window or waited_s <= LONGEST_S
    if window:
        assert len(window) >= 3 and window == read[-len(window) :]
        first, second = (power._watts(half) for half in power._halves(window))
        assert min(first, second) <= power._watts(window) * (1 + 1e-9)
        assert power._watts(window) <= max(first, second) * (1 + 1e-9)
        if waited_s <= LONGEST_S:
            assert window[-1].at_s - window[0].at_s >= READ_S and abs(first - second) < STEADY * second


# --- a recording


class Gpu:
    """A GPU and the host's clock, which goes on by 2 ms whenever it is read."""

    def __init__(self):
        self.now, self.busy = 1000.0, 0.0  # the time, and that at which the GPU has done everything (s)
        self.capturing, self.launched = None, 0
        self.watts = lambda now: WATTS

    def clock(self):
        self.now += 0.002
        return self.now

    def launch(self, *operands):
        if self.capturing is not None:
            self.capturing.operands += [weakref.ref(one) for one in operands]
        else:
            self.work(1)

    def work(self, launches):
        self.busy = max(self.now, self.busy) + launches * LAUNCH_S
        self.launched += launches


class Event:
    """Stand-in for torch.cuda.Event."""

    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.at = max(self.gpu.now, self.gpu.busy)

    def query(self):
        return self.gpu.now >= self.at

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


class Graph:
    """Stand-in for torch.cuda.CUDAGraph, which needs the memory of its operands, and for torch.cuda.graph."""

    def __init__(self, gpu):
        self.gpu, self.operands = gpu, []

    def __enter__(self):
        self.gpu.capturing = self

    def __exit__(self, *error):
        self.gpu.capturing = None

    def replay(self):
        assert all(one() is not None for one in self.operands), "the memory of an operand is free"
        self.gpu.work(300)  # as many as the graph has


class Tensor:
    """Stand-in for a tensor, of which only shape and type are known."""

    def __init__(self, gpu, shape, dtype):
        self.gpu, self.shape, self.dtype = gpu, shape, dtype

    def to(self, dtype):
        return Tensor(self.gpu, self.shape, dtype)

    def t(self):
        return types.SimpleNamespace(shape=self.shape[::-1], dtype=self.dtype, of=self)

    def copy_(self, other):
        assert other.shape == self.shape
        self.gpu.launch(self, other)

    def fill_(self, value):
        self.gpu.launch(self)

    def sum(self):
        self.gpu.launch(self)


class Torch(types.ModuleType):
    """Stand-in for PyTorch."""

    __version__ = "2.11.0+cu130"
    bfloat16, float8_e4m3fn = "bf16", "fp8"

    def __init__(self, gpu):
        super().__init__("torch")
        self.gpu, self.name, self.capability, self.refuses = gpu, "NVIDIA H200", (9, 0), {}
        self.cuda = types.SimpleNamespace(
            get_device_name=lambda number: self.name,
            get_device_capability=lambda number: self.capability,
            get_device_properties=lambda number: types.SimpleNamespace(uuid="5d5ba0d6-d33d"),
            Event=lambda enable_timing: Event(gpu),
            CUDAGraph=lambda: Graph(gpu),
            graph=lambda graph: graph,
            synchronize=self.wait,
        )
        backends = types.SimpleNamespace(CUDNN_ATTENTION="cudnn")
        attention = types.SimpleNamespace(SDPBackend=backends, sdpa_kernel=lambda names: nullcontext())
        functional = types.SimpleNamespace(scaled_dot_product_attention=self.attend)
        self.nn = types.SimpleNamespace(attention=attention, functional=functional)
        silu = types.SimpleNamespace(out=lambda x, out: gpu.launch(x, out))
        self.ops = types.SimpleNamespace(aten=types.SimpleNamespace(silu=silu))
        self.no_grad = nullcontext

    def wait(self):
        self.gpu.now = max(self.gpu.now, self.gpu.busy)

    def manual_seed(self, seed):
        pass

    def randn(self, *shape, device, dtype):
        assert (device, dtype) == ("cuda", "bf16")
        return Tensor(self.gpu, shape, dtype)

    def empty_like(self, tensor):
        return Tensor(self.gpu, tensor.shape, tensor.dtype)

    def ones(self, shape, device):
        return Tensor(self.gpu, shape, "fp32")

    def add(self, x, y, out):
        self.gpu.launch(x, y, out)

    def mm(self, x, w, out, dtype="bf16"):
        assert x.dtype == w.dtype == dtype and out.dtype == "bf16"
        assert (x.shape[1], out.shape) == (w.shape[0], (x.shape[0], w.shape[1]))
        self.check("gemm")
        self.gpu.launch(x, w.of, out)

    def _scaled_mm(self, x, w, scale_a, scale_b, out_dtype, out):
        assert scale_a.shape == scale_b.shape == () and out_dtype == "bf16"
        self.mm(x, w, out, "fp8")

    def attend(self, query, keys, values, is_causal, enable_gqa):
        requests, heads, tokens, dim = query.shape
        assert keys.shape == values.shape == (requests, keys.shape[1], keys.shape[2], dim)
        assert is_causal == (tokens > 1) and tokens in (1, keys.shape[2]) and enable_gqa == (heads != keys.shape[1])
        self.check("attention")
        self.gpu.launch(query, keys, values)

    def check(self, name):
        if name in self.refuses:
            raise RuntimeError(self.refuses[name])


class Library:
    """Stand-in for NVML: the counter advances ten times a second, by what the GPU draws."""

    def __init__(self, gpu):
        self.gpu, self.refuses, self.energy, self.advanced, self.every_s = gpu, {}, 5_000_000, gpu.now, 0.1
        self.nvmlErrorString = Strings({3: b"Not Supported", 6: b"Not Found"})

    def __getattr__(self, name):
        return lambda *arguments: self.refuses.get(name) or self.answer(name, *arguments)

    def answer(self, name, handle=None, *arguments):
        if name == "nvmlDeviceGetHandleByUUID":
            assert handle.value == b"GPU-5d5ba0d6-d33d"
            arguments[0]._obj.value = 77
            return 0
        assert name == "nvmlInit_v2" or handle.value == 77
        if name == "nvmlDeviceGetTotalEnergyConsumption":
            while self.gpu.now - self.advanced >= self.every_s:
                self.advanced += self.every_s
                self.energy += round(1e3 * self.every_s * self.gpu.watts(self.advanced))
            arguments[0]._obj.value = self.energy
        elif arguments:
            which, target = arguments
            target._obj.value = {("nvmlDeviceGetClockInfo", 1): 1755, ("nvmlDeviceGetTemperature", 0): 48}[
                name, which.value
            ]
        return 0


class Strings:
    """Stand-in for nvmlErrorString."""

    restype = None

    def __init__(self, texts):
        self.texts = texts

    def __call__(self, status):
        assert self.restype is nvml.c_char_p
        return self.texts.get(status)


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    gpu.torch, gpu.library = Torch(gpu), Library(gpu)
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    monkeypatch.setattr(power, "perf_counter", gpu.clock)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: gpu.library)
    return gpu


@pytest.fixture
def few(monkeypatch):
    """Kernels of each kind, instead of all."""
    kernels = [COPY, PRODUCT, PREFILL, DECODE, PowerKernel("gemm", "bf16", (1, 1024, 1024))]
    kernels += [PowerKernel(name, "bf16", (2**29,)) for name in MOVES]
    monkeypatch.setattr(power, "all_kernels", lambda: kernels)
    return kernels


def read(folder):
    with (folder / TABLE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_all_kernels_are_recorded_once(gpu, few, tmp_path):
    recorded = power.record_power(tmp_path)
    rows = read(tmp_path)
    assert [(row["kernel"], row["precision"], row["sizes"]) for row in rows] == [kernel.label for kernel in few]
    assert [int(row["order"]) for row in rows] == list(range(len(few)))
    assert list(rows[1]) == list(COLUMNS)
    expected = {"kernel": "gemm", "precision": "fp8", "sizes": "64x1024x2048", "flop": str(2 * 64 * 1024 * 2048)}
    expected |= {"bytes": str(64 * 2048 + 1024 * 2048 + 2 * 64 * 1024), "time_us": "100.0000", "clock_mhz": "1755"}
    assert rows[1].items() >= (expected | {"temperature_c": "48"}).items()
    # The host sees an advance a few milliseconds late.
    powers = [float(row[name]) for row in rows for name in ("power_w", "first_half_w", "second_half_w")]
    assert powers == pytest.approx([WATTS] * len(powers), rel=0.02)
    assert all(0.6 <= float(row["seconds"]) < 0.75 and 0.3 < float(row["waited_s"]) < 0.5 for row in rows)
    assert recorded.cases == {"kernel_power": {"kernels": {"readings": TABLE, "gpu": "NVIDIA H200"}}}
    assert recorded.about == {"kernels": len(few), "refused": []} and TABLE in recorded.notes
    launched = gpu.launched
    assert power.record_power(tmp_path) == recorded and gpu.launched == launched, "nothing is launched again"


def test_power_is_that_of_the_kernel_when_it_is_steady(gpu, monkeypatch, tmp_path):
    """A GPU that draws 740 W and lowers its clock for 1.2 s, until it draws 500 W."""
    monkeypatch.setattr(power, "all_kernels", lambda: [COPY])
    begun = gpu.now
    gpu.watts = lambda now: max(500, 740 - 200 * (now - begun))
    power.record_power(tmp_path)
    (row,) = read(tmp_path)
    assert float(row["power_w"]) == pytest.approx(500, rel=0.02) and 0.9 < float(row["waited_s"]) < 1.3


def test_a_gpu_without_fp8_records_the_others(gpu, few, tmp_path):
    gpu.torch.capability = (8, 0)
    assert power.record_power(tmp_path).about["kernels"] == len(few) - 1
    assert {row["precision"] for row in read(tmp_path)} == {"bf16"}


@pytest.mark.parametrize("kernel", [COPY, PRODUCT, DECODE, PowerKernel("prefill", "bf16", (1, 16384, 32, 8, 128))])
def test_operands_are_more_than_l2_holds(gpu, kernel):
    launches = power.PowerBench(gpu.torch, None).launches(kernel)
    assert len(launches) * kernel.work[1] > 2**28


@pytest.mark.parametrize("end", ["in a row", "after a row", "before the first line"])
def test_a_recording_that_ended_in_the_middle_goes_on(gpu, few, monkeypatch, tmp_path, end):
    done = power.PowerBench.read

    def ending(bench, kernel):
        if kernel == few[4]:
            raise KeyboardInterrupt
        return done(bench, kernel)

    monkeypatch.setattr(power.PowerBench, "read", ending)
    with pytest.raises(KeyboardInterrupt):
        power.record_power(tmp_path)
    path = tmp_path / TABLE
    lines = path.read_text("utf-8").splitlines(keepends=True)
    assert len(lines) == 1 + 4
    kept = {"in a row": [*lines[:-1], lines[-1][:-5]], "after a row": lines, "before the first line": []}[end]
    path.write_text("".join(kept), "utf-8")
    monkeypatch.setattr(power.PowerBench, "read", done)
    power.record_power(tmp_path)
    rows = read(tmp_path)
    assert [(row["kernel"], row["precision"], row["sizes"]) for row in rows] == [kernel.label for kernel in few]
    assert [int(row["order"]) for row in rows] == list(range(len(few)))


def test_what_pytorch_refuses_is_noted_and_the_others_go_on(gpu, few, tmp_path):
    gpu.torch.refuses = {"attention": "CUDA out of memory. GPU 0 has 80 GiB. Process 4242 has 79 GiB.\n"}
    recorded = power.record_power(tmp_path)
    assert recorded.about == {
        "kernels": len(few),
        "refused": ["decode bf16 4x64x8x8x128: CUDA out of memory", "prefill bf16 1x64x8x2x128: CUDA out of memory"],
    }
    assert len(read(tmp_path)) == len(few) - 2
    # Another call, in which they are not refused, appends them.
    gpu.torch.refuses = {}
    assert power.record_power(tmp_path).about["refused"] == []
    orders = [int(row["order"]) for row in read(tmp_path)]
    assert len(orders) == len(few) and orders == sorted(set(orders))


def test_a_kernel_that_is_too_long_for_a_reading_is_noted(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(power, "all_kernels", lambda: [COPY, PRODUCT])
    took, gpu.work = gpu.work, lambda launches: took(100 * launches if launches > 1 else 1)
    gpu.library.every_s = 0.05
    with pytest.raises(
        InputError, match=r"PyTorch, power: no kernel runs, such as copy bf16 \d+: it takes too long; use"
    ):
        power.record_power(tmp_path)


def test_a_process_that_can_no_longer_use_the_gpu_ends(gpu, few, tmp_path):
    """Otherwise every other kernel would be refused, and the part be complete without them."""

    def wait():
        assert not gpu.torch.refused
        done()

    def refuse(name):
        gpu.torch.refused = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    done, gpu.torch.refused = gpu.torch.cuda.synchronize, False
    gpu.torch.cuda.synchronize, gpu.torch.check = wait, refuse
    with pytest.raises(AssertionError):
        power.record_power(tmp_path)
    assert [row["kernel"] for row in read(tmp_path)] == ["copy"]


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("nvmlInit_v2", 9, "NVML, nvmlInit_v2: status 9; record a whole GPU"),
        (
            "nvmlDeviceGetHandleByUUID",
            6,
            "NVML, nvmlDeviceGetHandleByUUID: Not Found; record a whole GPU, Volta or newer",
        ),
        ("nvmlDeviceGetTotalEnergyConsumption", 3, "NVML, nvmlDeviceGetTotalEnergyConsumption: Not Supported; record"),
    ],
)
def test_what_nvml_refuses_is_one_line(gpu, few, tmp_path, name, status, message):
    gpu.library.refuses = {name: status}
    with pytest.raises(InputError, match=message):
        power.record_power(tmp_path)
    assert not (tmp_path / TABLE).exists()


def test_a_part_of_a_gpu_is_one_line(gpu, few, tmp_path):
    gpu.torch.name = "NVIDIA H200 MIG 1g.18gb"
    with pytest.raises(InputError, match=r"MIG 1g\.18gb: an instance has no energy counter of its own; record a whole"):
        power.record_power(tmp_path)


def test_a_counter_that_stands_still_is_one_line(gpu, few, tmp_path):
    gpu.library.every_s = 1e9
    with pytest.raises(InputError, match="the counter does not advance"):
        power.record_power(tmp_path)


def test_a_missing_library_is_one_line(gpu, few, monkeypatch, tmp_path):
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    with pytest.raises(InputError, match=r"NVML: libnvidia-ml\.so\.1 cannot be loaded; install the NVIDIA driver"):
        power.record_power(tmp_path)


def test_an_older_pytorch_is_one_line(gpu, few, tmp_path):
    gpu.torch.__version__ = "2.4.1+cu121"
    with pytest.raises(InputError, match=r"PyTorch, version \S+: it is too old; use 2\.5 or newer"):
        power.record_power(tmp_path)
