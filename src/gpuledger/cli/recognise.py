"""Recognise files and folders: what they are, what is in them, what is wrong, and which studies can use them.

Large files are judged by their beginning, so that the answer comes at once.
"""

import codecs
import gzip
import json
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

from gpuledger.cli import probe_files, timeline_files
from gpuledger.cli.found import Found
from gpuledger.cli.tables import find_table, nearly_a_table
from gpuledger.cli.unread import OTHER, explain
from gpuledger.errors import InputError, InputWarning

HEAD_BYTES = 1 << 16
#: Formats that say nothing of what is inside.
UNREAD = ("unknown", "JSON", "JSON, compressed", "SQLite", "Parquet")
MOST_VALUES = 1 << 18  # of a report of Nsight Compute
MOST_FILES = 2000
_NCU = re.compile(r"Kernel Name|Metric Name|==PROF==|==ERROR==|==WARNING==")
#: The line above the launches in text that ncu printed.
_NCU_TEXT = re.compile(rb"^\[\d+\] \S+@\S+\s*$|^ +Section: ", re.MULTILINE)
#: Headings of text that nsys stats printed.
_NSYS_TEXT = re.compile(r"^ ?\*\* .+ \(\w+\):\s*$", re.MULTILINE)
#: Results of a benchmark of a server: how it was driven, or what came of it.
_SERVED = re.compile(
    rb'\A[\xef\xbb\xbf\s]*\[?\s*\{(?:(?=[\s\S]*"request_rate"\s*:)(?=[\s\S]*"max_concurrency"\s*:)'
    rb'|(?=[^{}]*"(?:request|output)_throughput")(?=[^{}]*"mean_(?:ttft|tpot)_ms")'
    rb'|(?=[^{}]*"(?:hw|hardware)"\s*:)(?=[^{}]*"conc"\s*:)'
    rb'|(?=[\s\S]*"(?:request_throughput_req_s|inter_token_latency_ms|results_ttft_s_mean|prefill_throughput|last_ttft'
    rb'|Average time to first token \(s\))"\s*:)'
    rb'|(?=[\s\S]*"request_throughput"\s*:\s*\{))'
)


def recognise(path: Path) -> list[Found]:
    """Recognise a file, or a folder with all that is in it."""
    try:
        if path.is_dir():
            return list(_folder(path))
        if not path.exists():
            raise InputError(path, "", "there is no such file or folder", "correct the path")
        if not path.is_file():
            # A pipe without a writer would be waited for.
            raise InputError(path, "", "it is neither a file nor a folder", "give one of these")
        return [_dataset(path.parent, path) if path.name == "dataset.yaml" else _file(path)]
    except RecursionError:
        raise InputError(path, "", "its folders are nested too deep", "give the one that holds the files") from None
    except OSError as error:
        raise InputError(path, "", error.strerror or str(error), "check the path and the permissions") from error


def _folder(path: Path) -> Iterator[Found]:
    if (path / "dataset.yaml").is_file():
        yield _dataset(path, path)
        return
    if (path / "event.log").is_file() or (path / "kernel").is_dir() or list((path / "result").glob("*.bin"))[:1]:
        yield _trace_directory(path)
        return
    seen = 0
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _folder(entry)
        elif entry.is_file():
            yield _file(entry)
        seen += 1
        if seen == MOST_FILES:
            yield Found(path, "folder", f"more than {MOST_FILES} entries", ["only the first ones were looked at"])
            return


def _file(path: Path) -> Found:
    found = Found(path)
    with path.open("rb") as handle:
        head = handle.read(HEAD_BYTES)
    if not head:
        found.format, found.problems = "empty file", ["the file is empty"]
        return found
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InputWarning)
        try:
            _look(found, head)
        except InputError as error:
            found.problems.append(_said(error))
    if not found.cases and not found.problems and found.format in UNREAD:
        found.format, problem = explain(found.path.name, head.decode("utf-8", "replace")) or (found.format, OTHER)
        found.problems.append(problem)
    found.problems += [str(warning.message) for warning in caught if issubclass(warning.category, InputWarning)]
    return found


