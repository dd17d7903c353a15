"""Time of collectives on the links of one node: the cost model of NCCL, and one with constants fitted to measurements.

Source: NVIDIA/nccl, src/graph/tuning.cc (commit 01afd20): base latency, latency of a hop, and share of the link that
each protocol gets (LL sends a flag with every 4 bytes and may use a quarter of the link; LL128 120 of 128 bytes).
NCCL takes the fastest, and so does this model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.gpus import Gpu

#: Protocols: base latency (s), latency of a hop over NVLink and over PCIe (s), share of the link's bandwidth.
PROTOCOLS: Mapping[str, tuple[float, float, float, float]] = MappingProxyType(
    {
        "ll": (3.6e-6, 0.47e-6, 1.0e-6, 0.25),
        "ll128": (10.0e-6, 1.9e-6, 2.5e-6, 0.92),
        "simple": (8.4e-6, 3.4e-6, 5.7e-6, 1.0),
    }
)
#: Links up to this bandwidth in one direction are PCIe (5.0 x16: 63 GB/s).
PCIE_BYTES_PER_S = 64e9
#: What a ring gets of the links: NCCL caps an A100's 300 GB/s at 235 GB/s (the same file).
LINK_SHARE = 235 / 300

#: Hops, one after the other, of p devices.
_STEPS = MappingProxyType(
    {
        "all_reduce": lambda p: 2 * (p - 1),
        "all_gather": lambda p: p - 1,
        "reduce_scatter": lambda p: p - 1,
        "all_to_all": lambda p: np.ones_like(p),
        "send": lambda p: np.ones_like(p),
    }
)


def collective_times(gpu: Gpu, operation: np.ndarray, sent_bytes: np.ndarray, devices: np.ndarray) -> pd.DataFrame:
    """Time of collectives, one by one.

    Parameters
    ----------
    gpu : Gpu
    operation : array of str, shape (collectives,)
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``send``.
    sent_bytes : array of float
        What one device sends: of a ring's all-reduce of S bytes, 2 (p − 1)/p · S.
    devices : array of int
        Devices p that take part.

    Returns
    -------
    DataFrame, shape (collectives, 3)
        ``time_s``, its parts ``launch_s`` (latencies) and ``link_s``.

    Raises
    ------
    InputError
        A GPU without a known link; an unknown operation.
    """
    if len(operation) and not gpu.link_bytes_per_s > 0:
        remedy = "add link_gb_per_s, its bandwidth per direction (half of what data sheets give for both together)"
        raise InputError(gpu.file, f"GPU {gpu.name}", "it has no link to other GPUs", remedy)
    codes, names = pd.factorize(np.asarray(operation))
    unknown = [name for name in names if name not in _STEPS]
    if unknown:
        raise InputError(gpu.file, f"GPU {gpu.name}", f"unknown collective '{unknown[0]}'", f"use {', '.join(_STEPS)}")
    devices = np.asarray(devices, dtype=float)
    sent_bytes = np.asarray(sent_bytes, dtype=float)
    steps = np.zeros_like(devices)
    for code, name in enumerate(names):
        steps[codes == code] = _STEPS[name](devices[codes == code])
    pcie = gpu.link_bytes_per_s <= PCIE_BYTES_PER_S
    latency, link = [], []
    for base, nvlink_hop, pcie_hop, share in PROTOCOLS.values():
        latency.append(base + steps * (pcie_hop if pcie else nvlink_hop))
        link.append(sent_bytes / (share * LINK_SHARE * gpu.link_bytes_per_s))
    total = np.array(latency) + np.array(link)
    fastest = np.argmin(total, axis=0), np.arange(len(devices))
    alone = devices <= 1
    launch_s = np.where(alone, 0, np.array(latency)[fastest])
    link_s = np.where(alone, 0, np.array(link)[fastest])
    return pd.DataFrame({"time_s": launch_s + link_s, "launch_s": launch_s, "link_s": link_s})


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
    constants : CollectiveConstants
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
