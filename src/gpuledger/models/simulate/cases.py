"""The launches of the dataset ``simulated``: which kernel on which machine, under which probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from gpuledger.models.simulate import kernels
from gpuledger.models.simulate.attention import Attention, Tensor, access_records
from gpuledger.models.simulate.gpu import Contention, Gpu
from gpuledger.models.simulate.kernels import Kernel
from gpuledger.models.simulate.scheduling import block_sched_records, progress_records, run_kernel

SEED = 2025
A100 = Gpu()
#: Traces with records of every thread are of a slice of the machine, so that each of its SMs still runs many blocks
#: one after another; in the model an SM has no influence on another.
SLICE = Gpu(sms=7)
PROGRESS_SLICE = Gpu(sms=8)


@dataclass(frozen=True)
class Launch:
    """A simulated launch under a probe.

    Attributes
    ----------
    gpu : Gpu
    kernel : Kernel
    level : {"thread", "warp"}
        What saves one slice of records.
    records : ndarray, shape (blocks, threads or warps, records)
    cycles : int
        From the launch to the end of the last block.
    tensors : tuple of Tensor
        What tensor.trace lists, in this order.
    counted : bool
        Whether the number of records was counted by a run before, as for the probe ``dmat``.
    function : str
        Of Python, to which the tensors are passed.
    beside : Launch, optional
        The very same launch under another probe, cycle by cycle: what no real GPU would do twice.
    """

    gpu: Gpu
    kernel: Kernel
    level: Literal["thread", "warp"]
    records: np.ndarray
    cycles: int
    tensors: tuple[Tensor, ...] = ()
    counted: bool = False
    function: str = ""
    beside: Launch | None = None


def block_sched(gpu: Gpu, kernel: Kernel, rng: np.random.Generator) -> Launch:
    """Launch a kernel under the probe ``block_sched``."""
    run = run_kernel(gpu, kernel, rng)
    return Launch(gpu, kernel, "warp", block_sched_records(run, rng), run.cycles)


def program_progress(gpu: Gpu, kernel: Kernel, rng: np.random.Generator) -> Launch:
    """Launch a kernel under the probe ``program_progress``, and beside it under ``block_sched``."""
    run = run_kernel(gpu, kernel, rng)
    beside = Launch(gpu, kernel, "warp", block_sched_records(run, rng), run.cycles)
    return Launch(gpu, kernel, "thread", progress_records(run, rng), run.cycles, beside=beside)


def dmat(gpu: Gpu, attention: Attention, rng: np.random.Generator) -> Launch:
    """Launch an attention kernel under the probe ``dmat``."""
    records, cycles = access_records(gpu, attention, rng)
    # Neutrino's own script reads the list from its end, and colours query, key, value, statistics, output in turn.
    order = ("output", "softmax_statistics", "value", "key", "query")
    tensors = tuple(attention.tensors[name] for name in order if name in attention.tensors)
    return Launch(gpu, attention.kernel, "thread", records, cycles, tensors, True, attention.function)


#: As in FLASH2_EXCLUSIVE, but 49 heads of 512 tokens and tiles of 32 keys. A head of key or value is one page of
#: 64 KiB, as many heads share a row of the published picture, and there are as many iterations as rows allow to tell.
FLASH2_EXCLUSIVE_ACCESSES = Attention(
    name="_attn_fwd",
    function="attention",
    batch=7,
    heads=7,
    tokens=512,
    head_dim=64,
    tile_queries=128,
    tile_keys=32,
    warps=8,
    slots=1,
    ahead=1,
    shared_bytes=kernels.FLASH2_EXCLUSIVE.shared_bytes,
)

#: As in FLASH2_SHARED, scaled down likewise; waits are longer and vary more, because two blocks load by turns.
FLASH2_SHARED_ACCESSES = Attention(
    name="_attn_fwd",
    function="attention",
    batch=7,
    heads=7,
    tokens=512,
    head_dim=64,
    tile_queries=128,
    tile_keys=32,
    warps=4,
    slots=2,
    contention=kernels.FLASH2_SHARED.contention,
    wait_share=0.3,
    ahead=1,
    spread_share=0.3,
    shared_bytes=kernels.FLASH2_SHARED.shared_bytes,
)

#: FlashAttention-v1: no pipeline. Keys are loaded when an iteration begins and values in its middle, so that each has
#: gaps while the other is used.
FLASH1_ACCESSES = Attention(
    name="flash_fwd_kernel",
    function="scaled_dot_product_attention",
    batch=7,
    heads=7,
    tokens=512,
    head_dim=64,
    tile_queries=128,
    tile_keys=64,
    warps=4,
    slots=1,
    wait_share=0.06,
    key_phase=0.0,
    value_phase=0.45,
    spread_share=0.25,
    cold_share=0.2,
)

#: Memory-efficient attention: the query tile is loaded again in every iteration, slice by slice with the keys.
EFFICIENT_ACCESSES = Attention(
    name="fmha_cutlassF_f16_aligned_64x64_rf_sm80",
    function="scaled_dot_product_attention",
    batch=5,
    heads=5,
    tokens=512,
    head_dim=64,
    tile_queries=128,
    tile_keys=64,
    warps=4,
    slots=2,
    contention=Contention(older=1.0, younger=0.765),
    wait_share=0.25,
    key_phase=0.0,
    value_phase=0.3,
    reload_query=True,
    spread_share=0.6,
    saves_statistics=False,
)

_progress = ("flash2_progress", partial(program_progress, PROGRESS_SLICE, kernels.FLASH2_PROGRESS))

#: By study and case, the name of the launch, by which it is seeded, and what makes it. Two cases of one launch share
#: its file.
CASES: Mapping[tuple[str, str], tuple[str, Callable[[np.random.Generator], Launch]]] = {
    ("block_scheduling", "zeros_4096"): ("fill", partial(block_sched, A100, kernels.FILL)),
    ("block_scheduling", "zeros_4096_persistent"): (
        "persistent_fill",
        partial(block_sched, A100, kernels.PERSISTENT_FILL),
    ),
    ("warp_scheduling", "fig13a"): ("flash2_exclusive", partial(block_sched, A100, kernels.FLASH2_EXCLUSIVE)),
    ("warp_scheduling", "fig13b"): ("flash2_shared", partial(block_sched, A100, kernels.FLASH2_SHARED)),
    ("warp_scheduling", "fig13c"): _progress,
    ("warp_scheduling", "fig13d"): _progress,
    ("warp_scheduling", "fig17a"): ("gemm_exclusive", partial(block_sched, A100, kernels.GEMM_EXCLUSIVE)),
    ("warp_scheduling", "fig17b"): ("gemm_shared", partial(block_sched, A100, kernels.GEMM_SHARED)),
    ("dmat", "fig1"): ("flash2_exclusive_accesses", partial(dmat, SLICE, FLASH2_EXCLUSIVE_ACCESSES)),
    ("dmat", "fig10a"): ("flash2_shared_accesses", partial(dmat, SLICE, FLASH2_SHARED_ACCESSES)),
    ("dmat", "fig10b"): ("flash1_accesses", partial(dmat, SLICE, FLASH1_ACCESSES)),
    ("dmat", "fig10c"): ("efficient_accesses", partial(dmat, SLICE, EFFICIENT_ACCESSES)),
}


def simulate_launch(study: str, case: str) -> Launch:
    """Simulate the launch of a case; the same every time.

    Raises
    ------
    KeyError
        When there is no such case in :data:`CASES`.
    """
    name, make = CASES[study, case]
    return make(np.random.default_rng([SEED, *name.encode()]))
