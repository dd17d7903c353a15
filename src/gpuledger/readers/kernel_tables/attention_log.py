"""Logs of benchmarks of attention: what FlashAttention's scripts and FlashMLA's tests print.

Sources: Dao-AILab/flash-attention, ``benchmarks/benchmark_flash_attention.py`` (rates of both passes in a line),
``hopper/benchmark_attn.py`` (a line with time and rate for each) and ``benchmarks/benchmark_attn.py`` (since 2026
tables of ``ms/TFLOPS/…``); deepseek-ai/FlashMLA, ``tests/test_flash_mla.py`` (its first release). Rates count half of
the products under a causal mask, but FlashMLA's all; of gradients two and a half times as many.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError, unreadable
from gpuledger.readers.kernel_tables.measured_table import median_of_equal

#: Columns of what was run, in order.
SHAPE = ("requests", "queries", "keys", "heads", "kv_heads", "key_dim", "value_dim")
#: How often a rate counts the FLOP of the forward pass.
COUNTED = {"forward": 1.0, "backward": 2.5}
_NUMBER = r"\d{1,9}(?:\.\d{1,12})?"
_HEADING = re.compile(r"^[>\s]*###\s*([^#\n]{1,400}?)\s*###\s*$")
_PAIR = re.compile(r"(\w{1,40})\s*=\s*'?([\w.]{1,40})", re.ASCII)
_MLA = re.compile(r"^[>\s]*(?:dtype=[\w.]{1,40}, )?b=\d{1,9}, s_q=\d{1,9}, mean_sk=\d{1,9}, [^\n]{1,200}$")
_TIMED = re.compile(rf"({_NUMBER}) ?ms, ({_NUMBER}) ?TFLOPS(?:, {_NUMBER} GB/s)?\s*$")
_NAMED = re.compile(
    r"^[>\s]*(?P<tag>\[[^\]\n]{1,60}\] *)?(?P<name>[\w .\-]{1,60}?)(?: (?P<pass>fwd|bwd))?: (?P<rest>.{1,300})$"
)
_RATES = re.compile(rf"(?:^|, )(?:(fwd|bwd): )?({_NUMBER}) TFLOPs/s(?:, ({_NUMBER}) ms)?", re.IGNORECASE)
_TABLE = re.compile(r"^\s*(FWD|BWD) \(ms / TFLOPS")
_ANNOUNCED = re.compile(
    r"^Benchmarking .{1,40} (?:fwd|bwd), hdim=(\d{1,6}),.{0,200}? nheads=(\d{1,6}), nheads_kv=(\d{1,6})"
)
_CELL = re.compile(rf"({_NUMBER})/({_NUMBER})(?:/\S{{1,60}})?$")
_HEAD, _MOST_BYTES, _MOST_SIZE, _DIGITS = 1 << 16, 64 << 20, 1 << 31, 12
#: Queries' dimensions of all heads in FlashAttention's scripts, where they do not print heads.
_WIDTH = 2048
#: Libraries by how their names begin in logs, without capitals, spaces and signs.
_LIBRARIES = {
    **dict.fromkeys(("flash2", "fav2", "fa2", "flashattn2"), "FlashAttention-2"),
    **dict.fromkeys(("flash3", "fav3", "fa3", "flashattn3"), "FlashAttention-3"),
    **dict.fromkeys(("flash4", "fav4", "fa4", "fapython", "flashattn4"), "FlashAttention-4"),
    "cudnn": "cuDNN",
    "triton": "Triton",
    "xformersf": "FlashAttention-2",
}
#: Not one kernel, by how their names begin.
_UNFUSED = ("pytorch", "standard", "math")


def is_attention_log(head: str) -> bool:
    """Tell whether a text begins like a log of a benchmark of attention."""
    lines = head.splitlines()
    blocks = any(_MLA.match(line) or (_HEADING.match(line) and "headdim" in line) for line in lines)
    return any(map(_TABLE.match, lines)) or (blocks and any(map(_speeds_of, lines)))


def is_log(path: Path) -> bool:
    """Tell whether a file is such a log; a file that cannot be read is none."""
    try:
        with path.open("rb") as file:
            return is_attention_log(file.read(_HEAD).decode("utf-8", "replace"))
    except OSError:
        return False


def read_attention_log(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read the times of each library and pass.

    Returns
    -------
    frame : DataFrame
        ``library, pass`` (forward, backward)``, precision, causal``, `SHAPE` and ``measured_s``; equal rows are one,
        with the median of repetitions, and the least of variants such as ``[1CTA]`` and ``[2CTA]``.
    skipped : list of str
        What was left out: what is not one kernel, and what ran on sequences of lengths that are not printed.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(path, "", f"larger than {_MOST_BYTES >> 20} MiB", "give only what the benchmark printed")
        lines = path.read_text("utf-8-sig", "replace").splitlines()
    except OSError as error:
        raise unreadable(path, error, "correct the path or its permissions") from None
    skipped: set[str] = set()
    rows = [*_blocks(path, lines, skipped), *_tables(path, lines, skipped)]
    if not rows:
        problem = "no attention kernel in it has a speed"
        problem += f" (left out: {', '.join(sorted(skipped))})" if skipped else ""
        raise InputError(path, "", problem, "give the log of a run that went well")
    # Of variants of a kernel, which the log times apart, the fastest: a library chooses one of them.
    frame = median_of_equal(pd.DataFrame(rows)).sort_values("measured_s", kind="stable")
    about = [name for name in frame if name not in ("variant", "measured_s")]
    return frame.drop_duplicates(about)[[*about, "measured_s"]].sort_values(about, ignore_index=True), sorted(skipped)


def _blocks(path: Path, lines: list[str], skipped: set[str]) -> Iterator[dict]:
    """Yield the rows of lines that follow a line with the shape."""
    shape: Mapping[str, str] = {}
    for number, line in enumerate(lines, 1):
        if found := _HEADING.match(line):
            shape = dict(_PAIR.findall(found[1]))
        elif _MLA.match(line):
            shape = dict(_PAIR.findall(line))
            if shape.get("varlen") == "True":
                skipped.add("lengths that differ")
                shape = {}
        elif shape:
            for name, passed, time_ms, rate in _speeds_of(line):
                if not (float(time_ms or 0) or float(rate or 0)):
                    continue  # out of memory
                if row := _row(path, number, shape, name, passed, time_ms, rate, skipped):
                    yield row


def _speeds_of(line: str) -> list[tuple[str, str, str, str]]:
    """Return name, pass, time (ms) and rate (TFLOP/s) of all that a line tells; what it does not is empty."""
    if found := _TIMED.search(line):
        if not line[: found.start()].strip("> \t"):
            return [("FlashMLA", "fwd", found[1], found[2])]
        named = _NAMED.match(line[: found.start()] + "_")
        return [((named["tag"] or "") + named["name"], named["pass"] or "", found[1], found[2])] if named else []
    if (named := _NAMED.match(line)) and named["pass"]:
        speeds = _RATES.findall(named["rest"])
        name = (named["tag"] or "") + named["name"]
        return [(name, passed.lower() or named["pass"], time_ms, rate) for passed, rate, time_ms in speeds]
    return []


def _library(name: str, skipped: set[str]) -> str:
    """Return what a log's name stands for; empty if it is left out."""
    plain = re.sub(r"\[.*?\]|[^a-z0-9]", "", name.lower())
    if plain.startswith(_UNFUSED) or "deterministic" in name or "varlen" in name:
        skipped.add(name.strip())
        return ""
    return next((library for begin, library in _LIBRARIES.items() if plain.startswith(begin)), name.strip())


