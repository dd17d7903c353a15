"""Measurements of a sweep: a tidy table or a folder of ncu output, as points in base units with their spread."""

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger import schemas
from gpuledger.errors import InputError, warn
from gpuledger.ledger.datasets import Case, folder_files
from gpuledger.readers import kernel_names, ncu
from gpuledger.readers.tabular import Column, read_csv

#: Variables of a sweep.
VARIABLES = ("n_layer", "hidden_dim", "seq_len")
#: A class's metric and where it was measured: the key of a point without its unit.
PLACE = ["kernel_class", "metric", *VARIABLES]
#: Key of a class's point.
POINT = ("kernel_class", "metric", "unit", *VARIABLES)
#: Unit of a pure number, and of values printed without a unit.
NUMBER, UNKNOWN_UNIT = "1", "unknown"

#: Larger than any counter in any unit; squares of smaller values do not overflow.
LARGEST_VALUE = 1e30

_SIZES = tuple(Column(name, "integer", minimum=1, maximum=2**40) for name in VARIABLES)
_TIDY = (
    Column("kernel_class"),
    Column("metric"),
    Column("unit"),
    *_SIZES,
    Column("value", "number", minimum=0, maximum=LARGEST_VALUE),
    Column("kernel_name", optional=True),
    Column("launch", "integer", minimum=0, optional=True),
)
_OBSERVATIONS = (
    Column("model"),
    Column("kernel_class"),
    Column("kernel_name"),
    Column("metric"),
    Column("observation", choices=("zero", "nonzero", "lower", "higher")),
)
# Nsight Compute's base units; a rate has two of them.
_WORDS = frozenset(
    """
    1 % block bit byte cluster cycle device hz inst instruction launch ns op operation packet pass query register
    request s sector SM sm tag thread tile transaction unknown warp wavefront
    """.split()  # noqa: SIM905
)
# Units that follow from a metric's name; rates and ratios have ``per`` or ``pct`` in their names.
_NAMED = (
    (re.compile(r"pct"), "%"),
    (re.compile(r"per_|ratio|rate"), None),
    (re.compile(r"^\w+__\w*bytes"), "byte"),
    (re.compile(r"^\w+__\w*sectors"), "sector"),
    (re.compile(r"^\w+__\w*inst_(?:executed|issued)"), "inst"),
    (re.compile(r"^\w+__(?:cycles|\w+_cycles)_"), "cycle"),
    (re.compile(r"^\w+__time_duration"), "ns"),
)
_DEVICE = "device__attribute_display_name"
# Counters of a launch, not attributes of the device, of the launch configuration or of the profiler.
_COUNTER = re.compile(r"^(?!(?:device|launch|profiler|numa|nvlink|c2clink|smsp__pcsamp)_)\w+?__\w")
# A value over all units of a GPU. Of clocks the mean says something, of all else the sum.
_ROLLUP = re.compile(r"\.(?:sum|avg|max|min)(?=\.|$)")
_CLOCK = re.compile(r"__cycles_\w+\.\w+\.per_second$")
#: Why a column of ncu's output is not analysed.
LEFT_OUT = {
    "no_counters": "describe the device, the launch or the profiler",
    "rollups": "are means, largest or smallest values over units of a counter whose sum is there",
    "not_additive": "do not add up over launches",
}


class SweepLaunches(NamedTuple):
    """The launches of a case, and how many columns of ncu's output are not among them."""

    #: One row per launch and metric: ``kernel_class, kernel_name`` (empty where unknown)``, metric, unit`` (base)``,
    #: n_layer, hidden_dim, seq_len, value`` (float64, base unit)``, last_digit`` (value of the last printed digit, base
    #: unit; NaN: unknown).
    launches: pd.DataFrame
    left_out: dict[str, int]  # by reason, a key of :data:`LEFT_OUT`; empty for a tidy table and for chosen metrics


def read_launches(case: Case, patterns: Sequence[kernel_names.Pattern]) -> SweepLaunches:
    """Read a case's measurements: one row per launch and metric, in base units.

    Parameters
    ----------
    case : Case
        With ``measurements`` or ``ncu_csv``.
    patterns : sequence of Pattern
        Patterns that classify the kernels of ``ncu_csv``.
    """
    if "measurements" in case.inputs:
        return SweepLaunches(_tidy(case.path("measurements")), {})
    return _profiled(case, patterns)


