"""The source notebook's errors: each one's size for a given model and phases, beside the corrected value.

Errors are corrected one at a time: the notebook's value against its value with that one error fixed. Their combined
effect on the time of a phase is the ratio of the two whole models.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from gpuledger.studies.kernel_breakdown import source_model
from gpuledger.studies.kernel_breakdown.parts import settle_frame
from gpuledger.studies.kernel_breakdown.source_model import (
    ATTENTION,
    BYTES_PER_VALUE,
    Chunk,
    SourceChip,
    SourceModel,
    source_times,
)

#: Kernels that the notebook models; it omits all others.
MODELLED = frozenset(
    {"qkv_proj", "q_proj", "k_proj", "v_proj", "attention", "decode_attention", "out_proj"}
    | {"gate_up_proj", "gate_proj", "up_proj", "down_proj", "kv_write"}
)


#: Errors of the notebook: number (0: all together), the quantity and unit that it affects, and its cause.
ERRORS: Mapping[str, tuple[int, str, str, str]] = {
    "all": (0, "time of a pass", "s", "all errors together, and ideal tiles without overhead"),
    "grouping": (
        1,
        "attention with the keyword spelled correctly, per layer",
        "MAC",
        "the misspelled keyword qrouped_q has no effect; spelled correctly, it would count queries again for every "
        "head of their group, although hidden_size already includes all heads",
    ),
    "chunk_attention": (
        2,
        "attention of the decoding requests, per layer",
        "MAC",
        "n is head_dim × kv_heads instead of the context, so the work does not depend on the context",
    ),
    "traffic": (
        3,
        "traffic of the modelled kernels, all layers",
        "byte",
        "activations are never read and outputs never written; the cache is read in a separate row",
    ),
    "mask": (
        4,
        "attention without a causal mask, per layer",
        "MAC",
        "a token attends to itself and to earlier tokens only",
    ),
    "bytes": (5, "weights of all layers, printed as bytes", "byte", "numbers of values are printed as bytes"),
    "multiples": (
        6,
        "MACs of all layers, printed in T",
        "MAC",
        "M, G and T of operations are powers of 1000; the notebook divides by powers of 1024",
    ),
    "chunk_context": (
        7,
        "mean context before a chunk",
        "token",
        "a cost that is linear in the context has its mean over the chunks at half the input, not at input/√3",
    ),
    "left_out_macs": (8, "matrix work of the pass, no causal mask", "MAC", "the LM head is missing"),
    "left_out_time": (
        8,
        "time of the modelled kernels",
        "s",
        "embedding, norms, residuals, RoPE, activation functions and the LM head are missing",
    ),
}

#: Name of an error, the notebook's value, and the correct value.
Sizes = Iterator[tuple[str, float, float]]


def corrections(model: SourceModel, chip: SourceChip, phases: Mapping[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """List the errors of the source notebook that affect the phases.

    Parameters
    ----------
    phases : mapping
        As ``dataset.yaml`` declares them.
    rows : DataFrame
        The predicted kernels of these phases: ``phase, kernel, count`` and, per launch, ``macs, weight_bytes,
        read_bytes, write_bytes, cache_bytes, time_s``.

    Returns
    -------
    DataFrame
        One row per error and phase: ``error`` (its number; 0: all together), ``name``, ``phase``, ``quantity``,
        ``source_value``, ``right_value``, ``unit``, ``ratio`` (source over right) and ``why``.
    """
    found = []
    for phase in (phase for phase, given in phases.items() if source_model.has_phase(phase, given)):
        own = source_times(source_model.layers_of(model, phase, **phases[phase]), chip)
        right = rows[rows["phase"] == phase]
        sizes = [*_of_the_pass(model, chip, own, right)]
        if phase == "prefill":
            sizes += _of_prefill(model, own, **phases[phase])
        if phase == "chunked_prefill":
            sizes += _of_a_chunk(model, own, Chunk(**phases[phase]))
        for name, claimed, value in sizes:
            number, quantity, unit, why = ERRORS[name]
            found.append((number, name, phase, quantity, claimed, value, unit, why))
    columns = ["error", "name", "phase", "quantity", "source_value", "right_value", "unit", "why"]
    table = pd.DataFrame(found, columns=columns).astype({"source_value": float, "right_value": float})
    # Counts are exact; the last digits of times and ratios depend on the machine.
    times = table["unit"] == "s"
    table = pd.concat([table[~times], settle_frame(table[times])]).sort_index()
    ratio = settle_frame(pd.DataFrame({"ratio": table["source_value"] / table["right_value"]}))
    return table.join(ratio).sort_values("error", kind="stable", ignore_index=True)


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
    """Sizes of the errors that are measured against the predicted kernels: traffic, omissions, and all together."""
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
