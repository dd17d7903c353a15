"""Shapes of real models among the measured ones: what their kernels take in a forward pass, in each engine."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.models.transformer import Attention, Experts, Model, Parallel, decode, kernels, prefill, read_model
from gpuledger.studies.engine_comparison.comparison import names_of, panels_of
from gpuledger.studies.engine_comparison.shapes import time_column

#: GPUs that a model is split over by tensor parallelism.
SPLITS = (1, 8)
#: Requests of a decode step, with so many tokens each in the cache before it; and tokens of one prompt.
REQUESTS, CACHED, PROMPT = (1, 64), 8191, 8192


class _Launch(NamedTuple):
    """One kernel of a forward pass."""

    kernel: str
    count: int
    shape: tuple[int, ...]  # in the order of `_KEYS`


#: By layout, the sizes that a kernel is found by.
_KEYS = {
    "measurements": ("m", "n", "k"),
    "attention": ("requests", "tokens", "context", "heads", "kv_heads", "head_dim", "window"),
    "moe": ("tokens", "hidden", "inter", "chosen", "experts", "shards", "ranks", "power"),
    "collectives": ("message_bytes", "devices"),
}


def model_table(result: CaseResult) -> pd.DataFrame:
    """Return what the measured kernels of real models take in a forward pass, by type, model, split and batch.

    Only types of number that were measured alike, unless none was.

    Returns
    -------
    DataFrame
        ``panel, model, gpus`` (tensor parallel)``, pass`` (in words)``, kernels`` (those whose shape all tables of the
        panel measured)``, launches`` (of those, in all layers), by table ``<table>_us`` (sum over the launches; NaN:
        not compared)``, fastest, ahead_percent`` (by how much longer the next one takes).
    """
    data, tables, layout = result.data, names_of(result), str(result["layout"])
    times = [time_column(name) for name in tables]
    if alike := [panel for panel in panels_of(result) if result[f"{slug(panel)}_unlike"] == "none"]:
        data = data[data["panel"].isin(alike)]
    if layout == "collectives":
        data = data[data["operator"] == "all_reduce"]
    measured = {}
    for panel, rows in data.groupby("panel", sort=False):
        own = [time for time in times if rows[time].notna().any()]
        known = rows.dropna(subset=own)
        keys = known[list(_KEYS[layout])].astype(float).itertuples(index=False, name=None)
        measured[panel] = own, dict(zip(keys, known[own].to_numpy(), strict=True))
    rows = []
    for name in sorted(path.stem for path in (files.RESOURCES / "models").glob("*.json")):
        model = read_model(name, paths=False)
        for gpus in SPLITS:
            for words, launches in _passes(model, gpus, layout):
                for panel, (own, known) in measured.items():
                    found = [(one, known[one.shape]) for one in launches if one.shape in known]
                    if found:
                        rows.append({"panel": panel, "model": name, "gpus": gpus, "pass": words} | _row(found, own))
    microseconds = [f"{slug(name)}_us" for name in tables]
    columns = ["panel", "model", "gpus", "pass", "kernels", "launches", *microseconds, "fastest", "ahead_percent"]
    names = {slug(name): name for name in tables}
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(fastest=table["fastest"].map(names)).sort_values("panel", kind="stable", ignore_index=True)


def time_headers(result: CaseResult) -> dict[str, str]:
    """Return headers for people of the columns of times in :func:`model_table`."""
    return {f"{slug(name)}_us": f"{name} (µs)" for name in names_of(result)}


def _row(found: list[tuple[_Launch, np.ndarray]], times: list[str]) -> dict:
    total = sum(launch.count * time_s for launch, time_s in found)
    order = np.argsort(total, kind="stable")
    row = {"kernels": ", ".join(dict.fromkeys(launch.kernel for launch, _ in found))}
    row["launches"] = sum(launch.count for launch, _ in found)
    row |= {f"{name.removesuffix('_s')}_us": float(f"{1e6 * one:.5g}") for name, one in zip(times, total, strict=True)}
    row["fastest"] = times[order[0]].removesuffix("_s")
    ahead = total[order[1]] / total[order[0]] - 1 if len(order) > 1 else np.nan
    return row | {"ahead_percent": round(100 * float(ahead), 4)}


def _passes(model: Model, gpus: int, layout: str) -> Iterator[tuple[str, list[_Launch]]]:
    """Yield the forward passes in words, and their launches of a layout's kernels; none if it cannot be split so."""
    works = [(f"decode, {count} request{'s' * (count > 1)}", decode([CACHED], batch=count)) for count in REQUESTS]
    works += [(f"prompt of {PROMPT:,} tokens", prefill([PROMPT], batch=1))]
    for words, work in works:
        try:
            rows = kernels(model, work, parallel=Parallel(tensor=gpus))
        except InputError:
            continue
        requests = int(work.requests.sum())
        yield words, [one for row in rows.itertuples() for one in _launches(model, row, gpus, requests, layout)]


def _launches(model: Model, row: tuple, gpus: int, requests: int, layout: str) -> Iterator[_Launch]:
    layer = model.layers[row.layers] if row.layers >= 0 else None
    decoding = row.phase == "decode"
    if layout == "measurements" and row.kind == "gemm" and row.batch == 1:
        yield _Launch(row.kernel, row.count, (float(row.m), float(row.n), float(row.k)))
    elif layout == "attention" and row.kind == "attention" and isinstance(layer.attention, Attention):
        tokens, context = (1, CACHED) if decoding else (PROMPT, 0)
        sizes = (requests, tokens, context, row.heads, row.kv_heads, row.value_dim, layer.attention.window or 0)
        yield _Launch(row.kernel, row.count, tuple(map(float, sizes)))
    elif layout == "moe" and row.kernel == "expert_down_proj" and isinstance(layer.ffn, Experts):
        tokens = requests if decoding else PROMPT
        sizes = (tokens, row.n, row.k, layer.ffn.active, row.experts, gpus, 1, -1)
        yield _Launch("experts", row.count, tuple(map(float, sizes)))
    elif layout == "collectives" and row.kernel == "all_reduce":
        yield _Launch(row.kernel, row.count, (2.0 * row.m * row.n, float(gpus)))
