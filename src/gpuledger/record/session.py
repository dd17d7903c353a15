"""What all parts of a recording share: the device, the tools, the recording's folder."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError
from gpuledger.record import failures
from gpuledger.record.designs import Counting
from gpuledger.record.device import Device, describe_state
from gpuledger.record.parts import PROCESS_S, Recorded
from gpuledger.record.profiler import Control, Ncu, profile
from gpuledger.record.recording import Recording, hash_sources, key_of

#: The folder that contains the package, for the Python of the workloads.
SOURCE = Path(__file__).resolve().parents[2]
_WORKLOADS = Path(__file__).with_name("workloads")
#: Modules that a workload imports and that its numbers therefore depend on.
_SHARED = {"toy_network": ("profiling",), "gpt2": ("transformer", "profiling"), "llama": ("transformer", "profiling")}
#: Between asking a part to end and ending it (s).
_GRACE_S = 20
#: Keeps libraries from replacing fp32 by TF32, and the driver from having the host wait for every launch: it would then
#: enqueue the next one, which is timed, only after the work that is to hide this.
_ENVIRONMENT = {"NVIDIA_TF32_OVERRIDE": "0", "CUDA_LAUNCH_BLOCKING": "0", "PYTHONDONTWRITEBYTECODE": "1"}

#: Asks for the packages that are its arguments. PyTorch alone takes seconds to start.
_ASK = """
import json, platform, sys, traceback
found, errors = {"python": platform.python_version()}, {}
try:
    if "torch" in sys.argv:
        import torch
        torch.zeros(1, device="cuda")
        found |= {"torch": torch.__version__, "cuda": torch.version.cuda}
except Exception:
    errors["torch"] = traceback.format_exc()
try:
    if "nvrtc" in sys.argv:
        from gpuledger.record import cuda, nvrtc
        nvrtc.compile_source("", cuda.open_device().architecture, "an empty source", ())
        found["nvrtc"] = nvrtc.version()
except Exception:
    errors["nvrtc"] = traceback.format_exc()
print(json.dumps([found, errors]))
"""
#: Versions that numbers depend on, by requirement of a part.
_USED = {"torch": ("torch", "cuda"), "nvrtc": ("nvrtc",)}


@dataclass(frozen=True)
class Tools:
    """Packages in the Python of the workloads."""

    versions: Mapping[str, str]  # versions of ``python``, ``torch``, ``cuda`` and ``nvrtc``, as far as they work
    errors: Mapping[str, str]  # tracebacks of ``torch`` and ``nvrtc`` if they do not work with the GPU

    def used(self, needs: Collection[str]) -> dict[str, str]:
        """Return the versions of the given requirements."""
        for need in needs:
            if need in self.errors:
                raise _failure(self.errors[need], need)
        names = ["python", *(name for need in needs for name in _USED.get(need, ()))]
        return {name: str(self.versions[name]) for name in names}


@dataclass
class RecordingSession:
    """One call of the recorder."""

    recording: Recording
    device: Device
    python: str  # Python of the workloads
    #: Versions of the tools that the part uses: ``python``, ``torch``, ``cuda``, ``nvrtc``, ``ncu``.
    tools: dict[str, str]
    control: Control  # settings of ncu
    ncu: Ncu | None = None  # none for parts that do not use it
    #: Keyword arguments of the function of a part that has a process of its own.
    options: Mapping[str, Any] = field(default_factory=dict)

    def key(self, **what: Any) -> dict[str, Any]:
        """`what` together with the device and tools of this session, for :func:`key_of`."""
        return {**what, **self._made_with()}

    def count(self, what: Counting, metrics: Sequence[str]) -> dict[str, Any]:
        """Record the counters of a workload at several points, in one process, as far as they are not up to date.

        Returns
        -------
        dict
            ``metrics_without_value``, and ``launches`` by path.
        """
        sources = hash_sources([_WORKLOADS / f"{name}.py" for name in (what.module, *_SHARED[what.module])])

        def write(names: list[str], seconds: float) -> dict[str, dict[str, Any]]:
            paths = {what.tables[name]: self.recording.folder / name for name in names}
            # For its start and for ncu's table, without which nothing of this run would be kept. On an H200 both took
            # 7 s beside 557 launches.
            aside = min(seconds / 2, max(PROCESS_S, seconds / 10))
            target = [*what.command(self.python), f"--seconds={seconds - aside:.0f}"]
            target += [f"--point={point}" for point in paths]
            counted = profile(
                self.ncu, metrics, target, self.control, paths, environment=environment(), seconds=seconds,
                kept=self.recording.folder / ".ncu.partial" / f"{Path(names[0]).parent.name}.csv",
            )  # fmt: skip
            return {name: vars(counted[what.tables[name]]) for name in names if what.tables[name] in counted}

        made_with = self.key(metrics=list(metrics), workload=[what.module, *what.options], sources=sources)
        keys = {name: key_of(**made_with, point=point) for name, point in what.tables.items()}
        made = self.recording.make_all(keys, write)
        absent = sorted({metric for about in made.values() for metric in about["absent"]})
        return {"metrics_without_value": absent, "launches": {name: made[name]["launches"] for name in made}}

    def about(self, **more: Any) -> dict[str, Any]:
        """Provenance of a part that is recorded now."""
        return {"date": datetime.now(UTC).date().isoformat(), "state": describe_state(), **self._made_with(), **more}

    def _made_with(self) -> dict[str, Any]:
        control = vars(self.control) if self.ncu else None
        return {"device": vars(self.device), "tools": self.tools, "control": control}


def environment() -> dict[str, str]:
    """Return the additional environment variables of a workload's process."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    return {**_ENVIRONMENT, "PYTHONPATH": path}


