"""What ``gpuledger profile`` prints of timelines: the time of each kernel, and what changed against a baseline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuledger.cli.terminal import print_json, print_table, say

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.ledger.case_result import CaseResult
    from gpuledger.readers.timelines import Timeline


def kernel_times(timeline: Timeline, gpu: int) -> pd.DataFrame:
    """Sum the launches of each kernel of a whole recording on one of its GPUs.

    Parameters
    ----------
    gpu : int
        Its number in the recording, -1 where that has none.

    Returns
    -------
    DataFrame
        ``kernel`` (full name), ``launches, time_s, share_percent`` (of the time of all kernels), and, where the
        recording states work, ``tflop_per_s`` and ``tb_per_s``; the longest first.
    """
    from gpuledger.readers.timelines.table import work_rates

    own = timeline.kernels[(timeline.kernels["kind"] == "kernel") & (timeline.kernels["device"] == gpu)]
    table = own.groupby("kernel", sort=False).agg(launches=("launches", "sum"), time_s=("duration_s", "sum"))
    table = table.join(work_rates(own, "kernel"))
    table = table.sort_values("time_s", ascending=False, kind="stable").reset_index()
    total = table["time_s"].sum()
    return table.assign(share_percent=100 * (table["time_s"] / total) if total else 0.0)


def print_timeline(timeline: Timeline, step: CaseResult, as_json: bool) -> None:
    """Print the kernels of a timeline, and what `break_down` of ``kernel_breakdown.timeline_case`` found of a step.

    Both are of the same GPU.
    """
    from gpuledger.ledger.case_result import brief
    from gpuledger.readers.kernel_names import labels
    from gpuledger.studies.kernel_breakdown.formatting import format_time
    from gpuledger.studies.kernel_breakdown.timeline.step import chosen_gpu, gpu_times

    gpus = gpu_times(timeline)
    gpu = chosen_gpu(gpus)
    table = kernel_times(timeline, gpu)
    launches, time_s = int(table["launches"].sum()), float(table["time_s"].sum())
    if as_json:
        names = {"span": "span_s", "kernel_time": "kernel_time_s", "idle_percent": "idle_percent", "steps": "steps"}
        values = {name: step.summary[quantity]["value"] for quantity, name in names.items()}
        about = {name: None if value == "unknown" else value for name, value in values.items()}
        of_gpus = [
            {"device": int(each) if each >= 0 else None, "kernel_time_s": float(time)} for each, time in gpus.items()
        ]
        kernels = table.astype(object).where(table.notna(), None).to_dict("records")
        head = {"device": gpu if gpu >= 0 else None, "gpus": of_gpus, "launches": launches, "time_s": time_s}
        print_json({**head, "step": about, "kernels": kernels})
        return
    words = f"{launches:,} launch{'es' * (launches != 1)} of {len(table):,} kernel{'s' * (len(table) != 1)}"
    where, all_of = (f" on device {gpu}", "all that it ran") if len(gpus) > 1 else ("", "all of it")
    take = "take" if launches != 1 else "takes"
    say(f"{words} {take} {format_time(time_s)}{where} ({timeline.format}, {all_of})")
    if len(gpus) > 1:
        others = [format_time(float(time)) for time in (gpus.drop(gpu).min(), gpus.drop(gpu).max())]
        times = " to ".join(dict.fromkeys(others))
        say(f"Shown is {step['analysed_gpu']}; kernels of {'the other' if len(gpus) == 2 else 'others'} take {times}.")
    say()
    numbers = zip(table["launches"], table["time_s"] * 1e6, table["share_percent"], strict=True)
    rows = [
        # Whole numbers are rounded too: in full they would stand out of order among rounded ones.
        [name, f"{count:,}", brief(float(f"{time:.3g}"), 3), brief(share, 3)]
        for name, (count, time, share) in zip(labels(table["kernel"]), numbers, strict=True)
    ]
    headers = ["kernel", "launches", "time (µs)", "share (%)"]
    for column, header in (("tflop_per_s", "TFLOP/s"), ("tb_per_s", "TB/s")):
        if column in table:
            headers.append(header)
            rows = [
                [*row, "" if math.isnan(rate) else brief(rate, 3)]
                for row, rate in zip(rows, table[column], strict=True)
            ]
    print_table(headers, rows, right=range(1, len(headers)))
    if timeline.has_times:
        found = {"annotation": "by its annotation", "repetition": "as what repeats"}.get(str(step["step_found_by"]))
        say(f"\n{f'A step, found {found}' if found else 'As one step'}: {step.finding}.")
    say("\nA timeline has no counters: ncu says what limits a kernel. --save makes a page of a step with its pauses,")
    say("--baseline compares with another timeline. With a model, in a dataset, kernels are compared with predictions.")


def print_comparison(result: CaseResult, as_json: bool) -> None:
    """Print what :func:`gpuledger.studies.kernel_breakdown.comparison.compare` found."""
    from gpuledger.ledger.case_result import brief
    from gpuledger.ledger.parts import one_part
    from gpuledger.studies.kernel_breakdown.comparison_figures import SMALL, compared_table, component_table

    if as_json:
        names = (
            "before_analysed_gpu",
            "after_analysed_gpu",
            "before_time",
            "after_time",
            "pairs_shorter_percent",
            "time_is",
            "finding",
        )
        about = {name: entry["value"] for name in names if (entry := result.summary.get(name))}
        about = {f"{name}_s" if name.endswith("_time") else name: value for name, value in about.items()}
        lists = {
            name: one_part(result.data, part).to_dict("records")
            for name, part in (("components", "components"), ("kernels", "compared"))
        }
        print_json(about | lists)
        return
    say(result.finding)
    say()
    parts, kernels = component_table(result), compared_table(result)
    whole_ms = 1e3 * max(float(result["before_time"]), float(result["after_time"]))
    # All with the same decimals, five digits of the whole.
    decimals = max(0, 4 - math.floor(math.log10(whole_ms))) if whole_ms > 0 else 3
    columns = ["before_ms", "after_ms", "change_ms"]
    rows = [
        [name, *(f"{value:.{decimals}f}" for value in values)]
        for name, *values in parts[["component", *columns]].to_numpy(object)
    ]
    headers = [str(result["time_is"]), "before (ms)", "after (ms)", "change (ms)"]
    print_table(headers, rows, right=range(1, 4))
    large = kernels[kernels["change_ms"].abs() >= SMALL / 10 * whole_ms]
    say()
    rows = []
    for row in large.to_dict("records"):
        launches = [
            f"{row[f'{name}_launches']:,} × {brief(row[f'{name}_launch_us'], 3)}" if row[f"{name}_launches"] else "–"
            for name in ("before", "after")
        ]
        rows.append([row["kernel"], row["class"], *launches, f"{row['change_ms']:.{decimals}f}"])
    headers = ["kernel", "class", "before (launches × µs)", "after", "change (ms)"]
    if rows:
        print_table(headers, rows, right=range(2, 5), spare=["class"])
    if rest := len(kernels) - len(large):
        if rows:
            say()
        say(f"{rest:,} kernel{'s' * (rest != 1)} changed by less than {SMALL / 10:.2%} of a step".replace("%", " %"))
