"""Which metrics to ask of ncu: FLOP counters of every precision for the chip at hand, and those of the sweeps."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Sequence

from gpuledger import files
from gpuledger.errors import InputError

#: FLOP metrics by chip, each with its source.
TABLE = files.RESOURCES / "ncu_flop_metrics.csv"

#: FLOP metrics of chips that the table does not have, by the names that the tool itself lists. Two packed FP32
#: instructions (fadd2, …) came with Blackwell.
FAMILY = re.compile(
    r"smsp__sass_thread_inst_executed_op_[fdh](?:add|mul|fma)2?_pred_on"
    r"|sm__ops_path_tensor\w+|sm__inst_executed_pipe_tensor\w*|sm__thread_inst_executed_pipe_xu_pred_on"
)

#: Counters that the FLOP studies cannot do without.
NEEDED = tuple(f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum" for name in ("fadd", "fmul", "ffma"))

#: What a sweep counts. Each is a choice of names, of which the first known one is asked for: the metrics of the notes
#: on metric sweeps, what became of them in newer versions, time, clock and FLOP counters.
SWEEP: tuple[tuple[str, ...], ...] = (
    ("gpu__time_duration.sum",),
    ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    ("dram__sectors_read.sum", "dram__sectors_op_read.sum"),
    ("sm__cycles_active.sum",),
    ("sm__cycles_elapsed.avg.per_second",),
    ("sm__inst_executed.sum",),
    ("sm__inst_executed.sum.per_cycle_active",),
    ("sm__inst_executed.sum.pct_of_peak_sustained_elapsed",),
    ("sm__issue_active.sum.pct_of_peak_sustained_elapsed",),
    ("smsp__sass_inst_executed_op_global_st.sum",),
    ("sm__inst_executed_pipe_tensor_op_hmma.sum.pct_of_peak_sustained_active",),
    ("sm__inst_executed_pipe_tensor_op_gmma.sum",),
    ("sm__pipe_tensor_cycles_active.sum.pct_of_peak_sustained_active",),
    *((name,) for name in NEEDED),
)


def base_name(metric: str) -> str:
    """Name of a metric without its suffixes, as ``ncu --query-metrics`` lists it."""
    return metric.partition(".")[0]


def flop_metrics(compute_capability: str, known: Collection[str]) -> tuple[list[str], list[str]]:
    """Choose the FLOP metrics of a chip.

    Parameters
    ----------
    compute_capability : str
        ``9.0``.
    known : collection of str
        Names that the installed ncu lists for the GPU, without suffixes.

    Returns
    -------
    metrics : list of str
        Full names, sorted.
    missing : list of str
        Those that the table has for the chip and this ncu does not know: an older ncu lacks the tensor operations.

    Raises
    ------
    InputError
        When ncu lacks one of fadd, fmul and ffma.
    """
    with open(TABLE, encoding="utf-8", newline="") as handle:
        listed = [row["metric"] for row in csv.DictReader(handle) if row["compute_capability"] == compute_capability]
    wanted = listed or [name for name in known if FAMILY.fullmatch(name)]
    found = sorted({f"{name}.sum" for name in wanted if name in known})
    lacking = [name for name in NEEDED if name not in found]
    if lacking:
        problem = f"it does not list {base_name(lacking[0])} for compute capability {compute_capability}"
        raise InputError("ncu", "--query-metrics", problem, "update Nsight Compute")
    return found, sorted(f"{name}.sum" for name in set(listed) - set(known))


def choose(choices: Iterable[Sequence[str]], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Of every choice of names take the first that ncu knows.

    Returns
    -------
    metrics, missing : lists of str
        `missing` has the first name of each choice of which none is known.
    """
    metrics, missing = [], []
    for names in choices:
        found = next((name for name in names if base_name(name) in known), None)
        (metrics if found else missing).append(found or names[0])
    return metrics, missing
