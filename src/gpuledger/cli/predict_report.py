"""What ``gpuledger predict`` prints and saves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.cli.terminal import BOUNDS, print_columns, print_json, say, three_digits

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.models.deployment import Deployment, Objective

#: Columns of ``--json``, which has ``notes`` too; of a pipeline, and with drafts, there are more.
COLUMNS = (
    *("gpu", "phase", "batch", "time_s", "tokens_per_s", "tokens_per_s_per_gpu", "memory_bytes", "fits", "bound"),
    *("communication_percent", "judged_percent", "kernel_error_percent", "served_tpot_s", "served_tokens_per_s"),
)
SPLIT = {"tensor": "TP", "pipeline": "PP", "expert": "EP", "replicas": "DP"}
#: Columns of a list of deployments, what they hold, and a factor on it.
_OBJECTIVE = (
    ("TTFT (ms)", "ttft_s", 1e3),
    ("TPOT (ms)", "tpot_s", 1e3),
    ("output tokens/s/GPU", "output_tokens_per_s_per_gpu", 1),
    ("USD per 10⁶ output tokens", "usd_per_million_output_tokens", 1),
    ("J per output token, at most", "joule_per_output_token_at_most", 1),
)
#: What a narrow terminal leaves out.
_SPARE = ("communication (%)", "bubble (%)", "tokens/s", "power (W/GPU)", "limited by")


def evaluate(deployments: Sequence[Deployment], batches: Sequence[int]) -> list[pd.DataFrame]:
    """Return the passes of each deployment with its split."""
    from gpuledger.models.deployment import passes

    return [
        passes(deployment, batches).assign(
            image_tokens=deployment.model.image_tokens(deployment.images),
            **{name: getattr(deployment.parallel, name) for name in SPLIT},
        )
        for deployment in deployments
    ]


def report(deployments: Sequence[Deployment], parts: Sequence[pd.DataFrame], as_json: bool) -> None:
    """Print passes and memory of each deployment."""
    from gpuledger.models.deployment import notes
    from gpuledger.models.power import power_constants

    if as_json:
        rows = machine_table(deployments, parts).to_dict("records")
        said = [[notes(deployment)] * len(part) for deployment, part in zip(deployments, parts, strict=True)]
        print_json([row | {"notes": sentences} for row, sentences in zip(rows, chain(*said), strict=True)])
        return
    say(_describe(deployments[0]))
    for deployment, part in zip(deployments, parts, strict=True):
        say(f"\n{placed(deployment)}{_replicated(deployment)}")
        _print_passes(part, deployment)
        say("Served TPOT: the batch is kept full, the prompts of new requests delay the steps of the others.")
        say(_accuracy(part))
        if part["power_w"].notna().any():
            origin = power_constants(deployment.gpu.name).source.rpartition(": ")[0]
            say(f"Power while kernels run, by a law {origin}; not judged of whole passes.")
        for sentence in notes(deployment):
            say(sentence)
        _print_memory(deployment, int(part["batch"].max()))


def machine_table(deployments: Sequence[Deployment], parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return all passes with the columns of ``--json``."""
    import pandas as pd

    table = pd.concat(parts, ignore_index=True)
    # Which split a row is of matters only if there are several.
    several = [name for name in SPLIT if table[name].nunique() > 1]
    further = ["tokens_per_step", "tpot_s"] if deployments[0].speculation else []
    further += ["bubble_percent"] if (table["pipeline"] > 1).any() else []
    further += ["image_tokens", "vision_time_s"] if deployments[0].images else []
    further += ["power_w"] if table["power_w"].notna().any() else []
    return table[[*COLUMNS, *further, *several]]


