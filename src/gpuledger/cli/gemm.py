"""``gpuledger gemm``: how long a matrix multiplication takes, by GPU, engine and kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.kernel_report import kernel_options, report
from gpuledger.cli.options import COUNTS, shapes_of

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.readers.gpus import Gpu

PRECISIONS = {"nvfp4": "fp4"} | {name: name for name in ("bf16", "fp16", "fp8", "fp8_block", "int8", "tf32", "fp32")}


@click.command(
    short_help="How long a matrix multiplication takes on GPUs.",
    epilog="Example: gpuledger gemm 1,64,4096 4096 14336 --gpu h100-sxm,b200 --precision fp8",
)
@click.argument("m", type=COUNTS)
@click.argument("n", type=COUNTS)
@click.argument("k", type=COUNTS)
@click.option("--precision", type=click.Choice(list(PRECISIONS)), default="bf16", show_default=True)
@click.option("--same-operands", is_flag=True, help="A loop over the same operands: L2 may hold them.")
@kernel_options
def gemm(
    m: list[int],
    n: list[int],
    k: list[int],
    precision: str,
    same_operands: bool,
    engine: str | None,
    gpu_ids: tuple[str, ...],
    **options,
) -> None:
    """Predict the time of M × K by K × N (activations by weights) in the kernels that engines were measured with.

    M, N and K may each be several: 64, 1,8,64 or 1..256. Without --gpu: the fastest kernel of each measured GPU. Each
    kernel has its mean error on shapes that nothing was fitted to and, where the measured tables are, the time of the
    nearest measured shape. Times have what the engine's benchmark has, such as the search for the scale of activations
    in TensorRT-LLM's fp8, which gpuledger predict leaves out of a GEMM.
    """
    from gpuledger.studies.kernel_time.single_kernels import measured_gpus, single_gemms

    shapes = shapes_of(m=m, n=n, k=k)
    name = PRECISIONS[precision]

    def predict(gpu, tables: Path | None, fastest: bool):
        table = single_gemms(gpu, shapes, name, engine or "", same_operands, tables, fastest=fastest)
        return _with_sustained(table, gpu, name, same_operands).assign(precision=precision)

    report(shapes, predict, measured_gpus("gemm", name, engine or ""), gpu_ids, **options)


def _with_sustained(table: pd.DataFrame, gpu: Gpu, precision: str, same_operands: bool) -> pd.DataFrame:
    """Add how long kernels measured on this GPU take if they run all the time, and the clock (MHz), where known."""
    from gpuledger.models.sustained import sustained_products
    from gpuledger.models.time_model.constants.table import read_table

    table = table.assign(sustained_s=float("nan"), sustained_mhz=float("nan"))
    for entry in () if same_operands else read_table("gemm"):
        rows = (table["engine"] == entry.framework) & (table["kernel"] == entry.kernel)
        if (entry.gpu, entry.precision) == (gpu.name, precision) and rows.any():
            sizes = (table.loc[rows, size].to_numpy() for size in "mnk")
            clock_hz, time_s = sustained_products(gpu, entry.constants, *sizes, precision)
            table.loc[rows, "sustained_s"], table.loc[rows, "sustained_mhz"] = time_s, clock_hz / 1e6
    return table
