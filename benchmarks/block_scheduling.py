"""Time and memory of the study `block_scheduling` on a large trace: 2 million blocks of 4 warps, 128 MB.

    python benchmarks/block_scheduling.py [--blocks N] [--repeats N]

Each reduction is a process of its own: the library imported, the trace read, paired, compared with the upstream
estimator, the reduced case written. The first compiles what later ones find compiled and is shown apart. `computing`
is all between the opened case and the finished summary, the loading of compiled code included; memory is the peak
resident size of the whole process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import yaml

from gpuledger.readers import neutrino
from gpuledger.studies.block_scheduling.experiment import make_blocks

ROOT = Path(__file__).resolve().parents[1]
CHILD = """
import json, resource, sys, time
start = time.perf_counter()
from pathlib import Path
from gpuledger.studies import block_scheduling
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Dataset
case = Dataset.load(sys.argv[1]).case("block_scheduling", "large")
opened = time.perf_counter()
result = reduce_case(case, block_scheduling.reduce, {})
computed = time.perf_counter()
result.write(Path(sys.argv[1]).parent / "reduced")
written = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
times = {"computing": computed - opened, "process": written - start}
print(json.dumps(times | {"memory": peak, "finding": result.finding}))
"""


def make_trace(folder: Path, blocks: int) -> None:
    """Write a trace whose blocks differ by a tenth, and the dataset.yaml beside it."""
    made, _ = make_blocks(0.1, blocks, 132, 16, 1985, (200, 400), seed=0)
    records = np.repeat(made.first[:, None], 4, axis=1)
    # Warps of a block start and end within a few cycles of one another.
    random = np.random.default_rng(0)
    records["start"][:, 1:] += random.integers(0, 9, (blocks, 3), dtype=np.uint64)
    records["elapsed"][:, 1:] -= random.integers(9, 20, (blocks, 3), dtype=np.uint32)
    sections = [("warp", records[:, :, None])]
    neutrino.write_trace(folder / "large.bin", version="V2", grid=(blocks, 1, 1), block=(128, 1, 1), sections=sections)
    content = {"title": "Made up for a benchmark", "kind": "simulated", "source": "made up", "license": "CC0-1.0"}
    content["studies"] = {"block_scheduling": {"large": {"trace": "large.bin"}}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content), "utf-8")


def measure(folder: Path) -> dict:
    command = [sys.executable, "-c", CHILD, str(folder / "dataset.yaml"), str(ROOT / "config/config.yaml")]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make_trace(arguments.make, arguments.blocks)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "large"
        folder.mkdir()
        # A process of its own: a child's peak of memory starts from its parent's.
        command = [sys.executable, __file__, "--make", str(folder), "--blocks", str(arguments.blocks)]
        subprocess.run(command, check=True)
        size = (folder / "large.bin").stat().st_size
        first, *runs = [measure(folder) for _ in range(arguments.repeats + 1)]
    print(f"{arguments.blocks:,} blocks, {size / 1e6:.0f} MB, median of {len(runs)} processes, and the first")
    for quantity, title, scale in (
        ("computing", "computing, s", 1),
        ("process", "whole process, s", 1),
        ("memory", "peak memory, MB", 1e6),
    ):
        middle, highest = median(run[quantity] for run in runs), max(run[quantity] for run in runs)
        others = f"at most {highest / scale:8.3f}   first {first[quantity] / scale:8.3f}"
        print(f"  {title:18} {middle / scale:8.3f}   {others}")
    print(f"  {runs[0]['finding']}")


if __name__ == "__main__":
    main()
