"""Time of collectives on the links of one node, with constants fitted to measurements.

As in NCCL (src/graph/tuning.cc), each protocol has a latency, a latency per hop, and a share of the link's bandwidth;
the fastest is taken.

How bandwidth changes with the number of GPUs and where engines leave messages to their library was chosen with the
held-back errors of all 63 tables in sight, an RTX PRO 6000's among them.
"""

import itertools
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger.models.time_model.overlap import norm
from gpuledger.readers.gpus import Gpu


@dataclass(frozen=True)
class CollectiveConstants:
    """Constants of one library's collective on one GPU: three protocols, of which the fastest is taken.

    The first is for short messages (NCCL's LL; in engines one shot, every GPU reading all of the others' data), the
    second for middling ones (LL128; two shots, reduce-scatter and all-gather), the third for long ones.
    """

    #: Latency of each protocol (s), and the share of the link's data sheet bandwidth (one direction) that it reaches.
    short_s: float
    short_share: float
    middle_s: float
    middle_share: float
    long_s: float
    long_share: float
    hop_s: float  # added latency per doubling of the GPUs: once, twice, four times by protocol (s)
    #: Factor on the bandwidth for each doubling of the GPUs from two to eight: 1 to 1.5 through NVLink's switches, 0.2
    #: to 0.8 on a tree of PCIe switches, whose upper links they share.
    doubling: float = 1.0
    #: Longest message of an engine's own kernels, the first two protocols; longer ones are left to the third, its
    #: library's. 0: always the fastest of three.
    own_bytes: float = 0.0
    pattern: str = "ring"  # of the first protocol: ``ring``, or ``one shot`` (everything to everybody)
    #: What the host takes to call an engine's kernel without a graph, which does not wait for it (s); 0: nothing.
    host_s: float = 0.0
    source: str = field(default="", compare=False)  # what they were fitted to


START = CollectiveConstants(3e-6, 0.1, 8e-6, 0.4, 2e-5, 0.8, 1e-6)
RANGES = {
    "short_s": (1e-7, 1e-3),
    "short_share": (0.005, 1.5),
    "middle_s": (1e-7, 1e-3),
    "middle_share": (0.01, 1.5),
    "long_s": (1e-7, 1e-3),
    "long_share": (0.02, 1.5),
    "hop_s": (1e-9, 1e-4),
    "doubling": (0.1, 4.0),
}
#: In the names of measurements without a graph.
EAGER = "eager"
_HOST = (1e-6, 1e-3)  # bounds of what the host takes (s)
#: GPUs among which collectives were measured at most: those of a server.
NODE = 8
#: And within a tray of a rack: of more GPUs there are only few measurements, which no constants in use come from.
TRAYS = {"gb200": 4, "gb300": 4}
#: Bandwidths that fits start from: of short messages, and for each doubling of the GPUs.
SHORT_SHARES, DOUBLINGS = (0.03, 0.1, 0.4), (0.5, 1.0, 1.3)
#: Longest message of engines' own kernels: vLLM's takes less than 8 MiB, SGLang's up to 16 MiB (max_size of their
#: custom_all_reduce.py; the measured times jump there).
OWN_BYTES = {"vLLM_custom": 2.0**23 - 1, "SGLang_CustomAllReduce": 2.0**24}


def starts(constants: CollectiveConstants, kernel: str, shortest_s: float) -> list[CollectiveConstants]:
    """Return where a fit of a kernel may start: as given, and with latencies of about its shortest measured time.

    One start is not enough: eager calls take tens of microseconds whatever their size, and a fit that begins far from
    them, or with a bandwidth that leaves a protocol out, ends with a protocol that is never used. An engine without a
    way to leave long messages to its library is one of the starts, because engines do so for all messages where their
    own kernel cannot run.
    """
    own = (0.0, *(limit for name, limit in OWN_BYTES.items() if kernel.startswith(name)))
    times = ((shortest_s, shortest_s, shortest_s), (shortest_s, 2 * shortest_s, 4 * shortest_s))
    begun = [constants, *(replace(constants, short_s=s, middle_s=m, long_s=long) for s, m, long in times)]
    if EAGER in kernel:
        half = replace(constants, short_s=shortest_s / 2, middle_s=shortest_s / 2, long_s=shortest_s)
        begun = [replace(start, host_s=shortest_s) for start in (constants, half)]
    rates = itertools.product(SHORT_SHARES, DOUBLINGS)
    begun = [replace(start, short_share=share, doubling=factor) for share, factor in rates for start in begun]
    return [replace(start, own_bytes=limit) for limit in own for start in begun]


def bounds_of(constants: CollectiveConstants) -> dict[str, tuple[float, float]]:
    """Return the bounds of all constants that a fit from such a start has."""
    return RANGES | ({"host_s": _HOST} if constants.host_s else {})


def sent_bytes(operation: str, message_bytes: np.ndarray, devices: np.ndarray) -> np.ndarray:
    """Return what each GPU sends at least: of an all-reduce of S bytes among p, 2 (p − 1)/p · S, else half of that."""
    return (2 if operation == "all_reduce" else 1) * (devices - 1) / devices * message_bytes


def collective_terms(
    gpu: Gpu,
    constants: CollectiveConstants,
    operation: str,
    message_bytes: np.ndarray,
    devices: np.ndarray,
    most_devices: int = NODE,
) -> dict[str, np.ndarray]:
    """Predict the time of collectives by fitted constants.

    The result has ``time_s`` and the terms ``launch_s`` (latencies) and ``link_s``.

    Parameters
    ----------
    gpu : Gpu
        With a known link.
    operation : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``alltoall``.
    message_bytes, devices : float arrays of shape (collectives,)
    most_devices : int
        Among how many the constants were measured: among more, bandwidth is that among so many.
    """
    c = constants
    sent = sent_bytes(operation, message_bytes, devices)
    first = message_bytes * (devices - 1) if c.pattern == "one shot" else sent
    hops = np.log2(devices) * c.hop_s
    latency = np.array([c.short_s + hops, c.middle_s + 2 * hops, c.long_s + 4 * hops])
    # Where links lead to single GPUs, few of them use few links.
    reached = np.fmin(gpu.link_bytes_per_s, gpu.peer_bytes_per_s * np.maximum(devices - 1, 1))
    rate = reached * c.doubling ** (np.log2(np.minimum(devices, most_devices)) - 1)
    link = np.array([first / c.short_share, sent / c.middle_share, sent / c.long_share]) / rate
    taken = latency + link
    if c.own_bytes:
        own = message_bytes <= c.own_bytes
        taken = np.where([own, own, ~own], taken, np.inf)
    fastest = taken.argmin(axis=0), np.arange(len(sent))
    time_s, launch_s = (latency + link)[fastest], latency[fastest]
    if c.host_s:
        # Calls for more GPUs take longer as well.
        host_s = c.host_s + hops
        time_s, launch_s = norm(host_s, time_s), norm(host_s, launch_s)
    return {"time_s": time_s, "launch_s": launch_s, "link_s": link[fastest]}
