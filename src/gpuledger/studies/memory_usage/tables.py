"""Memory of probes by workload, and shares as text."""

import pandas as pd

from gpuledger.ledger.case_result import size_text

#: The words of the paper's Fig. 12 stand for powers of 1024. This follows from its numbers: per warp of 32 threads
#: gmem_bytes stores 8 B per thread and block_sched 16 B, a factor of 16; 3.5 MB is 16 times 224 KB only in these units.
UNIT_BYTES = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
#: The use that all others are compared with.
ORIGINAL = "original"


def workload_text(model: str, batch_size: int) -> str:
    """Return a workload's name: ``ResNet, batch size 32``; without the batch size if it is 0, not known."""
    return f"{model}, batch size {batch_size}" if batch_size else model


def share_text(ratio: float, digits: int = 3) -> str:
    """Return a ratio as text: ``17.4 %`` below one, ``12.9×`` from one on."""
    value, unit = (ratio, "×") if ratio >= 1 else (100 * ratio, " %")
    return f"{float(f'{value:.{digits}g}'):.10g}{unit}"


def probe_series(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each probe by name; probes that need the same memory everywhere form one series, ``a = b``."""
    probes = dict.fromkeys(data.loc[data["use"] != ORIGINAL, "use"])
    wide = data.pivot(index=["model", "batch_size"], columns="use", values="memory_bytes").fillna(0)
    series: dict[tuple, list[str]] = {}
    for probe in probes:
        series.setdefault(tuple(wide[probe]), []).append(probe)
    return {" = ".join(equal): data[data["use"] == equal[0]] for equal in series.values()}


def memory_table(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return one row per workload, in the order of the input.

    Returns
    -------
    frame : DataFrame
        For each use ``<use>_bytes``, and for each probe ``<probe>_ratio_to_original``.
    people : DataFrame
        For each use one text, ``98 MiB (17.4 %)``.
    """
    order = pd.MultiIndex.from_frame(data[["model", "batch_size"]].drop_duplicates())
    columns, texts = {}, {}
    for use in dict.fromkeys([ORIGINAL, *data["use"]]):
        rows = data[data["use"] == use].set_index(["model", "batch_size"]).reindex(order)
        columns[f"{use}_bytes"] = rows["memory_bytes"].astype("Int64")
        cells = rows["memory_bytes"].map(size_text, na_action="ignore")
        if use != ORIGINAL:
            columns[f"{use}_ratio_to_original"] = rows["ratio_to_original"]
            cells = cells + " (" + rows["ratio_to_original"].map(share_text, na_action="ignore") + ")"
        texts[use] = cells
    frame, people = pd.DataFrame(columns).reset_index(), pd.DataFrame(texts).reset_index()
    return frame, people.astype({"batch_size": "Int64"}).replace({"batch_size": {0: pd.NA}})
