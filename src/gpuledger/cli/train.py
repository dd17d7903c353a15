"""``gpuledger train``: how long a training step would take on GPUs, and what memory it needs."""

from __future__ import annotations

import itertools
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.options import MAX_ROWS, check_count, count, counts, gpu_file_option, needed_gpus
from gpuledger.cli.terminal import json_option, print_columns, print_json, say, three_digits
from gpuledger.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.models.training import TrainingRun
    from gpuledger.models.transformer import Model
    from gpuledger.readers.gpus import Gpu

#: Columns of ``--json``.
COLUMNS = (
    *("gpu", "gpus", "sequence_tokens", "micro_batch", "accumulation", "recompute", "precision", "gathered"),
    *(
        "implementation",
        "step_s",
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "mfu_percent",
        "gemm_s",
        "attention_s",
        "other_s",
    ),
    *("exposed_s", "communication_s", "power_s", "clock_mhz", "memory_bytes", "fits", "largest_micro_batch"),
)
#: What parts of the memory are called.
_PARTS = {
    "state_bytes": "parameters, gradients and AdamW's moments, 16 bytes a parameter, this GPU's share",
    "gathered_bytes": "gathered parameters: outside layers, with gradients, and of two layers",
    "saved_weight_bytes": "bf16 copies of parameters that the backward pass reads",
    "activation_bytes": "activations that the backward pass reads",
    "largest_bytes": "logits, and their gradient or a layer that is computed again",
}
#: Where operators run one by one, as ``transformers`` calls them.
_EAGER_PARTS = _PARTS | {
    "state_bytes": "parameters and AdamW's moments, this GPU's share",
    "largest_bytes": "logits, what the loss makes of them, or gradients and the update",
}


