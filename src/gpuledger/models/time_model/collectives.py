"""Time of collectives on the links of one node, with constants fitted to measurements.

As in NCCL (src/graph/tuning.cc), each protocol has a latency, a latency per hop, and a share of the link's bandwidth;
the fastest is taken.
"""

from dataclasses import dataclass, field

import numpy as np

from gpuledger.readers.gpus import Gpu


@dataclass(frozen=True)
class CollectiveConstants:
    """Constants of one library's collective on one GPU: three protocols, of which the fastest is taken.

    The first is for short messages (NCCL's LL; in engines one shot, every GPU reading all of the others' data), the
    second for middling ones (LL128; two shots, reduce-scatter and all-gather), the third for long ones.

    Attributes
    ----------
    short_s, middle_s, long_s : float
        Latency of each protocol (s).
    short_share, middle_share, long_share : float
        Share of the link's data sheet bandwidth (one direction) that each reaches.
    hop_s : float
        Added latency per doubling of the GPUs: once, twice, four times by protocol (s).
    pattern : str
        Of the first protocol: ``ring``, or ``one shot`` (everything to everybody).
    source : str
        What they were fitted to.
    """

    short_s: float
    short_share: float
    middle_s: float
    middle_share: float
    long_s: float
    long_share: float
    hop_s: float
    pattern: str = "ring"
    source: str = field(default="", compare=False)


START = CollectiveConstants(3e-6, 0.1, 8e-6, 0.4, 2e-5, 0.8, 1e-6)
BOUNDS = {
    "short_s": (1e-7, 1e-3),
    "short_share": (0.005, 1.5),
    "middle_s": (1e-7, 1e-3),
    "middle_share": (0.01, 1.5),
    "long_s": (1e-7, 1e-3),
    "long_share": (0.02, 1.5),
    "hop_s": (1e-9, 1e-4),
}


def sent_bytes(operation: str, message_bytes: np.ndarray, devices: np.ndarray) -> np.ndarray:
    """Return what each GPU sends at least: of an all-reduce of S bytes among p, 2 (p − 1)/p · S, else half of that."""
    return (2 if operation == "all_reduce" else 1) * (devices - 1) / devices * message_bytes


def collective_terms(
    gpu: Gpu, constants: CollectiveConstants, operation: str, message_bytes: np.ndarray, devices: np.ndarray
) -> dict[str, np.ndarray]:
    """Predict the time of collectives by fitted constants.

    Parameters
    ----------
    gpu : Gpu
        With a known link.
    operation : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``alltoall``.
    message_bytes, devices : float arrays of shape (collectives,)

    Returns
    -------
    dict of str to ndarray
        ``time_s`` and the terms ``launch_s`` (latencies) and ``link_s``.
    """
    c = constants
    sent = sent_bytes(operation, message_bytes, devices)
    first = message_bytes * (devices - 1) if c.pattern == "one shot" else sent
    hops = np.log2(devices) * c.hop_s
    latency = np.array([c.short_s + hops, c.middle_s + 2 * hops, c.long_s + 4 * hops])
    link = np.array([first / c.short_share, sent / c.middle_share, sent / c.long_share]) / gpu.link_bytes_per_s
    fastest = (latency + link).argmin(axis=0), np.arange(len(sent))
    return {"time_s": (latency + link)[fastest], "launch_s": latency[fastest], "link_s": link[fastest]}
