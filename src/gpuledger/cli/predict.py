"""``gpuledger predict``: how long a model's passes would take on GPUs, and what they need."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.terminal import json_option, print_json, print_table
from gpuledger.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.models.deployment import Deployment, Objective
    from gpuledger.models.transformer import Precision
    from gpuledger.readers.gpus import Gpu

#: Columns of ``--json``.
COLUMNS = (
    *("gpu", "phase", "batch", "time_s", "tokens_per_s", "tokens_per_s_per_gpu", "memory_bytes", "fits", "bound"),
    "communication_percent",
)
_SPLIT = ("tensor", "pipeline", "expert")
MAX_NUMBER, MAX_ROWS = 2**31, 100_000


@click.command(
    short_help="How long a model's passes would take on GPUs.",
    epilog="Example: gpuledger predict config.json --gpu h200-sxm --gpu b200-sxm --tp 1,2,4,8 --slo ttft=1s,tpot=30ms",
)
@click.argument("config")
@click.option("--gpu", "gpu_ids", multiple=True, help="GPU, such as h200-sxm (see gpuledger gpus); may be repeated.")
@click.option(
    "--gpu-file", type=click.Path(path_type=Path), help="GPUs of your own: CSV with the columns of resources/gpus.csv."
)
@click.option("--tp", default="1", show_default=True, help="Tensor parallelism; several: 1,2,4,8.")
@click.option("--pp", default="1", show_default=True, help="Pipeline stages.")
@click.option("--ep", default="1", show_default=True, help="Expert parallelism.")
@click.option("--batch", help="Requests per decode step: 64, 1,8,64 or 1..256.  [default: 1, 2, 4, …, 256]")
@click.option("--input", "input_tokens", default="1024", show_default=True, help="Tokens of a prompt.")
@click.option("--output", "output_tokens", default="256", show_default=True, help="Tokens generated per request.")
@click.option("--precision", help="fp8, or weights=fp8,operands=fp8,cache=fp8.  [default: that of the checkpoint]")
@click.option("--treat-as", help="Read CONFIG as this known model_type, at your own risk.")
@click.option("--engine", type=click.Choice(["trtllm", "vllm", "sglang"]), help="Whose kernels.  [default: fastest]")
@click.option("--slo", help="Objective such as ttft=1s,tpot=30ms: list what meets it, the cheapest first.")
@click.option("--price", multiple=True, help="USD per GPU-hour: 3.5, or h200-sxm=3.5; may be repeated.")
@json_option
def predict(
    config: str,
    gpu_ids: tuple[str, ...],
    gpu_file: Path | None,
    tp: str,
    pp: str,
    ep: str,
    batch: str | None,
    input_tokens: str,
    output_tokens: str,
    precision: str | None,
    treat_as: str | None,
    engine: str | None,
    slo: str | None,
    price: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict the prefill of one prompt and decode steps of the model CONFIG: a config.json, a folder with one, or the
    name of a model in resources/models.

    Times are those of the kernels alone, from a time model: the host's work, queueing and sampling are not included.
    """
    from gpuledger.models.deployment import Deployment, Objective, cheapest
    from gpuledger.models.transformer import Parallel, read_model

    objective = Objective.parse(slo, "--slo") if slo else None
    batches = _numbers(batch or ",".join(str(2**i) for i in range(9)), "--batch")
    sizes = [_numbers(text, name) for text, name in ((input_tokens, "--input"), (output_tokens, "--output"))]
    for numbers, name in zip(sizes, ("--input", "--output"), strict=True):
        if len(numbers) > 1:
            raise InputError("command line", name, "more than one number", "give one")
    splits = [_numbers(text, name) for text, name in ((tp, "--tp"), (pp, "--pp"), (ep, "--ep"))]
    chosen = _gpus(gpu_ids, gpu_file)
    prices = _prices(price, chosen)
    model = read_model(config, treat_as=treat_as)
    formats = _precision(precision, model.precision) if precision else None
    count = len(chosen) * len(batches) * len(splits[0]) * len(splits[1]) * len(splits[2])
    if count > MAX_ROWS:
        raise InputError("command line", "", f"{count:,} combinations", f"ask for at most {MAX_ROWS:,}")
    deployments: list[Deployment] = []
    refused: list[InputError] = []
    for gpu, degrees in itertools.product(chosen, itertools.product(*splits)):
        try:
            parallel = Parallel(*degrees)
            parallel.check(model)
        except InputError as error:
            refused.append(error)
            continue
        deployments.append(Deployment(model, gpu, sizes[0][0], sizes[1][0], parallel, formats, engine or ""))
    if not deployments:
        raise refused[0]
    if objective:
        _report_objective(cheapest(deployments, batches, objective, prices), objective, as_json)
        return
    _report(deployments, batches, as_json, _describe(model, formats, sizes[0][0], sizes[1][0]))


