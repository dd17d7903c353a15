"""The command line: known answers as JSON, exit codes, one line for bad input, nothing slow at the start."""

import gzip
import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import time

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from command_line import run, script
from conftest import ROOT
from own_cases import own_case
from recordings import Recording

from gpuledger.cli import __main__ as cli
from gpuledger.errors import InputError, InputWarning
from gpuledger.ledger.datasets import Dataset
from gpuledger.readers import neutrino

NCU = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = json.dumps({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 512, **SIZES})
#: As tiiuae/falcon-7b, without a longest context.
FALCON = json.dumps(
    {
        **{"model_type": "falcon", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2},
        **{"vocab_size": 256, "multi_query": True, "parallel_attn": True, "alibi": False, "bias": False},
    }
)
#: What new-dataset says at the end.
WRITE = "write title, source and license into it: figures and pages name the source"
WORK = {"gpu__time_duration.sum": ("ns", 1000), "dram__bytes.sum": ("byte", 64)}


def ncu(kernels, metrics=WORK):
    rows = [NCU]
    for number, kernel in enumerate(kernels):
        rows += [f'"{number}","1","{kernel}","{name}","{unit}","{value}"' for name, (unit, value) in metrics.items()]
    return "\n".join(rows) + "\n"


def inspect(*paths, status=0):
    return json.loads(run("inspect", *paths, "--json", status=status))


# inspect


def trace_file(path, records=64):
    """A V3 trace of block_sched: one block of a warp per record."""
    table = struct.pack("<8I", records, 1, 1, 32, 1, 1, 0, 1) + struct.pack("<IIQ", 16, 32, 48)
    path.write_bytes(table + b"\1" * 16 * records)
    return path


def timeline(path):
    kernel = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {}}'
    path.write_text(f'{{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{kernel}]}}')
    return path


def sqlite(path, kernels):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, shortName INTEGER)")
        connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 1)", kernels)
    connection.close()
    return path


@pytest.mark.parametrize(
    ("name", "content", "kind", "studies"),
    [
        ("r.csv", ncu(["k"]), "Nsight Compute, a row per metric", ["kernel_profile"]),
        ("r.csv.gz", gzip.compress(ncu(["k"]).encode()), "Nsight Compute, a row per metric", ["kernel_profile"]),
        (
            "o.csv",
            "group,operator,probe,slowdown_ratio,extra_registers,spilled\n",
            "table of probe overheads",
            ["kernel_overhead"],
        ),
        ("g.csv", "gemm_dtype,m,n,k,latency\n", "table of GEMM times", ["kernel_time"]),
        ("l.csv", "gemm_dtype,m,n,k,latency,kernel,grid_x,grid_y\n", "table of GEMM launches", ["gemm_tiles"]),
        (
            "mlp.csv",
            "time_stats.input_layernorm.median,num_tokens,num_tensor_parallel_workers\n",
            "Vidur's times of operators",
            ["kernel_time"],
        ),
        (
            "layers.csv",
            "layer_name,input,kv_cache,tp_size,latency(ns)\n",
            "LLMServingSim's times of layers",
            ["kernel_time"],
        ),
        (
            "all_benchmark_data.csv",
            "kernel_name,kernel_provider,metric_name,x_value,y_value_50,gpu_name\n",
            "Liger's benchmarks",
            ["normalization_roofline"],
        ),
        ("c.csv", "completed_percent,elapsed_cycles\n", "points of a distribution of warps", ["warp_scheduling"]),
        (
            "kern_sum.csv",
            "Processing [r.sqlite]...\nTime (%),Total Time (ns),Instances,Name\n100,8000,4,gemm\n",
            "Nsight Systems report (sums)",
            ["kernel_breakdown"],
        ),
        (
            "1_kernel_trace.csv",
            '"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n"KERNEL_DISPATCH","k",1,2\n',
            "rocprofv3 kernel trace",
            ["kernel_breakdown"],
        ),
        ("config.json", LLAMA, "config.json of a model", ["kernel_breakdown"]),
        ("falcon.json", FALCON, "config.json of a model", ["kernel_breakdown"]),
        ("w.csv", "kernel,precision,flop,bytes,time_us,power_w\n", "table of power readings", ["kernel_power"]),
        ("gpus.csv", (ROOT / "resources/gpus.csv").read_text("utf-8"), "table of GPUs", []),
    ],
)
def test_inspect_says_what_a_file_is(tmp_path, name, content, kind, studies):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert inspect(path) == [{"path": str(path), "format": kind, "studies": studies, "problems": []}]


