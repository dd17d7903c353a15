"""Nsight Compute's command line: find it, query its version and metrics, run it on a workload."""

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
from gpuledger.record import designs, failures
from gpuledger.record.metrics import NEEDED

#: The oldest version for which all options used here were checked.
OLDEST = (2022, 3)
#: Where installers put ncu if not on the PATH.
PLACES = ("usr/local/cuda*/bin", "opt/nvidia/nsight-compute/*", "usr/local/NVIDIA-Nsight-Compute*")
#: Columns that identify the machine and the run but say nothing about a launch; they are removed.
PRIVATE = ("Process ID", "Process Name", "Host Name")
#: The GPU's name, and all columns that are of the machine, alike for every launch. ncu 2025.3 prints 180 of them.
_GPU = "device__attribute_display_name"
_MACHINE = re.compile(r"(?:device__attribute|c2clink_|numa_|nvlink_)_")
#: Columns of the launch itself: its identifiers and sizes, whose names are words, and its configuration.
_LAUNCH = re.compile(r"launch__|(?!.*__)")
#: Columns of NVTX ranges. Their cells have threads, and ranges as ``"<default domain>:<name>:none:none:none:none"``.
_RANGES = re.compile(r":(?:Push/Pop|Start/Stop)_Range:")
#: Count the launches between cudaProfilerStart and cudaProfilerStop; and print the NVTX ranges of each.
BETWEEN_CALLS = ("--profile-from-start", "off")
WITH_RANGES = (*BETWEEN_CALLS, "--nvtx")
_INSTALL = "install Nsight Compute (with the CUDA toolkit, or alone) and put ncu on the PATH"
_QUERY_SECONDS = 120


@dataclass(frozen=True)
class Control:
    """How ncu controls the GPU while it counts; stored with every recording."""

    #: {"none", "base"}: ``base`` locks the SM clock to its base value, ``none`` leaves the clocks as they are.
    clock: str = "none"
    #: {"all", "none"}: ``all`` flushes the caches before every pass, so that DRAM traffic does not depend on earlier
    #: kernels.
    cache: str = "all"
    replay: str = "kernel"  # how a launch is repeated when its counters do not fit into one pass

    def options(self) -> list[str]:
        return ["--clock-control", self.clock, "--cache-control", self.cache, "--replay-mode", self.replay]


@dataclass(frozen=True)
class Ncu:
    """An installed ncu."""

    program: str
    version: str  # ``2025.3.1``
    metrics: frozenset[str]  # base names of the metrics that it supports on the GPU


@dataclass(frozen=True)
class Counted:
    """Summary of a run of ncu."""

    launches: int
    absent: tuple[str, ...]  # requested metrics without a value


def find_program() -> str | None:
    """Path of ncu: on the PATH, else the newest installation; ``None`` if there is none."""
    if found := shutil.which("ncu"):
        return found
    paths = [path for place in PLACES for path in Path("/").glob(f"{place}/ncu") if os.access(path, os.X_OK)]
    return max(map(str, paths), key=_numbers, default=None)


@cache
def find_ncu(chip: str = "") -> Ncu:
    """Find ncu, check its version and query the metrics that it supports.

    Parameters
    ----------
    chip : str
        A chip by ncu's name (``gh100``), for which no GPU is needed; default: this machine's GPU.
    """
    program = find_program()
    if program is None:
        raise InputError("ncu", "", "Nsight Compute is not installed", _INSTALL)
    said = _run([program, "--version"], _QUERY_SECONDS)[1]
    match = re.search(r"Version (\d+(?:\.\d+)+)", said)
    if not match:
        raise InputError("ncu", "--version", f"instead of a version it prints {failures.last_words(said)!r}", _INSTALL)
    version = match[1]
    if _numbers(version)[: len(OLDEST)] < OLDEST:
        problem = f"version {version} is too old: at least {'.'.join(map(str, OLDEST))} is needed"
        raise InputError("ncu", "--version", problem, "install a newer Nsight Compute")
    which = ("--chips", chip) if chip else ("--devices", "0")
    status, said = _run([program, "--query-metrics", *which], _QUERY_SECONDS)
    metrics = listed_metrics(said)
    if status or not metrics:
        problem, remedy = failures.explain(said) or (
            f"it lists no metrics for {chip or 'the GPU'}: {failures.last_words(said)}",
            f"update Nsight Compute to a version that supports {chip or 'this GPU'}",
        )
        raise InputError("ncu", "--query-metrics", problem, remedy)
    return Ncu(program, ".".join(version.split(".")[:3]), metrics)


def listed_metrics(said: str) -> frozenset[str]:
    """Metric names in the output of ``ncu --query-metrics``: the first word of each line, without suffixes."""
    return frozenset(re.findall(r"^([a-z][a-z0-9]*__\w+)\b", said, re.MULTILINE))


def command_line(
    program: str,
    metrics: Sequence[str],
    target: Sequence[str],
    control: Control,
    log: str | Path,
    options: Sequence[str] = BETWEEN_CALLS,
) -> list[str]:
    """Build the command that collects `metrics`.

    Parameters
    ----------
    target : sequence of str
        The program's command.
    log : path
        File for ncu's table, separate from the program's output.
    options : sequence of str
        Which launches to count, and what else to print; default: :data:`BETWEEN_CALLS`.
    """
    return [
        program,
        *("--csv", "--page", "raw", "--print-units", "base"),
        *control.options(),
        *("--target-processes", "all", *options),
        *("--metrics", ",".join(metrics)),
        *("--log-file", str(log)),
        *target,
    ]


