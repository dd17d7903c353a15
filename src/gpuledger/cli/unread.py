"""Files of profilers that hold nothing to analyse here, or not in a form that can be read: what to give instead."""

import re
from dataclasses import dataclass

_TRACE = "nsys stats --report cuda_gpu_trace --format csv REPORT"
_ROCPROF = "record with rocprofv3 --kernel-trace --output-format csv, or give kernel_trace.csv"
#: What is said of everything else.
OTHER = "nothing here reads this kind of file; traces/README.md lists what studies read"


@dataclass(frozen=True)
class _Kind:
    title: str
    why: str  # it is not read, and what to do
    name: str = ""  # regular expressions of the file's name, and of how it begins
    head: str = ""


_KINDS = (
    _Kind(
        "XLA's profile (protobuf)",
        "protobuf is not read; give the .trace.json.gz that the profiler wrote beside it",
        name=r"\.xplane\.pb$",
    ),
    _Kind(
        "Perfetto trace (protobuf)",
        "protobuf is not read; let the profiler write JSON, CSV or a database (rocprofv3 --output-format csv)",
        name=r"\.(?:pftrace|perfetto-trace|perfetto)$",
    ),
    _Kind(
        "stream of Nsight Systems",
        "it is not yet a report; run QdstrmImporter, which comes with nsys, on it",
        name=r"\.qdstrm$",
    ),
    _Kind(
        "table of torch.profiler's key_averages()",
        "its names are cut; record again and call prof.export_chrome_trace('trace.json.gz')",
        head=r"(?m)^[- ]{20,}\n *Name +(?:Self CPU|Self CUDA|CPU total)",
    ),
    _Kind(
        "execution trace of PyTorch",
        "it holds no times; record with torch.profiler and call prof.export_chrome_trace('trace.json.gz')",
        head=r'\A\s*\{\s*"schema"\s*:\s*"[\w.-]{0,40}chakra',
    ),
    _Kind(
        "trace of rocprof (JSON)",
        "it is not read; give the results.csv that rocprof wrote beside it",
        head=r'\A(?=[\s\S]*"traceEvents")(?=[\s\S]*"BeginNs")',
    ),
    _Kind("rocprofv3 JSON", f"this JSON is not read; {_ROCPROF}", head=r'\A\s*\{\s*"rocprofiler-sdk-tool"'),
    _Kind(
        "rocprofv3 counters without times",
        f"it does not say when kernels ran; {_ROCPROF}",
        head=r'\A"?Correlation_Id"?,"?Dispatch_Id"?,[^\n]*"?Counter_Value\b',
    ),
    _Kind(
        "rocprofv3 CSV without kernels",
        f"it lists calls, copies or devices; {_ROCPROF}",
        head=r'\A(?:"Guid",)?"(?:Domain","Function"|Kind","Direction"|Node_Id"|Kind","Operation")',
    ),
    _Kind(
        "nsys stats CSV without times of kernels",
        f"it lists calls, ranges, averages or memory; {_TRACE}",
        head=r"(?m)^\"?(?:Time|NVTX Range|PID|Start)\b[^\n]*(?:Num Calls|NVTX Inst|DurNon|QCount|T-Pri|,Count,Avg)",
    ),
    _Kind(
        "source page of Nsight Compute",
        "it has a row per instruction; export it with ncu --import REPORT --csv --page raw",
        head=r'\A"?#"?,(?:[^\n]*,)?"?(?:Address|Source)"?,',
    ),
)


def explain(name: str, head: str) -> tuple[str, str] | None:
    """Return what a file is that nothing here reads, and what to do; None if it is not known.

    Parameters
    ----------
    name : str
        Its name, without folders.
    head : str
        Its beginning.
    """
    for kind in _KINDS:
        if (kind.name and re.search(kind.name, name)) or (kind.head and re.search(kind.head, head)):
            return kind.title, kind.why
    return None
