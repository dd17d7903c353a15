"""The constants of a GEMM on one GPU, each with a physical meaning, and the table of all fitted constants."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.ledger.provenance import describe_file
from gpuledger.models.time_model import cuda_cores
from gpuledger.models.time_model.attention.backward_law import BackwardConstants
from gpuledger.models.time_model.attention.decode_law import DecodeConstants
from gpuledger.models.time_model.attention.encoder_law import EncoderConstants
from gpuledger.models.time_model.attention.prefill_law import PrefillConstants
from gpuledger.models.time_model.attention.sparse_law import SparseConstants
from gpuledger.models.time_model.collectives import CollectiveConstants
from gpuledger.models.time_model.constants.donors import alike, foreign, nearest_gpu, sm_rate
from gpuledger.models.time_model.cuda_cores import on_cuda_cores
from gpuledger.models.time_model.gemms.tiles import generation_of, stacked
from gpuledger.models.time_model.moe import MoeConstants
from gpuledger.models.time_model.quantise import QuantiseConstants
from gpuledger.models.time_model.recurrent_law import ChunkedConstants, ConvolutionConstants, UpdateConstants
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.readers.tabular import Column, read_csv

#: How the clock of matrix units follows the power that a board allows: what products draw grew with the 2.06th power of
#: the clock on an H200, one for their rate and the rest as resources/power_constants.csv says.
_CLOCK_BY_POWER = 1 / 2.06
#: Fitted constants that come with the checkout, one row per kernel, GPU and data type; made by
#: ``benchmarks/time_constants.py``.
TABLE = files.RESOURCES / "time_constants.csv"

#: Engines whose kernels were measured, and what people call them for short.
ENGINES = {"sglang": "SGLang", "trtllm": "TRT-LLM", "vllm": "vLLM"}
#: The framework of kernels that PyTorch calls; no engine serves with them.
PYTORCH = "pytorch"
#: Precisions whose constants stand in for those of another, the nearest first.
RELATED = {
    "fp8_block": ("fp8", "bf16"),
    "fp8": ("bf16",),
    "int8": ("fp8", "bf16"),
    "fp4": ("fp8", "bf16"),
}


@dataclass(frozen=True)
class Constants:
    """What is fitted of a GPU in one precision."""

    launch_s: float  # least time of a kernel (s): a launch out of a captured graph, the first fetch, the last write
    dram_share: float  # share of the data sheet's DRAM bandwidth that a kernel reaches
    #: Share of the data sheet's dense peak that the matrix units reach in the middle of a large tile.
    tensor_share: float
    l2_bytes_per_clock: float  # bytes of tiles' operands that an SM takes in out of L2 in a cycle of the boost clock
    #: Latency (s) of one step along k (:attr:`gpuledger.models.time_model.gemms.tiles.Generation.step_bytes` of each
    #: row) in a block that an SM computes alone: wait for the fetched, synchronise, multiply.
    step_s: float
    #: Bytes moved per element of the activations to bring them into the precision, in kernels before the multiplication
    #: (0: none).
    conversion_bytes: float = 0.0
    #: Time (s) that an SM takes to convert one row of up to 2048 values, where a thread block converts a row; longer
    #: rows take half as long again for every further 2048 values. Of a block of groups, where blocks convert those; of
    #: a wait of all blocks, where those look for the largest value (0: no such kernel).
    conversion_row_s: float = 0.0
    #: Time (s) that adding the partial sums of a split k takes beside their traffic: a kernel of its own, or a wait.
    split_s: float = 2.9e-6
    #: Bytes of operands that an SM takes in in the time in which it writes a byte of results, when all SMs write.
    result_factor: float = 3.2
    #: Share by which long kernels take longer because full matrix units draw more power than the board allows.
    throttled: float = 0.0
    #: Time (s) that the host takes for a call, where it launches without a captured graph (0: in a graph). It overlaps
    #: with the GPU's work on the calls before.
    host_s: float = 0.0
    first_s: float = 4e-7  # by how much later (s) the first bytes of weights come from DRAM than from L2
    dispatch: str = "any"  # which tiles the kernel may take, one of `dispatch.NAMES`
    #: Where they come from: fitted, or transferred from another GPU or precision.
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class ProductConstants(Constants):
    """What is fitted of latent attention's products with a matrix for each head."""

    #: Bytes that an SM takes in out of L2 in a cycle of data that no other SM asks for.
    stream_bytes_per_clock: float = 20.0


