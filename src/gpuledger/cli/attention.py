"""``gpuledger attention``: how long attention takes, by GPU, engine and kernel."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.cli.kernel_report import kernel_options, report
from gpuledger.cli.options import COUNTS, Count, count, count_or_zero, shapes_of
from gpuledger.errors import InputError


@click.command(
    short_help="How long attention takes on GPUs.",
    epilog="Example: gpuledger attention 1,32 1 8192 --heads 32 --kv-heads 8 --gpu h100-sxm",
)
@click.argument("requests", type=COUNTS)
@click.argument("tokens", type=COUNTS)
@click.argument("context", type=Count(several=True, zero=True), default="0")
@count("--heads", default="32", show_default=True, help="Heads of the queries, on one GPU.")
@count("--kv-heads", default="8", show_default=True, help="Heads of keys and values, on one GPU.")
@count("--head-dim", default="128", show_default=True)
@count_or_zero("--window", default="0", help="Keys that a token attends to at most.  [default: all]")
@click.option("--precision", type=click.Choice(["bf16", "fp8"]), default="bf16", show_default=True)
@click.option("--backward", is_flag=True, help="The gradients of whole sequences, as in training.")
@click.option("--cache", type=click.Choice(["bf16", "fp8"]), help="Of keys and values.  [default: --precision]")
@kernel_options
def attention(
    requests: list[int],
    tokens: list[int],
    context: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    precision: str,
    backward: bool,
    cache: str | None,
    engine: str | None,
    gpu_ids: tuple[str, ...],
    **options,
) -> None:
    """Predict attention of REQUESTS with TOKENS new tokens each, which also attend to CONTEXT tokens before them.

    One new token is decoding, more are prefill (causal). REQUESTS, TOKENS and CONTEXT may each be several: 64,
    1,8,64 or 1..256. Without --gpu: the fastest kernel of each measured GPU. Each kernel has its mean error on shapes
    that nothing was fitted to and, where the measured tables are, the time of the nearest measured shape.
    As in the engines' benchmarks, prefill copies the new keys and values into the cache: in gpuledger predict, that is
    a kernel of its own. PyTorch's kernels have no cache.
    """
    from gpuledger.studies.kernel_time.single_kernels import measured_gpus, single_attention

    decoding = tokens == [1]
    if 1 in tokens and not decoding:
        raise InputError("command line", "TOKENS", "1 is decoding, more is prefill", "ask for them separately")
    if decoding and context == [0]:
        raise InputError("command line", "CONTEXT", "decoding needs a context", "give the tokens before, such as 8192")
    if (precision, cache) == ("fp8", "bf16"):
        raise InputError("command line", "--cache", "no kernel computes in fp8 on a cache in bf16", "leave it out")
    formats = f"{precision}/{cache or precision}"
    if backward and (decoding or context != [0] or window or formats != "bf16/bf16"):
        problem = "gradients are of whole sequences in bf16, without a context or a window"
        raise InputError("command line", "--backward", problem, "leave the others out")
    of_layer = {"heads": [heads], "kv_heads": [kv_heads], "head_dim": [head_dim], "window": [window]}
    shapes = shapes_of(requests=requests, tokens=tokens, context=context, **of_layer)
    # A window that holds all tokens is none.
    shapes["window"] = shapes["window"].where(shapes["window"] < shapes["tokens"] + shapes["context"], 0)

    def predict(gpu, tables: Path | None, fastest: bool):
        return single_attention(gpu, shapes, formats, engine or "", tables, backward, fastest)

    kind = "backward" if backward else "decode" if decoding else "prefill"
    measured = measured_gpus(kind, formats, engine or "")
    report(shapes, predict, measured, gpu_ids, **options)
