"""Time of the GEMM time model: 400,000 random shapes on one GPU, after a call that loads the compiled code.

python benchmarks/gemm_time.py [--repeats N]
"""

import argparse
import time

import numpy as np

from gpuledger.models.time_model import constants_of, gemm_time_s
from gpuledger.readers.gpus import find_gpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    gpu = find_gpu("h100-sxm")
    random = np.random.default_rng(0)
    m, n, k = (
        (2 ** random.uniform(0, 13.5, 400_000)).astype(int),
        *(2 ** random.uniform(5, 15, (2, 400_000))).astype(int),
    )
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        gemm_time_s(gpu, constants_of(gpu), m, n, k)
        seconds.append(time.perf_counter() - start)
    print(f"400,000 shapes: {np.median(seconds[1:]):.2f} s (median of {repeats})")


if __name__ == "__main__":
    main()
