"""Labels of the details page, and the names of the same metrics on the raw page.

Source: the section files of Nsight Compute 2019 to 2024 (SpeedOfLight and its roofline charts, MemoryWorkloadAnalysis,
ComputeWorkloadAnalysis, Occupancy, InstructionStatistics); ``ncu --print-metric-name label-name`` prints both. Labels
whose metric depends on the version (Elapsed Cycles, SM Frequency) are not listed.
"""

#: Name by label and base unit; a label may stand for two metrics of different units.
NAMES = {
    ("Duration", "ns"): "gpu__time_duration.sum",
    ("Compute (SM) Throughput", "%"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    # Before 2022.
    ("Compute (SM) [%]", "%"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SM [%]", "%"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory [%]", "%"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("SOL DRAM", "%"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    # Of 2019 and 2020.1.
    ("SOL FB", "%"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("SOL TEX", "%"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("SOL L2", "%"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory Frequency", "hz"): "dram__cycles_elapsed.avg.per_second",
    ("SOL L1/TEX Cache", "%"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("SOL L2 Cache", "%"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory Throughput", "%"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory Throughput", "byte/s"): "dram__bytes.sum.per_second",
    ("DRAM Throughput", "%"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("L1/TEX Cache Throughput", "%"): "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ("L2 Cache Throughput", "%"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SM Active Cycles", "cycle"): "sm__cycles_active.avg",
    ("DRAM Frequency", "hz"): "dram__cycles_elapsed.avg.per_second",
    ("L1/TEX Hit Rate", "%"): "l1tex__t_sector_hit_rate.pct",
    ("L2 Hit Rate", "%"): "lts__t_sector_hit_rate.pct",
    ("Mem Busy", "%"): "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Max Bandwidth", "%"): "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Mem Pipes Busy", "%"): "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Executed Ipc Active", "inst/cycle"): "sm__inst_executed.avg.per_cycle_active",
    ("Executed Ipc Elapsed", "inst/cycle"): "sm__inst_executed.avg.per_cycle_elapsed",
    ("Issued Ipc Active", "inst/cycle"): "sm__inst_issued.avg.per_cycle_active",
    ("Issue Slots Busy", "%"): "sm__inst_issued.avg.pct_of_peak_sustained_active",
    ("SM Busy", "%"): "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    ("Theoretical Occupancy", "%"): "sm__maximum_warps_per_active_cycle_pct",
    ("Achieved Occupancy", "%"): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("Achieved Active Warps Per SM", "warp"): "sm__warps_active.avg.per_cycle_active",
    ("Executed Instructions", "inst"): "smsp__inst_executed.sum",
    ("Issued Instructions", "inst"): "smsp__inst_issued.sum",
    ("DRAM Bandwidth", "byte/s"): "dram__bytes.sum.per_second",
    ("Theoretical DRAM Bytes Accessible", "byte/cycle"): "dram__bytes.sum.peak_sustained",
    **{
        (f"Predicated-On {op.upper()} Thread Instructions Executed Per Cycle", "inst/cycle"): (
            f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed"
        )
        for op in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma")
    },
    **{
        (f"Theoretical Predicated-On {op.upper()} Thread Instructions Executed", "inst/cycle"): (
            f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum.peak_sustained"
        )
        for op in ("ffma", "dfma", "hfma")
    },
}


def raw_name(label: str, unit: str) -> str:
    """Return the name of the metric that a label stands for with a base unit; other labels as they are."""
    return NAMES.get((label, unit), label)


def raw_names(label: str) -> set[str]:
    """Return all names that a label stands for, or the label itself if it is not one."""
    return {name for (known, _), name in NAMES.items() if known == label} or {label}
