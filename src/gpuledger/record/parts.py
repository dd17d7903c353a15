"""The parts of a recording: what each records, what it needs, how long it may take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.record.designs import SWEEPS, TOY_NETWORK


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes
    ----------
    module, function : str
        The function that records it and returns :class:`Recorded`. With `own_process` it takes a folder, in which the
        paths of the cases are, and ``control`` if it needs ncu; otherwise it takes a
        :class:`gpuledger.record.session.Session`.
    needs : tuple of str
        Among ``torch``, ``nvrtc``, ``ncu`` and ``neutrino``.
    seconds : float
        Time to plan for it on a data-centre GPU: an estimate, never measured.
    own_process : bool
        Whether it uses the GPU directly and therefore runs in its own process, in the Python of the workloads.
    arguments : tuple of str
        Further arguments of the function.
    optional : bool
        Whether a recording is complete without it.
    """

    name: str
    title: str
    module: str
    function: str
    needs: tuple[str, ...]
    seconds: float
    own_process: bool = False
    arguments: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Recorded:
    """The result of a part; see :meth:`gpuledger.record.recording.Recording.finish`."""

    cases: Mapping[str, Mapping[str, Mapping[str, Any]]]
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


_HERE = "gpuledger.record"
_COUNTS = ("torch", "ncu")
#: To plan the time of ncu: PyTorch's start and its libraries' under ncu, and a launch with its passes (s).
PROCESS_S, LAUNCH_S = 25.0, 0.1
#: All parts together should fit this time on a borrowed GPU (s).
BUDGET_S = 25 * 60.0


def _counted(name: str, title: str, function: str, launches: int, *arguments: str) -> Part:
    module = "sweeps" if arguments else name
    return Part(name, title, f"{_HERE}.{module}", function, _COUNTS, PROCESS_S + LAUNCH_S * launches, False, arguments)


def _sweep(name: str, title: str) -> Part:
    launches = SWEEPS[name].counting("").launches
    return _counted(f"sweep_{name}", f"counters of {title}", "record_sweep", launches, name)


def _apart(name: str, title: str, needs: tuple[str, ...], seconds: float, optional: bool = False) -> Part:
    return Part(name, title, f"{_HERE}.{name}", f"record_{name}", needs, seconds, True, optional=optional)


#: In the order of a recording: first what does not need permission to read counters.
PARTS = {
    part.name: part
    for part in (
        _apart("normalization", "normalization kernels", ("torch", "nvrtc"), 290),
        _apart("blocks", "block scheduling, original against persistent and memset", ("nvrtc",), 30),
        _apart("probes", "traces of probed kernels", ("nvrtc",), 180),
        _counted("counters", "FLOP counters of the toy network", "record_counters", TOY_NETWORK.launches),
        _sweep("gpt2", "GPT-2, 12 heads, forward pass"),
        _sweep("gpt2_head_dim_64", "GPT-2, heads of 64, forward pass"),
        _sweep("gpt2_backward", "GPT-2, 12 heads, backward pass"),
        _sweep("llama", "Llama, heads of 128, forward pass"),
        _sweep("llama_backward", "Llama, heads of 128, backward pass"),
        _apart("latency", "waiting for a profile", ("nvrtc", "ncu"), 150),
        _apart("neutrino", "the same kernels with Neutrino's binary probes", ("nvrtc", "neutrino"), 90, optional=True),
    )
}
