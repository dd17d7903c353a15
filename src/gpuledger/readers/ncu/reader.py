"""Read a file into a report: bytes → tables → runs and rows → launches and metrics."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gpuledger.errors import InputError, warn
from gpuledger.readers.ncu.collect import Collector
from gpuledger.readers.ncu.diagnose import explain_missing_table
from gpuledger.readers.ncu.labels import raw_name
from gpuledger.readers.ncu.launches import COUNT_METRICS, launch_frame, number_launches
from gpuledger.readers.ncu.layout import single
from gpuledger.readers.ncu.numbers import decide_decimal, loses_digits, parse_numbers, scale_numbers
from gpuledger.readers.ncu.report import Report
from gpuledger.readers.ncu.sources import is_report
from gpuledger.readers.ncu.tables import TableScanner
from gpuledger.readers.ncu.units import base_unit

_KEYS = ("section", "label", "metric", "unit")
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
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal={decimal!r}: give '.' or ',', or None to find out")
    report = _read(path, decimal)
    _warn_of_shares(report)
    return _with_decimals(report, _read(path, decimal, scaled=True)) if is_report(path) else report


def _warn_of_shares(report: Report) -> None:
    """Warn in one line of shares of a peak that no hardware reaches."""
    labels = report.metrics["metric"].cat
    shares = ["pct_of_peak" in raw_name(str(label), "%") for label in labels.categories]
    of_a_peak = np.array([*shares, False])[labels.codes] & report.metrics["unit"].isin(["%", ""])
    rows = report.metrics[of_a_peak & (report.metrics["value"] > LARGEST_PERCENT)]
    if len(rows):
        first = rows.iloc[0]
        more = f" (and {len(rows) - 1:,} more above {LARGEST_PERCENT} %)" if len(rows) > 1 else ""
        problem = f"{first['value']:g} % of the peak{more}"
        warn(report.path, f"launch {first['launch']}, {first['metric']}", problem, "used as it is: check the file")


def _with_decimals(report: Report, scaled: Report) -> Report:
    """Return a report with small values (rates, shares) as ncu prints them in scaled units: six decimals, not two."""
    own, other = report.metrics, scaled.metrics
    if len(own) != len(other) or not (own["metric"].astype(str) == other["metric"].astype(str)).all():
        return report
    value, precise = own["value"].to_numpy(), other["value"].to_numpy()
    better = (value != np.floor(value)) & (np.abs(value) < 1000) & (np.abs(precise - value) < 0.006)
    return dataclasses.replace(report, metrics=own.assign(value=np.where(better, precise, value)))


def _read(path: str | Path, decimal: str | None, scaled: bool = False) -> Report:
    scanner, collector = TableScanner(path, scaled), Collector()
    for table, layout, rows in scanner:
        collector.add(table, layout, rows)
        if len(collector.pages) > 1:
            pages = " and ".join(sorted(collector.pages))
            raise InputError(path, "", f"the file mixes {pages} pages", "keep the output of each page in its own file")
    rows = collector.rows()
    if rows is None or not rows.num_rows:
        raise explain_missing_table(path, scanner)
    page = collector.pages.pop()
    codes, categories = {}, {}
    for name in _KEYS:
        codes[name], categories[name] = _coded(rows[name])
    words, power = zip(*map(base_unit, categories["unit"]), strict=True)
    powers = np.array(power, np.int8)[codes["unit"]]
    index, categories["unit"] = pd.factorize(np.array(words, dtype=object))
    codes["unit"] = index.astype(np.int32)[codes["unit"]]
    values = _values(path, rows, codes, categories, powers, decimal)
    run = rows["run"].to_numpy()
    del rows
    if page == "wide":
        launch, run_of_launch = run.astype(np.int64), np.arange(len(collector))
    else:
        key = np.zeros(len(run), np.int64)
        for name in _KEYS:
            key = key * len(categories[name]) + codes[name]
        launch, run_of_launch = number_launches(collector.identities(), run, key)
    runs = pd.DataFrame({name: np.array(texts, dtype=object)[run_of_launch] for name, texts in collector.runs.items()})
    kernel_codes, kernels = pd.factorize(runs["kernel"])
    metrics = pd.DataFrame(
        {
            "launch": launch,
            "kernel": pd.Categorical.from_codes(kernel_codes[launch], kernels),
            **{n: pd.Categorical.from_codes(codes[n], categories[n]) for n in ("section", "metric", "unit")},
            **values,
        }
    )
    metrics = _without_repeats(metrics, len(categories["label"]) > 1)
    launches = launch_frame(runs, pd.Categorical.from_codes(kernel_codes, kernels), metrics, page == "summary")
    return Report(str(path), page, metrics, launches, tuple(scanner.noise.errors))


def _coded(column: pa.ChunkedArray) -> tuple[np.ndarray, pd.Index]:
    """Return codes and categories of a dictionary column, texts stripped of white space."""
    array = single(column)
    texts = np.array([text.strip() for text in array.dictionary.to_pylist()], dtype=object)
    index, categories = pd.factorize(texts)
    return index.astype(np.int32)[array.indices.to_numpy()], categories


def _values(
    path: str | Path,
    rows: pa.Table,
    codes: dict[str, np.ndarray],
    categories: dict[str, np.ndarray],
    powers: np.ndarray,
    decimal: str | None,
) -> dict[str, object]:
    """Return the columns value, text, and for summaries minimum and maximum."""
    names = [name for name in ("value", "minimum", "maximum") if name in rows.column_names]
    printed = pa.concat_arrays([chunk for name in names for chunk in rows[name].chunks])
    encoded = pc.fill_null(pc.utf8_trim_whitespace(printed), "").dictionary_encode()
    index, texts = encoded.indices.to_numpy().reshape(len(names), -1), encoded.dictionary
    if decimal is None:
        is_count = np.isin(categories["metric"].astype(str), COUNT_METRICS)[codes["metric"]]
        decimal = decide_decimal(path, texts, texts.take(pa.array(np.unique(index[:, is_count]))))
    distinct, plain, cleaned = parse_numbers(texts, decimal)
    keep = ~plain
    for place in np.flatnonzero((np.abs(distinct) >= 2**53) & plain):
        keep[place] = loses_digits(cleaned[int(place)].as_py(), distinct[place])
    columns: dict[str, object] = {}
    for name, where in zip(names, index, strict=True):
        column = distinct[where]
        scaled = np.flatnonzero((powers != 0) & ~np.isnan(column))
        if len(scaled):
            numbers = cleaned.take(pa.array(where[scaled]))
            column[scaled] = scale_numbers(numbers, column[scaled], powers[scaled])
        columns[name] = column
    text_code = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
    kept = np.array(texts.filter(pa.array(keep)).to_pylist(), dtype=object)
    columns["text"] = pd.Categorical.from_codes(text_code[index[0]], pd.Index(kept, dtype=object))
    return {name: columns[name] for name in ("value", "text", *names[1:])}


def _without_repeats(metrics: pd.DataFrame, labelled: bool) -> pd.DataFrame:
    """Drop empty values, and a value's repetitions under several body items of one section."""
    if "" in metrics["text"].cat.categories:
        metrics = metrics[metrics["text"] != ""]
        metrics = metrics.assign(text=metrics["text"].cat.remove_categories([""]))
    return metrics.drop_duplicates(ignore_index=True) if labelled else metrics.reset_index(drop=True)