def _said(error: InputError) -> str:
    """Return what an error says, without the file, which is named beside it."""
    said = f"{error.problem}; {error.remedy}"
    return f"{error.place}: {said}" if error.place else said


def _look(found: Found, head: bytes) -> None:
    from gpuledger.readers.colours import without_colours
    from gpuledger.readers.timelines import JSON
    from gpuledger.readers.timelines.zipped import MAGIC

    name = found.path.name
    if head.startswith(b"PAR1"):
        _parquet(found)
    elif head.startswith(b"SQLite format 3\0"):
        timeline_files.read_database(found)
    elif name in probe_files.PARTS:
        probe_files.part_of_trace(found)
    elif name.endswith(".ncu-rep"):
        _ncu(found)
    elif name.endswith((".nsys-rep", ".qdrep")):
        timeline_files.set_timeline(found, "Nsight Systems report")
        if not shutil.which("nsys"):
            found.problems.append("reading it needs nsys; or export it: nsys export --type sqlite REPORT")
    elif name.endswith(".dmat"):
        probe_files.dmat(found, head)
    elif name.endswith(".bin"):
        probe_files.trace(found)
    elif name.endswith((".xlsx", ".xlsm")):
        _data_sheets(found)
    elif head.startswith(b"\x1f\x8b"):
        _gzip(found)
    elif head.startswith(MAGIC):
        _zip(found)
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        _utf_16(found, head.decode("utf-16", "replace"))
    elif JSON.match(head) and not _NCU_TEXT.search(head):
        _json(found, head)
    else:
        _text(found, without_colours(head))


def _text(found: Found, head: bytes) -> None:
    from gpuledger.readers.kernel_tables.attention_log import is_attention_log
    from gpuledger.readers.kernel_tables.cutlass import COLUMNS
    from gpuledger.readers.kernel_tables.cutlass_log import is_log
    from gpuledger.readers.kernel_tables.deepgemm_log import is_deepgemm
    from gpuledger.readers.kernel_tables.mamf import is_mamf
    from gpuledger.readers.printed_runs import is_printed
    from gpuledger.readers.served_results import COLUMNS as SERVED
    from gpuledger.readers.served_results import LINE
    from gpuledger.readers.timelines.reports import find_report

    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    first = text.partition("\n")[0].strip()
    columns = {cell.strip().strip('"') for cell in first.split(",")}
    title, cases = find_table(columns, found.path.name)

    def is_known(sign: str) -> bool:
        return bool(find_table(set(first.split(sign)), "")[1] or find_report(first.replace(sign, ",")))

    if cases:
        found.format, found.content, found.cases = title, f"{len(columns)} columns, {found.size}", cases
    elif {"name", "sms"} <= columns:
        _data_sheets(found)
    elif title := find_report(text):
        timeline_files.read_whole(found, title)
    elif is_log(text):
        # The columns are those of its CSV.
        found.format, found.cases = find_table(COLUMNS, found.path.name)
        found.format, found.content = found.format.replace("table", "log", 1), found.size
    elif is_mamf(text):
        found.format, found.content = "log of mamf-finder.py", found.size
        found.cases = {"kernel_time": {"measurements": found.path.name, "gpu": None, "unit": "TFLOP/s"}}
    elif is_deepgemm(text):
        found.format, found.content = "log of DeepGEMM's tests", found.size
        found.cases["kernel_time"] = {"measurements": found.path.name, "gpu": None, "unit": "us"}
    elif is_attention_log(text):
        found.format, found.content = "log of a benchmark of attention", found.size
        found.cases["kernel_time"] = {"attention_runs": found.path.name, "gpu": None}
    elif explained := explain(found.path.name, text):
        found.format, problem = explained
        found.problems.append(problem)
    elif _NCU.search(text) or _NCU_TEXT.search(head):
        _ncu(found)
    elif is_printed(text) or columns >= SERVED or LINE.search(text):
        _served(found)
    elif _NSYS_TEXT.search(text):
        found.format = "text of nsys stats"
        found.problems.append("it has no table of kernels: nsys stats --report cuda_gpu_trace --format csv REPORT")
    elif near := nearly_a_table(columns):
        found.problems.append(f"nothing here reads this table; {near}")
    elif sign := next((sign for sign in ";\t" if is_known(sign) or nearly_a_table(first.split(sign))), ""):
        near = "" if is_known(sign) else f"; {nearly_a_table(first.split(sign))}"
        problem = f"its cells are separated by {sign!r}; separate them by commas, with a point for decimals{near}"
        found.problems.append(problem)
    elif len(columns) > 2 and all(line.count(",") == first.count(",") for line in text.split("\n")[:2]):
        found.format, found.content = "table of columns that are not known", first[:200]
        found.problems.append(
            "no study reads it; call its columns as traces/README.md does, of GEMM times gemm_dtype, m, n, k, latency"
        )


