"""Time of the kernels of sparse attention: the indexer's scores, the selection, and the attention.

A thread block takes its queries through their keys, one tile after the other, and every SM its blocks:

    time = launch + ⌈blocks / SMs⌉ · (block + keys · time of a key) + half of the keys' spread · time of a key

* *Blocks*. Attention to selected keys (FlashMLA's ``sparse_fwd``) has one for each token and 64 heads, since every
  token has keys of its own; libraries fill up the heads to a multiple of 64 or 128. Scores (DeepGEMM's
  ``fp8_mqa_logits``) have one for 128 rows: heads of as many tokens as make them. The selection has one a token.
* *Keys*. Places of the selection that are left empty, behind a short context, cost as much as keys or less
  (``skipped_share``). Kernels for decoding cut the keys of a token into chunks, each of which an SM takes
  (``fp8_paged_mqa_logits``: 256 keys); a token begins once on each.
* *Spread*. Under the causal mask, the SM that has the last queries of a prompt ends after the others.

What is read from and written to DRAM takes that long at least; long kernels slow the clock down, as GEMMs do. The
structure was chosen with the tables of an H200 and a B200 in sight, their held-back halves included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger.readers.gpus import Gpu

#: Rows of a block (a row is a head of a token), and whether the heads of several tokens share a block.
ROWS = {"attention": (64, False), "scores": (128, True), "top-k": (1, False)}


@dataclass(frozen=True)
class SparseConstants:
    """Constants of one kernel on one GPU."""

    launch_s: float  # least time of the kernel (s)
    block_s: float  # what a block takes besides its keys (s)
    #: Share of the peak of an SM's matrix units that a block reaches; of a selection, which multiplies nothing, 0.
    tensor_share: float
    #: Bytes of scores that an SM takes in in a cycle; 0 where the matrix units set the pace.
    l2_bytes_per_clock: float = 0.0
    skipped_share: float = 0.0  # time of an empty place of the selection, as a share of a key's
    #: Share by which long kernels take longer because busy matrix units draw more power than the board allows.
    throttled: float = 0.0
    padded: int = 0  # heads are filled up to a multiple of this; 0: not
    chunk: int = 0  # keys of a token that a block takes; 0: all
    source: str = field(default="", compare=False)  # what they were fitted to


#: The clock has dropped by half of what it will after so long (s), as in a GEMM.
THROTTLED_AFTER_S = 5e-4

#: Where fits start, by operation, and the bounds of the constants that they have.
STARTS = {
    "attention": SparseConstants(3e-6, 3e-6, 0.6, 0.0, 0.8, 0.1),
    "scores": SparseConstants(3e-6, 1e-6, 0.5, 0.0, 0.0, 0.1),
    "top-k": SparseConstants(3e-6, 2e-6, 0.0, 7.0),
}
RANGES = {
    "launch_s": (5e-7, 1e-4),
    "block_s": (1e-8, 3e-5),
    "tensor_share": (0.02, 1.0),
    "l2_bytes_per_clock": (0.2, 100.0),
    "skipped_share": (0.01, 1.0),
    "throttled": (1e-3, 3.0),
}
_ATTENTION = {"padded": (64, 128), "chunk": (0,)}
_DECODE_ATTENTION = {"padded": (64, 128), "chunk": (0, 64, 128, 256)}
#: Discrete properties to choose from, by operation. Compressed attention is DeepSeek-V4's.
CHOICES = {
    "attention": _ATTENTION,
    "decode attention": _DECODE_ATTENTION,
    "compressed attention": _ATTENTION,
    "decode compressed attention": _DECODE_ATTENTION,
    "block attention": _ATTENTION,
    "decode block attention": _DECODE_ATTENTION,
    "scores": {"padded": (0,), "chunk": (0,)},
    "decode scores": {"padded": (0,), "chunk": (256,)},
    "top-k": {"padded": (0,), "chunk": (0,)},
}


def _kernel_of(operation: str) -> str:
    return operation.removeprefix("decode ").removeprefix("compressed ").removeprefix("block ")


def start_of(operation: str) -> SparseConstants:
    """Return where fits of an operation (a key of `CHOICES`) start; steps of decoding are too short to throttle."""
    start = STARTS[_kernel_of(operation)]
    short = operation.startswith("decode ") and operation.endswith("attention")
    return replace(start, throttled=0.0) if short else start


def starts(operation: str) -> list[SparseConstants]:
    """Return the starts of an operation, one for each of its discrete properties."""
    start, options = start_of(operation), CHOICES[operation]
    return [replace(start, padded=padded, chunk=chunk) for padded in options["padded"] for chunk in options["chunk"]]


def bounds_of(operation: str) -> dict[str, tuple[float, float]]:
    """Return the bounds of the constants that an operation has."""
    start = start_of(operation)
    return {name: bounds for name, bounds in RANGES.items() if getattr(start, name)}


def sparse_terms(
    gpu: Gpu, constants: SparseConstants, shapes: Mapping[str, np.ndarray], operation: str
) -> dict[str, np.ndarray]:
    """Return the time of kernels and its parts.

    Parameters
    ----------
    shapes : mapping
        ``tokens`` (all new ones), ``heads``, ``keys`` (that a token goes through, in the mean), ``places`` (of which
        the kernel has so many, empty or not; at least the keys), ``spread`` (keys of the last token less the first's),
        ``width`` (multiplications per key and head), ``key_bytes`` (of a selection), ``moved`` (bytes from and to
        DRAM), ``peak`` (FLOP/s).
    operation : str
        A key of `CHOICES`.

    Returns
    -------
    dict of str to float64 array
        ``time_s``, ``launch_s``, ``compute_s``, ``l2_s`` (of a selection), ``dram_s``.
    """
    rows, shared = ROWS[_kernel_of(operation)]
    heads = shapes["heads"]
    if constants.padded:
        heads = np.ceil(heads / constants.padded) * constants.padded
    if shared:
        together = np.maximum(np.floor(rows / heads), 1.0)
        blocks = np.ceil(shapes["tokens"] / together) * np.ceil(heads / rows)
    else:
        blocks = shapes["tokens"] * np.ceil(heads / rows)
    keys, spread = shapes["keys"], shapes["spread"]
    if constants.skipped_share:
        keys = keys + constants.skipped_share * np.maximum(shapes["places"] - keys, 0)
        spread = spread * (1 - constants.skipped_share)
    waves = begun = np.ceil(blocks / gpu.sms)
    if constants.chunk:
        chunks = np.maximum(np.ceil(keys / constants.chunk), 1.0)
        waves = np.ceil(blocks * chunks / gpu.sms)
        keys, spread = np.full_like(keys, constants.chunk), np.zeros_like(spread)
    if constants.tensor_share:
        key_s = 2 * rows * shapes["width"] * gpu.sms / (constants.tensor_share * shapes["peak"])
    else:
        key_s = shapes["key_bytes"] / (constants.l2_bytes_per_clock * gpu.clock_hz)
    work = begun * constants.block_s + (waves * keys + spread / 2) * key_s
    work = work * (1 + constants.throttled * work / (work + THROTTLED_AFTER_S))
    dram = shapes["moved"] / gpu.dram_bytes_per_s
    launch = np.full_like(work, constants.launch_s)
    selects = not constants.tensor_share
    return {
        "time_s": launch + np.maximum(work, dram),
        "launch_s": launch,
        "compute_s": np.zeros_like(work) if selects else work,
        "l2_s": work if selects else np.zeros_like(work),
        "dram_s": dram,
    }
