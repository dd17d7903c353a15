"""Measured times of serving engines' fused kernels: attention, mixture of experts, collectives."""

from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.gpus import gpu_named
from gpuledger.readers.kernel_tables.attention_log import is_log
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable
from gpuledger.readers.kernel_tables.small_kernels import read_encoder
from gpuledger.readers.tabular import by_value

#: Models whose experts have no gate (Nemotron-3): experts, chosen, hidden size (0: any).
_WITHOUT_GATE = ((512, 22, 0), (128, 6, 2688))
#: Types of experts that the time model knows (:data:`gpuledger.models.time_model.moe.DTYPES`), as tables call them.
EXPERT_DTYPES = (
    *("bf16", "fp8", "fp8_block", "nvfp4", "w4a16_mxfp4", "mxfp4_as_bf16", "int4_wo", "w8a16"),
    *("w4a8_mxfp4_mxfp8", "w4a8_mxfp4_fp8", "w4afp8"),
)
#: Data types as the tables call them, and here.
_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "half": "bf16", "fp8": "fp8", "float8_e4m3fn": "fp8"}
_BYTES = {"bf16": 2, "fp8": 1, "int8": 1}
#: Of multi-head latent attention as in DeepSeek-V3: dimensions of keys and values, their latent vector with RoPE's.
_MLA_HEAD, _MLA_LATENT = (192 + 128) / 2, 512 + 64
#: SGLang's kernels that compute prefill on the latent vector, too, as AIConfigurator measures them on all GPUs but data
#: centre Blackwell (``collector/sglang/collect_mla.py``).
_ABSORBED = ("flash_attention", "triton")
#: Tokens of a long prompt, and the exponent of ranks with which it gets faster if each computes its experts only, at
#: least (of the tables of a package on seven GPUs it is at most 0.13 or at least 0.15, usually 0.5 to 0.9).
_LONG, _GAINED = 8192, 0.14
#: GPUs of a node of GB200 or GB300. Engines' custom all-reduces reject groups beyond a node (``should_custom_ar`` in
#: their ``custom_all_reduce.py``): tables have what runs instead by the same name.
_TRAY = 4
#: PyTorch's kernels, as gpuledger records them, which copy nothing into a cache.
PYTORCH = ("torch_flash", "torch_cudnn")
#: SGLang's kernels whose times are the same with and without a window: in prefill, and with one of 8,192 in decode.
_UNWINDOWED, _UNPASSED = ("flashinfer",), (("flashinfer", "trtllm_mha"), 8192)

#: Caches of so many times the size of L2 come from memory. An A100's table of TensorRT-LLM 1.0.0 has some that were
#: read at up to 1.7 times its bandwidth, as if keys and values were the same bytes.
_UNCACHED = 3