def test_inspect_traces_timelines_and_tables(tmp_path):
    found = inspect(trace_file(tmp_path / "0.5.bin"))[0]
    assert found["format"] == "Neutrino trace V3" and found["studies"] == ["block_scheduling", "warp_scheduling"]
    assert inspect(timeline(tmp_path / "t.json"))[0]["format"] == "timeline of torch.profiler (Kineto)"
    assert "1 launch of 1 kernel" in run("inspect", tmp_path / "t.json")
    export = sqlite(tmp_path / "n.sqlite", [(1, 2), (3, 4)])
    assert inspect(export)[0]["format"] == "Nsight Systems export (SQLite)"
    assert "2 launches of 1 kernel" in run("inspect", export)
    found = inspect(sqlite(tmp_path / "empty.sqlite", []), status=1)[0]
    assert found["problems"] == ["there is no GPU kernel in it; record the activities of the GPU (CUDA) too"]
    assert not found["studies"]
    pd.DataFrame({"gemm_dtype": ["a"], "m": [1], "n": [1], "k": [1], "latency": [1.0]}).to_parquet(
        tmp_path / "g.parquet"
    )
    assert inspect(tmp_path / "g.parquet")[0]["studies"] == ["kernel_time"]
    (tmp_path / "g.csv").write_text("GEMM_DTYPE, M, N, K, Latency\nbf16,1,1,1,1\n")
    assert inspect(tmp_path / "g.csv")[0]["studies"] == ["kernel_time"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("empty.csv", b"", "the file is empty"),
        ("notes.txt", b"hello", "nothing here reads this kind of file"),
        ("gemm.csv", b"M,N,K,time\n1,1,1,2\n", "table of GEMM times, which would need the columns gemm_dtype, latency"),
        ("mnk.csv", b"m,n,k,latency\n1,1,1,2\n", "table of GEMM times, which would need the column gemm_dtype"),
        ("runs.csv", b"model,sequence_tokens,micro_batch\na,1,1\n", "training runs, which would need the column gpu"),
        ("prof.csv", b"==PROF== Connected\n==ERROR== The application returned an error code (1).\n", "ncu failed"),
        ("cut.json", b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"a":', "truncated"),
        ("bad.json", b"{oops", "not valid JSON"),
        ("other.json", b'[{"a": 1}]', "nothing here reads this kind of file"),
        ("none.json", b'{"schemaVersion": 1, "traceEvents": []}', "there is no GPU kernel in it"),
        ("cut.bin", struct.pack("<8I", 4, 1, 1, 32, 1, 1, 0, 1), "too short for a header"),
        ("cut.dmat", struct.pack("<QQ", 1000, 1000), "cut short"),
        ("bad.csv.gz", b"\x1f\x8b\x08 nonsense", "damaged"),
        ("bad.parquet", b"PAR1 nonsense", "cannot be read"),
        ("old.txt", b"Generating\n\n** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n Time (%)\n", "--format csv"),
        ("a.csv", b"Time (%),Total Time (ns),Num Calls,Name\n9,8,3,cudaMalloc\n", "nsys stats --report cuda_gpu_trace"),
        ("ranges.csv", b"NVTX Range,Style,PID,NVTX Inst,Kern Inst,Kernel Name\na,b,1,1,1,k\n", "cuda_gpu_trace"),
        ("hip.csv", b'"Domain","Function","Process_Id"\n"HIP","hipMalloc",1\n', "give kernel_trace.csv"),
        ("pmc.csv", b'"Correlation_Id","Dispatch_Id","Counter_Name","Counter_Value"\n1,1,"A",2\n', "when kernels ran"),
        ("r.json", b'{"rocprofiler-sdk-tool": [{}]}', "rocprofv3 --kernel-trace --output-format csv"),
        (
            "v1.json",
            b'{"traceEvents":[{"ph":"X","name":"k","args":{"BeginNs":"1","EndNs":"2"}}]}',
            "give the results.csv",
        ),
        ("et.json", b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "it holds no times"),
        ("avg.txt", b"-" * 40 + b"  ----\n   Name    Self CPU %   # of Calls\n", "prof.export_chrome_trace"),
        ("cut.txt", b"-" * 40 + b"\n---\n   Name    Self CPU %   # of\n Calls\n", "give it with whole lines"),
        ("guide.txt", b"Benchmarks Stats:\n====\nMetadata | Request Stats\n", "give the benchmarks.json"),
        ("llm.txt", "    LLM Metrics\n┏━━━┳━━━┓\n┃ Statistic ┃ avg ┃\n".encode(), "give the JSON"),
        ("nsys.json", b'{"data":[]}\n{"Type":79,"CudaEvent":{"startNs":"1"}}\n', "nsys export --type sqlite"),
        (
            "hip.csv",
            b"Domain,Function,Kernel_Name,Start_Timestamp,End_Timestamp\n",
            "it lists calls, copies or devices",
        ),
        ("vm.xplane.pb", b"\n\x0c", "give the .trace.json.gz"),
        ("r.pftrace", b"\n\x0c", "protobuf is not read"),
        ("bench.json", b'{"request_throughput": 5.2, "mean_ttft_ms": 9}', "completed: it is missing"),
        ("source.csv", b'"#","Address","Source","# Samples"\n"1","0x7f","MOV","3"\n', "--csv --page raw"),
        ("s.csv", b"timestamp, power.draw [W]\n2024/10/30 18:42:33.189, 22.89 W\n", "what the GPU drew, not what ran"),
        ("bare.csv", b"2026/04/25 16:06:06.780, 0 %, 2 MiB, 27, 11.64 W\n", "what the GPU drew, not what ran"),
        ("q.txt", b"Starting...\n\n CUDA Device Query (Runtime API) version\n", "--gpu-file reads a table of your own"),
        ("perf.csv", b"M,N,K,cuBLAS,Triton\n4096.0,4096.0,4096.0,17.1,4.0\n", "a column per provider"),
        ("pmc_1.csv", b"Index,KernelName,gpu-id,grd,SQ_WAVES\n0,k,2,64,1\n", "add --timestamp on"),
        ("pc.csv", b'"Sample_Timestamp","Exec_Mask","Instruction"\n1,2,"s_endpgm"\n', "how long kernels ran"),
        ("genai_perf.csv", b"Metric,avg,min,max\nInter Token Latency (ms),9,8,12\n", "give the JSON"),
        ("latency.json", b'{"avg_latency": 1.5, "latencies": [1.5]}', "gpuledger served reads what vllm bench serve"),
        ("genai.txt", "NVIDIA GenAI-Perf | LLM Metrics\n┃ Statistic ┃ avg ┃\n".encode(), "give the JSON"),
        ("mlperf_log_summary.txt", b"====\nMLPerf Results Summary\n====\nSUT name : PySUT\n", "vllm bench serve"),
        (
            "llama.md",
            b"| model  |   size | params | backend | test | t/s |\n| - | -: | -: | - | - | -: |\n",
            "nsys profile",
        ),
        ("llama.csv", b'build_commit,backends,model_filename,n_prompt,avg_ts\n"8c","CUDA","m",512,7.5\n', "llama.cpp"),
        ("llama.json", b'[{"build_commit": "8c", "model_filename": "m", "n_gen": 128}]', "llama.cpp"),
        (
            "nvbench.md",
            b"| T | CPU Time | Noise | GPU Time |\n|---|---|---|---|\n| 1 | 2 us | 1% | 1 us |\n",
            "which kernels",
        ),
        ("nvbench.json", b'{"benchmarks": [{"states": [{"summaries": [{"tag": "nv/cold/time/gpu/mean"}]}]}]}', "nsys"),
        ("layers.json", b'[{"count": 9}, {"name": "conv", "timeMs": 12.5, "averageMs": 0.1}]', "nsys profile trtexec"),
        (
            "processed.csv",
            b"Annotation,n,AvgValue,StdDev,Metric,Kernel\na,64,2.5,0.1,gpu__time_duration.sum,k\n",
            "ncu-rep",
        ),
        ("pytorch.json", b'[{"benchmark": {"name": "vLLM benchmark"}}]', "vllm bench serve --save-result"),
        ("conv.csv", b"Problem,Provider,OperationKind,n,h\n1,CUTLASS,conv2d,8,224\n", "of a run of GEMMs"),
        ("um.txt", b"==1== NVPROF is profiling process 1\nNo kernels were profiled.\n", "no table of kernels"),
        ("sums.txt", b"Processing\n\n ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n Time (%)\n", "--format csv"),
    ],
)
def test_inspect_says_what_is_wrong(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    found = inspect(tmp_path / name, status=1)[0]
    assert any(problem in said for said in found["problems"]), found


@pytest.mark.parametrize("unit", ["-", '"traceEvents"', "Time,", '{"', "==PROF== "])
def test_nothing_is_searched_for_in_quadratic_time(tmp_path, unit):
    """A search that begins anew at every sign of the beginning would not end here."""
    (tmp_path / "long.txt").write_text(unit * ((1 << 16) // len(unit)))
    assert inspect(tmp_path / "long.txt", status=1)[0]["problems"]


def test_a_list_of_events_is_a_timeline(tmp_path):
    event = {"ph": "X", "cat": "Kernel", "name": "gemm", "ts": 1, "dur": 2, "args": {"stream": 7}}
    (tmp_path / "old.json").write_text(json.dumps([event, event]))
    assert inspect(tmp_path / "old.json")[0]["studies"] == ["kernel_breakdown"]


@pytest.mark.parametrize("installed", [False, True])
def test_a_report_of_nsys_needs_nsys(tmp_path, monkeypatch, installed):
    (tmp_path / "x.nsys-rep").write_bytes(b"\0\1\2")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if installed else None)
    (found,) = inspect(tmp_path / "x.nsys-rep", status=0 if installed else 1)
    assert found["studies"] == ["kernel_breakdown"]
    assert [text.partition(";")[0] for text in found["problems"]] == ["reading it needs nsys"] * (not installed)


def test_names_in_files_do_not_control_the_terminal(tmp_path):
    (tmp_path / "a\x1b[31m\u202e.csv").write_text("name,sms,b\x1b[2J\n")
    (tmp_path / "config.json").write_text('{"model_type": "a\\u001b[2J\\nb"}')
    (tmp_path / "a.parquet").write_bytes(b"PAR1\x1b[2J\nPAR1")
    said = run("inspect", tmp_path, status=1)
    assert said.replace("\n", "").isprintable() and said.count("problem: ") == 3
    said = run("inspect", tmp_path, "--json", status=1)
    assert said.replace("\n", "").isprintable()
    assert {file["path"] for file in json.loads(said)} >= {f"{tmp_path}/a\x1b[31m\u202e.csv"}
    (tmp_path / "\udcff.csv").write_text("")
    assert "problem: the file is empty" in run("inspect", tmp_path / "\udcff.csv", status=1)
    assert inspect(tmp_path / "\udcff.csv", status=1)[0]["path"].endswith("\udcff.csv")


def test_inspect_goes_on_after_a_path_that_does_not_exist(tmp_path, monkeypatch):
    (tmp_path / "r.csv").write_text(ncu(["k"]))
    monkeypatch.chdir(tmp_path)
    command = ("inspect", "one", "r.csv", "two", "r.csv")
    done = script(*command, "--json")
    assert [entry["path"] for entry in json.loads(done.stdout)] == ["r.csv", "r.csv"]
    problem = "there is no such file or folder; correct the path"
    assert done.stderr.splitlines() == [f"gpuledger: {name}: {problem}" for name in ("one", "two")]
    assert done.returncode == 2
    done = script(*command)
    assert done.stdout.count("a row per metric") == 2 and done.stderr.count("\n") == 2 and done.returncode == 2


def test_inspect_reads_what_powershell_redirected(tmp_path):
    """What `profile` and the studies read, `inspect` said that nothing here reads."""
    sums = "Time (%),Total Time (ns),Instances,Name\n100,8000,4,gemm\n"
    for name, content in (("r.csv", ncu(["k"])), ("n.csv", sums), ("g.csv", "name,sms\na,3\n")):
        (tmp_path / name).write_text(content, "utf-16")
    found = inspect(tmp_path / "r.csv", tmp_path / "n.csv", tmp_path / "g.csv", status=1)
    assert [entry["studies"] for entry in found] == [["kernel_profile"], ["kernel_breakdown"], []]
    assert "4 launches of 1 kernel" in run("inspect", tmp_path / "n.csv")
    assert (found[2]["format"], found[2]["problems"]) == ("text in UTF-16", ["save it as UTF-8"])


def test_inspect_suggests_the_dataset_yaml(tmp_path):
    (tmp_path / "r.csv").write_text(ncu(["k"]))
    assert "kernel_profile:\n        mine:\n          report: r.csv" in run("inspect", tmp_path / "r.csv")
    (tmp_path / "gemm.csv").write_text("gemm_dtype,m,n,k,latency\nfp16,1,1,1,1\n")
    assert "          gpu: null  # fill it in\n" in run("inspect", tmp_path / "gemm.csv")


NSYS = "Time (%),Total Time (ns),Instances,Avg (ns),Name\n75.0,6000,3,2000.0,gemm\n"


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("gemm_dtype,m,n,k,latency\nfp16,1,1,1,1\n", ";"),
        ("gemm_dtype,m,n,k,latency\nfp16,1,1,1,1\n", "\t"),
        (NSYS, ";"),
    ],
)
def test_inspect_says_which_sign_separates_columns(tmp_path, text, sign):
    (tmp_path / "gemm.csv").write_text(text.replace(",", sign))
    found = inspect(tmp_path / "gemm.csv", status=1)[0]
    assert found["problems"] == [
        f"its cells are separated by {sign!r}; separate them by commas, with a point for decimals"
    ]


