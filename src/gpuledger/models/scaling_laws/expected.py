"""Expected formulas, declared as text, against measured values."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuledger.models.scaling_laws.fits import Fit
from gpuledger.models.scaling_laws.formulas import rounded
from gpuledger.models.scaling_laws.product import ProductFit

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS = {ast.USub: operator.neg, ast.UAdd: operator.pos}
#: Functions of a formula and how many arguments they take.
FUNCTIONS = {
    "ceil": (np.ceil, 1),
    "floor": (np.floor, 1),
    "log2": (np.log2, 1),
    "sqrt": (np.sqrt, 1),
    "max": (np.maximum, 2),
    "min": (np.minimum, 2),
}
LONGEST_FORMULA = 500


@dataclass(frozen=True, eq=False)
class Comparison:
    """Measured values against an expected formula.

    Attributes
    ----------
    formula : str
        As it was given.
    points : DataFrame
        The formula's variables, ``measured, expected, ratio`` (measured/expected), one row a point.
    ratio_median : float
        The median of the ratios.
    slope_ratio : float
        ρ of measured ≈ α + ρ·expected, by least squares of relative errors: how many times as steep as expected,
        whatever the offset. NaN where `expected` does not vary.
    offset : float
        α, in the unit of the measured values.
    """

    formula: str
    points: pd.DataFrame
    ratio_median: float
    slope_ratio: float
    offset: float


def evaluate(formula: str, values: Mapping[str, float | np.ndarray]) -> np.ndarray:
    """Evaluate a formula such as ``3*seq_len*n_embd*bytes/32``; nothing but arithmetic is carried out.

    Parameters
    ----------
    formula : str
        Names, numbers, brackets, ``+ - * / // % **``, and ``ceil floor log2 sqrt max min``.
    values : mapping of str to float or array of float64
        What the names stand for.

    Raises
    ------
    ValueError
        Anything else, or a name without a value; the message says what to do.
    """
    if not isinstance(formula, str) or len(formula) > LONGEST_FORMULA:
        raise ValueError(f"a formula is text of at most {LONGEST_FORMULA} characters; give one like '3*seq_len + 6'")
    try:
        tree = ast.parse(formula.strip(), mode="eval")
        with np.errstate(all="ignore"):
            return np.asarray(_evaluate(tree.body, values, formula), float)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"'{formula}' is no formula; write one like '3*seq_len*n_embd*bytes/32'") from None
    except OverflowError:
        raise ValueError(f"'{formula}' overflows; use smaller powers") from None


def compare(
    measured: Fit | pd.DataFrame, expected: str, constants: Mapping[str, float] | None = None, value: str = "value"
) -> Comparison:
    """Compare a fit's points, or a table's, with an expected formula.

    Parameters
    ----------
    measured : Fit or DataFrame
        A table has the column `value` and one for each variable of the formula that is not in `constants`.
    expected : str
        See :func:`evaluate`.
    constants : mapping of str to float
        What the formula's other names stand for: ``{"n_embd": 768, "bytes": 2}``.
    value : str
        The column of measured values.

    Raises
    ------
    ValueError
        See :func:`evaluate`; a table without the column `value`; an expected value that is zero or not finite.
    """
    if isinstance(measured, ProductFit):
        table = pd.DataFrame(dict(zip(measured.variables, measured.x.T, strict=True)) | {value: measured.y})
    elif isinstance(measured, Fit):
        table = pd.DataFrame({measured.variable: measured.x, value: measured.y})
    else:
        table = measured
    if value not in table:
        raise ValueError(f"no column {value!r}; the table has {', '.join(map(str, table.columns))}")
    names = {str(name): table[name].to_numpy(float) for name in table if name != value and _is_numeric(table[name])}
    known = names | dict(constants or {})
    wanted = np.broadcast_to(evaluate(expected, known), (len(table),))
    got = table[value].to_numpy(float)
    bad = ~np.isfinite(wanted) | (wanted == 0)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        where = ", ".join(f"{name} = {column[row]:g}" for name, column in names.items() if name in expected)
        raise ValueError(
            f"'{expected}' is {wanted[row]:g} at {where or 'every point'}; mend the formula or leave it out"
        )
    used = {name: column for name, column in names.items() if name in _names(expected)}
    points = pd.DataFrame(used | {"measured": got, "expected": wanted, "ratio": got / wanted})
    slope, offset = _line(wanted, got)
    return Comparison(
        expected, points, rounded(float(np.median(got / wanted))) if len(got) else math.nan, slope, offset
    )


def _evaluate(node, values, formula):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if isinstance(node, ast.Name):
        if node.id not in values:
            known = ", ".join(sorted(values)) or "none"
            raise ValueError(f"'{formula}': {node.id} has no value; known are {known}; give it as a constant")
        return np.asarray(values[node.id], float)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = (_evaluate(side, values, formula) for side in (node.left, node.right))
        return np.asarray(OPERATORS[type(node.op)](np.asarray(left, float), right), float)
    if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](_evaluate(node.operand, values, formula))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function, count = FUNCTIONS.get(node.func.id, (None, 0))
        if function and len(node.args) == count:
            return function(*(_evaluate(argument, values, formula) for argument in node.args))
    part = ast.unparse(node)
    allowed = f"use names, numbers, + - * / // % ** and {', '.join(FUNCTIONS)}"
    raise ValueError(f"'{formula}': '{part}' is not allowed in a formula; {allowed}")


def _names(formula: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(formula.strip(), mode="eval")) if isinstance(node, ast.Name)}


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _line(expected, measured) -> tuple[float, float]:
    """Slope and offset of `measured` over `expected`, relative errors least; 6 significant digits."""
    if len(np.unique(expected)) < 2:
        return math.nan, math.nan
    weights = 1 / np.maximum(np.abs(measured), 1e-3 * np.abs(measured).max() or 1.0)
    design = np.stack([expected, np.ones_like(expected)], axis=1) * weights[:, None]
    norms = np.linalg.norm(design, axis=0)
    slope, offset = np.linalg.lstsq(design / norms, measured * weights, rcond=None)[0] / norms
    return rounded(float(slope)), rounded(float(offset))
