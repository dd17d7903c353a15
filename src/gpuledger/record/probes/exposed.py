"""How long a user waits for a profile: the same launch alone, under Nsight Compute, and with a probe.

``python -m gpuledger.record.probes.exposed <workload> <size> <output>`` launches a workload twice and writes the host
time of the second launch (ms). Under ncu, this is the time that a user waits.
"""

import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from statistics import median

from gpuledger.errors import InputError
from gpuledger.files import write_csv, write_json, write_text
from gpuledger.record import cuda
from gpuledger.record.driver import driver
from gpuledger.record.probes.launch import Runner
from gpuledger.record.probes.workloads import WORKLOADS

LOG = logging.getLogger("gpuledger")
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

    Each step is kept in a folder beside the table until all are finished; another call goes on behind them.

    Parameters
    ----------
    open_runner : callable
        Opens the GPU, after the other processes have had it to themselves: it may take only one process at a time.
    count : callable
        Runs a command under ncu, or without it if the first argument (the metrics) is empty.
    metrics : mapping
        By probe, what ncu collects; a probe that is not in it is left out.
    """
    path, runner = Path(path), cache(open_runner)

    def wait(name: str, names: Sequence[str]) -> list[float]:
        command = [python, "-m", "gpuledger.record.probes.exposed", name, str(sizes[name])]
        return [_waited(path, command, names, count)]

    def run(name: str, probe: str) -> list[float]:
        launched = runner().run(WORKLOADS[name](sizes[name]), probe, 5)
        return [launched.prologue_ms, launched.kernel_ms, launched.epilogue_ms]

    steps: dict[tuple[str, str], Callable[[], list[float]]] = {}
    for name in sizes:
        steps[name, "alone"] = partial(wait, name, ())
        steps |= {(name, f"ncu_for_{probe}"): partial(wait, name, names) for probe, names in metrics.items()}
    steps |= {(name, probe): partial(run, name, probe) for name in sizes for probe in metrics}
    found = _take_all(path.with_suffix(".parts"), steps)
    rows = []
    for name in sizes:
        for probe in metrics:
            (alone,), (counted,), spent = (found[name, how] for how in ("alone", f"ncu_for_{probe}", probe))
            rows.append(dict(zip(COLUMNS, (name, probe, alone, counted, sum(spent), *spent), strict=True)))
    write_csv(path, COLUMNS, rows)
    shutil.rmtree(path.with_suffix(".parts"))


def _take_all(
    kept: Path, steps: Mapping[tuple[str, str], Callable[[], list[float]]]
) -> dict[tuple[str, str], list[float]]:
    """Take the steps that are not kept in the folder yet, one by one, and return what all of them gave (ms)."""
    found = {}
    for number, (step, take) in enumerate(steps.items(), start=1):
        file = kept / f"{'.'.join(step)}.json"
        with suppress(FileNotFoundError, ValueError):
            found[step] = json.loads(file.read_text("utf-8"))
        if step not in found:
            LOG.info("latency: step %d of %d, %s %s", number, len(steps), *step)
            found[step] = take()
            write_json(file, found[step])
    return found


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
