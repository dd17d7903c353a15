"""Probe costs by operator, and both kinds of probes side by side."""

import pandas as pd

from gpuledger.ledger.case_result import brief
from gpuledger.studies.kernel_overhead.compared import UNITS


def overhead_table(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return one row per operator of each group, in the order of the input.

    Returns
    -------
    frame : DataFrame
        For each probe ``<probe>_slowdown_ratio``, ``<probe>_extra_registers`` and ``<probe>_spilled``.
    people : DataFrame
        For each probe one text, ``1.0050× +12``, as the paper prints it.
    """
    keys = ["operator", "group"]
    operators = pd.MultiIndex.from_frame(data[keys].drop_duplicates())
    columns, texts = {}, {}
    for probe in dict.fromkeys(data["probe"]):
        rows = data[data["probe"] == probe].set_index(keys).reindex(operators)
        for name in ("slowdown_ratio", "extra_registers", "spilled"):
            columns[f"{probe}_{name}"] = rows[name]
        spilled = rows["spilled"].map({True: " (spill)"}).fillna("")
        cells = rows["slowdown_ratio"].map("{:.4f}×".format) + rows["extra_registers"].map(" {:+g}".format)
        texts[probe] = (cells + spilled).where(rows["slowdown_ratio"].notna())
    frame, people = (pd.DataFrame(by_probe).reset_index() for by_probe in (columns, texts))
    return frame, people


def compared_table(compared: pd.DataFrame) -> pd.DataFrame:
    """Return both kinds of probes side by side for people: records, value with its unit, additional registers."""
    units = compared["probe"].map(UNITS) + "s"
    columns = {"workload": compared["workload"], "probe": compared["probe"]}
    for kind, name in (("source", "source-level"), ("binary", "binary")):
        columns[f"{name}: records"] = compared[f"records_{kind}"]
        columns[f"{name}: value"] = compared[f"value_{kind}"].map(lambda value: brief(value, 6)) + " " + units
        columns[f"{name}: extra registers"] = compared[f"registers_{kind}"].map("{:+d}".format)
    return pd.DataFrame(columns)


def operator_labels(data: pd.DataFrame) -> pd.Series:
    """Return the operator of each row, with its group behind it where several groups have one of that name.

    Parameters
    ----------
    data : DataFrame
        With ``group`` (empty: none) and ``operator``.

    Returns
    -------
    Series of str
        ``gemm``, or ``gemm (Triton)`` beside ``gemm (CUTLASS)``.
    """
    shared = data.groupby("operator")["group"].transform("nunique") > 1
    with_group = data["operator"] + " (" + data["group"] + ")"
    return data["operator"].mask(shared & (data["group"] != ""), with_group)
