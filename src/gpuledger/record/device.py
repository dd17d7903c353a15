"""The GPU of this machine: found through nvidia-smi, described so that a recording says what it was made on."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

from gpuledger.errors import InputError
from gpuledger.record import failures

#: The question that finds a GPU; every part of it is older than the drivers that run a PyTorch of today.
IDENTITY = ("name", "compute_cap", "driver_version", "memory.total")
#: What else is written down when the driver answers: clocks in MHz, power in W.
STATE = (
    "clocks.max.sm",
    "clocks.max.memory",
    "clocks.default_applications.graphics",
    "clocks.default_applications.memory",
    "clocks.current.sm",
    "clocks.current.memory",
    "power.limit",
    "power.default_limit",
    "power.max_limit",
    "ecc.mode.current",
    "mig.mode.current",
    "persistence_mode",
    "compute_mode",
    "pstate",
    "temperature.gpu",
)
_SECONDS = 30
_CHECK = "check the driver with nvidia-smi, or set gpu: off in config/config.yaml"


@dataclass(frozen=True)
class Device:
    """An NVIDIA GPU as the driver names it.

    Attributes
    ----------
    name : str
        ``NVIDIA H200``.
    compute_capability : str
        ``9.0``.
    driver : str
    memory_bytes : int
    """

    name: str
    compute_capability: str
    driver: str
    memory_bytes: int

    @property
    def slug(self) -> str:
        """The name as a folder's: ``nvidia-h200``."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-.") or "gpu"


def selected_device() -> str:
    """The GPU to use, as nvidia-smi and CUDA take it: the first of CUDA_VISIBLE_DEVICES, else number 0."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def select_device() -> None:
    """Let this process, and what it starts, see the one GPU that is recorded, numbered as nvidia-smi does."""
    chosen = selected_device()
    os.environ.update(CUDA_VISIBLE_DEVICES=chosen, CUDA_DEVICE_ORDER="PCI_BUS_ID")


@cache
def find_device() -> Device:
    """Find the GPU to use. Costs one call of nvidia-smi, and nothing where there is none.

    Raises
    ------
    InputError
        No driver, no GPU, a driver that does not answer.
    """
    (name, capability, driver, memory) = _query(IDENTITY)
    digits = re.search(r"\d+", memory)
    if not re.fullmatch(r"\d+\.\d+", capability):
        problem = f"the driver {driver} does not say the compute capability of {name}"
        raise InputError("nvidia-smi", "", problem, "update the driver to 510 or newer")
    return Device(name, capability, driver, int(digits[0]) << 20 if digits else 0)


def describe_state() -> dict[str, str]:
    """Clocks (MHz), power limits (W) and modes as the driver gives them now; what it does not say is left out."""
    state = {}
    for field in STATE:
        try:
            (value,) = _query((field,))
        except InputError:
            continue
        if value and not re.search(r"N/A|Not Supported|deprecated|Unknown", value, re.IGNORECASE):
            state[field] = value
    return state


def check_alone() -> None:
    """Make sure that no other process computes on the GPU: it would change times, and have ncu wait for memory.

    Raises
    ------
    InputError
        That names the processes.
    """
    rows = _call("--query-compute-apps=pid,used_memory,process_name", "--format=csv,noheader")
    others = []
    for row in csv.reader(rows.splitlines(), skipinitialspace=True):
        if len(row) >= 3 and row[0].strip().isdigit() and int(row[0]) != os.getpid():
            pid, memory, program = (cell.strip() for cell in row[:3])
            others.append(f"{program.rpartition('/')[2] or 'a process'} (pid {pid}, {memory})")
    if others:
        problem = f"another process is on the GPU: {', '.join(others[:3])}"
        remedy = "wait for it or end it, or choose another GPU with CUDA_VISIBLE_DEVICES"
        raise InputError("GPU", selected_device(), problem, remedy)


def _query(fields: tuple[str, ...]) -> list[str]:
    answer = _call(f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines(), skipinitialspace=True) if row]
    if len(rows) != 1 or len(rows[0]) != len(fields):
        problem = f"it gives no line of {', '.join(fields)} but {failures.last_words(answer)!r}"
        raise InputError("nvidia-smi", f"GPU {selected_device()}", problem, _CHECK)
    return rows[0]


def _call(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise InputError("nvidia-smi", "", "it is not on the PATH, so there is no NVIDIA driver", _CHECK)
    command = [program, "-i", selected_device(), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError("nvidia-smi", "", f"it does not answer within {_SECONDS} s", _CHECK) from None
    except OSError as error:
        raise InputError("nvidia-smi", "", f"it cannot be started ({error.strerror})", _CHECK) from None
    if done.returncode:
        said = done.stdout + done.stderr
        problem, remedy = failures.explain(said) or (f"it fails: {failures.last_words(said)}", _CHECK)
        raise InputError("nvidia-smi", f"GPU {selected_device()}", problem, remedy)
    return done.stdout
