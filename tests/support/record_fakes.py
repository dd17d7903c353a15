"""Stand-ins for nvidia-smi, ncu and a Python with PyTorch, as programs on the PATH: what a recording meets at the edge
of the process. Numbers of the toy network are the published ones, so that the studies have something to find."""

import csv
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.record import designs, device, profiler, recording, run

#: Parts that ncu records, one of which has few points.
COUNTED = ("counters", "sweep_gpt2", "sweep_llama")
#: Fewer points than the real designs have, for tests that are not about them.
FEW = {
    name: replace(
        design, base=designs.Point(2, 768, 128), n_layer=(1, 2), hidden_dim=(768, 1536), seq_len=(64, 128, 256)
    )
    for name, design in designs.SWEEPS.items()
}
#: Of the stand-in for a Python with PyTorch and NVRTC.
VERSIONS = {"python": "3.12.3", "torch": "2.11.0", "cuda": "13.0", "nvrtc": "13.0"}
ROOT = Path(__file__).resolve().parents[2]

# None imports pathlib, which would double the time of its hundreds of processes.
SMI = """#!{python} -SE
import os, sys
here = os.path.dirname(__file__)
def said(name):
    path = os.path.join(here, name)
    return open(path).read() if os.path.isfile(path) else ""
if fails := said("smi_fails"):
    print(fails)
    sys.exit(9)
arguments = " ".join(sys.argv[1:])
if arguments == "-L":
    print(said("smi_list"), end="")
    sys.exit(0)
if "--query-compute-apps" in arguments:
    print(said("apps"), end="")
    sys.exit(0)
known = {{
    "name": "NVIDIA H200", "compute_cap": "9.0", "driver_version": "580.65.06", "memory.total": "143771 MiB",
    "clocks.max.sm": "1980 MHz", "clocks.max.memory": "3201 MHz", "power.limit": "700.00 W",
    "clocks.default_applications.graphics": "[Requested functionality has been deprecated]",
    "mig.mode.current": "Disabled",
}}
# Of what is asked, this driver does not know pstate and temperature.gpu.
known |= dict.fromkeys(
    ["clocks.default_applications.memory", "clocks.current.sm", "clocks.current.memory", "power.default_limit",
     "power.max_limit", "ecc.mode.current", "persistence_mode", "compute_mode"], "[N/A]"
)
fields = next(a for a in sys.argv if a.startswith("--query-gpu=")).partition("=")[2].split(",")
for field in fields:
    if field not in known:
        print(f'Field "{{field}}" is not a valid field to query.')
        sys.exit(2)
with open(os.path.join(here, "smi_calls"), "a") as calls:
    calls.write(arguments + "\\n")
print(", ".join(known[field] for field in fields))
"""

NCU = """#!{python} -SE
import csv, json, os, sys
here = os.path.dirname(__file__)
def said(name):
    path = os.path.join(here, name)
    return open(path).read() if os.path.isfile(path) else ""
given = sys.argv[1:]
if given == ["--version"]:
    print(said("ncu_version"))
    sys.exit(0)
if given[:1] == ["--query-metrics"]:
    print("Device NVIDIA H200 (GH100)")
    print(said("ncu_metrics"))
    sys.exit(0)
end = given.index("--log-file") + 2
own, target = given[:end], given[end:]
option = dict(zip(own, own[1:]))
with open(os.path.join(here, "ncu_calls"), "a") as calls:
    calls.write(json.dumps(given) + "\\n")
failures = json.loads(said("ncu_fails") or "{{}}")
log = open(option["--log-file"], "w", newline="")
failure = failures.get("always", failures.get(str(len(said("ncu_calls").splitlines()))))
if failure is not None:
    log.write(failure["log"])
    print(failure.get("printed", ""))
    sys.exit(failure.get("status", 1))
metrics = option["--metrics"].split(",")
points = [part.partition("=")[2] for part in target if part.startswith("--point=")]
if late := said("ncu_late").split():
    points = [point for point in points if point not in late]
    print("time is up before:", *late)
module = target[2].rpartition(".")[2]
def launches_at(point):
    if module == "toy_network":
        return json.loads(said("toy_network.json"))[point]
    layers, hidden, _, n = map(int, point.split("x"))
    names = [
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32",
        "void layer_norm_kernel<float>(int, float const *)",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::Sm80>)",
    ]
    block = [{{"kernel": name, "*": (3 + place) * n + hidden // 64 + 6}} for place, name in enumerate(names)]
    launches = block * layers + [{{"kernel": names[0], "*": 1000}}]
    if os.path.isfile(os.path.join(here, "layers_differ")):
        launches = [launch | {{"*": launch["*"] * layers}} for launch in launches]
    return launches
# As ncu prints them: a thread and its pushed ranges, and started ranges with their numbers.
ranges = ["thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
          "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"] if "--nvtx" in own else []
rows = []
for order, point in enumerate(points or ["1x768x12x64"]):
    for launch in launches_at(point):
        cells = [launch.get(metric, launch.get("*", 0)) for metric in metrics]
        within = ["4242 ", f'{{order}}  "<default domain>:{{point}}:none:none:none:none:none:none" '] if ranges else []
        rows.append([len(rows), 4242, "python3.12", "secret-host", *within, launch["kernel"], 1, 7,
                     launch.get("block", "(256, 1, 1)"), launch.get("grid", "(128, 1, 1)"), 0, "9.0", *cells])
with log as handle:
    handle.write("==PROF== Connected to process 4242 (/secret/path/python3.12)\\n")
    handle.write('==PROF== Profiling "kernel" - 0: 0%....50%....100% - 12 passes\\n')
    writer = csv.writer(handle, quoting=csv.QUOTE_ALL, lineterminator="\\n")
    identity = ["ID", "Process ID", "Process Name", "Host Name", *ranges, "Kernel Name", "Context", "Stream",
                "Block Size", "Grid Size", "Device", "CC"]
    writer.writerow([*identity, *metrics])
    units = {{"pct": "%", "per_second": "hz", "cycles": "cycle", "bytes": "byte", "duration": "ns"}}
    unit = lambda metric: next((units[word] for word in units if word in metric), "inst")
    writer.writerow([""] * len(identity) + [unit(metric) for metric in metrics])
    writer.writerows(rows)
    handle.write("==PROF== Disconnected from process 4242\\n")
"""

