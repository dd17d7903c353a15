"""Recording on a GPU, with stand-ins for the tools: what is asked of them, what becomes of their answers."""

import errno
import json
import os
import re
import subprocess
import time
from dataclasses import replace

import pytest
import record_fakes
from fake_driver import FakeDriver
from ncu_values import wide
from own_cases import reduced
from record_fakes import calls, made

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Dataset
from gpuledger.models import scaling_laws
from gpuledger.readers import ncu as ncu_reader
from gpuledger.record import __main__ as command
from gpuledger.record import designs, device, driver, latency, metrics, plan, profiler, recording, run, session, sweeps
from gpuledger.record.parts import BUDGET_S, LAUNCH_S, LEAST_COUNTED_S, LEAST_S, PARTS, PROCESS_S

tools = record_fakes.tools
#: As planned; the tests record fewer points.
PLANNED = designs.SWEEPS


def load(folder):
    return Dataset.load(folder / "dataset.yaml")


# --- whether to record


def test_without_nvidia_smi_and_a_driver_nothing_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(driver, "load_library", lambda: None)
    monkeypatch.setattr(device, "find_device", lambda: pytest.fail("looked for a GPU"))
    assert plan.make_plan("auto") == plan.RecordingPlan()


@pytest.mark.parametrize("off", ["off", False])
def test_off_never_looks(tools, off):
    assert plan.make_plan(off) == plan.RecordingPlan()
    assert not (tools / "smi_calls").exists()


def test_require_fails_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    device.find_device.cache_clear()
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    driver.driver.cache_clear()
    with pytest.raises(InputError, match="no NVIDIA driver"):
        plan.make_plan("require")


def test_auto_says_why_a_gpu_is_not_recorded(tools):
    (tools / "smi_fails").write_text("Failed to initialize NVML: Driver/library version mismatch")
    found = plan.make_plan("auto")
    assert found.parts == ()
    assert "different versions" in found.left_out["gpu"]
    with pytest.raises(InputError, match="different versions"):
        plan.make_plan("require")


def test_parts_without_their_tools_are_left_out(tools, monkeypatch):
    monkeypatch.setattr(plan, "_INSTALLED", {"torch": lambda: True, "nvrtc": lambda: False})
    monkeypatch.setattr(plan, "_counters_are_restricted", lambda: False)
    found = plan.make_plan("auto")
    assert found.parts == tuple(name for name, part in PARTS.items() if "nvrtc" not in part.needs)
    assert set(found.left_out) == {"normalization", "blocks", "latency", "probes", "neutrino"}
    with pytest.raises(InputError, match=r"part blocks .* NVRTC is not installed; pip install"):
        plan.make_plan("require")
    (tools / "ncu").unlink()
    monkeypatch.setattr(profiler, "PLACES", ())
    assert plan.make_plan("auto").parts == ("gemm", "attention", "power")
    assert "Nsight Compute is not installed" in plan.make_plan("auto").left_out["counters"]
    uncounted = ("blocks", "probes", "gemm", "attention", "normalization", "power")
    assert plan.make_plan("auto", python="/some/python").parts == uncounted


def test_only_the_parts_that_are_wanted_are_planned_and_required(tools, monkeypatch):
    monkeypatch.setattr(plan, "_INSTALLED", {"torch": lambda: True, "nvrtc": lambda: False})
    monkeypatch.setattr(plan, "_counters_are_restricted", lambda: False)
    assert plan.make_plan("require", parts=["sweep_gpt2", "counters"]).parts == ("counters", "sweep_gpt2")
    assert plan.make_plan("auto", parts=["probes", "gemm"]) == plan.RecordingPlan(
        ("gemm",), {"probes": plan.make_plan("auto").left_out["probes"]}
    )
    with pytest.raises(InputError, match=r"part probes .* NVRTC is not installed"):
        plan.make_plan("require", parts=["probes", "gemm"])
    with pytest.raises(InputError, match=r"key record\.parts: unknown part sweeps; choose from blocks, counters"):
        plan.make_plan("off", parts=["sweeps"])


@pytest.mark.parametrize(
    ("parameters", "capabilities", "restricted"),
    [
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t0000000000000000\n", True),
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t000001ffffffffff\n", False),
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t00000040a80425fb\n", False),  # a container with CAP_PERFMON
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t00000000a80425fb\n", True),  # and one without, which has others
        ("RmProfilingAdminOnly: 0\n", "CapEff:\t0000000000000000\n", False),
    ],
)
def test_restricted_counters_show_before_ncu_is_run(tools, tmp_path, monkeypatch, parameters, capabilities, restricted):
    for name, text in (("_DRIVER", parameters), ("_PROCESS", capabilities)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(plan, name, tmp_path / name)
    monkeypatch.setattr(plan, "_INSTALLED", {"torch": lambda: True, "nvrtc": lambda: True})
    assert ("ERR_NVGPUCTRPERM" in plan.make_plan("auto").left_out.get("counters", "")) is restricted


# --- the GPU


def test_the_device_is_described(tools):
    found = device.find_device()
    assert found == device.Device("NVIDIA H200", "9.0", "580.65.06", 143771 << 20)
    assert found.slug == "nvidia-h200"
    assert "-i 0" in (tools / "smi_calls").read_text()
    state = device.describe_state()
    assert state["clocks.max.sm"] == "1980 MHz"
    # What a driver does not know or no longer says is left out. All else comes of one call, which can take a second.
    assert {"clocks.default_applications.graphics", "pstate"} & set(state) == set()
    assert (tools / "smi_calls").read_text().count("power.limit") == 1


@pytest.fixture
def library(monkeypatch):
    """libcuda without nvidia-smi, as in a container that may only compute."""
    monkeypatch.setattr(driver, "load_library", object)
    monkeypatch.setattr(driver, "release", lambda: "580.65.06")
    return FakeDriver(lambda *_: 0.0).install(monkeypatch)


def test_without_nvidia_smi_the_driver_describes_the_gpu(tools, library, caplog):
    (tools / "nvidia-smi").unlink()
    assert device.find_device() == device.Device("NVIDIA H200", "9.0", "580.65.06", 141 * 10**9)
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "numbers mean the same to libcuda as to nvidia-smi"
    assert device.describe_state() == {}
    device.check_alone()
    assert "other processes on the GPU cannot be seen" in caplog.text
    assert "gpu" not in plan.make_plan("auto").left_out


def test_without_nvidia_smi_a_recording_is_complete(tools, library, tmp_path):
    (tools / "nvidia-smi").unlink()
    _, failed = made(tools, tmp_path / "out", ["counters"])
    assert failed == {}
    assert "driver 580.65.06" in load(tmp_path / "out").content["source"]


def test_an_nvidia_smi_that_fails_is_not_needed(tools, library, caplog):
    (tools / "smi_fails").write_text("Failed to initialize NVML: Unknown Error")
    assert device.find_device().memory_bytes == 141 * 10**9
    assert "described by the driver's library" in caplog.text


def test_the_release_of_the_driver_is_that_of_its_module(monkeypatch, tmp_path):
    monkeypatch.setattr(driver, "_MODULE", tmp_path / "version")
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)\n"
    (tmp_path / "version").write_text(text)
    assert driver.release() == "580.65.06"
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Tue Mar  5\n")
    assert driver.release() == "535.161.08"


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles", " ,0"])
def test_a_gpu_that_is_hidden_is_not_used(tools, tmp_path, hidden):
    os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    with pytest.raises(InputError, match=r"CUDA_VISIBLE_DEVICES: it is .* which hides every GPU; unset it"):
        device.find_device()
    assert "hides every GPU" in plan.make_plan("auto").left_out["gpu"]
    with pytest.raises(InputError, match="hides every GPU"):
        made(tools, tmp_path / "out", ["counters"])
    assert not (tools / "smi_calls").exists()


