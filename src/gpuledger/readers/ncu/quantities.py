"""What each launch of a report did, as far as the report says: time, work, traffic, shares of peaks, occupancy, stalls.

A quantity that the report does not hold stays empty, and `launch_quantities` names the option of ncu that collects it.
"""

import re

import numpy as np
import pandas as pd

from gpuledger.readers.ncu.flops import count_flops, counter, matrix_instructions
from gpuledger.readers.ncu.report import Report
from gpuledger.readers.ncu.values import Values

SECTOR_BYTES = 32
#: Quantities that a report may lack, and the options of ncu that collect them.
OPTIONS = {
    "time_s": "--section SpeedOfLight (or --metrics gpu__time_duration.sum)",
    "flops": "--metrics smsp__sass_thread_inst_executed_op_{fadd,fmul,ffma}_pred_on.sum (likewise dadd …, hadd …)",
    "tensor_flops": "--metrics regex:sm__ops_path_tensor_src.*sum or --metrics sm__inst_executed_pipe_tensor.sum",
    "dram_bytes": "--section MemoryWorkloadAnalysis (or --metrics dram__bytes.sum)",
    "l2_bytes": "--metrics lts__t_bytes.sum",
    "sm_percent": "--section SpeedOfLight",
    "dram_percent": "--section SpeedOfLight",
    "l2_percent": "--section SpeedOfLight",
    "occupancy_percent": "--section Occupancy",
    "occupancy_limiter": "--section Occupancy",
    "stalls": "--section WarpStateStats",
    "registers": "--section LaunchStats",
    "waves": "--section LaunchStats",
}
_FLOP_COUNTERS = (
    r"__sass_thread_inst_executed_op_[fdh](add|mul|fma)2?_pred_on$|__ops_path_tensor_|inst_executed_pipe_(tensor|xu)"
)
_LIMITS = {
    "blocks": ("launch__occupancy_limit_blocks", "Block Limit SM"),
    "registers": ("launch__occupancy_limit_registers", "Block Limit Registers"),
    "shared memory": ("launch__occupancy_limit_shared_mem", "Block Limit Shared Mem"),
    "warps": ("launch__occupancy_limit_warps", "Block Limit Warps"),
    "barriers": ("launch__occupancy_limit_barriers", "Block Limit Barriers"),
}
_STALL = re.compile(
    r"smsp__average_warps_issue_stalled_(?P<ratio>\w+?)_per_issue_active\.ratio"
    r"|smsp__average_warp_latency_issue_stalled_(?P<latency>\w+?)\.ratio"
    r"|smsp__pcsamp_warps_issue_stalled_(?P<samples>\w+)"
    r"|smsp__warp_issue_stalled_(?P<share>\w+?)_per_warp_active\.pct"
    r"|Stall (?P<label>[A-Z][\w ]+)"
)
_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
_SHARES = {
    "sm_percent": (f"sm__throughput.{_ELAPSED}",),
    "dram_percent": (
        f"gpu__dram_throughput.{_ELAPSED}",
        f"dram__throughput.{_ELAPSED}",
        "dram__bytes.sum.pct_of_peak_sustained_elapsed",
    ),
    "l2_percent": (f"lts__throughput.{_ELAPSED}",),
    "memory_percent": (f"gpu__compute_memory_throughput.{_ELAPSED}",),
    "l1_percent": (f"l1tex__throughput.{_ELAPSED}", "l1tex__throughput.avg.pct_of_peak_sustained_active"),
}
_TENSOR_SHARE = re.compile(
    r"sm__(inst_executed_pipe_tensor|pipe_tensor)\w*\.(sum|avg)\.pct_of_peak_sustained_(?P<how>elapsed|active)"
)


