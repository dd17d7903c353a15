"""Time of the GEMM time model, and its judgement against measurements.

    python benchmarks/gemm_time.py [--repeats N] [GPU=TABLE ...]

The time is that of 400,000 random shapes on one GPU, after a call that loads the compiled code. A table
is a file of AIConfigurator, such as a100-sxm-80gb=.../systems/data/a100_sxm/gemm/vllm/0.14.0/gemm_perf.parquet, with
the columns gemm_dtype, m, n, k and latency (ms): the constants are fitted to the half of its shapes that is not held
back, and judged by the other; where there are several GPUs, also by transferring each one's to the others.
(`benchmarks/time_constants.py` makes resources/time_constants.csv.)
"""

import argparse
import dataclasses
import itertools
import time
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.models.time_model import Constants, constants_of, fit_constants, gemm_time_s, held_back, transferred
from gpuledger.readers.gpus import find_gpu

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8_block"}
COLUMNS = ("m", "n", "k", "latency")
LARGE_FLOP = 1e10


def judged(gpu, constants: Constants, held: pd.DataFrame, precision: str) -> str:
    """Return the errors of one GPU's held-back shapes, in words."""
    m, n, k, latency_ms = (held[name].to_numpy() for name in COLUMNS)
    error = np.abs(gemm_time_s(gpu, constants, m, n, k, 1, precision) / (latency_ms * 1e-3) - 1)
    large = 2.0 * m * n * k >= LARGE_FLOP
    return f"MAPE {error.mean():.2%}, median {np.median(error):.2%}, from 10^10 FLOP on {error[large].mean():.2%}"


def fitted(gpu, path: Path) -> dict[str, tuple[Constants, pd.DataFrame]]:
    """Fit one table's precisions to the half that is not held back, and return them with the half that is."""
    table = pd.read_parquet(path, columns=["gemm_dtype", *COLUMNS])
    found = {}
    for name, precision in PRECISIONS.items():
        rows = table[table["gemm_dtype"] == name]
        if rows.empty:
            continue
        held = held_back(*(rows[size].to_numpy() for size in "mnk"))
        m, n, k, latency_ms = (rows[column].to_numpy()[~held] for column in COLUMNS)
        start = time.perf_counter()
        constants = fit_constants(gpu, m, n, k, latency_ms * 1e-3, precision)
        seconds = time.perf_counter() - start
        print(f"{gpu.name} {precision}: {judged(gpu, constants, rows[held], precision)} (fitted in {seconds:.1f} s)")
        where = "/".join(path.parts[-5:])
        source = f"fitted to {len(m)} of {len(rows)} shapes of AIConfigurator: {where}"
        found[precision] = dataclasses.replace(constants, source=source), rows[held]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="GPU=TABLE")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    gpu = find_gpu("h100-sxm")
    random = np.random.default_rng(0)
    m, n, k = (
        (2 ** random.uniform(0, 13.5, 400_000)).astype(int),
        *(2 ** random.uniform(5, 15, (2, 400_000))).astype(int),
    )
    seconds = []
    for _ in range(arguments.repeats + 1):
        start = time.perf_counter()
        gemm_time_s(gpu, constants_of(gpu), m, n, k)
        seconds.append(time.perf_counter() - start)
    print(f"400,000 shapes: {np.median(seconds[1:]):.2f} s (median of {arguments.repeats})")

    results = {}
    for item in arguments.tables:
        name, _, path = item.partition("=")
        gpu = find_gpu(name)
        results[gpu.name] = fitted(gpu, Path(path))
    for donor, other in itertools.permutations(results, 2):
        for precision in results[donor].keys() & results[other].keys():
            constants = transferred(results[donor][precision][0], find_gpu(donor), find_gpu(other))
            errors = judged(find_gpu(other), constants, results[other][precision][1], precision)
            print(f"{precision} of {donor} transferred to {other}: {errors}")


if __name__ == "__main__":
    main()