LISTED = """GPU 0: NVIDIA H200 (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA H200 (UUID: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6)
  MIG 1g.18gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.18gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
"""


@pytest.mark.parametrize(
    ("chosen", "asked"),
    [
        ("GPU-8932f937", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"),
        ("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77,1", "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"),
        ("MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"),
    ],
)
def test_uuids_and_mig_instances_are_found(tools, library, chosen, asked):
    """nvidia-smi takes whole UUIDs of GPUs only, CUDA their beginnings and instances."""
    (tools / "smi_list").write_text(LISTED)
    library.device_name = "NVIDIA H200 MIG 1g.18gb"
    os.environ["CUDA_VISIBLE_DEVICES"] = chosen
    whole = chosen.startswith("GPU")
    assert device.find_device().name == ("NVIDIA H200" if whole else "NVIDIA H200 MIG 1g.18gb")
    assert device.describe_state()["clocks.max.sm"] == "1980 MHz"
    assert f"-i {asked} " in (tools / "smi_calls").read_text()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == (chosen if whole else chosen.split(",")[0])


def test_the_first_visible_device_is_the_one(tools, monkeypatch):
    os.environ["CUDA_VISIBLE_DEVICES"] = "3,1"
    device.find_device()
    assert "-i 3" in (tools / "smi_calls").read_text()
    device.select_device()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_another_process_on_the_gpu_is_named(tools, tmp_path):
    (tools / "apps").write_text("1234, 5120 MiB, /home/me/bin/train.py\n")
    with pytest.raises(InputError, match=r"another process is on the GPU: train.py \(pid 1234, 5120 MiB\)"):
        made(tools, tmp_path / "out")
    (tools / "apps").write_text(f"{os.getpid()}, 100 MiB, python\n")
    device.check_alone()


# --- metrics and command lines


def test_flop_metrics_are_those_of_the_chip(tools):
    known = profiler.find_ncu().metrics
    found, missing = metrics.flop_metrics("9.0", known)
    assert missing == []
    assert {"sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32.sum", *metrics.NEEDED} <= set(found)
    assert sum("_op_" in name and "pred_on" in name and "sass_thread" in name for name in found) == 9
    # An older ncu does not know the tensor operations: said, not asked for.
    older = {name for name in known if "ops_path" not in name}
    found, missing = metrics.flop_metrics("9.0", older)
    assert all("ops_path" not in name for name in found)
    assert len(missing) == 39
    # A chip that is not in the table: by the names that ncu lists.
    newer = {*older, "sm__ops_path_tensor_op_utchmma_src_bf16", "smsp__sass_thread_inst_executed_op_ffma2_pred_on"}
    found, _ = metrics.flop_metrics("10.0", newer)
    assert {"sm__ops_path_tensor_op_utchmma_src_bf16.sum", *metrics.NEEDED} <= set(found)
    assert "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum" in found
    with pytest.raises(InputError, match="does not list smsp__sass_thread_inst_executed_op_fadd_pred_on"):
        metrics.flop_metrics("9.0", {"dram__bytes_read"})


def test_renamed_metrics_are_asked_for_by_the_name_that_ncu_knows(tools):
    found, missing = metrics.choose(metrics.SWEEP, profiler.find_ncu().metrics)
    assert "dram__bytes_op_read.sum" in found
    assert "dram__bytes_read.sum" not in found
    assert "dram__bytes_write.sum" in found
    assert missing == []


def test_the_command_line_is_complete(tools):
    ncu = profiler.find_ncu()
    assert ncu.version == "2025.3.1"
    control = profiler.Control(clock="base", cache="none")
    line = profiler.command_line(
        ncu.program, ["a__b.sum", "c__d.sum"], ["python3", "-m", "x y"], control, "/tmp/log.csv"
    )
    assert line[0] == str(tools / "ncu")
    assert " ".join(line[1:]) == (
        "--csv --page raw --print-units base --clock-control base --cache-control none --replay-mode kernel "
        "--target-processes all --profile-from-start off --metrics a__b.sum,c__d.sum --log-file /tmp/log.csv "
        "python3 -m x y"
    )
    assert line[-1] == "x y"  # one argument, as given: no shell in between
    assert "--nvtx" in profiler.command_line(ncu.program, ["a"], ["x"], control, "/tmp/log.csv", profiler.WITH_RANGES)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("NVIDIA (R) Nsight Compute\nVersion 2021.1.0.0 (build 1)", "2021.1.0.0 is too old: at least 2022.3"),
        ("segmentation fault", "instead of a version it prints"),
    ],
)
def test_an_old_ncu_is_refused(tools, version, message):
    (tools / "ncu_version").write_text(version)
    with pytest.raises(InputError, match=message):
        profiler.find_ncu()


