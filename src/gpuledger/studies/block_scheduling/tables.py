"""Tables of block scheduling, and its longer sentences."""

import pandas as pd

from gpuledger.ledger.case_result import CaseResult


def estimates_table(result: CaseResult) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return one row per estimator, with headers and formats for people."""
    rows = [
        ("slots paired", "", "_per_sm", result["resident_blocks_max"]),
        ("oldest block only (upstream)", "neutrino_", "", result["neutrino_longest_list"]),
    ]
    frame = pd.DataFrame(
        [
            {
                "estimator": name,
                "running_cycles": float(result[f"{prefix}running_cycles{suffix}"]),
                "scheduling_cycles": float(result[f"{prefix}scheduling_cycles{suffix}"]),
                "lost_percent": float(result[f"{prefix}lost_percent"]),
                "scheduling_to_running_percent": float(result[f"{prefix}scheduling_to_running_percent"]),
                "resident_blocks_at_most": resident,
            }
            for name, prefix, suffix, resident in rows
        ]
    )
    headers = {
        "running_cycles": "running (slot-cycles/SM)",
        "scheduling_cycles": "between blocks (slot-cycles/SM)",
        "lost_percent": "lost, of both (%)",
        "scheduling_to_running_percent": "between blocks, of running (%)",
        "resident_blocks_at_most": "blocks at once, at most",
    }
    return frame, headers, dict.fromkeys(("lost_percent", "scheduling_to_running_percent"), "{:.1f}")


def experiment_table(experiment: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return the rows of :func:`spread_experiment` with headers and formats for people."""
    headers = {
        "spread_percent": "spread of run times (%)",
        "true_cycles": "true (slot-cycles/SM)",
        "paired_cycles": "slots paired (slot-cycles/SM)",
        "upstream_cycles": "oldest block only (slot-cycles/SM)",
        "upstream_longest_list": "blocks in its list, at most",
    }
    return experiment, headers, {"spread_percent": "{:g}"}


def savings_table(result: CaseResult) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return the kernel's time, what it would be without gaps, and the times of its variants; empty without times."""
    variants = [name.removesuffix("_saving_percent") for name in result.summary if name.endswith("_saving_percent")]
    rows = [("the kernel", "measured", "original")] if "original_time" in result.summary else []
    rows += [("without its gaps", "predicted from the trace", "gap_free")] if rows else []
    rows += [(name, "measured", name) for name in variants if name != "gap_free" and f"{name}_time" in result.summary]
    saved = {"original": 0.0} | {"gap_free": result["gap_free_time_saving_percent"]} if rows else {}
    frame = pd.DataFrame(
        [
            {
                "kernel": kernel,
                "how": how,
                "time_ns": float(result[f"{name}_time"]),
                "saving_percent": saved[name] if name in saved else result[f"{name}_saving_percent"],
            }
            for kernel, how, name in rows
        ]
    )
    headers = {"kernel": "kernel", "how": "", "time_ns": "time (ns)", "saving_percent": "less time (%)"}
    return frame, headers, {"time_ns": "{:,.0f}", "saving_percent": "{:.1f}"}


def saving(result: CaseResult) -> str:
    """Say how much less time the kernel would take without gaps, and how that compares with a persistent kernel."""
    share = result["gap_free_saving_percent"]
    if "original_time" not in result.summary:
        return f"Without its gaps this kernel would take {share:.1f} % less time, all else equal."
    predicted = result["gap_free_time_saving_percent"]
    words = f"The gaps predict that a kernel without them takes {predicted:.1f} % less time, all else equal."
    if "persistent_time" not in result.summary:
        return words
    return f"{words} Measured, the persistent kernel takes {result['persistent_saving_percent']:.1f} % less."