def read_observations(case: Case) -> pd.DataFrame:
    """Read qualitative observations of kernels: ``model, kernel_class, kernel_name, metric, observation``.

    ``zero`` and ``nonzero`` describe the metric, ``lower`` and ``higher`` compare it with the other kernels of the
    class. Without the key ``observations`` the result is empty.
    """
    if "observations" not in case.inputs:
        return pd.DataFrame({column.name: pd.Series(dtype="str") for column in _OBSERVATIONS})
    key = ("model", "kernel_name", "metric")
    return read_csv(case.path("observations"), _OBSERVATIONS, key=key)


def _tidy(path: Path) -> pd.DataFrame:
    frame = read_csv(path, _TIDY)
    frame = frame.assign(kernel_name=frame.get("kernel_name", ""))
    key = ["kernel_class", "kernel_name", "metric", *VARIABLES, *(["launch"] if "launch" in frame else [])]
    repeated = frame.duplicated(key)
    if repeated.any():
        row = int(np.flatnonzero(repeated)[0])
        what = ", ".join(str(frame[name].iloc[row]) for name in key if name != "kernel_name")
        remedy = "keep one of them, or number the launches in a column launch"
        raise InputError(path, f"line {row + 2}", f"a second row for {what}", remedy)
    _check_units(path, frame)
    base = {unit: ncu.base_unit(unit) for unit in frame["unit"].unique()}
    powers = frame["unit"].map({unit: power for unit, (_, power) in base.items()}).astype("int64")
    printed = frame["value"].astype(str)
    exponent = printed.str.extract(r"e([+-]?\d+)$", expand=False).fillna("0").astype("int64")
    decimals = printed.str.extract(r"\.(\d+)", expand=False).fillna("").str.len()
    # Integers read as 17652.0 were printed without a decimal.
    whole = printed.str.endswith(".0") & (powers == 0)
    digit = 10.0 ** (exponent - decimals.where(~whole, 0) + powers)
    # Via text: 0.0079 Mbyte is exactly 7900 byte, but 0.0079 * 10**6 is not.
    mantissa = printed.str.replace(r"e.*$", "", regex=True)
    values = (mantissa + "e" + (exponent + powers).astype(str)).astype("float64")
    units = frame["unit"].map({unit: word for unit, (word, _) in base.items()})
    frame = frame.assign(value=values, unit=units, last_digit=digit)
    _check_one_unit(path, frame)
    return frame[["kernel_class", "kernel_name", "metric", "unit", *VARIABLES, "value", "last_digit"]]


def _check_units(path: Path, frame: pd.DataFrame) -> None:
    pairs = frame[["metric", "unit"]].drop_duplicates()
    for row, metric, unit in pairs.itertuples():
        place = f"line {row + 2}, column unit"
        word, _ = ncu.base_unit(unit)
        if not all(part in _WORDS for part in word.split("/", 1)):
            remedy = schemas.nearest(unit, [*sorted(_WORDS), "Kbyte", "Mbyte", "Gbyte", "usecond", "msecond", "byte/s"])
            remedy = f"write units as Nsight Compute does, {NUMBER} for a pure number ({remedy})"
            raise InputError(path, place, f"unknown unit {unit!r}", remedy)
        wanted = next((unit for pattern, unit in _NAMED if pattern.search(metric)), None)
        if wanted and word not in (wanted, UNKNOWN_UNIT):
            problem = f"wrong unit: {metric} is counted in {wanted}, not in {unit}"
            raise InputError(path, place, problem, f"convert the values to {wanted}, or correct the metric")


def _check_one_unit(path: Path, frame: pd.DataFrame) -> None:
    first = frame.groupby("metric", sort=False)["unit"].transform("first")
    for row in np.flatnonzero(frame["unit"] != first)[:1]:
        problem = f"{frame['metric'].iloc[row]} is in {frame['unit'].iloc[row]} here and in {first.iloc[row]} elsewhere"
        raise InputError(path, f"line {row + 2}, column unit", problem, "give all its values in units of one kind")


