"""Files that profilers leave behind: which timeline they are, and how many kernels are in them."""

import re

from gpuledger.cli.found import Found
from gpuledger.errors import InputError

#: Files up to this size are read as a whole.
WHOLE_BYTES = 8 << 20
_EVENTS = b'"traceEvents"'
#: A list of events alone, of which each has a phase.
_LISTED = re.compile(rb'\[\s*\{[^{}]{0,1000}"ph"\s*:\s*"')


def title_of_json(head: bytes) -> str | None:
    """Return what a timeline is, by the beginning of JSON; None if it is none."""
    from gpuledger.readers.timelines import json_format

    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    form = json_format(head)
    listed = _EVENTS in head or _LISTED.match(head)
    if form != "proton" and not listed and not (b'"schemaVersion"' in head and b'"deviceProperties"' in head):
        return None
    return {
        "kineto": "timeline of torch.profiler (Kineto)",
        "autograd": "trace of torch.autograd.profiler",
        "onnx": "timeline of ONNX Runtime",
        "paddle": "timeline of PaddlePaddle's profiler",
        "xla": "timeline of XLA's profiler (JAX)",
        "proton": "profile of Triton's proton",
        "proton trace": "timeline of Triton's proton",
    }[form]


def read_whole(found: Found, title: str, packed: int = 1) -> None:
    """Say that a file is a timeline, and how many kernels are in it."""
    set_timeline(found, title)
    count_kernels(found, packed)


def set_timeline(found: Found, title: str) -> None:
    """Call a file a timeline, of which a case can be made."""
    found.format, found.content = title, found.size
    found.cases["kernel_breakdown"] = {"timeline": found.path.name}


def read_json(found: Found, title: str) -> None:
    """Read JSON that is a timeline by its beginning."""
    set_timeline(found, title)
    with found.path.open("rb") as handle:
        handle.seek(max(found.path.stat().st_size - 64, 0))
        if handle.read().rstrip().endswith((b"]", b"}")):
            count_kernels(found)
        else:
            found.problems.append("the file is truncated: it does not end as JSON")


def count_kernels(found: Found, packed: int = 1) -> None:
    """Read a timeline that is not large as a whole; `packed`: how much larger it may be unpacked."""
    from gpuledger.readers.timelines import read_timeline

    if found.path.stat().st_size > WHOLE_BYTES // packed:
        return
    try:
        timeline = read_timeline(found.path)
    except InputError:
        found.cases = {}
        raise
    named = {name for name in timeline.devices if name}
    found.device = named.pop() if len(named) == 1 else ""
    kernels = timeline.kernels[timeline.kernels["kind"] == "kernel"]
    launches, names = int(kernels["launches"].sum()), kernels["kernel"].nunique()
    words = f"{launches:,} launch{'es' * (launches != 1)} of {names:,} kernel{'s' * (names != 1)}"
    gpus = kernels["device"].nunique()
    found.content = f"{words}{f' on {gpus} GPUs' * (gpus > 1)}, {found.content}"


def read_database(found: Found) -> None:
    """Say of which profiler a database is."""
    import sqlite3

    from gpuledger.readers.timelines.nsys import EXPORT_NVPROF, NVPROF

    found.format = "SQLite"
    try:
        connection = sqlite3.connect(f"{found.path.resolve().as_uri()}?mode=ro", uri=True)
        query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        names = {name for (name,) in connection.execute(query)}
        connection.close()
    except sqlite3.Error as error:
        found.problems.append(f"it cannot be read ({error})")
        return
    if any(name.startswith("rocpd_kernel_dispatch") for name in names):
        read_whole(found, "rocprofv3 database (rocpd)")
    elif "rocpd_op" in names:
        read_whole(found, "rocmProfileData database (rpd)")
    elif NVPROF in names:
        found.format, found.problems = "database of nvprof", [f"it is not read; {EXPORT_NVPROF}"]
    elif "StringIds" in names or any(name.startswith("CUPTI_") for name in names):
        set_timeline(found, "Nsight Systems export (SQLite)")
        if not names & {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"}:
            found.problems, found.cases = ["it holds no kernels: record with nsys profile --trace cuda"], {}
        else:
            count_kernels(found)
