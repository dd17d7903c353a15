"""``gpuledger attention``: how long attention takes, by GPU, engine and kernel."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.cli.kernel_report import kernel_options, report
from gpuledger.cli.options import number, numbers, shapes_of
from gpuledger.errors import InputError


@click.command(
    short_help="How long attention takes on GPUs.",
    epilog="Example: gpuledger attention 1,32 1 8192 --heads 32 --kv-heads 8 --gpu h100-sxm",
)
@click.argument("requests")
@click.argument("tokens")
@click.argument("context", default="0")
@click.option("--heads", default="32", show_default=True, help="Heads of the queries, on one GPU.")
@click.option("--kv-heads", default="8", show_default=True, help="Heads of keys and values, on one GPU.")
@click.option("--head-dim", default="128", show_default=True)
@click.option("--window", default="0", help="Keys that a token attends to at most.  [default: all]")
@click.option("--precision", type=click.Choice(["bf16", "fp8"]), default="bf16", show_default=True)
@click.option("--cache", type=click.Choice(["bf16", "fp8"]), help="Of keys and values.  [default: --precision]")
@kernel_options
def attention(
    requests: str,
    tokens: str,
    context: str,
    heads: str,
    kv_heads: str,
    head_dim: str,
    window: str,
    precision: str,
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
    a kernel of its own.
    """
    from gpuledger.studies.kernel_time.single_kernels import measured_gpus, single_attention

    new = numbers(tokens, "TOKENS")
    if 1 in new and len(new) > 1:
        raise InputError("command line", "TOKENS", "1 is decoding, more is prefill", "ask for them separately")
    if new == [1] and context == "0":
        raise InputError("command line", "CONTEXT", "decoding needs a context", "give the tokens before, such as 8192")
    if (precision, cache) == ("fp8", "bf16"):
        raise InputError("command line", "--cache", "no kernel computes in fp8 on a cache in bf16", "leave it out")
    formats = f"{precision}/{cache or precision}"
    shapes = shapes_of(
        requests=numbers(requests, "REQUESTS"),
        tokens=new,
        context=[0] if context == "0" else numbers(context, "CONTEXT"),
        heads=[number(heads, "--heads")],
        kv_heads=[number(kv_heads, "--kv-heads")],
        head_dim=[number(head_dim, "--head-dim")],
        window=[0 if window == "0" else number(window, "--window")],
    )
    # A window that holds all tokens is none.
    shapes["window"] = shapes["window"].where(shapes["window"] < shapes["tokens"] + shapes["context"], 0)

    def predict(gpu, tables: Path | None):
        return single_attention(gpu, shapes, formats, engine or "", tables)

    report(
        shapes, predict, measured_gpus("decode" if new == [1] else "prefill", formats, engine or ""), gpu_ids, **options
    )