def test_inspect_says_what_a_table_in_other_words_lacks(tmp_path):
    (tmp_path / "a.csv").write_text("DType;M;N;K;time [us]\nbf16;1;2;3;4,5\n")
    (tmp_path / "b.csv").write_text("tokens,outputs,inputs,us\n1,2,3,4.5\n")
    semicolons, words = inspect(tmp_path / "a.csv", tmp_path / "b.csv", status=1)
    assert semicolons["problems"] == [
        "its cells are separated by ';'; separate them by commas, with a point for decimals; "
        "nearest: table of GEMM times, which would need the columns gemm_dtype, latency"
    ]
    assert words["format"] == "table of columns that are not known"
    assert words["problems"][0].endswith("of GEMM times gemm_dtype, m, n, k, latency")


def test_inspect_a_dataset(tmp_path):
    own_case(tmp_path / "d", "kernel_profile", {"report": "r.csv"})
    found = inspect(tmp_path / "d", status=1)[0]
    assert found["studies"] == ["kernel_profile"] and "r.csv is missing" in found["problems"][0]
    assert inspect(tmp_path / "d" / "dataset.yaml", status=1)[0] == {**found, "path": f"{found['path']}/dataset.yaml"}


def test_inspect_tells_of_a_case_about_another_gpu_than_the_dataset(tmp_path):
    inputs = {"measurements": "g.csv", "unit": "us", "gpu": "h100-sxm"}
    own_case(tmp_path, "kernel_time", inputs, device={"name": "NVIDIA A100-SXM4-80GB"})
    (tmp_path / "g.csv").write_text("gemm_dtype,m,n,k,latency\nfp16,1,1,1,1\n")
    (problem,) = inspect(tmp_path, status=1)[0]["problems"]
    assert problem.endswith("gpu is h100-sxm, but the device above is NVIDIA A100-SXM4-80GB; correct one of them")
    own_case(tmp_path, "kernel_time", inputs, device={"name": "NVIDIA H100 80GB HBM3"})
    assert not inspect(tmp_path)[0]["problems"]


