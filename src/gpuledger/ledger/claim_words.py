"""Claims as sentences: ``kv_bytes_per_token, 131072, byte`` is "The KV cache takes 131,072 bytes per token."."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

import yaml

from gpuledger.ledger.claims import SOURCE_ERROR

#: Of quantities' names, what people call it; longer ones first.
_WORDS = {
    r"^qkv$": "the QKV projection",
    r"flash attnv2": "FlashAttention-2",
    r"max avgpool": "Max/AvgPool",
    r"sd v1 5": "SD 1.5",
    r"neutrino (running|scheduling) cycles": r"\1 cycles per SM (Neutrino's estimate)",
    r"neutrino scheduling to running": "scheduling over running cycles (Neutrino's estimate)",
    r"neutrino lost": "lost time of slots (Neutrino's estimate)",
    r"prologue max": "largest share of the prologue in the exposed latency",
    r"lightweight ratio max": "largest memory of a lightweight probe over the original's",
    r"block speed (slow|fast) tflops": r"\1 speed of a block",
    r"^right (.+?) (chunked prefill|prefill|decode)$": r"\1 in \2",
    r"median held back": "median error on held-back shapes",
    r"tpot median error unfitted": "median error of the time per output token, of kernels alone",
    r"tpot median error": "median error of the time per output token, with a term per engine",
    r"(rtx|sxm|[ahbv]\d+|gh\d+)": lambda found: found[0].upper(),
    r"held back large": "on large held-back shapes",
    r"pct of peak sustained": "share of the peak while",
    r"(block) (sched)": r"\1_\2",
    r"(gmem) (bytes)": r"\1_\2",
    r"(tensorop) (count)": r"\1_\2",
    r"proj": "projection",
    r"resnet": "ResNet",
    r"smsp sass inst executed op global st sum": "global store instructions",
    r"dram sectors read sum": "DRAM sectors read",
    r"dram bytes read sum": "DRAM bytes read",
    r"dram bytes write sum": "DRAM bytes written",
    r"sm cycles active sum": "active SM cycles",
    r"by (seq len|hidden dim|n layer) law": r"by \1: the law",
    r"by (seq len|hidden dim|n layer) (slope|intercept)": r"by \1: the \2",
    r"(seq len|hidden dim|n layer) (\d+)": r"at \1 \2",
    r"seq len": "sequence length",
    r"hidden dim": "hidden size",
    r"n layer": "number of layers",
    r"2mnk": "2·M·N·K",
    r"cycles p0$": "cycles of the fastest warp",
    r"cycles p100$": "cycles of the slowest warp",
    r"cycles p(\d+)$": r"cycles by which \1 % of the warps are done",
    r"mem trace": "DMAT",
    r"held back": "on held-back shapes",
    r"percent (fp\d+|int\d|nvfp4)": r"for \1",
    r"ffn (up|gate|down)": r"FFN \1",
    r"(mlp|qkv|mape|dram|gemm|sgemm|fmha|sm|fadd|fmul|ffma|kv|l2)": lambda found: found[0].upper(),
    r"flops": "FLOPs",
    r"macs": "MACs",
    r"ncu": "Nsight Compute",
    r"split k": "split-K",
    r"attn": "attention",
    r"bs(\d+)": r"(batch \1)",
    r"^out$": "the output projection",
    r"conv2d": "Conv2D",
    r"mamba": "Mamba",
    r"llama3": "Llama3",
    r"(\d) (\d)b": r"\1.\2B",
    r"(\d)b": r"\1B",
}
_WORD = {re.compile(rf"\b{pattern}(?!\w)"): words for pattern, words in _WORDS.items()}
#: Units that count things, in the plural.
_COUNTED = {"inst": "instructions", "launch": "launches", "block": "blocks", "burst": "bursts", "byte": "bytes"}
_COUNTED |= {"cycle": "cycles", "MAC": "MACs", "page": "pages", "parameter": "parameters"}
_COUNTED |= {"register": "registers", "sector": "sectors", "tensor": "tensors", "token": "tokens", "value": "values"}
_NUMBER = re.compile(r"(at most |at least )?[-+]?(inf|∞|[\d.,]+(e[-+]?\d+)?)")
_RATES = {"byte/s": "B/s", "FLOP/s": "FLOP/s", "MAC/s": "MAC/s"}
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def name(row: Mapping) -> str:
    """Return what a scorecard's row is about, in words: ``Tail ratio``."""
    words = row["quantity"] or row["id"].replace("-", " ")
    if row["unit"] == "%":
        words = words.removesuffix("_percent")
    words = _in_words(words)
    return words[:1].upper() + words[1:]


def _in_words(words: str) -> str:
    words = re.sub(r"[_\s]+", " ", words)
    for pattern, better in _WORD.items():
        words = pattern.sub(better, words)
    return words


def measure(row: Mapping, number: str | None = None) -> str:
    """Return a row's unit as it follows a number, or else its published value: `` %``, `` instructions``."""
    unit, number = row["unit"], str(row["published"]) if number is None else number
    if unit in ("", "1", "text") or not _NUMBER.fullmatch(number):
        return ""
    one = number.removeprefix("at most ").removeprefix("at least ") == "1"
    return f" {unit if one else _COUNTED.get(unit, unit)}"


def amount(number: str, row: Mapping) -> str:
    """Return a published or reproduced value of a row with its unit, rates in TB/s or GFLOP/s."""
    found = re.fullmatch(r"(at most |at least )?([\d.,]+)", number)
    if row["unit"] not in _RATES or not found:
        return f"{'∞' if number == 'inf' else number}{measure(row, number)}"
    value = float(found[2].replace(",", ""))
    size, prefix = next((pair for pair in _PREFIXES if value >= pair[0]), (1, ""))
    return f"{found[1] or ''}{value / size:.4g} {prefix}{_RATES[row['unit']]}"


def sentence(row: Mapping) -> str:
    """Return what a row claims, as a sentence; a statement of a source document is quoted."""
    published, about = str(row["published"]), name(row)
    if row["verdict"] == SOURCE_ERROR and not _NUMBER.fullmatch(published):
        return f"{about.removesuffix(': the law')}: “{published}”." if row["quantity"] else f"“{published}”."
    key = row["quantity"] or row["id"].replace("-", "_")
    for pattern, words in sentences().items():
        if found := pattern.fullmatch(key):
            parts = ["", *map(_in_words, found.groups())]
            raw = {f"_{place}": part for place, part in enumerate(found.groups(), 1)}
            said = words.format(*parts, **raw, value=amount(published, row), number=published)
            return said[:1].upper() + said[1:]
    return f"{about}: {amount(published, row)}."


@cache
def sentences() -> dict[re.Pattern, str]:
    """Return what claims say, by pattern of the quantity's name."""
    file = resources.files(__package__) / "claim_sentences.yaml"
    return {re.compile(pattern): words for pattern, words in yaml.safe_load(file.read_text("utf-8")).items()}