def find_tools(python: str, needs: Collection[str]) -> Tools:
    """Query those packages of the workloads' Python that are needed."""
    said = run_captured([python, "-c", _ASK, *sorted(needs)], "record.python", 300)
    try:
        return Tools(*json.loads(said.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        problem = f"instead of its versions {python} prints {failures.last_words(said)!r}"
        remedy = "name a Python with PyTorch and NumPy"
        raise InputError("config/config.yaml", "key record.python", problem, remedy) from None


def run_captured(command: Sequence[str], place: str, seconds: float) -> str:
    """Run a program and return its standard output."""
    done = _run(command, place, seconds, capture=True)
    if done.returncode:
        raise _failure(done.stderr or f"its process ended with status {done.returncode}", place)
    return done.stdout


def run_apart(command: Sequence[str], answer: Path, place: str, seconds: float) -> Recorded:
    """Run :mod:`gpuledger.record.subprocess_part`, with its output shown, and return the result from its answer."""
    status = _run(command, place, seconds, capture=False).returncode
    try:
        found = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError):
        remedy = "check its output and record again"
        raise InputError("GPU", place, f"its process ended with status {status}", remedy) from None
    if "input_error" in found:
        raise InputError(*found["input_error"])
    if "traceback" in found:
        raise _failure(found["traceback"], place)
    return Recorded(**found["recorded"])


def _failure(said: str, place: str) -> InputError:
    problem, remedy = failures.explain(said) or (failures.last_words(said), "fix the cause and record again")
    return InputError("GPU", place, problem, remedy)


def _run(command: Sequence[str], place: str, seconds: float, capture: bool) -> subprocess.CompletedProcess:
    """Run a program to its end, or end it and its children after `seconds` and after Ctrl-C."""
    pipe = subprocess.PIPE if capture else None
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace",
            env={**os.environ, **environment(), "LC_ALL": "C.UTF-8"}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        remedy = "name a Python with PyTorch in record.python of config/config.yaml"
        raise InputError(command[0], place, f"it cannot be started ({error.strerror})", remedy) from None
    try:
        said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        problem, remedy = f"not finished after {seconds:.0f} s", "check with nvidia-smi that nothing else uses the GPU"
        raise InputError("GPU", place, problem, remedy) from None
    finally:
        _end(process)
    return subprocess.CompletedProcess(command, process.returncode, *said)


def _end(process: subprocess.Popen) -> None:
    """End a process group that is still running; a part ends what it has started itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
