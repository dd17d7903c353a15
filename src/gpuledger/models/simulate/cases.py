"""The launches of the dataset ``simulated``: which kernel runs on which machine under which probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from gpuledger.models.simulate import kernels
from gpuledger.models.simulate.attention import AttentionKernel, SimulatedTensor, access_records
from gpuledger.models.simulate.kernels import SimulatedKernel
from gpuledger.models.simulate.machine import MachineModel
from gpuledger.models.simulate.scheduling import block_sched_records, progress_records, run_kernel

SEED = 2025
A100 = MachineModel()
#: Traces with records of every thread use fewer SMs, so that each SM still runs many blocks in sequence. In the model
#: SMs do not influence one another.
SLICE = MachineModel(sms=7)


@dataclass(frozen=True)
class SimulatedLaunch:
    """A simulated launch under a probe.

    Attributes
    ----------
    machine : MachineModel
    kernel : SimulatedKernel
    level : {"thread", "warp"}
        Whether each thread or each warp has a slice of records.
    records : ndarray, shape (blocks, threads or warps, records)
    cycles : int
        From the launch to the end of the last block.
    tensors : tuple of SimulatedTensor
        Contents of tensor.trace, in this order.
    counted : bool
        Whether a previous run counted the records, as for the probe ``dmat``.
    function : str
        Python function that receives the tensors.
    beside : SimulatedLaunch, optional
        The same launch under another probe, identical to the cycle, which no real GPU would repeat.
    """

    machine: MachineModel
    kernel: SimulatedKernel
    level: Literal["thread", "warp"]
    records: np.ndarray
    cycles: int
    tensors: tuple[SimulatedTensor, ...] = ()
    counted: bool = False
    function: str = ""
    beside: SimulatedLaunch | None = None


def block_sched(machine: MachineModel, kernel: SimulatedKernel, rng: np.random.Generator) -> SimulatedLaunch:
    """Launch a kernel under the probe ``block_sched``."""
    run = run_kernel(machine, kernel, rng)
    return SimulatedLaunch(machine, kernel, "warp", block_sched_records(run, rng), run.cycles)


def program_progress(machine: MachineModel, kernel: SimulatedKernel, rng: np.random.Generator) -> SimulatedLaunch:
    """Launch a kernel under the probe ``program_progress`` and, identically, under ``block_sched``."""
    run = run_kernel(machine, kernel, rng)
    beside = SimulatedLaunch(machine, kernel, "warp", block_sched_records(run, rng), run.cycles)
    return SimulatedLaunch(machine, kernel, "warp", progress_records(run, rng), run.cycles, beside=beside)


def dmat(machine: MachineModel, attention: AttentionKernel, rng: np.random.Generator) -> SimulatedLaunch:
    """Launch an attention kernel under the probe ``dmat``."""
    records, cycles = access_records(machine, attention, rng)
    # Neutrino's script reads the list backwards and colours query, key, value, statistics and output in turn.
    order = ("output", "softmax_statistics", "value", "key", "query")
    tensors = tuple(attention.tensors[name] for name in order if name in attention.tensors)
    return SimulatedLaunch(machine, attention.kernel, "thread", records, cycles, tensors, True, attention.function)


#: FLASH2_EXCLUSIVE with 49 heads of 512 tokens and tiles of 32 keys. The keys or values of a head fill one page of
#: 64 KiB, as many heads share a row of the published picture, and there are as many iterations as its rows can resolve.
FLASH2_EXCLUSIVE_ACCESSES = AttentionKernel(
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

#: FLASH2_SHARED scaled down likewise. Waits are longer and vary more, because two blocks take turns loading.
FLASH2_SHARED_ACCESSES = replace(
    FLASH2_EXCLUSIVE_ACCESSES,
    warps=4,
    slots=2,
    contention=kernels.FLASH2_SHARED.contention,
    wait_share=0.3,
    spread_share=0.3,
    shared_bytes=kernels.FLASH2_SHARED.shared_bytes,
)

#: FlashAttention-v1 has no pipeline. Keys are loaded at the start of an iteration and values in its middle, so each of
#: them pauses while the other is used.
FLASH1_ACCESSES = AttentionKernel(
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

#: Memory-efficient attention reloads the query tile in every iteration, slice by slice together with the keys.
EFFICIENT_ACCESSES = replace(
    FLASH1_ACCESSES,
    name="fmha_cutlassF_f16_aligned_64x64_rf_sm80",
    batch=5,
    heads=5,
    slots=2,
    contention=kernels.FLASH2_SHARED.contention,
    wait_share=0.25,
    value_phase=0.3,
    reload_query=True,
    spread_share=0.6,
    saves_statistics=False,
    cold_share=0.04,
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
    ("dmat", "fig1"): ("flash2_exclusive_accesses", partial(dmat, SLICE, FLASH2_EXCLUSIVE_ACCESSES)),
    ("dmat", "fig10a"): ("flash2_shared_accesses", partial(dmat, SLICE, FLASH2_SHARED_ACCESSES)),
    ("dmat", "fig10b"): ("flash1_accesses", partial(dmat, SLICE, FLASH1_ACCESSES)),
    ("dmat", "fig10c"): ("efficient_accesses", partial(dmat, SLICE, EFFICIENT_ACCESSES)),
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