def test_large_files_are_judged_by_their_beginning(tmp_path):
    trace = trace_file(tmp_path / "big.bin", 1 << 20)
    head = trace.read_bytes()[:48]
    blocks = (1 << 30) // 16
    with trace.open("wb") as handle:  # sparse: 1 GiB
        handle.write(struct.pack("<I", blocks) + head[4:])
        handle.truncate(48 + 16 * blocks)
    (tmp_path / "big.csv").write_text(ncu(["k"] * 150_000))
    used = time.process_time()
    assert [entry["problems"] for entry in inspect(trace, tmp_path / "big.csv")] == [[], []]
    assert time.process_time() - used < 3


# diagnose


@pytest.fixture
def trace(tmp_path):
    folder = tmp_path / "trace"
    good, bad, left_out = (folder / "kernel" / f"{n}_{str(n) * 40}" for n in (0, 1, 2))
    for kernel in (good, bad, left_out):
        kernel.mkdir(parents=True)
    neutrino.write_kernel_info(good / "kernel.info", neutrino.KernelInfo("good", 3, (("warp", 16),)))
    builds = {"probed": neutrino.Build("sm_80", 40, 0, 8, 8), "pruned": neutrino.Build("sm_80", 32, 0, 0, 0)}
    neutrino.write_process_log(good / "process.log", neutrino.ProcessLog("good", builds, objdump="via cuobjdump -ptx"))
    (bad / "process.log").write_text(
        "None\nNone\n[objdump] via cuobjdump -ptx\nbad\nTraceback (most recent call last):\nValueError: no entry\n"
    )
    (left_out / "process.log").write_text(
        "['left']\nNone\n[objdump] via cuobjdump -ptx\nleft filtered out from ['left']\n"
    )
    (folder / "result").mkdir()
    trace_file(folder / "result/0.500000.bin")
    return folder


def test_diagnose_names_what_was_not_probed_and_why(trace):
    report = json.loads(run("diagnose", trace, "--json", status=1))
    good, bad, left_out = report["kernels"]
    wanted = {"kernel": "good", "probed": True, "additional_registers": 8, "additional_spill_bytes": 16}
    assert good.items() >= wanted.items()
    assert not bad["probed"] and "ValueError: no entry" in bad["reason"]
    assert left_out["filtered"] and left_out["reason"] == "left out by the filter"
    said = " ".join(report["problems"])
    assert "bad was not probed" in said and "left was not probed" not in said and "event.log is missing" in said
    assert "1 of 3 kernels probed" in run("diagnose", trace, status=1)


def test_diagnose_counts_launches_and_their_cost(trace):
    launches = pd.DataFrame(
        {
            "function": ["0x1", "0x1", "0x2"],
            "kernel": ["good", "good", "bad"],
            "grid": [(64, 1, 1)] * 3,
            "block": [(32, 1, 1)] * 3,
            "shared_bytes": [0, 0, 0],
            "probe_bytes": [1024, 1024, None],
            "outcome": ["succeed", "succeed", "backup"],
            "code": [0, 0, 0],
            "file": ["result/0.500000.bin", "result/0.700000.bin", ""],
            "file_bytes": [1072, 1072, None],
            "prologue_ms": [0.5, 0.25, None],
            "kernel_ms": [2.0, 3.0, None],
            "epilogue_ms": [1.0, 1.0, None],
            "ratio": [0.75, 0.4, None],
        }
    ).astype({"probe_bytes": "Int64", "file_bytes": "Int64"})
    empty = neutrino.event_log.SECTIONS, neutrino.event_log.MEMORY
    sections, memory = (pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()}) for kinds in empty)
    folders = {"good": f"kernel/0_{'0' * 40}", "bad": f"kernel/1_{'1' * 40}"}
    log = neutrino.EventLog(launches, sections, memory, folders, "V3", False, 7, "./app ")
    neutrino.write_event_log(trace / "event.log", log)
    report = json.loads(run("diagnose", trace, "--json", status=1))
    good, bad, _ = report["kernels"]
    assert (report["launches"], report["command"]) == (3, "./app")
    assert (good["launches"], good["traces"], good["missing_traces"], good["probe_bytes"]) == (2, 1, 1, 1024)
    assert (good["prologue_ms"], good["kernel_ms"], good["epilogue_ms"]) == (0.75, 5.0, 2.0)
    assert (bad["launches"], bad["fallbacks"]) == (1, 1)
    assert any("bad: 1 of 1 launches ran without probe" in problem for problem in report["problems"])


def test_diagnose_goes_on_past_a_damaged_file(trace):
    (trace / "event.log").write_text("[exec] probe-mem oops (bytes)\n")
    next(trace.glob("kernel/0_*/kernel.info")).write_text("good\n")
    (trace / "result/0.500000.bin").write_bytes(b"\0" * 40)
    report = json.loads(run("diagnose", trace, "--json", status=1))
    damaged = ("event.log", "kernel.info", "0.500000.bin")
    assert {name for name in damaged if any(name in problem for problem in report["problems"])} == set(damaged)
    assert not report["kernels"][0]["probed"]


# profile


def test_profile_as_json(tmp_path):
    (tmp_path / "r.csv").write_text(ncu(["a<1>(int)", "b", "a<1>(int)"]))
    (tmp_path / "b.csv").write_text(ncu(["b"], {"gpu__time_duration.sum": ("us", 3)}))
    found = json.loads(run("profile", tmp_path / "r.csv", "--baseline", tmp_path / "b.csv", "--json"))
    assert found["launches"] == 3 and (found["kernels_only_here"], found["kernels_only_in_baseline"]) == (1, 0)
    assert (found["common_time_s"], found["common_baseline_time_s"]) == pytest.approx((1e-6, 3e-6))
    (tmp_path / "untimed.csv").write_text(ncu(["b"], {"dram__bytes.sum": ("byte", 1)}))
    lacking = json.loads(run("profile", tmp_path / "r.csv", "--baseline", tmp_path / "untimed.csv", "--json"))
    assert lacking["baseline_time_s"] is None and lacking["common_time_s"] is None
    first, second = found["kernels"]
    assert (first["kernel"], first["launches"], first["time_s"]) == ("a<1>(int)", 2, pytest.approx(2e-6))
    assert first["flops"] is None and first["dram_bytes"] == 128 and first["baseline_time_s"] is None
    assert second["baseline_time_s"] == pytest.approx(3e-6)
    assert "b" in run("profile", tmp_path / "r.csv") and "launch" in run("profile", tmp_path / "r.csv", "--launches")


