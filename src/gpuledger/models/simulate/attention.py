"""What the probe ``dmat`` would record of attention kernels: every access of every thread to global memory.

Four kernels on the same layout of tensors: FlashAttention-v2 with a block for itself and with two blocks an SM,
FlashAttention-v1, memory-efficient attention. What they load when is as the paper describes it (OSDI 2025, Fig. 1 and
Fig. 11). Sequence, keys of a tile and number of heads are scaled down, together, so that a trace stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from gpuledger.models.simulate.gpu import ALONE, Contention, Gpu
from gpuledger.models.simulate.kernels import WARP_SIZE, Kernel
from gpuledger.models.simulate.scheduling import run_kernel
from gpuledger.readers.neutrino import DMAT_ACCESS

#: A thread moves at most so much at once (bytes): a 16-byte vector or cp.async.
VECTOR_BYTES = 16
ELEMENT_BYTES = 2
STATISTIC_BYTES = 4
#: Large tensors are aligned so by PyTorch's allocator (bytes).
ALIGNMENT_BYTES = 2 * 1024 * 1024
#: Where the first tensor lies; a choice of the model.
FIRST_ADDRESS = 0x7F5E_4000_0000
#: Half-precision matrix FLOPs of an A100's SM in a cycle, and the share of them that the kernel of Fig. 1 reaches:
#: 32 iterations of 128×128×128 tiles in 272,400 cycles (documentation's picture of it).
PEAK_FLOPS_PER_CYCLE = 2048
REACHED_SHARE = 0.48
#: Between two accesses of a warp in one burst, between the bursts of two warps, and how much they vary (cycles);
#: choices of the model.
ISSUE_CYCLES = 4
WARP_CYCLES = 16
JITTER_CYCLES = 48


@dataclass(frozen=True)
class Tensor:
    """A tensor in global memory.

    Attributes
    ----------
    name : str
        Of the argument.
    shape : tuple of int
    address : int
        Of its first byte.
    size_bytes : int
    """

    name: str
    shape: tuple[int, ...]
    address: int
    size_bytes: int


@dataclass(frozen=True)
class Attention:
    """An attention kernel.

    Attributes
    ----------
    name : str
        As it would stand in event.log.
    function : str
        Of Python, to which the tensors are passed.
    batch, heads, tokens, head_dim : int
        Shape of query, key, value and output, of two bytes an element.
    tile_queries, tile_keys : int
        Rows of a block's query tile; rows of the key and value tile of an iteration.
    warps : int
        Of a block.
    slots : int
        Blocks that fit on an SM at once.
    contention : Contention
    wait_share : float
        Mean wait for memory of an iteration, as a share of its computation.
    key_phase, value_phase : float
        When in an iteration key and value tiles are loaded, as a share of it.
    ahead : int
        For how many iterations ahead they are loaded (stages of the pipeline less one).
    reload_query : bool
        Whether the query tile is loaded in every iteration, with the keys, and not only at the start.
    spread_share : float
        Over what share of an iteration the loads of a tile are spread: little where they are issued at once, much where
        the product asks for slice after slice.
    saves_statistics : bool
        Whether the softmax statistics are stored.
    cold_share : float
        What blocks of the first wave need beyond the others, as a share.
    shared_bytes : int
    """

    name: str
    function: str
    batch: int
    heads: int
    tokens: int
    head_dim: int
    tile_queries: int
    tile_keys: int
    warps: int
    slots: int
    contention: Contention = ALONE
    wait_share: float = 0.05
    key_phase: float = 0.05
    value_phase: float = 0.15
    ahead: int = 0
    reload_query: bool = False
    spread_share: float = 0.1
    saves_statistics: bool = True
    cold_share: float = 0.04
    shared_bytes: int = 49152

    @property
    def compute_cycles(self) -> float:
        """Cycles of an iteration without its wait: two products of a query tile and a tile of keys or values."""
        flops = 2 * 2 * self.tile_queries * self.tile_keys * self.head_dim
        return flops / (PEAK_FLOPS_PER_CYCLE * REACHED_SHARE)

    @property
    def kernel(self) -> Kernel:
        """The kernel that takes this long."""
        return Kernel(
            name=self.name,
            grid=(self.tokens // self.tile_queries, self.batch * self.heads, 1),
            block=(self.warps * WARP_SIZE, 1, 1),
            slots=self.slots,
            iterations=self.tokens // self.tile_keys,
            compute_cycles=self.compute_cycles,
            wait_cycles=self.wait_share * self.compute_cycles,
            contention=self.contention,
            cold_share=self.cold_share,
            prologue_cycles=0.3 * self.compute_cycles,
            epilogue_cycles=0.5 * self.compute_cycles,
            shared_bytes=self.shared_bytes,
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, in the order of addresses that Fig. 1 shows: output below, statistics on top."""
        shape = (self.batch, self.heads, self.tokens, self.head_dim)
        shapes = {name: (shape, ELEMENT_BYTES) for name in ("output", "value", "key", "query")}
        if self.saves_statistics:
            shapes["softmax_statistics"] = (shape[:-1], STATISTIC_BYTES)
        found, address = {}, FIRST_ADDRESS
        for name, (dimensions, element) in shapes.items():
            size = prod(dimensions) * element
            found[name] = Tensor(name, dimensions, address, size)
            address += ceil(size / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return found


@dataclass(frozen=True)
class Burst:
    """Accesses of a block to a tile: every thread one vector after another.

    Attributes
    ----------
    tensor : str
    work : ndarray of float, one for each block
        Work done when they start (cycles alone on an SM).
    row : ndarray of int, one for each block
        First row (token) of the tile, counted over all heads.
    rows : int
        Of the tile.
    """

    tensor: str
    work: np.ndarray
    row: np.ndarray
    rows: int


def plan(attention: Attention, done: np.ndarray) -> list[Burst]:
    """List what every block accesses, in program order.

    Parameters
    ----------
    attention : Attention
    done : ndarray, shape (blocks, iterations + 2)
        Work done at the end of every step, as :func:`gpuledger.models.simulate.scheduling.run_kernel` returns it.
    """
    kernel = attention.kernel
    tile, head = np.divmod(np.arange(kernel.blocks), kernel.grid[0])[::-1]
    first, queries = head * attention.tokens, attention.tile_queries
    own = first + tile * queries

    def loads(iteration: int, start: np.ndarray, length: np.ndarray) -> list[Burst]:
        row = first + iteration * attention.tile_keys
        found = [
            Burst("key", start + attention.key_phase * length, row, attention.tile_keys),
            Burst("value", start + attention.value_phase * length, row, attention.tile_keys),
        ]
        if attention.reload_query:
            found.insert(0, Burst("query", start + attention.key_phase * length, own, queries))
        return found

    entry, starts, lengths = done[:, 0], done[:, :-2], np.diff(done[:, :-1], axis=1)
    bursts = [] if attention.reload_query else [Burst("query", 0.2 * entry, own, queries)]
    for iteration in range(attention.ahead):
        bursts += loads(iteration, (0.5 + 0.4 * iteration) * entry, 0.4 * entry)
    for iteration in range(kernel.iterations - attention.ahead):
        bursts += loads(iteration + attention.ahead, starts[:, iteration], lengths[:, iteration])
    if attention.saves_statistics:
        bursts.append(Burst("softmax_statistics", done[:, -2], own, queries))
    bursts.append(Burst("output", done[:, -2] + 0.2 * (done[:, -1] - done[:, -2]), own, queries))
    return bursts


def access_records(gpu: Gpu, attention: Attention, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Return what ``dmat`` records, and how long the kernel ran.

    A clock is counted from the entry of its own thread, and is one for all lanes of a warp. Slots that a thread does
    not fill stay zero, as the driver clears them.

    Returns
    -------
    ndarray of DMAT_ACCESS, shape (blocks, threads, records)
    int
        Cycles from the launch to the end of the last block.
    """
    kernel, tensors = attention.kernel, attention.tensors
    run = run_kernel(gpu, kernel, rng)
    bursts = plan(attention, run.done)
    begins = run.timeline.since_start(np.stack([burst.work for burst in bursts], axis=1))
    late = WARP_CYCLES * np.arange(kernel.warps)
    spread = attention.spread_share * attention.compute_cycles
    clocks, addresses = [], []
    for burst, begin in zip(bursts, begins.T, strict=True):
        tensor = tensors[burst.tensor]
        row_bytes = tensor.size_bytes // prod(tensor.shape[:3])
        vector = min(VECTOR_BYTES, row_bytes)
        vectors = burst.rows * row_bytes // vector
        each = ceil(vectors / kernel.threads)
        order = np.arange(each)
        jitter = rng.integers(0, JITTER_CYCLES, (kernel.blocks, kernel.warps, each))
        clock = begin[:, None, None] + late[:, None] + (ISSUE_CYCLES + spread / each) * order + jitter
        # Thread after thread takes one vector, then again from the first thread on.
        index = np.arange(kernel.threads)[:, None] + kernel.threads * order
        clocks.append(np.where(index < vectors, np.repeat(clock, WARP_SIZE, axis=1), np.inf))
        addresses.append(tensor.address + burst.row[:, None, None] * row_bytes + index * vector)
    clock, address = np.concatenate(clocks, axis=2), np.concatenate(addresses, axis=2)
    # A thread saves its accesses as it makes them; those that it does not make are no gaps, but missing at its end.
    order = np.argsort(clock, axis=2, kind="stable")
    clock, address = np.take_along_axis(clock, order, axis=2), np.take_along_axis(address, order, axis=2)
    made = np.isfinite(clock)
    records = np.zeros((*clock.shape[:2], int(made.sum(axis=2).max())), DMAT_ACCESS)
    made = made[:, :, : records.shape[2]]
    records["clock"][made] = clock[:, :, : records.shape[2]][made].astype(np.uint64)
    records["addr"][made] = address[:, :, : records.shape[2]][made]
    return records, run.cycles