def _print_passes(table: pd.DataFrame, deployment: Deployment) -> None:
    unknown = isnan(deployment.gpu.dram_bytes)
    shown = {
        "phase": table["phase"],
        "batch": [f"{value:,}" for value in table["batch"]],
        "time (ms)": [three_digits(value * 1e3) for value in table["time_s"]],
        "of it vision (ms)": [three_digits(value * 1e3) if value else "" for value in table["vision_time_s"]],
        "tokens/s": [three_digits(value) for value in table["tokens_per_s"]],
        "tokens/s/GPU": [three_digits(value) for value in table["tokens_per_s_per_gpu"]],
        "served TPOT (ms)": ["" if isnan(value) else three_digits(value * 1e3) for value in table["served_tpot_s"]],
        "memory (GB)": [f"{value / 1e9:,.1f}" for value in table["memory_bytes"]],
        "fits": ["unknown" if unknown else "yes" if fits else "no" for fits in table["fits"]],
        "limited by": table["bound"].replace(BOUNDS),
        "communication (%)": [f"{value:.1f}" for value in table["communication_percent"]],
        "power (W/GPU)": ["" if isnan(value) else three_digits(value) for value in table["power_w"]],
    }
    if table["power_w"].isna().all():
        del shown["power (W/GPU)"]
    if not deployment.images:
        del shown["of it vision (ms)"]
    if deployment.parallel.pipeline > 1:
        shown["bubble (%)"] = [f"{abs(value):.1f}" for value in table["bubble_percent"]]
    print_columns(shown, ("phase", "fits", "limited by"), _SPARE)


def _accuracy(table: pd.DataFrame) -> str:
    """Say how much of the times is in kernels that were measured, how near they came, and where the rest is from."""
    others = list(dict.fromkeys(name for names in table["other_constants"] for name in names.split(", ") if name))
    rest = f"; constants of the others are from {', '.join(others)}" if others else ""
    error = _span(table["kernel_error_percent"].dropna())
    near = f", with a mean error of {error} on measurements that nothing was fitted to" if error else ""
    return f"{_span(table['judged_percent'])} of the time is in kernels that were measured on this GPU{near}{rest}."