def test_profile_knows_roofs_of_a_gpu(tmp_path):
    (tmp_path / "r.csv").write_text(
        ncu(["k"], {"gpu__time_duration.sum": ("us", 1), "dram__bytes.sum": ("byte", "1675000")})
    )
    found = json.loads(run("profile", tmp_path / "r.csv", "--gpu", "h100-sxm", "--json"))["kernels"][0]
    # Half of DRAM's roof, and nothing says how near it is to those of computing.
    assert found["achieved_percent"] == pytest.approx(50) and found["bound"] is None
    assert "at 50 % of the nearest roof that is known, DRAM" in run("profile", tmp_path / "r.csv", "--gpu", "h100-sxm")
    with pytest.warns(
        InputWarning, match=r"558 % of the DRAM roof of NVIDIA L4; the number is kept: check that this GPU"
    ):
        run("profile", tmp_path / "r.csv", "--gpu", "l4", "--json")
    with pytest.raises(InputError, match="unknown GPU"):
        run("profile", tmp_path / "r.csv", "--gpu", "h1000")


def test_profile_of_another_file_says_what_it_is(tmp_path):
    (tmp_path / "calls.csv").write_text("Time (%),Total Time (ns),Num Calls,Name\n9,8,3,cudaMalloc\n")
    with pytest.raises(InputError, match=r"calls.csv: output of nsys stats without times of kernels, not output"):
        run("profile", tmp_path / "calls.csv")
    (tmp_path / "calls.json").write_text(
        '[{"Time (%)": 9, "Total Time (ns)": 8, "Num Calls": 3, "Name": "cudaMalloc"}]'
    )
    with pytest.raises(InputError, match=r"calls.json: output of nsys stats without times of kernels, not output"):
        run("profile", tmp_path / "calls.json")
    with pytest.raises(InputError, match="it is a folder; give a file in it"):
        run("profile", tmp_path)


def test_profile_of_what_nsys_prints(tmp_path):
    rule = " --------  ---------------  ---------  ----"
    for name, total in (("after", 6000), ("before", 9000)):
        rows = f"     99.0            {total:,}          2  gemm\n      1.0               10          1  add\n"
        header = f"\n Time (%)  Total Time (ns)  Instances  Name\n{rule}\n"
        (tmp_path / name).write_text(f" ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n{header}{rows}")
    found = json.loads(run("profile", tmp_path / "after", "--json"))
    assert found["launches"] == 3 and found["time_s"] == pytest.approx(6.01e-6)
    # Sums do not say when kernels ran.
    assert found["step"] == {"span_s": None, "kernel_time_s": pytest.approx(6.01e-6), "idle_percent": None, "steps": 1}
    said = run("profile", tmp_path / "after", "--baseline", tmp_path / "before")
    assert "All kernels take 6.01 µs instead of 9.01 µs" in said
    assert "1 kernel changed by less than 0.05 % of a step" in said


