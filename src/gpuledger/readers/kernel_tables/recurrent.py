"""Measured times of layers that keep a state instead of a cache: gated delta rule, Kimi Delta Attention, Mamba-2."""

from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable, median_of_equal

#: What the operations are called before the names of their kernels; the gated delta rule has the plain names.
_PREFIXES = {"gdn": "", "kda": "KDA ", "mamba2": "Mamba-2 "}
#: Columns of the sizes, by operation.
_DELTA = {"key_heads": "num_k_heads", "key_dim": "head_k_dim", "heads": "num_v_heads", "value_dim": "head_v_dim"}
_SIZES = {"gdn": _DELTA, "kda": _DELTA}
_SIZES["mamba2"] = {"key_heads": "n_groups", "key_dim": "d_state", "heads": "nheads", "value_dim": "head_dim"}
_PHASES = ("context", "generation", "verify")
#: A kernel that reads states in 16 bits and writes new ones in 32; others keep them in 32 bits, in place. A benchmark
#: that measures it measures convolutions over the keys' channels only (``collector/trtllm/collect_gdn.py``).
_WIDENING = "fused_recurrent_gated_delta_rule"


def read_recurrent(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read measured linear attention and SSMs.

    Parameters
    ----------
    path : path
        A table of ``op_name`` (gdn, kda, mamba2)``, kernel_source, phase`` (context, generation, verify),
        ``batch_size, seq_len`` (of a draft that is verified its tokens; not used in generation), ``d_conv`` and
        ``latency``, and ``num_k_heads, head_k_dim, num_v_heads, head_v_dim`` or, of mamba2, ``n_groups, d_state,
        nheads, head_dim``.

    Returns
    -------
    frame : DataFrame
        With the shapes that :mod:`gpuledger.models.time_model.recurrent_law` names and ``new_tokens`` of all requests;
        ``operator`` is convolution, convolution update, chunked rule or state update.
    skipped : list of str
        Empty: all rows are of one type.
    """
    shared = ["op_name", "kernel_source", "phase", "batch_size", "seq_len", "d_conv", "latency"]
    table = MeasuredTable(path, shared, [*_DELTA.values(), *_SIZES["mamba2"].values()], unit)
    operation = table.texts("op_name")
    table.refuse(~operation.isin(list(_PREFIXES)), "op_name", "is no known operation", f"use {', '.join(_PREFIXES)}")
    if operation.nunique() > 1:
        raise InputError(path, "column op_name", "several operations in one table", "split it")
    name = operation.iloc[0]
    sizes = _SIZES[name]
    table.require(*sizes.values())
    kernel, phase = table.texts("kernel_source"), table.texts("phase")
    table.refuse(~phase.isin(_PHASES), "phase", "is no known phase", f"use {', '.join(_PHASES)}")
    convolution = kernel.str.contains("conv1d").to_numpy()
    context, single = (phase == "context").to_numpy(), (phase == "generation").to_numpy()
    names = np.where(context, "convolution", "convolution update"), np.where(context, "chunked rule", "state update")
    frame = pd.DataFrame({"operator": np.where(convolution, *names), "kernel": _PREFIXES[name] + kernel})
    frame["group"], frame["precision"] = "16-bit", "bf16"
    frame["requests"] = table.whole_numbers("batch_size")
    table.cells["seq_len"] = table.cells["seq_len"].astype(object).mask(single, 1)
    frame["tokens"] = table.whole_numbers("seq_len")
    frame["new_tokens"] = frame["requests"] * frame["tokens"]
    frame["span"] = table.whole_numbers("d_conv")
    for own, column in sizes.items():
        frame[own] = table.whole_numbers(column)
    uneven = frame["heads"] % frame["key_heads"] != 0
    table.refuse(uneven, sizes["heads"], f"is no multiple of {sizes['key_heads']}", "correct it")
    keys = frame["key_heads"] * frame["key_dim"]
    keys_only = name == "gdn" and (kernel == _WIDENING).any()
    frame["channels"] = keys if keys_only else 2 * keys + frame["heads"] * frame["value_dim"]
    frame["decays"] = frame["heads"] * (frame["key_dim"] if name == "kda" else 1)
    frame["read_state_bytes"], frame["written_state_bytes"] = np.where(kernel == _WIDENING, 2, 4), 4
    frame["measured_s"] = table.seconds()
    return median_of_equal(frame), []
