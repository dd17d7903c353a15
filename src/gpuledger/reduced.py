"""Reduced cases: the small tidy output of the first step, and all that a notebook reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger import files
from gpuledger.datasets import Case, Repository
from gpuledger.errors import InputError

#: Digits that hold on every machine: sums taken in another order differ in the 15th or 16th.
SIGNIFICANT_DIGITS = 10

Value = int | float | str


def settle(value: Any) -> Value:
    """Turn a value into a JSON number or string that is the same on every machine.

    Integers stay integers, floats keep ten significant digits, infinities become the text ``inf``, and what is
    missing becomes ``unknown``.
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


def text(value: Value, decimals: int | None = None) -> str:
    """Put a value in words: thousands separators for integers, the given decimals or ten digits for others."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{decimals}f}" if decimals is not None else f"{settle(value):.10g}"


def slug(words: str) -> str:
    """Turn words into a part of a quantity's name: lower case, letters and digits joined by ``_``."""
    return re.sub(r"\W+", "_", words.lower()).strip("_")


def quantity_names(case: Case, table: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Name the rows of a table, which `columns` tell apart, for the summary.

    Raises
    ------
    InputError
        When two rows would have the same name.
    """
    names = ["_".join(slug(str(cell)) for cell in row) for row in table[list(columns)].itertuples(index=False)]
    for row, name in enumerate(names):
        if name in names[:row]:
            problem = f"two rows would both be called '{name}' in summary.json"
            remedy = f"tell their {', '.join(columns)} apart by letters and digits"
            raise InputError(case.dataset.file, case.place, problem, remedy)
    return names


@dataclass
class Reduced:
    """What a study makes of a case.

    Attributes
    ----------
    data : DataFrame
        Tidy, with units last in the column names.
    summary : dict
        By quantity, ``{"value": number or text, "unit": text}``.
    provenance : dict
        What the numbers are; see :meth:`gpuledger.datasets.Case.provenance`. A study puts in what the case cannot
        know: a ``label`` where the numbers are not what the dataset's files are, ``inputs`` beside those.
    """

    data: pd.DataFrame
    summary: dict[str, dict[str, Value]] = field(default_factory=dict)
    provenance: dict = field(default_factory=dict)

    def add(self, quantity: str, value: Any, unit: str) -> None:
        """Enter a quantity of the summary; `unit` is ``1`` for a pure number."""
        self.summary[quantity] = {"value": settle(value), "unit": unit}

    @property
    def finding(self) -> str:
        """The case's result in one sentence, as figures and the gallery show it."""
        return str(self["finding"])

    def __getitem__(self, quantity: str) -> Value:
        """Value of a quantity of the summary."""
        return self.summary[quantity]["value"]

    def summary_table(self) -> pd.DataFrame:
        """Return the summary for people: a row a quantity, texts only."""
        rows = [(name, text(entry["value"]), entry["unit"]) for name, entry in sorted(self.summary.items())]
        return pd.DataFrame(rows, columns=["quantity", "value", "unit"])

    def write(self, folder: str | Path) -> None:
        """Write ``data.parquet``, ``summary.json`` and ``provenance.json``, the same bytes every time."""
        folder = Path(folder)
        with files.replacing(folder / "data.parquet") as temporary:
            self.data.to_parquet(temporary, index=False)
        files.write_json(folder / "summary.json", self.summary)
        files.write_json(folder / "provenance.json", self.provenance)

    @classmethod
    def read(cls, folder: str | Path) -> Reduced:
        """Read what :meth:`write` wrote."""
        folder = Path(folder)
        return cls(
            pd.read_parquet(folder / "data.parquet"),
            json.loads((folder / "summary.json").read_text("utf-8")),
            json.loads((folder / "provenance.json").read_text("utf-8")),
        )


def reduce_case(case: Case, reduce: Callable[..., Reduced]) -> Reduced:
    """Reduce a case with a study's function and the configured knobs, and attach the case's provenance.

    Raises
    ------
    InputError
        Whatever `reduce` finds wrong with the input; a knob that `reduce` does not have.
    """
    known = {name: parameter.default for name, parameter in list(signature(reduce).parameters.items())[1:]}
    place = f"key studies.{case.study}.knobs"
    for knob, value in case.knobs.items():
        if isinstance(known.get(knob), tuple) and not isinstance(value, list):
            raise InputError("config/config.yaml", f"{place}.{knob}", f"{value!r} is not a list", "write a list")
        if knob not in known:
            remedy = f"known are: {', '.join(known) or 'none'}"
            raise InputError("config/config.yaml", place, f"unknown key '{knob}'", remedy)
    reduced = reduce(case, **case.knobs)
    own, record = reduced.provenance, case.provenance()
    known = {entry["file"] for entry in record["inputs"]}
    beside = [entry for entry in own.get("inputs", []) if entry["file"] not in known]
    reduced.provenance = record | own | {"inputs": record["inputs"] + beside}
    return reduced


def open_reduced(
    study: str, dataset: str, case: str, reduce: Callable[..., Reduced], folder: str | Path | None = None
) -> Reduced:
    """Return a reduced case for a notebook.

    Parameters
    ----------
    study, dataset, case : str
    reduce : callable
        The study's function from a case to a :class:`Reduced`.
    folder : path, optional
        Where the workflow put the reduced case. Without it, as in Jupyter on a fresh checkout, the case is
        reduced here and now, with the configuration's knobs; simulated traces that are missing are made.
    """
    if folder is not None:
        return Reduced.read(folder)
    repository = Repository.find()
    opened = repository.dataset(dataset).case(study, case)
    if opened.dataset.content["kind"] == "simulated" and not all(path.exists() for path in opened.paths()):
        # Simulated traces are not committed; it takes a second or two to make them. Imported by name, because this
        # never happens in the workflow, whose rules name every module that is imported as an input.
        import_module("gpuledger.simulate").simulate_dataset(opened.dataset)
    return reduce_case(opened, reduce)