def _span(percent: pd.Series) -> str:
    if percent.empty:
        return ""
    low, high = (f"{value:.0f}" for value in (percent.min(), percent.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _print_memory(deployment: Deployment, batch: int) -> None:
    from gpuledger.models.deployment import largest_batch, largest_context, memory_table

    rows = memory_table(deployment, batch)
    say(f"Memory on the GPU that holds most, at the last token of {batch:,} request{'s' * (batch != 1)}:")
    for part, size, formula in zip(rows["part"], rows["bytes"], rows["formula"], strict=True):
        also = "; the table leaves out the last three" * (part == "sum")
        say(f"{size / 1e9:9,.1f} GB  {part}" + (f": {formula}" if formula else "") + also)
    if isnan(deployment.gpu.dram_bytes):
        say("How many requests fit is unknown: the GPU's table has no dram_capacity.")
        return
    requests, tokens = largest_batch(deployment), largest_context(deployment)
    each = f"{deployment.input_tokens + deployment.output_tokens:,} tokens"
    if tokens:
        say(f"At most {requests:,} requests of {each} fit, or one of {tokens:,} tokens.")
    else:
        say("Not even the weights and one token fit.")


def report_objective(
    table: pd.DataFrame,
    objective: Objective,
    deployments: Sequence[Deployment],
    parts: Sequence[pd.DataFrame],
    as_json: bool,
) -> None:
    """Print those deployments that meet an objective; exit with 1 if there are none, and say what the passes allow."""
    if as_json:
        from gpuledger.models.deployment import notes

        said = {_key(deployment): notes(deployment) for deployment in _shown(table, deployments)}
        rows = table.to_dict("records")
        print_json([row | {"notes": said[tuple(row[name] for name in ("gpu", *SPLIT))]} for row in rows])
    elif not table.empty:
        shown = {"GPU": table["gpu"]}
        for name, title in {**SPLIT, "gpus": "GPUs", "batch": "batch"}.items():
            if name not in SPLIT or (table[name] > 1).any():
                shown[title] = [f"{value:,}" for value in table[name]]
        print_costs(shown, table)
        say("Batches are kept full: the prompts of new requests delay the steps of the others.")
        print_notes(_shown(table, deployments))
    if table.empty:
        leave_unmet(objective, parts, "served_tpot_s")


def print_costs(
    shown: dict[str, Sequence], table: pd.DataFrame, left: Sequence[str] = ("GPU",), ttft: str = "a prompt alone"
) -> None:
    """Print columns, and behind them times and costs of what meets an objective; those named in `left` hold words.

    Below stands what the time to the first token is.
    """
    for title, name, factor in _OBJECTIVE:
        if table[name].notna().any():
            shown[title] = [three_digits(value * factor) for value in table[name]]
    shown["memory (GB)"] = [f"{value / 1e9:,.1f}" for value in table["memory_bytes"]]
    print_columns(shown, left, ("memory (GB)", "GPUs"))
    powered = table["joule_per_output_token_at_most"].notna().any()
    energy = "; energy: all GPUs at their board power all the time" if powered else ""
    say(f"\nPredicted, kernels alone; TTFT: {ttft}{energy}.")


def print_notes(deployments: Sequence[Deployment]) -> None:
    """Print what is assumed of the GPUs of deployments, each sentence with their names."""
    for sentence, names in _notes_of(deployments).items():
        say(f"{', '.join(names)}: {sentence}")


def leave_unmet(objective: Objective, parts: Sequence[pd.DataFrame], tpot: str) -> None:
    """Say what deployments take at least, by that column for the time per output token, and exit with 1."""
    limits = {"TTFT": objective.ttft_s, "TPOT": objective.tpot_s}
    asked = (f"{name} ≤ {1e3 * limit:g} ms" for name, limit in limits.items() if isfinite(limit))
    wanted = f"none of these deployments has {' and '.join(asked)}"
    fitting = [part[part["fits"]] for part in parts if part["fits"].iloc[0] and part["fits"].iloc[1:].any()]
    best = "none fits into memory"
    if fitting:
        ttft = 1e3 * min(part["time_s"].iloc[0] for part in fitting)
        least = 1e3 * min(part[tpot].min() for part in fitting)
        best = f"those that fit into memory have at least a TTFT of {ttft:.3g} ms and a TPOT of {least:.3g} ms"
    say(f"gpuledger: {wanted}; {best}", err=True)
    raise SystemExit(1)


def _key(deployment: Deployment) -> tuple[str, ...]:
    return deployment.gpu.name, *(getattr(deployment.parallel, part) for part in SPLIT)


def _shown(table: pd.DataFrame, deployments: Sequence[Deployment]) -> list[Deployment]:
    """Return the deployments that are in a table."""
    there = set() if table.empty else set(table[["gpu", *SPLIT]].itertuples(index=False, name=None))
    return [deployment for deployment in deployments if _key(deployment) in there]


def _notes_of(deployments: Sequence[Deployment]) -> dict[str, list[str]]:
    """Return what is assumed of the GPUs, each sentence with their names; of each GPU its largest group."""
    from gpuledger.models.deployment import notes

    # Stages of a pipeline exchange little: what a note is about is among those that share a matrix or experts.
    listed = sorted(deployments, key=lambda deployment: deployment.parallel.group)
    widest = {deployment.gpu.name: deployment for deployment in listed}
    found: dict[str, list[str]] = {}
    for name, deployment in widest.items():
        for sentence in notes(deployment):
            found.setdefault(sentence, []).append(name)
    return found


def placed(deployment: Deployment) -> str:
    """Say which GPUs, how many, and how the model is split among them."""
    parallel = deployment.parallel
    # The replicas that whole experts take follow from their degree.
    named = [name for name in SPLIT if name != "replicas" or parallel.gathers]
    split = [f"{name} {getattr(parallel, name)}" for name in named if getattr(parallel, name) > 1]
    return f"{parallel.devices} × {deployment.gpu.title}" + (f" ({', '.join(split)} parallel)" if split else "")


def _replicated(deployment: Deployment) -> str:
    replicas = deployment.parallel.replicas
    return f": {replicas} replicas of all but the experts, each with a batch of its own" if replicas > 1 else ""


def _describe(deployment: Deployment) -> str:
    model, formats, drafts = deployment.model, deployment.precision, deployment.speculation
    active = "" if model.active_parameters == model.parameters else f" ({model.active_parameters / 1e9:.1f} active)"
    used = [model.precision_of(group, formats).formats_of_weights for group in model.layers]
    kept = " and ".join(dict.fromkeys(name for names in used for name in names))
    cache = (formats or model.precision).cache
    kept = f"in {kept}" if kept == cache else f"weights in {kept}, cache in {cache}"
    stored, cached = model.weight_bytes(formats) / 1e9, model.kv_bytes_per_token(formats)
    rest = model.kv_bytes_per_token(formats, full=True)
    beyond = "" if rest == cached else f" ({rest:,} once windows are full)"
    prompt = prompt_of(deployment)
    prompt += f" ({deployment.cached_tokens:,} of them cached)" if deployment.cached_tokens else ""
    seen = f", {model.vision.parameters / 1e9:.2f} more in its vision tower" if model.vision else ""
    towers = f" without the {' and '.join(model.towers)} tower{'s' * (len(model.towers) > 1)}" if model.towers else ""
    drafted = ""
    if drafts:
        drafted = f" {drafts.draft.name}: {drafts.drafted} drafted, {drafts.tokens_per_step:.3g} tokens per step."
    return (
        f"{model.name}: {model.parameters / 1e9:.2f} billion parameters{active}{towers}{seen}, "
        f"{stored:.1f} GB ({kept}), {cached:,} bytes of KV cache per token{beyond}; {prompt}, "
        f"{deployment.output_tokens:,} out.{drafted} Predicted, kernels alone."
    )


def prompt_of(deployment: Deployment) -> str:
    """Say how many tokens a prompt has, and how many of them are its images'."""
    images = deployment.images
    words = f"{deployment.input_tokens:,} tokens in"
    if images:
        tokens, plural = deployment.model.image_tokens(images), "s" * (images.count > 1)
        words += f" ({tokens:,} of them from {images.count} image{plural} of {images.width} × {images.height})"
    return words


def _best(deployments: Sequence[Deployment], parts: Sequence[pd.DataFrame]) -> str:
    """Say which deployment gives most output tokens per GPU, of the batches that fit; nothing where none does."""
    found = []
    for deployment, part in zip(deployments, parts, strict=True):
        steps = part[(part["phase"] == "decode") & part["fits"]]
        if len(steps):
            most = steps.loc[steps["served_tokens_per_s"].idxmax()]
            rate = most["served_tokens_per_s"] / deployment.parallel.devices
            found.append((rate, most["batch"], most["served_tpot_s"], placed(deployment)))
    if not found:
        return ""
    rate, batch, tpot_s, where = max(found, key=lambda entry: entry[0])
    times = f"{three_digits(float(tpot_s) * 1e3)} ms per token"
    return f": up to {three_digits(float(rate))} output tokens/s per GPU at batch {batch:,} ({times}) on {where}"


def save_report(
    deployments: Sequence[Deployment], parts: Sequence[pd.DataFrame], objective: Objective | None, folder: Path
) -> None:
    """Write ``passes`` and ``memory`` as tables, and the deployments' pass, throughput and memory as ``figure``."""
    import matplotlib

    matplotlib.use("agg")
    import pandas as pd

    from gpuledger.ledger import figures, tables
    from gpuledger.models.deployment import memory_table
    from gpuledger.studies.kernel_breakdown import deployment_figures as panels

    first = deployments[0]
    record = {
        **{"kind": "predicted", "label": "predicted by a time model, not measured"},
        **{"dataset": "predict", "study": "deployment", "case": first.model.name},
        "source": f"gpuledger's time model, applied to {first.model.name} and the GPUs' data sheets",
        "inputs": [],
    }
    label = f"{first.model.name}, {prompt_of(first)}, {first.output_tokens:,} out"
    table = machine_table(deployments, parts)
    tables.write(table, record, folder, caption=f"Passes of {label}.", name="passes")
    rows = [
        memory_table(deployment, int(part["batch"].max())).assign(deployment=placed(deployment))
        for deployment, part in zip(deployments, parts, strict=True)
    ]
    memory = pd.concat(rows, ignore_index=True)[["deployment", "part", "bytes", "formula"]]
    tables.write(memory, record, folder, caption=f"Memory of {label}, on the GPU that holds most.", name="memory")
    figures.use_style()
    figure = panels.draw_deployments(deployments, parts, objective)
    figures.headline(figure, f"{label}{_best(deployments, parts)}")
    figures.save(figure, record, folder)
    say(f"Figures and tables: {folder}", err=True)
