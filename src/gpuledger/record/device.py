"""The GPU of this machine, found and described through nvidia-smi for the provenance of a recording."""

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

#: Fields that identify a GPU; all drivers that run a current PyTorch know them.
IDENTITY = ("name", "compute_cap", "driver_version", "memory.total")
#: Further fields that are recorded if the driver reports them: clocks in MHz, power in W.
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
    """An NVIDIA GPU as the driver reports it.

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
        """The name in the form of a folder name: ``nvidia-h200``."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-.") or "gpu"


def selected_device() -> str:
    """The GPU to use, in the notation of nvidia-smi and CUDA: the first of CUDA_VISIBLE_DEVICES, else number 0."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def select_device() -> None:
    """Restrict this process and its children to the GPU that is recorded, numbered as in nvidia-smi."""
    chosen = selected_device()
    os.environ.update(CUDA_VISIBLE_DEVICES=chosen, CUDA_DEVICE_ORDER="PCI_BUS_ID")


@cache
def find_device() -> Device:
    """Find the GPU to use with one call of nvidia-smi.

    Raises
    ------
    InputError
        No driver, no GPU, or a driver that does not respond.
    """
    (name, capability, driver, memory) = _query(IDENTITY)
    digits = re.search(r"\d+", memory)
    if not re.fullmatch(r"\d+\.\d+", capability):
        problem = f"the driver {driver} does not report the compute capability of {name}"
        raise InputError("nvidia-smi", "", problem, "update the driver to 510 or newer")
    return Device(name, capability, driver, int(digits[0]) << 20 if digits else 0)


def describe_state() -> dict[str, str]:
    """Current clocks (MHz), power limits (W) and modes, as far as the driver reports them."""
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
    """Check that no other process uses the GPU, which would distort times and take memory that ncu needs.

    Raises
    ------
    InputError
        The processes that use it.
    """
    rows = _call("--query-compute-apps=pid,used_memory,process_name", "--format=csv,noheader")
    others = []
    for row in csv.reader(rows.splitlines(), skipinitialspace=True):
        if len(row) >= 3 and row[0].strip().isdigit() and int(row[0]) != os.getpid():
            pid, memory, program = (cell.strip() for cell in row[:3])
            others.append(f"{program.rpartition('/')[2] or 'a process'} (pid {pid}, {memory})")
    if others:
        problem = f"another process is on the GPU: {', '.join(others[:3])}"
        remedy = "wait for it to end or stop it, or choose another GPU with CUDA_VISIBLE_DEVICES"
        raise InputError("GPU", selected_device(), problem, remedy)


def _query(fields: tuple[str, ...]) -> list[str]:
    answer = _call(f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines(), skipinitialspace=True) if row]
    if len(rows) != 1 or len(rows[0]) != len(fields):
        problem = f"instead of {', '.join(fields)} it prints {failures.last_words(answer)!r}"
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
        raise InputError("nvidia-smi", "", f"no response within {_SECONDS} s", _CHECK) from None
    except OSError as error:
        raise InputError("nvidia-smi", "", f"it cannot be started ({error.strerror})", _CHECK) from None
    if done.returncode:
        said = done.stdout + done.stderr
        problem, remedy = failures.explain(said) or (f"it fails: {failures.last_words(said)}", _CHECK)
        raise InputError("nvidia-smi", f"GPU {selected_device()}", problem, remedy)
    return done.stdout
