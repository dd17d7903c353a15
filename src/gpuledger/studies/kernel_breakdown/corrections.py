"""The source notebook's errors, each beside its correction and with its size for the model and phases at hand.

Each is taken alone: what the notebook has, and what it would have with this one thing put right. What all of them do
to the time of a phase is a comparison of the whole models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gpuledger.studies.kernel_breakdown import source_model
from gpuledger.studies.kernel_breakdown.source_model import (
    ATTENTION,
    BYTES_PER_VALUE,
    Chunk,
    SourceChip,
    SourceModel,
    source_times,
)
from gpuledger.studies.kernel_breakdown.tidy import settled

#: Kernels that the notebook models, under their names in a pass; all others it leaves out.
MODELLED = frozenset(
    {"qkv_proj", "q_proj", "k_proj", "v_proj", "attention", "decode_attention", "out_proj"}
    | {"gate_up_proj", "gate_proj", "up_proj", "down_proj", "kv_write"}
)


@dataclass(frozen=True)
class Error:
    """An error of the notebook: its number (0: all together), what it concerns, in which unit, and what is wrong."""

    number: int
    quantity: str
    unit: str
    why: str


ERRORS: Mapping[str, Error] = {
    "all": Error(0, "time of a pass", "s", "all of them, and ideal tiles without any overhead"),
    "grouping": Error(
        1,
        "attention, with the keyword spelt right, per layer",
        "MAC",
        "the misspelt qrouped_q never arrives; spelt right, queries would be counted a second time for every head of "
        "their group, for hidden_size holds all of them",
    ),
    "chunk_attention": Error(
        2,
        "attention of the requests that decode, per layer",
        "MAC",
        "n is head_dim times kv_heads where the context should be: the compute does not depend on the context",
    ),
    "traffic": Error(
        3,
        "traffic of the kernels that it has, all layers",
        "byte",
        "activations are never read, outputs never written, and the cache is read in a row of its own",
    ),
    "mask": Error(
        4,
        "attention without a causal mask, per layer",
        "MAC",
        "a token sees itself and those before it, not those behind",
    ),
    "bytes": Error(
        5,
        "weights of all layers, printed as bytes",
        "byte",
        "numbers of values are printed under the name of bytes",
    ),
    "multiples": Error(
        6,
        "MACs of all layers, printed with T",
        "MAC",
        "M, G and T of operations are powers of 1000, the notebook divides by powers of 1024",
    ),
    "chunk_context": Error(
        7,
        "mean context before a chunk",
        "token",
        "the mean of a linear cost over the chunks is at half the input, not at the input over √3",
    ),
    "left_out_macs": Error(8, "matrix work of the pass, without a mask", "MAC", "the LM head is left out"),
    "left_out_time": Error(
        8,
        "time of the kernels that it has",
        "s",
        "embedding, norms, residuals, RoPE, activations and the LM head take time, too",
    ),
}

#: Name of an error, what the notebook has, and what is right.
Sizes = Iterator[tuple[str, float, float]]


def corrections(model: SourceModel, chip: SourceChip, phases: Mapping[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """List the errors of the source notebook that concern the phases.

    Parameters
    ----------
    model : SourceModel
    chip : SourceChip
    phases : mapping
        Of a case: ``prefill``, ``decode`` and ``chunked_prefill`` with the keys of its declaration.
    rows : DataFrame
        The right model's kernels of these phases: ``phase, kernel, count, macs, weight_bytes, read_bytes,
        write_bytes, cache_bytes, time_s`` (of one launch).

    Returns
    -------
    DataFrame
        ``error`` (its number in the list of errors; 0: all of them together), ``name``, ``phase``, ``quantity``,
        ``source_value``, ``right_value``, ``unit``, ``ratio`` (source over right) and ``why``, by error and phase.
    """
    found = []
    for phase in (phase for phase in phases if phase in source_model.PHASES):
        own = source_times(source_model.layers_of(model, {phase: phases[phase]}), chip)
        right = rows[rows["phase"] == phase]
        sizes = [*_of_the_pass(model, chip, own, right)]
        if phase == "prefill":
            sizes += _of_prefill(model, own, **phases[phase])
        if phase == "chunked_prefill":
            sizes += _of_a_chunk(model, own, Chunk(**phases[phase]))
        for name, claimed, value in sizes:
            error = ERRORS[name]
            found.append((error.number, name, phase, error.quantity, claimed, value, error.unit, error.why))
    columns = ["error", "name", "phase", "quantity", "source_value", "right_value", "unit", "why"]
    table = pd.DataFrame(found, columns=columns).astype({"source_value": float, "right_value": float})
    # Counts are exact; only times and ratios have digits that another machine may not have.
    times = table["unit"] == "s"
    table = pd.concat([table[~times], settled(table[times])]).sort_index()
    table = table.assign(ratio=settled(pd.DataFrame({"ratio": table["source_value"] / table["right_value"]}))["ratio"])
    return table.sort_values("error", kind="stable", ignore_index=True)


def _of_prefill(model: SourceModel, layers: pd.DataFrame, input: int, **_: int) -> Sizes:
    attention = int(layers.loc[layers["kind"] == ATTENTION, "macs"].sum())
    weights = int(layers["weight_values"].sum()) * model.layers
    macs = int(layers["macs"].sum()) * model.layers
    yield "grouping", attention * model.heads // model.kv_heads, attention
    yield "mask", attention, attention * (input + 1) // (2 * input)
    yield "bytes", weights, weights * BYTES_PER_VALUE
    yield "multiples", round(macs / 1024**4, 1) * 1e12, macs


def _of_a_chunk(model: SourceModel, layers: pd.DataFrame, chunk: Chunk) -> Sizes:
    decode = layers["kernel"].str.startswith("decode_attention")
    context = chunk.decode_context
    yield "chunk_attention", int(layers.loc[decode, "macs"].sum()), 2 * chunk.decode_tokens * model.hidden * context
    yield "chunk_context", chunk.prefill_context, chunk.mean_prefill_context


def _of_the_pass(model: SourceModel, chip: SourceChip, layers: pd.DataFrame, rows: pd.DataFrame) -> Sizes:
    """Sizes of what needs the right model's kernels: traffic, what is left out, and all errors together."""
    count = rows["count"].to_numpy()
    modelled = rows["kernel"].isin(MODELLED)
    tensors = rows[["weight_bytes", "read_bytes", "write_bytes", "cache_bytes"]].sum(axis=1)
    values = int(layers[["weight_values", "kv_values"]].to_numpy().sum())
    macs = int(layers["macs"].sum()) * model.layers
    head = int((rows["macs"] * count)[rows["kernel"] == "lm_head"].sum())
    time = rows["time_s"] * count
    yield "traffic", values * BYTES_PER_VALUE * model.layers, int((tensors * count)[modelled].sum())
    yield "left_out_macs", macs, macs + head
    yield "left_out_time", float(time[modelled].sum()), float(time.sum())
    yield "all", float(model.layers * layers["cycles"].sum() / chip.clock_hz), float(time.sum())
