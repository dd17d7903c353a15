"""What DeepGEMM's tests print of the GEMMs that they time, since its first release.

Source: deepseek-ai/DeepGEMM, ``tests/test_core.py``, ``tests/test_fp8.py`` and ``tests/test_bf16.py``.
"""

import re
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError, unreadable
from gpuledger.readers.kernel_tables.measured_table import median_of_equal

_ROW = re.compile(
    r"^[>\s]*Perf(?:ormance)? \(m= *(?P<m>\d{1,9}), n= *(?P<n>\d{1,9}), k= *(?P<k>\d{1,9})(?:, (?P<options>[^()\n]*))?"
    r"\): +(?:launch +\d{1,9} us \| +)?(?P<us>\d{1,9}(?:\.\d{1,9})?) us \|"
    r" +(?:throughput: +)?(?P<rate>\d{1,9}(?:\.\d{1,9})?) TFLOPS",
    re.MULTILINE,
)
_SECTION = re.compile(r"^Testing (.{1,80}?):?\s*$", re.MULTILINE)
#: Sections of single products; SGLang's copy of the tests says their types, and prints the time of a launch, too.
_SINGLE = re.compile(r"(?:(?:FP8|BF16) )?GEMM(?: NT)?")
_MOST_BYTES, _MOST_SIZE = 64 << 20, 1 << 20


def is_deepgemm(head: str) -> bool:
    """Tell whether a text begins like what DeepGEMM's tests print."""
    return bool(_ROW.search(head))


def read_deepgemm(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read the products of a row-major and a transposed matrix, whose sums are not added to others.

    Times are printed in whole microseconds at first: where the rate has more digits, it tells the time.

    Returns
    -------
    frame : DataFrame
        ``gemm_dtype, kernel, m, n, k, measured_s``. The kernel is how its scales are laid out (``1D2D``), if so.
    skipped : list of str
        What the rows are that were left out.
    """
    if unit != "us":
        raise InputError(path, "", f"DeepGEMM's times are in us, not in {unit}", "give unit: us")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(path, "", f"larger than {_MOST_BYTES >> 20} MiB", "give only what the tests printed")
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, "save it as UTF-8 text") from None
    rows, skipped, section = [], set(), ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section = found[1]
        elif found := _ROW.match(line):
            options = [option.strip() for option in (found["options"] or "").split(",") if option.strip()]
            odd = [option for option in options if option not in ("1D1D", "1D2D", "layout=NT", "BF16", "acc=0")]
            if odd or (section and not _SINGLE.fullmatch(section)):
                skipped.add(odd[0] if odd else section)
                continue
            scales = next((option for option in options if option.startswith("1D")), "")
            sizes = {name: int(found[name]) for name in "mnk"}
            flop = 2.0 * sizes["m"] * sizes["n"] * sizes["k"]
            rate, time = float(found["rate"]), float(found["us"]) * 1e-6
            if rate and _digits(found["rate"]) > _digits(found["us"]):
                time = flop / (rate * 1e12)
            if not (time and all(0 < size <= _MOST_SIZE for size in sizes.values())):
                raise InputError(path, found[0].strip()[:60], "a size or a time that no GEMM has", "remove the line")
            dtype = "fp8_block" if scales or not options else "bfloat16"
            rows.append({"gemm_dtype": dtype, "kernel": scales, **sizes, "measured_s": time})
    if not rows:
        problem = f"no GEMM that is read (found {', '.join(sorted(skipped))})"
        raise InputError(path, "", problem, "products with layout=NT, BF16 and acc=0 are read")
    return median_of_equal(pd.DataFrame(rows)), sorted(skipped)


def _digits(number: str) -> int:
    return len(number.replace(".", "").lstrip("0"))
