"""Numbers as printed in any locale."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SPACES = " \u00a0\u202f\u2009'\u2019"  # group signs that are never decimal signs
_EXPONENT = r"(?:[eE][+-]?[0-9]{1,2})?"
_EXACT = 2.0**53  # float64 cannot hold every integer above it


def _number(decimal: str, groups: str) -> str:
    """Return the regular expression of a number; groups of two digits are Indian (12,34,567)."""
    grouped = "|".join(rf"[0-9]{{1,3}}(?:{re.escape(sign)}[0-9]{{2,3}})*{re.escape(sign)}[0-9]{{3}}" for sign in groups)
    decimal = re.escape(decimal)
    return rf"[+-]?(?:(?:[0-9]{{1,40}}|{grouped})(?:{decimal}[0-9]{{0,40}})?|{decimal}[0-9]{{1,40}}){_EXPONENT}"


POINT = f"^(?:{_number('.', ',' + SPACES)})$"
COMMA = f"^(?:{_number(',', '.' + SPACES)})$"
# --print-metric-instances prints the instances after the value: "12 (3; 4; 5)".
_INSTANCES = r"^[+-]?[0-9][^({;]* [({].*[)}]$"


def any_of(mask: pa.Array) -> bool:
    """Whether any value is true."""
    return bool(pc.any(mask, min_count=0).as_py())


def without_instances(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Remove the instances that --print-metric-instances adds; also return which texts had some."""
    with_instances = pc.match_substring(texts, " ")
    if any_of(with_instances):  # searching for a space is faster than the pattern
        with_instances = pc.match_substring_regex(texts, _INSTANCES)
        texts = pc.if_else(with_instances, pc.replace_substring_regex(texts, r" [({].*$", ""), texts)
    return texts, with_instances


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
    numeric = pc.match_substring_regex(heads, POINT if decimal == "." else COMMA)
    cleaned = pc.if_else(numeric, heads, pa.scalar(None, pa.string()))
    cleaned = pc.replace_substring(cleaned, "," if decimal == "." else ".", "")
    if any_of(pc.match_substring_regex(cleaned, f"[{SPACES}]")):
        cleaned = pc.replace_substring_regex(cleaned, f"[{SPACES}]", "")
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
