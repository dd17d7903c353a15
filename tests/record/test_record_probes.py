"""Recording with probes: what the kernels save, run on the CPU, becomes cases that the studies reduce."""

import json
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import yaml
from compiled import needs_compiler
from emulation import EmulatedRunner

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Repository
from gpuledger.readers import neutrino
from gpuledger.record import __main__ as command
from gpuledger.record import blocks
from gpuledger.record.probes import cases, exposed, traces, workloads

pytestmark = needs_compiler
SIZES = cases.Sizes(
    zeros=128,
    gemm=128,
    compared_gemm=128,
    tokens=64,
    progress_tokens=128,
    accessed_tokens=192,
    memory_tokens=(64,),
    batches=(1,),
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, request):
    """A dataset of everything that is recorded with probes, in a repository of its own."""
    root = tmp_path_factory.mktemp("recorded")
    folder = root / "traces/emulated"
    runner = EmulatedRunner(sms=1)
    studies: dict[str, dict] = {}
    for study, record in cases.STEPS.values():
        studies.setdefault(study, {}).update(record(folder, runner, SIZES))
    studies["block_scheduling"] = blocks.record_shape(folder, runner, 128, 128)
    write_dataset(folder, studies)
    return repository(root, request).dataset("emulated")


def write_dataset(folder, studies):
    content = {"title": "Emulated", "kind": "simulated", "source": "the tests", "license": "CC0-1.0"}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content | {"studies": studies}), "utf-8")


def repository(root, request):
    return Repository(root, yaml.safe_load((request.config.rootpath / "config/config.yaml").read_text("utf-8")))


def case_result(dataset, study, case):
    return reduce_case(dataset.case(study, case), import_module(f"gpuledger.studies.{study}").reduce, {})


def test_every_case_is_reduced_by_its_study(recorded):
    for study, case in recorded.cases():
        result = case_result(recorded, study, case)
        assert len(result.data) and result.finding, (study, case)
        assert json.dumps(result.summary)


def test_blocks_are_those_of_the_launch(recorded):
    plain = case_result(recorded, "block_scheduling", "zeros_128")
    assert plain["blocks"] == 32 and plain["sms"] == 4, "the emulator deals blocks to four SMs"
    persistent = case_result(recorded, "block_scheduling", "zeros_128_persistent")
    assert persistent["blocks"] == 2
    # Original and persistent 1000 ns each, memset 900; an empty kernel "takes" 3000 ns in the emulation.
    assert plain["memset_saving_percent"] == pytest.approx(10) and plain["persistent_saving_percent"] == 0
    assert plain["gap_free_time"] == pytest.approx(1000 + 20 * plain["gap_free_saving_percent"])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("4096", "'4096' is not a shape; write ROWSxCOLUMNS"),
        ("100x3", "100x3 has 300 elements; choose a multiple of 512"),
        ("65536x65536", "exceeds 256 MiB; choose a smaller shape"),
    ],
)
def test_a_shape_that_cannot_be_filled_is_one_line(shape, message, capsys):
    assert blocks.parse_shape("1024x512") == (1024, 512)
    assert command.main(["blocks", "--shape", shape]) == 2
    assert message in capsys.readouterr().err


def test_every_warp_of_the_launch_is_there(recorded):
    heads = cases.heads_for(1, 64, 2, 8)
    assert case_result(recorded, "warp_scheduling", "fig13a")["warps"] == heads * 4
    assert case_result(recorded, "warp_scheduling", "fig17b")["warps"] == 8


def test_accesses_are_counted_by_pages(recorded):
    result = case_result(recorded, "dmat", "fig1")
    heads = cases.heads_for(1, 192, 1, 3)
    assert result["records"] == heads * 3 * 128 * (4 + 3 * 8 + 16)
    assert result["pages"] == 4, "every tensor starts on a page of its own"


def test_accesses_belong_to_the_tensors(tmp_path, request):
    folder = tmp_path / "traces/mine"
    trace = traces.write_directory(folder / "fig1", EmulatedRunner().run(workloads.attention(1, 64), "dmat"))
    files = {"trace": trace.relative_to(folder).as_posix(), "tensor_trace": "fig1/tensor.trace"}
    write_dataset(folder, {"dmat": {"fig1": files | {"event_log": "fig1/event.log"}}})
    result = case_result(repository(tmp_path, request).dataset("mine"), "dmat", "fig1")
    found = {name: result[f"{name}_accesses"] for name in ("query", "key", "value", "out")}
    assert found == {"query": 512, "key": 512, "value": 512, "out": 128 * 16}
    assert set(result.data["tensor"]) == set(found)


def test_page_counts_lose_no_access():
    launched = EmulatedRunner().run(workloads.attention(1, 64), "dmat")
    clock, page, count = traces.count_accesses(launched.records["dmat"])
    assert count.sum() == launched.records["dmat"].size == 128 * (4 + 8 + 16)
    assert (page % neutrino.PAGE_BYTES == 0).all()
    assert len(set(zip(clock.tolist(), page.tolist(), strict=True))) == len(clock)
    nothing = traces.count_accesses(np.zeros((1, 1, 3), launched.records["dmat"].dtype))
    assert [part.size for part in nothing] == [0, 0, 0]