#: Constants of any kind of kernel.
AnyConstants = (
    Constants
    | PrefillConstants
    | DecodeConstants
    | BackwardConstants
    | MoeConstants
    | CollectiveConstants
    | ConvolutionConstants
    | ChunkedConstants
    | UpdateConstants
    | EncoderConstants
    | QuantiseConstants
    | SparseConstants
)
#: Names of those of a GEMM, in order.
NAMES = tuple(f.name for f in dataclasses.fields(Constants) if f.type is float)


def constants_of(gpu: Gpu, precision: str = "bf16", path: str | Path = TABLE) -> Constants:
    """Return the constants of a GPU: fitted ones where there are any, else those of the nearest fitted GPU.

    :func:`gpuledger.models.time_model.constants.donors.distance` says which is nearest, :func:`transferred` how its
    constants carry over.

    Parameters
    ----------
    precision : str
        ``bf16``, ``fp8``, ``fp8_block``, ...; without a fit of its own, that of a related precision (`RELATED`), in
        ``fp32`` with the share of the peak that CUDA cores reach.
    path : path
        The table of fitted constants.

    Returns
    -------
    Constants
        Its `source` says which.
    """
    found = _nearest_constants(gpu, precision, path)
    return on_cuda_cores(found, gpu) if precision == cuda_cores.PRECISION else found


def _nearest_constants(gpu: Gpu, precision: str, path: str | Path) -> Constants:
    fitted = read_constants(path)
    for wanted in (precision, *RELATED.get(precision, ("bf16",))):
        if (gpu.name, wanted) in fitted:
            found = fitted[gpu.name, wanted]
            if wanted == precision:
                return found
            return dataclasses.replace(found, source=f"of {gpu.name} in {wanted}: {found.source}")
    wanted = (precision, *RELATED.get(precision, ("bf16",)))
    donors = {name: find_gpu(name, file=path, place=f"GPU {name}") for name, of in fitted if of in wanted}
    if donors:
        donor = nearest_gpu(gpu, donors.values(), "gemm")
        own = next(fitted[donor.name, of] for of in wanted if (donor.name, of) in fitted)
        return transferred(own, donor, gpu)
    raise ValueError(f"{path} holds no constants for {precision}")


def transferred(constants: AnyConstants, donor: Gpu, gpu: Gpu) -> AnyConstants:
    """Return one GPU's constants applied to another through the data sheets of both.

    The shares are of the data sheet and carry over as they are; so do the time of the host and what the library does. A
    step along k, a block and the conversion of a row take as many cycles; of a GEMM's launch, half does. What an SM
    takes in of tiles grows from one architecture to another with what its matrix units compute in a cycle: they would
    starve otherwise. (These rules hold within 10 % between the fitted A100 and H100.) Within an architecture it stays:
    an H20 or an RTX 4090 has another's SMs with slower matrix units, which what else an SM does keeps waiting the less
    the slower they are, and which draw less power. So has an RTX 3090, whose units are those of an L40S. How far the
    clock drops is known of one generation only. Boards without HBM sustain what their power allows: their share of the
    peak grows with the watts per FLOP, up to the whole peak (chosen with an L40S's error in sight, not an RTX PRO
    6000's). Those with HBM lose clock where they have fewer watts per FLOP than another board with the same SMs (chosen
    with published speeds of H100 and A100 PCIe in sight; its exponent was measured before).
    """
    slower = donor.clock_hz / gpu.clock_hz
    factors = dict.fromkeys(("step_s", "block_s", "chunk_s", "conversion_row_s"), slower)
    rate = sm_rate(gpu) / sm_rate(donor)
    factors["l2_bytes_per_clock"] = 1.0 if alike(donor, gpu) else rate
    if isinstance(constants, Constants):
        factors["launch_s"] = (1 + slower) / 2
    own = {name: getattr(constants, name) for name in factors if hasattr(constants, name)}
    scaled = {name: float(f"{value * factors[name]:.4g}") for name, value in own.items()}
    # Matrix units of the same kind, with the caches and the memory of a desktop's.
    same_units = generation_of(donor) is generation_of(gpu) and not stacked(donor) and not stacked(gpu)
    if rate < 1 and (alike(donor, gpu) or same_units) and hasattr(constants, "tensor_share"):
        scaled["tensor_share"] = float(f"{min(1.0, constants.tensor_share / rate):.4g}")
    if rate < 1 and alike(donor, gpu) and hasattr(constants, "throttled"):
        scaled["throttled"] = float(f"{constants.throttled * rate:.4g}")
    if isinstance(constants, Constants):
        if generation_of(donor) is not generation_of(gpu):
            scaled["throttled"] = generation_of(gpu).throttled
        power = _watts_per_flop(gpu) / _watts_per_flop(donor)
        if stacked(donor) and stacked(gpu):
            power = power**_CLOCK_BY_POWER if power < 1 and alike(donor, gpu) else np.nan
        elif stacked(donor) or stacked(gpu):
            power = np.nan
        if np.isfinite(power):
            scaled["tensor_share"] = float(f"{min(1.0, constants.tensor_share * power):.4g}")
    return dataclasses.replace(constants, **scaled, source=f"transferred from {donor.name}: {constants.source}")


