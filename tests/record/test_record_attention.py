"""The part attention: its shapes, rows from a profiler's events, and a recording with a stand-in for PyTorch."""

import csv
import json
import sys
import types

import pytest

from gpuledger.errors import InputError
from gpuledger.record import attention, run
from gpuledger.record.attention import CHUNK, COLUMNS, HEADS, TABLE, AttentionCall, all_calls, rows_of
from gpuledger.record.parts import PARTS

PREFILL = AttentionCall("torch_flash", 2, 1024, 0, 32, 8, 128)
DECODE = AttentionCall("torch_cudnn", 16, 1, 4096, 28, 4, 128)
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false>>"
MAIN, AUTOGRAD = 7, 8  # threads


class Events:
    """Made-up events of the profiler: ranges one after the other, in which kernels are launched that run later."""

    def __init__(self):
        self.found, self.now = [], 0.0

    def range(self, name, *kernels, thread=MAIN):
        """Add a range with kernels, each given by name and duration (µs)."""
        begun = self.now
        for kernel, took in kernels:
            self.launch(kernel, took, thread)
        self.now += 1
        self.found.append({"cat": "user_annotation", "name": name, "ts": begun, "dur": self.now - begun, "tid": MAIN})
        self.now += 1

    def launch(self, kernel, took, thread=MAIN):
        self.now += 1
        number = len(self.found)
        same = {"correlation": number, "External id": 3}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": self.now, "dur": 0.5, "tid": thread}
        self.found.append(call | {"args": same})
        self.found.append({"cat": "kernel", "name": kernel, "ts": self.now + 1e6, "dur": took, "tid": 3, "args": same})

    def call(self, at, call):
        """Add three calls of a shape, as many µs long as the turn says, and a product before them."""
        self.range(f"{at} 0 reference", ("nvjet", 50.0))
        for turn in range(3):
            self.range(f"{at} {turn} forward", ("short", 0.25), (FLASH, 10.0 + turn))
            if call.tokens > 1:
                self.range(f"{at} {turn} backward", ("dot", 1.0), ("dq_dk_dv", 20.0 + turn), thread=AUTOGRAD)
            self.launch("randn", 99.0)  # between ranges
            self.now += 1
        return self


def test_shapes_are_the_same_in_each_call_and_each_once():
    found = all_calls()
    assert found == all_calls() and len(found) == len(set(found)) == 630
    assert {call.backend for call in found} == {"torch_flash", "torch_cudnn"}
    assert {(call.heads, call.kv_heads, call.head_dim) for call in found} == set(HEADS)
    assert {call._replace(backend="") for call in found if call.backend == "torch_flash"} == {
        call._replace(backend="") for call in found if call.backend == "torch_cudnn"
    }
    # A pass has no cache, and a step has one token; neither is too large for a GPU of 80 GB.
    assert all((call.tokens == 1) == (call.context > 0) for call in found)
    assert all(call.batch * (call.tokens + call.context) <= 2**20 + 128 for call in found)


def test_a_pass_has_a_row_forward_and_one_backward():
    forward, backward = rows_of(Events().call(0, PREFILL).found, [PREFILL], before=5)
    shape = {"kernel_source": "torch_flash", "batch_size": 2, "isl": 1024, "step": 0, "order": 5, "kernels": 2}
    shape |= {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "reference_ns": 50_000}
    assert forward.items() >= shape.items() and backward.items() >= shape.items()
    # The latency (ms) is that of all kernels of the second call; the kernel is its longest.
    assert (forward["op_name"], forward["latency"]) == ("context_attention", "0.011250")
    assert (forward["kernel"], forward["kernel_ns"]) == (FLASH, 11_000)
    assert (forward["first_ns"], forward["third_ns"]) == (10_250, 12_250)
    # Its kernels are launched by another thread, within the range.
    assert (backward["op_name"], backward["latency"]) == ("context_attention_backward", "0.022000")
    assert (backward["kernel"], backward["kernel_ns"]) == ("dq_dk_dv", 21_000)
    assert set(forward) <= set(COLUMNS) and set(backward) <= set(COLUMNS)


