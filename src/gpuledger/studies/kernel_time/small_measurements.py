"""Measured times of kernels around the large ones: encoders' attention, quantisation, products of latent attention."""

from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.studies.kernel_time.measurements import (
    MOST_S,
    SECONDS,
    as_numbers,
    median_of_equal,
    read_table,
    refuse,
    seconds,
    texts,
    whole_numbers,
)

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


def read_encoder(case: Case, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read measured attention between all tokens.

    Parameters
    ----------
    case : Case
        Its ``unit`` is the latency's.
    path : path
        A table of ``op_name`` (with ``encoder`` in it), ``kernel_source, attn_dtype, batch_size, isl, num_heads,
        head_dim, latency``.

    Returns
    -------
    frame : DataFrame
        ``operator, group, kernel`` (its name and the head dimension, which it was compiled for), ``precision``, the
        shapes that :mod:`gpuledger.models.time_model.encoder_law` names, and ``measured_s``; the median of equal rows.
    skipped : list of str
        Data types that no law knows; their rows are left out.
    """
    names = ["op_name", "kernel_source", "attn_dtype", "batch_size", "isl", "num_heads", "head_dim", "latency"]
    table = read_table(path, names)
    other = ~texts(path, table["op_name"]).str.contains("encoder").to_numpy()
    refuse(path, other, table["op_name"], "is no encoder's attention, as that of other rows is", "split the table")
    dims = whole_numbers(path, table["head_dim"])
    kernel = texts(path, table["kernel_source"]) + " " + pd.Series(dims).astype(str)
    frame = pd.DataFrame({"operator": "encoder", "group": "16-bit", "kernel": kernel})
    frame["precision"] = texts(path, table["attn_dtype"]).str.lower().map(_HALVES)
    for name, column in (("requests", "batch_size"), ("tokens", "isl"), ("heads", "num_heads")):
        frame[name] = whole_numbers(path, table[column])
    frame["head_dim"] = dims
    return _finished(case, path, frame, table, table["attn_dtype"])


def read_quantise(case: Case, path: Path, difference: Path | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Read measured kernels that quantise activations to fp8.

    Parameters
    ----------
    case : Case
        Its ``unit`` is the latency's.
    path : path
        A table of ``op_name`` (scale_matrix: the scale is known), ``kernel_source, quant_dtype, m, k, latency``.
    difference : path, optional
        The same of ``op_name`` compute_scale: how much longer a kernel takes that finds the scale. The sum of both is
        that kernel's time. Where the difference is 0 or less, the benchmark cut it off, or noise is larger: nothing is
        known of that kernel, and the row is left out.

    Returns
    -------
    frame, skipped
        As :func:`read_encoder`; ``operator`` is ``quantise``, shapes as
        :mod:`gpuledger.models.time_model.quantise` names them. `skipped` also says how many differences were left out.
    """
    static, skipped = _quantise_table(case, path, _QUANTISED)
    static = median_of_equal(static)
    frames = [static]
    if difference is not None:
        longer, more = _quantise_table(case, difference, _DIFFERENCE)
        sizes = ["precision", "tokens", "columns"]
        whole = longer.groupby([*sizes, "kernel"], as_index=False)["measured_s"].median()
        whole = whole.merge(static[[*sizes, "measured_s"]], on=sizes, suffixes=("", "_static"))
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


def _quantise_table(case: Case, path: Path, operation: str) -> tuple[pd.DataFrame, list[str]]:
    table = read_table(path, ["op_name", "kernel_source", "quant_dtype", "m", "k", "latency"])
    names = texts(path, table["op_name"])
    wanted = {_QUANTISED: "quantise", _DIFFERENCE: "difference"}
    problem = f"is not {operation}, which the case's '{wanted[operation]}' holds"
    refuse(path, (names != operation).to_numpy(), table["op_name"], problem, "give the table under its own key")
    frame = pd.DataFrame({"kernel": texts(path, table["kernel_source"])})
    dtype = texts(path, table["quant_dtype"]).str.lower()
    frame["precision"] = dtype.where(dtype == "fp8")
    frame["tokens"], frame["columns"] = whole_numbers(path, table["m"]), whole_numbers(path, table["k"])
    if operation == _QUANTISED:
        frame["measured_s"] = seconds(case, path, table["latency"])
    else:
        frame["measured_s"] = as_numbers(table["latency"]) * SECONDS[case.inputs["unit"]]
        beyond = ~(np.abs(frame["measured_s"]) <= MOST_S).to_numpy()
        refuse(path, beyond, table["latency"], "is no number, or more than an hour", "remove the row")
    return _known(path, frame, table["quant_dtype"])


def read_products(case: Case, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read measured products of latent attention: a small matrix for each head.

    Parameters
    ----------
    case : Case
        Its ``unit`` is the latency's.
    path : path
        A table of ``op_name`` (mla_gen_pre: queries into the latent space; mla_gen_post: values out of it),
        ``kernel_source, bmm_dtype, num_tokens, num_heads, latency``, with the dimensions of DeepSeek-V3.

    Returns
    -------
    frame, skipped
        As :func:`read_encoder`; ``operator`` is ``bmm``, shapes ``tokens, columns, depth, heads``.
    """
    table = read_table(path, ["op_name", "kernel_source", "bmm_dtype", "num_tokens", "num_heads", "latency"])
    names = texts(path, table["op_name"])
    refuse(path, ~names.isin(_PRODUCTS).to_numpy(), table["op_name"], f"is none of {', '.join(_PRODUCTS)}", "remove it")
    dtype = texts(path, table["bmm_dtype"]).str.lower()
    kernel = texts(path, table["kernel_source"])
    frame = pd.DataFrame({"operator": "bmm", "group": dtype.where(~dtype.isin(list(_HALVES)), "16-bit")})
    frame["kernel"] = kernel
    widened = kernel.str.contains(_WIDENED)
    frame["precision"] = dtype.map(_HALVES | {"fp8": "fp8"}).where(~widened, "bf16")
    frame["tokens"] = whole_numbers(path, table["num_tokens"])
    into = (names == _PRODUCTS[0]).to_numpy()
    frame["columns"], frame["depth"] = np.where(into, _RANK, _HEAD), np.where(into, _HEAD, _RANK)
    frame["heads"] = whole_numbers(path, table["num_heads"])
    return _finished(case, path, frame, table, table["bmm_dtype"])


def _finished(case: Case, path: Path, frame: pd.DataFrame, table: pd.DataFrame, dtype: pd.Series):
    frame["measured_s"] = seconds(case, path, table["latency"])
    frame, skipped = _known(path, frame, dtype)
    return median_of_equal(frame), skipped


def _known(path: Path, frame: pd.DataFrame, dtype: pd.Series) -> tuple[pd.DataFrame, list[str]]:
    """Leave out rows whose precision no law knows, and say which types those were."""
    unknown = frame["precision"].isna().to_numpy()
    skipped = sorted(set(dtype[unknown].astype(str)))
    if unknown.all():
        problem = f"no row of a known type (found {', '.join(skipped)})"
        raise InputError(path, f"column {dtype.name}", problem, "add some")
    return frame[~unknown].reset_index(drop=True), skipped