def _utf_16(found: Found, text: str) -> None:
    """Recognise what PowerShell redirected into a file."""
    from gpuledger.readers.printed_runs import is_printed
    from gpuledger.readers.timelines.reports import find_report

    if find_report(text) or _NCU.search(text) or is_printed(text):
        _text(found, text.encode("utf-8", "replace"))
    else:
        found.format = "text in UTF-16"
        found.problems.append("save it as UTF-8")


def _ncu(found: Found) -> None:
    from gpuledger.readers import ncu
    from gpuledger.readers.kernel_names import parse
    from gpuledger.readers.ncu.quantities import launch_quantities, missing_options

    found.format = "Nsight Compute"
    parts = ncu.read_parts(found.path, values=MOST_VALUES)
    report = next(parts)
    pages = {"long": "a row per metric", "wide": "raw page", "summary": "summary: averages by kernel"}
    launches, kernels = len(report.launches), report.launches["kernel"].nunique()
    found.format = f"Nsight Compute, {pages[report.page]}"
    found.content = f"{launches:,} launch{'es' * (launches != 1)} of {kernels:,} kernel{'s' * (kernels != 1)}"
    found.problems += [f"ncu reported: {text[:200]}" for text in report.errors[:3]]
    found.cases["kernel_profile"] = {"report": found.path.name}
    quantities = launch_quantities(report)
    missing = missing_options(quantities)
    names = " ".join(map(str, report.metrics["metric"].cat.categories))
    facts = [parse(str(kernel)) for kernel in report.launches["kernel"].cat.categories]
    tiled = any(fact.kernel_class == "gemm" and fact.tensor_core is False for fact in facts)
    if tiled and all(f"_op_{op}_pred_on.sum" in names for op in ("fadd", "fmul", "ffma")):
        found.cases["flop_reconciliation"] = {"launches": found.path.name}
    if missing:
        found.content += f"; not recorded: {', '.join(missing)}"
    if next(parts, None) is not None:
        found.content = f"{found.size}, first {found.content}"


