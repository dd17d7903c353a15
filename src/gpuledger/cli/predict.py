"""``gpuledger predict``: how long a model's passes would take on GPUs, and what they need."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger import files
from gpuledger.cli.disaggregated_report import report_disaggregated
from gpuledger.cli.options import check_count, count, count_or_zero, counts, gpu_file_option, needed_gpus
from gpuledger.cli.predict_report import evaluate, report, report_objective, save_report
from gpuledger.cli.terminal import json_option, say
from gpuledger.errors import InputError

if TYPE_CHECKING:
    from gpuledger.models.deployment import Deployment, Speculation
    from gpuledger.models.transformer import Images, Model, Precision
    from gpuledger.readers.gpus import Gpu

#: The options of what a ``dataset.yaml`` calls so.
_OPTIONS = {
    **{"parallel.tensor": "--tp", "parallel.pipeline": "--pp"},
    **{"parallel.expert": "--ep", "parallel.replicas": "--dp"},
}
#: Batches that are tried: to look at, and to find the largest that meets an objective.
_BATCHES = [2**exponent for exponent in range(9)]
_FINE_BATCHES = [*range(1, 9), *(2**exponent * quarters // 4 for exponent in range(3, 8) for quarters in (5, 6, 7, 8))]
_NO_OBJECTIVE = "no cost is asked for", "add --slo ttft=1s,tpot=30ms"


@click.command(
    short_help="How long a model's passes would take on GPUs.",
    epilog="Example: gpuledger predict config.json --gpu h200-sxm,b200 --tp 1,2,4,8 --slo ttft=1s,tpot=30ms",
)
@click.argument("config")
@click.option("--gpu", "gpu_ids", multiple=True, help="GPU (see gpuledger gpus); several: a100,h200-sxm.")
@gpu_file_option
@counts("--tp", default="1", show_default=True, help="Tensor parallelism; several: 1,2,4,8.")
@counts("--pp", default="1", show_default=True, help="Pipeline stages.")
@counts("--ep", default="1", show_default=True, help="Expert parallelism.")
@counts("--dp", help="Replicas of all but the experts, which all GPUs share.  [default: as many as --ep takes]")
@count("--gpus", "most_gpus", help="With --slo, instead of --tp, --ep and --dp: every split over up to so many GPUs.")
@click.option(
    "--disaggregate",
    is_flag=True,
    help="With --gpus: some workers process the prompts, others decode; how many of each.",
)
@click.option("--network", type=float, help="GB/s that a GPU sends to another worker.  [default: as over its links]")
@counts("--batch", help="Requests per decode step: 64, 1,8,64 or 1..256.  [default: 1, 2, 4, …, 256]")
@count("--input", "input_tokens", default="1024", show_default=True, help="Tokens of a prompt's text.")
@count_or_zero("--images", help="Images in every prompt, beside --input; 0: as loaded for text alone.")
@click.option("--image-size", default="1024x1024", show_default=True, help="Their width and height in pixels.")
@count("--output", "output_tokens", default="256", show_default=True, help="Tokens generated per request.")
@click.option("--precision", help="fp8, or weights=fp8,operands=fp8,cache=fp8.  [default: that of the checkpoint]")
@click.option("--treat-as", help="Read CONFIG as this known model_type, at your own risk.")
@click.option("--engine", type=click.Choice(["trtllm", "vllm", "sglang"]), help="Whose kernels.  [default: fastest]")
@count_or_zero("--cached", default="0", help="First tokens of every prompt that a prefix cache holds.")
@click.option("--draft", help="Speculative decoding: mtp (a layer as the model's own), or a smaller model.")
@count("--draft-tokens", default="1", show_default=True, help="Tokens drafted before each step.")
@click.option("--acceptance", default=0.8, show_default=True, help="Probability that a drafted token is accepted.")
@click.option(
    "--expert-load",
    help="How unevenly experts are chosen: the exponent of a Zipf law (0: all alike), or power_law_1.2, as kernels are "
    "measured.  [default: 0.55, as random tokens choose]",
)
@click.option("--host-us", default=0.0, help="Without CUDA graphs: µs that the host takes for a launch.")
@click.option(
    "--slo", help="Objective such as ttft=1s,tpot=30ms: list what meets it, the cheapest first, of more batches."
)
@click.option("--price", multiple=True, help="USD per GPU-hour: 3.5, or h200-sxm=3.5; may be repeated.")
@click.option("--save", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and tables.")
@json_option
def predict(
    config: str,
    gpu_ids: tuple[str, ...],
    gpu_file: Path | None,
    tp: list[int],
    pp: list[int],
    ep: list[int],
    dp: list[int] | None,
    most_gpus: int | None,
    disaggregate: bool,
    network: float | None,
    batch: list[int] | None,
    input_tokens: int,
    images: int | None,
    image_size: str,
    output_tokens: int,
    precision: str | None,
    treat_as: str | None,
    engine: str | None,
    cached: int,
    draft: str | None,
    draft_tokens: int,
    acceptance: float,
    expert_load: str | None,
    host_us: float,
    slo: str | None,
    price: tuple[str, ...],
    save: Path | None,
    as_json: bool,
) -> None:
    """Predict the prefill of one prompt and decode steps of the model CONFIG: a config.json, a folder with one, the
    name of a model in resources/models, or a Hugging Face id.

    Times are those of the kernels alone, from a time model: the host's work, queueing and sampling are not included.
    Images are encoded before their prompt, and add tokens to it.
    Served, a batch is kept full: the prompts of new requests delay the steps of the others.
    """
    if not 0 <= host_us < 1e6:
        raise InputError("command line", "--host-us", f"{host_us} is out of range", "give µs, such as 8")
    if not draft and (draft_tokens != 1 or acceptance != 0.8):
        raise InputError("command line", "--draft", "it is missing: nothing is drafted", "add --draft mtp or a model")
    from gpuledger.models.deployment import Deployment, Objective, cheapest, disaggregated
    from gpuledger.models.transformer import Experts, Parallel, read_model
    from gpuledger.models.transformer.routing import SERVED_LOAD

    objective = Objective.parse(slo, "--slo") if slo else None
    batches = batch or (_FINE_BATCHES if objective else _BATCHES)
    splits = [tp, pp, ep, dp or [0]]
    if most_gpus and (not objective or splits != [[1], [1], [1], [0]]):
        problem, remedy = ("splits are given", "leave out --tp, --pp, --ep and --dp") if objective else _NO_OBJECTIVE
        raise InputError("command line", "--gpus", problem, remedy)
    if (disaggregate or network is not None) and not (disaggregate and most_gpus):
        place, missing = ("--disaggregate", "--gpus 16") if disaggregate else ("--network", "--disaggregate")
        raise InputError("command line", place, "one deployment does both", f"add {missing}")
    if network is not None and not 0 < network < 1e6:
        raise InputError("command line", "--network", f"{network} is out of range", "give GB/s, such as 50")
    chosen = needed_gpus(gpu_ids, gpu_file)
    prices = _prices(price, chosen)
    if prices and not objective:
        raise InputError("command line", "--price", *_NO_OBJECTIVE)
    model = read_model(config, treat_as=treat_as)
    pictures = _images(images, image_size)
    if images == 0:
        model = model.without_vision()
    tokens_in = input_tokens + _image_tokens(model, pictures)
    if pictures and cached > input_tokens:
        problem = f"{cached:,} tokens are cached, but only {input_tokens:,} of --input are no image's"
        raise InputError("command line", "--cached", problem, "cache fewer, or leave the images out")
    if cached >= tokens_in:
        problem = f"{cached:,} of the {tokens_in:,} tokens of --input are cached"
        raise InputError("command line", "--cached", problem, "leave at least one token to be processed")
    formats = _precision(precision.lower(), model.precision) if precision else None
    drafts = _speculation(draft, model, draft_tokens, acceptance) if draft else None
    experts = any(isinstance(group.ffn, Experts) for group in model.layers)
    if not experts:
        if max(ep) > 1:
            raise InputError(model.name, "--ep", "this model has no experts", "leave it out; use --tp or --pp")
        if expert_load is not None:
            raise InputError(model.name, "--expert-load", "this model has no experts", "leave it out")
    degrees = _splits(most_gpus, experts) if most_gpus else list(itertools.product(*splits))
    check_count(len(chosen) * len(batches) * len(degrees))
    load = SERVED_LOAD if expert_load is None else expert_load
    load = float(load) if re.fullmatch(r"\d{1,3}(\.\d+)?", str(load)) else load
    deployments: list[Deployment] = []
    refused: list[InputError] = []
    for gpu, split in itertools.product(chosen, degrees):
        try:
            parallel = Parallel(*split)
            parallel.check(model)
        except InputError as error:
            place = _OPTIONS.get(error.place, error.place)
            refused.append(InputError(error.file, place, error.problem, error.remedy))
            continue
        requests = tokens_in, output_tokens, parallel, formats, engine or "", cached
        deployments.append(Deployment(model, gpu, *requests, drafts, load, host_us * 1e-6, pictures))
    if not deployments:
        raise refused[0]
    if refused:
        say(f"gpuledger: {len(refused)} of {len(chosen) * len(degrees)} deployments left out: {refused[0]}", err=True)
    if save:
        files.check_writable(save)
    parts = evaluate(deployments, batches)
    if save:
        save_report(deployments, parts, objective, save)
    if objective and disaggregate:
        bytes_per_s = None if network is None else 1e9 * network
        table = disaggregated(deployments, parts, objective, most_gpus, prices, bytes_per_s)
        report_disaggregated(table, objective, deployments, parts, as_json)
    elif objective:
        table = cheapest(deployments, parts, objective, prices)
        report_objective(table, objective, deployments, parts, as_json)
    else:
        report(deployments, parts, as_json)


def _splits(most: int, experts: bool) -> list[tuple[int, int, int, int]]:
    """Return every split in powers of two that takes at most so many GPUs, without pipeline stages."""
    powers = [2**exponent for exponent in range(most.bit_length())]
    shared = powers if experts else [1]
    splits = itertools.product(powers, [1], shared, shared)
    return [split for split in splits if split[2] <= split[0] * split[3] <= most]


def _images(each: int | None, size: str) -> Images | None:
    """Read ``--images`` and ``--image-size``; None: a prompt has none."""
    from gpuledger.models.transformer import Images

    sides = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", size)
    if not sides:
        raise InputError("command line", "--image-size", f"'{size}' is not a size", "write 1024x768, in pixels")
    if not each:
        if size != "1024x1024":
            raise InputError("command line", "--images", "it is missing: there are no images", "add --images 1")
        return None
    try:
        return Images(each, int(sides[1]), int(sides[2]))
    except InputError as error:
        option = "--images" if error.place == "number" else "--image-size"
        raise InputError("command line", option, error.problem, error.remedy) from None


def _image_tokens(model: Model, images: Images | None) -> int:
    try:
        return model.image_tokens(images)
    except InputError as error:
        option = "--image-size" if error.place == "size" else "--images"
        raise InputError(model.name, option, error.problem, error.remedy) from None


def _speculation(name: str, model: Model, drafted: int, acceptance: float) -> Speculation:
    from gpuledger.models.deployment import speculate
    from gpuledger.models.transformer import read_model

    draft = name if name == "mtp" else read_model(name)
    return speculate(model, draft, drafted, acceptance, ("command line", "--draft"))


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
        raise InputError("command line", "--price", f"'{text}' is not a price", "write 3.5 or h200-sxm=3.5")
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