def test_profile_of_a_timeline_sums_the_launches_of_each_kernel(tmp_path):
    kernels = [("gemm", 30.0), ("norm", 10.0), ("gemm", 60.0)]
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 100 * at, "dur": time, "args": {"stream": 7, "device": 0}}
        for at, (name, time) in enumerate(kernels)
    ]
    events.append({"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 900, "dur": 5, "args": {"stream": 7}})
    (tmp_path / "t.json").write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    found = json.loads(run("profile", tmp_path / "t.json", "--json"))
    assert (found["launches"], found["time_s"]) == (3, pytest.approx(100e-6))
    assert [(row["kernel"], row["launches"]) for row in found["kernels"]] == [("gemm", 2), ("norm", 1)]
    assert found["kernels"][0]["time_s"] == pytest.approx(90e-6)
    assert found["kernels"][0]["share_percent"] == pytest.approx(90)
    said = run("profile", tmp_path / "t.json")
    assert "3 launches of 2 kernels take 100 µs" in said and "no counters" in said
    assert "As one step: 3 kernels run for 100 µs of a step of 260 µs, which is idle for 62 % " in said
    assert found["step"] == pytest.approx(
        {"span_s": 260e-6, "kernel_time_s": 100e-6, "idle_percent": 100 * 160 / 260, "steps": 1}
    )
    run("profile", tmp_path / "t.json", "--save", tmp_path / "page")
    assert {"figure_time.pdf", "table.csv", "trace.json"} <= {path.name for path in (tmp_path / "page").iterdir()}
    with pytest.raises(InputError, match="give it alone, or with another timeline as --baseline"):
        run("profile", tmp_path / "t.json", "--launches")
    (tmp_path / "r.csv").write_text(ncu(["k"]))
    with pytest.raises(
        InputError, match=r"t.json: timeline of torch.profiler \(Kineto\), not output of Nsight Compute"
    ):
        run("profile", tmp_path / "r.csv", "--baseline", tmp_path / "t.json")
    with pytest.raises(InputError, match=r"r.csv: it is no timeline; give a timeline as t.json is one"):
        run("profile", tmp_path / "t.json", "--baseline", tmp_path / "r.csv")


@pytest.mark.parametrize(
    ("times", "device", "words", "others"),
    [
        # Equal up to the order in which they are added.
        (((30.3, 10.1), (10.1, 30.3)), 0, "device 0, one of 2 GPUs with equal kernel time", "the other take 40.4 µs"),
        (((30, 10), (10, 60)), 1, "device 1, which has most kernel time of 2 GPUs", "the other take 40.0 µs"),
        (
            ((1, 1), (10, 60), (60, 10)),
            1,
            "device 1, one of 2 with most kernel time of 3 GPUs",
            "others take 2.00 µs to 70.0 µs",
        ),
    ],
)
def test_profile_of_several_gpus_is_of_one_in_all_it_says(tmp_path, times, device, words, others):
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 100 * at, "dur": time, "args": {"stream": 7, "device": gpu}}
        for gpu, pair in enumerate(times)
        for at, (name, time) in enumerate(zip(("gemm", "norm"), pair, strict=True))
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    total_s = 1e-6 * sum(times[device])
    done = script("profile", path, "--json")
    assert done.stderr == f"gpuledger: {path}: kernels of several GPUs; only those of {words}, are analysed\n"
    found = json.loads(done.stdout)
    assert (found["device"], found["launches"], found["time_s"]) == (device, 2, pytest.approx(total_s))
    assert [each["device"] for each in found["gpus"]] == list(range(len(times)))
    assert [each["kernel_time_s"] for each in found["gpus"]] == pytest.approx([1e-6 * sum(pair) for pair in times])
    assert found["step"]["kernel_time_s"] == pytest.approx(total_s)
    assert sum(row["time_s"] for row in found["kernels"]) == pytest.approx(total_s)
    assert sum(row["share_percent"] for row in found["kernels"]) == pytest.approx(100)
    said = " ".join(script("profile", path).stdout.split())  # lines are wrapped
    assert re.match(rf"2 launches of 2 kernels take [\d.]+ µs on device {device} \(.*, all that it ran\) ", said)
    assert f"Shown is {words}; kernels of {others}. kernel launches " in said
    assert f"launches of 2 kernels on {len(times)} GPUs" in run("inspect", path)


def test_profile_of_a_timeline_and_a_baseline_says_what_changed(tmp_path):
    for name, gemm in (("before.json", 30.0), ("after.json", 12.0)):
        recording = Recording()
        for _ in range(4):
            recording.kernel("gemm_a", gemm)
            recording.kernel("rms_norm", 4.0)
        recording.write(tmp_path, name)
    files = (tmp_path / "after.json", "--baseline", tmp_path / "before.json")
    found = json.loads(run("profile", *files, "--json"))
    assert found["before_time_s"] - found["after_time_s"] == pytest.approx(18e-6)
    assert found["time_is"] == "from one step to the next"
    (gemm, *_) = found["kernels"]
    assert (gemm["kernel"], gemm["before_launches"], gemm["after_launches"]) == ("gemm_a", 1, 1)
    assert (gemm["before_s"], gemm["after_s"]) == pytest.approx((30e-6, 12e-6))
    said = run("profile", *files)
    assert "A step takes 18.0 µs instead of 36.0 µs (−50 %): GEMMs −18.0 µs" in said
    assert re.search(r"gemm_a +gemm +1 × 30 +1 × 12 +-0.018", said), said


def test_profile_of_standard_input():
    done = CliRunner().invoke(cli.commands, ["profile", "-", "--json"], input=ncu(["a", "b"]))
    assert done.exit_code == 0 and len(json.loads(done.stdout)["kernels"]) == 2
    with pytest.raises(InputError, match=r"^standard input: the file is empty"):
        CliRunner().invoke(cli.commands, ["profile", "-"], input="", catch_exceptions=False)


def test_profile_names_the_metrics_where_it_can_show_none():
    names = [f"l1tex__t_{what}.{how}" for what in ("requests", "sectors") for how in ("min", "sum")]
    lines = "".join(f"    {name:<24}     request            7\n" for name in names)
    printed = f"""==PROF== Connected to process 3
  copy(const float *) (3, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 7.0
    Section: Command line profiler metrics
    ------------------------ ----------- ------------
    Metric Name              Metric Unit Metric Value
    ------------------------ ----------- ------------
{lines}    ------------------------ ----------- ------------
"""
    done = CliRunner().invoke(cli.commands, ["profile", "-"], input=printed)
    expected = "nothing that is shown here: l1tex__t_requests, l1tex__t_sectors; ncu --set full records times"
    assert expected in " ".join(done.output.split()) and "what would collect it" not in done.output


def test_folders_that_cannot_be_and_a_pipe_are_one_line(tmp_path, monkeypatch):
    (tmp_path / "r.csv").write_text(ncu(["k"]))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"no file can be made here \(Not a directory\); give a folder"):
        run("profile", tmp_path / "r.csv", "--save", tmp_path / "r.csv/x")
    with pytest.raises(InputError, match=r"no file can be made here \(Not a directory\); give a folder"):
        run("predict", "Qwen3-8B", "--gpu", "h200-sxm", "--batch", "1", "--save", tmp_path / "r.csv/x")
    with pytest.raises(InputError, match="it is neither a file nor a folder"):
        run("inspect", tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    for _ in range(1000):
        os.mkdir("a")
        os.chdir("a")
    with pytest.raises(InputError, match="its folders are nested too deep"):
        run("inspect", tmp_path / "a")
    # pytest could not remove them.
    for _ in range(1000):
        os.chdir("..")
        os.rmdir("a")


def test_profile_saves_the_case(tmp_path):
    (tmp_path / "r.csv").write_text(ncu(["<b>k</b>"]))
    run("profile", tmp_path / "r.csv", "--save", tmp_path / "out")
    for name in (
        *("data.parquet", "summary.json", "provenance.json", "table.csv"),
        *("figure.png", "figure_time.pdf", "tensor.csv"),
    ):
        assert (tmp_path / "out" / name).stat().st_size


# gpus, new-dataset, new-study


def test_gpus():
    found = {gpu["name"]: gpu for gpu in json.loads(run("gpus", "--json"))}
    assert found["h100-sxm"]["dram_bytes_per_s"] == 3.35e12 and found["v100-pcie"]["bf16_flop_per_s"] is None
    assert "h100-sxm" in run("gpus")


def test_new_dataset_is_valid_and_needs_no_more(tmp_path):
    folder = tmp_path / "mine"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/r.csv").write_text(ncu(["k"]))
    (folder / "r.csv").write_text(ncu(["k"]))
    (folder / "run-3.1-8B.csv").write_text(ncu(["k"]))
    (folder / "gemm.csv").write_text("gemm_dtype,m,n,k,latency\nfp16,1,1,1,1\n")
    (folder / "notes.txt").write_text("hello")
    (folder / "model.json").write_text(LLAMA)
    (folder / "waits.csv").write_text("workload,probe,original_us,ncu_us,neutrino_us\na,b,1,2,3\n")
    run("new-dataset", folder, "--gpu", "l40s")
    dataset = Dataset.load(folder / "dataset.yaml")
    assert dataset.case("kernel_profile", "r").inputs == {"report": "deep/r.csv"}
    assert dataset.case("kernel_profile", "r_2").inputs == {"report": "r.csv"}
    assert dataset.case("kernel_profile", "run_3_1_8B").inputs == {"report": "run-3.1-8B.csv"}
    assert dataset.case("kernel_time", "gemm").inputs["gpu"] == "l40s"
    assert dataset.case("kernel_breakdown", "model").inputs["hardware"] == ["l40s"]
    # A decode step needs room for one more token.
    assert dataset.case("kernel_breakdown", "model").inputs["phases"]["decode"]["context"] == 511
    assert dataset.case("exposed_latency", "waits").inputs == {"table": "waits.csv"}
    with pytest.raises(InputError, match="it is there already"):
        run("new-dataset", folder)


def test_new_dataset_says_why_a_file_is_left_out(tmp_path):
    cut = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0'
    files = {"r.csv": ncu(["k"]), "header.csv": NCU + "\n", "notes.txt": "hello", "cut.json": cut}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    done = script("new-dataset", tmp_path)
    assert done.stderr.splitlines() == [
        "look at cut.json: the file is truncated: it does not end as JSON",
        "left out header.csv: Nsight Compute (the table has a header but no row with a metric; check that metrics or "
        "sections were selected, and profile again)",
        "left out notes.txt: unknown",
        WRITE,
    ]


def test_new_dataset_says_what_is_next(tmp_path):
    folder = tmp_path / "traces/mine"
    folder.mkdir(parents=True)
    (folder / "r.csv").write_text(ncu(["k"]))
    said = script("new-dataset", folder).stderr
    next_line = "next, for example: snakemake --cores 4 results/mine/kernel_profile/r/notebook.html"
    assert said.splitlines() == [WRITE, next_line]


def test_new_dataset_says_for_which_gpu_a_model_is_predicted(tmp_path):
    (tmp_path / "model.json").write_text(LLAMA)
    done = script("new-dataset", tmp_path)
    assert done.stderr.splitlines() == ["look at model.json: predicted for h100-sxm, no GPU is named (--gpu)", WRITE]
    (tmp_path / "dataset.yaml").unlink()
    assert script("new-dataset", tmp_path, "--gpu", "l40s").stderr.splitlines() == [WRITE]


def test_new_dataset_says_which_unit_it_takes_and_what_it_needs(tmp_path):
    (tmp_path / "gemm.csv").write_text("gemm_dtype,m,n,k,latency\nfp16,1,1,1,1\n")
    refused = script("new-dataset", tmp_path).stderr.splitlines()
    assert refused[0] == "left out gemm.csv of kernel_time: say on which GPU it was recorded (--gpu)"
    assert refused[1].endswith("no case can be made of its files; see above, and gpuledger inspect FOLDER")
    said = script("new-dataset", tmp_path, "--gpu", "l40s").stderr.splitlines()
    assert said == ["look at gemm.csv: its times are taken to be in ms; correct unit: if they are not", WRITE]


def test_new_dataset_leaves_to_the_user_what_no_file_says(tmp_path):
    """A result of vLLM does not say over how many GPUs the model was split; that costs no other file its case."""
    folder = tmp_path / "traces/mine"
    (folder / "deep").mkdir(parents=True)
    served = {"backend": "vllm", "model_id": "Qwen/Qwen3-8B", "request_rate": "inf", "max_concurrency": 8}
    served |= {"completed": 8, "total_input_tokens": 800, "total_output_tokens": 80, "request_throughput": 1.0}
    served |= {"mean_ttft_ms": 50.0, "mean_tpot_ms": 9.0, "median_tpot_ms": 9.0, "duration": 8.0}
    (folder / "deep/vllm.json").write_text(json.dumps(served))
    done = script("new-dataset", folder, "--gpu", "l40s")
    key = "studies.serving_time.vllm.results.0.parallel.tensor"
    assert done.returncode == 0 and done.stderr.splitlines() == [
        WRITE,
        f"fill in {key}: the file does not say it",
        "next, when that is filled in: snakemake --cores 4 results/mine/serving_time/vllm/notebook.html",
    ]
    assert "          tensor: null  # fill it in\n" in (folder / "dataset.yaml").read_text()
    problem = inspect(folder, status=1)[0]["problems"][0]
    assert problem == f"key {key}: there is no value (null); fill it in: number of devices"
    (folder / "dataset.yaml").unlink()
    (folder / "whole.json").write_text(json.dumps(served | {"tensor_parallel_size": 2}))
    (folder / "z.csv").write_text(ncu(["k"]))
    (folder / "too_many.json").write_text(json.dumps(served | {"tensor_parallel_size": 4096}))
    lines = script("new-dataset", folder, "--gpu", "l40s").stderr.splitlines()
    assert lines[0].startswith("left out too_many.json of serving_time: key results.0.parallel.tensor: 4096 is greater")
    assert lines[-1].startswith("next, for example: ") and len(lines) == 4
    text = (folder / "dataset.yaml").read_text()
    (folder / "dataset.yaml").write_text(text.replace("tensor: null  # fill it in", "tensor: 4"))
    dataset = Dataset.load(folder / "dataset.yaml")
    assert {name: dataset.case("serving_time", name).inputs for _, name in dataset.cases("serving_time")} == {
        name: {
            "gpu": "l40s",
            "results": [{"files": file, "engine": "vllm", "model": "Qwen/Qwen3-8B", "parallel": {"tensor": degree}}],
        }
        for name, file, degree in (("vllm", "deep/vllm.json", 4), ("whole", "whole.json", 2))
    }
    assert dataset.case("kernel_profile", "z").inputs == {"report": "z.csv"}


def test_new_dataset_makes_one_case_of_a_folder_of_results_of_one_server(tmp_path):
    served = {"backend": "vllm", "model_id": "Qwen/Qwen3-8B", "request_rate": "inf", "duration": 8.0, "completed": 8}
    served |= {"total_input_tokens": 800, "total_output_tokens": 80, "request_throughput": 1.0, "mean_ttft_ms": 50.0}
    served |= {"mean_tpot_ms": 9.0, "median_tpot_ms": 9.0}
    for file, gpus, in_flight in (("one/a", 1, 8), ("one/b", 1, 16), ("two/a", 1, 8), ("two/b", 2, 8), ("c", 1, 8)):
        (place := tmp_path / f"{file}.json").parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(served | {"tensor_parallel_size": gpus, "max_concurrency": in_flight}))
    run("new-dataset", tmp_path, "--gpu", "l40s")
    dataset = Dataset.load(tmp_path / "dataset.yaml")
    cases = {name: dataset.case("serving_time", name).inputs["results"] for _, name in dataset.cases("serving_time")}
    assert {name: [entry["files"] for entry in entries] for name, entries in cases.items()} == {
        "one": ["one/"],
        "a_2": ["two/a.json"],
        "b_2": ["two/b.json"],
        "c": ["c.json"],
    }


