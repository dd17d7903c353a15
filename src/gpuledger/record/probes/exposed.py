"""How long a user waits for a profile: the same launch alone, under Nsight Compute, and with a probe.

``python -m gpuledger.record.probes.exposed <workload> <size> <output>`` launches a workload twice and writes the host
time of the second launch (ms). Under ncu, this is the time that a user waits.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from gpuledger.errors import InputError
from gpuledger.files import write_csv, write_text
from gpuledger.record import cuda
from gpuledger.record.driver import driver
from gpuledger.record.probes.launch import Runner
from gpuledger.record.probes.workloads import WORKLOADS

#: The metrics that ncu would collect instead of each probe.
METRICS = {
    "block_sched": ("sm__cycles_active.avg", "smsp__cycles_active.avg"),
    "gmem_bytes": ("l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum"),
    "tensorop_count": ("sm__inst_executed_pipe_tensor.sum",),
}
SIZES = {"fill": 4096, "gemm": 2048, "attention": 1024}
COLUMNS = ("workload", "probe", "original_ms", "ncu_ms", "probed_ms", "prologue_ms", "kernel_ms", "epilogue_ms")
#: Runs per process, of which the median counts.
REPEATS = 3


def measure(
    path: str | Path,
    open_runner: Callable[[], Runner],
    count: Callable[[Sequence[str], Sequence[str]], None],
    python: str = sys.executable,
    sizes: Mapping[str, int] = SIZES,
    metrics: Mapping[str, Sequence[str]] = METRICS,
) -> None:
    """Measure waiting times (ms) and write the table for the study of exposed latency.

    Parameters
    ----------
    open_runner : callable
        Opens the GPU, after the other processes have had it to themselves: it may take only one process at a time.
    count : callable
        Runs a command under ncu, or without it if the first argument (the metrics) is empty.
    metrics : mapping
        By probe, what ncu collects; a probe that is not in it is left out.
    """
    waited: dict[str, dict[str, float]] = {}  # by workload and probe; of the workload alone under ""
    for name, size in sizes.items():
        command = [python, "-m", "gpuledger.record.probes.exposed", name, str(size)]
        asked = {"": (), **metrics}
        waited[name] = {probe: _waited(path, command, names, count) for probe, names in asked.items()}
    runner, rows = open_runner(), []
    for name, size in sizes.items():
        for probe in metrics:
            launched = runner.run(WORKLOADS[name](size), probe, 5)
            spent = [launched.prologue_ms, launched.kernel_ms, launched.epilogue_ms]
            values = (name, probe, waited[name][""], waited[name][probe], sum(spent), *spent)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    write_csv(path, COLUMNS, rows)


def _waited(
    path: str | Path,
    command: Sequence[str],
    metrics: Sequence[str],
    count: Callable[[Sequence[str], Sequence[str]], None],
) -> float:
    waits = []
    output = Path(path).with_suffix(".wait")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        for _ in range(REPEATS):
            output.unlink(missing_ok=True)
            count(metrics, [*command, str(output)])
            if not output.is_file():
                raise InputError(path, "", f"{' '.join(command[1:])} wrote no time", "run it by hand and fix the cause")
            waits.append(float(output.read_text("utf-8")))
    finally:
        output.unlink(missing_ok=True)
    return median(waits)


def main(name: str, size: str, output: str) -> None:
    """Launch a workload twice and write the host time of the second launch (ms)."""
    runner = Runner(cuda.open_device())
    launch = runner.launcher(WORKLOADS[name](int(size)))
    launch()
    api = driver()
    api.synchronize()
    api.start_profiler()
    start = time.perf_counter()
    launch()
    api.synchronize()
    waited = time.perf_counter() - start
    api.stop_profiler()
    write_text(output, f"{1e3 * waited!r}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
