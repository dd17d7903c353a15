"""Source-level probes compared with Neutrino's binary ones, on the same kernels, where Neutrino is installed.

Neutrino stands between a program and the driver and adds its probes to the kernels that the program loads; see
:mod:`gpuledger.record.probes.plain`. What it writes becomes cases as it is.
"""

import logging
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gpuledger.errors import InputError
from gpuledger.files import write_csv
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.records import saved
from gpuledger.record import cuda, session
from gpuledger.record.parts import Recorded
from gpuledger.record.probes.launch import TOOLS, Runner
from gpuledger.record.probes.workloads import WORKLOADS

LOG = logging.getLogger("gpuledger")
#: By probe, its names in Neutrino's releases, the newest last.
PROBES = {
    "block_sched": ("block_sched",),
    "gmem_bytes": ("gmem_bytes",),
    "tensorop_count": ("tensorop_count", "tensorop"),
}
#: Small: a probe that saves per thread writes 8 bytes for each.
SIZES = {"fill": 1024, "gemm": 1024, "attention": 512}
BENCHMARKS, TRACES = "kernel_overhead_neutrino", "neutrino"
TABLE = f"{TRACES}/compared.csv"
#: Directories in front of a file's name.
_FOLDERS = re.compile(r"""(?<![^\s"'=:])/(?:[^\s"'/]+/)+""")
_PROCESS = re.compile(r"^\[pid\] \d+$", re.MULTILINE)
#: What follows in a process.log is source code of Neutrino, to read the trace with.
_READER = "# Neutrino Auto-Generated Code"
#: Limit for a run, of which ptxas and objdump take most.
_SECONDS = 120


@dataclass(frozen=True)
class Compared:
    """A kernel with a source-level probe and with a binary one."""

    workload: str
    probe: str
    #: Records that were saved.
    records_source: int
    records_binary: int
    #: Median cycles of a warp (``block_sched``), bytes (``gmem_bytes``), or matrix operations of all lanes
    #: (``tensorop_count``).
    value_source: float
    value_binary: float
    #: Registers per thread of the kernel with the probe minus those without it.
    registers_source: int
    registers_binary: int


def record_neutrino(folder: str | Path) -> Recorded:
    """Run every kernel with each probe of both kinds, and once more with Neutrino's ``--benchmark``."""
    folder, runner = Path(folder), Runner(cuda.open_device())
    compared, cases = [], {}
    for name, size in SIZES.items():
        workload = WORKLOADS[name](size)
        for probe in PROBES:
            LOG.info("neutrino: %s, %s", name, probe)
            launched = runner.run(workload, probe)
            place, with_traces = Path(TRACES, name, probe), probe == "block_sched"
            directory = run_neutrino(folder / place, probe, name, size)
            timed = folder / BENCHMARKS / name / workload.name / probe
            keep_logs(run_neutrino(timed, probe, name, size, "--benchmark"), timed, traces=with_traces)
            extra = launched.probed.registers - launched.plain.registers
            compared.append(compare(name, probe, launched.records[probe], extra, directory))
            kept = keep_logs(directory, folder / place, traces=with_traces)
            if kept.results:
                trace = kept.results[0].relative_to(folder).as_posix()
                cases[f"neutrino_{name}"] = {"trace": trace, "kernel": f"{workload.name}, probed by Neutrino"}
    write_csv(folder / TABLE, list(asdict(compared[0])), map(asdict, compared))
    for row in compared:
        if row.records_source != row.records_binary:
            what = (row.workload, row.probe, row.records_source, row.records_binary)
            LOG.warning("%s, %s: %d records with the source-level probe, %d with Neutrino's", *what)
    return Recorded(
        {"kernel_overhead": {"neutrino": {"traces": BENCHMARKS, "compared": TABLE}}, "block_scheduling": cases},
        {"compared": [asdict(row) for row in compared]},
        {
            BENCHMARKS: f"Binary probes of Neutrino on gpuledger's kernels; compared with its own probes in {TABLE}. "
            "Each process launches the probed kernel and then the original, once: times are of first launches.",
            TABLE: "Binary: the first launch of a process, with no L2 flush before it. Source-level: the second, "
            "after an L2 flush.",
        },
    )