def _row(
    path: Path,
    number: int,
    shape: Mapping[str, str],
    name: str,
    passed: str,
    time_ms: str,
    rate: str,
    skipped: set[str],
) -> dict | None:
    library = _library(name, skipped)
    passed = "backward" if (passed or shape.get("mode", "fwd")) == "bwd" else "forward"
    if not library or (passed == "backward" and shape.get("deterministic") == "True"):
        return None
    latent = "mean_sk" in shape
    size = {key: int(value) for key, value in shape.items() if value.isdigit() and len(value) <= _DIGITS}
    first = {
        "requests": size.get("b" if latent else "batch_size", size.get("batch", 0)),
        "queries": size.get("s_q" if latent else "seqlen_q", size.get("seqlen", 0)),
        "keys": size.get("mean_sk" if latent else "seqlen", 0),
        "heads": size.get("h_q" if latent else "nheads", 0),
        "key_dim": size.get("d" if latent else "headdim", 0),
    }
    first["kv_heads"] = size.get("h_kv" if latent else "nheads_kv", first["heads"])
    first["value_dim"] = size.get("dv" if latent else "headdim_v", first["key_dim"])
    causal = shape.get("causal") == "True"
    # FlashMLA counts all keys of its few queries.
    of_head = _flop_of_head(first, causal and not latent, passed)
    if not first["heads"] and first["key_dim"]:
        first["heads"] = first["kv_heads"] = max(_WIDTH // first["key_dim"], 1)
    if not first["requests"] and of_head and first["heads"] and time_ms and rate:
        first["requests"] = round(float(time_ms) * float(rate) * 1e9 / of_head / first["heads"])
    if not all(0 < value <= _MOST_SIZE for value in first.values()):
        missing = ", ".join(key for key, value in first.items() if not 0 < value <= _MOST_SIZE)
        raise InputError(
            path, f"line {number}", f"the line with the shape above does not tell {missing}", "add it there"
        )
    whole = of_head * first["requests"] * first["heads"]
    measured_s = float(time_ms) * 1e-3 if time_ms else 0.0
    if float(rate or 0) and (not measured_s or _digits(rate) > _digits(time_ms)):
        measured_s = whole / (float(rate) * 1e12)
    precision = "fp8" if "fp8" in name.lower() else "bf16"
    about = {"variant": name.strip(), "library": library, "pass": passed, "precision": precision, "causal": causal}
    return about | {key: first[key] for key in SHAPE} | {"measured_s": measured_s}


def _flop_of_head(sizes: Mapping[str, int], causal: bool, passed: str) -> float:
    """Return the FLOP that a rate counts for one head of one request."""
    pairs = sizes["queries"] * (sizes["keys"] - causal * min(sizes["queries"], sizes["keys"]) / 2.0)
    return 2.0 * pairs * (sizes["key_dim"] + sizes["value_dim"]) * COUNTED[passed]


def _tables(path: Path, lines: list[str], skipped: set[str]) -> Iterator[dict]:
    """Yield the rows of tables with a column for each library."""
    heads: dict[str, tuple[str, str]] = {}
    passed, names, columns = "", [], []
    for number, line in enumerate(lines, 1):
        if found := _ANNOUNCED.match(line):
            heads[found[1]] = found[2], found[3]
        elif found := _TABLE.match(line):
            passed, columns = found[1].lower(), []
        elif passed and (words := line.split()) and words[0] == "hdim":
            known = [word for word in words if word in ("hdim", "causal", "batch", "seqlen", "seqlen_q", "seqlen_kv")]
            columns, names = known, words[len(known) :]
        elif columns and line.strip(" -="):
            cells = line.split()
            values = dict(zip(columns, cells, strict=False))
            if len(cells) != len(columns) + len(names) or values.get("causal") not in ("True", "False"):
                columns = []
                continue
            dim, _, value_dim = values["hdim"].partition("-")
            # The script's own numbers of heads.
            usual = str(32 if int(dim or 0) <= 64 else 16 if int(dim or 0) <= 192 else 8) if dim.isdigit() else ""
            of_heads = heads.get(dim, (usual, usual))
            shape = {
                "headdim": dim,
                "headdim_v": value_dim or dim,
                "causal": values["causal"],
                "batch_size": values.get("batch", ""),
                "seqlen": values.get("seqlen_kv") or values.get("seqlen", ""),
                "seqlen_q": values.get("seqlen_q") or values.get("seqlen", ""),
                "nheads": of_heads[0],
                "nheads_kv": of_heads[1],
            }
            for name, cell in zip(names, cells[len(columns) :], strict=True):
                speed = _CELL.match(cell)
                if not speed or not any(map(float, speed.groups())):
                    continue
                if row := _row(path, number, shape, name, passed, speed[1], speed[2], skipped):
                    yield row


def _digits(number: str) -> int:
    return len(number.replace(".", "").lstrip("0"))
