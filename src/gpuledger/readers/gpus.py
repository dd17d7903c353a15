"""GPU data sheets: ``resources/gpus.csv``, and users' own tables in the same form."""

import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger import files, schemas
from gpuledger.errors import InputError
from gpuledger.readers import tabular
from gpuledger.readers.tabular import Column

#: The built-in table.
TABLE = files.RESOURCES / "gpus.csv"

#: Tolerance of the check FP32 peak = SMs × lanes × 2 × clock: data sheets round both sides to two or three digits.
IDENTITY_TOLERANCE = 0.01

#: Plausible clocks (Hz), L2 sizes (bytes) and peaks over DRAM bandwidth (FLOP/byte); other values have a wrong unit.
PLAUSIBLE = {"clock": (1e7, 2e10), "l2": (2**16, 2**34), "balance": (1.0, 1e4)}

#: Precisions of a peak, and the precisions in which hardware without one computes (after dequantisation).
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
STAND_INS = {
    "fp64": ("fp64",),
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "bf16", "fp16", "fp32"),
    "fp4": ("fp4", "bf16", "fp16", "fp32"),
    "int4": ("bf16", "fp16", "fp32"),
}

_BYTES = {"byte": 1, **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}}
_BYTES |= {f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}
_RATES = {"": 1, **{p: 1000**n for n, p in enumerate("kmgtp", 1)}}
_UNITS: Mapping[str, Mapping[str, float]] = {
    "frequency": {f"{p}hz": factor for p, factor in _RATES.items()},
    "bytes": _BYTES,
    "bytes_per_second": {f"{unit}_per_s": factor for unit, factor in _BYTES.items()},
    "bytes_per_sm": {f"{unit}_per_sm": factor for unit, factor in _BYTES.items()},
    "flops": {f"{p}flop_per_s": factor for p, factor in _RATES.items()},
    "ops": {f"{p}op_per_s": factor for p, factor in _RATES.items()},
    "power": {"w": 1, "kw": 1000},
}
# Quantities with a unit: kind of unit, whether a table must have them, their unit in the built-in table.
_QUANTITIES: Mapping[str, tuple[str, bool, str]] = {
    "clock": ("frequency", True, "mhz"),
    "dram": ("bytes_per_second", True, "gb_per_s"),
    "dram_capacity": ("bytes", False, "gib"),
    "l2": ("bytes", True, "mib"),
    "shared_memory": ("bytes_per_sm", False, "kib_per_sm"),
    **{name: ("ops" if name == "int8" else "flops", False, "tflop_per_s") for name in PRECISIONS},
    "int8": ("ops", False, "top_per_s"),
    "link": ("bytes_per_second", False, "gb_per_s"),
    "peer": ("bytes_per_second", False, "gb_per_s"),
    "board_power": ("power", False, "w"),
}
_PLAIN = (
    Column("name"),
    Column("title", optional=True),
    Column("aliases", optional=True),
    Column("architecture", optional=True),
    Column("memory", optional=True),
    Column("sms", "integer", minimum=1, maximum=1e6),
    Column("lanes_per_sm", "integer", minimum=1, maximum=1e6, optional=True),
    Column("hypothetical", choices=("true", "false"), optional=True),
    Column("identity_exception", optional=True),
    Column("source", optional=True),
    Column("note", optional=True),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU, in base units."""

    name: str  # identifier, such as ``h100-sxm``
    title: str  # full name
    #: ``volta``, ``ampere``, ``ada``, ``hopper``, ``blackwell``, ``cdna3``, or any word in a user's table.
    architecture: str
    sms: int  # streaming multiprocessors (compute units)
    lanes_per_sm: int  # FP32 lanes (0: unknown)
    clock_hz: float  # boost clock
    #: Bandwidth and capacity of DRAM, capacity of L2 and of an SM's shared memory (NaN: unknown).
    dram_bytes_per_s: float
    dram_bytes: float
    l2_bytes: float
    shared_memory_bytes_per_sm: float
    #: Dense peak of every precision of `PRECISIONS` (FLOP/s, INT8: operations/s), of matrix units if there are any.
    flops: Mapping[str, float | None] = field(hash=False)
    #: Bandwidth to other GPUs, per direction (NVLink, Infinity Fabric, else PCIe; NaN: unknown).
    link_bytes_per_s: float = math.nan
    #: Bandwidth to any one of them, where each has links of its own (NaN: as much as to all).
    peer_bytes_per_s: float = math.nan
    board_power_w: float = math.nan  # NaN: unknown
    memory: str = ""  # kind of DRAM, such as ``HBM3`` or ``GDDR6`` (empty: unknown)
    hypothetical: bool = False  # not an existing GPU
    aliases: tuple[str, ...] = ()
    source: str = ""
    note: str = ""
    file: Path = field(default=TABLE, repr=False)  # the table that describes it

    @property
    def dram_capacity(self) -> str:
        """The capacity of DRAM as text: bytes in powers of ten, and in powers of two as data sheets mean their GB."""
        gb, gib = self.dram_bytes / 1e9, self.dram_bytes / 2**30
        return "unknown" if math.isnan(gb) else f"{gb:.1f} GB ({gib:.4g} GiB)"

    def peak_flop_per_s(self, precision: str) -> float:
        """Peak of a precision, or of its first stand-in that the hardware has (`STAND_INS`).

        Raises
        ------
        ValueError
            An unknown precision, or no peak for it and its stand-ins.
        """
        for name in STAND_INS.get(precision, ()):
            if self.flops.get(name):
                return self.flops[name]
        raise ValueError(f"{self.name} has no peak for {precision}; it has {', '.join(self.precisions)}")

    @property
    def precisions(self) -> list[str]:
        """The precisions with a peak."""
        return [name for name, peak in self.flops.items() if peak]


def roofline_time_s(
    gpu: Gpu, flop: np.ndarray | float, dram_bytes: np.ndarray | float, precision: str = "bf16"
) -> np.ndarray | float:
    """Return the roofline time (s), the larger of compute and DRAM time, without any overhead."""
    compute = np.asarray(flop) / gpu.peak_flop_per_s(precision)
    return np.maximum(compute, np.asarray(dram_bytes) / gpu.dram_bytes_per_s)[()]


def find_gpu(name: str, gpus: Mapping[str, Gpu] | None = None, file: str | Path = TABLE, place: str = "") -> Gpu:
    """Find a GPU by id, title, alias or driver name, regardless of case, ``_``, blanks and the vendor's name.

    Parameters
    ----------
    gpus : mapping, optional
        From :func:`read_gpus`; default: the built-in table.
    """
    gpus = read_gpus() if gpus is None else gpus
    if name in gpus:
        return gpus[name]
    wanted = _key(name)
    for gpu in gpus.values():
        if _is(gpu, name):
            return gpu
    known = [*gpus, *(alias for gpu in gpus.values() for alias in gpu.aliases)]
    hint = schemas.nearest(wanted, known)
    raise InputError(
        file, place, f"unknown GPU '{name}'", hint if hint.endswith("?") else f"known are: {', '.join(gpus)}"
    )


def gpu_named(name: str) -> Gpu | None:
    """Find a GPU of the built-in table as :func:`find_gpu` does; None if there is none of this name."""
    try:
        return find_gpu(name)
    except InputError:
        return None


def rows_on(gpu: Gpu, table: pd.DataFrame, column: str, path: Path) -> pd.Series:
    """Return which rows of a table of runs name a GPU in a column; at least one has to."""
    found = {name: gpu_named(name) or gpu_named(name.removesuffix("_sxm")) for name in table[column].unique()}
    names = {name: one.name for name, one in found.items() if one}
    own = table[column].map(names) == gpu.name
    if not own.any():
        known = ", ".join(sorted(set(names.values()))) or "those of `gpuledger gpus`"
        raise InputError(path, f"column {column}", f"no run on {gpu.name}", f"set gpu to one of {known}")
    return own


@lru_cache(4096)  # each name of a table is compared with all others
def _key(name: str) -> str:
    key = re.sub(r"[\s_-]+", "-", name.strip().lower())
    return re.sub(r"^(nvidia|amd)-", "", key)


def read_gpus(path: str | Path | None = None) -> dict[str, Gpu]:
    """Read a table of GPUs.

    Parameters
    ----------
    path : path, optional
        A CSV or the first sheet of an Excel file (``.xlsx``), with one row per GPU. Column names end with their unit:
        ``dram_gb_per_s`` (bandwidth; also ``tb``, ``gib``, ...), ``clock_mhz`` (``hz``, ``ghz``), ``l2_mib`` (``kib``,
        ``mb``, ...), ``dram_capacity_gib``, ``shared_memory_kib_per_sm``, ``bf16_tflop_per_s`` and so on for each
        precision (``gflop``, ``pflop``), ``int8_top_per_s``, ``link_gb_per_s`` (per direction), ``peer_gb_per_s``
        (where each of the other GPUs has links of its own), ``board_power_w``. ``architecture`` and ``memory`` say
        which measured GPU is nearest. Required are ``name``, ``sms``, clock, DRAM
        bandwidth, L2 and one peak. Default: the built-in table.

    Returns
    -------
    dict of str to Gpu
        By id, in the order of the table.

    Raises
    ------
    InputError
        A missing or unknown column or unit, an invalid cell, a duplicate name, a row without any peak; and, unless
        ``identity_exception`` gives a reason, an FP32 peak that is not SMs × lanes × 2 × clock within
        `IDENTITY_TOLERANCE`, or a value outside `PLAUSIBLE`.
    """
    if path is None:
        return dict(_built_in())
    path = Path(path)
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        return _read_excel(path)
    if path.suffix.lower() in (".xls", ".ods", ".numbers"):
        raise InputError(path, "", "not a CSV or .xlsx file", "save it as CSV or as .xlsx")
    return _read_table(path)


def known_gpus(file: str | Path | None) -> dict[str, Gpu]:
    """Return the GPUs of a user's file, if there is one, and the built-in ones."""
    return with_built_in(read_gpus(file) if file else {})


def with_built_in(own: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """Return the user's GPUs and the built-in ones; the user's come first: they may have a built-in name or alias."""
    return {**own, **_built_in(), **own}


@cache
def _built_in() -> dict[str, Gpu]:
    return _read_table(TABLE)


def _read_table(path: Path) -> dict[str, Gpu]:
    header = tabular.header(path)
    units = _units(path, header)
    columns = [*_PLAIN]
    columns += [
        Column(f"{quantity}_{unit}", "number", minimum=1e-9, maximum=1e18, optional=not _QUANTITIES[quantity][1])
        for quantity, unit in units.items()
    ]
    table = tabular.read_csv(path, columns, ["name"])
    gpus: dict[str, Gpu] = {}
    for number, row in enumerate(table.to_dict("records"), 2):
        gpu = _gpu(path, f"line {number}", row, units)
        taken = next((key for key in (gpu.name, *gpu.aliases) for other in gpus.values() if _is(other, key)), None)
        if taken:
            raise InputError(path, f"line {number}", f"a second GPU is named '{taken}'", "rename one of them")
        gpus[gpu.name] = gpu
    return gpus


def _is(gpu: Gpu, name: str) -> bool:
    return _key(name) in (_key(gpu.name), *map(_key, gpu.aliases))


def _units(path: Path, header: list[str]) -> dict[str, str]:
    """The unit of each quantity, from the end of its column's name."""
    plain = {column.name for column in _PLAIN}
    found: dict[str, str] = {}
    for name in header:
        if name in plain:
            continue
        # The longest quantity that matches: dram_capacity before dram.
        quantity = max((q for q in _QUANTITIES if name == q or name.startswith(f"{q}_")), key=len, default=None)
        if quantity is None:
            known = [*plain, *(f"{q}_{unit}" for q, (_, _, unit) in _QUANTITIES.items())]
            raise InputError(path, f"line 1, column {name}", f"unknown column '{name}'", schemas.nearest(name, known))
        kind, _, usual = _QUANTITIES[quantity]
        unit = name[len(quantity) + 1 :]
        if unit not in _UNITS[kind]:
            problem = f"unknown unit '{unit}'" if unit else "the unit is missing"
            remedy = f"write it as '{quantity}_{usual}', or with one of {', '.join(_UNITS[kind])}"
            raise InputError(path, f"line 1, column {name}", problem, remedy)
        if quantity in found:
            raise InputError(path, f"line 1, column {name}", f"a second column for {quantity}", "keep one of them")
        found[quantity] = unit
    for quantity, (_, required, usual) in _QUANTITIES.items():
        if required and header and quantity not in found:
            raise InputError(path, "line 1", f"the column '{quantity}_{usual}' is missing", "add it, with its unit")
    return found


def _gpu(path: Path, place: str, row: Mapping, units: Mapping[str, str]) -> Gpu:
    value = {
        quantity: float(f"{row[f'{quantity}_{unit}'] * _UNITS[_QUANTITIES[quantity][0]][unit]:.15g}")
        for quantity, unit in units.items()
    }
    words = {
        name: str(row.get(name, "") or "") for name in ("title", "aliases", "architecture", "memory", "source", "note")
    }
    lanes = row.get("lanes_per_sm")
    lanes = 0 if lanes is None or pd.isna(lanes) else int(lanes)
    flops = {name: None if math.isnan(value.get(name, math.nan)) else value[name] for name in PRECISIONS}
    if not any(flops.values()):
        remedy = "fill in bf16_tflop_per_s or another precision"
        raise InputError(path, f"{place}, GPU {row['name']}", "it has no peak of any precision", remedy)
    gpu = Gpu(
        name=row["name"],
        title=words["title"] or row["name"],
        architecture=words["architecture"].lower() or "unknown",
        sms=int(row["sms"]),
        lanes_per_sm=lanes,
        clock_hz=value["clock"],
        dram_bytes_per_s=value["dram"],
        dram_bytes=value.get("dram_capacity", math.nan),
        l2_bytes=value["l2"],
        shared_memory_bytes_per_sm=value.get("shared_memory", math.nan),
        flops=flops,
        link_bytes_per_s=value.get("link", math.nan),
        peer_bytes_per_s=value.get("peer", math.nan),
        board_power_w=value.get("board_power", math.nan),
        memory=words["memory"],
        hypothetical=row.get("hypothetical") == "true",
        aliases=tuple(filter(None, (alias.strip() for alias in words["aliases"].split(";")))),
        source=words["source"],
        note=words["note"],
        file=path,
    )
    if not row.get("identity_exception"):
        _check_identity(path, place, gpu)
        _check_magnitudes(path, f"{place}, GPU {gpu.name}", gpu, units)
    return gpu


def _check_magnitudes(path: Path, place: str, gpu: Gpu, units: Mapping[str, str]) -> None:
    """Raise an error for values that only a wrong unit explains."""
    peak = max(gpu.flops[name] or 0 for name in ("fp32", "tf32", "bf16", "fp16")) or max(
        filter(None, gpu.flops.values())
    )
    named = {quantity: f"{quantity}_{unit}" for quantity, unit in units.items()}
    for what, value, (low, high), unit in (
        (named["clock"], gpu.clock_hz, PLAUSIBLE["clock"], "Hz"),
        (named["l2"], gpu.l2_bytes, PLAUSIBLE["l2"], "bytes"),
        (f"the peak over {named['dram']}", peak / gpu.dram_bytes_per_s, PLAUSIBLE["balance"], "FLOP/byte"),
    ):
        if not low <= value <= high:
            remedy = "correct the unit or the value, or give the reason in identity_exception"
            raise InputError(path, place, f"{what} is {value:.4g} {unit}, not within {low:.4g} … {high:.4g}", remedy)


def _check_identity(path: Path, place: str, gpu: Gpu) -> None:
    if not (gpu.flops["fp32"] and gpu.lanes_per_sm):
        return
    expected = gpu.sms * gpu.lanes_per_sm * 2 * gpu.clock_hz
    if abs(gpu.flops["fp32"] / expected - 1) > IDENTITY_TOLERANCE:
        problem = (
            f"the FP32 peak of {gpu.name}, {gpu.flops['fp32'] / 1e12:.4g} TFLOP/s, is not "
            f"{gpu.sms} SMs × {gpu.lanes_per_sm} lanes × 2 × {gpu.clock_hz / 1e6:g} MHz = {expected / 1e12:.4g} TFLOP/s"
        )
        remedy = "correct one of them (peaks are dense, without sparsity), or give the reason in identity_exception"
        raise InputError(path, f"{place}, GPU {gpu.name}", problem, remedy)


def _read_excel(path: Path) -> dict[str, Gpu]:
    """Read the first sheet of an Excel file like a CSV."""
    from gpuledger.readers.workbooks import first_sheet  # takes 0.2 s

    with tempfile.TemporaryDirectory() as folder:
        table = first_sheet(path, Path(folder, "sheet.csv"))
        try:
            return {name: replace(gpu, file=path) for name, gpu in _read_table(table).items()}
        except InputError as error:
            raise InputError(path, error.place.replace("line ", "row ", 1), error.problem, error.remedy) from None
