"""What ``gpuledger predict --disaggregate`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuledger.cli.predict_report import SPLIT, leave_unmet, print_costs, print_notes
from gpuledger.cli.terminal import print_json, say, three_digits

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.models.deployment import Deployment, Objective


def report_disaggregated(
    table: pd.DataFrame,
    objective: Objective,
    deployments: Sequence[Deployment],
    parts: Sequence[pd.DataFrame],
    as_json: bool,
) -> None:
    """Print workers that meet an objective, beside deployments that do both; exit with 1 if there are none."""
    if table.empty:
        if as_json:
            print_json([])
        leave_unmet(objective, parts, "tpot_s")
    used = {
        kind: [
            next(one for one in deployments if one.gpu.name == row["gpu"] and _split(one) == _named(row, kind))
            for row in table.to_dict("records")
        ]
        for kind in ("prefill", "decode")
    }
    listed = list({id(one): one for kind in used.values() for one in kind}.values())
    if as_json:
        from gpuledger.models.deployment import notes

        said = {id(one): notes(one) for one in listed}
        pairs = zip(table.to_dict("records"), used["prefill"], used["decode"], strict=True)
        print_json([row | {"notes": list(dict.fromkeys(said[id(a)] + said[id(b)]))} for row, a, b in pairs])
        return
    shown: dict[str, Sequence] = {"GPU": table["gpu"]}
    for kind, title in (("prefill", "for prompts"), ("decode", "that decode")):
        counts = table[f"{kind}_workers"]
        shown[title] = [f"{count} × {one.parallel.label}" for count, one in zip(counts, used[kind], strict=True)]
    shown["limited by"] = table["limited_by"]
    for name, title in {"gpus": "GPUs", "batch": "batch"}.items():
        shown[title] = [f"{value:,}" for value in table[name]]
    print_costs(shown, table, left=list(shown)[:4], ttft="a prompt alone and its cache's way")
    say("Workers that decode keep their batches full; caches travel while other prompts are processed.")
    for name, rate in table.groupby("gpu", sort=False)["together_output_tokens_per_s_per_gpu"].first().items():
        best = "do not meet the objective"
        if rate == rate:  # NaN: none meets it
            best = f"serve at most {three_digits(rate)} output tokens/s/GPU"
        say(f"{name}: deployments that process prompts and decode {best}.")
    print_notes(listed)


def _split(deployment: Deployment) -> tuple[int, ...]:
    return tuple(getattr(deployment.parallel, name) for name in SPLIT)


def _named(row: dict, kind: str) -> tuple[int, ...]:
    return tuple(row[f"{kind}_{name}"] for name in SPLIT)
