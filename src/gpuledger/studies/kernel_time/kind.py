"""What the study knows of one kind of fused kernel."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuledger.models.time_model.constants.table import AnyConstants
from gpuledger.readers.gpus import Gpu

Shapes = Mapping[str, np.ndarray]
Bounds = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class FittedKernel:
    """One measured kernel: what a fit knows of it beside its rows."""

    gpu: Gpu
    name: str
    precision: str
    least_s: float  # its shortest time


@dataclass(frozen=True)
class Kind:
    """What the study knows of one kind of fused kernel."""

    name: str  # of its constants in the table: a key of :data:`gpuledger.models.time_model.constants.table.KINDS`
    shapes: Callable[[Gpu, pd.DataFrame], Shapes]  # from GPU and rows of one kernel to what the law takes
    #: From GPU, constants, shapes and precision to ``time_s`` and its terms.
    law: Callable[[Gpu, AnyConstants, Shapes, str], dict[str, np.ndarray]]
    start: AnyConstants  # constants to start a fit from
    bounds: Bounds  # of the fitted constants
    choices: Mapping[str, Iterable]  # discrete properties of a kernel, chosen by the fitting half as well
    #: From GPU and rows to FLOP, bytes from DRAM or over the link, and the matrix units' peak (FLOP/s).
    work: Callable[[Gpu, pd.DataFrame], tuple[np.ndarray, np.ndarray, np.ndarray]]
    sizes: tuple[str, ...]  # columns that are a row's shape: they are hashed to hold rows back
    region: tuple[str, tuple[int, ...]]  # column and edges of the regions that errors are given by
    look_up: tuple[str, ...] = ()  # columns that a table look-up measures distances by, if others than `sizes`
    #: From the starts that all `choices` give to those of one kernel.
    starts: Callable[[list, FittedKernel], list] = lambda starts, _: starts
    #: From a start, a kernel and its shapes to that start and the bounds of the constants that the kernel has (None:
    #: the start and `bounds` as they are).
    started: Callable[[AnyConstants, FittedKernel, Shapes], tuple[AnyConstants, Bounds]] | None = None

    def bandwidth(self, gpu: Gpu) -> float:
        """Return the bandwidth (byte/s) of the bytes of `work`: of the links for a collective, else of DRAM."""
        return gpu.link_bytes_per_s if self.name == "collective" else gpu.dram_bytes_per_s


def peak_of(gpu: Gpu, precision: str) -> float:
    """Return the peak of the matrix units (FLOP/s) for a type, or for what it is widened to."""
    # GPUs without units for a narrow type widen it.
    try:
        return gpu.peak_flop_per_s(precision)
    except ValueError:
        return gpu.peak_flop_per_s("bf16")
