"""Time and memory of `gpuledger.readers.ncu.read` beside `pandas.read_csv`, on one large file.

    python benchmarks/ncu_reader.py [FILE] [--repeats N]

Each reading is a process of its own, the two readers in turn. Without FILE, the 28 MB A100 file of the mirror
(``GPULEDGER_MIRROR``, or ``../shared/mirror``) is unpacked and read, and read packed. Memory is the peak
resident size above that of an interpreter that has imported the same modules.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from statistics import median

MIRROR = Path(os.environ.get("GPULEDGER_MIRROR") or Path(__file__).parents[2] / "shared" / "mirror")
A100 = "raw.githubusercontent.com/leleucas/*/*/linear/nsight1381.csv.zip"
CHILD = """
import json, resource, sys, time
start = time.perf_counter()
import pandas as pd
if sys.argv[1] == "ncu":
    from gpuledger.readers import ncu
imported = time.perf_counter()
baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(ncu.read if sys.argv[1] == "ncu" else pd.read_csv)(sys.argv[2])
read = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"read": read - imported, "process": read - start, "memory": (peak - baseline) * 1024}))
"""


def measure(reader: str, path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", CHILD, reader, str(path)], capture_output=True, check=True, text=True)
    return json.loads(done.stdout)


def compare(path: Path, repeats: int) -> None:
    """Print one line per quantity for a file."""
    runs = {"pandas": [], "ncu": []}
    for _ in range(repeats + 1):
        for reader, taken in runs.items():
            taken.append(measure(reader, path))
    runs = {reader: taken[1:] for reader, taken in runs.items()}  # the first fills the file cache
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, median of {repeats} processes each, in turn")
    for quantity, title in (("process", "whole process, s"), ("read", "reading alone, s"), ("memory", "memory, MB")):
        values = {reader: median(run[quantity] for run in taken) for reader, taken in runs.items()}
        if quantity == "memory":
            values = {reader: value / 1e6 for reader, value in values.items()}
        ratio = values["ncu"] / values["pandas"] if values["pandas"] else float("nan")
        print(
            f"  {title:18} pandas.read_csv {values['pandas']:8.3f}   ncu.read {values['ncu']:8.3f}   ratio {ratio:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.file:
        compare(arguments.file, arguments.repeats)
        return
    packed = next(iter(MIRROR.glob(A100)), None)
    if packed is None:
        sys.exit(f"no {A100} in {MIRROR}: give a FILE, or set GPULEDGER_MIRROR")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(packed) as archive:
        compare(Path(archive.extract(archive.namelist()[0], folder)), arguments.repeats)
    compare(packed, arguments.repeats)


if __name__ == "__main__":
    main()
