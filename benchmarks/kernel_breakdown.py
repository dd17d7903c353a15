"""Time of a sweep: 12 models × 14 GPUs × 3 phases × 50 shapes through the public API, from reading to the table.

    python benchmarks/kernel_breakdown.py [--repeats N]

Every run is a new process, as a user would start it: it reads the configurations and loads (but does not compile) the
loops of the time model. Prefill shapes vary the length, decode shapes the context and the batch, and chunked prefill
shapes the position of the chunk in its prompt.
"""

import argparse
import json
import os
import subprocess
import sys
from statistics import median

from measure import ROOT

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    names = sorted(file.stem for file in (ROOT / "resources/models").glob("*.json"))[:12]
    command = [sys.executable, "-c", SWEEP.format(names=names)]
    if hasattr(os, "sched_setaffinity"):
        # Two cores on any machine.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    runs = []
    for _ in range(arguments.repeats + 1):
        done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT)
        runs.append(json.loads(done.stdout))
    # The first run compiles the loops.
    times = [run["sweep"] for run in runs[1:]]
    print(f"{runs[0]['passes']:,} passes on 2 cores; the limit is 5 s")
    print(f"sweep   median {median(times):.2f} s, slowest {max(times):.2f} s")
    print(
        f"import  median {median(run['import'] for run in runs[1:]):.2f} s; with compilation {runs[0]['sweep']:.2f} s"
    )


if __name__ == "__main__":
    main()
