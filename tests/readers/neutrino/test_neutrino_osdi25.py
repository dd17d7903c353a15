"""The dataset `neutrino-osdi25`: an archive of the artifact's layout, fetched, resumed, reduced; and damaged ones."""

import io
import json
import pickle
import threading
import zipfile

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, snakemake
from own_cases import own_case, reduced, refused
from test_download import Site

from gpuledger.ledger.datasets import Dataset, Repository
from gpuledger.models import simulate
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.event_log import MEMORY, SECTIONS
from gpuledger.studies.memory_usage.tables import memory_table

OPERATORS = {
    "cutlass_op": ["gemm", "gemm-streamk", "conv"],
    "triton_op": ["gmm", "attn"],
    "pytorch_op": ["norm", "softmax", "sum", "pool", "embedding", "gather"],
}
#: By probe: impacts of the launches; registers of each kernel, original and probed; spilled bytes.
PROBES = {
    "block_sched": ([0.99, 1.01, 1.03], [(12, 18), (40, 43)], 0),
    "gmem_bytes": ([1.02], [(12, 14)], 0),
    "tensorop_count": ([1.02, 1.04], [(12, 14)], 0),
    "dmat": ([9.0, 7.0], [(12, 20), (255, 255)], 48),
}
MODELS = ("resnet-bs32", "sd-bs1", "llama1b-bs32", "llama3b-bs32", "llama8b-bs256")
PROBE_BYTES = {"block_sched": 2**10, "gmem_bytes": 2**14, "tensorop_count": 2**14, "dmat": 2**26}
ORIGINAL_BYTES = {name: 10**8 * (place + 1) for place, name in enumerate(MODELS)}
LATENCY = (
    "probe,original,ncu,neutrino,epilogue,kernel,prologue\n"
    "block_sched,10,40,20,7,12,1\ntensorop_count,10,50,25,10,13,2\ngmem_bytes,10,90,25,10,13,2\n"
)
DECLARED = yaml.safe_load((ROOT / "traces/neutrino-osdi25/dataset.yaml").read_text("utf-8"))


def write_log(path, **columns):
    """Write an event.log with a launch per row of the columns."""
    launches = pd.DataFrame(columns).assign(kernel="k", outcome="succeed", code=0)
    size = {"grid": (1, 1, 1), "block": (32, 1, 1)}
    for name, value in size.items():
        launches[name] = [value] * len(launches)
    empty = [pd.DataFrame(columns=list(names)) for names in (SECTIONS, MEMORY)]
    neutrino.write_event_log(path, neutrino.EventLog(launches.assign(shared_bytes=0), *empty), "V2")


def write_overhead(folder, operators=OPERATORS, probes=PROBES):
    for group, names in operators.items():
        for operator in names:
            for probe, (impacts, registers, spilled) in probes.items():
                trace = folder / group / operator / probe / "trace/Jan_23_06_27_37_1"
                kernel = [2.0 * impact for impact in impacts]
                times = {"prologue_ms": 1.0, "kernel_ms": kernel, "epilogue_ms": 0.1, "original_ms": 2.0}
                write_log(trace / "event.log", **times, impact=impacts)
                (trace.parent / "stdout.log").write_text("benchmark\n")
                for index, (pruned, probed) in enumerate(registers):
                    builds = {
                        "probed": neutrino.Build("sm_80", probed, 0, spilled, spilled),
                        "pruned": neutrino.Build("sm_80", pruned, 0, 0, 0),
                    }
                    log = neutrino.ProcessLog(f"k{index}", builds)
                    neutrino.write_process_log(trace / f"kernel/{index}_{index:040x}/process.log", log)


