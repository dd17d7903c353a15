"""Expected formulas, declared as text, and how measured values compare with them."""

import ast
import math
import operator
from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.models.scaling_laws.formulas import rounded

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
#: Functions that a formula may use, and their number of arguments.
FUNCTIONS = {
    "ceil": (np.ceil, 1),
    "floor": (np.floor, 1),
    "log2": (np.log2, 1),
    "sqrt": (np.sqrt, 1),
    "max": (np.maximum, 2),
    "min": (np.minimum, 2),
}
LONGEST_FORMULA = 500


def evaluate(formula: str, values: Mapping[str, float | np.ndarray]) -> np.ndarray:
    """Evaluate a formula such as ``3*seq_len*n_embd*bytes/32``; only arithmetic is allowed.

    Parameters
    ----------
    formula : str
        Names, numbers, brackets, ``+ - * / // % **``, and ``ceil floor log2 sqrt max min``.

    Raises
    ------
    ValueError
        Anything else, or a name without a value; the message names the remedy.
    """
    if not isinstance(formula, str) or len(formula) > LONGEST_FORMULA:
        raise ValueError(f"a formula is text of at most {LONGEST_FORMULA} characters; give one like '3*seq_len + 6'")
    try:
        tree = ast.parse(formula.strip(), mode="eval")
        with np.errstate(all="ignore"):
            return np.asarray(_evaluate(tree.body, values, formula), float)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"'{formula}' is not a formula; write one like '3*seq_len*n_embd*bytes/32'") from None
    except OverflowError:
        raise ValueError(f"'{formula}' overflows; use smaller powers") from None


def compare(
    table: pd.DataFrame, formula: str, constants: Mapping[str, float] | None = None
) -> tuple[np.ndarray, float]:
    """Compare measured values with an expected formula.

    Parameters
    ----------
    table : DataFrame
        The measurements in the column ``value``, and the formula's variables.
    formula : str
        See :func:`evaluate`.
    constants : mapping of str to float
        Values of the formula's other names: ``{"n_embd": 768, "bytes": 2}``.

    Returns
    -------
    expected : array of float64, shape (rows,)
    slope_ratio : float
        ρ of measured ≈ α + ρ·expected by least squares of relative errors: the measured slope relative to the expected
        one, whatever the offset. NaN if `expected` does not vary.
    """
    names = {str(name): table[name].to_numpy(float) for name in table if name != "value" and _is_numeric(table[name])}
    expected = np.broadcast_to(evaluate(formula, names | dict(constants or {})), (len(table),))
    bad = ~np.isfinite(expected) | (expected == 0)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        where = ", ".join(f"{name} = {column[row]:g}" for name, column in names.items() if name in formula)
        raise ValueError(
            f"'{formula}' is {expected[row]:g} at {where or 'every point'}; correct the formula or leave it out"
        )
    return expected, _slope(expected, table["value"].to_numpy(float))


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


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _slope(expected: np.ndarray, measured: np.ndarray) -> float:
    """Slope of `measured` over `expected` with the least relative errors; 6 significant digits."""
    if len(np.unique(expected)) < 2:
        return math.nan
    weights = 1 / np.maximum(np.abs(measured), 1e-3 * np.abs(measured).max() or 1.0)
    design = np.stack([expected, np.ones_like(expected)], axis=1) * weights[:, None]
    norms = np.linalg.norm(design, axis=0)
    return rounded(float((np.linalg.lstsq(design / norms, measured * weights, rcond=None)[0] / norms)[0]))
