"""Names that tell operators apart."""

import pandas as pd


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