def write_memory(folder, models=MODELS):
    for model in models:
        for probe, size in PROBE_BYTES.items():
            for run in ("forward", "backward"):
                place = folder / model / probe / run
                write_log(
                    place / "Jan_23_06_27_37_1/event.log", probe_bytes=[size // 2, size if run == "forward" else 8]
                )
                used = ORIGINAL_BYTES.get(model, 10**8) - (run == "forward")
                (place / "stdout.log").write_text(f"loading\nmax memory: {used}\nmax memory: 9\n")


def write_traces(folder):
    """Write what the artifact's archive holds, simulated."""
    zeros = simulate.simulate_launch("warp_scheduling", "fig13b")
    simulate.write_launch(zeros, folder / DECLARED["studies"]["block_scheduling"]["zeros_4096"]["trace"])
    for case in ("fig13a", "fig13b"):
        trace = folder / DECLARED["studies"]["warp_scheduling"][case]["trace"]
        simulate.write_launch(simulate.simulate_launch("warp_scheduling", case), trace)
    clocks = simulate.simulate_launch("warp_scheduling", "fig13cd").records["clock"][:128, 0]
    rows = [row[row > 0].astype(np.int64) for row in clocks]
    (folder / "warp_sched/tmp.pkl").write_bytes(pickle.dumps(rows))
    (folder / "dmat").mkdir()
    for case in ("fig1", "fig10a", "fig10b", "fig10c"):
        clock, page = np.divmod(np.arange(40_000), 200)
        neutrino.write_dmat(folder / f"dmat/{case}.dmat", clock * 50, 2**20 + page, 1 + clock % 3)
    write_overhead(folder / "kernel_overhead")
    (folder / "kernel_overhead/cutlass_op/overhead.py").write_text("print()\n")
    write_memory(folder / "max_mem")
    (folder / "exposed_latency").mkdir()
    for name in ("attn", "gmm", "conv", "gemm"):
        (folder / f"exposed_latency/{name}.csv").write_text(LATENCY)


def zipped(folder, without=()):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and not name.startswith(tuple(without)):
                archive.write(path, name)
    return stream.getvalue()


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive")
    write_traces(folder)
    return folder


@pytest.fixture
def site():
    with Site() as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site
        site.shutdown()


def declare(checkout, name, url, **pins):
    """Make the dataset's own declaration point to a server, under its name or another."""
    content = yaml.safe_load((ROOT / "traces/neutrino-osdi25/dataset.yaml").read_text("utf-8"))
    content["download"] = [{**content["download"][0], "url": url, **pins}]
    file = checkout / "traces" / name / "dataset.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")


def value(checkout, path, quantity):
    return json.loads((checkout / "results" / path / "summary.json").read_text("utf-8"))[quantity]["value"]


