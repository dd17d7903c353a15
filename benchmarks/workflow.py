"""Time what a user waits for: a cold default target, a call with nothing to do, one figure made again, 300 cases.

    python benchmarks/workflow.py [--datasets NAME ...]

Works on a copy of the checkout, with what is downloaded already. Writes results/benchmarks/workflow.csv, and rules.csv
with the time of each rule. Machines differ, so each time is also given in import units: one is a fresh process that
imports numpy, pandas, matplotlib and pyarrow. `critical_path_s` is the longest chain of jobs that wait for one another:
no number of cores makes the run shorter.
"""

import argparse
import json
import shutil
import sys
import tempfile
from base64 import b64decode
from functools import cache
from pathlib import Path
from statistics import median

from measure import ROOT, import_unit, run, write

FIGURE = "results/published/kernel_overhead/table2/figure.pdf"
CASES = 300
SNAKEMAKE = [sys.executable, "-m", "snakemake", "--cores", "2"]


def copy(folder):
    ignored = shutil.ignore_patterns(".git", ".venv", ".snakemake", "results", "__pycache__", ".*_cache")
    return shutil.copytree(ROOT, folder, ignore=ignored)


def jobs_of(folder):
    """Return every job of a run as (rule, seconds, outputs, inputs), from Snakemake's own records."""
    found = {}
    for file in (folder / ".snakemake/metadata").rglob("*"):
        if file.is_file():
            # Long names are divided among folders, whose names begin with @.
            name = "".join(part.removeprefix("@") for part in file.relative_to(folder / ".snakemake/metadata").parts)
            record = json.loads(file.read_text("utf-8"))
            job = found.setdefault((record["rule"], *record["log"]), (record, []))
            job[1].append(b64decode(name).decode())
    return [
        (record["rule"], record["endtime"] - record["starttime"], outputs, record["input"])
        for record, outputs in found.values()
    ]


def critical_path(jobs):
    """Return the length of the longest chain of jobs in seconds."""
    maker = {output: number for number, (_, _, outputs, _) in enumerate(jobs) for output in outputs}

    @cache
    def end(number):
        _, seconds, _, inputs = jobs[number]
        return seconds + max((end(maker[name]) for name in inputs if name in maker), default=0)

    return max(map(end, range(len(jobs))))


def many_cases(folder):
    """Make a checkout with one dataset of many cases, as if their results had been made."""
    copy(folder)
    own = folder / "traces/many/kernel_overhead"
    shutil.copytree(ROOT / "traces/published/kernel_overhead", own)
    cases = ", ".join(f"c{number}: {{table: kernel_overhead/table3.csv}}" for number in range(CASES))
    head = "title: t\nkind: published\nsource: s\nlicense: facts\n"
    (own.parent / "dataset.yaml").write_text(f"{head}studies:\n  kernel_overhead: {{{cases}}}\n", "utf-8")
    return ["--config", "datasets=[many]", "datasets_online=[]"]


def touch_results(folder, config):
    said = run(*SNAKEMAKE, "--summary", *config, folder=folder)["said"]
    for line in said.splitlines():
        if line.startswith("results/"):
            path = folder / line.split("\t")[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    run(*SNAKEMAKE, "--touch", *config, folder=folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--datasets", nargs="*", help="instead of those of config.yaml")
    chosen = parser.parse_args().datasets
    config = ["--config", f"datasets=[{','.join(chosen)}]", "datasets_online=[]"] if chosen else []
    unit, rows = import_unit(), []

    def add(what, found, **more):
        row = {"what": what, "wall_s": found["wall_s"], "import_units": found["wall_s"] / unit, "cpu_s": found["cpu_s"]}
        rows.append(row | {"critical_path_s": "", "work_s": ""} | more)

    def repeated(what, *command, folder, times):
        runs = [run(*SNAKEMAKE, *command, folder=folder) for _ in range(times)]
        add(what, {key: median(found[key] for found in runs) for key in ("wall_s", "cpu_s")})

    add("one process that imports numpy, pandas, matplotlib, pyarrow", {"wall_s": unit, "cpu_s": unit})
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy(Path(scratch) / "checkout")
        cold = run(*SNAKEMAKE, *config, folder=folder)
        jobs = jobs_of(folder)
        work = sum(seconds for _, seconds, _, _ in jobs)
        add("default target, cold", cold, critical_path_s=critical_path(jobs), work_s=work)
        repeated("nothing to do", "-n", *config, folder=folder, times=3)
        repeated("one figure made again", "-f", FIGURE, *config, folder=folder, times=3)
        many = many_cases(Path(scratch) / "many")
        repeated(f"dry run of {CASES} cases", "-n", *many, folder=Path(scratch) / "many", times=3)
        touch_results(Path(scratch) / "many", many)
        repeated(f"nothing to do for {CASES} cases", *many, folder=Path(scratch) / "many", times=3)
    write("workflow", rows)
    rules = []
    for rule in sorted({rule for rule, *_ in jobs}):
        seconds = [taken for name, taken, _, _ in jobs if name == rule]
        total = {"rule": rule, "jobs": len(seconds), "work_s": sum(seconds), "import_units": sum(seconds) / unit}
        rules.append(total | {"median_s": median(seconds), "longest_s": max(seconds)})
    write("rules", sorted(rules, key=lambda row: -row["work_s"]))


if __name__ == "__main__":
    main()
