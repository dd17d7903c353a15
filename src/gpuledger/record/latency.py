"""Exposed latency on this machine: how long a user waits for gpuledger's probes and for ncu."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuledger.errors import InputError
from gpuledger.record import cuda, metrics, profiler, session
from gpuledger.record.parts import Recorded
from gpuledger.record.probes import exposed
from gpuledger.record.probes.launch import Runner

TABLE = "exposed_latency/probes.csv"
#: When one run counts as hanging; on an H200 it took 2 s (s).
_SECONDS = 60
#: Whose probes they are.
PROBED_WITH = "gpuledger's probes"


def record_latency(folder: str | Path, control: Mapping[str, str]) -> Recorded:
    """Record how long workloads take alone, under ncu and with probes."""
    ncu, settings = profiler.find_ncu(), profiler.Control(**control)
    # A probe without any metric that this ncu knows is left out of the table; the others are measured.
    chosen = {
        probe: metrics.choose([(name,) for name in names], ncu.metrics) for probe, names in exposed.METRICS.items()
    }
    known = {probe: wanted for probe, (wanted, _) in chosen.items() if wanted}
    missing = sorted({name for _, names in chosen.values() for name in names})
    if not known:
        raise InputError("ncu", "--query-metrics", f"it does not list {missing[0]}", "use a newer ncu")

    def count(names: Sequence[str], command: Sequence[str]) -> None:
        if not names:
            session.run_captured(command, "latency", _SECONDS)
            return
        with TemporaryDirectory(prefix="gpuledger-") as scratch:
            table, more = Path(scratch, "table.csv"), session.environment()
            profiler.profile(ncu, names, command, settings, {"": table}, environment=more, seconds=_SECONDS)

    exposed.measure(Path(folder, TABLE), lambda: Runner(cuda.open_device()), count, sys.executable, metrics=known)
    about = {"metrics_missing": missing}
    return Recorded({"exposed_latency": {"probes": {"table": TABLE, "probed_with": PROBED_WITH}}}, about)
