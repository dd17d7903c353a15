"""What `fuzz.py` damages: a small file of every format, and how it is read."""

import json
import shutil
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import fuzz_texts as texts
import numpy as np
import pandas as pd
from fuzz_pairs import HOLDS_VALUES, pairs, values
from fuzz_tables import tables, written

from gpuledger import schemas
from gpuledger.cli.recognise import recognise
from gpuledger.files import ROOT
from gpuledger.ledger.datasets import Dataset, Repository
from gpuledger.ledger.download.unpack import unpack_zip
from gpuledger.ledger.study import read_studies
from gpuledger.models.transformer import read_model
from gpuledger.models.transformer.configuration import MODELS
from gpuledger.readers import ncu, neutrino
from gpuledger.readers.gpus import TABLE, read_gpus
from gpuledger.readers.kernel_names import classify, extend_patterns
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable
from gpuledger.readers.ncu.quantities import launch_quantities
from gpuledger.readers.neutrino import event_log, kernel_info, probe, process_log, tensor_trace
from gpuledger.readers.neutrino.block_trace import read_blocks
from gpuledger.readers.served_results import read_served
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.readers.timelines import read_timeline
from gpuledger.record.recording import MANIFEST, Recording
from gpuledger.studies.dmat import open_accesses
from gpuledger.studies.flop_reconciliation.launches import read_shapes
from gpuledger.studies.warp_scheduling import load_plain
from gpuledger.studies.warp_scheduling.progress import read_pickled_progress, read_progress

sys.path.insert(0, str(ROOT / "tests/support"))
from served_runs import AIPERF, EVALSCOPE, GENAI_PERF, GUIDELLM, LLMPERF, ONE_BATCH, ONE_BATCH_SERVER, PRINTED

DATA = ROOT / "tests/data"