@click.command(
    short_help="How long a training step would take on GPUs.",
    epilog="Example: gpuledger train Llama-3.1-8B --gpu h100-sxm --sequence 4096 --micro-batch 1,2,4 --recompute",
)
@click.argument("config")
@click.option("--gpu", "gpu_ids", multiple=True, help="GPU (see gpuledger gpus); several: a100,h100-sxm.")
@gpu_file_option
@counts("--gpus", default="8", show_default=True, help="GPUs that share all state; several: 8,16,64.")
@counts("--sequence", default="2048", show_default=True, help="Tokens of a sequence; several: 2048,8192.")
@counts("--micro-batch", default="1", show_default=True, help="Sequences of a pass on each GPU; several: 1,2,4.")
@count("--accumulation", default="1", show_default=True, help="Passes of a step.")
@click.option("--recompute", is_flag=True, help="Layers keep their input only (activation checkpointing).")
@click.option("--precision", type=click.Choice(["bf16", "fp8"]), default="bf16", help="Of the layers' products.")
@click.option(
    "--gathered",
    type=click.Choice(["bf16", "fp32"]),
    default="bf16",
    help="How parameters travel; fp32: and are rounded for each product, as under autocast.",
)
@click.option(
    "--implementation",
    type=click.Choice(["fused", "transformers"]),
    default="fused",
    show_default=True,
    help="Norms, rotation, activation, loss: a kernel each, or the operators of Hugging Face's transformers.",
)
@click.option("--network", type=float, help="Gbit/s from a node of eight GPUs to the others; needed with more than 8.")
@json_option
def train(
    config: str,
    gpu_ids: tuple[str, ...],
    gpu_file: Path | None,
    gpus: list[int],
    sequence: list[int],
    micro_batch: list[int],
    accumulation: int,
    recompute: bool,
    precision: str,
    gathered: str,
    implementation: str,
    network: float | None,
    as_json: bool,
) -> None:
    """Predict a training step of the dense model CONFIG: a config.json, a folder with one, the name of a model in
    resources/models, or a Hugging Face id.

    Parameters, gradients and optimiser state are spread over all GPUs (fully sharded data parallelism). Times are those
    of the kernels alone, from a time model, and of communication that they do not hide: published steps take longer.
    """
    from gpuledger.models.training import TrainingRun
    from gpuledger.models.transformer import read_model

    if network is not None and not 0 < network < 1e6:
        raise InputError("command line", "--network", f"{network} is out of range", "give Gbit/s, such as 3200")
    chosen = needed_gpus(gpu_ids, gpu_file)
    check_count(len(chosen) * len(gpus) * len(sequence) * len(micro_batch), MAX_ROWS // 100)
    model = read_model(config)
    _check_lengths(model, sequence)
    formats = recompute, precision, gathered, (network or 0.0) * 1e9 / 8, implementation
    parts = []
    for gpu in chosen:
        runs = [
            TrainingRun(model, gpu, length, batch, accumulation, devices, *formats)
            for devices, length, batch in itertools.product(gpus, sequence, micro_batch)
        ]
        parts.append((runs, _table(runs, gpu)))
    if as_json:
        print_json([row for _, table in parts for row in table[list(COLUMNS)].to_dict("records")])
        return
    state = "parameters gathered in 32 bits" if gathered == "fp32" else "parameters gathered in bf16"
    if implementation == "transformers":
        state += ", operators of transformers"
    say(f"{model.name}: {model.parameters:,} parameters, products in {precision}, {state}", bold=True)
    if model.vision or model.towers:
        say("The text model alone: what reads images or sound is neither trained nor held.")
    for runs, table in parts:
        _report(runs, table)


def _check_lengths(model: Model, sequences: list[int]) -> None:
    if model.max_positions and max(sequences) > model.max_positions:
        problem = f"a sequence of {max(sequences):,} tokens, but {model.name} supports {model.max_positions:,}"
        remedy = "shorten --sequence, or use a config.json with a larger max_position_embeddings"
        raise InputError(model.name, "--sequence", problem, remedy)


def _table(runs: list[TrainingRun], gpu: Gpu) -> pd.DataFrame:
    """Return a row per run with the `COLUMNS`."""
    import pandas as pd

    from gpuledger.models.training import mfu_percent, predict_steps, training_memory
    from gpuledger.models.training.memory import fits, largest_micro_batch

    steps, _ = predict_steps(runs, gpu)
    names = ("gpus", "micro_batch", "accumulation", "recompute", "precision", "gathered", "implementation")
    table = pd.DataFrame([{name: getattr(run, name) for name in names} for run in runs])
    table = table.assign(gpu=gpu.name, sequence_tokens=[run.sequence for run in runs]).join(steps)
    table["other_s"] = table["step_s"] - table[["gemm_s", "attention_s", "power_s", "exposed_s"]].sum(axis=1)
    table["tokens_per_s"] = table["tokens_per_s_per_gpu"] * table["gpus"]
    peak = gpu.peak_flop_per_s(runs[0].precision)
    speeds = zip(runs, table["tokens_per_s_per_gpu"], strict=True)
    table["mfu_percent"] = [mfu_percent(run.model, run.sequence, speed, peak) for run, speed in speeds]
    table["clock_mhz"] = table["clock_hz"] / 1e6
    table["memory_bytes"] = [training_memory(run)["memory_bytes"] for run in runs]
    fitting = fits(table["memory_bytes"].to_numpy(), gpu, table["gpus"].to_numpy())
    most = [largest_micro_batch(run) for run in runs]
    # Of a GPU without a known capacity neither is known.
    table["fits"] = [None if isnan(gpu.dram_bytes) else bool(one) for one in fitting]
    table["largest_micro_batch"] = pd.Series(most, table.index, dtype=object)
    return table


def _report(runs: list[TrainingRun], table: pd.DataFrame) -> None:
    from gpuledger.models.power import FULL_CLOCK, chip_constants

    gpu = runs[0].gpu
    say(f"\n{gpu.title}, predicted from kernels alone")
    unknown = isnan(gpu.dram_bytes)
    shown = {
        "GPUs": [f"{value:,}" for value in table["gpus"]],
        "sequence": [f"{value:,}" for value in table["sequence_tokens"]],
        "micro batch": [f"{value:,}" for value in table["micro_batch"]],
        "step (s)": [three_digits(value) for value in table["step_s"]],
        "tokens/s/GPU": [three_digits(value) for value in table["tokens_per_s_per_gpu"]],
        "MFU (%)": [f"{value:.1f}" for value in table["mfu_percent"]],
        "GEMMs (%)": _shares(table, "gemm_s"),
        "attention (%)": _shares(table, "attention_s"),
        "waiting for links (%)": _shares(table, "exposed_s"),
        "power limit (%)": _shares(table, "power_s"),
        "memory (GB)": [f"{value / 1e9:,.1f}" for value in table["memory_bytes"]],
        "fits": ["unknown" if unknown else "yes" if fitting else "no" for fitting in table["fits"]],
    }
    if not (table["power_s"] > 0).any():
        del shown["power limit (%)"]
    print_columns(shown, ("fits",))
    say("Kernels alone are a floor: every published step that the study training_time compares takes longer.")
    if (slowed := table["clock_mhz"] < 1e-6 * FULL_CLOCK * gpu.clock_hz).any():
        clocks = table.loc[slowed, "clock_mhz"]
        span = " to ".join(dict.fromkeys(f"{clock:,.0f}" for clock in (clocks.min(), clocks.max())))
        _, name = chip_constants(gpu)
        whose = "its law of power" if name == gpu.name else f"the law of power of the {name}, which has the same chip"
        say(f"At the power limit the clock falls to {span} MHz of {gpu.clock_hz / 1e6:,.0f}, by {whose}.")
    _print_memory(runs[-1], table["largest_micro_batch"].iloc[-1])


def _shares(table: pd.DataFrame, column: str) -> list[str]:
    return [f"{value:.1f}" for value in 100 * table[column] / table["step_s"]]


def _print_memory(run: TrainingRun, most: int | None) -> None:
    from gpuledger.models.training import training_memory

    memory = training_memory(run)
    place = f"{run.gpus:,} GPU{'s' * (run.gpus > 1)}, {run.micro_batch:,} × {run.sequence:,} tokens"
    say(f"Memory on each GPU ({place}), without workspaces and fragmentation:")
    for part, words in (_EAGER_PARTS if run.eager else _PARTS).items():
        if memory[part]:
            say(f"{memory[part] / 1e9:9,.1f} GB  {words}")
    say(f"{memory['memory_bytes'] / 1e9:9,.1f} GB  in all, of {run.gpu.dram_capacity}")
    if most is not None:
        say(f"At most {most:,} sequence{'s' * (most != 1)} of a pass fit." if most else "Not even one sequence fits.")