def _profiled(case: Case, patterns: Sequence[kernel_names.Pattern]) -> SweepLaunches:
    folder = case.present(case.inputs["ncu_csv"]["folder"], "ncu_csv.folder", "folder")
    table = case.dataset.folder / case.inputs["ncu_csv"]["parameters"]
    parameters = read_csv(table, (Column("file"), *_SIZES), key=("file",))
    outputs = {path.relative_to(folder).as_posix(): path for path in folder_files(folder) if path != table}
    for line, name in enumerate(parameters["file"], start=2):
        if name not in outputs:
            remedy = schemas.nearest(name, outputs)
            raise InputError(table, f"line {line}, column file", f"there is no {name!r} in {folder.name}", remedy)
    left = sorted(set(outputs) - set(parameters["file"]))
    if left:
        remedy = f"add it with its sizes, or remove it from {folder.name}"
        raise InputError(table, "", f"the file {left[0]!r} is not listed", remedy)
    wanted = case.inputs.get("metrics", ())
    chosen = {name for label in wanted for name in ncu.raw_names(label)}
    outputs_read = [_output(outputs[row["file"]], row, chosen) for row in parameters.to_dict("records")]
    frame = pd.concat([output.rows for output in outputs_read], ignore_index=True)
    available = set().union(*(output.metrics for output in outputs_read))
    for metric in wanted:
        if not ncu.raw_names(metric) & set(frame["metric"]):
            raise case.error("metrics", f"no file has the metric '{metric}'", _what_there_is(metric, available))
    if frame.empty:
        problem = f"none of the files has a counter like dram__sectors_read.sum; {_what_there_is('', available)}"
        raise InputError(table, "", problem, "name metrics under the key metrics, or profile with --metrics")
    if len(devices := sorted(set().union(*(output.devices for output in outputs_read)))) > 1:
        warn(folder, "", f"recorded on different GPUs ({', '.join(devices)})", "their values are one series here")
    if empty := sum(output.empty for output in outputs_read):
        without = next(row for row, output in zip(parameters["file"], outputs_read, strict=True) if output.empty)
        warn(folder, "", f"{empty:,} values are no numbers (n/a or nan), the first in {without}", "they are left out")
    left_out = {}
    if not wanted:
        rollups = {name for name in frame["metric"].unique() if _is_redundant(name, outputs_read)}
        left_out = {"no_counters": sum(not _COUNTER.match(name) for name in available), "rollups": len(rollups)}
        frame = frame[~frame["metric"].isin(rollups)]
    frame = _with_units(frame)
    frame.insert(0, "kernel_class", kernel_names.classify(frame["kernel_name"], patterns, file=folder))
    if case.inputs["ncu_csv"].get("per") == "pass":
        metrics = frame["metric"].nunique()
        frame = _totals(frame)
        left_out["not_additive"] = metrics - frame["metric"].nunique()
    _check_one_unit(table, frame)
    return SweepLaunches(frame, left_out)


def _is_redundant(metric: str, outputs: Sequence["_Output"]) -> bool:
    """Whether every file with this rollup has the one that says more, too."""
    better = _ROLLUP.sub(".avg" if _CLOCK.search(metric) else ".sum", metric, count=1)
    return better != metric and all(better in output.metrics for output in outputs if metric in output.metrics)


def _what_there_is(metric: str, available: set[str]) -> str:
    """Suggest the nearest metric, and list those that the files have."""
    near = get_close_matches(metric, available, n=1, cutoff=0.5)
    # Counters first: they are what a sweep is about.
    listed = sorted(available, key=lambda name: (not _COUNTER.match(name), name))
    more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
    return f"{f'did you mean {near[0]!r}? ' if near else ''}the files have {', '.join(listed[:12])}{more}"


def _with_units(frame: pd.DataFrame) -> pd.DataFrame:
    """Give values that a version of ncu prints without a unit the unit of the other files."""
    known = frame.loc[frame["unit"] != NUMBER].drop_duplicates("metric").set_index("metric")["unit"]
    return frame.assign(unit=frame["unit"].where(frame["unit"] != NUMBER, frame["metric"].map(known).fillna(NUMBER)))


