"""Numbers as printed in any locale: find the decimal sign and parse the values.

``1.234`` is a different number in different locales, so the decimal sign is decided once per file, from the values
that can be read in only one way.
"""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuledger.errors import InputError

_SPACES = " \u00a0\u202f\u2009'\u2019"  # group signs that are never decimal signs
_EXPONENT = r"(?:[eE][+-]?[0-9]{1,2})?"
_EXACT = 2.0**53  # float64 cannot hold every integer above it


def _number(decimal: str, groups: str) -> str:
    """Return the regular expression of a number; groups of two digits are Indian (12,34,567)."""
    grouped = "|".join(rf"[0-9]{{1,3}}(?:{re.escape(sign)}[0-9]{{2,3}})*{re.escape(sign)}[0-9]{{3}}" for sign in groups)
    decimal = re.escape(decimal)
    return rf"[+-]?(?:(?:[0-9]{{1,40}}|{grouped})(?:{decimal}[0-9]{{0,40}})?|{decimal}[0-9]{{1,40}}){_EXPONENT}"


_POINT = f"^(?:{_number('.', ',' + _SPACES)})$"
_COMMA = f"^(?:{_number(',', '.' + _SPACES)})$"
_UNGROUPED = r"^[+-]?[0-9]{4,}(?:[.,][0-9]*)?$"
# --print-metric-instances prints the instances after the value: "12 (3; 4; 5)".
_INSTANCES = r"^[+-]?[0-9][^({;]* [({].*[)}]$"


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())


def _matches(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(texts, pattern)


def _first(texts: pa.Array, mask: pa.Array) -> str:
    return pc.filter(texts, mask)[0].as_py()


def without_instances(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Remove the instances that --print-metric-instances adds; also return which texts had some."""
    with_instances = pc.match_substring(texts, " ")
    if _any(with_instances):  # searching for a space is faster than the pattern
        with_instances = _matches(texts, _INSTANCES)
        texts = pc.if_else(with_instances, pc.replace_substring_regex(texts, r" [({].*$", ""), texts)
    return texts, with_instances


def decide_decimal(path: str | Path, texts: pa.Array, counts: pa.Array) -> str:
    """Find the decimal sign of a file, ``.`` or ``,``.

    Parameters
    ----------
    texts : pyarrow.Array of string
        The distinct value texts of the file.
    counts : pyarrow.Array of string
        Those of metrics that are always whole (such as a number of blocks), where a sign can only group digits.

    Raises
    ------
    InputError
        If values of two locales are mixed, or if every value is ambiguous.
    """
    texts, _ = without_instances(texts)
    signed = pc.filter(texts, pc.or_(pc.match_substring(texts, "."), pc.match_substring(texts, ",")))
    as_point, as_comma = _matches(signed, _POINT), _matches(signed, _COMMA)
    only_point = pc.and_(as_point, pc.invert(as_comma))
    only_comma = pc.and_(as_comma, pc.invert(as_point))
    point, comma = _any(only_point), _any(only_comma)
    if point and comma:
        raise InputError(
            path,
            "metric values",
            f"{_first(signed, only_point)!r} has a decimal point, {_first(signed, only_comma)!r} a decimal comma",
            "keep outputs of different locales in separate files, or print them with LC_ALL=C",
        )
    both = pc.filter(signed, pc.and_(as_point, as_comma))
    decimal = "." if point else "," if comma else "." if not len(both) else _settle(texts, both, counts)
    if not decimal:
        raise InputError(
            path,
            "metric values",
            f"{both[0].as_py()!r} is ambiguous (thousands or decimals), and so is every other value",
            'print the report again with LC_ALL=C, or say which sign is the decimal one (decimal: ".")',
        )
    return decimal


def _settle(texts: pa.Array, both: pa.Array, counts: pa.Array) -> str:
    """Return the decimal sign if every value with a sign is ambiguous by itself; ``""`` if it stays open."""
    signs = {sign for sign in ".," if _any(pc.match_substring(both, sign))}
    if len(signs) != 1:  # with "1.234" and "1,234", one must be a fraction, but either could be
        return ""
    sign = signs.pop()
    other = "," if sign == "." else "."
    if _any(pc.match_substring(counts, sign)):  # there is no fraction of a block: 1.234 means 1234
        return other
    grouped = _matches(texts, rf"^[+-]?[0-9]{{1,3}}(?:[{_SPACES}][0-9]{{3}})+$")
    # A file that writes 12345 without a group sign, or groups with spaces, uses its sign for decimals only.
    return sign if _any(grouped) or _any(_matches(texts, _UNGROUPED)) else ""


def parse_numbers(texts: pa.Array, decimal: str) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """Parse the values.

    Parameters
    ----------
    texts : pyarrow.Array of string, shape (n,)
        The distinct value texts of the file.

    Returns
    -------
    values : numpy.ndarray of float64, shape (n,)
        NaN where the text is not a number.
    plain : numpy.ndarray of bool, shape (n,)
        The text is just a number, so it need not be kept as well.
    cleaned : pyarrow.Array of string, shape (n,)
        The number as Python writes it, null for text; scaling appends an exponent to it.
    """
    heads, with_instances = without_instances(texts)
    numeric = _matches(heads, _POINT if decimal == "." else _COMMA)
    cleaned = pc.if_else(numeric, heads, pa.scalar(None, pa.string()))
    cleaned = pc.replace_substring(cleaned, "," if decimal == "." else ".", "")
    if _any(_matches(cleaned, f"[{_SPACES}]")):
        cleaned = pc.replace_substring_regex(cleaned, f"[{_SPACES}]", "")
    if decimal == ",":
        cleaned = pc.replace_substring(cleaned, ",", ".")
    cleaned = pc.if_else(pc.starts_with(cleaned, "+"), pc.utf8_slice_codeunits(cleaned, 1), cleaned)
    values = pc.cast(cleaned, pa.float64()).to_numpy(zero_copy_only=False)
    plain = pc.and_(numeric, pc.invert(with_instances)).to_numpy(zero_copy_only=False).astype(bool)
    return values, plain, cleaned


def scale_numbers(cleaned: pa.Array, values: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Multiply values by powers of ten, rounding each only once, so that 0.29 Mbyte is exactly 290000 bytes.

    Parameters
    ----------
    cleaned : pyarrow.Array of string, shape (n,)
        Numbers as Python writes them, null for text.
    values : numpy.ndarray of float64, shape (n,)
        Their values.
    power : numpy.ndarray of int, shape (n,)
        Powers of ten.
    """
    texts = pc.binary_join_element_wise(cleaned, pa.array(power).cast(pa.string()), "e")
    has_exponent = pc.match_substring_regex(cleaned, "[eE]")
    texts = pc.if_else(pc.fill_null(has_exponent, False), pa.scalar(None, pa.string()), texts)
    scaled = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False)
    return np.where(np.isnan(scaled), values * 10.0**power, scaled)


def loses_digits(text: str, value: float) -> bool:
    """Whether an integer, as Python writes it, has no exact float64 (only above 2^53)."""
    return abs(value) >= _EXACT and text.lstrip("+-").isdigit() and int(text) != int(value)