def test_new_dataset_takes_the_gpu_that_a_served_run_names(tmp_path):
    row = {"hw": "h200", "tp": 8, "conc": 64, "model": "deepseek-ai/DeepSeek-R1-0528", "framework": "sglang"}
    row |= {"precision": "fp8", "isl": 1024, "osl": 1024, "tput_per_gpu": 300.0, "median_tpot": 0.03, "ep": 1}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    run("new-dataset", tmp_path)
    inputs = Dataset.load(tmp_path / "dataset.yaml").case("serving_time", "rows").inputs
    assert inputs == {"gpu": "h200", "results": [{"files": "rows.json"}]}


def test_new_dataset_names_the_gpu_that_all_its_files_name(tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 7, "args": {"device": 0}}
    trace = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA L4"}], "traceEvents": [kernel]}
    (tmp_path / "step.json").write_text(json.dumps(trace))
    run("new-dataset", tmp_path)
    assert Dataset.load(tmp_path / "dataset.yaml").label == "recorded on NVIDIA L4"
    (tmp_path / "dataset.yaml").unlink()
    (tmp_path / "r.csv").write_text(ncu(["k"]))  # which may be of another
    said = script("new-dataset", tmp_path).stderr.splitlines()
    assert said[0] == "some files name the GPU NVIDIA L4: give --gpu if all were recorded on it"
    assert Dataset.load(tmp_path / "dataset.yaml").label == "recorded"


