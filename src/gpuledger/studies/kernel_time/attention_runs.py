"""Attention that others measured on many GPUs, beside what the constants of the checkout predict for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.attention.backward_law import PRODUCTS, around_bytes, backward_terms
from gpuledger.models.time_model.attention.decode_law import decode_terms
from gpuledger.models.time_model.attention.encoder_law import encoder_terms
from gpuledger.models.time_model.attention.library_kernels import LibraryKernels, library_entries
from gpuledger.models.time_model.attention.prefill_law import prefill_terms
from gpuledger.models.time_model.constants import choice
from gpuledger.models.time_model.work import attention_work
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.readers.kernel_tables.attention_log import COUNTED, SHAPE, is_log, read_attention_log
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.studies.kernel_time.published_runs import (
    OTHER_GPU,
    OTHER_KERNEL,
    OWN,
    add_summary,
    finding,
    with_speeds,
)

#: New tokens of a request up to which a kernel decodes.
_DECODED = 8
#: The roofline's time from which on a kernel is judged: shorter ones are mostly their launch.
_LEAST_S = 20e-6
_BITS = {"bf16": 16, "fp16": 16, "fp8": 8}
_FORMATS = {16: ("bf16/bf16",), 8: ("fp8/fp8", "bf16/fp8", "bf16/bf16")}
#: Of a table of attention.
COLUMNS = [
    Column("run"),
    Column("gpu"),
    Column("library"),
    Column("pass", choices=("forward", "backward")),
    Column("precision", choices=tuple(_BITS)),
    Column("causal", "flag"),
    *(Column(size, "integer", minimum=1, maximum=2**31) for size in SHAPE),
    Column("time_ms", "number", minimum=1e-6, maximum=1e9, optional=True),
    Column("tflop_per_s", "number", minimum=1e-6, maximum=1e6, optional=True),
]


def reduce_attention_runs(case: Case, known: Mapping[str, Gpu]) -> tuple[CaseResult, list[Gpu]]:
    """Predict each kernel by its library's constants, or else as ``gpuledger predict`` would; nothing is fitted."""
    path = case.path("attention_runs")
    frame, listed, skipped = _read(case, path, known)
    for wrong, problem in (
        (frame["queries"] > frame["keys"], "it has more queries than keys"),
        (frame["heads"] % frame["kv_heads"] != 0, "heads is no multiple of kv_heads"),
    ):
        if wrong.any():
            raise InputError(path, f"line {int(np.flatnonzero(wrong)[0]) + 2}", problem, "correct it")
    frame = frame.assign(kind=_kinds(frame))
    frame["shape"] = _shape_words(frame)
    frame["group"] = np.where(frame["precision"] == "fp8", "fp8", frame["kind"].str.removesuffix(", full"))
    gpus = {gpu.name: gpu for gpu in listed}
    frame["gpu"] = frame["gpu"].map(dict(zip(frame["gpu"].unique(), gpus, strict=True)))
    keys = ["gpu", "library", "precision", "kind", "key_dim", "value_dim"]
    parts = [_predicted(gpus[gpu], rows) for (gpu, *_), rows in frame.groupby(keys, sort=False)]
    data = pd.concat(parts).sort_index(ignore_index=True)
    result = CaseResult(with_speeds(data, data["roofline_s"] >= _LEAST_S))
    if not result.data["judged"].any():
        raise InputError(path, "", f"no kernel of {_LEAST_S * 1e6:g} µs or more can be predicted", "add some")
    add_summary(result, "kernel")
    result.add("skipped_lines", ", ".join(skipped) or "none", "text")
    words = {OWN: "their GPU's", OTHER_GPU: "another GPU's", OTHER_KERNEL: "another kernel's"}
    result.add("finding", finding("Attention that others timed", result.data, words), "text")
    return result, listed


def _read(case: Case, path: Path, known: Mapping[str, Gpu]) -> tuple[pd.DataFrame, list[Gpu], list[str]]:
    """Return what was measured, the GPUs in the order of their names in it, and what was left out."""
    if is_log(path):
        if "gpu" not in case.inputs:
            raise case.error("attention_runs", "the log does not say on which GPU it ran", "give it as gpu")
        gpu = find_gpu(case.inputs["gpu"], known, case.dataset.file, f"{case.place}.gpu")
        frame, skipped = read_attention_log(path)
        frame.insert(0, "gpu", gpu.name)
        frame.insert(0, "run", path.stem)
        return frame.assign(flop=_flop(frame)), [gpu], skipped
    if "gpu" in case.inputs:
        raise case.error("gpu", "a table has a column for it", "leave it out")
    frame = read_csv(path, COLUMNS)
    frame["flop"] = _flop(frame)
    times = [
        frame.pop(name) if name in frame else pd.Series(np.nan, frame.index) for name in ("time_ms", "tflop_per_s")
    ]
    frame["measured_s"] = times[0].mul(1e-3).fillna(frame["flop"] / times[1] / 1e12)
    if (lost := frame["measured_s"].isna()).any():
        place = f"line {int(np.flatnonzero(lost)[0]) + 2}"
        raise InputError(path, place, "it has neither time_ms nor tflop_per_s", "give one of them")
    first = frame["gpu"].drop_duplicates()
    gpus = [find_gpu(name, known, path, f"line {row + 2}, column gpu") for row, name in first.items()]
    return frame, gpus, []


