"""``gpuledger served``: are a server's steps as fast as its kernels would be?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.options import chosen_gpus, count, gpu_file_option
from gpuledger.cli.terminal import json_option, print_columns, print_json, say
from gpuledger.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

#: Options for the degrees of parallelism.
_DEGREES = {"tensor": "tp", "pipeline": "pp", "replicas": "dp", "expert": "ep"}
_REMEDIES = {"engine": "add --engine vllm, sglang or trtllm", "tensor": "add --tp"}
_REMEDIES["model"] = "add --model and its name, such as Llama-3.1-70B"
#: Columns of the table, and the keys of --json.
_COLUMNS = {
    **{"id": "run", "requests": "in flight", "input_tokens": "prompt (tokens)", "output_tokens": "output (tokens)"},
    **{"measured_ms": "measured (ms)", "predicted_ms": "kernels (ms)", "decode_ms": "decode (ms)"},
    **{"prompts_ms": "prompts (ms)", "given_ttft_ms": "given its queue (ms)"},
    **{"measured_over_predicted": "measured / kernels"},
    **{"measured_rate": "measured (tokens/s/GPU)", "predicted_rate": "kernels (tokens/s/GPU)"},
}


@click.command(
    short_help="Are a server's steps as fast as its kernels would be?",
    epilog="Example: gpuledger served results/ --gpu h100-sxm --engine vllm --model Llama-3.1-70B --tp 8",
)
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--gpu", required=True, help="The GPU's id (gpuledger gpus).")
@gpu_file_option
@click.option("--engine", type=click.Choice(["vllm", "sglang", "trtllm"]), help="Which engine served.")
@click.option("--model", help="The model, if the result names a folder or an alias.")
@click.option(
    "--precision", type=click.Choice(["fp8", "fp8_block", "nvfp4"]), help="Of the weights, if the checkpoint is not."
)
@click.option("--cache", type=click.Choice(["fp8"]), help="The cache's number format, if not the checkpoint's.")
@count("--tp", help="GPUs that share each matrix (vLLM does not write it down).")
@count("--pp", help="Pipeline stages.")
@count("--dp", help="Replicas of the attention, which share the requests.")
@count("--ep", help="GPUs that the experts are spread over.")
@json_option
def served(
    results: tuple[Path, ...],
    gpu: str,
    gpu_file: Path | None,
    engine: str | None,
    model: str | None,
    precision: str | None,
    cache: str | None,
    as_json: bool,
    **degrees: int | None,
) -> None:
    """Compare the time per output token in RESULTS, what vllm bench serve, sglang.bench_serving, trtllm-bench or
    sglang.bench_one_batch wrote or printed, AIPerf, GenAI-Perf, GuideLLM, LLMPerf, EvalScope or
    sglang.bench_one_batch_server measured, rows of InferenceX, or folders of these, with what the kernels of such
    steps are predicted to take: decoding, and other requests' prompts.

    What takes longer is the engine's: the host, gaps between kernels. Given its queue, a step has only so many requests
    and prompts as the measured time to the first token leaves. Options are said of all results.
    """
    from gpuledger.studies.serving_time.prediction import predict_table
    from gpuledger.studies.serving_time.results import runs_on, table_of

    chosen, *others = chosen_gpus((gpu,), gpu_file)
    if others:
        raise InputError("command line", "--gpu", "several GPUs", "name the one that the server ran on")
    said = {"engine": engine, "model": model, "precision": precision, "cache": cache}
    stated = {name: value for name, value in said.items() if value}
    stated["parallel"] = {name: degrees[option] for name, option in _DEGREES.items() if degrees[option]}
    runs = table_of([run for path in results for run in runs_on(chosen, path)], stated, ("command line", ""), _REMEDIES)
    named = ", ".join(runs["model"].astype(str).unique())[:100]
    remedy = f"check --gpu, and say with --model which model served if the hub lacks {named}, or is not at hand"
    found = predict_table(runs, chosen, None, (results[0], ""), remedy=remedy)
    data = found.data
    table = data.assign(
        measured_ms=1e3 * data["measured_s"],
        predicted_ms=1e3 * data["kernels_s"],
        decode_ms=1e3 * data["decode_s"],
        prompts_ms=1e3 * data["prompts_s"],
        given_ttft_ms=1e3 * data["given_ttft_s"],
        measured_over_predicted=data["measured_s"] / data["kernels_s"],
        gpus=data["all_gpus"],
        parallelism=[_placed(run) for run in data.to_dict("records")],
    )
    if as_json:
        keys = ["engine", "model", "precision", "parallelism", "gpus", *_COLUMNS]
        print_json({"gpu": chosen.name, "runs": table[keys].to_dict("records"), "not_expressed": found.refused})
        return
    _print(table, chosen.title, found.refused)


def _placed(run: dict) -> str:
    """Return a run's parallelism, and of a disaggregated one both kinds of workers."""
    if run["mode"] == "agg":
        return run["parallelism"]
    prompts = f", prompts on {run['prompts_on']}" if run["prompts_on"] else ""
    return f"{run['workers']} × {run['parallelism']}{prompts}"


def _print(table: pd.DataFrame, title: str, refused: str) -> None:
    # Names may differ in numbers of different lengths: c8, c32.
    for (model, precision, engine, parallelism), runs in table.sort_values("requests", kind="stable").groupby(
        ["model", "precision", "engine", "parallelism"], sort=False
    ):
        say(f"{model} {precision}, {engine}, {parallelism} on {title}", bold=True)
        words = [
            runs["id"],
            *(runs[name].map("{:,}".format) for name in ("requests", "input_tokens", "output_tokens")),
            *(runs[name].map("{:.2f}".format).replace("nan", "–") for name in list(_COLUMNS)[4:-2]),
            *(runs[name].map("{:,.0f}".format).replace("nan", "–") for name in list(_COLUMNS)[-2:]),
        ]
        shown = dict(zip(_COLUMNS.values(), words, strict=True))
        print_columns(shown, ("run",), list(shown)[6:9] + list(shown)[10:])
    ratio = table["measured_over_predicted"].median()
    say(f"A step takes {ratio:.2f} times as long as its kernels are predicted to (median).")
    say(
        "Measured is the median time per output token, or the mean where the result has no median; kernels are "
        "decoding and other requests' prompts. Given its queue, only so many decode as the measured time to first "
        "token leaves. Tokens/s/GPU follow from the times to the first and the next tokens."
    )
    if refused != "none":
        say(f"left out: {refused}")
