"""Record any program as a dataset: ``python -m gpuledger.record [OPTION…] -- COMMAND…``.

Counters come from ncu where they may be read. A timeline comes from nsys where it is installed, else for a Python
program from torch.profiler. The program runs once for each; both runs share the time that is given.
"""

import argparse
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuledger.errors import InputError
from gpuledger.files import write_text
from gpuledger.record import device, failures, metrics, plan, profiler, timelines
from gpuledger.record.profiler import Control, Ncu
from gpuledger.record.recording import Recording

LOG = logging.getLogger("gpuledger")
_TIMELINE = Path(__file__).with_name("timeline_of.py")
#: How long a tool may take to finish its output after Ctrl-C or at the end of the time (s).
_GRACE_S = 120
#: Time that must be left to start another run (s): on an H200, Python and PyTorch took 6 to 10 s to start.
_LEAST_S = 10.0
#: Exit status for options that cannot be used, and without a GPU.
BAD_INPUT = 2
#: What ncu says when the program fails, whatever the reason.
_OF_PROGRAM = re.compile(r"The application returned an error code \((\d+)\)|No kernels were profiled")
_NO_TOOL = "neither counters nor a timeline can be recorded"


@dataclass(frozen=True)
class ProgramRun:
    """One run of the program."""

    tool: str  # {"ncu", "nsys", "kineto"}
    command: tuple[str, ...]
    made: Path  # what the tool writes, in a scratch folder
    metrics: tuple[str, ...] = ()  # of ncu


def main(options: Sequence[str], target: Sequence[str]) -> int:
    """Record a program.

    Parameters
    ----------
    options : sequence of str
        Options before ``--``; ``--help`` lists them.

    Returns
    -------
    int
        0 if everything was recorded, 1 if something failed, 2 for bad options or no GPU, 130 after Ctrl-C; what was
        whole by then is kept.
    """
    given = _parser().parse_args(options)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        return _record(given, list(target))
    except InputError as error:
        print(f"gpuledger: {error}", file=sys.stderr)
        return BAD_INPUT