def unseen_constants(kind: str, gpu: Gpu, kernel: str, precision: str) -> AnyConstants | None:
    """Return what other GPUs' measurements say about a kernel on this GPU.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    gpu : Gpu
        Its own rows of the table are left out.
    kernel : str
        As the table names it. A GEMM without it on another GPU takes that precision's with the shortest launch: most
        names stand for the same libraries. Constants without the host's calls come first.

    Returns
    -------
    dataclass or None
        The nearest GPU's constants, transferred; None if no other GPU has the kernel in that precision.
    """
    others = [entry for entry in read_table(kind) if entry.gpu != gpu.name and entry.precision == precision]
    gpus = {name: find_gpu(name, file=TABLE, place=f"GPU {name}") for name in dict.fromkeys(e.gpu for e in others)}
    others = [entry for entry in others if not foreign(gpu, gpus[entry.gpu])]
    same = [entry for entry in others if entry.kernel == kernel]
    if kind == "gemm":
        same = same or others
    if not same:
        return None
    donors = {entry.gpu: gpus[entry.gpu] for entry in same}
    nearest = nearest_gpu(gpu, donors.values(), kind, kernel.startswith("MLA"))
    own = [entry.constants for entry in same if entry.gpu == nearest.name]
    return transferred(min(own, key=_readiness), nearest, gpu)


def _readiness(constants: AnyConstants) -> tuple[float, float]:
    # A benchmark that times the host's calls says little about the start of a kernel.
    return getattr(constants, "host_s", 0.0), getattr(constants, "launch_s", 0.0)


def _watts_per_flop(gpu: Gpu) -> float:
    return gpu.board_power_w / gpu.peak_flop_per_s("bf16")


def read_constants(path: str | Path = TABLE) -> dict[tuple[str, str], Constants]:
    """Read the fitted constants of GEMMs.

    Returns
    -------
    dict of (str, str) to Constants
        By GPU and precision; where several kernels were fitted, those with the shortest launch, because a benchmark
        that times the host's calls says little about the kernel.
    """
    found: dict[tuple[str, str], Constants] = {}
    for entry in read_table("gemm", path):
        key = entry.gpu, entry.precision
        if key not in found or _readiness(entry.constants) < _readiness(found[key]):
            found[key] = entry.constants
    return found


class Entry(NamedTuple):
    """A row of the table of constants: of what they are, the dataclass that holds them, and what they are worth."""

    gpu: str
    framework: str
    kernel: str
    precision: str
    constants: AnyConstants
    #: Mean absolute percentage error of the shapes that were held back from the fit; NaN if unknown.
    error_percent: float = np.nan
    #: What the kernel was measured with, in order: of attention the dimension of heads (mean of keys and values), of a
    #: mixture of experts their number, the hidden size and how many a token chooses. Empty if unknown.
    shapes: tuple[tuple[float, ...], ...] = ()