def test_a_missing_ncu_is_named(tools, monkeypatch):
    (tools / "ncu").unlink()
    monkeypatch.setattr(profiler, "PLACES", ())
    with pytest.raises(InputError, match="Nsight Compute is not installed; install"):
        profiler.find_ncu()


# --- tables


def table(*rows, header=("ID", "Host Name", "Kernel Name", "a__b.sum"), noise="==PROF== Connected to process 1\n"):
    units = (*[""] * (len(header) - 1), "inst")
    quoted = [",".join(f'"{cell}"' for cell in row) for row in (header, units, *rows)]
    return noise + "\n".join(quoted) + "\n==PROF== Disconnected from process 1\n"


def test_a_table_keeps_launches_and_loses_the_machine():
    text, counted = profiler.publishable(table(("0", "my-host", "k(int, float)", "12")), ["a__b.sum", "n__o.sum"], "x")
    assert counted == profiler.Counted(1, ("n__o.sum",))
    assert text == '"ID","Kernel Name","a__b.sum"\n"","","inst"\n"0","k(int, float)","12"\n'


def test_a_table_keeps_what_was_requested_and_the_launch():
    """ncu 2025.3 prints a counter's other rollups and the machine beside what was requested."""
    machine = ("device__attribute_warp_size", "c2clink__present", "numa__id_cpu", "nvlink__max_count")
    launch = ("ID", "Kernel Name", "Block Size", "CC", "device__attribute_display_name", "launch__registers_per_thread")
    added = ("a__b.avg", "a__b.max", "profiler__replayer_passes", "sm__maximum_warps_avg_per_active_cycle")
    every = (*launch, *machine, *added, "a__b.sum")
    text = table(("0", *every[1:]), header=every, noise="")
    for more, kept in (({}, (*launch, "a__b.sum")), ({"unrequested": True}, (*launch, *added, "a__b.sum"))):
        made, counted = profiler.publishable(text, ["a__b.sum"], "x.csv", **more)
        assert made.splitlines()[0] == ",".join(f'"{name}"' for name in kept)
        assert counted == profiler.Counted(1, ())
        # What was written is written again as it is.
        assert profiler.publishable(made, ["a__b.sum"], "x.csv", **more)[0] == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", "no kernels were profiled"),
        ("", "wrote no table"),
        (table(), "no kernels were profiled"),
        (table(("0", "h", "k", "n/a")), "no value of a__b.sum"),
        (table(("0", "h", "k", "1"), ("1", "h")), "is truncated"),
        (table(("0", "h", "k", "1")).replace("a__b.sum", "other"), "no value of a__b.sum"),
    ],
)
def test_half_a_table_is_no_table(text, message):
    with pytest.raises(InputError, match=message):
        profiler.publishable(text, ["a__b.sum"], "x.csv")


def test_a_table_is_split_by_ranges_of_either_kind():
    """Autograd launches from a thread of its own: its launches are only in ranges that are started and ended."""
    pushed = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    started = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    step = "<default domain>:{}:none:none:none:none:none:none"
    rows = [("0", step.format("1x2"), "", "k", "1"), ("1", "", step.format("1x2"), "k", "2"),
            ("2", "", step.format("11x2"), "k", "4"), ("3", "", "", "k", "8")]  # fmt: skip
    text = table(*rows, header=("ID", pushed, started, "Kernel Name", "a__b.sum"))
    for name, found in (("1x2", ["1", "2"]), ("11x2", ["4"])):
        made, counted = profiler.publishable(text, ["a__b.sum"], "x.csv", within=name)
        assert counted.launches == len(found) and "domain" not in made.lower()
        assert [line.split(",")[-1].strip('"') for line in made.splitlines()[2:]] == found
    with pytest.raises(InputError, match=r"x\.csv, ncu, range 3x4: no kernels were profiled"):
        profiler.publishable(text, ["a__b.sum"], "x.csv", within="3x4")


def test_needed_counters_must_have_values():
    header = ("ID", "Host Name", "Kernel Name", "gpu__time_duration.sum")
    text = table(("0", "h", "k", "1"), header=header)
    with pytest.raises(InputError, match="no value of smsp__sass_thread_inst_executed_op_ffma_pred_on"):
        profiler.publishable(text, ["gpu__time_duration.sum", metrics.NEEDED[2]], "x.csv")


# --- a whole recording


def test_a_recording_is_a_dataset_that_the_studies_read(tools, tmp_path):
    folder = tmp_path / "nvidia-h200"
    target, failed = made(tools, folder)
    assert failed == {}
    dataset = load(folder)
    assert dataset.label == "recorded on NVIDIA H200"
    assert dataset.cases() == [
        *(("flop_reconciliation", name) for name in ("gpt2", "toy_network")),
        # Two numbers of layers are too few for a case with totals.
        *(("metric_sweep", name) for name in ("gpt2", "llama")),
    ]
    for study, name in dataset.cases():
        case = dataset.case(study, name)
        assert all(path.is_file() for path in case.paths())
        assert case.provenance()["device"] == {"name": "NVIDIA H200", "compute_capability": "9.0"}
    network = dataset.case("flop_reconciliation", "toy_network")
    report = ncu_reader.read(network.path("forward"))
    assert report.launches["grid"].notna().all()
    assert wide(report, [metrics.NEEDED[2]]).iloc[:, -1].sum() > 0
    source = dataset.content["source"]
    for words in (
        *("driver 580.65.06", "Nsight Compute 2025.3.1", "PyTorch 2.11.0"),
        *("clock control none", "cache control all"),
    ):
        assert words in source
    known = json.loads((folder / "recording.json").read_text())["parts"]["counters"]
    assert known["state"]["clocks.max.sm"] == "1980 MHz"
    assert known["control"] == {"clock": "none", "cache": "all", "replay": "kernel"}
    assert known["date"] in source
    assert target.size_bytes() < 2_000_000


