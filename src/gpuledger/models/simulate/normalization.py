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


@dataclass(frozen=True)
class BandwidthModel:
    """A GPU as a bandwidth model.

    Attributes
    ----------
    dram_bytes_per_s, l2_bytes, fp32_flop_per_s : float
        From the data sheet of an H200.
    copy_share : float
        Share of the DRAM bandwidth that a copy reaches; an assumption.
    l2_bytes_per_s : float
        L2 bandwidth, reads and writes together; an assumption.
    launch_s : float
        Cost of a launch in a sequence of launches; an assumption.
    fma_share : float
        Share of the FP32 peak that multiply-adds reach; an assumption.
    """

    dram_bytes_per_s: float = 4.8e12
    l2_bytes: float = 50 * 2**20
    fp32_flop_per_s: float = 66.9e12
    copy_share: float = 0.92
    l2_bytes_per_s: float = 7e12
    launch_s: float = 1.5e-6
    fma_share: float = 0.97

    def time_s(self, dram_bytes: float, l2_bytes: float, launches: int, share: float) -> float:
        moving = dram_bytes / (self.copy_share * self.dram_bytes_per_s) + l2_bytes / self.l2_bytes_per_s
        return launches * self.launch_s + moving / share

    def resident(self, footprint_bytes: float) -> float:
        """Share of the data that is still in L2 when it is used again."""
        return min(1.0, self.l2_bytes / footprint_bytes)


@dataclass(frozen=True)
class Traffic:
    """Traffic of a kernel, or a sequence of kernels, beyond reading the input once and writing the output once.

    Attributes
    ----------
    rereads : float
        Additional traffic relative to input + output.
    near : bool
        Whether the additional traffic is certain to hit L2, because it concerns the current row.
    share : float
        Share of a copy's bandwidth that the kernel reaches; an assumption.
    """

    launches: int = 1
    rereads: float = 0.0
    near: bool = True
    share: float = 1.0


#: PyTorch launches four kernels (mean, standard deviation, difference, quotient) that read four matrices and write two.
KERNELS = {
    "copy": Traffic(),
    "torch": Traffic(launches=4, rereads=2.0, near=False, share=0.95),
    "two_pass": Traffic(rereads=1.0, share=0.85),
    "one_pass": Traffic(share=0.96),
}


_MACHINE = BandwidthModel()
#: The assumptions of the model, in Markdown for a notebook.
ASSUMPTIONS = f"""Nothing here is measured. A launch costs {1e6 * _MACHINE.launch_s:g} µs, and a byte the inverse of a
bandwidth: {_MACHINE.copy_share:.0%} of the H200's {_MACHINE.dram_bytes_per_s / 1e12:g} TB/s for DRAM, and
{_MACHINE.l2_bytes_per_s / 1e12:g} TB/s for L2. The kernels reach {KERNELS["one_pass"].share:.0%} (optimised),
{KERNELS["two_pass"].share:.0%} (straightforward, reads each row two more times from L2) and
{KERNELS["torch"].share:.0%} (PyTorch, four launches and three times the bytes) of that. These shares are assumptions,
not results: the figure shows how the quantities interact and that the study works. Measuring the kernels takes a GPU:
`make record`."""


def time_kernel(machine: BandwidthModel, kernel: Traffic, moved_bytes: int, cache: str) -> float:
    """Time (s) of a kernel that reads and writes `moved_bytes`, with a ``cold`` or ``warm`` L2."""
    kept = machine.resident(moved_bytes) if cache == "warm" else 0.0
    again = kernel.rereads * moved_bytes
    # PyTorch has a third, intermediate matrix.
    near = 1.0 if kernel.near else machine.resident(1.5 * moved_bytes)
    l2_bytes = kept * moved_bytes + near * again
    return machine.time_s(moved_bytes + again - l2_bytes, l2_bytes, kernel.launches, kernel.share)


def simulate_normalization() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows and the ceilings of a case of ``normalization_roofline``, without spreads."""
    machine = _MACHINE
    caches = ("cold", "warm")
    rows = [
        (name, count, length, cache, 1e9 * time_kernel(machine, kernel, 8 * count * length, cache))
        for count, length in SHAPES
        for name, kernel in KERNELS.items()
        for cache in caches
    ]
    flops = 2**40
    ceilings = [("launch", "warm", 0, 0, 1e9 * machine.launch_s)]
    ceilings += [("multiply_add", "warm", 0, flops, 1e9 * flops / (machine.fma_share * machine.fp32_flop_per_s))]
    ceilings += [
        ("copy", cache, moved, 0, 1e9 * time_kernel(machine, KERNELS["copy"], moved, cache))
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
