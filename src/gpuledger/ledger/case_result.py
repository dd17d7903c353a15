"""Results of cases: what a reduction writes, which is all that a notebook reads."""

import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from threading import Thread
from typing import Any, Self

import numpy as np
import pandas as pd

from gpuledger import files
from gpuledger.errors import HIDDEN, InputError, InputWarning, visible
from gpuledger.ledger import stored_data
from gpuledger.ledger.datasets import CONFIG, Case
from gpuledger.ledger.passes import DividedPasses, Finished, PartOfPass
from gpuledger.ledger.stored_data import StoredData

#: Digits that are the same on every machine: sums taken in another order differ in the 15th or 16th.
SIGNIFICANT_DIGITS = 10

Value = int | float | str


def settle(value: Any) -> Value:
    """Convert a value to a JSON number or string that is the same on every machine.

    Integers stay integers, floats are rounded to ten significant digits, infinities become ``"inf"``, and missing
    values ``"unknown"``.
    """
    if value is None or value is pd.NA or (isinstance(value, (float, np.floating)) and np.isnan(value)):
        return "unknown"
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return int(value)
    rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return rounded if np.isfinite(rounded) else str(rounded)


def rounded(frame: pd.DataFrame, digits: int = 6) -> pd.DataFrame:
    """Return a table whose floating-point columns keep `digits` significant digits, the same on every machine."""
    columns = frame.select_dtypes("floating").columns
    return frame.assign(**frame[columns].map(lambda value: float(f"{value:.{digits}g}"), na_action="ignore"))


def text(value: Value, decimals: int | None = None) -> str:
    """Format a value: integers with thousands separators, floats with `decimals` or ten significant digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{decimals}f}" if decimals is not None else f"{settle(value):.10g}"


def brief(value: Value, digits: int = 4) -> str:
    """Format a value for people: floats with `digits` significant digits, whole numbers in full, infinity as ``–``."""
    if isinstance(value, float) and not np.isfinite(value):
        return "" if np.isnan(value) else "–"
    if not isinstance(value, float) or (value.is_integer() and abs(value) < 2**53):
        return "–" if value in ("inf", "-inf") else text(int(value) if isinstance(value, float) else value)
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10 ** (digits - 1) <= abs(rounded) < 1e15 else f"{rounded:,.{digits}g}"


def time_unit(time_s: float) -> tuple[float, str]:
    """Return the largest unit of which a time is at least one, or ns, after how many of it are a second."""
    return next(((f, unit) for f, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if time_s * f >= 1), (1e9, "ns"))


def size_text(size_bytes: float) -> str:
    """Return a size in the largest binary unit in which it is at least one: ``7.08 GiB``."""
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    return next((f"{size_bytes / each:.4g} {unit}" for each, unit in units if size_bytes >= each), f"{size_bytes:g} B")


def slug(words: str) -> str:
    """Convert words to a part of a quantity's name: lower-case letters and digits, joined by ``_``."""
    return re.sub(r"\W+", "_", words.lower()).strip("_")