PYTHON = """#!{python} -SE
import os, sys
if sys.argv[1] == "-c":
    here = os.path.dirname(__file__)
    print(open(here + "/python_says").read())
    sys.exit(0)
os.execv("{python}", ["{python}", *sys.argv[1:]])
"""


def toy_network():
    """The published counters as launches, by recording; a kernel's launches of a pass are one row, as published."""
    found = {}
    for passes in ("setup", "forward", "forward_backward"):
        launches = {}
        path = ROOT / f"traces/published/flop_reconciliation/toy_network_{passes}.csv"
        with open(path, encoding="utf-8", newline="") as handle:
            for row in csv.DictReader(handle):
                launch = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
                launch[row["Metric Name"]] = int(row["Metric Value"])
        found[passes] = list(launches.values())
    return found


def install(folder):
    """Write the stand-ins into a folder; return it. What they are to do wrong is said by files beside them."""
    folder.mkdir()
    for name, text in (("nvidia-smi", SMI), ("ncu", NCU), ("torch-python", PYTHON)):
        path = folder / name
        path.write_text(text.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "python_says").write_text(json.dumps([VERSIONS, {}]))
    (folder / "ncu_version").write_text(
        "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1) (x)"
    )
    with open(ROOT / "resources/ncu_flop_metrics.csv", encoding="utf-8", newline="") as handle:
        names = {row["metric"] for row in csv.DictReader(handle) if row["chip"] == "gh100"}
    names |= {
        *("gpu__time_duration", "dram__bytes_op_read", "dram__bytes_write", "dram__sectors_read", "sm__cycles_active"),
        *("sm__cycles_elapsed", "sm__inst_executed", "sm__issue_active", "smsp__sass_inst_executed_op_global_st"),
        "sm__pipe_tensor_cycles_active",
    }
    lines = [f"{name:<60} Counter  inst  # of something" for name in sorted(names)]
    (folder / "ncu_metrics").write_text("\n".join(["-" * 70, *lines]))
    (folder / "toy_network.json").write_text(json.dumps(toy_network()))
    return folder


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder with stand-ins, alone on the PATH; sweeps have few points."""
    folder = install(tmp_path / "bin")
    monkeypatch.setattr(os, "environ", {**os.environ, "PATH": str(folder)})
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    monkeypatch.setattr(designs, "SWEEPS", FEW)
    device.find_device.cache_clear()
    profiler.find_ncu.cache_clear()
    yield folder
    device.find_device.cache_clear()
    profiler.find_ncu.cache_clear()


def made(tools, folder, parts=COUNTED, **options):
    """Record with the stand-ins; return the recording and what failed."""
    target = recording.Recording(folder, **options)
    failed = run.record_parts(target, parts, python=str(tools / "torch-python"))
    return target, failed


def calls(tools):
    """Command lines that ncu has been called with to count."""
    path = tools / "ncu_calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
