"""Profiler files that cannot be analysed here, and what to provide instead."""

import re
from dataclasses import dataclass

_TRACE = "nsys stats --report cuda_gpu_trace --format csv REPORT"
_ROCPROF = "record with rocprofv3 --kernel-trace --output-format csv, or give kernel_trace.csv"
_SERVED = "gpuledger served reads what vllm bench serve --save-result and sglang.bench_serving write"
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
        "table of a profiler whose lines a terminal divided",
        "they are not put together; give it with whole lines: widen the terminal, or redirect it into a file",
        head=r"(?m)\A(?=[\s\S]*(?:Self CPU|Time ?\(%\)))[\s\S]*?^[^\n-]{0,4}-{3}[- ]{16,}\n[^\n-]{0,2}-[- ]*$",
    ),
    _Kind(
        "table of torch.profiler's key_averages()",
        "it has no times of kernels; record again and call prof.export_chrome_trace('trace.json.gz')",
        head=r"(?m)^[- ]{20,}\n *Name +(?:Self CPU|Self CUDA|CPU total)",
    ),
    _Kind(
        "benchmark of an engine without a server",
        f"it does not say how long a token of a request took while others were served; {_SERVED}",
        head=r'\A\s*\{[^{}\[]{0,1000}"(?:avg_latency|requests_per_second)"\s*:',
    ),
    _Kind(
        "table of AIPerf or GenAI-Perf",
        "it does not say how many requests were served at a time; give the JSON that was written beside it",
        head=r"\A\W?Metric,(?:avg|min|p\d)",
    ),
    _Kind(
        "what AIPerf or GenAI-Perf prints",
        "it does not say how many requests were served at a time; give the JSON that was written beside it",
        head=r"(?m)NVIDIA (?:AIPerf|GenAI-Perf) \| LLM Metrics|^ +LLM Metrics *\n┏",
    ),
    _Kind(
        "tables that GuideLLM prints",
        "they are not read; give the benchmarks.json that was written beside them",
        head=r"(?m)^Benchmarks Stats: *$",
    ),
    _Kind(
        "summary of MLPerf's load generator",
        f"it says neither how many requests were served at a time nor how long they were; {_SERVED}",
        head=r"(?m)^MLPerf Results Summary\s*$",
    ),
    _Kind(
        "result of llama-bench",
        "rates of llama.cpp are compared with nothing here; to see its kernels, record it: nsys profile llama-bench …",
        head=r"(?m)^\| model +\| +size \| +params \| backend|\bbuild_commit\b[\s\S]{1,1000}\bmodel_filename\b",
    ),
    _Kind(
        "result of nvbench",
        f"it does not say which kernels ran; record the program with nsys, and give {_TRACE}; of GEMMs, kernel_time "
        "and engine_comparison read gemm_dtype, m, n, k and latency",
        head=r"\|\s*CPU Time\s*\|\s*Noise\s*\|\s*GPU Time|,CPU Time \(sec\),|\"tag\"\s*:\s*\"nv/cold/",
    ),
    _Kind(
        "layer times of trtexec",
        f"layers are no kernels; record it with nsys profile trtexec …, and give {_TRACE}",
        head=r'\A\s*\[\s*\{\s*"count"\s*:\s*\d+\s*\}\s*,\s*\{\s*"name"[^{}]{0,2000}"(?:timeMs|averageMs)"',
    ),
    _Kind(
        "results of vLLM for PyTorch's dashboard",
        f"each value is in an object of its own; {_SERVED}",
        head=r'\A\s*\[\s*\{\s*"benchmark"\s*:\s*\{\s*"name"\s*:\s*"vLLM',
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
    _Kind(
        "export of Nsight Systems (JSON)",
        "it is not read; export it with nsys export --type sqlite REPORT.nsys-rep",
        head=r'"(?:CudaEvent|TraceProcessEvent|NvtxEvent)"\s*:\s*\{',
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
        head=r'\A(?:"Guid",)?"?(?:Domain"?,"?Function|Kind"?,"?Direction|Node_Id|Kind"?,"?Operation)\b',
    ),
    _Kind(
        "rocprof counters without times",
        f"it does not say when kernels ran; add --timestamp on, or {_ROCPROF}",
        head=r'\A"?Index"?,"?KernelName"?,(?![^\n]*BeginNs)',
    ),
    _Kind(
        "rocprofv3 samples of instructions",
        f"it does not say how long kernels ran; {_ROCPROF}",
        head=r'\A"Sample_Timestamp"',
    ),
    _Kind(
        "output of nvprof without times of kernels",
        "it has no table of kernels; profile with nvprof --csv --print-gpu-trace, or with nsys",
        head=r"(?m)^==\d+== NVPROF is profiling(?![\s\S]*^==\d+== Metric result)",
    ),
    _Kind(
        "log of nvidia-smi",
        "it says what the GPU drew, not what ran; kernel_power reads a power for each kernel: kernel, precision, flop, "
        "bytes, time_us, power_w",
        head=r"(?m)^(?:index, |timestamp, )[^\n]*\[(?:W|%|MiB|MHz)\]"
        r"|\A\d{4}/\d\d/\d\d [\d:.]{8,}, [^\n]*\d (?:W|%|MiB|MHz)\b",
    ),
    _Kind(
        "output of deviceQuery",
        "it lacks peaks and bandwidths; gpuledger gpus lists what is known, and --gpu-file reads a table of your own "
        "(columns: traces/README.md)",
        head=r"CUDA Device Query \(Runtime API\)",
    ),
    _Kind(
        "table of triton.testing.perf_report",
        "it has a column per provider and says neither type nor unit; of GEMMs, kernel_time and engine_comparison read "
        "a file per provider: gemm_dtype, m, n, k and latency, or rate in TFLOP/s",
        head=r"\A(?:\w{1,20},){1,4}[^\n]*\b(?:[Tt]riton|(?:Py)?[Tt]orch|(?:cu|roc)(?:BLAS|blas))\b[^\n]*\n[\d.]+,",
    ),
    _Kind(
        "cutlass_profiler output without a table of GEMMs",
        "of a run of GEMMs, kernel_time and engine_comparison read what it prints, or the CSV of --output=FILE",
        head=r"(?m)\A[^\n]*\bProblem,Provider,OperationKind,|^CSV Results:|^ +Provider: CUTLASS$",
    ),
    _Kind(
        "output of nsys stats without times of kernels",
        f"it lists calls, ranges, averages or memory; {_TRACE}",
        head=r"(?m)^\"?(?:Time|NVTX Range|PID|Start)\b[^\n]*(?:Num Calls|NVTX Inst|DurNon|QCount|T-Pri|,Count,Avg)"
        r'|\A\s*\[\s*\{\s*"(?:Time ?\(%\)|Start \(\w+\)|NVTX Range)"\s*:',
    ),
    _Kind(
        "results of nsight-python",
        "they are means over runs, and may be divided by a baseline's; give the .ncu-rep that was written beside them",
        head=r"\A(?=[^\n]*\bAnnotation\b)[^\n]*\bAvgValue,StdDev,",
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