def quantity_names(case: Case, table: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Name the rows of a table for the summary, after the cells in `columns`."""
    names = ["_".join(slug(str(cell)) for cell in row) for row in table[list(columns)].itertuples(index=False)]
    for row, name in enumerate(names):
        if name in names[:row]:
            problem = f"two rows would both be called '{name}' in summary.json"
            raise case.error("", problem, f"make their {', '.join(columns)} differ in letters or digits")
    return names


@dataclass
class CaseResult:
    """What a study makes of a case."""

    #: Tidy; column names end with the unit. Of a study that says so, `StoredData` where there are many rows.
    data: pd.DataFrame | StoredData
    #: By quantity, ``{"value": number or text, "unit": text}``.
    summary: dict[str, dict[str, Value]] = field(default_factory=dict)
    #: What the numbers are; see :meth:`gpuledger.ledger.datasets.Case.provenance`. A study adds what the dataset does
    #: not know: further ``inputs``, more about those of the dataset, and, if it predicts, ``kind`` (``predicted``),
    #: ``label``, ``title`` and ``source``.
    provenance: dict = field(default_factory=dict)
    #: What is unusual about the input, as figures and the page show it; ``warnings`` in ``provenance.json``.
    warnings: list[str] = field(default_factory=list)

    def add(self, quantity: str, value: Any, unit: str) -> None:
        """Add a quantity to the summary; `unit` is ``1`` for a dimensionless number."""
        self.summary[quantity] = {"value": settle(value), "unit": unit}

    @property
    def finding(self) -> str:
        """The case's result in one sentence, as figures and the gallery show it."""
        if "finding" not in self.summary:
            raise KeyError("the study's reduce adds no quantity 'finding': the case's result in one sentence")
        return str(self["finding"])

    def __getitem__(self, quantity: str) -> Value:
        """Value of a quantity of the summary."""
        return self.summary[quantity]["value"]

    def get(self, quantity: str, default: Any = None) -> Any:
        """Value of a quantity, or `default` where the summary lacks it."""
        return self.summary.get(quantity, {"value": default})["value"]

    def summary_table(self) -> pd.DataFrame:
        """Return the summary as a table for people, one row per quantity."""
        rows = [(name, brief(entry["value"]), entry["unit"]) for name, entry in sorted(self.summary.items())]
        return pd.DataFrame(rows, columns=["quantity", "value", "unit"])

    def write(self, folder: str | Path) -> None:
        """Write ``data.parquet``, ``summary.json`` and ``provenance.json``, the same bytes every time."""
        folder = Path(folder)
        with files.replacing(folder / "data.parquet") as temporary:
            if isinstance(self.data, StoredData):
                self.data.copy(temporary)
            else:
                self.data.to_parquet(temporary, index=False)
        files.write_json(folder / "summary.json", self.summary)
        files.write_json(folder / "provenance.json", self.provenance)

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read a result from the folder that :meth:`write` wrote it to; raises InputError where there is none."""
        folder = Path(folder)
        if not (folder / "summary.json").is_file():
            remedy = "give the folder of a case: results/<dataset>/<study>/<case>"
            raise InputError(folder, "", "there is no reduced case here (no summary.json)", remedy)
        summary, provenance = (
            json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("summary", "provenance")
        )
        return cls(stored_data.read(folder / "data.parquet"), summary, provenance, provenance.get("warnings", []))


def reduce_case(
    case: Case, reduce: Callable[..., CaseResult], knobs: Mapping[str, Any] | None = None, **offered: Any
) -> CaseResult:
    """Reduce a case with a study's function and add the case's provenance.

    Parameters
    ----------
    reduce : callable
        A study's ``reduce``: takes the case and knobs.
    knobs : mapping, optional
        What the configuration sets for the study; by default the defaults of `reduce`.
    **offered
        Further arguments (``threads``, ``mirror``, ``passes``), passed on if `reduce` has parameters of these names.
    """
    arguments = _arguments(case, reduce, knobs or {}, offered)
    # The inputs are hashed while they are reduced, so that large ones are read from disk once.
    provenance = _in_background(case.provenance)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InputWarning)
        result = reduce(case, **arguments)
    _keep_warnings(result, caught, case)
    own, record = result.provenance, provenance.result() | {"knobs": dict(knobs or {})}
    # Where a study names the sources of what it adds, that of the case's own files must not go missing beside them.
    added = {entry["file"]: entry for entry in own.get("inputs", [])}
    default = {"source": record["source"]} if any("source" in entry for entry in added.values()) else {}
    declared = {entry["file"]: default | added.get(entry["file"], {}) | entry for entry in record["inputs"]}
    inputs = declared | {file: entry for file, entry in added.items() if file not in declared}
    result.provenance = visible(record | own | {"inputs": list(inputs.values())})
    if result.warnings:
        result.provenance["warnings"] = result.warnings
    data = result.data
    result.data = data.map(_visible_data) if isinstance(data, StoredData) else _visible_data(data)
    result.summary = visible(result.summary)
    return result


def _visible_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Make names visible, which come from files of others, so that no page, figure or table has to."""
    for column in frame.select_dtypes(["object", "str", "category"]):
        texts = [value for value in frame[column].unique() if isinstance(value, str)]
        if shown := {value: visible(value) for value in texts if HIDDEN.search(value)}:
            frame = frame.assign(**{column: [shown.get(value, value) for value in frame[column]]})
    return frame.rename(columns=visible)


def reduce_part(
    case: Case,
    reduce: Callable[..., CaseResult],
    knobs: Mapping[str, Any] | None,
    parts: Mapping[str, Sequence[Path]],
    wanted: PartOfPass,
    **offered: Any,
) -> None:
    """Compute a part of a pass: reduce with the parts of earlier passes until that pass is reached.

    A reduction that ends without it does not need it for this input; the part is empty then.

    Parameters
    ----------
    case, reduce, knobs, **offered
        As for :func:`reduce_case`.
    parts : mapping
        By pass, the files of its parts.
    """
    with warnings.catch_warnings(), suppress(Finished):
        # The reduction itself will say it.
        warnings.simplefilter("ignore", InputWarning)
        passes = DividedPasses(parts, wanted)
        reduce(case, **_arguments(case, reduce, knobs or {}, offered | {"passes": passes}))
        passes.write([])


def _arguments(
    case: Case, reduce: Callable[..., CaseResult], knobs: Mapping[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keyword arguments of a study's reduction: knobs, and what it takes of what is offered."""
    known = dict(list(signature(reduce).parameters.items())[1:])
    offered = {name: value for name, value in offered.items() if name in known}
    place = f"key knobs.{case.study}"
    for knob, value in knobs.items():
        if knob not in known or knob in offered:
            remedy = f"known are: {', '.join(name for name in known if name not in offered) or 'none'}"
            raise InputError(CONFIG, place, f"unknown key '{knob}'", remedy)
        default, whole = known[knob].default, known[knob].annotation in (int, "int")
        what, types = "a whole number" if whole else "a number", int if whole else (int, float)
        if isinstance(default, tuple):
            what, types = "a list", list
        if isinstance(default, (tuple, int, float)) and (not isinstance(value, types) or isinstance(value, bool)):
            raise InputError(CONFIG, f"{place}.{knob}", f"{value!r} is not {what}", f"write {what}")
    return {**knobs, **offered}


def _keep_warnings(result: CaseResult, caught: list[warnings.WarningMessage], case: Case) -> None:
    for warning in caught:
        if issubclass(warning.category, InputWarning):
            # Files are named within the dataset, so that provenance is the same in every checkout.
            line = str(warning.message).replace(f"{case.dataset.folder.as_posix()}/", "")
            if line not in result.warnings:
                result.warnings.append(line)
                logging.getLogger("gpuledger").warning(line)
        else:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)


def _in_background(work: Callable[[], Any]) -> Future:
    """Start `work` in a thread that does not keep the process alive when the reduction fails."""
    future = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future