def read_attention(path: Path, unit: str, powers: bool = False) -> tuple[pd.DataFrame, list[str]]:
    """Read measured attention.

    Parameters
    ----------
    path : path
        A table of ``op_name`` (context, generation, or with ``backward`` in it the pass for gradients; with ``mla`` in
        it multi-head latent attention; encoder: see
        :func:`gpuledger.readers.kernel_tables.small_kernels.read_encoder`), ``kernel_source, attn_dtype`` (or
        ``mla_dtype``) and ``kv_cache_dtype, batch_size, isl, step, num_heads, latency``, and except for MLA
        ``num_key_value_heads, head_dim``; optional ``window_size``.
    powers : bool
        Whether to read what the GPU drew as well, as
        :meth:`gpuledger.readers.kernel_tables.measured_table.MeasuredTable.known_rows` does.

    Returns
    -------
    frame : DataFrame
        With the shapes that :mod:`gpuledger.models.time_model.attention.prefill_law` names.
    skipped : list of str
        Also how many times are too short for the memory of the GPU in the optional column ``device``.
    """
    if is_log(path):
        raise InputError(
            path, "", "a log of a benchmark of attention, whose times nothing is fitted to", "give it as attention_runs"
        )
    if MeasuredTable(path, ["op_name"]).texts("op_name").str.contains("encoder").any():
        return read_encoder(path, unit)
    wanted = ["op_name", "kernel_source", "kv_cache_dtype", "batch_size", "isl", "step", "num_heads", "latency"]
    optional = ["attn_dtype", "mla_dtype", "num_key_value_heads", "head_dim", "window_size", "device"]
    table = MeasuredTable(path, wanted, optional, unit, powers)
    operation = table.texts("op_name")
    latent = operation.str.contains("mla")
    if latent.nunique() > 1:
        raise InputError(path, "column op_name", "MLA and other attention in one table", "split it")
    mla = bool(latent.iloc[0])
    dtype = "mla_dtype" if mla else "attn_dtype"
    table.require(dtype, *(() if mla else ("num_key_value_heads", "head_dim")))
    decode = operation.str.contains("generation").to_numpy()
    kernel = table.texts("kernel_source")
    passes = np.where(operation.str.contains("backward"), "backward", "prefill")
    frame = pd.DataFrame({"operator": np.where(decode, "decode", passes), "kernel": kernel})
    if mla:
        frame["kernel"] = "MLA " + frame["kernel"]
    values = by_value(table.texts(dtype), lambda names: names.str.lower().map(_DTYPES))
    cache = table.cells["kv_cache_dtype"].fillna("").astype(str)
    cache = by_value(cache, lambda names: names.str.lower().map(_DTYPES))
    # Without a cache of its own type it is as the values.
    cache = cache.fillna(values)
    frame["precision"] = values + "/" + cache
    words = by_value(cache, {name: "" if name == "bf16" else f", {name} cache" for name in _BYTES})
    frame["group"] = np.where(values + cache == "bf16bf16", "16-bit", values + words)
    frame["requests"] = table.whole_numbers("batch_size")
    frame["tokens"] = np.where(decode, 1, table.whole_numbers("isl"))
    frame["context"] = table.whole_numbers("step", 0)
    frame["heads"] = table.whole_numbers("num_heads")
    if mla:
        # Queries are brought into the latent space in decode: keys of 576 and values of 512 dimensions.
        absorbed = decode | kernel.isin(_ABSORBED).to_numpy()
        frame["kv_heads"] = np.where(absorbed, 1, frame["heads"])
        frame["head_dim"] = np.where(absorbed, (_MLA_LATENT + 512) / 2, _MLA_HEAD)
        frame["cache_values"] = float(_MLA_LATENT)
    else:
        frame["kv_heads"] = table.whole_numbers("num_key_value_heads")
        frame["head_dim"] = table.whole_numbers("head_dim")
        # SGLang's backends have keys of 192 dimensions for MiMo-V2, whose values have 128.
        shorter = frame["kernel"].isin(("triton", "fa3")) & (frame["head_dim"] == 192)
        frame["head_dim"] = frame["head_dim"].mask(shorter, (192 + 128) // 2)
        frame["cache_values"] = 2.0 * frame["head_dim"] * frame["kv_heads"]
    uneven = frame["heads"] % frame["kv_heads"] != 0
    table.refuse(uneven, "num_heads", "is no multiple of num_key_value_heads", "correct it")
    frame["window"] = table.whole_numbers("window_size", 0) if "window_size" in table else 0
    unpassed = decode & frame["kernel"].isin(_UNPASSED[0]) & (frame["window"] == _UNPASSED[1])
    frame["window"] = frame["window"].mask(unpassed | (~decode & frame["kernel"].isin(_UNWINDOWED)), 0)
    frame["value_bytes"], frame["cache_bytes"] = by_value(values, _BYTES), by_value(cache, _BYTES)
    frame["measured_s"] = table.seconds()
    frame["least_s"] = _least_s(frame, table.texts("device")) * decode if "device" in table else 0.0
    frame, skipped = table.known_rows(frame, dtype)
    fast = frame["measured_s"] < frame.pop("least_s")
    if fast.any():
        skipped = [*skipped, f"{fast.sum()} caches read faster than memory can be"]
    return frame[~fast].reset_index(drop=True), skipped


def _least_s(frame: pd.DataFrame, devices: pd.Series) -> np.ndarray:
    """Return what reading the caches takes out of memory at the data sheet's rate, if they are too large for L2."""
    seen = np.minimum(frame["context"] + 1, frame["window"].where(frame["window"] > 0, np.inf))
    byte_count = (frame["requests"] * seen * frame["cache_values"] * frame["cache_bytes"]).to_numpy()
    least_s = np.zeros(len(frame))
    for device, rows in frame.groupby(devices.to_numpy()).indices.items():
        if gpu := gpu_named(device):
            large = byte_count[rows] > _UNCACHED * gpu.l2_bytes
            least_s[rows] = np.where(large, byte_count[rows] / gpu.dram_bytes_per_s, 0)
    return least_s


def read_moe(path: Path, unit: str, powers: bool = False) -> tuple[pd.DataFrame, list[str]]:
    """Read measured mixture-of-experts layers of one rank.

    Parameters
    ----------
    path : path
        A table of ``kernel_source, moe_dtype, num_tokens, hidden_size, inter_size, topk, num_experts, moe_tp_size,
        moe_ep_size, distribution`` (``balanced`` or ``power_law_<exponent>``) and ``latency``. A kernel with
        ``nongated`` in its name has one GEMM less. Shapes are as :func:`gpuledger.models.time_model.moe.moe_terms`
        names them.
    powers : bool
        As for :func:`read_attention`.
    """
    sizes = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    wanted = ["kernel_source", "moe_dtype", *sizes, "distribution", "latency"]
    table = MeasuredTable(path, wanted, unit=unit, powers=powers)
    kernel = table.texts("kernel_source")
    frame = pd.DataFrame({"operator": "moe", "kernel": kernel})
    dtype = table.texts("moe_dtype").str.lower().replace({"bfloat16": "bf16", "float16": "bf16"})
    frame["precision"] = dtype.where(dtype.isin(EXPERT_DTYPES))
    frame["group"] = dtype.where(dtype != "bf16", "16-bit")
    # SGLang widens these weights once, as it loads them (``upcast_from_mxfp`` in ``quantization/mxfp4.py``).
    wide = kernel.str.startswith("sglang_fused_moe_triton") & (dtype == "w4a16_mxfp4")
    frame["precision"] = frame["precision"].where(~wide, "mxfp4_as_bf16")
    names = ("tokens", "hidden", "inter", "chosen", "experts", "shards", "ranks")
    for name, column in zip(names, sizes, strict=True):
        frame[name] = table.whole_numbers(column)
    table.refuse(frame["chosen"] > frame["experts"], "topk", "is more than num_experts", "correct it")
    frame["inter"] = np.maximum(1, frame["inter"] // frame["shards"])
    words = table.texts("distribution")
    frame["power"] = by_value(words, _power)
    odd = (frame["power"].isna() & (words != "balanced")) | (frame["power"] == 1)
    table.refuse(odd, "distribution", "is neither balanced nor power_law_<exponent other than 1>", "correct it")
    frame["gates"] = 2
    frame["measured_s"] = table.seconds()
    frame, skipped = table.known_rows(frame, "moe_dtype")
    return frame.assign(gates=np.where(_ungated(frame), 1, 2), foreign=_foreign(frame)), skipped


def _power(names: pd.Series) -> pd.Series:
    return pd.to_numeric(names.str.extract(r"^power_law_([0-9]+(?:\.[0-9]+)?)$")[0])


def _ungated(frame: pd.DataFrame) -> np.ndarray:
    """Return which layers have one GEMM less: experts of models without a gate, if they were measured so.

    Not every benchmark leaves out the gate of such a model. Where it did, a kernel seems to read these layers' weights
    half as fast again as the others'.
    """
    ungated = np.array(frame["kernel"].str.contains("nongated"))
    without = np.zeros(len(frame), dtype=bool)
    for experts, chosen, hidden in _WITHOUT_GATE:
        same = (frame["experts"] == experts) & (frame["chosen"] == chosen)
        without |= (same & ((frame["hidden"] == hidden) | (hidden == 0))).to_numpy()
    read = (1 - (1 - frame["chosen"] / frame["experts"]) ** frame["tokens"]) * frame["experts"]
    read = (read * frame["inter"] * frame["hidden"]).to_numpy()
    # Decode steps of a whole model, too large for L2: the weights take the time.
    bound = (frame["tokens"].between(16, 128) & (frame["ranks"] == 1)).to_numpy() & (read > 2**29)
    rate = read / frame["measured_s"].to_numpy()
    for rows in frame.groupby(["kernel", "precision"]).indices.values():
        fast, usual = (rate[rows[of[rows] & bound[rows]]] for of in (without, ~without))
        if not len(usual) or (len(fast) and np.median(fast) > 1.2 * np.median(usual)):
            ungated[rows] |= without[rows]
    return ungated


def _foreign(frame: pd.DataFrame) -> np.ndarray:
    """Return which layers compute all choices of the tokens that reach a rank, not only those of its experts.

    Some benchmarks give a rank's kernel the other ranks' choices as well, as if one of its experts had them: then a
    long prompt takes as long on a rank of eight as on a single one. Times say so of all layers of a model alike.
    """
    model, same = ["kernel", "precision", "chosen", "experts", "hidden"], ["inter", "shards", "power", "tokens"]
    long = frame[(frame["tokens"] >= _LONG) & (frame["ranks"] <= frame["chosen"])].fillna({"power": 0})
    alone = long[long["ranks"] == 1].groupby([*model, *same])["measured_s"].median()
    split = long[long["ranks"] > 1].join(alone.rename("alone_s"), on=[*model, *same])
    gained = np.log(split["alone_s"] / split["measured_s"]) / np.log(split["ranks"])
    gained = gained.groupby([split[name] for name in model]).median().rename("gained")
    return (frame[model].join(gained, on=model)["gained"] < _GAINED).to_numpy()


def read_collectives(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read measured collectives.

    Parameters
    ----------
    path : path
        A table of ``op_name, kernel_source, nccl_dtype`` (or ``allreduce_dtype``)``, num_gpus, message_size``
        (elements) and ``latency``; optional ``device``. Shapes are ``message_bytes, devices``.
    """
    wanted = ["op_name", "kernel_source", "num_gpus", "message_size", "latency"]
    table = MeasuredTable(path, wanted, ["nccl_dtype", "allreduce_dtype", "device"], unit)
    dtype = next((name for name in ("nccl_dtype", "allreduce_dtype") if name in table), None)
    if dtype is None:
        raise InputError(path, "line 1", "the column 'nccl_dtype' is missing", "add it (or allreduce_dtype)")
    operation = table.texts("op_name")
    frame = pd.DataFrame({"operator": operation, "kernel": table.texts("kernel_source")})
    size = table.texts(dtype).str.lower().replace({"half": "bf16", **_DTYPES}).map(_BYTES)
    # A message is as long in any type; what is 16-bit elsewhere has no suffix here.
    frame["precision"], frame["group"] = operation.where(size.notna()), "16-bit"
    frame["devices"] = table.whole_numbers("num_gpus")
    table.refuse(frame["devices"] < 2, "num_gpus", "GPUs communicate nothing", "remove the row")
    if "device" in table:
        custom = frame["kernel"].str.contains("custom", case=False)
        across = custom & table.cells["device"].astype(str).str.contains("GB[0-9]+$") & (frame["devices"] > _TRAY)
        frame["kernel"] = frame["kernel"].mask(across, frame["kernel"] + ", across nodes")
    frame["message_bytes"] = table.whole_numbers("message_size", most=2**40) * size
    frame["measured_s"] = table.seconds()
    return table.known_rows(frame, dtype)
