"""Time of the models: GEMM times, from configurations to kernels, and a sweep from reading to the table.

    python benchmarks/models.py

Writes results/benchmarks/model_times.csv. `limit_s` is the machine's limit where there is one: the parsing of the same
JSON alone; `wanted_s` is what was set as a goal.

The sweep is 12 models × 14 GPUs × 3 phases × 50 shapes through the public API. Every run of it is a new process, as a
user would start it: it reads the configurations and loads (but does not compile) the loops of the time model. Prefill
shapes vary the length, decode shapes the context and the batch, and chunked prefill shapes the position of the chunk in
its prompt.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from measure import ROOT, import_unit, write

from gpuledger.models.time_model import constants_of, gemm_time_s
from gpuledger.models.transformer import chunk, decode, kernels, prefill, read_model
from gpuledger.readers.gpus import find_gpu

REPEATS, SHAPES = 5, 50
FILES = sorted((ROOT / "resources/models").glob("*.json"))
SWEEP = """
import json, time
start = time.perf_counter()
import numpy as np
from gpuledger.readers.gpus import read_gpus
from gpuledger.models.time_model.step import predict, totals
from gpuledger.models.transformer import chunk, decode, join, kernels, prefill, read_model
imported = time.perf_counter()
names = {names}
models = [read_model(name) for name in names]
gpus = [gpu for gpu in read_gpus().values() if not gpu.hypothetical][:14]
lengths = np.unique(np.rint(np.geomspace(16, 1000, 50)).astype(int))[:50]
lengths = np.concatenate([lengths, np.arange(1, 51 - len(lengths))])
work = join([
    prefill(lengths),
    decode(np.linspace(10, 1000, 50).astype(int), np.rint(np.geomspace(1, 256, 50)).astype(int)),
    chunk(256, np.arange(0, 700, 14), 32, 500),
])
rows = [kernels(model, work) for model in models]
found = [totals(predict(own, gpu), own["shape"].to_numpy(), work.shapes)["time_s"] for own in rows for gpu in gpus]
done = time.perf_counter()
assert np.shape(found) == (12 * 14, 150) and np.min(found) > 0
print(json.dumps({{"import": imported - start, "sweep": done - imported, "passes": np.size(found)}}))
"""


def seconds(work: Callable[[], object]) -> float:
    """Return the median time of a call, after one that loads the compiled code."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def row(what: str, items: int, unit: str, wall_s: float, **beside: float) -> dict[str, float | str]:
    """Return a row of the table; `beside` may have the machine's limit and what is wanted."""
    known = {"what": what, "items": items, "unit": unit, "wall_s": wall_s, "items_per_s": items / wall_s}
    return known | {name: beside.get(name, "") for name in ("limit_s", "wanted_s")}


def main() -> None:
    gpu, random = find_gpu("h100-sxm"), np.random.default_rng(0)
    m = (2 ** random.uniform(0, 13.5, 400_000)).astype(int)
    n, k = (2 ** random.uniform(5, 15, (2, 400_000))).astype(int)
    spent = seconds(lambda: gemm_time_s(gpu, constants_of(gpu), m, n, k))
    rows = [row("times of GEMMs on one GPU", len(m), "GEMM", spent)]
    models = [read_model(file) for file in FILES]
    spent = seconds(lambda: [read_model(file) for file in FILES])
    limit = seconds(lambda: [json.loads(file.read_bytes()) for file in FILES])
    rows.append(row("configurations read", len(models), "model", spent, limit_s=limit))
    lengths = np.geomspace(16, 32768, SHAPES).astype(np.int64)
    works = [prefill(lengths), decode(lengths, 64), chunk(512, lengths, 32, lengths)]
    spent = seconds(lambda: [kernels(model, work) for model in models for work in works])
    rows.append(row("kernels of passes", len(models) * len(works) * SHAPES, "pass", spent, wanted_s=1.5))
    unit = import_unit()
    if hasattr(os, "sched_setaffinity"):
        # Two cores on any machine.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    command = [sys.executable, "-c", SWEEP.format(names=[file.stem for file in FILES[:12]])]
    # The first run compiles the loops.
    first, *runs = [json.loads(subprocess.check_output(command, cwd=ROOT)) for _ in range(REPEATS + 1)]
    rows.append(row("first sweep, which compiles the loops", first["passes"], "pass", first["sweep"]))
    spent = median(run["sweep"] for run in runs)
    rows.append(row("sweep from configurations to times", first["passes"], "pass", spent, wanted_s=5))
    rows.append(row("imports of a sweep", 1, "process", median(run["import"] for run in runs)))
    write("model_times", [found | {"import_units": found["wall_s"] / unit} for found in rows])


if __name__ == "__main__":
    main()
