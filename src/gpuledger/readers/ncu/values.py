"""Values of a report by metric name, whatever its page calls them and however a sum was printed.

ncu prints one counter as ``.sum``, as ``.sum.per_second``, as ``.sum.per_cycle_elapsed`` or as a share of its peak, and
the details page prints labels. `Values` finds the sum in any of them.
"""

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.readers.ncu.labels import raw_name, raw_names
from gpuledger.readers.ncu.report import Report

#: Units that a metric may have, by how its name ends or begins; an empty unit is accepted everywhere.
_UNITS = (
    (re.compile(r"\.pct(_of_peak|$)|_pct$|_pct\."), {"%"}),
    (re.compile(r"bytes\w*\.(sum|avg)\.per_second$"), {"byte/s"}),
    (re.compile(r"cycles_\w+\.(sum|avg|max|min)\.per_second$"), {"hz", "cycle/s"}),
    (re.compile(r"\.per_second$"), None),
    (re.compile(r"^gpu__time_\w+\.(sum|avg|max)$"), {"ns"}),
    (re.compile(r"bytes\w*\.sum$"), {"byte"}),
    (re.compile(r"cycles_\w+\.(sum|avg|max)$"), {"cycle"}),
    (re.compile(r"inst_executed\w*\.sum$"), {"inst"}),
)
#: Units of which ncu prints small multiples (usecond, Mbyte) and whose values are whole or, of rates, large.
_SCALED = ("ns", "byte", "byte/s", "cycle", "cycle/s", "hz")
_TIMES = ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max")
_CLOCKS = (
    *(f"{unit}__cycles_elapsed.avg.per_second" for unit in ("sm", "smsp", "gpc")),
    *("gpc__cycles_elapsed.max.per_second", "SM Frequency"),
)
#: What ncu prints where it has no number.
_NOTHING = re.compile(r"\W*(n/?a|no data|-?nan|-?inf|)\W*(\(ind\))?", re.IGNORECASE)
_RATE = re.compile(
    r"(?P<counter>.+\.sum)\.(?P<how>per_second|per_cycle_elapsed|per_cycle_active|pct_of_peak_sustained_(?:elapsed|active))"
)


def _allowed(name: str) -> set[str] | None:
    return next((units for pattern, units in _UNITS if pattern.search(name)), None)