def corpus(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    """Yield a name (the parser, then what is damaged), a file that it reads, and how it is read."""
    yield from ((f"ncu, {path.name}", path, ncu.read) for path in sorted((DATA / "ncu").glob("*.csv")))
    yield "ncu, long_base.txt", DATA / "ncu/long_base.txt", ncu.read
    lines = (DATA / "ncu/long_base.txt").read_text().splitlines()
    divided = "".join(
        f"{line[at : at + 50]}\n" for line in texts.NCU_PAGE.split("\n") for at in range(0, len(line) or 1, 50)
    )
    yield "ncu, divided by a terminal", written(folder / "divided.txt", divided), ncu.read
    labelled = "".join(f"0: {line}\n" for line in lines)
    yield "ncu, by srun", written(folder / "srun.txt", labelled), ncu.read
    timed = labelled.replace("0: ", "2026-07-01T10:00:00.5Z [rank0]: ")
    yield "ncu, by a logger", written(folder / "timed.txt", timed), ncu.read
    rows = "k,gpu__time_duration.sum,12512\nk,dram__bytes.sum,1.5\nm,gpu__time_duration.sum,2512\n"
    unitless = written(folder / "unitless.csv", f"Kernel Name,Metric Name,Metric Value\n{rows}")
    yield "ncu, without units", unitless, lambda path: launch_quantities(ncu.read(path))
    yield "ncu, in parts", DATA / "ncu/raw.csv", lambda path: list(ncu.read_parts(path, values=1))
    logs = DATA / "neutrino"
    yield "kernel.info", logs / "kernel.info", kernel_info.read_kernel_info
    yield "event.log", logs / "main_event.log", event_log.read_event_log
    yield "process.log", logs / "process.log", process_log.read_process_log
    yield "tensor.trace", logs / "tensor.trace", tensor_trace.read_tensor_trace
    yield "probe", logs / "written.toml", probe.read_probe
    # A few rows: a data sheet of all takes long to read, and damage is in few of them anyway.
    sheet = TABLE.read_text("utf-8").splitlines(keepends=True)
    yield "data sheets", written(folder / "gpus.csv", "".join(sheet[:4])), read_gpus
    yield from _traces(folder)
    formats = [*_tables(folder), *_timelines(folder)]
    yield from formats
    yield from values(folder, [entry for entry in formats if entry[1].suffix in HOLDS_VALUES])
    # Plain, mixture of experts with latent attention, and with layers of two kinds.
    models = ("Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-20b")
    yield from ((f"config.json, {name}", MODELS / f"{name}.json", sizes_of) for name in models)
    yield "config.yaml", ROOT / "config/config.yaml", use_config
    state = '{"parts": {}, "left_out": {"x": "y"}, "points": {"a": {"key": "k", "sha256": "0", "about": {}}}}'
    yield "recording.json", written(folder / MANIFEST, state), resume
    yield from tables(folder)
    shapes = '{"Input": [[256, 1, 512]], "Weight": [[1536, 512]], "Bias": [[1536]]}'
    yield "shapes", written(folder / "shapes.json", f"[{shapes}, {shapes}]"), read_shapes
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.csv", "m,n\n" * 40)
        archive.writestr("c.csv", "m,n\n")
    yield "zip", folder / "a.zip", lambda path: unpack_zip(path, Path(tempfile.mkdtemp(dir=folder)))
    yield "inspected table", ROOT / "traces/published/kernel_overhead/table3.csv", recognise
    case = 'title: t\nkind: recorded\nsource: s\nlicense: l\nfiles: {"*.csv": {source: x}}\nstudies:\n'
    case += "  kernel_overhead: {a: {table: m.csv}}\n  dmat: {b: {trace: t.bin, tensors: [{name: q, pages: 2}]}}\n"
    yield "dataset.yaml", written(folder / "dataset.yaml", case), open_dataset
    patterns = "- {name: mine, regex: '^my_(a|b)+kernel', class: gemm, family: x}\n"
    yield "kernel patterns", written(folder / "patterns.yaml", patterns), use_patterns
    yield from pairs(folder)


def _traces(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    shape = {"version": "V3", "grid": (3, 1, 1), "block": (64, 1, 1)}
    blocks = np.ones((3, 2, 1), neutrino.records.BLOCK_SCHED)
    accesses = np.zeros((3, 64, 2), neutrino.DMAT_ACCESS)
    accesses["clock"], accesses["addr"] = np.arange(3 * 64 * 2).reshape(3, 64, 2), 0x7F0000000000
    clocks = np.zeros((3, 64, 4), neutrino.records.PROGRAM_PROGRESS)
    clocks["clock"] = 1 + np.arange(4)
    for name, level, records, read in (
        ("block trace", "warp", blocks, read_blocks),
        ("access trace", "thread", accesses, survey),
        ("branch trace", "thread", clocks, read_progress),
    ):
        path = folder / f"{name.replace(' ', '-')}.bin"
        neutrino.write_trace(path, sections=[(level, records)], **shape)
        yield name, path, read
    neutrino.write_dmat(folder / "a.dmat", [1, 1, 2], [65536, 131072, 65536], [3, 4, 5])
    yield ".dmat", folder / "a.dmat", neutrino.read_dmat


def _tables(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    yield "YAML", ROOT / "src/gpuledger/studies/kernel_overhead/study.yaml", schemas.load_yaml
    table = pd.DataFrame({"m": [1, 2, 3], "name": ["a", "b", "c"]})
    table.to_parquet(folder / "a.parquet")
    yield "Parquet", folder / "a.parquet", columns_of
    table.to_csv(folder / "m.csv", index=False)
    yield "CSV of numbers", folder / "m.csv", columns_of
    yield "CSV with a schema", folder / "m.csv", read_typed
    workbook = folder / "gpus.xlsx"
    pd.read_csv(folder / "gpus.csv").to_excel(workbook, index=False)
    yield "workbook", workbook, read_gpus
    # Damage inside of the archive, which a checksum would hide.
    with zipfile.ZipFile(workbook) as archive:
        sheet = written(folder / "sheet.xml", archive.read("xl/worksheets/sheet1.xml"))
        rest = {name: archive.read(name) for name in archive.namelist() if not name.endswith("sheet1.xml")}
    yield "workbook, its sheet", sheet, lambda path: read_gpus(_zipped(folder, path, rest))
    pd.to_pickle({"a": table["m"].to_numpy(), "b": [1, 2], "c": {3}}, folder / "a.pkl")
    yield "pickle", folder / "a.pkl", load_plain
    pd.to_pickle({"a": [1, 2, 3], "b": np.arange(1, 5)}, folder / "clocks.pkl")
    yield "pickle, of clocks", folder / "clocks.pkl", read_pickled_progress


def _timelines(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    yield "CSV report, nvprof", written(folder / "nvprof.csv", texts.NVPROF_CSV), read_timeline
    yield "printed report, nvprof sums", written(folder / "nvprof-sums.txt", texts.NVPROF_SUMS), read_timeline
    yield "printed report, nvprof trace", written(folder / "nvprof-trace.txt", texts.NVPROF_TRACE), read_timeline
    yield "printed report, nsys", written(folder / "nsys.txt", texts.NSYS_TEXT), read_timeline
    frame = "   Time (%)  Total Time (ns)  Instances       Name\n0      75.0             6000          3  k<int, 2>\n"
    frame += "1      25.0             2000          1        add\n"
    yield "printed report, data frame", written(folder / "frame.txt", frame), read_timeline
    yield "printed report, box of rocprof-compute", written(folder / "box.txt", texts.BOX), read_timeline
    with closing(sqlite3.connect(folder / "a.rpd")) as database:
        database.executescript(texts.RPD)
    yield "rpd", folder / "a.rpd", read_timeline
    yield "torch.profiler's table, printed", written(folder / "torch.txt", texts.TORCH_TABLE), read_timeline
    labelled = "".join(f"(Worker_TP0 pid=7) {line}\n" for line in texts.TORCH_TABLE.splitlines())
    yield "torch.profiler's table, of a worker", written(folder / "worker.log", labelled), read_timeline
    timed = labelled.replace("(Worker_TP0 pid=7) ", "\x1b[36m10:00:00 [rank0]:\x1b[0m ")
    yield "torch.profiler's table, by a logger", written(folder / "logger.log", timed), read_timeline
    saved = ',Name,Self CPU,CPU total,Self CUDA,# of Calls\n0,aten::mm,9us,9us,5ms,2\n1,"k<a, b>",0us,0us,5ms,2\n'
    yield "torch.profiler's table, saved", written(folder / "torch.csv", saved), read_timeline
    yield "trtllm-bench", written(folder / "report.json", texts.REPORT), read_served
    loads = {
        "AIPerf": AIPERF,
        "GenAI-Perf": GENAI_PERF,
        "GuideLLM": GUIDELLM,
        "LLMPerf": LLMPERF,
        "EvalScope": EVALSCOPE,
        "one batch": ONE_BATCH,
        "one batch of a server": ONE_BATCH_SERVER,
    }
    for name, entry in loads.items():
        yield name, written(folder / f"{name}.json", json.dumps(entry)), read_served
    yield "printed results, server benchmark", written(folder / "served.txt", PRINTED), read_served
    rows = "".join(f"| {name} | {value} |\n" for name, value in EVALSCOPE.items())
    yield "printed results, EvalScope", written(folder / "evalscope.txt", rows), read_served
    csv = "completed,total_input_tokens,total_output_tokens,max_concurrency,median_ttft_ms,median_tpot_ms\n"
    csv += "64,65536,8192,16.0,80.5,7.5\n64,65536,8192,,80.5,7.5\n"
    yield "table of runs", written(folder / "summary.csv", csv), read_served
    yield "printed results, SGLang batch", written(folder / "batch.txt", texts.BATCH), read_served
    yield "printed results, trtllm-bench", written(folder / "report.txt", texts.PRINTED_REPORT), read_served
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"grid": [1, 1, 1]}}'
    yield "kineto, plain", written(folder / "a.json", f'{{"traceEvents": [{", ".join([event] * 3)}]}}'), read_timeline
    session = '{"cat" : "Session","pid" :7,"tid" :7,"dur" :9,"ts" :1,"ph" : "X","name" :"model_run","args" : {}}'
    node = session.replace("Session", "Node").replace("model_run", "mm_kernel_time")
    launch = '{"op_name":"MatMul","stream":"7","grid_x":"8","grid_y":"1","grid_z":"1","block_x":"128"}'
    ran = session.replace("Session", "Kernel").replace("model_run", "k").replace("{}", launch)
    events = ",\n".join((session, node, ran, ran))
    yield "ONNX Runtime", written(folder / "onnx.json", f"[{events}]"), read_timeline
    yield "Paddle", written(folder / "a.paddle_trace.json", texts.PADDLE), read_timeline
    yield "autograd, operators", written(folder / "mm.json", texts.AUTOGRAD.replace("NAME", "mm")), read_timeline
    yield "autograd, kernels", written(folder / "gemm.json", texts.AUTOGRAD.replace("NAME", "gemm")), read_timeline
    with zipfile.ZipFile(folder / "trace.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.json", texts.XLA)
    yield "xla, zipped", folder / "trace.zip", read_timeline
    yield "xla, plain", written(folder / "host.trace.json", texts.XLA), read_timeline
    csv = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,Device,Strm,Name\n1,2,3,1,1,1,a,7,k\n5,2,4,1,1,1,a,7,k\n"
    rows = '[{"Start (ns)": 1, "Duration (ns)": 2, "GrdX": 1, "GrdY": 1, "GrdZ": 1, "Strm": 7, "Name": "k"},\n'
    rows += ' {"Start (ns)": 5, "Duration (ns)": 2.5, "GrdX": null, "GrdY": null, "Strm": 7, "Name": "b"}]'
    yield "CSV report, nsys as JSON", written(folder / "nsys.json", f"Processing [a.sqlite]...\n{rows}"), read_timeline
    yield "CSV report, nsys trace", written(folder / "nsys.csv", csv), read_timeline
    with closing(sqlite3.connect(folder / "a.sqlite")) as database:
        database.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT); INSERT INTO StringIds VALUES (1, 'k');"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
            "correlationId INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER,"
            "gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 5, 0, 7, 1, 1, 1, 1, 1, 1, 32, 1, 1, 16);"
        )
    shutil.copy(folder / "a.sqlite", folder / "processes.sqlite")
    with closing(sqlite3.connect(folder / "processes.sqlite")) as database:
        database.executescript(
            "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD globalPid INTEGER;"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL;"
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = (70 + rowid) << 24;"
            "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);"
            "INSERT INTO TARGET_INFO_GPU VALUES (0, 'A'), (1, 'B');"
            "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT);"
            "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 71, 'a'), (1, 0, 72, 'b');"
        )
    yield "nsys sqlite, of processes", folder / "processes.sqlite", read_timeline
    yield "nsys sqlite", folder / "a.sqlite", read_timeline
    csv = "Kind,Agent_Id,Stream_Id,Kernel_Name,Start_Timestamp,End_Timestamp,Workgroup_Size_X,Grid_Size_X\n"
    csv += 'KERNEL_DISPATCH,"Agent 4",1,"k<float, 1>",155187406124,155187406525,64,640\n' * 2
    yield "CSV report, rocprof trace", written(folder / "rocprof.csv", csv), read_timeline
    csv = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"k(int) [clone .kd]",2,300,150,100.0\n'
    yield "CSV report, rocprof sums", written(folder / "statistics.csv", csv), read_timeline
    with closing(sqlite3.connect(folder / "rocpd.db")) as database:
        database.executescript(
            "CREATE TABLE rocpd_info_kernel_symbol (id INTEGER, guid TEXT, kernel_name TEXT, display_name TEXT);"
            "INSERT INTO rocpd_info_kernel_symbol VALUES (7, 'a', 'k', NULL);"
            "CREATE TABLE rocpd_kernel_dispatch (id INTEGER, guid TEXT, agent_id INTEGER, kernel_id INTEGER, stream_id"
            " INTEGER, start BIGINT, end BIGINT, workgroup_size_x INTEGER, grid_size_x INTEGER, event_id INTEGER);"
            "INSERT INTO rocpd_kernel_dispatch VALUES (1, 'a', 4, 7, 2, 1000, 3500, 64, 640, NULL);"
        )
    yield "rocpd", folder / "rocpd.db", read_timeline
    frame = '{"frame": {"name": "k", "type": "function"}, "metrics": {"time (ns)": 5, "count": 1, "device_id": "0"}}'
    tree = f'[{{"frame": {{"name": "ROOT"}}, "metrics": {{}}, "children": [{frame}]}}, {{"CUDA": {{"0": {{}}}}}}]'
    yield "proton", written(folder / "a.hatchet", tree), read_timeline
    kernel = '{"args":{"call_stack":["ROOT","step 1","k"],"metrics":{"bytes":8}},"cat":"kernel","ph":"X","name":"k",'
    stream = f'{{"displayTimeUnit":"us","traceEvents":[{kernel}"ts":1.5,"dur":2.5,"tid":7}}]}}\n'
    yield "trace of proton", written(folder / "a.chrome_trace", 2 * stream), read_timeline
    csv = "NVTX Range,NVTX Inst,Kern Inst,Total Time (ns),Kernel Name\nstep,2,4,80,gemm\n,0,1,9,add\n"
    yield "CSV report, nsys ranges", written(folder / "ranges.csv", csv), read_timeline
    csv = "DevId,Count,QCount,TAvg (ns),KAvg (ns),Kernel Name\n0,4,3,90.5,20.5,gemm\n0,1,1,9.0,8.0,add\n"
    yield "CSV report, nsys launches", written(folder / "executed.csv", csv), read_timeline