def _report(deployments: list[Deployment], batches: list[int], as_json: bool, title: str) -> None:
    import pandas as pd

    from gpuledger.models.deployment import passes

    parts = []
    for deployment in deployments:
        split = {name: getattr(deployment.parallel, name) for name in _SPLIT}
        parts.append(passes(deployment, batches).assign(**split))
    table = pd.concat(parts, ignore_index=True)
    # Which split a row is of matters only if there are several.
    several = [name for name in _SPLIT if table[name].nunique() > 1]
    if as_json:
        print_json(table[[*COLUMNS, *several]].to_dict("records"))
        return
    click.echo(title)
    for deployment, part in zip(deployments, parts, strict=True):
        click.echo(f"\n{_placed(deployment)}; {_memory(deployment, part)}")
        _print_passes(part)


def _print_passes(table: pd.DataFrame) -> None:
    from gpuledger.ledger.case_result import brief

    headers = ["phase", "batch", "time (ms)", "tokens/s", "tokens/s/GPU", "memory (GB)", "fits", "limited by"]
    rows = [
        [
            row["phase"],
            str(row["batch"]),
            brief(row["time_s"] * 1e3, 3),
            brief(row["tokens_per_s"], 3),
            brief(row["tokens_per_s_per_gpu"], 3),
            f"{row['memory_bytes'] / 1e9:.1f}",
            "yes" if row["fits"] else "no",
            row["bound"],
            f"{row['communication_percent']:.1f}",
        ]
        for row in table.to_dict("records")
    ]
    print_table([*headers, "communication (%)"], rows, right=(1, 2, 3, 4, 5, 8))


def _report_objective(table: pd.DataFrame, objective: Objective, as_json: bool) -> None:
    if as_json:
        print_json(table.to_dict("records"))
    elif not table.empty:
        from gpuledger.ledger.case_result import brief

        headers = ["GPU", "TP", "PP", "EP", "GPUs", "batch", "TTFT (ms)", "TPOT (ms)", "output tokens/s/GPU"]
        headers += ["USD per 10⁶ tokens", "J per token, at most", "memory (GB)"]
        rows = [
            [
                row["gpu"],
                *(str(row[name]) for name in (*_SPLIT, "gpus", "batch")),
                brief(row["ttft_s"] * 1e3, 3),
                brief(row["tpot_s"] * 1e3, 3),
                brief(row["output_tokens_per_s_per_gpu"], 3),
                *(
                    "" if row[name] != row[name] else brief(row[name], 3)
                    for name in ("usd_per_million_output_tokens", "joule_per_output_token_at_most")
                ),
                f"{row['memory_bytes'] / 1e9:.1f}",
            ]
            for row in table.to_dict("records")
        ]
        print_table(headers, rows, right=range(1, len(headers)))
        click.echo("\nPredicted, kernels alone; energy: all GPUs at their board power all the time.")
    if table.empty:
        wanted = f"TTFT ≤ {objective.ttft_s:g} s and TPOT ≤ {objective.tpot_s:g} s"
        click.echo(f"gpuledger: none of these deployments fits into memory with {wanted}", err=True)
        raise SystemExit(1)


def _placed(deployment: Deployment) -> str:
    parallel = deployment.parallel
    split = [f"{name} {getattr(parallel, name)}" for name in _SPLIT if getattr(parallel, name) > 1]
    return f"{parallel.devices} × {deployment.gpu.title}" + (f" ({', '.join(split)} parallel)" if split else "")


