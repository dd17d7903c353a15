"""Nsight Compute's command line: found, asked for its version and metrics, and run on one workload at a time."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuledger.errors import InputError
from gpuledger.files import write_text
from gpuledger.record import failures
from gpuledger.record.metrics import NEEDED

#: The oldest version against which every option used here was checked.
OLDEST = (2022, 3)
#: Where installers put it when they do not put it on the PATH.
PLACES = ("usr/local/cuda*/bin", "opt/nvidia/nsight-compute/*", "usr/local/NVIDIA-Nsight-Compute*")
#: Columns of a recording that would tell the machine and the day apart, and say nothing about a launch.
PRIVATE = ("Process ID", "Process Name", "Host Name")
_INSTALL = "install Nsight Compute (with the CUDA toolkit, or alone) and put ncu on the PATH"
_QUERY_SECONDS = 120


@dataclass(frozen=True)
class Control:
    """How ncu controls the GPU while it counts; written down with every recording.

    Attributes
    ----------
    clock : {"none", "base"}
        ``base`` locks the SM clock to its base value, ``none`` leaves the clocks as they are.
    cache : {"all", "none"}
        ``all`` empties the caches before every pass, so that DRAM traffic does not depend on what ran before.
    replay : str
        How a launch is repeated for more counters than one pass holds.
    """

    clock: str = "none"
    cache: str = "all"
    replay: str = "kernel"

    def options(self) -> list[str]:
        return ["--clock-control", self.clock, "--cache-control", self.cache, "--replay-mode", self.replay]


@dataclass(frozen=True)
class Ncu:
    """An installed ncu.

    Attributes
    ----------
    program : str
    version : str
        ``2025.3.1``.
    metrics : frozenset of str
        Base names of the metrics that it knows for the GPU.
    """

    program: str
    version: str
    metrics: frozenset[str]


@dataclass(frozen=True)
class Counted:
    """What a run of ncu gave.

    Attributes
    ----------
    launches : int
    absent : tuple of str
        Metrics that were asked for and have no value.
    """

    launches: int
    absent: tuple[str, ...]


def find_program() -> str | None:
    """Path of ncu: on the PATH, else the newest where installers put it; ``None`` when there is none."""
    if found := shutil.which("ncu"):
        return found
    paths = [path for place in PLACES for path in Path("/").glob(f"{place}/ncu") if os.access(path, os.X_OK)]
    return max(map(str, paths), key=_numbers, default=None)


@cache
def find_ncu() -> Ncu:
    """Find ncu, check its version and ask which metrics it knows for the GPU.

    Raises
    ------
    InputError
        Missing, too old, or no access to the driver.
    """
    program = find_program()
    if program is None:
        raise InputError("ncu", "", "Nsight Compute is not installed", _INSTALL)
    said = _run([program, "--version"], _QUERY_SECONDS)[1]
    match = re.search(r"Version (\d+(?:\.\d+)+)", said)
    if not match:
        problem = f"ncu --version says no version but {failures.last_words(said)!r}"
        raise InputError("ncu", "--version", problem, _INSTALL)
    version = match[1]
    if _numbers(version)[: len(OLDEST)] < OLDEST:
        problem = f"version {version} is too old: {'.'.join(map(str, OLDEST))} is needed at least"
        raise InputError("ncu", "--version", problem, "install a newer Nsight Compute")
    status, said = _run([program, "--query-metrics", "--devices", "0"], _QUERY_SECONDS)
    metrics = listed_metrics(said)
    if status or not metrics:
        problem, remedy = failures.explain(said) or (
            f"it lists no metrics for the GPU: {failures.last_words(said)}",
            "update Nsight Compute to a version that knows this GPU",
        )
        raise InputError("ncu", "--query-metrics", problem, remedy)
    return Ncu(program, ".".join(version.split(".")[:3]), metrics)


def listed_metrics(said: str) -> frozenset[str]:
    """Names in the output of ``ncu --query-metrics``: the first word of a line, without suffixes."""
    return frozenset(re.findall(r"^([a-z][a-z0-9]*__\w+)\b", said, re.MULTILINE))


def command_line(
    ncu: Ncu, metrics: Sequence[str], target: Sequence[str], control: Control, log: str | Path
) -> list[str]:
    """Build the command that counts `metrics` of the launches between the target's start and stop of profiling.

    Parameters
    ----------
    ncu : Ncu
    metrics : sequence of str
        Full names.
    target : sequence of str
        The workload's command; it calls cudaProfilerStart and cudaProfilerStop around what is to be counted.
    control : Control
    log : path
        Where ncu writes the table, apart from what the workload prints.
    """
    return [
        ncu.program,
        *("--csv", "--page", "raw", "--print-units", "base"),
        *control.options(),
        *("--profile-from-start", "off", "--target-processes", "all"),
        *("--metrics", ",".join(metrics)),
        *("--log-file", str(log)),
        *target,
    ]


def profile(
    ncu: Ncu,
    metrics: Sequence[str],
    target: Sequence[str],
    control: Control,
    path: str | Path,
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = 600,
) -> Counted:
    """Count, and write the table: whole, without the machine's name, or not at all.

    Parameters
    ----------
    ncu, metrics, target, control
        See :func:`command_line`.
    path : path
        The CSV to write.
    environment : mapping, optional
        On top of this process's own.
    seconds : float
        After which it is given up.

    Returns
    -------
    Counted

    Raises
    ------
    InputError
        For every way in which it fails, with the fix.
    """
    with TemporaryDirectory(prefix="gpuledger-") as folder:
        log = Path(folder, "ncu.csv")
        command = command_line(ncu, metrics, target, control, log)
        status, said = _run(command, seconds, environment)
        table = log.read_text("utf-8", errors="replace") if log.is_file() else ""
    if status or "==ERROR==" in table:
        # What the workload says comes first: ncu only tells that it returned an error code.
        problem, remedy = failures.explain(f"{said}\n{table}") or (
            f"ncu failed (status {status}): {failures.last_words(f'{table}{said}')}",
            "mend what it says and record again",
        )
        raise InputError(path, "ncu", problem, remedy)
    text, counted = publishable(table, metrics, path)
    write_text(path, text)
    return counted


def publishable(table: str, metrics: Sequence[str], path: str | Path) -> tuple[str, Counted]:
    """Keep of ncu's output the table, without the columns :data:`PRIVATE` and ncu's messages.

    Returns
    -------
    text : str
    counted : Counted

    Raises
    ------
    InputError
        No launch, none of the metrics or not fadd, fmul and ffma of those asked for, a row that is cut short.
    """
    lines = [line for line in table.splitlines() if line.strip() and not line.startswith("==")]
    start = next((number for number, line in enumerate(lines) if line.lstrip("\ufeff").startswith('"ID"')), None)
    if start is None:
        problem, remedy = failures.explain(table) or ("ncu wrote no table", "record again; ncu's options are not met")
        raise InputError(path, "ncu", problem, remedy)
    header, *rows = csv.reader(lines[start:])
    if short := next((number for number, row in enumerate(rows) if len(row) != len(header)), None):
        raise InputError(path, f"row {short + 1}", "ncu's table is cut short", "record again")
    launches = [row for row in rows if row[header.index("ID")].isdigit()]
    if not launches:
        problem, remedy = failures.explain("No kernels were profiled")
        raise InputError(path, "ncu", problem, remedy)
    counted = {
        metric
        for metric in metrics
        if metric in header and any(row[header.index(metric)] not in ("", "n/a") for row in launches)
    }
    absent = [metric for metric in metrics if metric not in counted]
    if lacking := [metric for metric in absent if metric in NEEDED or not counted]:
        problem = f"ncu has no value of {lacking[0]} for any launch"
        raise InputError(path, "ncu", problem, "use a newer ncu: its list of metrics and the GPU do not fit")
    kept = [place for place, name in enumerate(header) if name not in PRIVATE]
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([row[place] for place in kept] for row in [header, *rows])
    return text.getvalue(), Counted(len(launches), tuple(absent))


def _run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command in the C locale; return its status and all that it said. Its children end with it."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **(environment or {}), "LC_ALL": "C"},
        )  # fmt: skip
    except OSError as error:
        raise InputError("ncu", "", f"{command[0]} cannot be started ({error.strerror})", _INSTALL) from None
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        problem = f"no end after {seconds:g} s"
        raise InputError("ncu", "", problem, "check with nvidia-smi that nothing else uses the GPU") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, said.decode("utf-8", "replace")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
