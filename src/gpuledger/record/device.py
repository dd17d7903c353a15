"""The GPU of this machine, found and described for the provenance of a recording.

nvidia-smi describes it in most detail. Where it is missing or cannot see the GPU, as in containers that may only
compute and on MIG instances, the driver's library describes it.
"""

import csv
import logging
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

from gpuledger.errors import InputError
from gpuledger.record import driver as library
from gpuledger.record import failures

LOG = logging.getLogger("gpuledger")
#: Fields that identify a GPU; all drivers that run a current PyTorch know them.
IDENTITY = ("name", "compute_cap", "driver_version", "memory.total")
#: Further fields that are recorded if the driver reports them: clocks in MHz, power in W.
STATE = (
    *("clocks.max.sm", "clocks.max.memory", "clocks.default_applications.graphics"),
    *("clocks.default_applications.memory", "clocks.current.sm", "clocks.current.memory", "power.limit"),
    *("power.default_limit", "power.max_limit", "ecc.mode.current", "mig.mode.current", "persistence_mode"),
    *("compute_mode", "pstate", "temperature.gpu"),
)
_SECONDS = 30
_CHECK = "check the driver with nvidia-smi, or set gpu: off in config/config.yaml"


@dataclass(frozen=True)
class Device:
    """An NVIDIA GPU as the driver reports it."""

    name: str  # ``NVIDIA H200``
    compute_capability: str  # ``9.0``
    driver: str
    memory_bytes: int

    @property
    def slug(self) -> str:
        """The name in the form of a folder name: ``nvidia-h200``."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-.") or "gpu"


def selected_device() -> str:
    """The GPU to use, in CUDA's notation: the first of CUDA_VISIBLE_DEVICES, else number 0.

    It is a number, a UUID or its beginning (``GPU-8932f937``), or a MIG instance (``MIG-…``).
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    # To CUDA, an empty variable means no GPU, and a name that it does not know hides this and all later GPUs.
    if not re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", chosen):
        problem = f"it is {chosen!r}, which hides every GPU" if chosen else "it is empty, which hides every GPU"
        raise InputError("CUDA_VISIBLE_DEVICES", "", problem, "unset it, or set it to the number of a GPU")
    return chosen


def select_device() -> None:
    """Restrict this process and its children to the GPU that is recorded, numbered as in nvidia-smi."""
    chosen = selected_device()
    os.environ.update(CUDA_VISIBLE_DEVICES=chosen, CUDA_DEVICE_ORDER="PCI_BUS_ID")


@cache
def find_device() -> Device:
    """Find the GPU to use."""
    # nvidia-smi describes a part of a GPU only as a whole.
    if selected_device().startswith("MIG-") or shutil.which("nvidia-smi") is None:
        return _ask_library()
    try:
        (name, capability, driver, memory) = _query(IDENTITY)
    except InputError as error:
        try:
            found = _ask_library()
        except InputError:
            raise error from None
        LOG.warning("the GPU is described by the driver's library: %s", error)
        return found
    digits = re.search(r"\d+", memory)
    if not re.fullmatch(r"\d+\.\d+", capability):
        problem = f"the driver {driver} does not report the compute capability of {name}"
        raise InputError("nvidia-smi", "", problem, "update the driver to 510 or newer")
    return Device(name, capability, driver, int(digits[0]) << 20 if digits else 0)


def _ask_library() -> Device:
    """Describe the GPU by the driver's library, which knows no clocks, limits or other processes."""
    chosen = selected_device()
    if chosen != os.environ.get("CUDA_VISIBLE_DEVICES"):
        select_device()  # numbers GPUs as nvidia-smi does; read once, when the library is initialised
    try:
        api = library.driver()
        handle = api.device(0)  # the only visible one
        major, minor = (api.attribute(handle, n) for n in (library.CAPABILITY_MAJOR, library.CAPABILITY_MINOR))
        return Device(api.name(handle), f"{major}.{minor}", library.release(), api.memory_bytes(handle))
    except library.CudaError as error:
        problem, remedy = failures.explain(str(error)) or (str(error), "check CUDA_VISIBLE_DEVICES and the driver")
        raise InputError("GPU", chosen, problem, remedy) from None


def describe_state() -> dict[str, str]:
    """Current clocks (MHz), power limits (W) and modes, as far as nvidia-smi reports them."""
    fields = list(STATE)
    # In one call: where no process keeps the driver initialised, each one takes a second.
    while fields:
        try:
            values = _query(tuple(fields))
        except InputError as error:
            unknown = re.search(r'Field "([\w.]+)" is not a valid field', error.problem)
            if unknown is None or unknown[1] not in fields:
                break
            fields.remove(unknown[1])
            continue
        without = re.compile(r"N/A|Not Supported|deprecated|Unknown", re.IGNORECASE)
        return {name: value for name, value in zip(fields, values, strict=True) if value and not without.search(value)}
    return {}


def check_alone() -> None:
    """Check that no other process uses the GPU, which would distort times and take memory that ncu needs."""
    try:
        rows = _call("--query-compute-apps=pid,used_memory,process_name", "--format=csv,noheader")
    except InputError as error:
        LOG.warning("other processes on the GPU cannot be seen: %s", error)
        return
    others = []
    for row in csv.reader(rows.splitlines(), skipinitialspace=True):
        if len(row) >= 3 and row[0].strip().isdigit() and int(row[0]) != os.getpid():
            pid, memory, program = (cell.strip() for cell in row[:3])
            others.append(f"{program.rpartition('/')[2] or 'a process'} (pid {pid}, {memory})")
    if others:
        remedy = "wait for it to end or stop it, or choose another GPU with CUDA_VISIBLE_DEVICES"
        raise InputError("GPU", selected_device(), f"another process is on the GPU: {', '.join(others[:3])}", remedy)


def _in_smi() -> str:
    """Return nvidia-smi's name of the GPU. It knows numbers and whole UUIDs, and of a MIG instance only its GPU."""
    chosen = selected_device()
    if chosen.isdigit():
        return chosen
    if whole := re.match(r"MIG-(GPU-[\w-]+)/", chosen):  # drivers before 470 name the GPU and two numbers
        return whole[1]
    gpu = ""
    for uuid in re.findall(r"UUID: ([\w-]+)", _run("-L")):
        gpu = uuid if uuid.startswith("GPU-") else gpu
        if uuid.startswith(chosen):
            return gpu
    return chosen


def _query(fields: tuple[str, ...]) -> list[str]:
    answer = _call(f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines(), skipinitialspace=True) if row]
    if len(rows) != 1 or len(rows[0]) != len(fields):
        problem = f"instead of {', '.join(fields)} it prints {failures.last_words(answer)!r}"
        raise InputError("nvidia-smi", f"GPU {selected_device()}", problem, _CHECK)
    return rows[0]


def _call(*arguments: str) -> str:
    return _run("-i", _in_smi(), *arguments)


def _run(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise InputError("nvidia-smi", "", "it is not on the PATH", "install the driver's utilities")
    command = [program, *arguments]
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