def test_nothing_recorded_names_the_machine(tools, tmp_path):
    made(tools, tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8")
            assert not {word for word in ("secret", '"4242"', str(tmp_path), "torch-python") if word in text}, path


def test_a_sweep_has_every_point_once(tools, tmp_path):
    made(tools, tmp_path / "out", ["sweep_gpt2"])
    points = designs.SWEEPS["gpt2"].points()
    assert len(points) == len(set(points)) == 5
    parameters = (tmp_path / "out/metric_sweep/gpt2_parameters.csv").read_text().splitlines()
    assert parameters[0] == "file,n_layer,hidden_dim,seq_len"
    assert parameters[1] == "n_layer-2.hidden_dim-768.seq_len-128.csv,2,768,128"
    files = {path.name for path in (tmp_path / "out/metric_sweep/gpt2").iterdir()}
    assert files == {line.partition(",")[0] for line in parameters[1:]}
    (call,) = calls(tools)
    assert call[call.index("-m") + 1 :] == [
        "gpuledger.record.workloads.gpt2", "--direction=forward",
        f"--seconds={0.9 * 5 * PARTS['sweep_gpt2'].seconds:.0f}",
        "--point=2x768x12x128", "--point=2x768x12x64", "--point=2x768x12x256",
        "--point=2x1536x12x128", "--point=1x768x12x128",
    ]  # fmt: skip


def test_each_variable_has_points_enough_for_a_law():
    for design in PLANNED.values():
        points = design.points()
        assert len(set(points)) == len(points) <= 15
        for variable in ("n_layer", "hidden_dim", "seq_len"):
            values = {getattr(point, variable) for point in points}
            few = (variable == "n_layer" and design.workload == "llama") or design.direction == "backward"
            least = 2 if few else 5
            assert len(values) >= least if getattr(design, variable) else values == {getattr(design.base, variable)}
            assert getattr(design.base, variable) in values


def test_the_source_s_sweep_has_wider_heads_and_ours_more_of_them():
    def heads(name):
        design = PLANNED[name]
        points = [point for point in design.points() if (point.n_layer, point.seq_len) == (design.base.n_layer, 128)]
        found = {}
        for point in points:
            layers, width, count, tokens = map(int, design.sizes(point).split("x"))
            assert (layers, width, tokens) == (point.n_layer, point.hidden_dim, point.seq_len)
            found[point.hidden_dim] = count
        return found

    assert heads("gpt2") == dict.fromkeys((192, 384, 768, 1536, 3072, 6144), 12)
    assert heads("gpt2_backward") == dict.fromkeys((192, 384, 768, 1536, 3072), 12)
    assert heads("gpt2_head_dim_64") == {192: 3, 384: 6, 768: 12, 1536: 24, 3072: 48, 6144: 96}
    assert heads("llama") == {512: 4, 1024: 8, 2048: 16, 3072: 24, 4096: 32}
    options = {name: design.counting("").options for name, design in PLANNED.items()}
    assert [name for name, option in options.items() if option == ("--direction=backward",)] == [
        "gpt2_backward", "llama_backward"
    ]  # fmt: skip


@pytest.mark.parametrize(("layers", "has_totals"), [((1, 2, 3, 4), False), ((1, 2, 3, 4, 6), True)])
def test_totals_need_as_many_numbers_of_layers_as_a_law(tools, tmp_path, monkeypatch, layers, has_totals):
    design = replace(PLANNED["gpt2"], base=designs.Point(1, 768, 128), n_layer=layers, hidden_dim=(), seq_len=(64,))
    monkeypatch.setattr(designs, "SWEEPS", {"gpt2": design})
    made(tools, tmp_path / "out", ["sweep_gpt2"])
    cases = {case for study, case in load(tmp_path / "out").cases() if study == "metric_sweep"}
    assert cases == {"gpt2", *(["gpt2_totals"] if has_totals else [])}
    assert sweeps.LAYERS_FOR_TOTALS == scaling_laws.MINIMUM_POINTS


@pytest.mark.parametrize("differ", [False, True])
def test_whether_layers_matter_is_measured_on_the_whole_model(tools, tmp_path, monkeypatch, differ):
    """The source says that values per launch do not depend on n_layer; a recording can contradict it."""
    design = replace(PLANNED["gpt2"], hidden_dim=(), seq_len=())
    monkeypatch.setattr(designs, "SWEEPS", {"gpt2": design})
    if differ:
        (tools / "layers_differ").touch()
    made(tools, tmp_path / "out", ["sweep_gpt2"])
    dataset = load(tmp_path / "out")
    (_, case), *sweeps = dataset.cases()
    assert case == "gpt2" and sweeps == [("metric_sweep", "gpt2"), ("metric_sweep", "gpt2_totals")]
    stores = "smsp__sass_inst_executed_op_global_st_sum"
    per_launch, totals = (reduced(dataset.case(*case)) for case in sweeps)
    assert per_launch[f"fmha_{stores}_by_n_layer_law"] == ("proportional" if differ else "constant")
    assert totals[f"fmha_{stores}_by_n_layer_law"] == ("quadratic" if differ else "proportional")
    # The LM head launches a GEMM beside those of the layers.
    assert totals[f"gemm_{stores}_by_n_layer_law"] == ("quadratic" if differ else "affine")
    if not differ:
        assert totals[f"gemm_{stores}_by_n_layer_intercept"] == 1000
    assert not any("pct_of_peak" in name or "per_second" in name for name in totals.summary)


def test_a_sweep_that_fails_is_recorded_by_the_next_call(tools, tmp_path):
    folder = tmp_path / "out"
    (tools / "ncu_fails").write_text(json.dumps({"1": {"log": "==ERROR== LaunchFailed\n"}}))
    _, failed = made(tools, folder, ["sweep_gpt2"])
    assert "ncu cannot profile" in str(failed["sweep_gpt2"])
    assert not (folder / "metric_sweep").exists() and not (folder / "dataset.yaml").exists()
    assert "sweep_gpt2" in recording.Recording(folder).left_out
    _, failed = made(tools, folder, ["sweep_gpt2"])
    assert failed == {} and len(calls(tools)) == 2
    assert [case for _, case in load(folder).cases()] == ["gpt2", "gpt2"]
    assert recording.Recording(folder).left_out == {}


def test_a_mistake_in_one_part_costs_no_other(tools, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("gpuledger.record.counters.record_counters", lambda session: {}["x"])
    _, failed = made(tools, tmp_path / "out", ["counters", "sweep_gpt2"])
    assert str(failed["counters"]) == "gpuledger, counters: KeyError: 'x'; report it" and "Traceback" in caplog.text
    assert ("metric_sweep", "gpt2") in load(tmp_path / "out").cases()


@pytest.mark.parametrize("text", ["[1]", '{"parts": [], "points": 3, "left_out": null}', "[" * 100_000])
def test_a_damaged_state_is_as_none(tmp_path, text):
    (tmp_path / recording.MANIFEST).write_text(text)
    assert recording.Recording(tmp_path).parts == {}


def test_a_point_that_lacks_its_sum_is_recorded_again(tmp_path):
    (tmp_path / recording.MANIFEST).write_text('{"parts": {}, "left_out": {}, "points": {"a": {"key": "k"}, "b": 1}}')
    assert not any(recording.Recording(tmp_path).is_made(name, "k") for name in ("a", "b"))


@pytest.mark.parametrize("spent", ["[1]", "null", '{"counters": "long"}'])
def test_damaged_times_of_earlier_calls_are_as_none(tmp_path, spent):
    (tmp_path / recording.MANIFEST).write_text(f'{{"parts": {{}}, "left_out": {{}}, "points": {{}}, "spent": {spent}}}')
    target = recording.Recording(tmp_path)
    target.begin("counters")
    target.leave_out("counters", "no time")
    assert json.loads((tmp_path / recording.MANIFEST).read_text())["spent"].keys() == {"counters"}


def test_a_file_system_without_locks_is_recorded_on(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)
    with recording.Recording(tmp_path / "out").alone():
        assert (tmp_path / "out").is_dir()


def test_what_is_recorded_stays_until_something_it_depends_on_changes(tools, tmp_path):
    folder, parts = tmp_path / "out", ("counters", "sweep_gpt2")
    made(tools, folder, parts)
    first = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    count = len(calls(tools))
    made(tools, folder, parts)
    assert len(calls(tools)) == count
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == first
    # A file that was touched by someone is made again; another control makes everything again.
    (folder / "flop_reconciliation/toy_network_setup.csv").write_text("ID\n")
    made(tools, folder, parts)
    assert len(calls(tools)) == count + 1
    assert [word for word in calls(tools)[-1] if "point" in word] == ["--point=setup"], "only what is not up to date"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.suffix == ".csv"} == {
        path: content for path, content in first.items() if path.suffix == ".csv"
    }
    run.record_parts(
        recording.Recording(folder), parts, python=str(tools / "torch-python"), control=profiler.Control(cache="none")
    )
    assert len(calls(tools)) == 2 * count + 1
    assert "cache control none" in load(folder).content["source"]


def test_a_part_that_is_being_made_again_is_out_of_the_dataset(tools, tmp_path):
    folder = tmp_path / "out"
    made(tools, folder)
    (tools / "ncu_version").write_text("Version 2026.1.0.0")
    profiler.find_ncu.cache_clear()
    (tools / "ncu_fails").write_text(json.dumps({"always": {"log": "", "printed": "CUDA out of memory"}}))
    _, failed = made(tools, folder, ["sweep_llama"])
    assert "memory is full" in str(failed["sweep_llama"])
    assert ("metric_sweep", "llama") not in load(folder).cases()
    assert ("metric_sweep", "gpt2") in load(folder).cases()


def test_a_part_for_which_there_is_no_time_gives_way_to_a_shorter_one(tools, tmp_path, monkeypatch):
    """The clock stands still but for the first part, which takes longer than planned."""
    clock = [0.0]
    monkeypatch.setattr(recording.time, "monotonic", lambda: clock[0])
    collect = profiler.profile

    def slow(*arguments, seconds, **options):
        limits.append(seconds)
        clock[0] += seconds if len(limits) == 1 else 0
        return collect(*arguments, **options)

    limits = []
    monkeypatch.setattr(session, "profile", slow)
    long, first, short = "sweep_llama_backward", "sweep_llama", "counters"
    planned = [PARTS[name].seconds for name in (first, short)]
    target = recording.Recording(tmp_path / "out", seconds=2 * planned[0] + 1.2 * planned[1])
    with pytest.raises(recording.OutOfTimeError, match=f"^{long}$"):
        run.record_parts(target, [first, long, short], python=str(tools / "torch-python"))
    assert limits == pytest.approx([2 * planned[0], 1.2 * planned[1]]), "twice the planned time, or what is left"
    assert set(target.parts) == {first, short} and "no time for all of it" in target.left_out[long]
    assert f"--seconds={0.9 * limits[0]:.0f}" in calls(tools)[0]
    assert f"--seconds={limits[1] / 2:.0f}" in calls(tools)[1], "a short one keeps half for its start and ncu's table"
    _, failed = made(tools, tmp_path / "out", [first, long, short])
    assert failed == {} and len(calls(tools)) == 3 and recording.Recording(tmp_path / "out").left_out == {}


def test_the_points_that_a_sweep_had_time_for_are_kept(tools, tmp_path):
    folder = tmp_path / "out"
    (tools / "ncu_late").write_text("2x1536x12x128 1x768x12x128")
    with pytest.raises(recording.OutOfTimeError, match=r"^sweep_gpt2$"):
        made(tools, folder, ["sweep_gpt2", "counters"])
    assert [study for study, _ in load(folder).cases()] == ["flop_reconciliation"], "other parts are recorded"
    assert not list(folder.rglob("*hidden_dim-1536*")) and len(list(folder.rglob("*seq_len*"))) == 3
    (tools / "ncu_late").unlink()
    made(tools, folder, ["sweep_gpt2", "counters"])
    assert [word for word in calls(tools)[-1] if "--point" in word] == [
        "--point=2x1536x12x128", "--point=1x768x12x128",
    ]  # fmt: skip
    assert ("metric_sweep", "gpt2") in load(folder).cases()


def test_a_workload_leaves_out_the_points_that_it_has_no_time_for(monkeypatch, capsys):
    clock = [100.0]
    monkeypatch.setattr(designs.time, "monotonic", lambda: clock[0])

    def begun(points, seconds):
        for point in designs.in_time(points, seconds):
            clock[0] += int(point)
            yield point

    assert list(begun(["5", "1", "2", "9"], 10)) == ["5", "1"], "another point could take five seconds as well"
    assert capsys.readouterr().out == f"{designs.TIME_IS_UP}2 9\n"
    assert list(begun(["5", "1"], 1)) == ["5"], "the first one in any case"
    assert list(begun(["5", "1", "2"], float("inf"))) == ["5", "1", "2"]


def test_a_part_that_does_not_end_is_ended_with_all_that_it_has_started(tools, tmp_path, monkeypatch):
    """As the part `latency`, whose ncu is in a session of its own."""
    package, number = tmp_path / "lib", tmp_path / "pid"
    package.mkdir()
    (package / "program.py").write_text(
        f"import os, time\nwith open('{number}', 'w') as file: print(os.getpid(), file=file)\ntime.sleep(99)\n"
    )
    (package / "fake_part.py").write_text(
        "import sys\n"
        "from gpuledger.record import profiler\n"
        "def record(folder):\n"
        "    (folder / 'step').touch()\n"
        f"    profiler._run([sys.executable, '-SE', '{package}/program.py'], 600)\n"
    )
    os.environ["PYTHONPATH"] = str(package)
    part = PARTS["probes"].__class__("probes", "", "fake_part", "record", (), 60, 60, True)
    monkeypatch.setitem(PARTS, "probes", part)

    class Endless(subprocess.Popen):
        def communicate(self, *arguments, timeout=None):
            while "fake_part" in self.args and not (number.is_file() and number.read_text()):
                time.sleep(0.05)
            if "fake_part" in self.args:
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().communicate(*arguments, timeout=timeout)

    monkeypatch.setattr(session.subprocess, "Popen", Endless)
    _, failed = made(tools, tmp_path / "out", ["probes"], seconds=1000)
    assert "not finished after 180 s" in str(failed["probes"]), "a short part is not ended at twice its planned minute"
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)
    assert (tmp_path / "out/.probes.partial/made/step").is_file(), "finished steps are kept for the next call"
    # At the end of the call's time this is no failure: the next call resumes.
    monkeypatch.setattr(recording.Recording, "is_over", lambda recording: True)
    with pytest.raises(recording.OutOfTimeError, match=r"^probes$"):
        made(tools, tmp_path / "out", ["probes"], seconds=1000)
    assert (tmp_path / "out/.probes.partial/made/step").is_file()


