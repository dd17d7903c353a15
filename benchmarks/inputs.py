"""Throughput and memory against size: traces of blocks and of accesses, and reports of Nsight Compute.

    python benchmarks/inputs.py [--gib 0.0625 0.25 1] [--scratch FOLDER]

Writes results/benchmarks/inputs.csv. Each measurement is a process of its own, the second of two: the first compiles
loops and fills the file cache. `process` is all of it, the SHA-256 of the file included. `sum` is the machine's limit:
one numpy sum over the mapped file. `script` is the algorithm of the traces' own scripts (Neutrino, OSDI 2025, tools
block_sched and dmat), a record at a time in plain Python, on a part of the smallest file that is stated in its row.
Reports are a quarter of the size, and are read a part at a time.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from measure import ROOT, import_unit, run, write

SUM = """
import os, sys, numpy
numpy.memmap(sys.argv[1], "<u8", "r", shape=os.path.getsize(sys.argv[1]) // 8).sum()
"""
REDUCE = """
import sys
from importlib import import_module
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Dataset
case = Dataset.load(sys.argv[1]).case(sys.argv[2], "large")
reduce_case(case, import_module(f"gpuledger.studies.{sys.argv[2]}").reduce, threads=2)
"""
PROFILE = "import sys; from gpuledger.studies.kernel_profile.reduction import profile; profile(sys.argv[1])"
SCRIPTS = {
    "block_scheduling": """
import sys, numpy as np
first = np.fromfile(sys.argv[1], [("start", "<u8"), ("elapsed", "<u4"), ("cuid", "<u4")], int(sys.argv[2]), offset=48)
lists, idle, busy = {}, {}, {}
for start, elapsed, sm in first[::8].tolist():
    own = lists.setdefault(sm, [])
    if own and own[0] <= start:
        idle[sm] = idle.get(sm, 0) + start - own.pop(0)
    own.append(start + elapsed)
    busy[sm] = busy.get(sm, 0) + elapsed
""",
    "dmat": """
import sys, numpy as np
counts = {}
for clock, address in np.fromfile(sys.argv[1], "<u8", 2 * int(sys.argv[2]), offset=48).reshape(-1, 2).tolist():
    pages = counts.setdefault(clock, {})
    page = address & ~0xFFFF
    pages[page] = pages.get(page, 0) + 1
""",
}
SCRIPT_RECORDS = 2**21


def measure(scratch: Path, gib: float, unit: float, scripts: bool) -> list[dict]:
    rows = []
    for kind, studies in (("blocks", ["block_scheduling", "warp_scheduling"]), ("accesses", ["dmat"]), ("ncu", [])):
        folder = scratch / kind
        # Made by a process of its own: a child's peak of memory starts from its parent's.
        run(sys.executable, ROOT / "benchmarks/made_inputs.py", kind, gib / 4 if kind == "ncu" else gib, folder)
        file = folder / ("report.csv" if kind == "ncu" else "large.bin")
        size = file.stat().st_size
        commands = {"sum": (SUM, file)} | {study: (REDUCE, folder / "dataset.yaml", study) for study in studies}
        commands |= {
            f"{study}, script": (SCRIPTS[study], file, SCRIPT_RECORDS)
            for study in studies
            if scripts and study in SCRIPTS
        }
        commands |= {"kernel_profile": (PROFILE, file)} if kind == "ncu" else {}
        for name, command in commands.items():
            run(sys.executable, "-c", *command)
            found = run(sys.executable, "-c", *command)
            read = min(size, 16 * SCRIPT_RECORDS) if name.endswith("script") else size
            row = {"input": kind, "what": name, "bytes": read, "bytes_per_s": read / found["wall_s"]}
            rows.append(row | {key: found[key] for key in ("wall_s", "cpu_s", "memory_bytes")})
            rows[-1]["import_units"] = found["wall_s"] / unit
        file.unlink()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, nargs="+", default=[0.0625, 0.25, 1])
    parser.add_argument("--scratch", help="a folder with room for the largest input")
    arguments = parser.parse_args()
    unit = import_unit()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        # The scripts read the same part of a file of any size.
        sizes = sorted(arguments.gib)
        write("inputs", [row for gib in sizes for row in measure(Path(scratch), gib, unit, gib == sizes[0])])


if __name__ == "__main__":
    main()
