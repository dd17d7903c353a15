"""Table of warp scheduling, and its longer sentences."""

import re

import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.warp_scheduling.distribution import PERCENTILES


def points_table(points: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str], dict]:
    """Return points of the distribution (of a trace, those at ``PERCENTILES``), headers and formats for people."""
    if len(points) > 100:
        points = points[points["completed_percent"].isin(PERCENTILES)]
    headers = {
        "completed_percent": "warps finished (%)",
        "elapsed_cycles": "elapsed time (cycles)",
        "over_fastest_ratio": "over the fastest (%)",
    }
    formats = {"completed_percent": "{:g}", "over_fastest_ratio": lambda ratio: f"{100 * ratio:+.2f}"}
    return points, headers, formats


#: Read off the axis of Fig. 14C (OSDI 2025): TFLOP/s of a block of FlashAttention-v2 before and after its transition,
#: where two blocks share an SM.
PUBLISHED_SPEEDS = (1.8, 2.2)
#: How datasets call that kernel.
PUBLISHED_KERNEL = re.compile(r"flash[ _-]?att(ention|n)[ _-]?v?2", re.IGNORECASE)


def published_speeds(result: CaseResult) -> str:
    """Say which speeds are published for the kernel of a case; empty for any other kernel."""
    same = PUBLISHED_KERNEL.match(str(result.get("kernel", ""))) and result.get("blocks", "shared") == "shared"
    slow, fast = PUBLISHED_SPEEDS
    return f"published, of an A100: {slow} to {fast} (+{100 * (fast / slow - 1):.0f} %)" if same else ""


def compare_speeds(result: CaseResult) -> str:
    """Return the speeds before and after a transition beside the published ones, as a Markdown table.

    Empty for other kernels than the published one, with which there is nothing to compare.
    """
    if not published_speeds(result):
        return ""
    slow, fast = PUBLISHED_SPEEDS
    rows = [("FlashAttention-v2 on an A100, read off Fig. 14C", slow, fast, 100 * (fast / slow - 1))]
    if result["sped_up_blocks"]:
        values = (result[f"block_speed_{which}_tflops"] for which in ("slow", "fast"))
        rows.append((f"here ({result.provenance['label']})", *values, result["speed_gain_percent"]))
    head = "| speed of a block | before (TFLOP/s) | after (TFLOP/s) | gain (%) |\n|---|---|---|---|\n"
    return head + "\n".join(f"| {name} | {slow:.2g} | {fast:.2g} | {gain:.0f} |" for name, slow, fast, gain in rows)


def describe_speeds(result: CaseResult) -> str:
    """Say how many blocks became faster and when, for a case with clocks of branches."""
    speed = (
        f"Half of the {result['blocks_followed']:,} blocks ran at {result['block_speed_median_tflops']:.3g} TFLOP/s or "
        "more."
    )
    if not result["sped_up_blocks"]:
        return f"{speed} None became faster on its way."
    speed += (
        f" {result['sped_up_blocks']:,} became faster once, from {result['block_speed_slow_tflops']:.3g} to "
        f"{result['block_speed_fast_tflops']:.3g} TFLOP/s (medians)."
    )
    if "tied_blocks" in result.summary:
        speed += (
            f" For {result['tied_blocks']:,} of them the last older block on the SM ended within a few iterations of "
            f"that; by chance it would be {result['tied_by_chance_percent']:.1f} %. Of the blocks without an older one "
            f"beside them, {result['sped_up_without_older']:,} became faster."
        )
    return speed
