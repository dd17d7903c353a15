"""Time of fused attention: tensor throughput over causal tiles in prefill, the KV cache's bandwidth in decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from gpuledger.models.time_model.operators import OperatorConstants
from gpuledger.readers.gpus import Gpu

#: Bytes of a value in the KV cache.
CACHE_BYTES = MappingProxyType(
    {
        "fp32": 4,
        "tf32": 4,
        "bf16": 2,
        "fp16": 2,
        "fp8": 1,
        "int8": 1,
        "fp4": 0.5,
        "int4": 0.5,
        "mxfp4": 0.5,
        "nvfp4": 0.5,
    }
)


@dataclass(frozen=True)
class AttentionConstants:
    """How fused attention kernels work.

    Attributes
    ----------
    tensor_share : float
        Of the peak, within tiles: the softmax between the two products is not matrix work. T. Dao, FlashAttention-2,
        2023, Sec. 4.1: 50 to 73 % of an A100's peak forward; J. Shah et al., FlashAttention-3, 2024: 75 % on an H100.
    query_tile, key_tile : int
        Rows of scores that a block holds, and columns of a step (FlashAttention-2, head dimension 128).
    decode_rows : int
        Rows of a matrix instruction (m16n8k16): one token's queries of a KV head are padded to it.
    split_tokens : int
        Least context of a block that decodes a part of a sequence (split-KV).
    """

    tensor_share: float = 0.65
    query_tile: int = 128
    key_tile: int = 128
    decode_rows: int = 16
    split_tokens: int = 256


def by_category(column: pd.Series, value: Callable[[str], float]) -> np.ndarray:
    """Return a value of each row that depends on the category in `column` alone."""
    codes, names = pd.factorize(column)
    return np.array([value(str(name)) for name in names], dtype=float)[codes]


def attention_times(
    gpu: Gpu,
    operators: OperatorConstants,
    rows: pd.DataFrame,
    constants: AttentionConstants | None = None,
) -> pd.DataFrame:
    """Time of fused attention, launch by launch.

    Parameters
    ----------
    gpu : Gpu
    operators : OperatorConstants
        For the launch and the share of the DRAM bandwidth.
    rows : DataFrame, shape (launches, …)
        ``batch, m, n, k, macs, read_bytes, write_bytes, cache_bytes, precision, weight_precision`` as
        :func:`gpuledger.models.transformer.kernels` has them: batch is requests × query heads, m and n the new tokens
        and the context of the longest request, and macs exact.
    constants : AttentionConstants, optional

    Returns
    -------
    DataFrame, shape (launches, 6)
        ``time_s, launch_s, dram_s, compute_s, dram_bytes, l2_bytes``.
    """
    constants = constants or AttentionConstants()
    column = {name: rows[name].to_numpy(dtype=float) for name in ("batch", "m", "n", "k", "macs", "cache_bytes")}
    batch, m, n, k, macs, cache_bytes = column.values()
    peak = by_category(rows["precision"], gpu.peak_flop_per_s) * constants.tensor_share
    moved = rows["read_bytes"].to_numpy(dtype=float) + rows["write_bytes"].to_numpy(dtype=float)

    # Tiles on the diagonal are computed whole: half a tile more for every query row, half a row's worth for its keys.
    decode = m <= 1
    pairs = np.divide(macs, batch * 2 * k, out=np.zeros_like(macs), where=batch * k > 0)
    whole = np.ceil(m / constants.query_tile) * constants.query_tile * np.ceil(n / constants.key_tile)
    whole *= constants.key_tile
    tiled = np.minimum(pairs + m * (constants.query_tile + constants.key_tile) / 2, np.maximum(whole, pairs))
    blocks = batch * np.ceil(m / constants.query_tile)
    longest = constants.query_tile * np.ceil(n / constants.key_tile) * constants.key_tile
    # A block runs on one SM: the GPU is done when all work is, and not before the longest block.
    prefill_s = 4 * k * np.maximum(batch * tiled, longest * gpu.sms * (blocks > 0)) / peak

    # Query heads of a KV head share its cache; their queries are the rows of one product.
    values = cache_bytes / by_category(rows["weight_precision"], CACHE_BYTES.__getitem__)
    group = np.maximum(1, np.divide(macs, values, out=np.ones_like(macs), where=values > 0))
    padded = np.ceil(group / constants.decode_rows) * constants.decode_rows / group
    splits = np.maximum(1, np.ceil(n / constants.split_tokens))
    occupied = np.clip(batch / group * splits / gpu.sms, 1 / gpu.sms, 1)
    decode_s = 2 * macs * padded / (peak * occupied)

    dram_bytes = moved + cache_bytes
    share = np.where(decode, occupied, 1.0)
    dram_s = dram_bytes / (share * operators.dram_share * gpu.dram_bytes_per_s)
    compute_s = np.where(decode, decode_s, prefill_s)
    # Split sequences are put together by a second launch.
    split = decode & (splits > 1) & (batch / group < gpu.sms)
    launch_s = operators.launch_s * np.where(split, 2.0, 1.0)
    return pd.DataFrame(
        {
            "time_s": launch_s + np.maximum(dram_s, compute_s),
            "launch_s": launch_s,
            "dram_s": dram_s,
            "compute_s": compute_s,
            "dram_bytes": dram_bytes,
            "l2_bytes": dram_bytes,
        }
    )