def launch_quantities(report: Report) -> pd.DataFrame:
    """Return what each launch did.

    Parameters
    ----------
    report : Report
        Of any page. In a summary, a row is a kernel: ``launches`` counts its launches, and the other values are
        those of an average launch.

    Returns
    -------
    pandas.DataFrame
        Index launch. ``kernel`` (full name), ``grid``, ``block``, ``grid_blocks``, ``launches``, ``time_s``,
        ``clock_hz``, ``fp64_flops, fp32_flops, fp16_flops, tensor_flops, flops`` (FLOP, flops: all of them),
        ``flops_note``, ``dram_bytes``, ``l2_bytes``, ``sm_percent, dram_percent, l2_percent, memory_percent,
        l1_percent, tensor_percent`` (of the peak, as ncu states them), ``dram_peak_bytes_per_s, l2_peak_bytes_per_s,
        fp32_peak_flop_per_s, fp64_peak_flop_per_s`` (where recorded), ``occupancy_percent``,
        ``theoretical_occupancy_percent``, ``occupancy_limiter``, ``stalls`` (the three largest), ``registers``,
        ``waves`` (per SM), ``tensor_instructions`` (warp instructions of the tensor pipe, without HFMA2 constants),
        ``fadd_instructions``, ``fmul_instructions`` (thread instructions).
        NaN, ``<NA>`` or None where not recorded.

    Raises
    ------
    InputError
        A negative value, a count that is not whole, a unit that a metric cannot have.
    """
    values = Values(report)
    frame = pd.DataFrame(index=report.launches.index)
    frame["kernel"] = report.launches["kernel"].astype(str)
    frame[["grid", "block", "grid_blocks"]] = report.launches[["grid", "block", "grid_blocks"]]
    frame["launches"] = 1
    if "invocations" in report.launches:
        frame["launches"] = report.launches["invocations"].fillna(1).clip(lower=1).astype("int64")
    empty = pd.Series(np.nan, frame.index)

    def known(found: pd.Series | None) -> pd.Series:
        return empty if found is None else found

    frame["time_s"], frame["clock_hz"] = known(values.seconds()), known(values.clock_hz())
    _add_flops(frame, values)
    frame["dram_bytes"] = _traffic(values, "dram__bytes", "dram__sectors", "_{}", "_op_{}")
    frame["l2_bytes"] = _traffic(values, "lts__t_bytes", "lts__t_sectors", "_op_{}")
    for share, names in _SHARES.items():
        frame[share] = known(values.get(*names))
    shares = [match for name in values.names() if (match := _TENSOR_SHARE.fullmatch(name))]
    how = "elapsed" if any(match["how"] == "elapsed" for match in shares) else "active"
    shares = [known(values.get(match.string)) for match in shares if match["how"] == how]
    frame["tensor_percent"] = pd.concat(shares, axis=1).max(axis=1) if shares else empty
    _add_peaks(frame, values)
    frame["occupancy_percent"] = known(values.get("sm__warps_active.avg.pct_of_peak_sustained_active"))
    frame["theoretical_occupancy_percent"] = known(values.get("sm__maximum_warps_per_active_cycle_pct"))
    frame["occupancy_limiter"] = _limiter(values)
    frame["stalls"] = _stalls(values)
    frame["registers"] = known(values.get("launch__registers_per_thread", "Registers Per Thread"))
    frame["waves"] = known(values.get("launch__waves_per_multiprocessor", "Waves Per SM"))
    return frame


def _add_flops(frame: pd.DataFrame, values: Values) -> None:
    wide, kernels = values.counters(_FLOP_COUNTERS), frame["kernel"].to_numpy(object)
    missing = pd.Series(pd.NA, frame.index, dtype="Int64")
    kinds = ("fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops")
    executed = matrix_instructions(wide, kernels, file=values.report.path)
    frame["tensor_instructions"] = missing if executed is None else executed
    for op in ("fadd", "fmul"):
        found = None if wide.empty else counter(wide, op, file=values.report.path)
        frame[f"{op}_instructions"] = missing if found is None else found
    # XU instructions are no FLOPs, and the tensor pipe alone says nothing of other kernels.
    if not len([name for name in wide.columns if "_pipe_xu" not in name]):
        frame[[*kinds, "flops"]] = pd.concat([missing] * 5, axis=1).to_numpy()
        frame[[*kinds, "flops"]] = frame[[*kinds, "flops"]].astype("Int64")
        frame["flops_note"] = "not collected"
        return
    counted = count_flops(wide, kernels, file=values.report.path)
    for kind in kinds:
        frame[kind] = counted[kind]
    # A zero from the tensor path alone says nothing of the CUDA cores.
    silent = counted[[*kinds[:3]]].isna().all(axis=1) & (counted["tensor_flops"] == 0).fillna(False)
    frame["flops"], frame["flops_note"] = counted["total_flops"].mask(silent), counted["note"]


