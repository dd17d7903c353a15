"""CSV reports and printed tables: traces and sums of kernels of Nsight Systems, rocprof, nvprof and torch.profiler."""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv

from gpuledger.errors import InputError, warn
from gpuledger.readers.colours import without_colours
from gpuledger.readers.tabular import SECONDS
from gpuledger.readers.timelines import printed_text, report_json, torch_table
from gpuledger.readers.timelines.report_kinds import REPORTS, ReportKind
from gpuledger.readers.timelines.table import Timeline, finish, grid_in_blocks, sizes

#: A time with its unit, as nvprof prints it.
_TIME = r"([\d.]+)([nuμµm]?s)"
#: A GPU's number, behind its name or alone.
_NUMBER = re.compile(r"(?:\((\d{1,9})\)|^(\d{1,9}))$")
#: Lines that may stand before the header: nsys stats prints its progress.
_MOST_LINES, _HEAD, _BLOCK, _MOST_BYTES = 1000, 1 << 16, 1 << 20, 8 << 30
_EXPORT = "export the report again"
#: Statistics have the same columns whatever they count: calls of the host, domains.
_NO_KERNEL = re.compile(
    r"(?:__)?hip[A-Z]\w*|hsa_\w+|roctx\w+|[A-Z]+(?:_[A-Z]+)+"
    r"|cuda(?:Malloc|Mem|Free|Launch|Device|Stream|Event|Get|Set|Func)\w*|cu(?:Device|Ctx|Module|Mem|Launch|Init|Driver)\w*"
)
#: What nvprof says of unified memory beside its copies: page faults, thrashing, throttling.
_FAULTS = r"\[Unified Memory (?!Memcpy)"


def find_report(head: str) -> str:
    """Return what kind of report a file is that begins so; empty if it is none."""
    for line in [*report_json.headers(head), *head.splitlines()[:_MOST_LINES]]:
        if found := _report_of(line):
            return found[0].title
    return ""


def _report_of(line: str) -> tuple[ReportKind, str] | None:
    """Return of which report a line is the header, and that as the header of a CSV table; None if it is none."""
    # First that of torch.profiler: saved as CSV, its rows are also operators, which are no kernels.
    for header in dict.fromkeys((torch_table.header(line), line, printed_text.header(line))):
        names = _columns(header).keys()
        for report in REPORTS:
            if report.columns() <= names and not names & set(report.lacks):
                return report, header
    return None


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.replace("\0", "")]), [])
    except csv.Error:
        return []


def _columns(line: str) -> dict[str, tuple[int, str, str]]:
    """Return the place, the unit and the printed name of each column of a header, by its name in lower case."""
    # Cut, as searching takes quadratic time.
    words = [re.match(r"\s*(.*?)\s*(?:\((\S*)\))?\Z", cell[:100], re.DOTALL).groups("") for cell in _cells(line)]
    # Older versions of nsys write nsec.
    # A column without a name is a data frame's index.
    return {name.lower(): (place, unit.removesuffix("ec"), name) for place, (name, unit) in enumerate(words) if name}


def read_report(path: str | Path) -> Timeline:
    """Read a report; those of sums have no moments.

    Warns
    -----
    InputWarning
        Another table of the same kind follows: that of another run.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            if raw.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # PowerShell redirects to UTF-16
                file = io.BytesIO(raw.read().decode("utf-16", "replace").encode("utf-8", "replace"))
            file = _from_json(path, file)
            for _ in range(_MOST_LINES):
                line = without_colours(file.readline(1 << 20)).decode("utf-8-sig", "replace")
                if not line or (found := _report_of(line)):
                    break
            if not line or found is None:
                remedy = "give a JSON trace, a database, or the CSV of nsys stats --report cuda_gpu_trace or rocprofv3"
                raise InputError(path, "", "neither a timeline nor a report of Nsight Systems or rocprof", remedy)
            content = _single_spaced(without_colours(_rest(path, file)).replace(b"\r\n", b"\n"))
        bare, rest = printed_text.without_labels(line, content)
        if again := _report_of(bare):
            line, content, found = bare, rest, again
        return _read_tables(path, line, *found, content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(path, "", f"cannot be read ({error})", "give a trace, an SQLite export or a CSV") from None
    except pa.ArrowInvalid as error:
        raise InputError(path, "", f"not a CSV table ({error})", "export the report with --format csv") from None


def _from_json(path: Path, file: BinaryIO) -> BinaryIO:
    """Return the reports in a file's JSON as CSV; the file itself if there are none."""
    head = file.read(_HEAD).decode("utf-8", "replace")
    file.seek(0)
    if not any(map(_report_of, report_json.headers(head))):
        return file
    found = report_json.tables(path, _rest(path, file).decode("utf-8-sig", "replace"))
    return io.BytesIO("\n\n".join(line + rows for line, rows in found if _report_of(line)).encode("utf-8", "replace"))


