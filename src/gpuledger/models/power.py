"""What a GPU draws while a kernel runs, and at which clock it can keep on doing so.

    power = min((static + energy of a FLOP · FLOP/s + energy of a byte · byte/s) · (clock / full clock)^exponent, most)

The static part is drawn while any kernel runs, whatever it does. A FLOP has an energy by the type of the product, a
byte of DRAM the same with every type; both contain what on-chip storage and wires take. At `most_w` the GPU lowers its
clock, and with it the voltage, so that the same rates take less: the exponent, known where the clock was read. A kernel
that runs all the time then settles at the highest clock at which it draws no more
(:mod:`gpuledger.models.sustained`). Without an exponent the law tells the power there, but neither the rates nor what
the energies become.

Source of the form: J. Choi, D. Bedard, R. Fowler, R. Vuduc, A roofline model of energy, IPDPS 2013; the cap: J. Choi
et al., Algorithmic time, energy, and power on candidate HPC compute building blocks, IPDPS 2014. That power falls
faster than the clock: A. P. Chandrakasan, S. Sheng, R. W. Brodersen, Low-power CMOS digital design, JSSC 27 (1992).
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

import numpy as np
import pandas as pd

from gpuledger import files
from gpuledger.ledger.provenance import describe_file
from gpuledger.models.time_model.constants.fit_law import fit_law
from gpuledger.readers.gpus import Gpu, known_gpus

#: Constants that the study ``kernel_power`` has fitted, by GPU.
TABLE = files.RESOURCES / "power_constants.csv"

#: Constants by the type of the products.
FLOP_CONSTANTS: Mapping[str, str] = MappingProxyType(
    {name: f"{name}_pj_per_flop" for name in ("bf16", "fp8", "fp4", "fp32")}
)
#: Readings that a fit needs at least: of each type, of kernels that move bytes, and below the limit; and with less than
#: the full clock, for the exponent.
LEAST_READINGS, LEAST_SLOWED = 20, 10
#: From this share of the power limit on, a GPU is held to it; and below this share of its clock.
AT_LIMIT, FULL_CLOCK = 0.97, 0.98


@dataclass(frozen=True)
class PowerConstants:
    """Constants of one GPU; NaN: not measured."""

    static_w: float  # drawn by any kernel
    dram_pj_per_byte: float  # energy of a byte from or to DRAM
    most_w: float  # what the GPU is held to
    bf16_pj_per_flop: float = np.nan  # energy of a FLOP in 16 bits
    fp8_pj_per_flop: float = np.nan
    fp4_pj_per_flop: float = np.nan
    fp32_pj_per_flop: float = np.nan
    #: Of power at given rates, by the clock over the full one; NaN: the clock was not read.
    clock_exponent: float = np.nan
    source: str = field(default="", compare=False)  # what they were fitted to


#: Where fits start, halved until few kernels are at the limit, and the bounds within which a constant has its meaning;
#: `most_w` by the GPU's limit.
START = PowerConstants(300.0, 100.0, np.nan, **dict.fromkeys(FLOP_CONSTANTS.values(), 1.0))
RANGES = {
    "static_w": (1.0, 5000.0),
    "dram_pj_per_byte": (1.0, 10000.0),
    "clock_exponent": (0.05, 5.0),
    **dict.fromkeys(FLOP_CONSTANTS.values(), (0.01, 1000.0)),
}
#: What the law adds up.
_DRAWN = tuple(name for name in RANGES if name != "clock_exponent")
#: Shares of the GPU's limit that it may be held to.
_MOST_SHARE = (0.9, 1.05)
#: Largest share of the kernels that a fit may start with at the limit, where no other constant has an effect.
_CAPPED = 0.25


def power_w(
    constants: PowerConstants,
    flop_per_s: np.ndarray,
    bytes_per_s: np.ndarray,
    products: np.ndarray,
    clock_share: np.ndarray | float = 1.0,
) -> np.ndarray:
    """Predict what a GPU draws.

    Parameters
    ----------
    flop_per_s, bytes_per_s : float arrays of shape (kernels,)
        As reached: FLOP and bytes over the kernel's time.
    products : array of str, shape (kernels,)
        Types of the products: keys of `FLOP_CONSTANTS`.
    clock_share : float or float array of shape (kernels,)
        Of the full clock; below it the constants need an exponent.

    Returns
    -------
    ndarray of float64, shape (kernels,)
        Watts; NaN for FLOP of a type without an energy.
    """
    picojoules = np.select(
        [products == name for name in FLOP_CONSTANTS],
        [getattr(constants, constant) for constant in FLOP_CONSTANTS.values()],
        np.nan,
    )
    products_w = np.where(np.asarray(flop_per_s) > 0, picojoules * flop_per_s, 0.0)
    dynamic = 1e-12 * (products_w + constants.dram_pj_per_byte * bytes_per_s)
    slower = clock_share**constants.clock_exponent if np.isfinite(constants.clock_exponent) else 1.0
    return np.minimum((constants.static_w + dynamic) * slower, constants.most_w)


def fit_power(
    flop_per_s: np.ndarray,
    bytes_per_s: np.ndarray,
    products: np.ndarray,
    measured_w: np.ndarray,
    limit_w: float,
    clock_share: np.ndarray | None = None,
) -> PowerConstants:
    """Fit the constants of one GPU to steady readings.

    Parameters
    ----------
    flop_per_s, bytes_per_s, products
        As for :func:`power_w`.
    measured_w : float array of shape (kernels,)
        Positive and finite.
    limit_w : float
        The GPU's power limit.
    clock_share : float array of shape (kernels,), optional
        Clocks that were read meanwhile, over the full one.

    Returns
    -------
    PowerConstants
        With three significant digits; NaN for the energy of a type that fewer than `LEAST_READINGS` have, and for the
        exponent with fewer than `LEAST_SLOWED` clocks below the full one. Where no reading comes near the limit, it is
        taken for `most_w`.

    Raises
    ------
    ValueError
        Fewer than `LEAST_READINGS` readings of such types, or of them below the limit or of kernels that move bytes.
    """
    count = {name: int(((flop_per_s > 0) & (products == name)).sum()) for name in FLOP_CONSTANTS}
    missing = {constant: np.nan for name, constant in FLOP_CONSTANTS.items() if count[name] < LEAST_READINGS}
    told = (flop_per_s <= 0) | np.isin(products, [name for name in count if count[name] >= LEAST_READINGS])
    flop_per_s, bytes_per_s, products, measured_w = (of[told] for of in (flop_per_s, bytes_per_s, products, measured_w))
    if min((measured_w < AT_LIMIT * limit_w).sum(), (bytes_per_s > 0).sum()) < LEAST_READINGS:
        raise ValueError(f"a fit needs at least {LEAST_READINGS} readings below the limit, of kernels that move bytes")
    share = np.ones(len(measured_w)) if clock_share is None else np.minimum(clock_share[told], 1.0)
    held = share < FULL_CLOCK
    bounds = {name: of for name, of in RANGES.items() if name not in missing}
    start = replace(START, most_w=limit_w)
    if held.sum() >= LEAST_SLOWED:
        # Readings at the limit tell what rates take at lower clocks, so that the cap must not hide it.
        start = replace(start, most_w=np.inf, clock_exponent=1.0)
        missing["most_w"] = float(f"{np.median(measured_w[held]):.3g}")
    else:
        del bounds["clock_exponent"]
        if measured_w.max() > _MOST_SHARE[0] * limit_w:  # otherwise nothing tells
            bounds["most_w"] = (_MOST_SHARE[0] * limit_w, _MOST_SHARE[1] * limit_w)
    while (power_w(start, flop_per_s, bytes_per_s, products, share) >= limit_w).mean() > _CAPPED:
        start = replace(start, **{name: getattr(start, name) / 2 for name in _DRAWN})
    found = fit_law(
        lambda tried: power_w(tried, flop_per_s, bytes_per_s, products, share), start, bounds, measured_w, relative=True
    )
    return replace(found, **missing, source=f"fitted to {len(measured_w):,} steady readings")


@cache
def _measured() -> Mapping[str, PowerConstants]:
    with open(TABLE, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        name, source = row.pop("gpu"), row.pop("source")
        found[name] = PowerConstants(**{name: float(value or "nan") for name, value in row.items()}, source=source)
    return MappingProxyType(found)


def power_constants(gpu: str) -> PowerConstants | None:
    """Return the constants of a GPU by its name; None: nobody measured its power."""
    return _measured().get(gpu)


def chip_constants(gpu: Gpu) -> tuple[PowerConstants, str] | None:
    """Return the constants of a GPU, else of one with the same chip, SMs, clock and power limit, and whose they are.

    The DRAM may be another: an H100 has HBM3, an H200 HBM3e.
    """
    known = known_gpus(None)
    measured = sorted(_measured().items(), key=lambda one: one[0] != gpu.name)
    for name, constants in measured:
        chips = [(one.architecture, one.sms, one.clock_hz, one.board_power_w) for one in (gpu, known[name])]
        if chips[0] == chips[1]:
            return constants, name
    return None


def describe_power(used: Iterable[str]) -> dict:
    """Describe the table as an input of a prediction, with what the constants that it used were fitted to."""
    about = {"source": "constants of the law of power (resources/power_constants.csv)", "note": "; ".join(used)}
    return describe_file(TABLE, files.ROOT, about)


def mean_power_w(rows: pd.DataFrame, gpu: Gpu, group: np.ndarray, groups: int) -> np.ndarray:
    """Predict what a GPU draws in the mean over groups of kernels.

    Parameters
    ----------
    rows : DataFrame
        From :func:`gpuledger.models.time_model.step.predict`.
    group : int array of shape (rows,)
        0 … groups - 1.

    Returns
    -------
    ndarray of float64, shape (groups,)
        Watts, weighted by time; NaN where the GPU's power, or that of products of some type, was not measured.
    """
    constants = power_constants(gpu.name)
    # A table of one's own may give a GPU of that name less power.
    if constants is None or constants.most_w > _MOST_SHARE[1] * gpu.board_power_w:
        return np.full(groups, np.nan)
    each, count, macs, moved = (rows[name].to_numpy(float) for name in ("time_s", "count", "macs", "dram_bytes"))
    drawn = power_w(constants, 2 * macs / each, moved / each, rows["precision"].astype(str).to_numpy())
    time = each * count
    return np.bincount(group, drawn * time, groups) / np.bincount(group, time, groups)