#: What the constants of a kind of kernel are held in.
KINDS = {
    "gemm": Constants,
    "prefill": PrefillConstants,
    "decode": DecodeConstants,
    "backward": BackwardConstants,
    "moe": MoeConstants,
    "collective": CollectiveConstants,
    "convolution": ConvolutionConstants,
    "chunked_rule": ChunkedConstants,
    "state_update": UpdateConstants,
    "encoder": EncoderConstants,
    "quantise": QuantiseConstants,
    "bmm": ProductConstants,
    "sparse": SparseConstants,
}
#: Columns that say whose constants a row holds; together they name it.
KEYS = ("kind", "gpu", "framework", "kernel", "precision")
#: Columns that say how many shapes were held back from the fit, and their mean absolute error (%).
JUDGED = ("held_back_shapes", "held_back_percent")
#: The column of an entry's shapes: ``64 128`` of attention, ``8x4096x2 128x2048x8`` of experts.
SHAPES = "shapes"
#: Counts in a source, as in "fitted to 2226 measured shapes of 35742 of AIConfigurator 0.12.0", which people read.
_COUNTS = re.compile(r"(?<= )[0-9]{4,}(?= (?:measured|of) )")


def read_table(kind: str, path: str | Path = TABLE) -> tuple[Entry, ...]:
    """Read the fitted constants of one kind of kernel.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    path : path
        A CSV of `KEYS`, every constant of every kind (empty where a kind has no such constant), `SHAPES` and `JUDGED`
        (optional) and ``source``.

    Raises
    ------
    InputError
        A missing or negative constant, a shape that is no numbers; see also
        :func:`gpuledger.readers.tabular.read_csv`.
    """
    return _read(Path(path), kind)


@cache
def _read(path: Path, kind: str) -> tuple[Entry, ...]:
    entries = []
    for line, row in _rows(path):
        if row["kind"] != kind:
            continue
        values = {f.name: row.get(f.name) for f in dataclasses.fields(KINDS[kind])}
        if missing := [name for name, value in values.items() if pd.isna(value) or value == ""]:
            raise InputError(path, f"line {line}", f"{missing[0]} of a {kind} kernel is missing", "give it")
        values["source"] = _COUNTS.sub(lambda digits: f"{int(digits[0]):,}", values["source"])
        error = row.get(JUDGED[1])
        error = np.nan if error is None else float(error)
        try:
            shapes = tuple(tuple(map(float, shape.split("x"))) for shape in (row.get(SHAPES) or "").split())
        except ValueError:
            problem = f"'{row[SHAPES]}' is no list of shapes"
            raise InputError(path, f"line {line}, column {SHAPES}", problem, "write 64 128, or 8x4096x2") from None
        entries.append(Entry(*(row[name] or "" for name in KEYS[1:]), KINDS[kind](**values), error, shapes))
    return tuple(entries)


@cache
def _rows(path: Path) -> list[tuple[int, dict]]:
    """Return the rows of every kind, each with its line."""
    names = {f.name: f.type for of in KINDS.values() for f in dataclasses.fields(of) if f.name != "source"}
    words = {float: "number", int: "integer", str: "text"}
    names |= dict(zip((*JUDGED, SHAPES), (int, float, str), strict=True))
    cells = [Column(name, words[of], minimum=0, optional=True) for name, of in names.items()]
    labels = [Column("kind", choices=tuple(KINDS)), *(Column(name, optional=name == "precision") for name in KEYS[1:])]
    return list(enumerate(read_csv(path, [*labels, *cells, Column("source")], KEYS).to_dict("records"), 2))


def describe_constants(used: Iterable[str]) -> dict:
    """Describe the table as an input of a prediction, with what the constants that it used were fitted to."""
    note = ". ".join(["Constants of the time model", *filter(None, ["; ".join(used)])])
    about = {"source": "constants of the time model (resources/time_constants.csv)", "note": note}
    return describe_file(TABLE, files.ROOT, about)
