"""Whether to record this machine's GPU, and which parts; without a GPU this is decided in milliseconds."""

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.record import driver
from gpuledger.record.parts import PARTS, Part

#: The dataset of this machine's GPU.
LOCAL = "local-gpu"
#: Who may read counters (driver), the capabilities of this process (Linux), and those of them that the driver asks for
#: (NVIDIA's open-gpu-kernel-modules, kernel-open/nvidia/os-interface.c): CAP_SYS_ADMIN and CAP_PERFMON.
_DRIVER = Path("/proc/driver/nvidia/params")
_PROCESS = Path("/proc/self/status")
_ENOUGH = 1 << 21 | 1 << 38
#: Whether a requirement is installed in this Python.
_INSTALLED = {
    "torch": lambda: find_spec("torch") is not None,
    "nvrtc": lambda: import_module("gpuledger.record.nvrtc").find_library() is not None,
}
_NO_NEUTRINO = "Neutrino is not installed", "put the command neutrino (github.com/open-neutrino/neutrino) on the PATH"


@dataclass(frozen=True)
class RecordingPlan:
    """What to record."""

    parts: tuple[str, ...] = ()  # names in :data:`PARTS`; empty without a GPU or with ``gpu: off``
    #: Why a part cannot be recorded; under ``gpu``, why none can.
    left_out: Mapping[str, str] = field(default_factory=dict)


def make_plan(gpu: str | bool, python: str | None = None, parts: Collection[str] | None = None) -> RecordingPlan:
    """Decide what can be recorded on this machine.

    Parameters
    ----------
    gpu : {"auto", "require", "off"}
        ``auto`` records every possible part if there is a GPU, ``require`` insists on all parts that are not optional,
        ``off`` does not look for a GPU. YAML reads an unquoted ``off`` as false, which means the same.
    python : str, optional
        Python of the workloads if it is not the current one; its packages are not checked.
    parts : collection of str, optional
        Those to record, of :data:`PARTS`; default: all.

    Raises
    ------
    InputError
        An unknown part; with ``require``: something is missing.
    """
    if unknown := sorted({*(parts or ())} - {*PARTS}):
        problem, remedy = f"unknown part {unknown[0]}", f"choose from {', '.join(PARTS)}"
        raise InputError("config/config.yaml", "key record.parts", problem, remedy)
    if gpu in ("off", False):
        return RecordingPlan()
    if gpu == "auto" and shutil.which("nvidia-smi") is None and driver.load_library() is None:
        return RecordingPlan()
    from gpuledger.record import device  # deferred, because most machines have no GPU

    try:
        device.find_device()
    except InputError as error:
        if gpu == "require":
            raise
        return RecordingPlan(left_out={"gpu": str(error)})
    wanted = {name: part for name, part in PARTS.items() if parts is None or name in parts}
    lacks = {name: lack for name, part in wanted.items() if (lack := lacking(part, python))}
    required = {name: lack for name, lack in lacks.items() if not PARTS[name].optional}
    if required and gpu == "require":
        name, (problem, remedy) = next(iter(required.items()))
        raise InputError("config/config.yaml", "key gpu", f"part {name} cannot be recorded: {problem}", remedy)
    left_out = {name: f"{problem}; {remedy}" for name, (problem, remedy) in lacks.items()}
    return RecordingPlan(tuple(name for name in wanted if name not in lacks), left_out)


def lacking(part: Part, python: str | None = None) -> tuple[str, str] | None:
    """Return problem and remedy if something that a part needs is missing; nothing is executed to find out."""
    for need in part.needs:
        if need == "ncu":
            if lack := counters_lack():
                return lack
        elif need == "neutrino":
            if shutil.which("neutrino") is None:
                return _NO_NEUTRINO
        elif python is None and not _INSTALLED[need]():
            name = {"torch": "PyTorch", "nvrtc": "NVRTC"}[need]
            return f"{name} is not installed", "pip install -e '.[gpu]', or set record.python"
    return None


def counters_lack() -> tuple[str, str] | None:
    """Return problem and remedy if counters cannot be read here; nothing is executed to find out."""
    from gpuledger.record.profiler import find_program

    if find_program() is None:
        return "Nsight Compute is not installed", "put ncu on the PATH"
    if _counters_are_restricted():
        problem = "only administrators may read the GPU's counters (ERR_NVGPUCTRPERM)"
        return problem, "see Permissions in docs/GPU.md"
    return None


def _counters_are_restricted() -> bool:
    try:
        restricted = re.search(r"^RmProfilingAdminOnly:\s*1", _DRIVER.read_text("utf-8"), re.MULTILINE)
        capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", _PROCESS.read_text("utf-8"), re.MULTILINE)
    except OSError:
        return False
    return bool(restricted) and not (capabilities and int(capabilities[1], 16) & _ENOUGH)
