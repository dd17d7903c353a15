"""Time and memory from a trace of memory accesses to its grid and its figure.

    python benchmarks/dmat.py [--sizes 1 2 4 8] [--repeats N] [--scratch FOLDER]

Makes traces of so many GiB each (64 Mi records a GiB, 2,048 pages) in a temporary folder, one after another, and
removes them. Each measurement is a process of its own, after one that compiles the loops and fills the file cache. The
reduction, with its loops loaded (numba takes a second), is compared with one numpy sum over the mapped file. A figure's
time is that of the whole process, from its start to the third file format, SHA-256 of the trace included. Memory is the
peak resident size of the whole process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import yaml

from gpuledger.readers import neutrino

PAGES, THREADS, RECORDS = 2048, 256, 256
BASE, MAX_CLOCK = 0x7F0000000000, 272_000
SUM = """
import json, sys, time
import numpy as np
start = time.perf_counter()
np.memmap(sys.argv[1], "<u8", "r", 48).sum()
print(json.dumps({"seconds": time.perf_counter() - start}))
"""
REDUCE = """
import json, sys, time
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Dataset
from gpuledger.studies import dmat
case = Dataset.load(sys.argv[1]).case("dmat", "big")
if sys.argv[2] == "grid":
    dmat.reduce(case)
start = time.perf_counter()
if sys.argv[2] == "grid":
    result = dmat.reduce(case)
else:
    result = reduce_case(case, dmat.reduce, {})
done = {"seconds": time.perf_counter() - start, "records": result["records"]}
if sys.argv[2] == "figure":
    from gpuledger.ledger import figures
    import matplotlib.pyplot as plt
    from gpuledger.studies.dmat.figures import draw_accesses, draw_timeline, tensor_colors
    figures.use_style()
    figure, (timeline, accesses) = plt.subplots(2, 1, sharex=True, figsize=(7.0, 4.9), height_ratios=[5, 1])
    colors = tensor_colors(result.data["tensor"].unique())
    draw_timeline(timeline, result, colors)
    draw_accesses(accesses, result, colors)
    figures.headline(figure, result.finding)
    figures.save(figure, result.provenance, sys.argv[3])
lines = open("/proc/self/status").read().splitlines()
done["memory"] = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
print(json.dumps(done))
"""


def make(folder: Path, gib: int) -> Path:
    """Write a trace in which every thread walks over a part of four tensors, and a dataset.yaml that declares it."""
    folder.mkdir()
    path = folder / "big.bin"
    blocks = gib * 2**30 // (16 * RECORDS * THREADS)
    rng = np.random.default_rng(0)
    order = np.arange(RECORDS, dtype=np.uint64)
    with open(path, "wb") as handle:
        handle.write(np.array([blocks, 1, 1, THREADS, 1, 1, 0, 1], "<u4").tobytes())
        handle.write(np.array([RECORDS * 16 | 1 << 32, 48], "<u8").tobytes())
        records = np.empty((THREADS, RECORDS, 2), "<u8")
        lane = np.arange(THREADS, dtype=np.uint64)[:, None] * np.uint64(16)
        for block in range(blocks):
            wait = rng.integers(0, MAX_CLOCK // RECORDS, (THREADS, RECORDS), np.uint64)
            records[..., 0] = order * np.uint64(MAX_CLOCK // RECORDS) + wait
            page = (order % 4) * (PAGES // 4) + (order + np.uint64(7 * block)) % (PAGES // 4)
            records[..., 1] = np.uint64(BASE) + page * np.uint64(65536) + lane
            records.tofile(handle)
    size = PAGES // 4 * 65536
    tensors = [(name, BASE + i * size, size, (PAGES // 4, 32768)) for i, name in enumerate("abcd")]
    neutrino.write_tensor_trace(
        folder / "tensor.trace", pd.DataFrame(tensors, columns=["tensor", "address", "bytes", "shape"])
    )
    content = {"title": "t", "kind": "simulated", "source": "benchmarks/dmat.py", "license": "CC0-1.0"}
    content["studies"] = {"dmat": {"big": {"trace": path.name, "tensor_trace": "tensor.trace"}}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return folder / "dataset.yaml"


def run(program: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return json.loads(done.stdout) | {"process": time.perf_counter() - start}


def measure(dataset: Path, gib: int, repeats: int) -> None:
    """Print one line for a trace."""
    trace, figure = dataset.parent / "big.bin", dataset.parent / "figure"
    sums, reductions = [], []
    for _ in range(repeats + 1):
        sums.append(run(SUM, trace)["seconds"])
        reductions.append(run(REDUCE, dataset, "grid", figure))
    assert all(done["records"] == gib * 2**26 for done in reductions)
    summed = median(sums[1:])
    seconds = median(done["seconds"] for done in reductions[1:])
    drawn = [run(REDUCE, dataset, "figure", figure) for _ in range(3)]
    process = median(done["process"] for done in drawn)
    peak = max(done["memory"] for done in reductions[1:] + drawn) / 1e6
    print(
        f"{gib:3} GiB  {summed:7.3f} {seconds:9.3f} {seconds / summed:7.1f} {seconds / gib:9.3f}"
        f" {process:11.2f} {peak:12.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where there is room for the largest trace")
    arguments = parser.parse_args()
    print("at most:                       12.0              2.50 (1 GiB)         400")
    print("size     sum (s)  grid (s)   ratio   s a GiB  to figure (s)  peak (MB)")
    for gib in arguments.sizes:
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            measure(make(Path(scratch) / "big", gib), gib, arguments.repeats)


if __name__ == "__main__":
    main()
