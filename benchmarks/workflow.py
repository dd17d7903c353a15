"""Time what a user waits for: a cold default target, a call with nothing to do, one figure made again.

Run from the checkout: python benchmarks/workflow.py. Works on a copy of the checkout; prints medians of wall time.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURE = "results/published/kernel_overhead/table2/figure.pdf"


def timed(folder, *arguments):
    command = [sys.executable, "-m", "snakemake", *arguments]
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", ".snakemake", "results", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=ignored)
        print(f"default target, cold, --cores 2     {timed(folder, '--cores', '2'):6.2f} s   (at most 60)")
        idle = statistics.median(timed(folder, "-n") for _ in range(5))
        print(f"snakemake -n, nothing to do         {idle:6.2f} s   (at most 1.5)")
        figure = statistics.median(timed(folder, "--cores", "2", "-f", FIGURE) for _ in range(3))
        print(f"one figure made again               {figure:6.2f} s   (at most 6)")


if __name__ == "__main__":
    main()
