"""Time what a user waits for: a cold default target, a call with nothing to do, one figure made again.

    python benchmarks/workflow.py [--datasets NAME ...]

Works on a copy of the checkout, with what is downloaded already. Machines differ, so each time is also given in import
units: one is a fresh process that imports numpy, pandas, matplotlib and pyarrow. CPU time is that of all processes.
"""

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
FIGURE = "results/published/kernel_overhead/table2/figure.pdf"
IMPORTS = [sys.executable, "-c", "import numpy, pandas, matplotlib.pyplot, pyarrow"]


def timed(command, folder):
    """Run a command; return its wall and CPU time in seconds, and what it said."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--datasets", nargs="*", help="instead of those of config.yaml")
    chosen = parser.parse_args().datasets
    config = ["--config", f"datasets=[{','.join(chosen)}]", "datasets_online=[]"] if chosen else []
    snakemake = [sys.executable, "-m", "snakemake", "--cores", "2"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", ".snakemake", "results", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=ignored)
        timed(IMPORTS, folder)
        unit = median(timed(IMPORTS, folder)[0] for _ in range(5))
        print(f"import unit                      {unit:7.2f} s")

        def line(name, wall, cpu, target):
            print(f"{name:32} {wall:7.2f} s {wall / unit:7.1f} units {cpu:7.1f} CPU s   (at most {target})", flush=True)

        wall, cpu, said = timed([*snakemake, *config], folder)
        line("default target, cold", wall, cpu, "100 s, 100 units without measured tables; 120 s with them")
        jobs = Counter(re.findall(r"^\[\d+ of \d+[^]]*\] (\w+)", said, re.MULTILINE))
        print(f"    {', '.join(f'{number} × {what}' for what, number in jobs.most_common())}")
        idle = [timed([*snakemake, "-n", *config], folder)[:2] for _ in range(5)]
        line("snakemake -n, nothing to do", *map(median, zip(*idle, strict=True)), "1.4 s, 1.6 units")
        again = [timed([*snakemake, "-f", FIGURE, *config], folder)[:2] for _ in range(3)]
        line("one figure made again", *map(median, zip(*again, strict=True)), "6 s")


if __name__ == "__main__":
    main()