def test_what_parts_took_is_kept_for_planning(tools, tmp_path, monkeypatch, caplog):
    """Whatever calls it takes; of a part that is up to date, the time that it took when it was made stays."""
    caplog.set_level("INFO", "gpuledger")
    clock, collect = [100.0], profiler.profile

    def slow(*arguments, **options):
        clock[0] += 30
        if len(calls(tools)) == 1:
            raise KeyboardInterrupt
        return collect(*arguments, **options)

    monkeypatch.setattr(recording.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(session, "profile", slow)
    folder = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        made(tools, folder, ["counters", "sweep_gpt2"])
    assert recording.Recording(folder).parts["counters"]["seconds"] == 30
    (tools / "ncu_calls").write_text("")
    made(tools, folder, ["counters", "sweep_gpt2"])
    assert "took 30 s: tools 0, counters 0, sweep_gpt2 30" in caplog.text
    found = recording.Recording(folder)
    assert {name: part["seconds"] for name, part in found.parts.items()} == {"counters": 30, "sweep_gpt2": 60}
    assert json.loads((folder / "recording.json").read_text())["spent"] == {}


def test_a_part_that_resumes_starts_in_the_time_that_is_left(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(recording.time, "monotonic", lambda: clock[0])
    target = recording.Recording(tmp_path, seconds=540)
    target.check_time(PARTS["normalization"].least_s)
    clock[0] = 539 - LEAST_COUNTED_S
    for name in ("normalization", "probes", "latency", "sweep_llama_backward", "counters"):
        target.check_time(PARTS[name].least_s)
    with pytest.raises(recording.OutOfTimeError):
        target.check_time(PARTS["neutrino"].least_s)
    for left, name in ((LEAST_COUNTED_S, "sweep_llama_backward"), (LEAST_S, "probes")):
        clock[0] = 541 - left
        with pytest.raises(recording.OutOfTimeError):
            target.check_time(PARTS[name].least_s)
    assert not target.is_over() and recording.Recording(tmp_path).is_over() is False
    clock[0] = 540
    assert target.is_over()


def test_complete_parts_can_be_left_as_they_are(tools, tmp_path, monkeypatch):
    """A machine that is borrowed for the second time may have another driver."""
    monkeypatch.setattr(command, "_settings", lambda: {"python": str(tools / "torch-python")})
    monkeypatch.chdir(tmp_path)
    assert command.main(["counters"]) == 0
    smi = tools / "nvidia-smi"
    smi.write_text(smi.read_text().replace("580.65.06", "580.95.05"))
    device.find_device.cache_clear()
    assert command.main(["--missing", "counters", "sweep_gpt2"]) == 0
    assert len(calls(tools)) == 2
    source = load(tmp_path / "traces/nvidia-h200").content["source"]
    assert "driver 580.65.06, 580.95.05" in source


def test_a_table_that_cannot_be_split_is_kept(tools, tmp_path):
    """Should ncu name its ranges in another way, the counters of a whole sweep would be lost."""
    ncu = tools / "ncu"
    ncu.write_text(ncu.read_text().replace("Start/Stop_Range", "Range"))
    _, failed = made(tools, tmp_path / "out", ["sweep_gpt2"])
    assert "no kernels were profiled" in str(failed["sweep_gpt2"])
    assert str(failed["sweep_gpt2"]).endswith("ncu's whole table is kept in .ncu.partial/gpt2.csv")
    kept = (tmp_path / "out/.ncu.partial/gpt2.csv").read_text()
    assert sum(line.startswith('"') for line in kept.splitlines()) > 5 * 3


def test_two_recorders_do_not_share_a_folder(tools, tmp_path):
    target = recording.Recording(tmp_path / "out")
    with target.alone(), pytest.raises(InputError, match="another process is recording"):
        made(tools, tmp_path / "out")


def test_a_folder_is_of_one_gpu(tools, tmp_path):
    folder = tmp_path / "out"
    made(tools, folder, ["counters"])
    smi = tools / "nvidia-smi"
    smi.write_text(smi.read_text().replace("NVIDIA H200", "NVIDIA L4"))
    device.find_device.cache_clear()
    with pytest.raises(InputError, match="holds a recording from NVIDIA H200; record NVIDIA L4 into another"):
        made(tools, folder, ["counters"])
    made(tools, folder, ["counters"], kind="local")
    assert load(folder).label == "recorded on this machine, NVIDIA L4"


def test_a_part_of_its_own_process_comes_whole_or_not_at_all(tools, tmp_path, monkeypatch):
    package = tmp_path / "lib"
    package.mkdir()
    (package / "fake_part.py").write_text(
        "from gpuledger.errors import InputError\n"
        "from gpuledger.record.parts import Recorded\n"
        "def record(folder):\n"
        "    assert (folder / 'done_before').read_text() == '1'\n"
        "    (folder / 'done_before').unlink()\n"
        "    (folder / 'kernel_overhead').mkdir()\n"
        "    (folder / 'kernel_overhead/event.log').write_text('2')\n"
        "    return Recorded({'kernel_overhead': {'probes': {'traces': 'kernel_overhead'}}}, {'empty_launch_ns': 1},\n"
        "        {'kernel_overhead': 'extra registers can be negative'})\n"
        "def again(folder):\n"
        "    (folder / 'rows.csv').write_text('3')\n"
        "    return Recorded({'kernel_overhead': {'probes': {'table': 'rows.csv'}}})\n"
        "def fails(folder):\n"
        "    (folder / 'done_before').write_text('1')\n"
        "    raise InputError('GPU', 'probe', 'it is hot', 'cool it')\n"
        "def breaks(folder):\n"
        "    raise RuntimeError('CUDA error: no kernel image is available for execution on the device')\n"
        "def dies(folder):\n"
        "    import os; os._exit(11)\n"
    )
    os.environ["PYTHONPATH"] = str(package)
    folder = tmp_path / "out"
    for function, message in (
        ("fails", "it is hot; cool it"),
        ("breaks", "no kernels for this GPU"),
        ("dies", "status 11"),
    ):
        part = PARTS["probes"].__class__("probes", "", "fake_part", function, (), 1, 1, True)
        monkeypatch.setitem(PARTS, "probes", part)
        _, failed = made(tools, folder, ["probes"])
        assert message in str(failed["probes"])
        assert not (folder / "done_before").exists()
        assert not (folder / "dataset.yaml").exists()
    monkeypatch.setitem(PARTS, "probes", part.__class__("probes", "", "fake_part", "record", (), 1, 1, True))
    _, failed = made(tools, folder, ["probes"])
    assert failed == {}
    assert load(folder).content["studies"] == {"kernel_overhead": {"probes": {"traces": "kernel_overhead"}}}
    assert load(folder).content["files"] == {"kernel_overhead": {"note": "extra registers can be negative"}}
    assert recording.Recording(folder).parts["probes"]["empty_launch_ns"] == 1
    assert {path.name for path in folder.iterdir()} == {"kernel_overhead", "recording.json", "dataset.yaml"}
    stamp = (folder / "kernel_overhead/event.log").stat().st_mtime_ns
    made(tools, folder, ["probes"])
    assert (folder / "kernel_overhead/event.log").stat().st_mtime_ns == stamp
    # Made again because a file is not what it was: nothing of the old stays.
    (folder / "kernel_overhead/event.log").write_text("cut")
    monkeypatch.setitem(PARTS, "probes", part.__class__("probes", "", "fake_part", "again", (), 1, 1, True))
    made(tools, folder, ["probes"])
    assert load(folder).content["studies"] == {"kernel_overhead": {"probes": {"table": "rows.csv"}}}
    assert not (folder / "kernel_overhead/event.log").exists()
    # What was begun for another driver does not go into this one's.
    smi = tools / "nvidia-smi"
    for release, function in (("591", "fails"), ("592", "again")):
        smi.write_text(smi.read_text().replace("580.65.06", release).replace("591", release))
        device.find_device.cache_clear()
        monkeypatch.setitem(PARTS, "probes", part.__class__("probes", "", "fake_part", function, (), 1, 1, True))
        made(tools, folder, ["probes"])
    assert "driver 592" in load(folder).content["source"]
    assert not (folder / "done_before").exists()


@pytest.mark.parametrize(
    ("resumable", "last", "tried"), [(True, 3, 3), (True, 9, 3), (False, 3, 1)], ids=["done", "stuck", "not resumable"]
)
def test_a_part_goes_on_in_another_process_while_it_gets_on(tools, tmp_path, monkeypatch, resumable, last, tried):
    """What fails on a GPU can fail for all of its process: the rest of the part was lost to the call."""
    (tmp_path / "fake_part.py").write_text(
        "import os\n"
        "from gpuledger.errors import InputError\n"
        "from gpuledger.record.parts import Recorded\n"
        "def record(folder):\n"
        f"    with open('{tmp_path}/calls', 'a') as calls: calls.write('x')\n"
        f"    number = os.stat('{tmp_path}/calls').st_size\n"
        "    if number <= 2:\n        (folder / f'step{number}').touch()\n"
        "    if number == 1:\n        os._exit(11)\n"
        f"    if number < {last}:\n        raise InputError('GPU', 'probe', 'an illegal address', 'record again')\n"
        "    return Recorded({'kernel_overhead': {'probes': {'table': 'step1'}}})\n"
    )
    os.environ["PYTHONPATH"] = str(tmp_path)
    part = PARTS["probes"].__class__("probes", "", "fake_part", "record", (), 60, 60, True, resumable=resumable)
    monkeypatch.setitem(PARTS, "probes", part)
    _, failed = made(tools, tmp_path / "out", ["probes"], seconds=3600)
    assert len((tmp_path / "calls").read_text()) == tried and (failed == {}) == (last == tried)


def test_waiting_for_a_profile_runs_ncu_on_the_same_command(tools, tmp_path, monkeypatch):
    target = ["python3", "-m", "gpuledger.record.workloads.gpt2", "--point=1x768x12x64"]

    def measure(path, open_runner, count, python, metrics):
        count((), ["/bin/sh", "-c", f"echo $PYTHONPATH > {tmp_path}/alone"])
        assert metrics == {"block_sched": ["sm__inst_executed.sum"]}
        count(metrics["block_sched"], target)
        path.parent.mkdir(parents=True)
        path.write_text("rows")

    monkeypatch.setattr(latency.exposed, "measure", measure)
    # A metric that ncu does not know costs one probe of the table, not the part.
    asked = {"block_sched": ("sm__inst_executed.sum", "not__known.sum"), "tensorop_count": ("nor__this.sum",)}
    monkeypatch.setattr(latency.exposed, "METRICS", asked)
    control = {"clock": "none", "cache": "all", "replay": "kernel"}
    made = latency.record_latency(tmp_path / "made", control)
    assert made.cases == {
        "exposed_latency": {"probes": {"table": "exposed_latency/probes.csv", "probed_with": "gpuledger's probes"}}
    }
    assert made.about == {"metrics_missing": ["nor__this.sum", "not__known.sum"]}
    monkeypatch.setattr(latency.exposed, "METRICS", {"tensorop_count": ("nor__this.sum",)})
    with pytest.raises(InputError, match=r"does not list nor__this.sum; use a newer ncu"):
        latency.record_latency(tmp_path / "made", control)
    (call,) = calls(tools)
    assert call[call.index("--metrics") + 1] == "sm__inst_executed.sum"
    assert call[-len(target) :] == target
    assert "src" in (tmp_path / "alone").read_text()


# --- the command


def test_the_command_records_into_a_folder_named_after_the_gpu(tools, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text(f"record: {{python: {tools}/torch-python, cache_control: none}}\n")
    assert command.main(["counters"]) == 0
    assert load(tmp_path / "traces/nvidia-h200").cases() == [("flop_reconciliation", "toy_network")]
    assert "traces/nvidia-h200: counters recorded" in capsys.readouterr().out
    assert "cache control none" in load(tmp_path / "traces/nvidia-h200").content["source"]
    (tools / "ncu_fails").write_text(json.dumps({"always": {"log": "==ERROR== ERR_NVGPUCTRPERM\n"}}))
    assert command.main(["counters", "sweep_gpt2"]) == 1
    with pytest.raises(SystemExit):
        command.main(["countres"])
    with pytest.raises(SystemExit):
        command.main(["counters", "--chip", "gh100"])


def test_ctrl_c_is_one_line(tools, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "record_parts", interrupted)
    monkeypatch.setattr(command, "_settings", dict)
    assert command.main(["counters", "--folder", str(tmp_path / "made")]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "interrupted: complete parts are kept; the same call again resumes the recording"


def test_a_dry_run_shows_parts_time_and_command_lines(tools, capsys, monkeypatch):
    monkeypatch.setattr(plan, "lacking", lambda part, python: ("it is too hot", "x") if part.name == "probes" else None)
    assert command.main(["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(f"# {name} ") for line in lines) for name in PARTS)
    assert "left out here: it is too hot" in "".join(line for line in lines if line.startswith("# probes "))
    (total,) = (line for line in lines if "min planned" in line)
    assert float(total.split()[1]) <= BUDGET_S / 60 == 25 and "within 25 min" in total
    assert all(any(line.startswith(f"# {name} ") and "on an H100 or H200" in line for line in lines) for name in PARTS)
    counted = [line for line in lines if line.startswith(str(tools / "ncu"))]
    assert len(counted) == 6 + 9
    assert "--point=setup --point=forward --point=forward_backward" in counted[0]
    assert calls(tools) == []
    assert command.main(["--dry-run", "--minutes", "8"]) == 0
    assert "more than 8 min" in capsys.readouterr().out
    assert command.main(["--dry-run", "blocks", "normalization"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "# 3.2 min planned, within 25 min"


def test_no_checkout_is_needed(tools, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main(["--dry-run", "blocks"]) == 0
    assert command.main(["--dry-run", "blocks", "--shape", "8192,2048"]) == 2
    with pytest.raises(SystemExit):
        command.main(["python", "train.py"])
    assert "a program comes after --" in capsys.readouterr().err


def test_the_documentation_lists_every_part_with_its_times(root):
    row = re.compile(r"^\| `(\w+)` \| .* \| ([\d.]+) min \| (\d+) s\*? \|$", re.MULTILINE)
    listed = row.findall((root / "docs/GPU.md").read_text("utf-8"))
    assert listed == [(name, f"{part.seconds / 60:.1f}", f"{part.measured_s}") for name, part in PARTS.items()]


def test_the_planned_time_follows_from_the_launches():
    assert sum(part.seconds for part in PARTS.values()) <= BUDGET_S
    assert all(part.measured_s < part.seconds for part in PARTS.values())
    assert list(PARTS)[:3] == ["blocks", "counters", "probes"], "six studies in two minutes come before all others"
    for name, design in PLANNED.items():
        expected = PROCESS_S + LAUNCH_S[design.workload] * design.counting("").launches
        assert PARTS[f"sweep_{name}"].seconds == pytest.approx(expected)
