"""Results of server benchmarks: ``vllm bench serve`` (JSON), ``sglang.bench_serving`` (JSON lines), or what they print;
and rows of InferenceX and reports of ``trtllm-bench``, which also describe the server; and what AIPerf, GenAI-Perf,
GuideLLM, LLMPerf, EvalScope and SGLang's ``bench_one_batch`` measured.

The first two programs print the same summary and write one object per run, with the same names for totals and times in
milliseconds, but nothing about the GPU. About the server, vLLM writes only what ``--metadata KEY=VALUE`` adds; newer
versions of SGLang write all of its arguments. Sources: vllm-project/vllm, ``vllm/benchmarks/serve.py``;
sgl-project/sglang, ``python/sglang/bench_serving.py``.
"""

import codecs
import csv
import io
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpuledger.errors import InputError, InputWarning, visible
from gpuledger.readers import load_generators, trtllm_bench
from gpuledger.readers.colours import without_colours
from gpuledger.readers.inferencex import as_result, flat, is_row
from gpuledger.readers.printed_runs import is_printed, printed_runs

#: Without the lengths and times of every request, a result has some kilobytes; with them, some megabytes.
MOST_BYTES = 256 << 20
#: Of a file that are read.
MOST_RUNS = 10_000
#: Times longer than a day (ms) and more tokens than this are no measurement.
_MOST = {"ms": 86_400_000.0, "tokens": 2.0**40}
#: What tells a result: totals that all versions of both programs write, or rates and times of InferenceX.
MARK = re.compile(
    r'"(?:(?:request|output)_throughput|request_throughput_req_s|tput_per_gpu|(?:median|mean)_tpot|scenario_type|'
    + "|".join(load_generators.MARKS)
    + r')"\s*:'
)
#: A result in a line of a log.
LINE = re.compile(r'^\{"[^\n]*"(?:request|output)_throughput"\s*:', re.MULTILINE)
#: What tells a table of results, such as the summary.csv of vllm bench sweep.
COLUMNS = {"completed", "total_input_tokens", "total_output_tokens"}
#: Names of a degree of parallelism among vLLM's metadata and SGLang's arguments.
_DEGREES = {
    "tensor": ("tensor_parallel_size", "tp_size", "tp"),
    "pipeline": ("pipeline_parallel_size", "pp_size", "pp"),
    "replicas": ("data_parallel_size", "dp_size", "dp"),
    "expert": ("ep_size",),
}
_QUANTISED = {"fp8": "fp8", "w8a8_fp8": "fp8", "modelopt": "fp8", "modelopt_fp8": "fp8", "modelopt_fp4": "nvfp4"}


class ServedRun(NamedTuple):
    """What one run of a benchmark says; of degrees of parallelism 0, of texts "" where it does not say it."""

    place: str  # the file's name, and which of several runs (the line of JSON lines)
    engine: str  # ``sglang``, ``trtllm`` or ``vllm``
    model: str  # as the server was asked for it
    #: Of a request, in the mean.
    input_tokens: int
    output_tokens: int
    prompts: int  # completed requests
    #: Requests at a time: the benchmark's limit, or, where requests arrive at a finite rate, by Little's law from their
    #: measured times; 0 if there is no limit.
    in_flight: int
    #: Median time to the first token (NaN: not measured) and per output token; the mean where no median is given.
    ttft_s: float
    tpot_s: float
    #: Degrees of parallelism. Replicas of the attention share the requests, and the experts if there are any.
    tensor: int
    pipeline: int
    replicas: int
    expert: int
    copies: int  # servers of their own that share the requests
    quantised: str  # ``fp8`` or ``nvfp4`` where the server was told to quantise (``fp4``: which one is not said)
    cache: str  # ``fp8`` for such a cache
    speculative: bool  # whether tokens were drafted
    gpu: str  # as InferenceX names it; the other programs do not know it
    one_batch: bool = False  # whether all requests begin and end together: none's prompt delays another's tokens
    #: Workers that decode, while others process the prompts, each with the degrees above; 0: the same GPUs do both.
    workers: int = 0
    #: The same of those that process the prompts: ``workers, tensor, pipeline, replicas, expert``.
    prefill: tuple[int, ...] = ()


def read_served(path: Path) -> list[ServedRun]:
    """Read the runs in a file, or in all files of a folder that hold such results: ``.json``, ``.jsonl``, else text.

    Of several runs, those without completed requests, lengths or times are left out, with one warning for each reason.
    """
    refused: list[InputError] = []
    if path.is_dir():
        runs = _of_folder(path, (".json", ".jsonl"), refused) or _of_folder(path, (".txt", ".log", ".out"), refused)
    else:
        runs = list(_read(path, refused))
    if not runs:
        problem = "no result of vllm bench serve, sglang.bench_serving, trtllm-bench, InferenceX, AIPerf or GuideLLM"
        remedy = "give what --save-result, --output-file or --report_json wrote, or the summary that was printed"
        raise refused[0] if refused else InputError(path, "", problem, remedy)
    count = len(refused) + len(runs)
    reasons: dict[str, list[InputError]] = {}
    for error in refused:
        reasons.setdefault(error.place.rpartition(", ")[2], []).append(error)
    for errors in reasons.values():
        words = f"{len(errors)} of {count} runs left out: {errors[0]}"
        warnings.warn(words, InputWarning, stacklevel=2)
    return runs