def profile(
    ncu: Ncu,
    metrics: Sequence[str],
    target: Sequence[str],
    control: Control,
    paths: Mapping[str, Path],
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = 1200,
    kept: Path | None = None,
) -> dict[str, Counted]:
    """Run ncu and write its table for each NVTX range of the target, complete and without the machine's name.

    Parameters
    ----------
    ncu, metrics, target, control
        See :func:`command_line`.
    paths : mapping
        The CSV to write, by the name of the range; an empty name alone stands for all launches.
    kept : path, optional
        Where ncu's whole table goes if it cannot be split: GPU time may not be had again.

    Returns
    -------
    dict
        By range, without those that the target had no time for.
    """
    first = next(iter(paths.values()))
    with TemporaryDirectory(prefix="gpuledger-") as folder:
        log = Path(folder, "ncu.csv")
        options = BETWEEN_CALLS if "" in paths else WITH_RANGES
        command = command_line(ncu.program, metrics, target, control, log, options)
        status, said = _run(command, seconds, environment)
        table = log.read_text("utf-8", errors="replace") if log.is_file() else ""
    late = [point for line in said.splitlines() for point in line.partition(designs.TIME_IS_UP)[2].split()]
    try:
        if status or "==ERROR==" in table:
            # The workload's own message comes first: ncu only reports that it returned an error code.
            problem, remedy = failures.explain(f"{said}\n{table}") or (
                f"ncu failed (status {status}): {failures.last_words(f'{table}{said}')}",
                "fix the cause and record again",
            )
            raise InputError(first, "ncu", problem, remedy)
        made = {
            name: publishable(table, metrics, path, within=name) for name, path in paths.items() if name not in late
        }
    except InputError as error:
        if kept is None or '"ID"' not in table:
            raise
        write_text(kept, table)
        remedy = f"{error.remedy}; ncu's whole table is kept in {kept.parent.name}/{kept.name}"
        raise InputError(error.file, error.place, error.problem, remedy) from None
    for name, (text, _) in made.items():
        write_text(paths[name], text)
    return {name: counted for name, (_, counted) in made.items()}


def publishable(
    table: str,
    metrics: Sequence[str],
    path: str | Path,
    whole: bool = True,
    within: str = "",
    unrequested: bool = False,
) -> tuple[str, Counted]:
    """Extract the table from ncu's output, without ncu's messages and the columns that nobody asked for.

    Beside `metrics`, the table has what identifies and describes the launches, and the GPU's name.

    Parameters
    ----------
    table : str
        ncu's log.
    metrics : sequence of str
        Those that were requested.
    whole : bool
        False if ncu was interrupted: a truncated last row is left out.
    within : str
        Only launches in the NVTX range of this name; default: all.
    unrequested : bool
        Keep what ncu adds to the metrics, such as ``.avg``, ``.max`` and ``.min`` of a ``.sum``, but for columns that
        describe the machine.

    Raises
    ------
    InputError
        No launch, no value of any metric or of a requested fadd, fmul or ffma counter, a truncated row.
    """
    lines = [line for line in table.splitlines() if line.strip() and not line.startswith("==")]
    start = next((number for number, line in enumerate(lines) if line.lstrip("\ufeff").startswith('"ID"')), None)
    if start is None:
        problem, remedy = failures.explain(table) or ("ncu wrote no table", "check ncu's options and record again")
        raise InputError(path, "ncu", problem, remedy)
    header, *rows = csv.reader(lines[start:])
    if not whole and rows and len(rows[-1]) != len(header):
        del rows[-1]
    if short := next((number for number, row in enumerate(rows) if len(row) != len(header)), None):
        raise InputError(path, f"row {short + 1}", "ncu's table is truncated", "record again")
    if within:
        ranges = [place for place, name in enumerate(header) if _RANGES.search(name)]
        rows = [row for row in rows if not row[0].isdigit() or any(f":{within}:" in row[place] for place in ranges)]
    launches = [row for row in rows if row[header.index("ID")].isdigit()]
    if not launches:
        problem, remedy = failures.explain("No kernels were profiled")
        raise InputError(path, f"ncu, range {within}" if within else "ncu", problem, remedy)
    counted = {
        metric
        for metric in metrics
        if metric in header and any(row[header.index(metric)] not in ("", "n/a") for row in launches)
    }
    absent = [metric for metric in metrics if metric not in counted]
    if lacking := [metric for metric in absent if metric in NEEDED or not counted]:
        problem = f"ncu has no value of {lacking[0]} for any launch"
        raise InputError(path, "ncu", problem, "use a newer ncu: its list of metrics does not match the GPU")
    wanted = {_GPU, *metrics}
    kept = [
        place
        for place, name in enumerate(header)
        if name not in PRIVATE
        and not _RANGES.search(name)
        and (name in wanted or (not _MACHINE.match(name) if unrequested else _LAUNCH.match(name)))
    ]
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([row[place] for place in kept] for row in [header, *rows])
    return text.getvalue(), Counted(len(launches), tuple(absent))


def _run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command in the C locale; return its status and output. Its children are killed with it on a timeout."""
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
        problem = f"not finished after {seconds:.0f} s"
        raise InputError("ncu", "", problem, "check with nvidia-smi that nothing else uses the GPU") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, said.decode("utf-8", "replace")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