def test_a_decode_step_has_one_row():
    (row,) = rows_of(Events().call(0, DECODE).found, [DECODE], 0)
    expected = {"op_name": "generation_attention", "kernel_source": "torch_cudnn", "batch_size": 16, "isl": 1}
    expected |= {"step": 4096, "num_heads": 28, "num_key_value_heads": 4, "latency": "0.011250"}
    assert row.items() >= expected.items()


def test_events_may_come_in_any_order():
    events = Events().call(0, PREFILL).call(1, DECODE).found
    assert rows_of(events[::-1], [PREFILL, DECODE], 0) == rows_of(events, [PREFILL, DECODE], 0)


@pytest.mark.parametrize("lost", ["1 forward", "2 forward", "0 backward", "1 backward, the short one"])
def test_a_shape_of_which_a_launch_was_lost_is_left_out(lost):
    events = Events().call(0, PREFILL).call(1, PREFILL).call(2, DECODE).found
    ours = next(event for event in events if event["name"] == f"1 {lost.partition(',')[0]}")
    within = [event for event in events if event["cat"] == "cuda_runtime" and 0 <= event["ts"] - ours["ts"] < 3]
    gone = {event["args"]["correlation"] for event in within[: 1 if "," in lost else None]}
    assert len(gone) == (1 if "," in lost else 2)
    left = [event for event in events if event["cat"] != "kernel" or event["args"]["correlation"] not in gone]
    rows = rows_of(left, [PREFILL, PREFILL, DECODE], 0)
    assert [row["order"] for row in rows] == [0, 0, 2]


@pytest.mark.parametrize("part", ["attention", "gemm"])
def test_a_recording_is_out_of_date_when_the_code_that_both_parts_share_changes(part):
    names = {path.name for path in run._sources(PARTS[part])}
    assert {f"{part}.py", "profiled_launches.py"} <= names and not {"attention.py", "gemm.py"} <= names


def test_a_lost_reference_is_an_empty_cell():
    events = [event for event in Events().call(0, DECODE).found if event["name"] != "nvjet"]
    assert [row["reference_ns"] for row in rows_of(events, [DECODE], 0)] == [""]


def test_a_refused_call_has_a_range_without_kernels_and_no_row():
    events = Events()
    events.range("0 0 reference", ("nvjet", 50.0))
    events.range("0 0 forward")
    events.launch("randn", 99.0)
    events.now += 1
    events.call(1, DECODE)
    assert [row["order"] for row in rows_of(events.found, [PREFILL, DECODE], 0)] == [1]


class Tensor:
    """Stand-in for a tensor, of which only the shape is known."""

    def __init__(self, *shape):
        self.shape, self.trained = shape, False

    def transpose(self, first, second):
        assert (first, second) == (1, 2)
        batch, tokens, heads, head_dim = self.shape
        return Tensor(batch, heads, tokens, head_dim)

    def requires_grad_(self):
        self.trained = True
        return self