def test_overheads_are_those_of_the_launches(recorded):
    result = case_result(recorded, "kernel_overhead", "table2")
    assert result["operators"] == 3 and result["probes"] == 5
    assert result["fill_block_sched_slowdown"] == 2 and result["gemm_128_dmat_registers"] == 6


def test_memory_is_that_of_the_slices(recorded):
    result = case_result(recorded, "memory_usage", "fig11")
    # 8 heads × 64 tokens × 64 dimensions × 2 B × 4 tensors; 8 blocks of 4 warps with 16 B each.
    assert result["attention_64_bs1_original_memory"] == 8 * 64 * 64 * 2 * 4
    assert result["attention_64_bs1_block_sched_memory"] == 8 * 4 * 16
    assert result["attention_64_bs1_program_progress_memory"] == 8 * 128 * 128 * 8


def test_the_trace_reads_back_as_what_was_saved(tmp_path):
    launched = EmulatedRunner().run(workloads.gemm(128), "program_progress")
    path = traces.write_directory(tmp_path / "trace", launched)
    directory = neutrino.open_trace_directory(tmp_path / "trace")
    trace = directory.open(path.name)
    assert np.array_equal(
        trace.records(dtype=launched.records["program_progress"].dtype), launched.records["program_progress"]
    )
    assert directory.event_log.launches["probe_bytes"].tolist() == [launched.records["program_progress"].nbytes]
    assert directory.event_log.launches["kernel_ms"].tolist() == [1.0]


def fake_process(times):
    """Stand in for processes: write the time that a run with or without ncu takes."""

    def count(metrics, command):
        assert command[1:3] == ["-m", "gpuledger.record.probes.exposed"]
        times["calls"] = times.get("calls", 0) + 1
        with open(command[-1], "w") as file:
            file.write(str(40.0 if metrics else 2.0))

    return count


def test_exposed_latencies_make_the_study_s_table(tmp_path, request):
    times = {}
    path = tmp_path / "traces/mine/waits.csv"
    sizes = {"fill": 64, "gemm": 128}

    def open_runner():
        """A GPU may be open to one process alone."""
        assert times["calls"] == 2 * (1 + 3) * exposed.REPEATS
        return EmulatedRunner()

    exposed.measure(path, open_runner, fake_process(times), sizes=sizes)
    table = pd.read_csv(path)
    assert table["probed_ms"].tolist() == [1.375] * 6, "prologue, kernel and epilogue"
    write_dataset(path.parent, {"exposed_latency": {"fig12": {"table": "waits.csv"}}})
    result = case_result(repository(tmp_path, request).dataset("mine"), "exposed_latency", "fig12")
    assert result["fill_block_sched_ncu_ratio"] == 20 and result["gemm_tensorop_count_probed_ratio"] == 1.375 / 2


def test_waiting_times_are_kept_one_by_one(tmp_path, caplog):
    """A call of 67 s on an H200 measured most of them, and kept none."""
    caplog.set_level("INFO", "gpuledger")
    times, sizes, opened = {}, {"fill": 64, "gemm": 128}, []
    count = fake_process(times)

    def for_a_while(metrics, command):
        if times.get("calls") == 5 * exposed.REPEATS + 1:
            raise KeyboardInterrupt
        count(metrics, command)

    def open_runner():
        opened.append(1)
        return EmulatedRunner()

    with pytest.raises(KeyboardInterrupt):
        exposed.measure(tmp_path / "waits.csv", open_runner, for_a_while, sizes=sizes)
    kept = sorted(path.name for path in tmp_path.glob("waits.parts/*"))
    probes = [f"fill.ncu_for_{probe}.json" for probe in sorted(exposed.METRICS)]
    assert kept == ["fill.alone.json", *probes, "gemm.alone.json"] and opened == []
    (tmp_path / "waits.parts/fill.alone.json").write_text("[")  # as a full disk leaves it: measured again
    exposed.measure(tmp_path / "waits.csv", open_runner, count, sizes=sizes)
    assert times["calls"] == 5 * exposed.REPEATS + 1 + 4 * exposed.REPEATS and opened == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["waits.csv"]
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "latency: step 1 of 14, fill alone" and said[-1] == "latency: step 14 of 14, gemm tensorop_count"
    assert said.count("latency: step 6 of 14, gemm ncu_for_block_sched") == 2


def test_a_process_that_writes_no_time_is_named_and_nothing_is_left(tmp_path):
    with pytest.raises(InputError, match="wrote no time"):
        exposed.measure(tmp_path / "waits.csv", EmulatedRunner, lambda metrics, command: None, sizes={"fill": 64})
    assert not list(tmp_path.iterdir())


def test_metrics_beside_probes_are_those_of_the_compared_probes():
    assert set(exposed.METRICS) < set(cases.COMPARED)
