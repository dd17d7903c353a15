"""Claims as sentences: ``forward_gemm_flops, 2702704640, FLOP`` is "Forward GEMM FLOPs are 2,702,704,640"."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuledger.ledger.claims import SOURCE_ERROR

#: Of quantities' names, what people call it; longer ones first.
_WORDS = {
    r"neutrino (running|scheduling) cycles": r"\1 cycles per SM, as Neutrino estimates them,",
    r"neutrino scheduling to running": "scheduling over running cycles, as Neutrino estimates them,",
    r"neutrino lost": "time that slots lose, as Neutrino estimates it,",
    r"prologue max": "largest share of the prologue in the exposed latency",
    r"lightweight ratio max": "largest memory of a lightweight probe over the original's",
    r"block speed (slow|fast) tflops": r"\1 speed of a block",
    r"^right (\w+) (\w+) ": r"\1 \2 in ",
    r"^right (\w+) ": r"\1 in ",
    r"median held back": "median error on held-back shapes",
    r"(rtx|sxm|[ahbv]\d+|gh\d+)": lambda found: found[0].upper(),
    r"held back large": "on large held-back shapes",
    r"pct of peak sustained": "share of the peak while",
    r"(block) (sched)": r"\1_\2",
    r"(gmem) (bytes)": r"\1_\2",
    r"(tensorop) (count)": r"\1_\2",
    r"proj": "projection",
    r"mlp": "MLP",
    r"qkv": "QKV",
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
    r"mape": "MAPE",
    r"dram": "DRAM",
    r"gemm": "GEMM",
    r"sgemm": "SGEMM",
    r"flops": "FLOPs",
    r"macs": "MACs",
    r"fmha": "FMHA",
    r"ncu": "Nsight Compute",
    r"lm head": "LM head",
    r"sm": "SM",
    r"fadd": "FADD",
    r"fmul": "FMUL",
    r"ffma": "FFMA",
    r"split k": "split-K",
    r"kv": "KV",
    r"attnv2": "attention v2",
    r"attn": "attention",
    r"bs(\d+)": r"batch \1",
    r"(\d) (\d)b": r"\1.\2B",
    r"(\d)b": r"\1B",
}
_WORD = {re.compile(rf"\b{pattern}(?!\w)"): words for pattern, words in _WORDS.items()}
#: Units that count things, in the plural.
_COUNTED = {"inst": "instructions", "launch": "launches", "block": "blocks", "burst": "bursts", "byte": "bytes"}
_COUNTED |= {"cycle": "cycles", "kernel": "kernels", "MAC": "MACs", "page": "pages", "parameter": "parameters"}
_COUNTED |= {"register": "registers", "sector": "sectors", "tensor": "tensors", "token": "tokens", "value": "values"}
_PLURAL = re.compile(rf"(FLOPs|stores|{'|'.join(_COUNTED.values())})$", re.IGNORECASE)
_WHERE = re.compile(r"( at (sequence length|hidden size|number of layers) \d+| per \w+| predicted| read| written)*$")


def name(row: Mapping) -> str:
    """Return what a scorecard's row is about, in words: ``Tail ratio``."""
    words = re.sub(r"[_\s]+", " ", row["quantity"] or row["id"].replace("-", " "))
    if row["unit"] == "%":
        words = words.removesuffix(" percent")
    for pattern, better in _WORD.items():
        words = pattern.sub(better, words)
    return words[:1].upper() + words[1:]


def measure(row: Mapping) -> str:
    """Return a row's unit as it follows its published value: `` %``, `` instructions``."""
    unit = row["unit"]
    if unit in ("", "1", "text"):
        return ""
    one = row["published"].removeprefix("at most ").removeprefix("at least ") == "1"
    return f" {unit if one else _COUNTED.get(unit, unit)}"


def sentence(row: Mapping) -> str:
    """Return what a row claims, as a sentence: ``Tail ratio is 0.2469.``; a statement is quoted."""
    published, about = str(row["published"]), name(row)
    if not re.fullmatch(r"(at most |at least )?[-+]?[\d.,]+(e[-+]?\d+)?", published):
        if row["verdict"] == SOURCE_ERROR:
            return f"{about}: “{published}”." if row["quantity"] else f"“{published}”."
        verb = ":" if published in ("yes", "no") else "" if about.endswith("depends on") else " is"
        return f"{about.removesuffix(': the law')}{verb} {published}{measure(row)}."
    plural = _PLURAL.search(_WHERE.sub("", about))
    # What is counted has been named.
    said = "" if plural and row["unit"] in {"FLOP", *_COUNTED} else measure(row)
    return f"{about} {'are' if plural else 'is'} {published}{said}."