def _single_spaced(content: bytes) -> bytes:
    """Return the lines below a header without the empty ones that letters and terminals put between all of them."""
    if not re.match(rb"(?:[ \t\r]*\n[^\n]*[^\s][^\n]*\n){2}[ \t\r]*(?:\n|$)", content):
        return content
    return re.sub(rb"\n[ \t\r]*\n", b"\n", b"\n" + content)[1:]


def _rest(path: Path, file: BinaryIO) -> bytes:
    # In blocks: to read so many bytes at once, Python asks for memory for all of them first.
    content = io.BytesIO()
    while block := file.read(_BLOCK):
        content.write(block)
        if content.tell() > _MOST_BYTES:
            raise InputError(
                path, "", f"more than {_MOST_BYTES >> 30} GiB of text", "give a database, or fewer launches"
            )
    return content.getvalue()


def _read_tables(path: Path, line: str, report: ReportKind, header: str, content: bytes) -> Timeline:
    """Read the first table that has kernels, of those with the same header."""
    # Before CUDA 9, nvprof printed calls below the same header.
    words = line.encode().split()
    again = re.compile(rb"(?m)^(?<!API calls:\n)[ \t]*" + rb"\s+".join(map(re.escape, words)) + rb"\s")
    parts, end = [], 0
    for match in again.finditer(content) if words[0] in content else ():
        parts.append(content[end : match.start()])
        end = match.end()
    parts.append(content[end:])
    tables = [_csv_below(line, header, part) for part in parts]
    while True:
        rows, problem = tables.pop(0)
        cells = _rows(path, rows, len(_cells(header)))
        table = _Table(path, report, _columns(header), cells)
        if len(table) or not tables:
            break
    if rows.strip() and not len(cells):
        problem, remedy = "no row has as many cells as the header", "give the file as it was written, with whole lines"
        raise InputError(path, "", problem, remedy)
    if not len(table) and header == torch_table.header(line):
        remedy = "print more rows (row_limit=-1), or call prof.export_chrome_trace('trace.json.gz')"
        raise InputError(path, "", "no row is a kernel: operators alone have times in this table", remedy)
    if problem:
        warn(path, "", problem, "shares are of the kernels in it")
    # Rows of the same run may follow in another order, fewer of them, or beside those of other domains.
    own = set(rows.split(b"\n")) if tables else set()
    others = [set(other.split(b"\n")) for other, _ in tables]
    if left := sum(not (own <= other or other <= own) for other in others):
        what = "more table of this kind follows" if left == 1 else "more tables of this kind follow"
        warn(path, "", f"{left:,} {what}", "not read: keep the output of each run in a file of its own")
    return table.timeline()


def _csv_below(line: str, header: str, content: bytes) -> tuple[bytes, str]:
    """Return the rows below a header as CSV, and what is wrong with them; the header as in the file, and as CSV."""
    if header == line:
        return _until_the_next_report(content), ""
    text = content.decode("utf-8", "replace")
    if header != torch_table.header(line):
        return printed_text.rows(line, text).encode(), ""
    rows, problem = torch_table.rows(line, text)
    return rows.encode(), problem


def _until_the_next_report(content: bytes) -> bytes:
    """Return the lines up to an empty one, a block's end in Markdown, a message or a title.

    Behind these, ``nsys stats`` prints its next report.
    """
    end = re.search(rb'\n\s*\n|\n```|\n==[\d=]+==|\n ?\*\* |\nProcessing \[|\n"?Time ?\(%\)', content)
    return content[: end.start()] if end else content


