"""What benchmarks of a server print, as the objects that they write.

That is the summary of ``vllm bench serve`` and ``sglang.bench_serving``, the steps of ``sglang.bench_one_batch``, the
report of ``trtllm-bench``, and the table of EvalScope.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

#: The line above a summary, behind what a logger or a comment puts in front of every line, or a bar of progress.
_SUMMARY = re.compile(r"^.{0,300}?={1,60} Serving Benchmark Result ={1,60}\s*$", re.MULTILINE)
_STEP = re.compile(
    r"^(Prefill|Decode|Total)\.? *(?:\d{1,7}\. Batch size: (\d{1,7}),)? *(?:median )?latency: +(\d{1,9}\.\d{1,9}) s,"
    r" (?:median )?throughput: +(\d{1,12}\.\d{1,9}) token/s",
    re.MULTILINE,
)
_PHASE = re.compile(r"^(?=(?:Warmup|Benchmark) \.\.\.)", re.MULTILINE)
_REPORT = re.compile(r"^= PERFORMANCE OVERVIEW\s*$", re.MULTILINE)
_FIRST = re.compile(r"^= (?:PYTORCH BACKEND|ENGINE DETAILS)\s*$", re.MULTILINE)
_TABLE = re.compile(r"^[|│] *(?=Time taken for tests \(s\))", re.MULTILINE)
_ROW = re.compile(r"^[|│] *([A-Z][\w ()/-]{2,60}?) *[|│] *(\d{1,15}(?:\.\d{1,15})?) *[|│]", re.MULTILINE)
#: What a summary's lines, and those before it, are in a file.
_NAMES = {
    **{"successful requests": "completed", "benchmark duration (s)": "duration", "backend": "backend"},
    **{"total input tokens": "total_input_tokens", "total generated tokens": "total_output_tokens"},
    **{"request throughput (req/s)": "request_throughput", "traffic request rate": "request_rate"},
    "request rate configured (rps)": "request_rate",
    # SGLang's program misspelled it until 2025.
    **{f"{word} concurrency": "max_concurrency" for word in ("maximum request", "max request", "max reqeuest")},
    **{f"{kind} {time} (ms)": f"{kind}_{time}_ms" for kind in ("mean", "median") for time in ("ttft", "tpot")},
    **{f"mean {name} (ms)": "mean_e2e_latency_ms" for name in ("e2e latency", "e2el")},
}
#: What the lines above a summary may say.
_DRIVEN = ("backend", "request_rate", "max_concurrency")
#: What stands below a summary: its last line, or, where that is missing, a block's end in Markdown or the next run.
_END = re.compile(r"\n(?:=====|```|Namespace\(|Traffic request rate: \S)")
_REMARK = re.compile(r"\s{2,}")
#: What stands for no limit.
_NONE = ("none", "not set")
#: Of the command or its arguments, which some versions print first.
_ARGUMENT = re.compile(
    r"(?:(?:^|\s)--(model(?:-path)?|max-concurrency|request-rate)[ =]|[(,]\s?(model|max_concurrency|request_rate)=)"
    r"['\"]?([\w./-]+)",
    re.MULTILINE,
)
#: Where the lines of ``trtllm-bench`` are in its report.
_PLACES = {
    "model": "engine.model",
    "kv cache dtype": "engine.kv_cache_dtype",
    "quantization": "engine.quantization",
    **{f"{name} size": f"world_info.{name}_size" for name in ("tp", "pp", "ep")},
    "max runtime batch size": "world_info.max_batch_size",
    "number of requests": "request_info.num_requests",
    "number of concurrent requests": "request_info.avg_num_concurrent_requests",
    **{f"average {way} length (tokens)": f"request_info.avg_{way}_length" for way in ("input", "output")},
    "request throughput (req/sec)": "performance.request_throughput_req_s",
    "average time-to-first-token [ttft] (ms)": "streaming_metrics.avg_ttft_ms",
    "average time-per-output-token [tpot] (ms)": "streaming_metrics.avg_tpot_ms",
    **{f"[{time}] p50": f"streaming_metrics.{time}_percentiles.p50" for time in ("tpot", "ttft")},
}
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


def is_printed(text: str) -> bool:
    """Tell whether a text has what one of these programs prints."""
    return any(line.search(text) for line in (_SUMMARY, _STEP, _REPORT, _TABLE))


def printed_runs(text: str) -> Iterator[dict[str, Any]]:
    """Yield the runs in a text, as objects that their programs would have written."""
    yield from _summaries(text)
    yield from _batches(text)
    yield from _reports(text)
    starts = [found.start() for found in _TABLE.finditer(text)]
    for begin, end in itertools.pairwise([*starts, len(text)]):
        yield {name: float(value) for name, value in _ROW.findall(text[begin:end])}


def _summaries(text: str) -> Iterator[dict[str, str]]:
    """Yield summaries, with how each run was driven, which the lines above may say."""
    if (title := _SUMMARY.search(text)) and (width := title[0].index("==")):
        cut = [line[width:] for line in text.splitlines()]
        text = "\n".join(cut) if _named(cut) else text
    for above, below in itertools.pairwise(_SUMMARY.split(text)):
        # After the summary of the run before.
        above = above.rpartition("\n=====")[2]
        said: dict[str, list[str]] = {}
        for option, argument, value in _ARGUMENT.findall(above):
            name = (option or argument).replace("-", "_")
            said.setdefault("model_id" if name.startswith("model") else name, []).append(value)
        # Commands of other runs may stand there, too.
        found = {name: told[-1] for name, told in said.items() if name == "model_id" or len(set(told)) == 1}
        # Without its last line, the summary of the run before is above, too.
        nearest = _named(above.splitlines()[::-1])
        found |= {name: value for name, value in nearest.items() if name in _DRIVEN}
        found |= _named(_END.split(below, maxsplit=1)[0].splitlines())
        yield {name: value for name, value in found.items() if value.lower() not in _NONE}


def _named(lines: list[str]) -> dict[str, str]:
    """Return what lines of a summary, or above it, say; of those that say the same, the first counts."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and (key := _NAMES.get(name.strip().lower())):
            # People write remarks beside numbers.
            found.setdefault(key, _REMARK.split(value.strip())[0].replace(",", ""))
    return found