def test_every_case_of_the_artifacts_archive_and_damaged_ones_alone_in_their_failure(checkout, traces, site):
    body = zipped(traces)
    damaged = bytearray(body)
    damaged[len(body) // 3] ^= 255
    lacking = zipped(traces, ["kernel_overhead/", "max_mem/sd-bs1/dmat/", "exposed_latency/gemm.csv", "dmat/"])
    faults = [{"drop": 300_000}]
    urls = {
        "neutrino-osdi25": site.put("/trace.zip", body, headers={"ETag": '"v1"'}, faults=faults),
        "corrupt": site.put("/corrupt/trace.zip", bytes(damaged)),
        "cut": site.put("/cut/trace.zip", body[:-1000]),
        "lacking": site.put("/lacking/trace.zip", lacking),
    }
    for name, url in urls.items():
        declare(checkout, name, url)
    # An address of its own: the fault above is for whoever asks first.
    declare(checkout, "wrong-size", site.put("/size/trace.zip", body), bytes=len(body) + 1)
    cases = [f"{study}/{case}" for study, named in DECLARED["studies"].items() for case in named]
    targets = [f"results/neutrino-osdi25/{case}/summary.json" for case in cases]
    targets.append("results/neutrino-osdi25/kernel_overhead/table2/figure.pdf")
    broken = [f"results/{name}/exposed_latency/fig12/summary.json" for name in ("corrupt", "cut", "wrong-size")]
    gone = ["kernel_overhead/table2", "exposed_latency/fig12", "dmat/fig1"]
    broken += [f"results/lacking/{case}/summary.json" for case in gone]
    whole = ["memory_usage/fig11", "warp_scheduling/fig13cd"]
    targets += [f"results/lacking/{case}/summary.json" for case in whole]
    done = snakemake(checkout, "--keep-going", *targets, *broken)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert [target for target in targets if not (checkout / target).is_file()] == [], said[-4000:]
    assert not any((checkout / target).exists() for target in broken)
    assert "Traceback" not in said

    # The transfer broke off and went on where it had stopped.
    ranges = [headers.get("Range") for path, headers in site.seen if path == "/trace.zip"]
    assert "bytes=300000-" in ranges

    # One line each.
    for name, words in {
        "corrupt": "trace.zip: cannot be unpacked",
        "cut": "trace.zip: cannot be unpacked",
        "wrong-size": f"the server offers {len(body)} bytes, pinned are {len(body) + 1}",
    }.items():
        lines = {line.strip() for line in said.splitlines() if f"traces/{name}/dataset.yaml, download[0]: " in line}
        assert len(lines) == 1 and words in lines.pop(), name
    for name, words in {
        "kernel_overhead.table2.traces": "the folder traces/lacking/kernel_overhead does not exist; put it there",
        "dmat.fig1.trace": "the file traces/lacking/dmat/fig1.dmat does not exist",
    }.items():
        assert f"traces/lacking/dataset.yaml, key studies.{name}: {words}" in said
    assert "traces/lacking/exposed_latency/gemm.csv: the file does not exist" in said

    # What came out, and from what.
    table = "neutrino-osdi25/kernel_overhead/table2"
    assert value(checkout, table, "standard_gemm_block_sched_slowdown") == pytest.approx(1.01)
    assert value(checkout, table, "batch_layernorm_block_sched_registers") == 4.5
    assert value(checkout, table, "dmat_spilled") == 11
    assert value(checkout, table, "launches") == 11 * 8
    memory = "neutrino-osdi25/memory_usage/fig11"
    assert value(checkout, memory, "llama3_8b_bs256_mem_trace_memory") == 2**26
    assert value(checkout, memory, "resnet_bs32_original_memory") == 10**8
    assert value(checkout, "lacking/memory_usage/fig11", "workloads") == len(MODELS)
    assert value(checkout, "neutrino-osdi25/exposed_latency/fig12", "gemm_block_sched_ncu_ratio") == 4
    record = json.loads((checkout / "results" / table / "provenance.json").read_text("utf-8"))
    assert record["label"] == "downloaded, recorded on NVIDIA A100 80GB"
    files = [path for path in (traces / "kernel_overhead").rglob("*") if path.is_file()]
    (entry,) = record["inputs"]
    assert (entry["file"], entry["files"]) == ("kernel_overhead", len(files))
    assert entry["bytes"] == sum(path.stat().st_size for path in files)
    assert "inferred" in entry["note"]

    done = snakemake(checkout, "-n", *targets)
    assert "Nothing to be done" in done.stdout + done.stderr, done.stdout[-3000:]


def test_the_declaration_is_valid_and_not_of_the_default_target(root):
    repository = Repository.find(root)
    dataset = repository.dataset("neutrino-osdi25")
    assert len([dataset.case(study, case) for study, case in dataset.cases()]) == 11
    assert "neutrino-osdi25" not in repository.config["datasets"]
    known = {path for study, case in dataset.cases() for path in dataset.case(study, case).paths()}
    assert {dataset.folder / name for name in dataset.content["files"]} == known


def reduce(folder, study, **inputs):
    """Reduce a case of one's own, whose traces are in ``traces`` of the folder."""
    return reduced(own_case(folder, study, {"traces": "traces", **inputs}))


def refusal(folder, study, **inputs):
    with refused() as caught:
        reduce(folder, study, **inputs)
    return str(caught.value)


def test_overhead_in_folders_of_any_depth_and_name(folder):
    write_overhead(
        folder / "traces", {"mine": ["op-a", "op-b"]}, {name: PROBES[name] for name in ("dmat", "gmem_bytes")}
    )
    cell = folder / "traces/mine/op-a/dmat"
    (cell / "trace").rename(cell / "deeper")
    trace = cell / "deeper/Jan_23_06_27_37_1"
    # Launches that failed are not timed, those that took no time are left out, and so are kernels that were filtered.
    log = (trace / "event.log").read_text()
    (trace / "event.log").write_text(
        log.replace("impact 9.000000", "impact inf").replace("original 2.000000", "original 0", 1)
    )
    neutrino.write_process_log(trace / "kernel/x/process.log", neutrino.ProcessLog("k", filter_in=("a",), skipped=True))
    result = reduce(folder, "kernel_overhead", names={"op-b": "B", "dmat": "mem_trace"})
    rows = result.data.set_index(["operator", "probe"])
    assert rows.index.tolist() == [(a, b) for a in ("B", "op-a") for b in ("mem_trace", "gmem_bytes")]
    assert rows["slowdown_ratio"].tolist() == pytest.approx([8, 1.02, 7, 1.02])
    assert rows["extra_registers"].tolist() == [4, 2, 4, 2]
    assert rows["spilled"].tolist() == [True, False, True, False]
    assert rows["group"].unique().tolist() == ["mine"]
    assert (result["launches"], result["launches_left_out"]) == (5, 1)
    assert (result["kernels"], result["kernels_left_out"]) == (6, 1)


def test_groups_may_have_operators_of_the_same_name(folder):
    write_overhead(folder / "traces", {"g": ["a"], "h": ["a", "b"]}, {"dmat": PROBES["dmat"]})
    result = reduce(folder, "kernel_overhead", names={"h": "H"})
    assert {"a_g_dmat_slowdown", "a_h_dmat_slowdown", "b_dmat_slowdown"} <= set(result.summary)
    assert result["operators"] == 3


def test_memory_takes_the_largest_and_says_how_far_originals_differ(folder):
    write_memory(folder / "traces", ["m-1B_bs8", "x-bs1"])
    (folder / "traces/x-bs1/dmat/forward/stdout.log").write_text("max memory: 120000000\n")
    result = reduce(folder, "memory_usage", names={"x": "X", "dmat": "mem_trace"})
    rows = result.data.set_index(["model", "batch_size", "use"])["memory_bytes"]
    uses = ["original", "mem_trace", "block_sched", "gmem_bytes", "tensorop_count"]
    assert rows.index.tolist() == [(*model, use) for model in (("X", 1), ("m-1B", 8)) for use in uses]
    assert rows["X", 1].tolist() == [120_000_000, 2**26, 2**10, 2**14, 2**14]
    assert result["original_spread_percent"] == pytest.approx(20)
    assert result["dmat_ratio_max"] == pytest.approx(2**26 / 10**8)


def test_a_folder_without_a_batch_size_is_read_with_a_warning(folder):
    write_memory(folder / "traces", ["m", "x-bs1"])
    result = reduce(folder, "memory_usage")
    assert result.warnings == [
        "traces/m: the name of the folder does not end in -bs<batch size>; its batch size is unknown"
    ]
    assert set(result.data.loc[result.data["model"] == "m", "batch_size"]) == {0}
    assert {"m_dmat_memory", "x_bs1_dmat_memory"} <= set(result.summary)
    frame, people = memory_table(result.data)
    assert frame["batch_size"].tolist() == [0, 1]
    assert people["batch_size"].isna().tolist() == [True, False]


def test_refused_overhead(folder):
    traces = folder / "traces"
    assert "key studies.kernel_overhead.mine.traces: the folder" in refusal(folder, "kernel_overhead")
    traces.write_text("a file")
    assert "traces does not exist; put it there" in refusal(folder, "kernel_overhead")
    traces.unlink()
    traces.mkdir()
    assert "traces: holds no event.log or process.log; give" in refusal(folder, "kernel_overhead")
    write_overhead(traces, {"g": ["a"]}, {"dmat": PROBES["dmat"]})
    (log,) = traces.rglob("event.log")
    kept = log.read_text()
    log.write_text("".join(line for line in kept.splitlines(True) if "impact" not in line))
    assert "traces/g/a/dmat: no launch was timed: no [benchmark] line" in refusal(folder, "kernel_overhead")
    log.write_text(kept.replace("impact", "impatc"))
    assert "event.log, line " in refusal(folder, "kernel_overhead")
    log.write_text(kept)
    for path in [*traces.rglob("process.log")]:
        path.unlink()
    assert "traces/g/a/dmat: no process.log states the registers" in refusal(folder, "kernel_overhead")
    (traces / "g/event.log").write_text(kept)
    assert "traces/g/event.log: is not in a folder <group>/<operator>/<probe>" in refusal(folder, "kernel_overhead")
    assert "do not go together" in refusal(folder, "kernel_overhead", table="a", names={})
    assert "leaves the folder" in refusal(folder, "kernel_overhead", traces="../traces")


def test_refused_memory(folder):
    traces = folder / "traces"
    traces.mkdir()
    assert "traces: holds no stdout.log or event.log; give" in refusal(folder, "memory_usage")
    write_memory(traces, ["m-bs1"])
    same = {name: "p" for name in PROBE_BYTES}
    assert "a second folder for m, 1, p; give them different names" in refusal(folder, "memory_usage", names=same)
    for path in traces.glob("*/dmat/*/*/event.log"):
        path.write_text("[exec] succeed 0\n")
    assert "no event.log of m, batch size 1, dmat states the probe's memory" in refusal(folder, "memory_usage")
    for path in traces.glob("*/dmat/*/*/event.log"):
        path.write_text("")
    assert "no event.log of m, batch size 1, dmat states the probe's memory" in refusal(folder, "memory_usage")
    for path in traces.rglob("event.log"):
        path.unlink()
    assert "there is no probe" in refusal(folder, "memory_usage")
    outputs = sorted(traces.rglob("stdout.log"))
    for path in outputs:
        path.write_text("")
    assert "no stdout.log of m, batch size 1 has a line 'max memory:'" in refusal(folder, "memory_usage")
    outputs[0].write_text("loading\nmax memory: 4 GB\n")
    assert "stdout.log, line 2: 'GB' is not a number of bytes" in refusal(folder, "memory_usage")
    (traces / "stdout.log").write_text("max memory: 1\n")
    said = refusal(folder, "memory_usage")
    assert "traces/stdout.log: is not in a folder <model>-bs<batch size>/<probe>; move" in said


def test_a_folder_is_described_by_all_that_is_in_it(folder):
    write_memory(folder / "traces", ["m-bs1"])
    (before,) = reduce(folder, "memory_usage").provenance["inputs"]
    assert set(before) == {"file", "files", "bytes", "sha256"}
    assert before["files"] == 16
    log = folder / "traces/m-bs1/dmat/forward/stdout.log"
    text = log.read_text()
    log.write_text(text.replace("9", "8"))
    (changed,) = reduce(folder, "memory_usage").provenance["inputs"]
    assert (changed["files"], changed["bytes"]) == (16, before["bytes"]) and changed["sha256"] != before["sha256"]
    log.write_text(text)
    log.rename(log.with_name("stdout.txt"))
    (renamed,) = reduce(folder, "memory_usage").provenance["inputs"]
    assert len({entry["sha256"] for entry in (before, changed, renamed)}) == 3
    case = Dataset.load(folder / "dataset.yaml").case("memory_usage", "mine")
    assert len(case.paths()) == 16