def _of_folder(folder: Path, suffixes: tuple[str, ...], refused: list[InputError]) -> list[ServedRun]:
    runs = []
    for file in sorted(file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file()):
        above = file.relative_to(folder).parent.as_posix()
        runs += [run._replace(place=f"{above}/{run.place}".removeprefix("./")) for run in _read(file, refused)]
    return runs


def _read(path: Path, refused: list[InputError]) -> Iterator[ServedRun]:
    """Yield the runs of a file, and add what is wrong with others to `refused`."""
    for number, (at, values) in enumerate(_entries(path)):
        if number == MOST_RUNS:
            raise InputError(path, "", f"more than {MOST_RUNS:,} runs", "divide it into several files")
        try:
            yield _Entry(path, at, values).run()
        except InputError as error:
            refused.append(error)


def _entries(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield each run's values and its number: the line of JSON lines, 0 if it is the only one."""
    if path.stat().st_size > MOST_BYTES:
        raise InputError(path, "", f"larger than {MOST_BYTES >> 20} MiB", "leave out the times of every request")
    content = path.read_bytes()
    try:
        if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # PowerShell redirects to UTF-16
            content = content.decode("utf-16").encode()
        text = without_colours(content).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(path, "", "not text in UTF-8", "give the file that the benchmark wrote") from None
    whole = None
    if MARK.search(text):
        with suppress(ValueError, RecursionError):
            whole = json.loads(text)
    if whole is None and (is_printed(text) or not MARK.search(text)) and not _is_table(text):
        printed = list(printed_runs(text))
        yield from enumerate(printed, len(printed) > 1)
        return
    one = isinstance(whole, dict)
    if _is_table(text):
        entries = enumerate(_rows(path, text), 2)
    elif whole is None:
        # In a log, other lines stand between them.
        lines = (found for found in enumerate(text.split("\n"), 1) if found[1].startswith("{") or MARK.search(found[1]))
        entries = ((at, _line(path, at, line)) for at, line in lines)
    else:
        listed = load_generators.runs_in(whole) if one else whole
        one, entries = one and len(listed) == 1, enumerate(listed, 1)
    for at, entry in entries:
        entry = flat(entry) if isinstance(entry, dict) else entry
        if isinstance(entry, dict) and (
            {"request_throughput", "output_throughput"} & entry.keys()
            or entry.keys() >= COLUMNS
            or is_row(entry)
            or trtllm_bench.is_report(entry)
            or load_generators.reader_of(entry)
        ):
            yield 0 if one else at, entry


def _is_table(text: str) -> bool:
    return {cell.strip(' "') for cell in text[: 1 << 16].partition("\n")[0].split(",")} >= COLUMNS


def _rows(path: Path, text: str) -> Iterator[dict[str, str]]:
    try:
        for row in csv.DictReader(io.StringIO(text)):
            # Counts beside empty cells are decimals for pandas.
            yield {name: value.removesuffix(".0") for name, value in row.items() if name and value}
    except csv.Error as error:
        raise InputError(path, "", f"not a CSV table ({error})", "leave out the times of every request") from None


def _line(path: Path, at: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(path, f"line {at}", "not valid JSON", "remove the line, or save the result again") from None


class _Entry:
    """One run's object, whose values are checked as they are asked for."""

    def __init__(self, path: Path, at: int, values: Mapping[str, Any]):
        self.path, self.at = path, at
        # Names of InferenceX's runners go on after the GPU's: h200-nb, b200-trt, cluster:h100-dgxc.
        self.gpu = (
            re.split(r"[-_]", str(values["hw"]).strip().removeprefix("cluster:"))[0] or "?" if is_row(values) else ""
        )
        if self.gpu:
            values = as_result(values, path.name, self.refuse)
        elif trtllm_bench.is_report(values):
            values = trtllm_bench.as_result(values, self.refuse)
        elif read := load_generators.reader_of(values):
            values = read(values, self.refuse)
        self.values = values
        told = self.values.get("server_info")
        self.server = told if isinstance(told, Mapping) else {}

    def run(self) -> ServedRun:
        prompts = self.count("completed")
        if not prompts:
            self.refuse("completed", "no request was completed", "remove the run")
        lengths = {way: max(1, round(self.count(f"total_{way}_tokens") / prompts)) for way in ("input", "output")}
        tpot, ttft = self.time("tpot"), self.time("ttft")
        if math.isnan(tpot):
            tpot = self.derived_tpot(prompts)
        text = {name: str(self.values.get(name) or "") for name in ("backend", "model_id")}
        quantised = str(self.server.get("quantization") or "").lower()
        run = ServedRun(
            place=f"{self.path.name}:{self.at}" if self.at else self.path.name,
            engine=self.engine(text["backend"].lower()),
            model=str(self.server.get("model_path") or "") or text["model_id"],
            input_tokens=lengths["input"],
            output_tokens=lengths["output"],
            prompts=prompts,
            in_flight=self.in_flight(prompts, ttft, tpot, lengths["output"]),
            ttft_s=ttft / 1e3,
            tpot_s=tpot / 1e3,
            **self.degrees(self.server),
            quantised=_QUANTISED.get(quantised, quantised),
            cache="fp8" if str(self.server.get("kv_cache_dtype") or "").lower().startswith("fp8") else "",
            speculative=bool(self.server.get("speculative_algorithm")),
            gpu=self.gpu,
            one_batch=self.values.get("one_batch") is True,
        )
        if apart := self.values.get("prefill_info") if self.gpu else None:
            of_prompts = self.degrees(apart)
            sizes = tuple(of_prompts[name] for name in ("tensor", "pipeline", "replicas", "expert"))
            run = run._replace(workers=self.server["workers"], prefill=(apart["workers"], *sizes))
        # JSON may hold halves of characters, which are no text.
        return ServedRun(*map(visible, run))

    def engine(self, backend: str) -> str:
        """Return the engine: SGLang's program tells it where it asked the server, vLLM's says how it was asked."""
        for name in ("sglang", "vllm"):
            if backend.startswith(name):
                return name
        if backend.startswith(("trt", "tensorrt")):
            return "trtllm"
        return backend if self.gpu else "sglang" if self.server else ""

    def in_flight(self, prompts: int, ttft: float, tpot: float, output: int) -> int:
        limit = max(self.number("max_concurrency") or 0.0, 0.0)
        rate = self.values.get("request_rate")
        if isinstance(rate, str):
            rate = math.inf if rate.strip().lower() in ("inf", "infinity") else self.number("request_rate")
        if rate is None or rate == math.inf:
            return int(min(limit, prompts))
        duration = self.number("duration") or 0.0
        if not duration > 0 or math.isnan(ttft):
            return int(min(limit, prompts))
        # Little's law: so many are in flight as begin while one of them is served.
        together = max(1, round(min(prompts / duration * (ttft + (output - 1) * tpot) / 1e3, prompts)))
        return int(min(together, limit or prompts, prompts))

    def time(self, name: str) -> float:
        """Return a median time (ms), or the mean where there is none; NaN if neither is measured."""
        for kind in ("median", "mean"):
            value = self.number(key := f"{kind}_{name}_ms")
            if value is not None and value > 0:
                if value > _MOST["ms"]:
                    self.refuse(key, f"{value:g} ms are more than a day", "write milliseconds")
                return value
        return math.nan

    def derived_tpot(self, prompts: int) -> float:
        """Return the mean time per output token (ms) of all tokens but the first ones.

        SGLang's program left such a time out of its results at first, and out of what it prints in 2025, but says means
        of latency and time to the first token.
        """
        later = self.count("total_output_tokens") - prompts
        if later <= 0:
            self.refuse("total_output_tokens", "no token follows the first ones", "benchmark longer outputs")
        latency, ttft = self.number("mean_e2e_latency_ms"), self.number("mean_ttft_ms")
        if latency is None or ttft is None or not 0 < ttft < latency <= _MOST["ms"]:
            remedy = "add tpot to --percentile-metrics, or give outputs with mean latency and TTFT"
            self.refuse("median_tpot_ms", "the time per output token is missing", remedy)
        return prompts * (latency - ttft) / later

    def count(self, name: str) -> int:
        value = self.number(name)
        if value is None:
            self.refuse(name, "it is missing", "save the result with the benchmark's own program")
        if not 0 <= value <= _MOST["tokens"] or value != int(value):
            self.refuse(name, f"{value:g} is not a count", "correct it")
        return int(value)

    def degrees(self, server: Mapping[str, Any]) -> dict[str, int]:
        """Return a server's degrees of parallelism, and the number of servers."""
        found = {name: self.degree(server, names) for name, names in _DEGREES.items()} | {"copies": 1}
        if server and not server.get("enable_dp_attention"):
            # SGLang's data parallelism; that of the attention alone divides the tensor group instead.
            found |= {"copies": max(found["replicas"], 1), "replicas": 0}
        elif server and found["replicas"] > 1:
            if found["tensor"] % found["replicas"]:
                problem = f"{found['replicas']} replicas of the attention on {found['tensor']} GPUs"
                self.refuse("dp_size", problem, "give the degrees with which the server was started")
            found["tensor"] //= found["replicas"]
        return found

    def degree(self, server: Mapping[str, Any], names: tuple[str, ...]) -> int:
        """Return a degree of parallelism; 0 if neither the server nor the metadata says it."""
        for source in (server, self.values):
            for name in names:
                if (value := source.get(name)) is not None:
                    if not re.fullmatch(r"[0-9]{1,5}", str(value)):
                        self.refuse(name, f"{str(value)[:40]!r} is not a number of GPUs", "correct it")
                    return int(value)
        return 0

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number):
            self.refuse(name, f"{str(value)[:40]!r} is not a number", "correct it")
        return number

    def refuse(self, name: str, problem: str, remedy: str) -> None:
        raise InputError(self.path, f"run {self.at}, {name}" if self.at else name, problem, remedy)
