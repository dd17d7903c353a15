"""The constants that tell one GPU's time of a GEMM from another's: at most six, each with a physical meaning."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from gpuledger import files
from gpuledger.models.time_model.tiles import generation_of
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.readers.tabular import Column, read_csv

#: Fitted constants that come with the checkout, a row each GPU and precision: ``benchmarks/gemm_time.py --write``.
TABLE = files.RESOURCES / "time_constants.csv"

#: Precisions whose constants stand in for those of another, the nearest first.
RELATED = {
    "fp8_block": ("fp8", "bf16"),
    "fp8": ("bf16",),
    "int8": ("fp8", "bf16"),
    "fp4": ("fp8", "bf16"),
}


@dataclass(frozen=True)
class Constants:
    """What is fitted of a GPU in one precision.

    Attributes
    ----------
    launch_s : float
        Least time of a kernel (s): a launch out of a captured graph, the first fetch, the last write.
    dram_share : float
        Share of the data sheet's DRAM bandwidth that a kernel reaches.
    tensor_share : float
        Share of the data sheet's dense peak that the matrix units reach in the middle of a large tile.
    l2_bytes_per_clock : float
        Bytes of tiles' operands that an SM takes in out of L2 in a cycle of the boost clock.
    step_s : float
        Latency (s) of one step along k (:attr:`gpuledger.models.time_model.tiles.Generation.step_bytes` of each row) in
        a block that an SM computes alone: wait for the fetched, synchronise, multiply.
    conversion_bytes : float
        Bytes moved per element of the activations to bring them into the precision, in kernels before the
        multiplication (0: none).
    source : str
        Where they come from: fitted, or transferred from another GPU or precision.
    """

    launch_s: float
    dram_share: float
    tensor_share: float
    l2_bytes_per_clock: float
    step_s: float
    conversion_bytes: float = 0.0
    source: str = field(default="", compare=False)


#: Names of the constants, in order.
NAMES = tuple(f.name for f in dataclasses.fields(Constants) if f.name != "source")


def constants_of(gpu: Gpu, precision: str = "bf16", path: str | Path = TABLE) -> Constants:
    """Return the constants of a GPU: fitted ones where there are any, else those of the nearest fitted GPU.

    The nearest GPU is one of the same kind of matrix units, then of the same architecture, then of the nearest rate of
    an SM in a cycle. :func:`transferred` says how its constants carry over.

    Parameters
    ----------
    gpu : Gpu
    precision : str
        ``bf16``, ``fp8``, ``fp8_block``, ...; without a fit of its own, that of a related precision (`RELATED`).
    path : path
        The table of fitted constants.

    Returns
    -------
    Constants
        Its `source` says which.

    Raises
    ------
    InputError
        The table is unreadable or names an unknown GPU.
    """
    fitted = read_constants(path)
    for wanted in (precision, *RELATED.get(precision, ("bf16",))):
        if (gpu.name, wanted) in fitted:
            found = fitted[gpu.name, wanted]
            if wanted == precision:
                return found
            return dataclasses.replace(found, source=f"of {gpu.name} in {wanted}: {found.source}")
    for wanted in (precision, *RELATED.get(precision, ("bf16",))):
        donors = [find_gpu(name, file=path, place=f"GPU {name}") for name, of in fitted if of == wanted]
        if donors:
            donor = min(donors, key=lambda other: _distance(gpu, other))
            return transferred(fitted[donor.name, wanted], donor, gpu)
    raise ValueError(f"{path} holds no constants for {precision}")


def transferred(constants: Constants, donor: Gpu, gpu: Gpu) -> Constants:
    """Return one GPU's constants applied to another through the data sheets of both.

    The shares are of the data sheet and carry over as they are, and so does the time of a launch. A step along k takes
    as many cycles. What an SM takes in grows with what its matrix units compute in a cycle: they would starve
    otherwise. (Both rules hold within 10 % between the fitted A100 and H100.)
    """
    return dataclasses.replace(
        constants,
        step_s=float(f"{constants.step_s * donor.clock_hz / gpu.clock_hz:.4g}"),
        l2_bytes_per_clock=float(f"{constants.l2_bytes_per_clock * _rate(gpu) / _rate(donor):.4g}"),
        source=f"transferred from {donor.name}: {constants.source}",
    )


def _distance(gpu: Gpu, other: Gpu) -> tuple[bool, bool, float]:
    kinds = generation_of(gpu) is not generation_of(other)
    return kinds, gpu.architecture != other.architecture, abs(np.log(_rate(gpu) / _rate(other)))


def _rate(gpu: Gpu) -> float:
    """FLOP of the matrix units of an SM in a cycle."""
    return gpu.peak_flop_per_s("bf16") / (gpu.sms * gpu.clock_hz)


def read_constants(path: str | Path = TABLE) -> dict[tuple[str, str], Constants]:
    """Read fitted constants.

    Returns
    -------
    dict of (str, str) to Constants
        By GPU and precision.

    Raises
    ------
    InputError
        See :func:`gpuledger.readers.tabular.read_csv`.
    """
    return dict(_read(Path(path)))


@cache
def _read(path: Path) -> dict[tuple[str, str], Constants]:
    numbers = [Column(name, "number", minimum=0) for name in NAMES]
    table = read_csv(path, [Column("gpu"), Column("precision"), *numbers, Column("source")], ["gpu", "precision"])
    return {
        (row["gpu"], row["precision"]): Constants(**{key: row[key] for key in (*NAMES, "source")})
        for row in table.to_dict("records")
    }