def _batches(text: str) -> Iterator[dict[str, float]]:
    """Yield batches but those that warm up; lengths follow from rates."""
    for part in _PHASE.split(text):
        found: dict[str, float] = {}
        for step in _STEP.finditer("" if part.startswith("Warmup") else part):
            what, batch, latency, rate = step[1], step[2], float(step[3]), float(step[4])
            if what == "Prefill":
                found = {"prefill_latency": latency, "prefill_throughput": rate}
            elif what == "Decode":
                found |= {"batch_size": int(batch)} if batch else {"median_decode_latency": latency}
            elif found.get("batch_size") and "prefill_latency" in found:
                prompt = found["prefill_latency"] * found["prefill_throughput"] / found["batch_size"]
                output = latency * rate / found["batch_size"] - prompt
                yield found | {"input_len": round(prompt), "output_len": round(output)}


def _reports(text: str) -> Iterator[dict[str, Any]]:
    marks = [found.start() for found in (_FIRST if _FIRST.search(text) else _REPORT).finditer(text)]
    for begin, end in itertools.pairwise([*marks, len(text)]):
        report: dict[str, Any] = {}
        for line in text[begin:end].splitlines():
            name, _, value = map(str.strip, line.partition(":"))
            if (place := _PLACES.get(name.lower())) and value != "None":
                *groups, key = place.split(".")
                group = report
                for part in groups:
                    group = group.setdefault(part, {})
                number = _NUMBER.fullmatch(value)
                group[key] = float(value) if number and number[1] else int(value) if number else value
        if "performance" in report:
            yield report
