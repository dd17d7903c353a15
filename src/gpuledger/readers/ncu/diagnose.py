"""Find out why a file has no metric table."""

import re
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.readers.ncu.tables import TableScanner

_EXPORT = "export it with ncu --import REPORT --csv --page raw (or details)"
_PROFILE = "fix what ncu reports and profile again"
_SOURCE = re.compile(
    r'^\W*"?(#|Address)"?,.*\bSource\b|\bSource\b.*(Sampling|Samples)|"# (Samples|Address)', re.IGNORECASE
)
_SESSION = re.compile(
    r"^\W*(session|launch settings|device attributes?|report creation|attribute name)\b"
    r"|\bcompute_capability_major\b|\bmax_threads_per_block\b",
    re.IGNORECASE,
)
_TEXT_PAGE = re.compile(r"^Section: |^-{5,} -{5,}|^Metric Name\s{2,}Metric Unit")
_SYSTEMS = re.compile(r"^\W*Time \(%\)|Total Time \(ns\)|CUPTI_ACTIVITY|nsys\b")
_NVPROF = re.compile(r"NVPROF|\bMetric Description\b")
_PIVOTED = re.compile(
    r'^"?(?:Metric Name|metric|Metric)"?[,;\t]|^"?[a-z0-9]{2,10}__\w+\.(?:sum|avg|max|min)[\w.]*"?[,;\t]'
)
_ROW = re.compile(r'^"\d+","\d+",.*",|^\d+,\d+,[^,]+,[^,]*\d+\.\d+\.\d+\.\d+,')


def explain_missing_table(path: str | Path, scanner: TableScanner) -> InputError:
    """Return the error for a file without metric rows, with the reason found in its lines.

    Parameters
    ----------
    scanner : TableScanner
        After it has read the whole file.
    """
    noise = scanner.noise
    lines = noise.kept

    def has(pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(line) for line in lines)

    if noise.errors:
        failed = [text for text in noise.errors if "application returned an error" in text]
        first = next((text for text in noise.errors if text not in failed), "")
        said = "; ".join(text.rstrip(".") for text in [first, *failed] if text)[:400]
        return InputError(path, "", f"there is no metric table, because ncu failed: {said}", _PROFILE)
    if not lines and not scanner.tables:
        return InputError(path, "", "the file is empty", "profile again, or look where ncu wrote its output")
    if any("No kernels were profiled" in text for text in noise.warnings):
        remedy = "check that the program launches kernels, and the kernel filters (-k, --launch-skip)"
        return InputError(path, "", "there is no metric table, because no kernels were profiled", remedy)
    if scanner.tables:
        problem = "the table has a header but no row with a metric"
        return InputError(path, "", problem, "check that metrics or sections were selected, and profile again")
    if has(_SOURCE):
        return InputError(path, "", "this is a source page (one row per instruction), not a metric table", _EXPORT)
    if has(_PIVOTED):
        problem = "this is a pivoted table (a row per metric, a column per kernel), not output of ncu"
        return InputError(
            path, "", problem, "give the file that it was made from, or a row per launch with Kernel Name"
        )
    if has(_SESSION):
        return InputError(path, "", "this is a session page (device and settings), not a metric table", _EXPORT)
    if has(_TEXT_PAGE):
        return InputError(path, "", "this is text output of ncu, not CSV", "run ncu with --csv")
    if has(_ROW):
        return InputError(path, "line 1", "the rows have no header", "keep the header line, which begins with ID")
    if has(_NVPROF):
        problem = "these are metrics of nvprof, whose names and units are not those of Nsight Compute"
        return InputError(path, "", problem, "profile with ncu --csv")
    if has(_SYSTEMS):
        return InputError(path, "", "this is output of Nsight Systems, not Nsight Compute", "profile with ncu --csv")
    if all(line.startswith("==") for line in lines):
        remedy = "give the file that the table went to (standard output, or the report of -o)"
        return InputError(path, "", "there are only ==PROF== messages and no metric table", remedy)
    if noise.warnings:
        problem = f"there is no metric table; ncu warned: {noise.warnings[0][:300]}"
        return InputError(path, "", problem, _PROFILE)
    return InputError(path, "", "there is no metric table of Nsight Compute", "give the output of ncu --csv")
