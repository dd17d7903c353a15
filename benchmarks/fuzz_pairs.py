"""What `fuzz.py` damages beside `fuzz_corpus`: one of two files, what binary files hold, declarations."""

import gzip
import json
import pickle
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError
from gpuledger.files import ROOT
from gpuledger.ledger import claims
from gpuledger.ledger.study import read_study
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.timelines import read_timeline
from gpuledger.studies.flop_reconciliation.launches import read_recording
from gpuledger.studies.kernel_breakdown.comparison import compare
from gpuledger.studies.kernel_breakdown.timeline.case import break_down
from gpuledger.studies.kernel_profile import kernel_table, profile
from gpuledger.studies.kernel_profile.tables import baseline_table, instruction_table, tensor_table
from gpuledger.studies.serving_time.prediction import predict_table
from gpuledger.studies.serving_time.results import runs_on, table_of

_EVENTS = """{"traceEvents": [
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9, "pid": 1, "tid": 1,
 "args": {"External id": 4, "Input Dims": [[8, 16], [16, 8]], "Input type": ["float", "float"]}},
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 30, "pid": 1, "tid": 1},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 2, "pid": 1, "tid": 1,
 "args": {"correlation": 3, "External id": 4}},
{"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_tn", "ts": 5, "dur": 7, "pid": 0, "tid": 7,
 "args": {"correlation": 3, "External id": 4, "device": 0, "stream": 7, "grid": [1, 1, 1], "block": [256, 1, 1]}},
{"ph": "X", "cat": "kernel", "name": "void relu<float>(float *)", "ts": 15, "dur": 7, "pid": 0, "tid": 7}]}"""
_SERVED = {
    **{"hw": "h100-nb", "conc": 8, "model": "openai/gpt-oss-120b", "framework": "vllm", "precision": "fp4", "tp": 4},
    **{"ep": 1, "dp_attention": "false", "spec_decoding": "none", "disagg": False, "isl": 1024, "osl": 1024},
    **{"metrics": {"median_ttft": 0.09, "median_tpot": 0.0056, "mean_tpot": 0.0057}},
}
#: The same of workers of two kinds.
_APART = {
    **{"disagg": True, "prefill_tp": 4, "prefill_num_workers": 3, "prefill_dp_attention": "true", "prefill_ep": 4},
    **{"decode_tp": 2, "decode_num_workers": 2, "decode_dp_attention": "false", "decode_ep": 2},
}
_HEADER = '"ID","Process ID","Kernel Name","Grid Size","Block Size","Metric Name","Metric Unit","Metric Value"\n'
_LAUNCHES = _HEADER + "".join(
    f'"0","1","ampere_sgemm_128x64_tn","(4, 1, 1)","(128, 1, 1)","{name}","{unit}","{value}"\n'
    for name, unit, value in (
        ("gpu__time_duration.sum", "ns", 3456),
        ("dram__bytes.sum", "byte", 65536),
        ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", 0),
        ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", 32768),
        ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", 4194304),
    )
)
_CLAIMS = """gpu: [NVIDIA A100]
claims:
- {id: a, case: c, quantity: q, value: 1.25, unit: s, decimals: 2, tolerance: 0.1, source: 'S., Table 1'}
- {id: b, case: c, quantity: r, value: 3, unit: '1', relation: at least, source: S, why: none}
"""