def _rows(path: Path, content: bytes, width: int) -> pa.Table:
    """Read the rows below the header as texts; lines of another number of cells are left out, with a warning."""
    names = [str(place) for place in range(width)]
    skipped = []
    if not content.strip():
        return pa.table({name: pa.array([], pa.string()) for name in names})
    if not content.isascii():
        content = content.decode("utf-8", "replace").encode()
    rows = pa_csv.read_csv(
        pa.py_buffer(content),
        read_options=pa_csv.ReadOptions(column_names=names),
        parse_options=pa_csv.ParseOptions(
            invalid_row_handler=lambda row: skipped.append(row.actual_columns) or "skip", newlines_in_values=True
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    )
    if skipped:
        problem = f"{len(skipped):,} of {len(rows) + len(skipped):,} rows have another number of cells than the header"
        warn(path, "", problem, "left out")
    return rows


class _Table:
    """The rows of a report."""

    def __init__(self, path: Path, report: ReportKind, columns: dict[str, tuple[int, str, str]], rows: pa.Table):
        self._path, self._report, self._places, self._rows = path, report, columns, rows
        self._take_units()
        self._take_kernels()

    def __len__(self) -> int:
        return len(self._rows)

    def timeline(self) -> Timeline:
        report = self._report
        behind = r" \[\d+\]$" if "nvprof" in report.title else r"(?: \[clone \.kd\]|\.kd)$"
        names = self._text(report.name).str.strip().str.replace(behind, "", regex=True)
        if "prof" in report.title and report.launches and len(names) and names.str.fullmatch(_NO_KERNEL).all():
            rocprof = "give kernel_stats.csv, or better kernel_trace.csv"
            remedy = rocprof if "rocprof" in report.title else "profile with nvprof --csv --print-gpu-trace"
            raise InputError(self._path, "", "statistics of calls or domains, not of kernels", remedy)
        columns: dict[str, object] = {
            "kernel": names.to_numpy(object),
            "kind": names.map(_kind).to_numpy(object) if len(names) else [],
        }
        if report.grid and report.grid[0] in self._places:
            grid, block = map(self._sizes, (report.grid, report.block))
            columns |= {"grid": sizes(grid if report.in_blocks else grid_in_blocks(grid, block)), "block": sizes(block)}
        if report.launches:
            columns["launches"] = self._numbers(report.launches).astype("int64")
            columns["duration_s"] = self._seconds(report.duration) * (columns["launches"] if report.mean else 1)
            if report.device in self._places:
                columns["device"], _ = self._devices()
            if report.range:
                columns["nvtx_range"] = columns["annotation"] = self._text(report.range).to_numpy(object)
            return self._finish(columns, (columns["launches"] < 0) | (columns["duration_s"] < 0))
        start = self._numbers(report.start)
        # Nanoseconds since the machine started are too many digits for seconds.
        columns["start_s"] = (start - (start.min() if len(start) else 0)) * self._unit(report.start)
        columns["duration_s"] = (
            (self._numbers(report.end) - self._numbers(report.start)) * 1e-9
            if report.end
            else self._seconds(report.duration)
        )
        columns["stream"] = np.nan_to_num(self._numbers(report.stream, needed=False), nan=-1).astype("int64")
        columns["device"], named = self._devices()
        return self._finish(columns, columns["duration_s"] < 0, named)

    def _finish(self, columns: dict[str, object], backwards: np.ndarray, devices: Sequence[str] = ()) -> Timeline:
        if backwards.any():
            columns = {name: np.asarray(values)[~backwards] for name, values in columns.items()}
        return finish(self._path, self._report.title, columns, devices=devices, left_out=int(backwards.sum()))

    def _devices(self) -> tuple[np.ndarray, list[str]]:
        """Return the number of each launch's GPU, and the GPUs' names."""
        given = self._report.device in self._places
        devices = self._text(self._report.device) if given else pd.Series([""] * len(self._rows))
        numbers, names = pd.factorize(devices)
        own = [_NUMBER.search(name.strip()) for name in names]
        amd = "rocprof" in self._report.title  # whose agents are also processors
        if all(own) and not amd:
            numbers = np.array([int(found[1] or found[2]) for found in own], np.int64)[numbers]
        named = [] if amd else [re.sub(r" \(\d+\)$", "", name) for name in names]
        return numbers, [name for name in named if not name.strip().isdecimal()]

    def _sizes(self, names: Sequence[str]) -> np.ndarray:
        """Return sizes in three dimensions: each in a column of its own, or all in one."""
        if len(names) == 1:
            parts = self._text(names[0]).str.extract(r"^\s*(\d{1,10})\s+(\d{1,10})\s+(\d{1,10})\s*$")
            return parts.to_numpy(float)
        return np.column_stack([self._numbers(name, needed=False).astype(float) for name in names])

    def _take_units(self) -> None:
        """Take the units from the first row, where nvprof has them."""
        first = [column[0].as_py() for column in self._rows.columns] if len(self._rows) else []
        time = self._places[self._report.duration or self._report.end][0]
        if first and first[time] in SECONDS:
            self._rows = self._rows.slice(1)
            self._places = {name: (at, first[at], said) for name, (at, _, said) in self._places.items()}

    def _take_kernels(self) -> None:
        """Leave out rows of something else, and all but one of a dispatch that has a row for each of its counters."""
        if self._report.range and len(self._rows):
            self._take_range()
        column, value = self._report.only
        if column in self._places:
            self._rows = self._rows.filter(pa.array((self._text(column) == value).to_numpy()))
        if self._report.title == "nvprof trace":
            self._rows = self._rows.filter(pa.array(~self._text(self._report.name).str.match(_FAULTS).to_numpy()))
        if {"counter_name", "dispatch_id"} <= self._places.keys():
            keys = ("dispatch_id", "process_id", "agent_id", self._report.start)
            same = [name for name in keys if name in self._places]
            repeated = pd.DataFrame({name: self._text(name) for name in same}).duplicated()
            self._rows = self._rows.filter(pa.array(~repeated.to_numpy()))

    def _take_range(self) -> None:
        """Keep the kernels of the range with most time: ranges may be nested, and a kernel is in a row for each."""
        ranges = self._text(self._report.range)
        rows = pd.DataFrame({"time": self._numbers(self._report.duration), "runs": self._numbers("nvtx inst", False)})
        named = rows.groupby(ranges).agg({"time": "sum", "runs": "max"}).drop("", errors="ignore")
        if len(named):
            # Of ranges with the same kernels, the outer one runs less often.
            chosen = named.sort_values(["time", "runs"], ascending=[False, True], kind="stable").index[0]
            self._rows = self._rows.filter(pa.array((ranges == chosen).to_numpy()))
        if ranges.nunique() > 1:
            problem = "kernels have a row for each NVTX range around them, and those outside of ranges one"
            warn(self._path, "", problem, f"those in {chosen[:60]!r}, which has most time, are analysed")

    def _text(self, name: str) -> pd.Series:
        return self._rows.column(self._places[name][0]).to_pandas()

    def _unit(self, name: str) -> float:
        _, unit, said = self._places[name]
        if name.endswith(("timestamp", "ns")):
            unit = "ns"
        if unit and unit not in SECONDS:
            raise InputError(self._path, f"column {said}", "its unit is none of ns, us, ms and s", _EXPORT)
        return SECONDS.get(unit, 1.0)

    def _seconds(self, name: str) -> np.ndarray:
        return self._numbers(name) * self._unit(name)

    def _numbers(self, name: str, needed: bool = True) -> np.ndarray:
        if name not in self._places:
            return np.full(len(self._rows), np.nan)
        cells = self._text(name).str.replace(",", "")
        if len(cells) and re.fullmatch(_TIME, cells.iloc[0]):
            times = cells.str.extract(rf"\A{_TIME}\Z")
            values = (pd.to_numeric(times[0], errors="coerce") * times[1].map(SECONDS)).to_numpy()
        else:
            values = pd.to_numeric(cells, errors="coerce").to_numpy()
        if needed and not np.isfinite(values.astype(float)).all():
            row = int(np.flatnonzero(~np.isfinite(values.astype(float)))[0])
            place = f"row {row + 1} below the header, column {self._places[name][2]}"
            raise InputError(self._path, place, f"{cells.iloc[row]!r} is not a number", _EXPORT)
        return values


def _kind(name: str) -> str:
    found = re.match(r"(?:\[(?:CUDA )?(?:Unified Memory )?[Mm]|M)em(cpy|set)\b", name)
    return {"cpy": "copy", "set": "set"}[found.group(1)] if found else "kernel"
