"""Several tables in one frame, and numbers rounded to the digits that hold on every machine."""

from __future__ import annotations

import pandas as pd

from gpuledger.ledger.case_result import SIGNIFICANT_DIGITS


def settled(frame: pd.DataFrame) -> pd.DataFrame:
    """Round floats to the digits that hold on every machine; make texts of categories."""
    floats = frame.select_dtypes("floating").columns
    texts = frame.select_dtypes("category").columns
    rounded = {name: [float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in frame[name]] for name in floats}
    return frame.assign(**rounded, **{name: frame[name].astype(str) for name in texts})


def together(**tables: pd.DataFrame) -> pd.DataFrame:
    """Put tables below one another, each row with the name of its table in ``part``; whole numbers stay whole."""
    frames = [
        frame.astype(dict.fromkeys(frame.select_dtypes("integer"), "Int64")).assign(part=name)
        for name, frame in tables.items()
        if len(frame)
    ]
    return pd.concat(frames, ignore_index=True)


def apart(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Undo :func:`together`: the tables by name, each with its own columns."""
    found = {}
    for name, rows in data.groupby("part", sort=False):
        own = rows.drop(columns="part").dropna(axis="columns", how="all").reset_index(drop=True)
        whole = [column for column in own.select_dtypes("Int64") if own[column].notna().all()]
        found[str(name)] = own.astype(dict.fromkeys(whole, "int64"))
    return found
