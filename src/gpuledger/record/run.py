"""Record the parts of a recording into its folder."""

import json
import logging
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.record import device, failures, plan, profiler, session
from gpuledger.record.parts import PARTS, Part, Recorded
from gpuledger.record.recording import OutOfTimeError, Recording, hash_sources, key_of
from gpuledger.record.session import RecordingSession

LOG = logging.getLogger("gpuledger")
_HERE = Path(__file__).parent


def record_parts(
    recording: Recording,
    parts: Sequence[str] = tuple(PARTS),
    *,
    python: str | None = None,
    control: profiler.Control | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    keep_going: bool = True,
) -> dict[str, InputError]:
    """Record parts, as far as they are not up to date.

    Parameters
    ----------
    parts : sequence of str
        Names in :data:`PARTS`.
    python : str, optional
        Python of the workloads, with PyTorch; default: the current one.
    options : mapping, optional
        By part, keyword arguments of its function.

    Returns
    -------
    dict
        The error of each part that could not be recorded.

    Raises
    ------
    InputError
        No GPU, another process on it, a Python that does not run; without `keep_going`, the error of a part.
    OutOfTimeError
        There was no time for the parts that it names; all others are recorded, and another call resumes.
    """
    with recording.alone():
        device.select_device()
        found = device.find_device()
        recording.belong_to(vars(found))
        device.check_alone()
        python, begun, took = python or sys.executable, time.monotonic(), {}
        tools = session.find_tools(python, {need for name in parts for need in PARTS[name].needs})
        took["tools"] = time.monotonic() - begun
        failed: dict[str, InputError] = {}
        late: list[str] = []
        ncu: profiler.Ncu | InputError | None = None
        for name in parts:
            part = PARTS[name]
            if part.optional and (lack := plan.lacking(part, python)):
                recording.leave_out(name, "; ".join(lack))
                LOG.info("%s is left out: %s", name, lack[0])
                continue
            begun, more = time.monotonic(), (options or {}).get(name, {})
            if "ncu" in part.needs:
                ncu = ncu or _find_ncu()
            now = RecordingSession(recording, found, python, {}, control or profiler.Control(), options=more)
            error = _try_part(now, part, tools, ncu)
            took[name] = time.monotonic() - begun
            if error is None:
                LOG.info("%s: recorded", name)
            elif isinstance(error, OutOfTimeError) or recording.is_over():
                late.append(name)
                recording.leave_out(name, "there was no time for all of it; record again to resume")
                LOG.warning("%s, planned for %.1f min: no time is left for all of it", name, part.seconds / 60)
            elif not keep_going:
                raise error
            else:
                if failures.denies_counters(error.problem):  # so other parts do not spend the GPU's time to hear it
                    ncu = InputError("ncu", "", error.problem, error.remedy)
                failed[name] = error
                recording.leave_out(name, f"{error.problem}; {error.remedy}")
                LOG.error("%s is left out: %s", name, error)
        recording.write_dataset()
        LOG.info("took %.0f s: %s", sum(took.values()), ", ".join(f"{name} {s:.0f}" for name, s in took.items()))
        if late:
            raise OutOfTimeError(", ".join(late))
        return failed


def _find_ncu() -> profiler.Ncu | InputError:
    try:
        return profiler.find_ncu()
    except InputError as error:
        return error


def _try_part(
    now: RecordingSession, part: Part, tools: session.Tools, ncu: profiler.Ncu | InputError | None
) -> InputError | OutOfTimeError | None:
    """Record a part with the tools that it needs; return why it could not be recorded."""
    try:
        now.tools = tools.used(part.needs)
        if "ncu" in part.needs:
            if isinstance(ncu, InputError):
                raise ncu
            now.ncu, now.tools["ncu"] = ncu, ncu.version
        (_record_apart if part.own_process else _record_part)(now, part)
    except KeyboardInterrupt:
        now.recording.pause()
        raise
    except (InputError, OutOfTimeError) as error:
        return error
    except Exception as error:  # a mistake here must not cost the other parts
        LOG.exception("%s", part.name)
        return InputError("gpuledger", part.name, f"{type(error).__name__}: {error}", "report it")
    return None


def _record_part(now: RecordingSession, part: Part) -> None:
    now.recording.begin(part.name, part.seconds, part.least_s)
    made: Recorded = getattr(import_module(part.module), part.function)(now, *part.arguments)
    now.recording.finish(part.name, made.cases, now.about(**made.about), made.notes)


def _record_apart(now: RecordingSession, part: Part) -> None:
    """Record a part in its own process, into a scratch folder whose contents are moved when it is complete.

    If the part fails, the scratch folder is kept so that the part can resume, as long as its key does not change. That
    is tried at once if a step was finished or given up: a failure can make the GPU unusable to one process alone.
    """
    recording = now.recording
    key = key_of(**now.key(part=part.name, sources=hash_sources(_sources(part)), options=now.options))
    known = recording.parts.get(part.name, {})
    if known.get("key") == key and recording.are_made(known["files"]):
        return
    recording.check_time(part.least_s)
    recording.begin(part.name)
    scratch = recording.folder / f".{part.name}.partial"
    folder, answer, begun_for = scratch / "made", scratch / "answer.json", scratch / "key"
    if scratch.is_dir() and not (begun_for.is_file() and begun_for.read_text("utf-8") == key):
        shutil.rmtree(scratch)
    folder.mkdir(parents=True, exist_ok=True)
    begun_for.write_text(key, "utf-8")
    options = {"control": vars(now.control)} if "ncu" in part.needs else {}
    options |= now.options
    command = [now.python, "-m", "gpuledger.record.subprocess_part", part.module, part.function]
    command += [str(folder), str(answer), json.dumps(options)]
    until, recorded = time.monotonic() + recording.limit(part.seconds), None
    while recorded is None:
        before, left = _files(folder), until - time.monotonic()
        answer.unlink(missing_ok=True)
        try:
            recorded = session.run_apart(command, answer, part.name, left)
        except InputError as error:
            if not (now_there := _files(folder)):
                shutil.rmtree(scratch)
            if not part.resumable or now_there == before or until - time.monotonic() < part.least_s:
                raise
            LOG.warning("%s goes on in another process, after: %s", part.name, error)
    recording.withdraw()
    for name in known.get("files", ()):
        (recording.folder / name).unlink(missing_ok=True)
    made = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    # No other part writes into these folders, so their old contents are outdated.
    for path in folder.iterdir():
        target = recording.folder / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    shutil.rmtree(scratch)
    sums = {name.as_posix(): files.sha256(recording.folder / name) for name in made}
    recording.finish(part.name, recorded.cases, now.about(key=key, files=sums, **recorded.about), recorded.notes)


def _files(folder: Path) -> dict[Path, int]:
    """When each file below a folder was written (ns)."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def _sources(part: Part) -> list[Path]:
    stem = part.module.rpartition(".")[2]
    # These run the kernels of the part `probes`.
    folder = "probes" if stem in ("blocks", "latency", "neutrino") else stem
    patterns = [f"*{stem}*.py", f"{folder}/*.py", "cuda*.py", "cuda_sources/*"]
    patterns += ["profiled_launches.py"] if stem in ("gemm", "attention", "power") else []
    patterns += ["nvml.py"] if stem == "power" else []
    return [path for pattern in patterns for path in _HERE.glob(pattern) if path.is_file()]
