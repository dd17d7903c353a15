"""Views: what a page's viewer zooms, pans and answers from, reduced to what a page can carry.

A study that has one says so by a module ``view.py`` with ``view(result)``, which returns a `View` or None.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult

#: Bytes of a view in a page.
LIMIT = 250_000
#: Marks of the sample that tells how many fit.
_SAMPLE = 4096
#: Share of a view's marks that are kept for their weight if not all fit; the others are evenly spaced.
_WEIGHTY = 0.1


@dataclass(frozen=True)
class Axis:
    """An axis: its label with the unit, whether it is logarithmic, and named bands (name, from, to, colour) of it."""

    label: str
    log: bool = False
    bands: Sequence[tuple[str, float, float, str]] = ()


@dataclass(frozen=True)
class Guide:
    """A line to compare marks with: a roof, a ratio of 1."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = "#555555"
    dashed: bool = False


@dataclass(frozen=True)
class View:
    """What a viewer draws."""

    #: How marks are drawn: ``points``, ``boxes``, or ``lines`` through the marks of a group.
    kind: Literal["points", "boxes", "lines"]
    what: str  # what a mark is, in the plural: ``launches``
    #: Columns ``x``, ``y`` and ``group``; of boxes ``x_end`` and ``y_end`` too; optionally ``depth``, how much of its
    #: group's colour a mark has (0 to 1), and ``weight``: the largest stay if not all marks fit a page.
    marks: pd.DataFrame
    #: What the pointer is told of a mark: values by name with unit, ``time (µs)``, aligned with `marks`.
    fields: Mapping[str, Any]
    colors: Mapping[str, str]  # by group, in the order of the legend
    x: Axis
    y: Axis
    guides: Sequence[Guide] = field(default_factory=tuple)


def of_ratios(
    what: str,
    measured: pd.Series,
    ratio: pd.Series,
    group: pd.Series,
    fields: Mapping[str, Any],
    colors: Mapping[str, str],
    labels: tuple[str, str],
    percent: int,
) -> View:
    """Return ratios of predicted to measured values over the measured ones; a band of errors is within `percent`."""
    ends = (measured.min() / 2, measured.max() * 2)
    guides = [Guide("exact", ends, (1, 1))]
    for sign, at in (("+", 1 + percent / 100), ("−", 1 - percent / 100)):
        guides.append(Guide(f"{sign}{percent} %", ends, (at, at), dashed=True))
    marks = pd.DataFrame({"x": measured, "y": ratio, "group": group, "weight": np.abs(np.log(ratio))})
    x, y = (Axis(label, log=True) for label in labels)
    return View("points", what, marks, fields, colors, x, y, guides)


def of_case(study: str, result: CaseResult) -> View | None:
    """Return the view that a study has of a result; None if it has none."""
    name = f"gpuledger.studies.{study}.view"
    return import_module(name).view(result) if find_spec(name) else None


def embed(view: View, limit: int = LIMIT) -> str:
    """Return a view as JSON for a ``<script>`` element, of at most `limit` bytes: of more marks, some are left out."""
    count = total = len(view.marks)
    if total > _SAMPLE:
        # What a sample takes tells about how many fit, without writing all of them.
        size = len(_document(view, *_choose(view, _SAMPLE)).encode())
        count = min(count, int(limit * _SAMPLE / size))
    while True:
        kept, said = _choose(view, count) if count < total else (np.arange(total), "")
        document = _document(view, kept, said)
        size = len(document.encode())
        if size <= limit or len(kept) <= 1:
            return document
        count = int(0.95 * len(kept) * limit / size)


def _choose(view: View, count: int) -> tuple[np.ndarray, str]:
    """Return the places of about `count` marks to keep, in order, and what is said of the choice."""
    total, heavy = len(view.marks), np.array([], int)
    if "weight" in view.marks:
        heavy = np.argsort(-view.marks["weight"].to_numpy(float), kind="stable")[: int(_WEIGHTY * count)]
    rest = np.setdiff1d(np.arange(total), heavy)
    # Numbered evenly, not every n-th: data that repeat would lose the same part of each repetition.
    even = rest[np.unique(np.linspace(0, len(rest) - 1, max(1, count - len(heavy))).round().astype(int))]
    first = f"the {len(heavy):,} furthest off and an" if len(heavy) else "an"
    said = f"{len(heavy) + len(even):,} of {total:,} {view.what}: {first} even sample of {len(even):,}"
    return np.union1d(heavy, even), f"{said} others" if len(heavy) else said


def _document(view: View, kept: np.ndarray, said: str) -> str:
    marks, groups = view.marks.iloc[kept], list(view.colors)
    columns = [name for name in ("x", "y", "x_end", "y_end", "depth") if name in marks]
    content = {
        "kind": view.kind,
        "said": said or f"all {len(view.marks):,} {view.what} of the reduced data",
        "x": vars(view.x),
        "y": vars(view.y),
        "guides": [vars(guide) | {"x": _numbers(guide.x), "y": _numbers(guide.y)} for guide in view.guides],
        "groups": [[name, view.colors[name]] for name in groups],
        "group": _packed(pd.Index(groups).get_indexer(marks["group"])),
        "marks": {name: _packed(marks[name].to_numpy(float)) for name in columns},
        "fields": {name: _field(pd.Series(values).iloc[kept]) for name, values in view.fields.items()},
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Names are other people's: none of them may end the element.
    return text.replace("<", "\\u003c")


def _numbers(values: Any, digits: int = 6) -> list:
    """Return numbers that JSON has, rounded to some significant digits; None for what is missing."""
    found = []
    for value in np.asarray(values, float):
        short = float(f"{value:.{digits}g}")
        found.append(None if not np.isfinite(short) else int(short) if short.is_integer() else short)
    return found


def _field(values: pd.Series) -> dict | list:
    """Return a column of what the pointer is told: numbers with five significant digits, or words."""
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        numbers = values.astype("Float64").to_numpy(float, na_value=np.nan)
        whole = np.all(numbers == np.round(numbers))
        return _packed(numbers, digits=15 if whole else 5)
    return _packed(values.astype("str"))


def _packed(values: np.ndarray | pd.Series, digits: int = 6) -> dict | list:
    """Return a column as its distinct values and, in base64, one or two bytes for each that say which; or as it is."""
    codes, distinct = pd.factorize(values, use_na_sentinel=False)
    listed = [str(word) for word in distinct] if values.dtype == "str" else _numbers(distinct, digits)
    if len(distinct) > min(2**16, max(len(values) / 2, 8)):
        return [listed[code] for code in codes]
    wide = len(distinct) > 2**8
    return {"of": listed, "wide": wide, "at": b64encode(codes.astype("<u2" if wide else "u1").tobytes()).decode()}
