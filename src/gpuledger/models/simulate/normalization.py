"""Times of normalization kernels by a simple model, so that their study can be shown without a GPU.

A launch costs a fixed time, and moving a byte costs the inverse of the bandwidth of DRAM or L2, of which each kernel
reaches a fixed share. Nothing is fitted or measured: the shares are assumptions, and so are all results.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger import files
from gpuledger.ledger.datasets import Case

#: (rows, length): the shapes of the source document, then larger ones, one of them with unaligned rows.
SHAPES = (
    *((1024, 128), (4096, 256), (8192, 512), (16384, 1024)),
    *((65536, 1024), (16384, 4096), (8192, 8192), (16384, 1023)),
)
#: Bytes that the copies of the sweep move.
COPY_BYTES = tuple(2**power for power in range(18, 31))


#: Of the GPU: bandwidth (byte/s), L2 (bytes) and FP32 peak (FLOP/s), from the data sheet of an H200.
DRAM_BYTES_PER_S, L2_BYTES, FP32_FLOP_PER_S = 4.8e12, 50 * 2**20, 66.9e12
#: Assumptions: the share of the DRAM bandwidth that a copy reaches, the bandwidth of L2 (byte/s, reads and writes
#: together), the cost of a launch in a sequence of launches (s), and the share of the FP32 peak of multiply-adds.
COPY_SHARE, L2_BYTES_PER_S, LAUNCH_S, FMA_SHARE = 0.92, 7e12, 1.5e-6, 0.97


@dataclass(frozen=True)
class Traffic:
    """Traffic of a kernel, or a sequence of kernels, beyond reading the input once and writing the output once."""

    launches: int = 1
    rereads: float = 0.0  # additional traffic relative to input + output
    near: bool = True  # whether the additional traffic is certain to hit L2, because it concerns the current row
    share: float = 1.0  # share of a copy's bandwidth that the kernel reaches; an assumption


#: PyTorch launches four kernels (mean, standard deviation, difference, quotient) that read four matrices and write two.
KERNELS = {
    "copy": Traffic(),
    "torch": Traffic(launches=4, rereads=2.0, near=False, share=0.95),
    "two_pass": Traffic(rereads=1.0, share=0.85),
    "one_pass": Traffic(share=0.96),
}


#: The assumptions of the model, in Markdown for a notebook.
ASSUMPTIONS = f"""Nothing here is measured. A launch costs {1e6 * LAUNCH_S:g} µs, and a byte the inverse of a
bandwidth: {COPY_SHARE:.0%} of the H200's {DRAM_BYTES_PER_S / 1e12:g} TB/s for DRAM, and
{L2_BYTES_PER_S / 1e12:g} TB/s for L2. The kernels reach {KERNELS["one_pass"].share:.0%} (optimised),
{KERNELS["two_pass"].share:.0%} (straightforward, reads each row two more times from L2) and
{KERNELS["torch"].share:.0%} (PyTorch, four launches and three times the bytes) of that. These shares are assumptions,
not results: the figure shows how the quantities interact and that the study works. Measuring the kernels takes a GPU:
`make record`."""


def time_kernel(kernel: Traffic, moved_bytes: int, cache: str) -> float:
    """Time (s) of a kernel that reads and writes `moved_bytes`, with a ``cold`` or ``warm`` L2."""
    kept = _resident(moved_bytes) if cache == "warm" else 0.0
    again = kernel.rereads * moved_bytes
    # PyTorch has a third, intermediate matrix.
    near = 1.0 if kernel.near else _resident(1.5 * moved_bytes)
    l2_bytes = kept * moved_bytes + near * again
    dram_bytes = moved_bytes + again - l2_bytes
    moving = dram_bytes / (COPY_SHARE * DRAM_BYTES_PER_S) + l2_bytes / L2_BYTES_PER_S
    return kernel.launches * LAUNCH_S + moving / kernel.share


def _resident(footprint_bytes: float) -> float:
    """Share of the data that is still in L2 when it is used again."""
    return min(1.0, L2_BYTES / footprint_bytes)


def simulate_normalization() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows and the ceilings of a case of ``normalization_roofline``, without spreads."""
    caches = ("cold", "warm")
    rows = [
        (name, count, length, cache, 1e9 * time_kernel(kernel, 8 * count * length, cache))
        for count, length in SHAPES
        for name, kernel in KERNELS.items()
        for cache in caches
    ]
    flops = 2**40
    ceilings = [("launch", "warm", 0, 0, 1e9 * LAUNCH_S)]
    ceilings += [("multiply_add", "warm", 0, flops, 1e9 * flops / (FMA_SHARE * FP32_FLOP_PER_S))]
    ceilings += [
        ("copy", cache, moved, 0, 1e9 * time_kernel(KERNELS["copy"], moved, cache))
        for moved in COPY_BYTES
        for cache in caches
    ]
    return (
        pd.DataFrame(rows, columns=["kernel", "rows", "length", "cache", "time_median_ns"]),
        pd.DataFrame(ceilings, columns=["ceiling", "cache", "moved_bytes", "flops", "time_median_ns"]),
    )


def write_case(case: Case) -> list[Path]:
    """Write the files that a case names."""
    written = []
    for key, frame in zip(("rows", "ceilings"), simulate_normalization(), strict=True):
        if key in case.inputs:
            path = case.dataset.folder / case.inputs[key]
            rounded = frame.assign(time_median_ns=np.round(frame["time_median_ns"], 1))
            files.write_text(path, rounded.to_csv(index=False, lineterminator="\n"))
            written.append(path)
    return written