def _kinds(frame: pd.DataFrame) -> np.ndarray:
    latent = frame["key_dim"] != frame["value_dim"]
    decoded = (frame["queries"] <= _DECODED) & (frame["keys"] > frame["queries"])
    masked = np.where(frame["causal"], "causal", "full")
    forward = np.where(decoded, np.where(latent, "latent", "decode"), masked)
    return np.where(frame["pass"] == "backward", np.where(frame["causal"], "backward", "backward, full"), forward)


def _flop(frame: pd.DataFrame) -> pd.Series:
    """Return the FLOP as benchmarks count them: half of all pairs under a mask, two and a half times backward."""
    pairs = frame["queries"] * (frame["keys"] - frame["causal"] * frame["queries"] / 2.0)
    products = frame["pass"].map(COUNTED)
    return 2.0 * frame["requests"] * frame["heads"] * pairs * (frame["key_dim"] + frame["value_dim"]) * products


def _shape_words(frame: pd.DataFrame) -> list[str]:
    words = []
    for row in frame.itertuples():
        tokens = f"{row.queries:,}" if row.queries == row.keys else f"{row.queries:,} on {row.keys:,}"
        words.append(f"{row.requests:,} × {tokens}, {row.kind}, {row.library}")
    return words


def _shapes(gpu: Gpu, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    value_bytes = rows["precision"].map(_BITS).to_numpy(float) / 8
    sizes = {name: rows[name].to_numpy(float) for name in ("requests", "heads", "kv_heads")}
    key_dim, value_dim = (rows[name].to_numpy(float) for name in ("key_dim", "value_dim"))
    latent = (rows["kind"] == "latent").to_numpy()
    return sizes | {
        "tokens": rows["queries"].to_numpy(float),
        "context": (rows["keys"] - rows["queries"]).to_numpy(float),
        "head_dim": (key_dim + value_dim) / 2,
        "cache_values": np.where(latent, key_dim, sizes["kv_heads"] * (key_dim + value_dim)),
        "copied_values": np.zeros(len(rows)),
        "window": np.zeros(len(rows)),
        "masked": rows["causal"].to_numpy(float),
        "value_bytes": value_bytes,
        "cache_bytes": value_bytes,
        "peak": np.full(len(rows), _peak(gpu, value_bytes[0])),
    }


def _peak(gpu: Gpu, value_bytes: float) -> float:
    return gpu.peak_flop_per_s("fp8" if value_bytes == 1 else "bf16")


def _predicted(gpu: Gpu, rows: pd.DataFrame) -> pd.DataFrame:
    kind, library = rows[["kind", "library"]].iloc[0]
    shapes = _shapes(gpu, rows)
    flop, moved = attention_work(shapes)
    formats = _FORMATS[_BITS[rows["precision"].iloc[0]]]
    head_dim = float(shapes["head_dim"][0])
    rows = rows.assign(
        predicted_s=np.nan, constants="", constants_of="", kernel="", peak_tflop_per_s=shapes["peak"] / 1e12
    )
    pairs = rows["requests"] * rows["heads"] * rows["queries"] * rows["keys"]
    flop = np.where(rows["causal"], flop, pairs * 4 * head_dim)
    factor = PRODUCTS if rows["pass"].iloc[0] == "backward" else 1.0
    rows["roofline_s"] = np.maximum(factor * flop / shapes["peak"], moved / gpu.dram_bytes_per_s)
    found, terms = _terms(gpu, kind, library, formats, head_dim, shapes)
    whose = OTHER_KERNEL if not found.own else OWN if found.here else OTHER_GPU
    origins = [choice.origin(str(words)) for words in terms["constants"]]
    origins = ["" if origin.startswith("the same GPU") else origin for origin in origins]
    if not found.own:
        origins = [f"another kernel, {origin}".removesuffix(", ") for origin in origins]
    return rows.assign(predicted_s=terms["time_s"], constants=whose, constants_of=origins, kernel=terms["constants"])


def _terms(
    gpu: Gpu, kind: str, library: str, formats: Sequence[str], head_dim: float, shapes: Mapping[str, np.ndarray]
) -> tuple[LibraryKernels, dict[str, np.ndarray]]:
    """Return whose kernel stands for a library's, and the terms of the fastest of them."""
    if kind.startswith("backward"):
        found = library_entries("backward", gpu, ("bf16/bf16",), library, False, head_dim)
        if found.entries:
            return found, choice.fastest(found.entries, lambda entry: backward_terms(gpu, entry.constants, shapes))
        forward = "full" if kind.endswith("full") else "causal"
        found, terms = _terms(gpu, forward, library, formats, head_dim, shapes)
        around_s = around_bytes(shapes) / gpu.dram_bytes_per_s
        return found, terms | {"time_s": PRODUCTS * terms["time_s"] + around_s}
    decodes = kind in ("decode", "latent")
    table, law = ("decode", decode_terms) if decodes else ("prefill", prefill_terms)
    found = library_entries(table, gpu, formats, library, kind == "latent", head_dim)
    if kind == "full" and (shapes["context"] == 0).all():
        # Kernels that were measured without a mask, unless the library has others only.
        unmasked = library_entries("encoder", gpu, ("bf16",), library, False, head_dim)
        if unmasked.entries and (unmasked.own or not found.own):
            return unmasked, choice.fastest(unmasked.entries, lambda entry: encoder_terms(gpu, entry.constants, shapes))
    return found, choice.fastest(found.entries, lambda entry: law(gpu, entry.constants, shapes))