def test_inspect_says_why_a_model_cannot_be_predicted(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "frobnicator", "hidden_size": 8}')
    found = inspect(tmp_path / "config.json", status=1)[0]
    assert found["studies"] == [] and found["problems"][0].startswith("key model_type: unknown architecture")


def test_new_dataset_leaves_out_files_with_names_that_no_path_can_have(tmp_path):
    names = [b"a{b}.csv", b"good.csv", b"in\xff.csv", b"new\nline.csv", b"s\\t.csv", b"x" * 201 + b".csv"]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_text(ncu(["k"]))
    done = script("new-dataset", tmp_path)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) == 6
    assert lines[0].startswith("left out 'a{b}.csv': a dataset.yaml cannot hold this path; rename it: at most 200")
    assert all(line.endswith("without { } \\ and control characters") for line in lines[:-1])
    assert Dataset.load(tmp_path / "dataset.yaml").cases("kernel_profile") == [("kernel_profile", "good")]


def test_new_dataset_of_this_folder_leaves_no_draft_that_is_not_valid(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    (tmp_path / "mine/a{b}.csv").write_text(ncu(["k"]))
    with pytest.raises(InputError, match="no case can be made of its files"):
        run("new-dataset", ".")
    (tmp_path / "mine/a{b}.csv").rename(f"{'x' * 190}.csv")
    assert run("new-dataset", ".") == "dataset.yaml\n"
    assert inspect(".")[0]["problems"] == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("gem",), "gpuledger: no such command 'gem', did you mean 'gemm'; see gpuledger --help"),
        (
            ("predict", "--tpp"),
            "gpuledger predict: no such option '--tpp', did you mean one of: '--ep', '--pp', '--tp'; "
            "see gpuledger predict --help",
        ),
        (("gemm", "1"), "gpuledger gemm: missing argument 'N'; see gpuledger gemm --help"),
        (("profile", "--x"), "gpuledger profile: no such option '--x'; see gpuledger profile --help"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, line):
    done = script(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{line}\n")


def test_new_study_refuses_bad_names():
    for name in ("Bad-Name", "../x", "9lives"):
        with pytest.raises(InputError, match="cannot name a study"):
            run("new-study", name)
    with pytest.raises(InputError, match="it is there already"):
        run("new-study", "kernel_profile")


# The script itself


def process(*arguments):
    """Run the script in a process of its own; test_wheel runs most commands so."""
    command = [sys.executable, "-m", "gpuledger.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_bad_input_is_one_line_and_status_2(tmp_path):
    done = process("profile", str(tmp_path / "absent.csv"))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1 and "absent.csv" in done.stderr
    assert process("profile").returncode == 2


def test_help_has_examples_and_starts_light():
    assert "Example" in process("--help").stdout
    for name in cli.commands.commands:
        assert f"Example: gpuledger {name}" in run(name, "--help")
    loaded = "import sys, gpuledger.cli.__main__; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pandas", "numpy", "matplotlib", "pyarrow", "yaml"} & set(modules)


def test_record_leaves_its_words_to_the_recorder(capsys):
    run("record", "--dry-run", "--", "python", "train.py", "--", "x")
    assert "counters" in run("record", "--dry-run")
    run("record", "--for", "nothing", "--", "python", status=2)


def test_inspect_of_a_dataset_says_what_is_missing_and_what_nobody_names(tmp_path):
    folder = tmp_path / "mine"
    cases = {"a": {"table": "deep/a.csv"}, "b": {"table": "b.csv"}}
    content = {"title": "t", "kind": "downloaded", "source": "s", "license": "CC0-1.0"}
    content |= {"download": [{"url": "https://example.org/trace.zip", "sha256": None, "bytes": None, "unpack": "zip"}]}
    (folder / "deep").mkdir(parents=True)
    (folder / "dataset.yaml").write_text(yaml.safe_dump({**content, "studies": {"kernel_overhead": cases}}))
    (before,) = json.loads(run("inspect", folder, "--json"))
    assert before["problems"] == []
    (folder / "deep/a.csv").touch()
    (folder / "deep/c.csv").touch()
    (folder / "README").touch()
    (after,) = json.loads(run("inspect", folder, "--json", status=1))
    assert after["problems"] == ["kernel_overhead/b: b.csv is missing", "no case names README, deep/c.csv"]
    assert "1 of 2 cases have all their files" in run("inspect", folder, status=1)


def test_inspect_names_an_unpacked_archive_whose_files_lie_one_folder_too_deep(tmp_path):
    (tmp_path / "trace/dmat").mkdir(parents=True)
    shutil.copy(ROOT / "traces/neutrino-osdi25/dataset.yaml", tmp_path)
    (tmp_path / "trace/dmat/fig1.dmat").touch()
    (found,) = json.loads(run("inspect", tmp_path, "--json", status=1))
    assert "dmat/fig1: dmat/fig1.dmat is missing" in found["problems"]
    assert found["problems"][-1] == "no case names trace/"


def test_inspect_does_not_miss_a_package_of_which_nothing_was_fetched_yet(tmp_path):
    shutil.copytree(ROOT / "traces/aiconfigurator/recorded", tmp_path / "recorded")
    shutil.copy(ROOT / "traces/aiconfigurator/dataset.yaml", tmp_path)
    (before,) = json.loads(run("inspect", tmp_path, "--json"))
    assert before["problems"] == []
    assert "0 of " in (said := run("inspect", tmp_path)) and "fetched or made when a result is asked for" in said
    table = tmp_path / "aiconfigurator_core/systems/data/h100_sxm/comm/nccl/2.29.2/nccl_perf.parquet"
    table.parent.mkdir(parents=True)
    table.touch()
    (after,) = json.loads(run("inspect", tmp_path, "--json", status=1))
    assert not any(problem.startswith("kernel_time/nccl_h100:") for problem in after["problems"])
    assert any(problem.startswith("kernel_time/moe_h100_trtllm:") for problem in after["problems"])
