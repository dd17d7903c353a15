"""What the probe ``dmat`` and its sparsifier would leave of attention kernels: accesses by clock and page.

Four kernels on tensors of the published size, 4×32×2048×128: FlashAttention-v2 with one and with two blocks per SM,
FlashAttention-v1, and memory-efficient attention. What they load when follows the paper (OSDI 2025, Fig. 1 and 11).
"""

from dataclasses import dataclass
from math import ceil, prod

import numpy as np
import pandas as pd

from gpuledger.models.simulate.kernels import WARP_SIZE, SimulatedKernel
from gpuledger.models.simulate.machine import ALONE, Contention, MachineModel
from gpuledger.models.simulate.scheduling import run_kernel
from gpuledger.readers.neutrino import PAGE_BYTES

#: Largest access of a thread (bytes): a 16-byte vector or cp.async.
VECTOR_BYTES = 16
ELEMENT_BYTES = 2
STATISTIC_BYTES = 4
#: Alignment of large tensors by PyTorch's allocator (bytes).
ALIGNMENT_BYTES = 2 * 1024 * 1024
#: Address of the first tensor; a modelling choice.
FIRST_ADDRESS = 0x7F5E_4000_0000
#: Half-precision matrix FLOP per cycle of an A100's SM, and the share that the probed kernel of Fig. 1 reaches: 32
#: iterations of 128×64×128 tiles in 272,400 cycles (figure in the documentation).
PEAK_FLOPS_PER_CYCLE = 2048
REACHED_SHARE = 0.273
#: Time between two accesses of a warp in one burst, between the bursts of two warps, and their jitter (cycles);
#: modelling choices.
ISSUE_CYCLES = 4
WARP_CYCLES = 16
JITTER_CYCLES = 48


@dataclass(frozen=True)
class SimulatedTensor:
    """A tensor in global memory."""

    name: str  # name of the argument
    shape: tuple[int, ...]
    address: int  # address of the first byte
    size_bytes: int