class Values:
    """Values by launch.

    Attributes
    ----------
    derived : set of str
        Counters whose sum was computed from a rate.
    """

    def __init__(self, report: Report):
        self.report, self.launches, self.derived = report, report.launches.index, set()
        self._first = self.launches[0] if len(self.launches) else 0
        rows = report.metrics[report.metrics["value"].notna()]
        labels, units = rows["metric"].cat.categories, rows["unit"].cat.categories
        codes = rows["metric"].cat.codes.to_numpy(np.int64) * len(units) + rows["unit"].cat.codes
        which, pairs = pd.factorize(codes, sort=True)
        self._units = [str(units[pair % len(units)]) for pair in pairs]
        self._places: dict[str, list[int]] = {}
        for place, pair in enumerate(pairs):
            label = str(labels[pair // len(units)])
            name = raw_name(label, self._units[place])
            # A label of one metric is that metric, also with a unit that it cannot have.
            if name == label and len(names := raw_names(label)) == 1:
                only = names.pop()
                name = only if _allowed(only) or not self._units[place] else name
            self._places.setdefault(name, []).append(place)
        order = np.argsort(which.astype(np.min_scalar_type(len(pairs))), kind="stable")  # small codes sort faster
        self._rows = np.split(order, np.cumsum(np.bincount(which, minlength=1))[:-1])
        self._launch, self._value = rows["launch"].to_numpy(), rows["value"].to_numpy(np.float64)
        self._found: dict[str, pd.Series | None] = {}
        texts = report.metrics[report.metrics["value"].isna() & report.metrics["text"].notna()]
        by_metric = texts.groupby("metric", observed=True)
        self._texts = {raw_name(str(name), str(rows["unit"].iloc[0])): rows for name, rows in by_metric}

    def names(self) -> Iterable[str]:
        """Return the names of all metrics with a number."""
        return self._places

    def get(self, *names: str) -> pd.Series | None:
        """Return the values (float64, NaN where a launch has none) of the first name, filled up from the next ones."""
        found = [values for name in names if (values := self._one(name)) is not None]
        for values in found[1:]:
            found[0] = found[0].fillna(values)
        return found[0] if found else None

    def _warn_of_texts(self, name: str) -> None:
        rows = self._texts.pop(name, None)
        if rows is None:
            return
        odd = [text for text in rows["text"].unique() if not _NOTHING.fullmatch(text)]
        if odd:
            launch = rows["launch"][rows["text"] == odd[0]].iloc[0]
            done = "taken as not recorded; where it is a number, correct it or the decimal sign"
            warn(self.report.path, f"launch {launch}, {name}", f"{odd[0]!r} is not a number", done)

    def _one(self, name: str) -> pd.Series | None:
        self._warn_of_texts(name)
        if name in self._found or name not in self._places:
            return self._found.setdefault(name, None)
        allowed = _allowed(name)
        values = np.full(len(self.launches), np.nan)
        for place in self._places[name]:
            unit = self._units[place]
            rows = self._rows[place]
            if allowed and unit and unit not in allowed:
                wanted = " or ".join(sorted(allowed))
                at = f"launch {self._launch[rows[0]]}, {name}"
                raise InputError(
                    self.report.path, at, f"the unit is {unit!r} where {wanted} is expected", "correct the unit"
                )
            if allowed and not unit and self._is_scaled(name, self._value[rows], sorted(allowed)[0]):
                continue
            # The same metric may be in several sections, with more or fewer digits: the first is kept.
            values[self._launch[rows[::-1]] - self._first] = self._value[rows[::-1]]
        if (values < 0).any():
            at = int(np.flatnonzero(values < 0)[0])
            place = f"launch {self._first + at}, {name}"
            raise InputError(self.report.path, place, f"{values[at]:g} is negative", "correct the value")
        return self._found.setdefault(name, pd.Series(values, self.launches, name=name))

    def _is_scaled(self, name: str, values: np.ndarray, unit: str) -> bool:
        """Tell, with a warning, whether values without a unit were scaled: then each is below 1000, few are whole."""
        broken = values[values != np.floor(values)]
        if unit not in _SCALED or not len(broken) or values.max() >= 1000:
            return False
        problem = f"{broken[0]:g} has no unit, and cannot be in {unit}"
        done = "taken as not recorded: keep the units, or print with --print-units base"
        warn(self.report.path, name, problem, done)
        return True

    def sum_of(self, counter: str) -> pd.Series | None:
        """Return the sum of a counter (``lts__t_bytes``), computed from a rate where only one was printed."""
        total = self.get(f"{counter}.sum", counter)
        for values in self._sums_from_rates(counter):
            filled = values if total is None else total.fillna(values)
            if total is None or filled.notna().sum() > total.notna().sum():
                self.derived.add(counter)
            total = filled
        return total

    def _sums_from_rates(self, counter: str) -> Iterable[pd.Series]:
        unit = counter.partition("__")[0]
        cycles = {how: self._cycles(unit, how) for how in ("elapsed", "active")}
        if (rate := self.get(f"{counter}.sum.per_second")) is not None and (time := self.seconds()) is not None:
            yield rate * time
        for how, count in cycles.items():
            if count is None:
                continue
            if (rate := self.get(f"{counter}.sum.per_cycle_{how}")) is not None:
                yield rate * count
            share, peak = (
                self.get(f"{counter}.sum.pct_of_peak_sustained_{how}"),
                self.get(f"{counter}.sum.peak_sustained"),
            )
            if share is not None and peak is not None:
                yield share / 100 * peak * count

    def _cycles(self, unit: str, how: str) -> pd.Series | None:
        own = [f"{unit}__cycles_{how}.{kind}" for kind in ("avg", "max")]
        if unit not in ("sm", "smsp"):
            return self.get(*own)
        same = [f"{other}__cycles_{how}.{kind}" for other in ("sm", "smsp") for kind in ("avg", "max")]
        cycles = self.get(*own, *same)
        if how == "active":
            return cycles
        time = self.get(*_TIMES)
        # The clock of the SMs before that of the GPCs: rates are of the unit's own cycles, a few fewer.
        clocks = [f"{unit}__cycles_elapsed.avg.per_second", *_CLOCKS]
        by_clock = None if time is None or (rate := self.get(*clocks)) is None else time / 1e9 * rate
        exact = by_clock if any(name in self._places for name in clocks[:3]) else None
        counted = self.get("gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg", "Elapsed Cycles")
        for found in (exact, counted, by_clock):
            if found is not None:
                cycles = found if cycles is None else cycles.fillna(found)
        return cycles

    def clock_hz(self) -> pd.Series | None:
        """Return the clock of the SMs."""
        return self.get(*_CLOCKS)

    def seconds(self) -> pd.Series | None:
        """Return the duration, from cycles and clock where it was not recorded."""
        printed = self.get(*_TIMES)
        time = None if printed is None else printed / 1e9
        cycles, clock = self._cycles("sm", "elapsed"), self.clock_hz()
        if cycles is not None and clock is not None:
            counted = cycles / clock.where(clock > 0)
            time = counted if time is None else time.fillna(counted)
        return time

    def counters(self, pattern: str) -> pd.DataFrame:
        """Return the sums of all counters whose name (without ``.sum``) matches, as a wide table of whole numbers.

        Sums computed from rates, and averages of summaries, are rounded.
        """
        found = {}
        for name in self.names():
            match = _RATE.fullmatch(name)
            counter = (match["counter"] if match else name).removesuffix(".sum")
            # Neither shares and averages, nor what was sampled over time (TPC.TriageCompute.sm__…).
            if "." not in counter and re.search(pattern, counter) and f"{counter}.sum" not in found:
                total = self.sum_of(counter)
                if total is not None:
                    inexact = counter in self.derived or self.report.page == "summary"
                    found[f"{counter}.sum"] = total.round() if inexact else total
        return pd.DataFrame(found, index=self.launches)
