"""Logs of mamf-finder.py, which times one matrix product after the other, as their readers keep and publish them."""

import re
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError, unreadable
from gpuledger.readers.kernel_tables.measured_table import median_of_equal

_DTYPE = re.compile(r"\*\* Dtype: torch\.(\w{1,40})")
#: A product: `134.8(mean) 134.9(median) 140.1(max) @ 1024x1024x1024`, or `134.8 TFLOPS @ …` in the first version.
_PRODUCT = re.compile(
    r"\|[ \t]*([\d.]{1,20})(?:\(mean\)[^@|\n]{0,60}|[ \t]*TFLOPS[ \t]*)@[ \t]*(\d{1,12})x(\d{1,12})x(\d{1,12})\b"
)
_MOST_BYTES = 1 << 30


def is_mamf(head: str) -> bool:
    """Tell whether a text begins like a log of mamf-finder.py."""
    return bool(_DTYPE.search(head) and _PRODUCT.search(head))


def read_mamf(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read the products of a log, with their mean times where it has means.

    The first version multiplies m × n by n × k, so that its second size is the inner length; the second says
    ``benchmark version: 2`` and prints the inner length last.

    Returns
    -------
    frame : DataFrame
        ``gemm_dtype, kernel, m, n, k, measured_s``; the kernel is empty.
    skipped : list of str
        Empty.
    """
    if unit != "TFLOP/s":
        raise InputError(path, "", f"mamf-finder.py prints TFLOP/s, not {unit}", "give unit: TFLOP/s")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(path, "", "larger than 1 GiB", "divide it")
        text = path.read_text("utf-8-sig", "replace")
    except OSError as error:
        raise unreadable(path, error, "correct the path or its permissions") from None
    rows = pd.DataFrame(_PRODUCT.findall(text), columns=["rate", "m", "n", "k"])
    rate = pd.to_numeric(rows["rate"], errors="coerce")
    sizes = rows[["m", "n", "k"]].astype("int64")
    if "benchmark version: 2" not in text:
        sizes = sizes.rename(columns={"n": "k", "k": "n"})
    good = rate.gt(0) & sizes.gt(0).all(axis=1)
    if not good.any():
        raise InputError(path, "", "no product in it has a speed", "give the log of a run that went well")
    frame = pd.DataFrame({"gemm_dtype": _DTYPE.search(text)[1], "kernel": ""}, rows.index)
    frame = frame.assign(**{size: sizes[size] for size in ("m", "n", "k")})
    frame["measured_s"] = 2.0 * sizes["m"] * sizes["n"] * sizes["k"] / (rate * 1e12)
    return median_of_equal(frame[good]), []
