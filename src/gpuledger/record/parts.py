"""The parts of a recording: what each records, what it needs, how long it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes
    ----------
    name, title : str
    module, function : str
        The function that records it and returns :class:`Recorded`. With `own_process` it takes a folder, in which the
        paths of the cases are, and ``control`` if it needs ncu; otherwise it takes a
        :class:`gpuledger.record.session.Session`.
    needs : tuple of str
        Among ``torch``, ``nvrtc`` and ``ncu``.
    minutes : float
        Maximum time on a data-centre GPU.
    own_process : bool
        Whether it uses the GPU directly and therefore runs in its own process, in the Python of the workloads.
    arguments : tuple of str
        Further arguments of the function.
    """

    name: str
    title: str
    module: str
    function: str
    needs: tuple[str, ...]
    minutes: float
    own_process: bool = False
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """The result of a part; see :meth:`gpuledger.record.recording.Recording.finish`."""

    cases: Mapping[str, Mapping[str, Mapping[str, Any]]]
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


_HERE = "gpuledger.record"
_COUNTS = ("torch", "ncu")


def _sweep(name: str, title: str) -> Part:
    return Part(f"sweep_{name}", f"counters of {title}", f"{_HERE}.sweeps", "record_sweep", _COUNTS, 8, False, (name,))


PARTS = {
    part.name: part
    for part in (
        Part("counters", "FLOP counters of the toy network", f"{_HERE}.counters", "record_counters", _COUNTS, 4),
        _sweep("gpt2", "GPT-2, 12 heads, forward pass"),
        _sweep("gpt2_head_dim_64", "GPT-2, heads of 64, forward pass"),
        _sweep("gpt2_backward", "GPT-2, 12 heads, backward pass"),
        _sweep("llama", "Llama, heads of 128, forward pass"),
        _sweep("llama_backward", "Llama, heads of 128, backward pass"),
        Part(
            "normalization",
            "normalization kernels",
            f"{_HERE}.normalization",
            "record_normalization",
            ("torch", "nvrtc"),
            8,
            True,
        ),
        Part("latency", "waiting for a profile", f"{_HERE}.latency", "record_latency", ("nvrtc", "ncu"), 8, True),
        Part("probes", "traces of probed kernels", f"{_HERE}.probes", "record_probes", ("nvrtc",), 8, True),
    )
}