def run_neutrino(folder: Path, probe: str, workload: str, size: int, *options: str) -> neutrino.TraceDirectory:
    """Run a workload under Neutrino and open the trace directory that it writes below `folder`."""
    program = shutil.which("neutrino") or "neutrino"
    target = [sys.executable, "-m", "gpuledger.record.probes.plain", workload, str(size)]
    failure = None
    for name in PROBES[probe]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            session.run_captured([program, "-p", name, "--tracedir", str(folder), *options, *target], probe, _SECONDS)
            found = sorted(path.parent for path in folder.glob("*/event.log"))
            if len(found) == 1 and (options or neutrino.open_trace_directory(found[0]).results):
                return neutrino.open_trace_directory(found[0])
            problem = f"wrote {len(found)} trace directories" if len(found) != 1 else "wrote no trace of the launch"
            failure = InputError("neutrino", f"-p {name}", problem, "look for errors in event.log and process.log")
        except InputError as error:
            failure = error
    raise failure


def keep_logs(directory: neutrino.TraceDirectory, folder: Path, *, traces: bool = False) -> neutrino.TraceDirectory:
    """Move what studies read of a trace directory to `folder`, which contains it, and delete the rest.

    Kernels are deleted: they contain code of Neutrino's. Logs lose the folders of this machine and the number of the
    process, which is in the directory's name, too.

    Parameters
    ----------
    traces : bool
        Whether the records are kept; those of single threads take megabytes, and no study reads them.
    """
    made = directory.folder
    for path in sorted(path for path in made.rglob("*") if path.is_file()):
        kept = folder / path.relative_to(made)
        if path.name in ("event.log", "process.log", "kernel.info"):
            text = path.read_text("utf-8", errors="surrogateescape")
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(_without_machine(text, made), "utf-8", errors="surrogateescape")
        elif traces and path.parent.name == "result":
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, kept)
    shutil.rmtree(made)
    return neutrino.open_trace_directory(folder)


def _without_machine(text: str, made: Path) -> str:
    text = text.partition(_READER)[0].replace(f"{made}/", "").replace(sys.executable, Path(sys.executable).name)
    return _PROCESS.sub("[pid] 0", _FOLDERS.sub("", text))


def compare(workload: str, probe: str, own: np.ndarray, registers: int, directory: neutrino.TraceDirectory) -> Compared:
    """Compare the records of the source-level probe with the first trace of a directory.

    Raises
    ------
    InputError
        The trace has no section of the probe's records; no process.log states the registers.
    """
    tool = TOOLS[probe]
    theirs = neutrino.open_trace(directory.results[0], levels=[tool.level]).records(0, tool.dtype)
    logs = [kernel.log for kernel in directory.kernels if kernel.log]
    added = [log.additional_registers for log in logs if log.additional_registers is not None]
    if not added:
        problem = "no process.log states registers with and without the probe"
        raise InputError(directory.folder, "kernel", problem, "check that ptxas is on the PATH")
    counts = [int(_recorded(probe, records).sum()) for records in (own, theirs)]
    return Compared(workload, probe, *counts, _value(probe, own), _value(probe, theirs), registers, added[0])


def _recorded(probe: str, records: np.ndarray) -> np.ndarray:
    """Return which records were saved; of counts, in which zero is a value, those that are not zero."""
    return saved(records) if probe == "block_sched" else _sum_of_fields(records) > 0


def _sum_of_fields(records: np.ndarray) -> np.ndarray:
    return sum(records[name].astype(np.int64) for name in records.dtype.names)


def _value(probe: str, records: np.ndarray) -> float:
    if probe == "block_sched":
        return float(np.median(kept)) if len(kept := records["elapsed"][saved(records)]) else 0.0
    return float(_sum_of_fields(records).sum())