def _zipped(folder: Path, sheet: Path, rest: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "zipped.xlsx", "w") as archive:
        for name, content in (rest | {"xl/worksheets/sheet1.xml": sheet.read_bytes()}).items():
            archive.writestr(name, content)
    return folder / "zipped.xlsx"


def columns_of(path: Path) -> object:
    return MeasuredTable(path, ["m"]).whole_numbers("m")


def read_typed(path: Path) -> object:
    return read_csv(path, [Column("m", "integer", minimum=0), Column("name")], key=["m"])


def survey(path: Path) -> object:
    return open_accesses(path, threads=1).survey()


def open_dataset(path: Path) -> object:
    dataset = Dataset.load(path)
    return [dataset.case(*case).paths() for case in dataset.cases() if case[0] in read_studies()]


def sizes_of(path: Path) -> object:
    model = read_model(path)
    return model.parameters, model.active_parameters, model.weight_bytes(), model.kv_bytes(2**17)


def use_config(path: Path) -> object:
    config = schemas.load_yaml(path)
    schemas.check(config, schemas.load_yaml(ROOT / "workflow/schemas/config.schema.yaml"), path)
    repository = Repository(ROOT, config)
    repository.check_config()
    return [repository.case(*name.split("/")) for name in config.get("overrides", {})]


def resume(path: Path) -> object:
    recording = Recording(path.parent)
    return [recording.is_made(name, "k") for name in ("a", "b")], list(recording.left_out.items())


def use_patterns(path: Path) -> object:
    content = schemas.load_yaml(path)
    schema = read_studies()["metric_sweep"].case["properties"]["kernel_patterns"]
    schemas.check(content, schema, path)
    return classify(["my_" + "a" * 30 + "x", "my_abkernel"], extend_patterns(content, file=path))
