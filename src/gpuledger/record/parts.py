"""The parts of a recording: what each records, what it needs, how long it may take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.record.designs import SWEEPS, TOY_NETWORK, Counting


@dataclass(frozen=True)
class Part:
    """One part."""

    name: str
    title: str
    #: The function that records it and returns :class:`Recorded`. With `own_process` it takes a folder, in which the
    #: paths of the cases are, and ``control`` if it needs ncu; otherwise it takes a
    #: :class:`gpuledger.record.session.RecordingSession`.
    module: str
    function: str
    needs: tuple[str, ...]  # among ``torch``, ``nvrtc``, ``ncu`` and ``neutrino``
    seconds: float  # time to plan for it on a data-centre GPU
    measured_s: float  # time that it took on :data:`MEASURED_ON`
    #: Whether it uses the GPU directly and therefore runs in its own process, in the Python of the workloads.
    own_process: bool = False
    arguments: tuple[str, ...] = ()  # further arguments of the function
    optional: bool = False  # whether a recording is complete without it
    #: Whether it keeps its finished steps or points, so that it is worth starting if there is not time for all of them.
    resumable: bool = False

    @property
    def least_s(self) -> float:
        """Time (s) that must be left to start it."""
        least = LEAST_S if self.own_process else LEAST_COUNTED_S
        return min(self.seconds, least) if self.resumable else self.seconds


@dataclass(frozen=True)
class Recorded:
    """The result of a part; see :meth:`gpuledger.record.recording.Recording.finish`."""

    cases: Mapping[str, Mapping[str, Mapping[str, Any]]]
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


_HERE = "gpuledger.record"
_COUNTS = ("torch", "ncu")
#: Where parts were timed, once each, with driver 580.159.04, PyTorch 2.11 and Nsight Compute 2025.3.1: ``blocks``,
#: ``counters``, ``probes`` and ``sweep_llama_backward`` on the H100, where ``attention`` took 53 s, ``normalization``
#: 148 s and ``latency`` 89 s. Planned times have a margin.
MEASURED_ON = "an H100 or H200"
#: To plan the time of ncu: PyTorch's start and its libraries' under ncu, and a launch with its passes (s). GPT-2's 557
#: launches took 84 s, and 133 of the toy network 30 s. Before each pass ncu restores all memory that the process holds,
#: at 200 GB/s or a little more: Llama's launches, with 1 to 3 GB, took 0.2 to 0.27 s each.
PROCESS_S, LAUNCH_S = 25.0, {"llama": 0.25, "gpt2": 0.12, "toy_network": 0.12}
#: All parts together should fit this time on a borrowed GPU (s).
BUDGET_S = 25 * 60.0
#: Enough for the start of a resumable part and some of its steps (s): on an H200 the first one was finished after 12
#: and 14 s. Under ncu, half of so little is kept for its table (:mod:`gpuledger.record.session`).
LEAST_S, LEAST_COUNTED_S = 30.0, 60.0


def _counted(name: str, title: str, took: float, function: str, what: Counting, *arguments: str) -> Part:
    module, sweep = ("sweeps", True) if arguments else (name, False)
    seconds = PROCESS_S + LAUNCH_S[what.module] * what.launches
    return Part(
        name, title, f"{_HERE}.{module}", function, _COUNTS, seconds, took, arguments=arguments, resumable=sweep
    )


def _sweep(name: str, title: str, took: float) -> Part:
    what = SWEEPS[name].counting("")
    return _counted(f"sweep_{name}", f"counters of {title}", took, "record_sweep", what, name)


def _apart(name: str, title: str, took: float, needs: tuple[str, ...], seconds: float, **more: bool) -> Part:
    return Part(name, title, f"{_HERE}.{name}", f"record_{name}", needs, seconds, took, own_process=True, **more)


_NEUTRINO = "the same kernels with Neutrino's binary probes"
#: In the order of a recording: what is worth most for its time comes first, so that a short session has it.
PARTS = {
    part.name: part
    for part in (
        _apart("blocks", "block scheduling, original against persistent and memset", 3, ("nvrtc",), 15),
        _counted("counters", "FLOP counters of the toy network", 30, "record_counters", TOY_NETWORK),
        _apart("probes", "traces of probed kernels", 29, ("nvrtc",), 45, resumable=True),
        _apart("gemm", "cuBLAS's kernels for matrix multiplications", 13, ("torch",), 30, resumable=True),
        _apart("attention", "PyTorch's attention, forward and backward", 54, ("torch",), 60, resumable=True),
        _apart("normalization", "normalization kernels", 163, ("torch", "nvrtc"), 180, resumable=True),
        _apart("power", "power that kernels draw", 201, ("torch",), 215, resumable=True),
        _sweep("gpt2", "GPT-2, 12 heads, forward pass", 102),
        _apart("latency", "waiting for a profile", 85, ("nvrtc", "ncu"), 110, resumable=True),
        _sweep("llama", "Llama, heads of 128, forward pass", 114),
        _sweep("gpt2_head_dim_64", "GPT-2, heads of 64, forward pass", 26),
        _sweep("gpt2_backward", "GPT-2, 12 heads, backward pass", 84),
        _sweep("llama_backward", "Llama, heads of 128, backward pass", 130),
        _apart("neutrino", _NEUTRINO, 22, ("nvrtc", "neutrino"), 90, optional=True),
    )
}
