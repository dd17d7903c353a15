"""Which metrics ncu collects: FLOP counters of every precision for the chip, and the metrics of the sweeps."""

import csv
import re
from collections.abc import Collection, Iterable, Sequence

from gpuledger import files
from gpuledger.errors import InputError

#: FLOP metrics by chip, each with its source.
TABLE = files.RESOURCES / "ncu_flop_metrics.csv"

#: FLOP metrics of chips that are not in the table, among the names that ncu lists. Blackwell added packed FP32
#: instructions (fadd2, …).
FLOP_METRIC = re.compile(
    r"smsp__sass_thread_inst_executed_op_[fdh](?:add|mul|fma)2?_pred_on"
    r"|sm__ops_path_tensor\w+|sm__inst_executed_pipe_tensor\w*|sm__thread_inst_executed_pipe_xu_pred_on"
)

#: Counters that the FLOP studies require.
NEEDED = tuple(f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum" for name in ("fadd", "fmul", "ffma"))

#: Metrics of a sweep; of each group of alternative names the first one that ncu knows is collected. These are the
#: metrics of the notes on metric sweeps, their names in newer versions, time, clock and FLOP counters.
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

_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
_TRAFFIC = (
    ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    ("lts__t_bytes.sum",),
    ("l1tex__t_bytes.sum",),
)
#: Metrics of users' programs, by purpose, as groups of alternatives like :data:`SWEEP`. Every purpose includes time and
#: clock; `flops`, `roofline` and `tensor` also include the FLOP metrics of the chip, `stalls` the stall reasons.
PURPOSES: dict[str, tuple[tuple[str, ...], ...]] = {
    "flops": (),
    "roofline": (
        *_TRAFFIC,
        (f"sm__throughput.{_ELAPSED}",),
        (f"gpu__dram_throughput.{_ELAPSED}", f"dram__throughput.{_ELAPSED}"),
        (f"lts__throughput.{_ELAPSED}",),
        (f"l1tex__throughput.{_ELAPSED}",),
        ("dram__cycles_elapsed.avg.per_second",),
        ("dram__bytes.sum.peak_sustained",),
        ("lts__cycles_elapsed.avg.per_second",),
        ("lts__lts2xbar_cycles_active.sum.peak_sustained",),
        ("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained",),
        ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    ),
    "memory": (
        *_TRAFFIC,
        (f"gpu__dram_throughput.{_ELAPSED}", f"dram__throughput.{_ELAPSED}"),
        (f"lts__throughput.{_ELAPSED}",),
        (f"l1tex__throughput.{_ELAPSED}",),
        ("lts__t_sector_hit_rate.pct",),
        ("l1tex__t_sector_hit_rate.pct",),
    ),
    "tensor": (
        ("sm__inst_executed_pipe_tensor.sum",),
        ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",),
    ),
    "stalls": (
        ("sm__warps_active.avg.pct_of_peak_sustained_active",),
        ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
    ),
}
_ALWAYS = (("gpu__time_duration.sum",), ("sm__cycles_elapsed.avg.per_second",))
_STALL = re.compile(r"smsp__average_warps_issue_stalled_\w+_per_issue_active")


def for_purposes(
    purposes: Iterable[str], compute_capability: str, known: Collection[str] | None
) -> tuple[list[str], list[str]]:
    """Choose metrics for a user's program.

    Parameters
    ----------
    purposes : iterable of str
        Keys of :data:`PURPOSES`.
    compute_capability : str
        ``9.0``; may be empty if unknown.
    known : collection of str, optional
        Names that the installed ncu lists, without suffix. Default: no ncu was asked, so the first names are taken.

    Returns
    -------
    metrics, missing : lists of str
        `missing` has what this ncu does not know.
    """
    groups, found, missing = [*_ALWAYS], [], []
    for purpose in purposes:
        groups += PURPOSES[purpose]
        if purpose in ("flops", "roofline", "tensor") and known is not None:
            flops, lacking = flop_metrics(compute_capability, known)
            found, missing = found + flops, missing + lacking
        elif purpose in ("flops", "roofline", "tensor"):
            found += NEEDED
        if purpose == "stalls":
            found += sorted(f"{name}.ratio" for name in known or () if _STALL.fullmatch(name))
    if known is None:
        chosen = [group[0] for group in groups]
    else:
        chosen, lacking = choose(groups, known)
        missing += lacking
    return list(dict.fromkeys([*chosen, *found])), list(dict.fromkeys(missing))


def capability_of(chip: str) -> str:
    """Return the compute capability of a chip by ncu's name; ``gh100`` has ``9.0``."""
    with open(TABLE, encoding="utf-8", newline="") as handle:
        known = {row["chip"]: row["compute_capability"] for row in csv.DictReader(handle)}
    if chip not in known:
        raise InputError("gpuledger.record", "--chip", f"unknown chip {chip!r}", f"choose from {', '.join(known)}")
    return known[chip]


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
        Names that the installed ncu lists for the GPU, without suffix.

    Returns
    -------
    metrics : list of str
        Full names, sorted.
    missing : list of str
        Metrics that the table lists for the chip and this ncu does not know; older versions lack tensor operations.
    """
    with open(TABLE, encoding="utf-8", newline="") as handle:
        listed = [row["metric"] for row in csv.DictReader(handle) if row["compute_capability"] == compute_capability]
    wanted = listed or [name for name in known if FLOP_METRIC.fullmatch(name)]
    found = sorted({f"{name}.sum" for name in wanted if name in known})
    lacking = [name for name in NEEDED if name not in found]
    if lacking:
        problem = f"it does not list {base_name(lacking[0])} for compute capability {compute_capability}"
        raise InputError("ncu", "--query-metrics", problem, "update Nsight Compute")
    return found, sorted(f"{name}.sum" for name in set(listed) - set(known))


def choose(choices: Iterable[Sequence[str]], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Choose the first name that ncu knows from each group of alternatives.

    Returns
    -------
    metrics, missing : lists of str
        `missing` has the first name of each group without a known name.
    """
    metrics, missing = [], []
    for names in choices:
        found = next((name for name in names if base_name(name) in known), None)
        (metrics if found else missing).append(found or names[0])
    return metrics, missing