class Torch(types.ModuleType):
    """Stand-in for PyTorch: within ranges, its products and attention add events."""

    __version__ = "2.11.0+cu130"
    bfloat16 = "bf16"

    def __init__(self):
        super().__init__("torch")
        self.events, self.backend, self.within, self.refuses, self.attended = Events(), None, None, {}, []
        self.cuda = types.SimpleNamespace(get_device_name=lambda number: "NVIDIA H100", synchronize=lambda: None)
        backends = types.SimpleNamespace(FLASH_ATTENTION="flash", CUDNN_ATTENTION="cudnn")
        attention = types.SimpleNamespace(SDPBackend=backends, sdpa_kernel=lambda names: Chosen(self, names))
        functional = types.SimpleNamespace(scaled_dot_product_attention=self.attend)
        self.nn = types.SimpleNamespace(attention=attention, functional=functional)
        self.autograd = types.SimpleNamespace(grad=self.grad)
        self.profiler = types.SimpleNamespace(
            ProfilerActivity=types.SimpleNamespace(CPU=0, CUDA=1),
            profile=lambda activities: Profile(self),
            record_function=lambda name: Range(self, name),
        )

    def manual_seed(self, seed):
        pass

    def randn(self, *shape, device, dtype):
        assert (device, dtype) == ("cuda", "bf16")
        return Tensor(*shape)

    def randn_like(self, tensor):
        return Tensor(*tensor.shape)

    def mm(self, x, y):
        assert x.shape[1] == y.shape[0]
        self.launch("nvjet", 50.0)

    def launch(self, kernel, took):
        if self.within is not None:
            self.within.append((kernel, took))

    def attend(self, query, keys, values, is_causal, enable_gqa):
        batch, heads, tokens, head_dim = query.shape
        assert keys.shape == values.shape == (batch, keys.shape[1], keys.shape[2], head_dim)
        assert enable_gqa == (heads != keys.shape[1]) and is_causal == query.trained == (tokens > 1)
        self.attended.append(tokens)
        if reason := self.refuses.get((self.backend, head_dim)):
            raise RuntimeError(reason)
        self.launch(f"{self.backend}_kernel", 10.0)
        return query

    def grad(self, found, inputs, gradient):
        assert found.shape == gradient.shape and all(tensor.trained for tensor in inputs)
        assert self.backend is None, "the backend is chosen for the forward pass alone"
        self.launch("backward_kernel", 20.0)


class Chosen:
    """Stand-in for torch.nn.attention.sdpa_kernel."""

    def __init__(self, torch, names):
        self.torch, (self.name,) = torch, names

    def __enter__(self):
        self.torch.backend = self.name

    def __exit__(self, *error):
        self.torch.backend = None


class Range:
    """Stand-in for torch.profiler.record_function."""

    def __init__(self, torch, name):
        self.torch, self.name = torch, name

    def __enter__(self):
        self.torch.within = []

    def __exit__(self, *error):
        self.torch.events.range(self.name, *self.torch.within)
        self.torch.within = None