def _traffic(values: Values, total: str, sectors: str, *directions: str) -> pd.Series:
    """Return bytes: the printed total or what was read and written, then sums out of rates, then sectors."""
    found = pd.Series(np.nan, values.launches)
    for name, size in ((total, 1), (sectors, SECTOR_BYTES)):
        pairs = [[f"{name}{direction.format(word)}" for word in ("read", "write")] for direction in directions]
        for read in (lambda counter: values.get(f"{counter}.sum"), values.sum_of):
            for counters in ([name], *pairs):
                parts = [read(counter) for counter in counters]
                if all(part is not None for part in parts):
                    found = found.fillna(sum(parts) * size)
    return found


def _add_peaks(frame: pd.DataFrame, values: Values) -> None:
    """Add the peaks that the roofline sections record, as instructions or bytes per cycle of their unit's clock."""
    for column, clock, factor, names in (
        ("dram_peak_bytes_per_s", "dram__cycles_elapsed.avg.per_second", 1, ("dram__bytes.sum.peak_sustained",)),
        (
            "l2_peak_bytes_per_s",
            "lts__cycles_elapsed.avg.per_second",
            SECTOR_BYTES,
            ("lts__lts2xbar_cycles_active.sum.peak_sustained", "lts__t_sectors.sum.peak_sustained"),
        ),
        ("fp32_peak_flop_per_s", "", 2, ("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained",)),
        ("fp64_peak_flop_per_s", "", 2, ("sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained",)),
    ):
        peak, rate = values.get(*names), values.get(clock) if clock else values.clock_hz()
        frame[column] = np.nan if peak is None or rate is None else factor * peak * rate


def _limiter(values: Values) -> pd.Series:
    """Name what allows the fewest blocks on an SM."""
    limits = {what: found for what, names in _LIMITS.items() if (found := values.get(*names)) is not None}
    if not limits:
        return pd.Series(None, values.launches, dtype=object)
    names, table = np.array(list(limits)), np.column_stack([found.to_numpy() for found in limits.values()])
    distinct, which = np.unique(table, axis=0, return_inverse=True)
    tied = [", ".join(names[row == np.nanmin(row)]) if (row == row).any() else None for row in distinct]
    return pd.Series(np.array(tied, dtype=object)[which.ravel()], values.launches, dtype=object)


def _stalls(values: Values) -> pd.Series:
    """Name the three largest reasons why warps stalled, each with its share of all stalls in percent."""
    kinds: dict[str, dict[str, pd.Series]] = {}
    for name in values.names():
        if match := _STALL.fullmatch(name):
            kind = match.lastgroup
            reason = match[kind].lower().replace(" ", "_")
            if not reason.endswith("not_issued") and reason != "selected":
                kinds.setdefault(kind, {})[reason] = values.get(name)
    if not kinds:
        return pd.Series(None, values.launches, dtype=object)
    found = max(kinds.values(), key=len)
    names = [reason.replace("_", " ") for reason in found]
    table = np.nan_to_num(np.column_stack([values.to_numpy() for values in found.values()]))
    shares = 100 * table / np.maximum(table.sum(axis=1), 1e-300)[:, None]
    largest = np.argsort(-shares, axis=1, kind="stable")[:, :3].tolist()
    texts = [
        ", ".join(f"{names[at]} {row[at]:.0f} %" for at in order if row[at] > 0) or None
        for order, row in zip(largest, shares.tolist(), strict=True)
    ]
    return pd.Series(texts, values.launches, dtype=object)


def missing_options(frame: pd.DataFrame) -> dict[str, str]:
    """Return the quantities that no launch has, and the option of ncu that collects each."""
    return {name: option for name, option in OPTIONS.items() if frame[name].isna().all()}
