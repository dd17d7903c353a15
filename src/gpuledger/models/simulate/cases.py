"""The launches of the dataset ``simulated``: which kernel runs on which machine under which probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from gpuledger.models.simulate import kernels
from gpuledger.models.simulate.attention import AttentionKernel, SimulatedTensor, count_accesses
from gpuledger.models.simulate.kernels import SimulatedKernel
from gpuledger.models.simulate.machine import Contention, MachineModel
from gpuledger.models.simulate.scheduling import block_sched_records, progress_records, run_kernel

SEED = 2025
A100 = MachineModel()
#: The memory maps are said to be of this GPU (caption of Fig. 11).
RTX_3080 = MachineModel(sms=68)


@dataclass(frozen=True)
class SimulatedLaunch:
    """A simulated launch under a probe."""

    machine: MachineModel
    kernel: SimulatedKernel
    #: ndarray, shape (blocks, warps, records), or DataFrame: a DataFrame has accesses by clock and page, of every
    #: thread: what is left of a trace of the probe ``dmat``.
    records: np.ndarray | pd.DataFrame
    cycles: int  # from the launch to the end of the last block
    tensors: tuple[SimulatedTensor, ...] = ()  # contents of tensor.trace, in this order
    function: str = ""  # Python function that receives the tensors
    #: The same launch under another probe, identical to the cycle, which no real GPU would repeat.
    beside: SimulatedLaunch | None = None


def block_sched(machine: MachineModel, kernel: SimulatedKernel, rng: np.random.Generator) -> SimulatedLaunch:
    """Launch a kernel under the probe ``block_sched``."""
    run = run_kernel(machine, kernel, rng)
    return SimulatedLaunch(machine, kernel, block_sched_records(run, rng), run.cycles)


def program_progress(machine: MachineModel, kernel: SimulatedKernel, rng: np.random.Generator) -> SimulatedLaunch:
    """Launch a kernel under the probe ``program_progress`` and, identically, under ``block_sched``."""
    run = run_kernel(machine, kernel, rng)
    beside = SimulatedLaunch(machine, kernel, block_sched_records(run, rng), run.cycles)
    return SimulatedLaunch(machine, kernel, progress_records(run, rng), run.cycles, beside=beside)


def dmat(machine: MachineModel, attention: AttentionKernel, rng: np.random.Generator) -> SimulatedLaunch:
    """Launch an attention kernel under the probe ``dmat``."""
    accesses, cycles = count_accesses(machine, attention, rng)
    # Neutrino's script reads the list backwards and colours query, key, value, statistics and output in turn.
    order = ("output", "softmax_statistics", "value", "key", "query")
    tensors = tuple(attention.tensors[name] for name in order if name in attention.tensors)
    return SimulatedLaunch(machine, attention.kernel, accesses, cycles, tensors, attention.function)


#: Tensors of the documentation's picture, which looks like Fig. 1: four of 4×32×2048×128, 1,024 pages each. Tiles of 64
#: keys give the 32 stripes of Fig. 1.
FLASH2_EXCLUSIVE_ACCESSES = AttentionKernel(
    name="_attn_fwd",
    function="attention",
    batch=4,
    heads=32,
    tokens=2048,
    head_dim=128,
    tile_queries=128,
    tile_keys=64,
    warps=8,
    slots=1,
    key_phase=0.45,
    value_phase=0.55,
    ahead=1,
    shared_bytes=kernels.FLASH2_EXCLUSIVE.shared_bytes,
)

#: Two blocks per SM, with the younger block's speed as fitted to Fig. 14B. An eighth of the blocks is never slowed, as
#: that figure suggests; this gives the output two bursts. Waits are longer and loads more spread: two blocks compete.
FLASH2_SHARED_ACCESSES = replace(
    FLASH2_EXCLUSIVE_ACCESSES,
    warps=4,
    slots=2,
    contention=replace(kernels.FLASH2_SHARED.contention, favoured=0.12),
    wait_share=0.12,
    spread_share=0.75,
    moments=2,
    shared_bytes=kernels.FLASH2_SHARED.shared_bytes,
)

#: FlashAttention-v1 has no pipeline and 8 large tiles. Keys are loaded at the start of an iteration and values in its
#: middle, so each of them pauses while the other is used.
FLASH1_ACCESSES = replace(
    FLASH2_EXCLUSIVE_ACCESSES,
    name="flash_fwd_kernel",
    function="scaled_dot_product_attention",
    tile_keys=256,
    warps=4,
    ahead=0,
    wait_share=0.06,
    key_phase=0.0,
    value_phase=0.45,
    spread_share=0.25,
    cold_share=0.2,
    moments=8,
)

#: Memory-efficient attention reloads the query tile in every iteration, slice by slice together with the keys.
EFFICIENT_ACCESSES = replace(
    FLASH2_SHARED_ACCESSES,
    name="fmha_cutlassF_f16_aligned_64x64_rf_sm80",
    function="scaled_dot_product_attention",
    ahead=0,
    contention=Contention(older=1.0, younger=0.74, favoured=0.2),
    wait_share=0.16,
    key_phase=0.0,
    value_phase=0.3,
    reload_query=True,
    spread_share=0.8,
    saves_statistics=False,
)

#: By study and case: name of the launch, which seeds it, and its maker. Two cases of one name are the same launch, and
#: share the file of the probe that both declare.
CASES: Mapping[tuple[str, str], tuple[str, Callable[[np.random.Generator], SimulatedLaunch]]] = {
    ("block_scheduling", "zeros_4096"): ("fill", partial(block_sched, A100, kernels.FILL)),
    ("block_scheduling", "zeros_4096_persistent"): (
        "persistent_fill",
        partial(block_sched, A100, kernels.PERSISTENT_FILL),
    ),
    ("warp_scheduling", "fig13a"): ("flash2_exclusive", partial(block_sched, A100, kernels.FLASH2_EXCLUSIVE)),
    ("warp_scheduling", "fig13b"): ("flash2_shared", partial(block_sched, A100, kernels.FLASH2_SHARED)),
    ("warp_scheduling", "fig13cd"): ("flash2_shared", partial(program_progress, A100, kernels.FLASH2_SHARED)),
    ("warp_scheduling", "fig17a"): ("gemm_exclusive", partial(block_sched, A100, kernels.GEMM_EXCLUSIVE)),
    ("warp_scheduling", "fig17b"): ("gemm_shared", partial(block_sched, A100, kernels.GEMM_SHARED)),
    ("dmat", "fig1"): ("flash2_exclusive_accesses", partial(dmat, RTX_3080, FLASH2_EXCLUSIVE_ACCESSES)),
    ("dmat", "fig10a"): ("flash2_shared_accesses", partial(dmat, RTX_3080, FLASH2_SHARED_ACCESSES)),
    ("dmat", "fig10b"): ("flash1_accesses", partial(dmat, RTX_3080, FLASH1_ACCESSES)),
    ("dmat", "fig10c"): ("efficient_accesses", partial(dmat, RTX_3080, EFFICIENT_ACCESSES)),
}


def simulate_launch(study: str, case: str) -> SimulatedLaunch:
    """Simulate the launch of a case; the result is deterministic.

    Raises
    ------
    KeyError
        :data:`CASES` has no such case.
    """
    name, make = CASES[study, case]
    return make(np.random.default_rng([SEED, *name.encode()]))