def _memory(deployment: Deployment, table: pd.DataFrame) -> str:
    from gpuledger.models.deployment import RESERVE, reserve_bytes

    reserve = {name: value / 1e9 for name, value in reserve_bytes(deployment.gpu, deployment.parallel).items()}
    return (
        f"of {deployment.gpu.dram_bytes / 1e9:.1f} GB each, {table['weight_bytes'].max() / 1e9:.1f} are weights and "
        f"{100 * RESERVE:.0f} % are kept free: {reserve['communication']:.1f} communication buffers, "
        f"{reserve['context']:.1f} CUDA context, {reserve['rest']:.1f} workspaces and fragmentation"
    )


def _describe(model, formats, input_tokens: int, output_tokens: int) -> str:
    active = "" if model.active_parameters == model.parameters else f" ({model.active_parameters / 1e9:.1f} active)"
    stored, cached = model.weight_bytes(formats) / 1e9, model.kv_bytes_per_token(formats)
    return (
        f"{model.name}: {model.parameters / 1e9:.2f} billion parameters{active}, "
        f"{stored:.1f} GB, {cached:,} bytes of KV cache per token; {input_tokens:,} tokens in, "
        f"{output_tokens:,} out. Predicted, kernels alone."
    )


def _numbers(text: str, option: str) -> list[int]:
    """Read ``64``, ``1,8,64`` and ``1..256``, also mixed."""
    found: list[int] = []
    for part in text.split(","):
        ends = part.strip().split("..")
        if len(ends) > 2 or not all(end.isascii() and end.isdigit() and 0 < len(end) < 11 for end in ends):
            raise InputError("command line", option, f"'{part}' is no whole number", "write 64, 1,8,64 or 1..256")
        low, high = int(ends[0]), int(ends[-1])
        if not 1 <= low <= high <= MAX_NUMBER or high - low >= MAX_ROWS:
            raise InputError("command line", option, f"'{part}' is out of range", f"use 1 … {MAX_NUMBER}, rising")
        found += range(low, high + 1)
    return list(dict.fromkeys(found))


def _gpus(ids: tuple[str, ...], file: Path | None) -> list[Gpu]:
    from gpuledger.readers.gpus import find_gpu, read_gpus

    own = read_gpus(file) if file else {}
    if not ids and not own:
        raise InputError("command line", "--gpu", "no GPU is given", "name one, such as h200-sxm (gpuledger gpus)")
    # The user's table takes precedence: it may redefine a GPU of the built-in table.
    every = {**own, **{name: gpu for name, gpu in read_gpus().items() if name not in own}}
    found = [find_gpu(name, every, "command line", "--gpu") for name in ids] or list(own.values())
    return list({gpu.name: gpu for gpu in found}.values())


def _prices(texts: tuple[str, ...], gpus: list[Gpu]) -> dict[str, float]:
    from gpuledger.readers.gpus import find_gpu

    known = {gpu.name: gpu for gpu in gpus}
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        price = _price(value, text)
        named = [find_gpu(name, known, "command line", "--price").name] if name else list(known)
        found |= dict.fromkeys(named, price)
    return found


def _price(value: str, text: str) -> float:
    try:
        price = float(value)
    except ValueError:
        price = -1.0
    if not 0 < price < 1e6:
        raise InputError("command line", "--price", f"'{text}' is no price", "write 3.5 or h200-sxm=3.5")
    return price


def _precision(text: str, own: Precision) -> Precision:
    """Read a format of the weights, or ``weights=…,operands=…,activations=…,cache=…``."""
    from dataclasses import replace

    if "=" not in text:
        operands = {"fp8": "fp8", "nvf": "fp4"}.get(text[:3])
        return replace(own, weights=text, operands=operands)
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if strange := set(parts) - {"weights", "operands", "activations", "cache"}:
        remedy = "use weights, operands, activations and cache"
        raise InputError("command line", "--precision", f"unknown part '{min(strange)}'", remedy)
    return replace(own, **parts)