def _json(found: Found, head: bytes) -> None:
    from gpuledger.readers.timelines.reports import find_report

    text = head.decode("utf-8", "replace")
    if title := find_report(text):
        timeline_files.read_whole(found, title)
        return
    if explained := explain(found.path.name, text):
        found.format, problem = explained
        found.problems.append(problem)
        return
    if _SERVED.search(head):
        _served(found)
        return
    if title := timeline_files.title_of_json(head):
        timeline_files.read_json(found, title)
        return
    found.format, found.content = "JSON", found.size
    if found.path.stat().st_size > timeline_files.WHOLE_BYTES:
        return
    try:
        content = json.loads(found.path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        found.problems.append(f"it is not valid JSON ({error})")
        return
    if isinstance(content, dict) and ("architectures" in content or "model_type" in content):
        _model(found, str(content.get("model_type", ""))[:80])
    elif isinstance(content, list) and content and isinstance(content[0], dict) and "Weight" in content[0]:
        found.format, found.content = "shapes of Linear layers", f"{len(content):,} shapes"


def _model(found: Found, kind: str) -> None:
    from gpuledger.models.transformer import read_model

    found.format, found.content = "config.json of a model", kind
    # Not all models say how long a context they support; a decode step adds a token to its own.
    longest = min(read_model(found.path).max_positions or 2049, 2049)
    phases = {
        "prefill": {"batch": 1, "input": min(longest, 2048)},
        "decode": {"batch": 32, "context": max(longest - 1, 1)},
    }
    found.cases["kernel_breakdown"] = {"model": found.path.name, "hardware": ["h100-sxm"], "phases": phases}


def _served(found: Found) -> None:
    from gpuledger.readers.served_results import read_served

    found.format = "result of a benchmark of a server"
    runs = read_served(found.path)
    found.content = f"{len(runs):,} run{'s' * (len(runs) != 1)}"
    first, entry = runs[0], {"files": found.path.name}
    # What the result does not say is left to the user; a row of InferenceX says all.
    if not first.gpu:
        entry |= {"engine": first.engine or None, "model": first.model or None}
        entry["parallel"] = {"tensor": first.tensor or None}
    found.cases["serving_time"] = {"gpu": first.gpu or None, "results": [entry]}


def _gzip(found: Found) -> None:
    from gpuledger.readers.timelines import JSON
    from gpuledger.readers.timelines.reports import find_report

    try:
        with gzip.open(found.path) as handle:
            head = handle.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        found.format = "gzip"
        found.problems.append(f"the archive is damaged ({error})")
        return
    if title := find_report(head.decode("utf-8", "replace")):
        timeline_files.read_whole(found, f"{title}, compressed", packed=20)
    elif JSON.match(head):
        found.format, found.content = "JSON, compressed", found.size
        if title := timeline_files.title_of_json(head):
            timeline_files.read_whole(found, f"{title}, compressed", packed=20)
    elif _NCU.search(head.decode("utf-8", "replace")):
        _ncu(found)


def _zip(found: Found) -> None:
    from gpuledger.readers.timelines.reports import find_report
    from gpuledger.readers.timelines.zipped import beginning

    head = beginning(found.path, HEAD_BYTES)
    title = find_report(head.decode("utf-8", "replace")) or timeline_files.title_of_json(head)
    if head.startswith(b"SQLite format 3\0"):
        title = "database of a profiler"
    if title:
        timeline_files.read_whole(found, f"{title}, zipped", packed=20)
    else:
        _ncu(found)


def _parquet(found: Found) -> None:
    import pyarrow.parquet

    found.format = "Parquet"
    try:
        about = pyarrow.parquet.ParquetFile(found.path)
    except (OSError, ValueError) as error:
        found.problems.append(f"it cannot be read ({error})")
        return
    columns = set(about.schema_arrow.names)
    found.content = f"{about.metadata.num_rows:,} rows, {len(columns)} columns"
    title, found.cases = find_table(columns, found.path.name)
    if title:
        found.format = f"{title} (Parquet)"


def _data_sheets(found: Found) -> None:
    from gpuledger.readers.gpus import read_gpus

    found.format = "table of GPUs"
    names = ", ".join(read_gpus(found.path))
    found.content = names if len(names) <= 200 else f"{names[:200].rpartition(',')[0]}, …"


def _trace_directory(path: Path) -> Found:
    from gpuledger.cli.diagnose import examine
    from gpuledger.readers.neutrino import open_trace_directory

    found = Found(path, "Neutrino trace directory")
    try:
        directory = open_trace_directory(path)
        report = examine(directory)
    except InputError as error:
        found.problems.append(str(error))
        return found
    probed = sum(entry["probed"] for entry in report["kernels"])
    found.content = f"{probed} of {len(report['kernels'])} kernels probed, {report['traces']:,} traces"
    found.problems += report["problems"]
    if directory.results:
        largest = max(directory.results, key=lambda result: (result.stat().st_size, result.name))
        inner = _file(largest)
        place = largest.relative_to(path).as_posix()
        found.cases |= {study: inputs | {"trace": place} for study, inputs in inner.cases.items()}
    return found


def _dataset(folder: Path, path: Path) -> Found:
    from gpuledger.cli.dataset_check import check_dataset

    found = Found(path, "dataset of the ledger")
    try:
        found.content, found.cases, found.problems = check_dataset(folder)
    except InputError as error:
        found.problems.append(_said(error))
    return found
