"""What ``gpuledger profile`` prints of a timeline: the launches and the time of each kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.cli.terminal import print_json, print_table, say

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.readers.timelines import Timeline


def kernel_times(timeline: Timeline) -> pd.DataFrame:
    """Sum the launches of each kernel of a whole recording, of all GPUs.

    Returns
    -------
    DataFrame
        ``kernel`` (full name), ``launches, time_s, share_percent`` (of the time of all kernels), the longest first.
    """
    own = timeline.kernels[timeline.kernels["kind"] == "kernel"]
    table = own.groupby("kernel", sort=False).agg(launches=("launches", "sum"), time_s=("duration_s", "sum"))
    table = table.sort_values("time_s", ascending=False, kind="stable").reset_index()
    total = table["time_s"].sum()
    return table.assign(share_percent=100 * table["time_s"] / total if total else 0.0)


def print_timeline(path: Path, as_json: bool) -> None:
    """Print the kernels of a timeline."""
    from gpuledger.ledger.case_result import brief
    from gpuledger.readers.timelines import read_timeline
    from gpuledger.studies.kernel_breakdown.formatting import format_time
    from gpuledger.studies.kernel_profile import labels

    timeline = read_timeline(path)
    table = kernel_times(timeline)
    launches, time_s = int(table["launches"].sum()), float(table["time_s"].sum())
    if as_json:
        print_json({"launches": launches, "time_s": time_s, "kernels": table.to_dict("records")})
        return
    gpus = timeline.kernels["device"].nunique()
    words = f"{launches:,} launch{'es' * (launches != 1)} of {len(table):,} kernel{'s' * (len(table) != 1)}"
    where = f" on {gpus} GPUs" if gpus > 1 else ""
    take = "take" if launches != 1 else "takes"
    say(f"{words} {take} {format_time(time_s)}{where} ({timeline.format}, all of it)")
    say()
    numbers = zip(table["launches"], table["time_s"] * 1e6, table["share_percent"], strict=True)
    rows = [
        # Whole numbers are rounded too: in full they would stand out of order among rounded ones.
        [name, f"{count:,}", brief(float(f"{time:.3g}"), 3), brief(share, 3)]
        for name, (count, time, share) in zip(labels(table["kernel"]), numbers, strict=True)
    ]
    print_table(["kernel", "launches", "time (µs)", "share (%)"], rows, right=range(1, 4))
    say("\nA timeline has no counters: ncu says what limits a kernel. For a page of one step with its pauses, put")
    say("the file into a folder of its own in traces/, and let gpuledger new-dataset draft the dataset.yaml.")
