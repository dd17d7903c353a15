"""Tiles of Triton's mixture-of-experts kernels: those that were tuned for these experts on this GPU, if there are any.

vLLM and SGLang look for a file named after the experts of a rank, the columns of one of them, the GPU and the data
type; of the numbers of tokens in it they take the nearest. Without a file they take tiles that depend on little
(``get_moe_configs`` and ``get_default_config`` in ``fused_moe.py`` of vLLM 0.24.0 and 0.14.0, and in
``fused_moe_triton_config.py`` of SGLang 0.5.14).
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.tabular import Column, read_csv

#: Tiles by engine, GPU, data type and experts; made by ``benchmarks/triton_tiles.py`` from the engines' packages.
TABLE = files.RESOURCES / "triton_tiles.csv"
#: Rules: whose files and defaults a kernel follows. vLLM's defaults were SGLang's before 0.16.
SGLANG, VLLM, OLD_VLLM = RULES = ("triton sglang", "triton vllm", "triton vllm before 0.16")
#: Names of the kernels that follow a rule, as benchmarks write them. OpenAI's Triton kernels are others.
KERNELS = "fused_moe(?:_triton|$)|_tritonexperts"
#: Defaults for up to as many tokens as experts, and for more: rows, columns and depth of a tile, and how many steps
#: along its depth are in flight.
_BLOCKS_OF_64, _BY_EXPERTS = (64, 128, 128, 3), ((16, 32, 64, 3), (64, 64, 32, 3))
_BY_EXPERTS_FP8 = (64, 128, 128, 4), (128, 256, 128, 4)
#: The same where a block has less than 128 KiB of shared memory.
_BY_EXPERTS_SMALL, _SMALL_BYTES = ((32, 64, 256, 4), (64, 128, 256, 2)), 128 * 1024


class Tiles(NamedTuple):
    """Sizes of tiles, one of each launch: float64 arrays of shape (launches,)."""

    rows: np.ndarray
    columns: np.ndarray
    depth: np.ndarray  # values along k of one step
    stages: np.ndarray  # steps in flight at a time
    tuned: np.ndarray  # bool: from a file


def triton_tiles(
    rule: str, gpu: Gpu, dtype: str, experts: np.ndarray, columns: np.ndarray, tokens: np.ndarray
) -> Tiles:
    """Return the tiles that launches take.

    Parameters
    ----------
    rule : str
        One of `RULES`.
    dtype : str
        Of weights and activations: ``fp8``, ``fp8_block``, or any other with activations in 16 bits.
    experts, columns, tokens : arrays of shape (launches,)
        Experts of the rank, the width of one of them on this GPU, and tokens that reach the kernel.
    """
    found = _defaults(rule, gpu, dtype, experts, tokens)
    tuned = np.zeros(len(tokens), dtype=bool)
    engine = "sglang" if rule == SGLANG else "vllm"
    for key in set(zip(experts.tolist(), columns.tolist(), strict=True)):
        known = _tuned().get((engine, gpu.name, dtype, *key))
        if known is not None:
            at = (experts == key[0]) & (columns == key[1])
            # Of two that are as near, the first.
            found[:, at] = known[1:, np.abs(known[:1].T - tokens[at]).argmin(axis=0)]
            tuned |= at
    return Tiles(*found, tuned)


def tuned_shapes(engine: str, gpu: str) -> set[tuple[str, float, float]]:
    """Return data type, experts and columns of what ``sglang`` or ``vllm`` ships tiles for on a GPU (its id)."""
    return {key[2:] for key in _tuned() if key[:2] == (engine, gpu)}


def _defaults(rule: str, gpu: Gpu, dtype: str, experts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    few = tokens <= experts
    if dtype == "fp8_block":
        # Depth and columns are those of a block of scales.
        found = [np.full(len(tokens), float(size)) for size in _BLOCKS_OF_64]
        if rule == VLLM:
            found[0] = np.where(tokens <= 64, 16.0, 64.0)
    elif rule == VLLM:
        found = [
            np.select([tokens <= 32, tokens <= 96, tokens <= 512], [16.0, 32.0, 64.0], 128.0),
            np.where(tokens <= 64, 64.0, 128.0),
            np.where((tokens <= 64) | (dtype == "fp8"), 128.0, 64.0),
            np.where(tokens <= 32, 4.0, 3.0),
        ]
    else:
        sizes = _BY_EXPERTS
        if dtype == "fp8" and rule == SGLANG:
            sizes = _BY_EXPERTS_SMALL if gpu.shared_memory_bytes_per_sm < _SMALL_BYTES else _BY_EXPERTS_FP8
        found = [np.where(few, first, second) for first, second in zip(*sizes, strict=True)]
    return np.array(found, dtype=float)


@cache
def _tuned() -> dict[tuple, np.ndarray]:
    """Return tokens, rows, columns, depth and stages, shape (5, sizes), by engine, GPU, data type, experts, columns."""
    texts = [Column(name) for name in ("engine", "version", "gpu", "precision", "tiles")]
    sizes = [Column(name, "integer", minimum=1) for name in ("experts", "columns")]
    found = {}
    for line, row in enumerate(read_csv(TABLE, [*texts, *sizes]).to_dict("records"), 2):
        try:
            tiles = [[int(size) for size in tile.replace(":", "x").split("x")] for tile in row["tiles"].split()]
            known = np.array(tiles, dtype=float).reshape(-1, 5).T
        except ValueError:
            problem, remedy = (
                f"'{row['tiles'][:40]}' is no list of tiles",
                "write tokens:rows x columns x depth x stages",
            )
            raise InputError(TABLE, f"line {line}, column tiles", problem, remedy) from None
        found[row["engine"], row["gpu"], row["precision"], float(row["experts"]), float(row["columns"])] = known
    return found
