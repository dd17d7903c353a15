"""What every benchmark measures: wall and CPU time, peak memory, and the same in units of this machine."""

import csv
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results/benchmarks"
IMPORTS = "import numpy, pandas, matplotlib.pyplot, pyarrow"


def run(*command: object, folder: Path = ROOT) -> dict[str, float | str]:
    """Run a command; return its wall and CPU seconds, its peak memory in bytes (of one process), and what it said."""
    start = time.perf_counter()
    child = subprocess.Popen(
        list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{said}")
    wall = time.perf_counter() - start
    return {"wall_s": wall, "cpu_s": used.ru_utime + used.ru_stime, "memory_bytes": used.ru_maxrss * 1024, "said": said}


def install(folder: str, package: str) -> str:
    """Make an environment with a package that this project compares itself with; return its Python."""
    venv.create(folder, with_pip=True)
    python = str(Path(folder) / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
    subprocess.run(command, check=True, capture_output=True)
    return python


def import_unit() -> float:
    """Return the wall time of a fresh process that imports numpy, pandas, matplotlib and pyarrow."""
    runs = [run(sys.executable, "-c", IMPORTS)["wall_s"] for _ in range(6)]
    return median(runs[1:])


def write(name: str, rows: list[dict]) -> None:
    """Write rows as ``results/benchmarks/<name>.csv`` and print them."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with open(RESULTS / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            kept = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}
            writer.writerow(kept)
            print("  ".join(f"{key} {value}" for key, value in kept.items()), flush=True)