class Profile:
    """Stand-in for torch.profiler.profile."""

    def __init__(self, torch):
        self.torch = torch

    def __enter__(self):
        self.torch.events = Events()
        return self

    def __exit__(self, *error):
        pass

    def export_chrome_trace(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": self.torch.events.found}, file)


@pytest.fixture
def torch(monkeypatch):
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def read(folder):
    with (folder / TABLE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def call_of(row):
    return AttentionCall(row["kernel_source"], *(int(row[name]) for name in attention._KEY[1:]))


def test_all_shapes_are_recorded_once(torch, tmp_path):
    recorded = attention.record_attention(tmp_path)
    rows = read(tmp_path)
    calls = all_calls()
    operators = [("context_attention", "context_attention_backward") if call.tokens > 1 else ("generation_attention",)
                 for call in calls]  # fmt: skip
    assert [row["op_name"] for row in rows] == [name for names in operators for name in names]
    assert list(dict.fromkeys(map(call_of, rows))) == calls
    assert list(dict.fromkeys(int(row["order"]) for row in rows)) == list(range(len(calls)))
    kernels = {(row["kernel_source"], row["kernel"]) for row in rows if row["op_name"] != "context_attention_backward"}
    assert kernels == {("torch_flash", "flash_kernel"), ("torch_cudnn", "cudnn_kernel")}
    assert recorded.cases == {"kernel_time": {"attention": {"attention": TABLE, "gpu": "NVIDIA H100", "unit": "ms"}}}
    assert recorded.about == {"shapes": len(calls), "refused": []} and TABLE in recorded.notes
    made = len(torch.attended)
    assert made == 3 * len(calls)
    assert attention.record_attention(tmp_path) == recorded and len(torch.attended) == made, "nothing is made again"


def test_what_a_backend_refuses_is_noted_and_the_others_go_on(torch, tmp_path):
    torch.refuses = {
        ("flash", 256): "No available kernel. Aborting execution.",
        ("cudnn", 64): "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 80 GiB. Process 4242 has 79 GiB.\n",
    }
    recorded = attention.record_attention(tmp_path)
    refused = {call for call in all_calls() if (call.backend.removeprefix("torch_"), call.head_dim) in torch.refuses}
    assert {call_of(row) for row in read(tmp_path)} == set(all_calls()) - refused
    noted = recorded.about["refused"]
    assert len(noted) == len(refused) and noted == sorted(noted) and "4242" not in "".join(noted)
    assert "torch_flash/1/1/1000/16/8/256: No available kernel" in noted
    assert "torch_cudnn/1/1/1000/12/12/64: CUDA out of memory" in noted
    # Another call tries them again and no others.
    made = len(torch.attended)
    assert attention.record_attention(tmp_path) == recorded and len(torch.attended) == made + len(refused)


def test_a_gpu_on_which_every_shape_is_refused_is_one_line(torch, tmp_path):
    torch.refuses = {
        (name, heads[2]): "No available kernel. Aborting." for name in ("flash", "cudnn") for heads in HEADS
    }
    with pytest.raises(InputError, match=r"no backend takes any shape, such as torch_\S+: No available kernel; use"):
        attention.record_attention(tmp_path)
    assert not (tmp_path / TABLE).exists()


def test_a_profiler_that_sees_no_kernels_is_one_line(torch, tmp_path):
    torch.launch = lambda kernel, took: None
    with pytest.raises(InputError, match=r"torch\.profiler: it shows no kernels .* another profiler"):
        attention.record_attention(tmp_path)


@pytest.mark.parametrize("version", ["2.4.1+cu121", "1.13.1"])
def test_an_older_pytorch_is_one_line(torch, tmp_path, version):
    torch.__version__ = version
    with pytest.raises(InputError, match=r"PyTorch, version \S+: it is too old; use 2\.5 or newer"):
        attention.record_attention(tmp_path)


@pytest.mark.parametrize(
    "end",
    ["in a first row", "in a second row", "between the rows of a shape", "after a shape", "before the first line"],
)
def test_a_recording_that_ended_in_the_middle_goes_on(torch, tmp_path, end):
    torch.refuses = {("flash", 64): "CUDA out of memory."}  # which another program held
    profile, chunks = torch.profiler.profile, []

    def ending(activities):
        chunks.append(1)
        if len(chunks) == 3:
            raise KeyboardInterrupt
        return profile(activities)

    torch.profiler.profile = ending
    with pytest.raises(KeyboardInterrupt):
        attention.record_attention(tmp_path)
    path = tmp_path / TABLE
    lines = path.read_text("utf-8").splitlines(keepends=True)
    assert CHUNK < len({row["order"] for row in read(tmp_path)}) < 2 * CHUNK
    first = max(at for at, line in enumerate(lines) if ",context_attention," in line)
    kept = {
        "in a first row": [*lines[:first], lines[first][:-7]],
        "in a second row": [*lines[: first + 1], lines[first + 1][:-7]],
        "between the rows of a shape": lines[: first + 1],
        "after a shape": lines,
        "before the first line": [],
    }
    path.write_text("".join(kept[end]), "utf-8")
    torch.profiler.profile, torch.refuses = profile, {}
    attention.record_attention(tmp_path)
    rows = read(tmp_path)
    assert list(rows[0]) == list(COLUMNS)
    assert sorted(dict.fromkeys(map(call_of, rows))) == sorted(all_calls())
    assert len(rows) == len({(call_of(row), row["op_name"]) for row in rows})
    orders = list(dict.fromkeys(int(row["order"]) for row in rows))
    assert orders == sorted(orders) and len(orders) == len(all_calls()), "each shape has its own place"
