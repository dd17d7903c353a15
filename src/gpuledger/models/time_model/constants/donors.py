"""Which measured GPU's constants a GPU without measurements of its own takes, by what they share physically.

An MI300X takes an A100's: its decode step of Qwen3-8B (dataset ``tracelens``) is predicted 25 % too short. With the
constants of a desktop GPU, whose SMs have about as much shared memory as a compute unit, it was 37 %.
"""

from collections.abc import Iterable
from typing import NamedTuple

from gpuledger.models.time_model.gemms.tiles import generation_of, stacked
from gpuledger.readers.gpus import Gpu

#: Generations of NVIDIA's GPUs, each next to those whose instructions and caches are most like its own.
GENERATIONS = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")
#: Kinds of kernels that mostly wait for DRAM, or come from libraries that every generation has its own of. For others
#: the matrix units' instructions count before the memory: those kernels were written for them. (As if an A100 had not
#: been measured: GEMMs and decode attention are predicted within 10 and 19 % with an H100's constants, 14 and 26 %
#: with an L40S's; prefill, experts and latent decode within 18, 36 and 49 %, and 17, 25 and 17 %.)
BY_MEMORY = ("gemm", "decode", "quantise", "convolution", "state_update")
#: Fastest PCIe link (bytes/s in one direction; sixteen lanes of PCIe 6.0). What is faster goes through switches of its
#: own and does not share a tree.
PCIE_BYTES_PER_S = 128e9
#: GPUs whose collectives were measured on a server that says little about others. Among eight L40S all tables but one
#: have 2 GB/s; another server of the same GPU (SGLang 0.5.12's table) is ten times as fast, which an RTX PRO 6000's
#: constants predict within 29 % by the links' bandwidths, and those of the other tables within 239 %.
ODD_SERVERS = ("l40s",)
#: GPUs whose link in the table is a bridge between two of them.
BRIDGED = ("h100-nvl",)


class Distance(NamedTuple):
    """How far a GPU's constants are from another's, the first difference before all others."""

    foreign: bool
    first: bool
    second: bool
    generations: int  # between them
    #: Larger over smaller: of links' bandwidths, if collectives; of what an SM's matrix units compute in a cycle. (No
    #: logarithms: their last bits differ between processors, and the nearest of two must not.)
    rates: tuple[float, ...]


def distance(gpu: Gpu, other: Gpu, kind: str, latent: bool = False) -> Distance:
    """Return how far another GPU's constants of a kind of kernel are from this GPU.

    Parameters
    ----------
    kind : str
        A key of :data:`gpuledger.models.time_model.constants.table.KINDS`.
    latent : bool
        Of multi-head latent attention, whose decoding computes more than it reads.
    """
    steps, rate = _generations(gpu, other), _ratio(sm_rate(gpu), sm_rate(other))
    if kind == "collective":
        fast = [one.link_bytes_per_s > PCIE_BYTES_PER_S for one in (gpu, other)]
        link = _ratio(gpu.link_bytes_per_s, other.link_bytes_per_s) if gpu.link_bytes_per_s > 0 else 1.0
        return Distance(foreign(gpu, other), fast[0] != fast[1], other.name in ODD_SERVERS, steps, (link, rate))
    units = generation_of(gpu) is not generation_of(other)
    memory = stacked(gpu) != stacked(other)
    first, second = (memory, units) if kind in BY_MEMORY and not latent else (units, memory)
    return Distance(foreign(gpu, other), first, second, steps, (rate,))


def nearest_gpu(gpu: Gpu, donors: Iterable[Gpu], kind: str, latent: bool = False) -> Gpu:
    """Return the GPU whose constants of a kind of kernel carry over best."""
    return min(donors, key=lambda other: distance(gpu, other, kind, latent))


def alike(one: Gpu, other: Gpu) -> bool:
    """Return whether kernels compiled for one GPU run on the other: of data centres and of desktops they differ."""
    return one.architecture == other.architecture and generation_of(one) is generation_of(other)


def sm_rate(gpu: Gpu) -> float:
    """FLOP of the matrix units of an SM in a cycle."""
    return gpu.peak_flop_per_s("bf16") / (gpu.sms * gpu.clock_hz)


def foreign(gpu: Gpu, other: Gpu) -> bool:
    """Return whether the other GPU is neither NVIDIA's nor of this GPU's architecture: its constants say little here.

    Intel's B60 was measured with one engine and without graphs: to start a kernel takes the host 20 to 60 µs there.
    """
    return not known(other) and other.architecture != gpu.architecture


def known(gpu: Gpu) -> bool:
    """Return whether it is known which generation a GPU is of, and so which measured ones are like it."""
    return gpu.architecture in GENERATIONS


def _ratio(one: float, other: float) -> float:
    return max(one / other, other / one)


def _generations(one: Gpu, other: Gpu) -> int:
    if one.architecture == other.architecture:
        return 0
    if not {one.architecture, other.architecture} <= set(GENERATIONS):
        return len(GENERATIONS)
    return abs(GENERATIONS.index(one.architecture) - GENERATIONS.index(other.architecture))