@dataclass(frozen=True)
class AttentionKernel:
    """An attention kernel."""

    name: str  # as in event.log
    function: str  # Python function that receives the tensors
    #: Shape of query, key, value and output, two bytes per element.
    batch: int
    heads: int
    tokens: int
    head_dim: int
    #: Rows of a block's query tile, and of the key and value tiles of an iteration.
    tile_queries: int
    tile_keys: int
    warps: int  # warps per block
    slots: int  # blocks that fit on an SM at the same time
    contention: Contention = ALONE
    wait_share: float = 0.05  # mean wait for memory per iteration, relative to its computation
    #: When the key and value tiles are loaded, as a share of an iteration.
    key_phase: float = 0.05
    value_phase: float = 0.15
    ahead: int = 0  # how many iterations ahead they are loaded (pipeline stages minus one)
    #: Whether the query tile is loaded in every iteration, with the keys, or only at the start.
    reload_query: bool = False
    #: Share of an iteration over which the loads of a tile are spread: small if they are issued at once, large if the
    #: product loads slice by slice.
    spread_share: float = 0.1
    saves_statistics: bool = True  # whether the softmax statistics are stored
    cold_share: float = 0.04  # relative extra time of the first wave
    shared_bytes: int = 49152  # dynamic shared memory per block
    moments: int = 1  # clocks at which a warp's loads of a tile are counted

    @property
    def compute_cycles(self) -> float:
        """Cycles of an iteration without its wait: the products of the query tile with a key and a value tile."""
        flops = 2 * 2 * self.tile_queries * self.tile_keys * self.head_dim
        return flops / (PEAK_FLOPS_PER_CYCLE * REACHED_SHARE)

    @property
    def kernel(self) -> SimulatedKernel:
        """The timing model of the kernel."""
        return SimulatedKernel(
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
    def tensors(self) -> dict[str, SimulatedTensor]:
        """Tensors by name, in the address order of Fig. 1: output lowest, statistics highest."""
        shape = (self.batch, self.heads, self.tokens, self.head_dim)
        shapes = {name: (shape, ELEMENT_BYTES) for name in ("output", "value", "key", "query")}
        if self.saves_statistics:
            shapes["softmax_statistics"] = (shape[:-1], STATISTIC_BYTES)
        found, address = {}, FIRST_ADDRESS
        for name, (dimensions, element) in shapes.items():
            size = prod(dimensions) * element
            found[name] = SimulatedTensor(name, dimensions, address, size)
            address += ceil(size / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return found


@dataclass(frozen=True)
class Burst:
    """The accesses of every block to one tile; each thread accesses one vector after another."""

    tensor: str
    work: np.ndarray  # float, one for each block: work done by the block when they start (cycles alone on an SM)
    row: np.ndarray  # int, one for each block: first row (token) of the tile, counted over all heads
    rows: int  # rows of the tile


def list_bursts(attention: AttentionKernel, done: np.ndarray) -> list[Burst]:
    """List the tile accesses of a block in program order.

    Parameters
    ----------
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
    bursts = [] if attention.reload_query else [Burst("query", 0.5 * entry, own, queries)]
    for iteration in range(attention.ahead):
        bursts += loads(iteration, (0.6 + 0.4 * iteration) * entry, 0.4 * entry)
    for iteration in range(kernel.iterations - attention.ahead):
        bursts += loads(iteration + attention.ahead, starts[:, iteration], lengths[:, iteration])
    if attention.saves_statistics:
        bursts.append(Burst("softmax_statistics", done[:, -2], own, queries))
    bursts.append(Burst("output", done[:, -2] + 0.2 * (done[:, -1] - done[:, -2]), own, queries))
    return bursts


def count_accesses(
    machine: MachineModel, attention: AttentionKernel, rng: np.random.Generator
) -> tuple[pd.DataFrame, int]:
    """Count a kernel's accesses by clock and page, as the probe ``dmat`` and its sparsifier would.

    Clocks count from the entry of the thread.

    Returns
    -------
    accesses : DataFrame
        ``clock, page, count``, as :func:`gpuledger.readers.neutrino.write_dmat` takes them.
    cycles : int
        From the launch to the end of the last block.

    Raises
    ------
    ValueError
        A tile lies in more than one page.
    """
    kernel, tensors = attention.kernel, attention.tensors
    run = run_kernel(machine, kernel, rng)
    bursts = list_bursts(attention, run.done)
    begins = run.timeline.since_start(np.stack([burst.work for burst in bursts], axis=1))
    spread = attention.spread_share * attention.compute_cycles
    clocks, pages, counts = [], [], []
    for burst, begin in zip(bursts, begins.T, strict=True):
        tensor = tensors[burst.tensor]
        row_bytes = tensor.size_bytes // prod(tensor.shape[:3])
        vectors = burst.rows * row_bytes // min(VECTOR_BYTES, row_bytes)
        first = tensor.address + burst.row * row_bytes
        if ((first + burst.rows * row_bytes - 1) // PAGE_BYTES != first // PAGE_BYTES).any():
            raise ValueError(f"a tile of {burst.tensor} lies in more than one page of {PAGE_BYTES} bytes")
        # A warp's loads of a tile share `moments` clocks: a clock for each would make the file many times as large.
        warps = min(kernel.warps, ceil(vectors / WARP_SIZE))
        moments = min(attention.moments, max(1, vectors // (warps * WARP_SIZE)))
        jitter = rng.integers(0, JITTER_CYCLES, (kernel.blocks, warps, moments))
        late = WARP_CYCLES * np.arange(warps)[:, None] + (ISSUE_CYCLES + spread / moments) * np.arange(moments)
        clocks.append((begin[:, None, None] + late + jitter).astype(np.uint64).ravel())
        pages.append(np.repeat(first // PAGE_BYTES * PAGE_BYTES, warps * moments).astype(np.uint64))
        shares = np.diff(np.linspace(0, vectors, warps * moments + 1).astype(np.int64))
        counts.append(np.tile(shares, kernel.blocks))
    accesses = pd.DataFrame({"clock": np.concatenate(clocks), "page": np.concatenate(pages)})
    accesses["count"] = np.concatenate(counts)
    return accesses.groupby(["clock", "page"], as_index=False)["count"].sum(), run.cycles