class _Output(NamedTuple):
    """What one file holds: its launches, all of its metrics, its GPUs, and how many values are no numbers."""

    rows: pd.DataFrame
    metrics: set[str]
    devices: set[str]
    empty: int


def _output(path: Path, sizes: Mapping, wanted: Collection[str]) -> _Output:
    """Read one file; metrics have their names on the raw page."""
    report = ncu.read(path)
    pairs = report.metrics[["metric", "unit"]].drop_duplicates()
    names = [ncu.raw_name(*pair) for pair in pairs.itertuples(index=False, name=None)]
    kept = [name in wanted if wanted else bool(_COUNTER.match(name)) for name in names]
    pairs = pairs.assign(name=names, labelled=pairs["metric"] != names)[kept]
    rows = report.metrics.merge(pairs, on=["metric", "unit"])
    empty = rows["value"].isna()
    rows = rows[~empty]
    negative = rows[(rows["value"] < 0) & rows["name"].str.contains(_COUNTER)]
    for row in negative.head(1).itertuples():
        remedy = "correct the value, or name the metrics to read under the key metrics"
        raise InputError(path, f"launch {row.launch}, {row.name}", f"a counter of {row.value:g} is negative", remedy)
    # A metric may be on the page under its label and, asked for with --metrics, under its name, with more digits.
    named = pd.MultiIndex.from_frame(rows.loc[~rows["labelled"], ["launch", "name"]])
    rows = rows[~(rows["labelled"] & pd.MultiIndex.from_frame(rows[["launch", "name"]]).isin(named))]
    rows = rows.drop_duplicates(["launch", "name", "unit", "value"])
    frame = pd.DataFrame(
        {
            "kernel_name": rows["kernel"].astype(str),
            "metric": rows["name"],
            "unit": rows["unit"].astype(str).replace("", NUMBER),
            **{name: sizes[name] for name in VARIABLES},
            "value": rows["value"],
            "last_digit": np.nan,
        }
    )
    titles = report.metrics.loc[report.metrics["metric"] == _DEVICE, "text"].dropna()
    devices = set(titles) or {f"compute capability {cc}" for cc in report.launches["compute_capability"].dropna()}
    return _Output(frame, set(names), devices, int(empty.sum()))


def _totals(launches: pd.DataFrame) -> pd.DataFrame:
    """Add up the launches of each class, for the counters of which the sum is meaningful."""
    counters = launches[launches["metric"].str.endswith(".sum")]
    totals = counters.groupby(list(POINT), sort=False, as_index=False, observed=True)["value"].sum()
    return totals.assign(kernel_name="", last_digit=np.nan)


def to_points(launches: pd.DataFrame) -> pd.DataFrame:
    """Reduce launches to points with their spread.

    Returns
    -------
    DataFrame
        One row per point of each class and, where names are known, of each of its kernels: ``kernel_class,
        kernel_name`` (empty: the whole class)``, metric, unit, n_layer, hidden_dim, seq_len, launches, value``
        (median)``, minimum, lower_quartile, upper_quartile, maximum, last_digit``; sorted by these keys.
    """
    named = launches[launches["kernel_name"] != ""]
    every = pd.concat([launches.assign(kernel_name=""), named], ignore_index=True)
    groups = every.groupby(["kernel_class", "kernel_name", *POINT[1:]], sort=True, observed=True)
    values = groups["value"]
    quartiles = values.quantile([0.25, 0.5, 0.75]).unstack()
    points = pd.DataFrame(
        {
            "launches": values.size(),
            "value": quartiles[0.5],
            "minimum": values.min(),
            "lower_quartile": quartiles[0.25],
            "upper_quartile": quartiles[0.75],
            "maximum": values.max(),
            "last_digit": groups["last_digit"].max(),
        }
    )
    return points.reset_index()


def of_classes(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of whole classes."""
    return points[points["kernel_name"] == ""].reset_index(drop=True)


def of_kernels(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of single kernels, by their full names."""
    return points[points["kernel_name"] != ""].reset_index(drop=True)