def minutes(text: str) -> float:
    """Read the value of ``--minutes``."""
    with suppress(ValueError):
        if (value := float(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no time; give minutes, such as 8, or inf")


def _count_of(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of launches; give a whole number, such as 200")
    return int(text)


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        problem = f"{text!r} is no regular expression ({error}); write \\ before signs that stand for themselves"
        raise argparse.ArgumentTypeError(problem) from None
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpuledger record", usage="%(prog)s [OPTION ...] -- COMMAND ...")
    parser.add_argument("--folder", type=Path, help="default: traces/<name of the GPU>-<name of the program>")
    known = ", ".join(metrics.PURPOSES)
    parser.add_argument("--for", dest="purposes", default="roofline", help=f"metrics, separated by commas: {known}")
    parser.add_argument("--range", default="", help="count only launches in the NVTX range of this name")
    parser.add_argument("--kernel", type=_expression, default="", help="count only kernels whose name this matches")
    parser.add_argument("--skip", type=_count_of, default=0, help="launches to leave out before the first one")
    parser.add_argument("--launches", type=_count_of, default=0, help="number of launches to count (default: all)")
    parser.add_argument("--replay", choices=("kernel", "application", "range"), default="kernel")
    parser.add_argument("--clock", choices=("none", "base"), default="none", help="base locks the SM clock")
    parser.add_argument("--cache", choices=("all", "none"), default="all", help="none keeps caches between passes")
    alone = "record counters alone; else another run of the program, under nsys or torch.profiler, records its timeline"
    parser.add_argument("--no-timeline", action="store_true", help=alone)
    parser.add_argument("--minutes", type=minutes, help="end all runs after this time and keep what is whole")
    parser.add_argument("--dry-run", action="store_true", help="print the command lines only")
    parser.add_argument("--chip", default="", help="with --dry-run: plan for a chip by ncu's name, such as gh100")
    return parser


def _record(given: argparse.Namespace, target: list[str]) -> int:
    if not target:
        raise InputError("gpuledger.record", "COMMAND", "there is none", "write it after --")
    purposes = given.purposes.split(",")
    if unknown := [name for name in purposes if name not in metrics.PURPOSES]:
        known = ", ".join(metrics.PURPOSES)
        raise InputError("gpuledger.record", "--for", f"unknown purpose {unknown[0]!r}", f"choose from {known}")
    found = None
    environment = {**os.environ, "LC_ALL": "C"}  # before one of several GPUs is selected to be described
    try:
        found = device.find_device()
    except InputError as error:
        if not given.dry_run:
            raise
        print(f"# {error}")
    with TemporaryDirectory(prefix="gpuledger-") as scratch:
        steps, reasons = plan_steps(given, target, found, Path(scratch))
        if given.dry_run:
            print(*(f"# {reason}" for reason in reasons), *(shlex.join(step.command) for step in steps), sep="\n")
            return 0
        for reason in reasons:
            LOG.warning("%s", reason)
        if not steps:
            raise InputError("gpuledger.record", "", _NO_TOOL, "; ".join(reasons))
        folder = given.folder or Path("traces", f"{found.slug}-{_name(target)}")
        return _run_steps(given, target, found, Recording(folder), steps, Path(scratch), environment)


def plan_steps(
    given: argparse.Namespace, target: list[str], found: device.Device | None, scratch: Path
) -> tuple[list[ProgramRun], list[str]]:
    """Return the runs of the program, and why others are not possible."""
    steps, reasons, lack = [], [], plan.counters_lack()
    if given.dry_run or not lack:
        try:
            ncu = profiler.find_ncu(given.chip if given.dry_run else "")
            steps.append(_count(given, target, found, ncu, scratch))
        except InputError as error:
            lack = error.problem, error.remedy
            if given.dry_run:
                lack += ("metrics are those of the newest ncu",)
                steps.append(_count(given, target, found, None, scratch))
    if lack:
        reasons.append(f"{'ncu' if given.dry_run else 'no counters'}: {'; '.join(lack)}")
    if given.no_timeline:
        return steps, reasons
    if program := shutil.which("nsys"):
        # Otherwise a CUDA graph is recorded as one kernel.
        options = ("--trace=cuda,nvtx", "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none")
        options += ("--force-overwrite=true", "--export=sqlite")
        command = (program, "profile", *options, f"--output={scratch / 'timeline'}", *target)
        steps.append(ProgramRun("nsys", command, scratch / "timeline.sqlite"))
    elif not _is_python(target):
        reasons.append("no timeline: install Nsight Systems, or write the command as: python SCRIPT …")
    elif given.dry_run or _has_torch(target[0]):
        steps.append(_kineto(target, scratch))
    else:
        reasons.append(f"no timeline: {target[0]} has no PyTorch; install it there, or Nsight Systems")
    return steps, reasons


def _count(
    given: argparse.Namespace, target: list[str], found: device.Device | None, ncu: Ncu | None, scratch: Path
) -> ProgramRun:
    capability = found.compute_capability if found else ""
    capability = metrics.capability_of(given.chip) if given.dry_run and given.chip else capability
    names, missing = metrics.for_purposes(given.purposes.split(","), capability, ncu.metrics if ncu else None)
    if missing:
        LOG.warning("this ncu does not know %s", ", ".join(missing[:3]) + (", …" if len(missing) > 3 else ""))
    selection = [word for name in _filters(given.range) for word in ("--nvtx-include", name)]
    selection = ["--nvtx", *selection] if selection else []
    selection += ["--kernel-name", f"regex:{given.kernel}"] if given.kernel else []
    selection += ["--launch-skip", str(given.skip)] if given.skip else []
    selection += ["--launch-count", str(given.launches)] if given.launches else []
    log = scratch / "ncu.csv"
    program, control = ncu.program if ncu else (profiler.find_program() or "ncu"), _control(given)
    options = (*selection, "--section", "LaunchStats", "--section", "Occupancy")
    command = profiler.command_line(program, names, target, control, log, options)
    return ProgramRun("ncu", tuple(command), log, tuple(names))


def _control(given: argparse.Namespace) -> Control:
    return Control(given.clock, given.cache, given.replay)


def _filters(name: str) -> list[str]:
    """Return ncu's filters for a range by name: pushed and popped in a thread, or started and ended in the process.

    Launches of a backward pass are only in ranges of the second kind, because autograd has a thread of its own.
    """
    if not name or re.search(r"[/@\[\]]", name):
        return [name] if name else []
    return [f"{name}/", name]


def _is_python(target: list[str]) -> bool:
    """Whether the program is a script, a module or code for Python, without other options of Python."""
    called = re.fullmatch(r"python(\d+(\.\d+)*)?", Path(target[0]).name) and len(target) > 1
    return bool(called) and (not target[1].startswith("-") or (target[1] in ("-m", "-c") and len(target) > 2))


def _has_torch(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": _GRACE_S, "env": {**os.environ}}
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run([python, "-c", code], **quiet).returncode == 0
    return False


def _kineto(target: list[str], scratch: Path) -> ProgramRun:
    made = scratch / "timeline.json"
    return ProgramRun("kineto", (target[0], str(_TIMELINE), str(made), *target[1:]), made)


def _run_steps(
    given: argparse.Namespace,
    target: list[str],
    found: device.Device,
    recording: Recording,
    steps: list[ProgramRun],
    scratch: Path,
    environment: dict[str, str],
) -> int:
    name, failed, ended = _name(target), 0, ""
    deadline = time.monotonic() + 60 * given.minutes if given.minutes else None
    within = given.range if len(_filters(given.range)) > 1 else ""  # not where it is an expression of ncu's
    with recording.alone():
        recording.belong_to(vars(found))
        while steps:
            step = steps.pop(0)
            seconds = max(0.0, deadline - time.monotonic()) if deadline else None
            if ended and seconds is not None and seconds < _LEAST_S:
                failed = 1
                tool = "torch.profiler" if step.tool == "kineto" else step.tool
                problem = f"--minutes {given.minutes:g} left no time for the timeline"
                error = InputError(name, tool, problem, "give more, and let the program end within them")
                recording.leave_out(step.tool, f"{error.problem}; {error.remedy}")
                LOG.error("%s", error)
                break
            recording.begin(step.tool)
            recording.withdraw()
            started = datetime.now(UTC).date().isoformat()
            about: dict[str, Any] = {"date": started, "device": vars(found), "state": device.describe_state()}
            status, ended = run_whole(step.command, seconds, environment)
            try:
                cases, notes, more = _take(step, recording.folder, name, status, ended, within)
            except InputError as error:
                failed = 1
                recording.leave_out(step.tool, f"{error.problem}; {error.remedy}")
                LOG.error("%s", error)
                if error.problem == timelines.NO_IMPORTER and _is_python(target) and _has_torch(target[0]):
                    steps.append(_kineto(target, scratch))
            else:
                counted = {"control": vars(_control(given)) if step.tool == "ncu" else None}
                recording.finish(step.tool, cases, {**about, **counted, **more, "ended": ended}, notes)
            if ended == "by Ctrl-C":
                break
        recording.write_dataset()
    print(f"{recording.folder}: {', '.join(sorted(recording.parts)) or 'nothing'} recorded")
    return 130 if ended == "by Ctrl-C" else failed


def _take(
    step: ProgramRun, folder: Path, name: str, status: int, ended: str, within: str
) -> tuple[dict, dict[str, str], dict[str, Any]]:
    """Move what a tool made into the recording; return its cases, notes and provenance."""
    note = "" if ended == "by itself" else f"Ended {ended}: what was recorded until then."
    if status and not note:
        note = f"The program ended with status {status}: what was recorded until then."
    if step.tool == "ncu":
        table = step.made.read_text("utf-8", errors="replace") if step.made.is_file() else ""
        if (status or ended != "by itself") and (known := _ncu_failure(table, status, ended)):
            raise InputError(name, "ncu", *known)
        path = f"kernel_profile/{name}.csv"
        whole = ended == "by itself"
        text, counted = profiler.publishable(table, step.metrics, folder / path, whole, unrequested=True)
        write_text(folder / path, text)
        more = {"tools": {"ncu": profiler.find_ncu().version}, "launches": counted.launches}
        more |= {"metrics": list(step.metrics), "metrics_without_value": list(counted.absent)}
        return {"kernel_profile": {name: {"report": path}}}, {path: note} if note else {}, more
    case = timelines.take(step.made, folder, name, status, ended, within)
    return {"kernel_breakdown": {name: case}}, {case["timeline"]: note} if note else {}, {"tools": {}}


def _ncu_failure(log: str, status: int, ended: str) -> tuple[str, str] | None:
    """Return problem and remedy of a run under ncu that did not end well; ``None`` if its table can be used."""
    counted = '"ID"' in log
    if counted and ended != "by itself":
        return None
    said = "\n".join(line for line in log.splitlines() if not _OF_PROGRAM.search(line))
    if (known := failures.explain(said)) or counted:
        return known
    if ended != "by itself":
        return f"no kernel was counted before the program was ended {ended}", timelines.GIVE_TIME
    returned = re.search(r"returned an error code \((\d+)\)", log)
    if "==ERROR==" in said or (status < 0 and not returned):
        return f"ncu failed (status {status}): {failures.last_words(said)}", "fix the cause and record again"
    status = int(returned[1]) if returned else status
    return f"the program ended with status {status} before a kernel was counted", timelines.FIX_PROGRAM


def run_whole(
    command: Sequence[str], seconds: float | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command with its output shown, until it ends, time is up or Ctrl-C; then let it finish its output.

    Returns
    -------
    status : int
    ended : {"by itself", "by Ctrl-C", "after its time"}
    """
    # A script's background job ignores SIGINT, and would hand that on to the tool, which is ended by it below. Ctrl-C
    # is kept until there is a tool to end.
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        # In a session of its own, so that Ctrl-C reaches the tool once.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=environment)
    except OSError as error:
        signal.signal(signal.SIGINT, handler)
        raise InputError(command[0], "", f"it cannot be started ({error.strerror})", "correct the command") from None
    ended = "by itself"
    try:
        try:
            signal.signal(signal.SIGINT, handler)
            for number in pressed:
                signal.raise_signal(number)
            process.wait(seconds)
        except KeyboardInterrupt:
            ended = "by Ctrl-C"
        except subprocess.TimeoutExpired:
            ended = "after its time"
        if ended != "by itself" and process.poll() is None:
            LOG.info("%s; waiting for %s to write what it has", ended, Path(command[0]).name)
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_GRACE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        LOG.warning("%s is killed", Path(command[0]).name)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, ended


def _name(target: list[str]) -> str:
    """Return a name for the program: that of its script or module, without arguments, which can be private."""
    words = [word for word in target if not word.startswith("-")]
    first = Path(words[0]).name
    if first.startswith("python"):
        first = "python" if target[1:2] == ["-c"] or len(words) < 2 else Path(words[1]).name.removesuffix(".py")
        first = first.rpartition(".")[2] if target[1:2] == ["-m"] else first
    return re.sub(r"[^a-z0-9]+", "_", first.lower()).strip("_") or "program"
