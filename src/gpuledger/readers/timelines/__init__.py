"""Timelines: which kernels a GPU ran and when, as the profilers of PyTorch, JAX, NVIDIA, AMD and others write."""

import gzip
import re
import sqlite3
import zlib
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.readers.timelines.autograd import MARK, read_autograd
from gpuledger.readers.timelines.database import read_database
from gpuledger.readers.timelines.kineto import read_kineto
from gpuledger.readers.timelines.nsys import read_nsys
from gpuledger.readers.timelines.nsys_report import SUFFIXES, read_report_of_nsys
from gpuledger.readers.timelines.onnx_runtime import MARK as ONNX_RUNTIME
from gpuledger.readers.timelines.onnx_runtime import read_onnx_runtime
from gpuledger.readers.timelines.paddle import MARK as PADDLE
from gpuledger.readers.timelines.paddle import read_paddle
from gpuledger.readers.timelines.proton import read_proton, read_proton_trace
from gpuledger.readers.timelines.reports import find_report, read_report
from gpuledger.readers.timelines.rocpd import read_rocpd
from gpuledger.readers.timelines.rpd import read_rpd
from gpuledger.readers.timelines.table import Timeline
from gpuledger.readers.timelines.xla import read_xla
from gpuledger.readers.timelines.zipped import MAGIC, read_zipped


def _of_database(path: Path, base: sqlite3.Connection, tables: set[str]) -> Timeline:
    if any(name.startswith("rocpd_kernel_dispatch") for name in tables):
        return read_rocpd(path, base, tables)
    return read_rpd(path, base) if "rocpd_op" in tables else read_nsys(path, base, tables)


def _read_sqlite(path: Path) -> Timeline:
    return read_database(path, _of_database)


_READERS = {
    "kineto": read_kineto,
    "autograd": read_autograd,
    "onnx": read_onnx_runtime,
    "paddle": read_paddle,
    "xla": read_xla,
    "proton": read_proton,
    "proton trace": read_proton_trace,
    "report": read_report,
}
_READERS |= {"sqlite": _read_sqlite, "nsys": lambda path: read_report_of_nsys(path, _read_sqlite)}
#: How JSON begins; a log may begin with a name, a number or a date in brackets.
JSON = re.compile(rb'[\xef\xbb\xbf\s]*(?!\[\d{1,5},\d{1,5}\]<)(?:\{|\[\s*(?:[\[{"\]]|-?[\d.]+\s*,|$))')
_PROTON = re.compile(rb'\[\s*\{\s*"(?:children|frame|metrics)"\s*:')
#: How traces of proton begin: with the kernels of a stream, or with the name of their only process.
_PROTON_TRACE = re.compile(rb'"call_stack"\s*:\s*\[\s*"ROOT"|"args":\{"name":"Trace"\},"name":"process_name"')
#: The names of processes, at the beginning of a trace of XLA's profiler.
_XLA = re.compile(rb'"name"\s*:\s*"[^"]{0,200}/(?:device:|host:CPU)')


def timeline_format(path: str | Path) -> str:
    """Tell the format of a file by its first bytes: ``kineto``, ``autograd``, ``onnx``, ``paddle``, ``xla``,
    ``proton``, ``proton trace``, ``sqlite``, ``zip``, ``nsys`` (a report) or ``report`` (a table).
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(path, "", f"cannot be read ({error.strerror})", "put the file there") from None
    if not head:
        raise InputError(path, "", "the file is empty", "record the timeline again")
    if path.suffix in SUFFIXES:
        return "nsys"
    if head.startswith(b"SQLite format 3\0"):
        return "sqlite"
    if head.startswith(MAGIC):
        return "zip"
    if head.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as file:
                head = file.read1(4096)
        except (OSError, EOFError, zlib.error):
            head = b"{"  # the reader will say what is wrong
    return json_format(head.removeprefix(b"\xef\xbb\xbf").lstrip()) if JSON.match(head) else "report"


def json_format(head: bytes) -> str:
    """Tell the format of a timeline in JSON by how it begins, as :func:`timeline_format` calls it."""
    if _PROTON.match(head):
        return "proton"
    if head.startswith(b"[") and find_report(head.decode("utf-8", "replace")):
        return "report"
    if MARK.search(head):
        return "autograd"
    if ONNX_RUNTIME.search(head):
        return "onnx"
    if PADDLE.search(head):
        return "paddle"
    if _PROTON_TRACE.search(head):
        return "proton trace"
    return "xla" if _XLA.search(head) else "kineto"


def read_timeline(path: str | Path) -> Timeline:
    """Read a recorded timeline of any of these formats.

    * torch.profiler (Kineto), and torch.autograd.profiler without Kineto: JSON, plain or gzipped
    * ONNX Runtime, PaddlePaddle: JSON, plain or gzipped
    * XLA's profiler (JAX): JSON, plain or gzipped
    * Nsight Systems: report, where ``nsys`` is installed; SQLite export; ``cuda_gpu_trace``,
      ``cuda_gpu_kern_sum`` and other tables of kernels, as CSV or JSON or as printed
    * rocprofv3: database (rocpd); CSV of kernel traces and statistics, also of the older rocprof; the printed summary;
      the top kernels of rocprof-compute
    * rocmProfileData: database (rpd)
    * nvprof and torch.profiler: CSV, or the tables that they print
    * Triton's proton: JSON in hatchet's form, and traces
    * any of these alone in a zip archive

    Raises
    ------
    InputError
        Another format, a damaged file, or one without kernels.

    Warns
    -----
    InputWarning
        A file that ends too early, and events without valid times.
    """
    return _READERS[timeline_format(path)](Path(path))


def _read_unpacked(path: Path) -> Timeline:
    if timeline_format(path) == "zip":
        raise InputError(path, "", "an archive in an archive", "unpack it")
    return read_timeline(path)


_READERS["zip"] = lambda path: read_zipped(path, _read_unpacked)
