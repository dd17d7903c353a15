"""Tables of block scheduling, and its longer sentences."""

from __future__ import annotations

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


def saving(result: CaseResult) -> str:
    """Say how much faster the kernel would be without gaps, and how much faster measured variants are."""
    words = (
        f"Without its gaps this kernel would take {result['gap_free_saving_percent']:.1f} % less time, all else equal."
    )
    if "original_time" not in result.summary:
        return words
    variants = [name.removesuffix("_saving_percent") for name in result.summary if name.endswith("_saving_percent")]
    measured = [
        f"{name} {result[f'{name}_time']:,.0f} ns ({result[f'{name}_saving_percent']:.1f} % less)"
        for name in variants
        if f"{name}_time" in result.summary
    ]
    return f"{words} Measured: {result['original_time']:,.0f} ns; {'; '.join(measured) or 'no variant'}."
