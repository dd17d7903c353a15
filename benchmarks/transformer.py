"""Time from configurations to kernels: every model of resources/models/, three phases, 50 shapes each.

python benchmarks/transformer.py [--repeats N]
"""

import argparse
import time
from statistics import median

import numpy as np
from measure import ROOT

from gpuledger.models.transformer import chunk, decode, kernels, prefill, read_model

SHAPES = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    start = time.perf_counter()
    models = [read_model(file) for file in sorted((ROOT / "resources/models").glob("*.json"))]
    print(f"{len(models)} models read in {time.perf_counter() - start:.3f} s")
    lengths = np.geomspace(16, 32768, SHAPES).astype(np.int64)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        works = [prefill(lengths), decode(lengths, 64), chunk(512, lengths, 32, lengths)]
        rows = sum(len(kernels(model, work)) for model in models for work in works)
        times.append(time.perf_counter() - start)
    print(f"{len(models)} models × {len(works)} phases × {SHAPES} shapes: {rows} rows, {median(times[1:]):.3f} s")
    print("at most 1.5 s")


if __name__ == "__main__":
    main()