def pairs(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    """Yield the name of a reader, a file that it reads, and the reader."""
    (launches := folder / "launches.csv").write_text(_LAUNCHES, "utf-8")
    (page := folder / "page.csv").write_text(_LAUNCHES, "utf-8")
    yield "analysis of ncu, with a baseline", launches, lambda path: _tables(profile(page, path))
    yield "analysis of ncu, against a baseline", launches, lambda path: _tables(profile(path, page))
    (events := folder / "before.json").write_text(_EVENTS, "utf-8")
    yield "analysis of kineto, with a baseline", events, partial(compare, _kept(folder, _EVENTS))
    yield "analysis of kineto, broken down", events, lambda path: break_down(read_timeline(path))
    yield "kineto, in gzip", events, _compressed
    (row := folder / "row.json").write_text(json.dumps([_SERVED, _SERVED | _APART]), "utf-8")
    yield "analysis of InferenceX rows, predicted", row, _served
    yield "InferenceX rows, read", row, _runs
    yield "analysis of ncu, in a folder", launches, partial(_folder, _LAUNCHES)
    (published := folder / "published.yaml").write_text(_CLAIMS, "utf-8")
    yield "claims", published, _scorecard
    yield "study.yaml", ROOT / "src/gpuledger/studies/memory_usage/study.yaml", read_study


def values(folder: Path, binary: list[tuple[str, Path, Callable]]) -> Iterator[tuple[str, Path, Callable]]:
    """Yield what binary files hold, as JSON, and a reader of the binary file that is made of it.

    Damage to the file itself seldom leaves a file that its library opens.
    """
    for number, (name, path, read) in enumerate(binary):
        (own := folder / f"values{number}").mkdir()
        content = own / "content.json"
        load, write = HOLDS_VALUES[path.suffix]
        content.write_text(json.dumps(load(path)), "utf-8")
        yield f"{name}, its values", content, partial(_made_again, own / path.name, write, read)


def _made_again(binary: Path, write: Callable, read: Callable, content: Path) -> object:
    binary.unlink(missing_ok=True)
    try:
        write(json.loads(content.read_text("utf-8")), binary)
    except Exception as error:  # no reader of ours has seen it
        raise InputError(content, "", "cannot be made", "") from error
    return read(binary)


def _read_database(path: Path) -> dict:
    with closing(sqlite3.connect(path)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
        return {name: pd.read_sql_query(f"SELECT * FROM {name}", database).to_dict("list") for name in names}


def _write_database(content: dict, path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        for name, columns in content.items():
            database.execute(f'CREATE TABLE "{name}" ({", ".join(map(json.dumps, columns))})')
            rows = list(zip(*columns.values(), strict=False))
            database.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})', rows)
        database.commit()


#: How what a binary file holds is read as plain values, and written back.
HOLDS_VALUES = {
    ".sqlite": (_read_database, _write_database),
    ".db": (_read_database, _write_database),
    ".rpd": (_read_database, _write_database),
    ".parquet": (
        lambda path: pd.read_parquet(path).to_dict("list"),
        lambda content, path: pd.DataFrame(content).to_parquet(path),
    ),
    ".xlsx": (
        lambda path: json.loads(pd.read_excel(path).to_json(orient="columns")),
        lambda content, path: pd.DataFrame(content).to_excel(path, index=False),
    ),
    ".pkl": (
        lambda path: json.loads(pd.Series(pd.read_pickle(path)).map(list).to_json()),
        lambda content, path: path.write_bytes(pickle.dumps(content)),
    ),
}


def _kept(folder: Path, text: str) -> Path:
    (kept := folder / "kept.json").write_text(text, "utf-8")
    return kept


def _tables(result: object) -> object:
    return [table(result.data) for table in (kernel_table, baseline_table, instruction_table, tensor_table)]


def _compressed(path: Path) -> object:
    (packed := path.with_suffix(".json.gz")).write_bytes(gzip.compress(path.read_bytes(), 1))
    return read_timeline(packed)


def _runs(path: Path) -> pd.DataFrame:
    gpu = find_gpu("h100-sxm")
    remedies = {"engine": "add --engine", "model": "add --model", "tensor": "add --tp"}
    return table_of(runs_on(gpu, path), {}, (path, ""), remedies)


def _served(path: Path) -> object:
    return predict_table(_runs(path), find_gpu("h100-sxm"), None, (path, ""))


def _folder(whole: str, path: Path) -> object:
    (runs := path.parent / "runs").mkdir(exist_ok=True)
    (runs / "a.csv").write_text(whole, "utf-8")
    shutil.copyfile(path, runs / "b.csv")
    return read_recording(runs)


def _scorecard(path: Path) -> object:
    content = claims.load(path)
    record = {"label": "l", "kind": "recorded", "inputs": [], "device": {"name": "NVIDIA A100"}, "title": "t"}
    summary = {"q": {"value": 1.5, "unit": "s"}, "r": {"value": 3, "unit": "1"}}
    outcome = claims.Outcome("d", "kernel_overhead", "c", summary, record)
    return claims.for_people(claims.scorecard({"kernel_overhead": content}, [outcome]))
