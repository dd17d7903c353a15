"""Read a file into a report: bytes → tables → runs and rows → launches and metrics."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.readers.ncu.collect import Collector, MetricRows
from gpuledger.readers.ncu.decimal_sign import DecimalSign
from gpuledger.readers.ncu.diagnose import explain_missing_table
from gpuledger.readers.ncu.labels import raw_name
from gpuledger.readers.ncu.launches import launch_frame, number_launches
from gpuledger.readers.ncu.report import Report
from gpuledger.readers.ncu.sources import is_report
from gpuledger.readers.ncu.tables import TableScanner

#: Of a part of a file; each takes some 100 bytes of memory while it is read.
PART_VALUES = 1 << 21
#: Largest share of a peak (%) without a warning: counters of several passes differ by a few per cent.
LARGEST_PERCENT = 110


def read(path: str | Path, decimal: str | None = None) -> Report:
    """Read output of Nsight Compute, of any version and page, in base units (byte, ns, hz, byte/s, inst, …).

    Parameters
    ----------
    path : path or str
        CSV or text of a terminal, possibly mixed with other output (.csv, .txt, .log); the same compressed (.gz, or
        alone in a .zip); or a report (.ncu-rep), which an installed ``ncu`` reads (no GPU needed).
    decimal : {".", ","}, optional
        Decimal sign, for files whose values leave it open.

    Raises
    ------
    InputError
        If the file cannot be read, has no metric table (with the reason), is truncated, lacks a column, mixes pages
        or locales, or if its decimal sign is ambiguous.
    ValueError
        If `decimal` is neither of these.
    """
    return next(read_parts(path, decimal, None))


def read_parts(path: str | Path, decimal: str | None = None, values: int | None = PART_VALUES) -> Iterator[Report]:
    """Read a file as `read` does, in parts of whole launches, so that it may be larger than memory.

    Parameters
    ----------
    path, decimal
        As for `read`.
    values : int, optional
        After so many of them a part ends with the launch, which counts as eight of them at least; None for
        one part.

    Yields
    ------
    Report
        Launches are numbered through; ``errors`` are those found so far.

    Raises
    ------
    InputError
        As `read`; and if the rows of a launch lie so far apart that they are in several parts.
    """
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal={decimal!r}: give '.' or ',', or None to find out")
    parts = _parts(path, DecimalSign(path, decimal), values)
    parts = itertools.chain([next(parts)], parts)  # only now it is clear that the file can be read
    if is_report(path):
        scaled = _parts(path, DecimalSign(path, decimal), values, scaled=True)
        parts = itertools.starmap(_with_decimals, zip(parts, scaled, strict=True))
    warned = False
    for part in parts:
        warned = warned or _warn_of_shares(part)
        yield part


def _warn_of_shares(report: Report) -> bool:
    """Warn in one line of shares of a peak that no hardware reaches; return whether there were any.

    ``.max`` is the value of the busiest unit, as a share of a peak that follows from the cycles of the average unit:
    where few SMs have work, it exceeds 100 % by far.
    """
    labels = report.metrics["metric"].cat
    names = [raw_name(str(label), "%") for label in labels.categories]
    shares = ["pct_of_peak" in name and ".max." not in name for name in names]
    of_a_peak = np.array([*shares, False])[labels.codes] & report.metrics["unit"].isin(["%", ""])
    rows = report.metrics[of_a_peak & (report.metrics["value"] > LARGEST_PERCENT)]
    if len(rows):
        first = rows.iloc[0]
        more = f" (and {len(rows) - 1:,} more above {LARGEST_PERCENT} %)" if len(rows) > 1 else ""
        problem = f"{first['value']:g} % of the peak{more}"
        warn(report.path, f"launch {first['launch']}, {first['metric']}", problem, "used as it is: check the file")
    return bool(len(rows))


def _with_decimals(report: Report, scaled: Report) -> Report:
    """Return a report with small values (rates, shares) as ncu prints them in scaled units: six decimals, not two."""
    own, other = report.metrics, scaled.metrics
    if len(own) != len(other) or not (own["metric"].astype(str) == other["metric"].astype(str)).all():
        return report
    value, precise = own["value"].to_numpy(), other["value"].to_numpy()
    better = (value != np.floor(value)) & (np.abs(value) < 1000) & (np.abs(precise - value) < 0.006)
    return dataclasses.replace(report, metrics=own.assign(value=np.where(better, precise, value)))


def _parts(path: str | Path, sign: DecimalSign, values: int | None, scaled: bool = False) -> Iterator[Report]:
    scanner, collector, launches = TableScanner(path, scaled), Collector(path, sign), 0
    for table, layout, rows in scanner:
        collector.add(table, layout, rows)
        if sign.misread:
            if launches:
                problem = "the decimal sign is not clear from the first values"
                raise InputError(path, "metric values", problem, 'say which it is (decimal: "."; --decimal .)')
            yield from _parts(path, DecimalSign(path, assumed=sign.now), values, scaled)
            return
        while values and sign.certain and (part := collector.give(values)):
            yield (report := _report(path, collector.page, part, launches, scanner))
            launches += len(report.launches)
    if not launches and not len(collector):
        raise explain_missing_table(path, scanner)
    if (settled := sign.settle()) != sign.now:
        yield from _parts(path, DecimalSign(path, settled), values, scaled)
    elif len(collector):
        yield _report(path, collector.page, collector.give(), launches, scanner)


def _report(path: str | Path, page: str, rows: MetricRows, first: int, scanner: TableScanner) -> Report:
    """Return the rows as a report whose launches are numbered from `first`."""
    run, key, values = (rows.columns[name] for name in ("run", "key", "value"))
    if page == "wide":
        launch, run_of_launch = run.astype(np.int64), np.arange(len(rows.identities))
    else:
        launch, run_of_launch = number_launches(rows.identities, run, key)
    runs = pd.DataFrame({name: np.array(texts, dtype=object)[run_of_launch] for name, texts in rows.runs.items()})
    runs.index = pd.RangeIndex(first, first + len(runs), name="launch")
    kernel_codes, kernels = pd.factorize(runs["kernel"])
    columns = {"launch": launch + first, "kernel": pd.Categorical.from_codes(kernel_codes[launch], kernels)}
    for name in ("section", "metric", "unit"):
        codes, categories = pd.factorize(rows.keys[name])
        columns[name] = pd.Categorical.from_codes(codes[key], categories)
    texts = pd.Index(np.array(rows.texts, dtype=object), dtype=object)
    columns |= {"value": values, "text": pd.Categorical.from_codes(rows.columns["text"], texts)}
    columns |= {name: rows.columns[name] for name in ("minimum", "maximum") if name in rows.columns}
    metrics = pd.DataFrame(columns, copy=False)
    metrics = _without_repeats(metrics, rows.keys["label"].nunique() > 1)
    launches = launch_frame(runs, pd.Categorical.from_codes(kernel_codes, kernels), metrics, page == "summary")
    return Report(str(path), page, metrics, launches, tuple(scanner.noise.errors))


def _without_repeats(metrics: pd.DataFrame, labelled: bool) -> pd.DataFrame:
    """Drop empty values, and a value's repetitions under several body items of one section."""
    if "" in metrics["text"].cat.categories:
        metrics = metrics[metrics["text"] != ""]
        metrics = metrics.assign(text=metrics["text"].cat.remove_categories([""]))
    return metrics.drop_duplicates(ignore_index=True) if labelled else metrics.reset_index(drop=True)
