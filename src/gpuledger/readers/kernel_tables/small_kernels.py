"""Measured times of kernels around the large ones: encoders' attention, quantisation, batched GEMMs of MLA."""

from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.readers import tabular
from gpuledger.readers.kernel_tables.measured_table import MOST_S, MeasuredTable

_HALVES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "bf16", "half": "bf16"}
#: Dimensions of DeepSeek-V3's latent vector and of a head's keys (without RoPE's) and values.
_RANK, _HEAD = 512, 128
_PRODUCTS = ("mla_gen_pre", "mla_gen_post")
#: A kernel whose weights were widened before, as its name says.
_WIDENED = "dequant_bf16"
#: SGLang's benchmark quantises by a chain of PyTorch's operators: a division into float32 (2 and 4 bytes), a clamp (4
#: and 4), a cast and a copy; the others read 2 bytes and write 1.
_CHAIN, _CHAIN_BYTES, _BYTES = "sglang", 8.0, 3.0
_QUANTISED = "scale_matrix"
_DIFFERENCE = "compute_scale"


def read_encoder(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read measured attention between all tokens.

    Parameters
    ----------
    path : path
        A table of ``op_name`` (with ``encoder`` in it), ``kernel_source, attn_dtype, batch_size, isl, num_heads,
        head_dim, latency``. Shapes are as :mod:`gpuledger.models.time_model.attention.encoder_law` names them;
        ``kernel`` also has the head dimension, which it was compiled for.
    """
    names = ["op_name", "kernel_source", "attn_dtype", "batch_size", "isl", "num_heads", "head_dim", "latency"]
    table = MeasuredTable(path, names, unit=unit)
    other = ~table.texts("op_name").str.contains("encoder")
    table.refuse(other, "op_name", "is no encoder's attention, as that of other rows is", "split the table")
    dims = table.whole_numbers("head_dim")
    kernel = table.texts("kernel_source") + " " + pd.Series(dims).astype(str)
    frame = pd.DataFrame({"operator": "encoder", "group": "16-bit", "kernel": kernel})
    frame["precision"] = table.texts("attn_dtype").str.lower().map(_HALVES)
    for name, column in (("requests", "batch_size"), ("tokens", "isl"), ("heads", "num_heads")):
        frame[name] = table.whole_numbers(column)
    frame["head_dim"] = dims
    frame["measured_s"] = table.seconds()
    return table.known_rows(frame, "attn_dtype")


def read_quantise(path: Path, unit: str, difference: Path | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Read measured kernels that quantise activations to fp8.

    Parameters
    ----------
    path : path
        A table of ``op_name`` (scale_matrix: the scale is known), ``kernel_source, quant_dtype, m, k, latency``.
        Shapes are as :mod:`gpuledger.models.time_model.quantise` names them.
    difference : path, optional
        The same of ``op_name`` compute_scale: how much longer a kernel takes that finds the scale. The sum of both is
        that kernel's time. Where the difference is 0 or less, the benchmark cut it off, or noise is larger: nothing is
        known of that kernel, and the row is left out; how many there are is told with what was skipped.
    """
    static, skipped = _quantise_table(path, unit, _QUANTISED)
    frames = [static]
    if difference is not None:
        longer, more = _quantise_table(difference, unit, _DIFFERENCE)
        sizes = ["precision", "tokens", "columns"]
        whole = longer.sort_values([*sizes, "kernel"]).merge(
            static[[*sizes, "measured_s"]], on=sizes, suffixes=("", "_static")
        )
        left = whole["measured_s"].to_numpy() > 0
        whole["measured_s"] += whole.pop("measured_s_static")
        name, first = whole["kernel"].str.split("_minus_").str[0], "_minus_"
        whole["kernel"] = name.where(whole["kernel"].str.contains(first), name + " dynamic")
        frames.append(whole[left])
        skipped = sorted({*skipped, *more}) + [f"{(~left).sum()} differences of 0 or less"] * bool((~left).any())
    frame = pd.concat(frames, ignore_index=True)
    frame["live_bytes"] = np.where(frame["kernel"] == _CHAIN, _CHAIN_BYTES, _BYTES)
    frame["second_reads"] = frame["kernel"].str.contains("per_token").astype(float)
    return frame.assign(operator="quantise", group="fp8"), skipped


def _quantise_table(path: Path, unit: str, operation: str) -> tuple[pd.DataFrame, list[str]]:
    columns = ["op_name", "kernel_source", "quant_dtype", "m", "k", "latency"]
    table = MeasuredTable(path, columns, unit=unit)
    wanted = {_QUANTISED: "quantise", _DIFFERENCE: "difference"}
    problem = f"is not {operation}, which the case's '{wanted[operation]}' holds"
    table.refuse(table.texts("op_name") != operation, "op_name", problem, "give the table under its own key")
    frame = pd.DataFrame({"kernel": table.texts("kernel_source")})
    dtype = table.texts("quant_dtype").str.lower()
    frame["precision"] = dtype.where(dtype == "fp8")
    frame["tokens"], frame["columns"] = table.whole_numbers("m"), table.whole_numbers("k")
    if operation == _QUANTISED:
        frame["measured_s"] = table.seconds()
    else:
        frame["measured_s"] = table.numbers("latency") * tabular.SECONDS[table.unit]
        beyond = ~(np.abs(frame["measured_s"]) <= MOST_S)
        table.refuse(beyond, "latency", "is no number, or more than an hour", "remove the row")
    return table.known_rows(frame, "quant_dtype")


def read_products(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read measured batched GEMMs of MLA: a small matrix for each head.

    Parameters
    ----------
    path : path
        A table of ``op_name`` (mla_gen_pre: queries into the latent space; mla_gen_post: values out of it),
        ``kernel_source, bmm_dtype, num_tokens, num_heads, latency``, with the dimensions of DeepSeek-V3. Shapes are
        ``tokens, columns, depth, heads``.
    """
    columns = ["op_name", "kernel_source", "bmm_dtype", "num_tokens", "num_heads", "latency"]
    table = MeasuredTable(path, columns, unit=unit)
    names = table.texts("op_name")
    table.refuse(~names.isin(_PRODUCTS), "op_name", f"is none of {', '.join(_PRODUCTS)}", "remove it")
    dtype, kernel = table.texts("bmm_dtype").str.lower(), table.texts("kernel_source")
    frame = pd.DataFrame({"operator": "bmm", "group": dtype.where(~dtype.isin(list(_HALVES)), "16-bit")})
    frame["kernel"] = kernel
    widened = kernel.str.contains(_WIDENED)
    frame["precision"] = dtype.map(_HALVES | {"fp8": "fp8"}).where(~widened, "bf16")
    frame["tokens"] = table.whole_numbers("num_tokens")
    into = (names == _PRODUCTS[0]).to_numpy()
    frame["columns"], frame["depth"] = np.where(into, _RANK, _HEAD), np.where(into, _HEAD, _RANK)
    frame["heads"] = table.whole_numbers("num_heads")
    frame["measured_s"] = table.seconds()
    return table.known_rows(frame, "bmm_dtype")
