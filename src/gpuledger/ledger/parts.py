"""Several tables in one ``data.parquet``: the column ``part`` names the table that a row belongs to."""

import pandas as pd


def join_parts(**tables: pd.DataFrame) -> pd.DataFrame:
    """Concatenate tables under their names; integers and truth values stay such, and empty tables are left out."""
    frames = []
    for name, frame in tables.items():
        kinds = dict.fromkeys(frame.select_dtypes("integer"), "Int64")
        kinds |= dict.fromkeys(frame.select_dtypes("bool"), "boolean")
        frames += [frame.astype(kinds).assign(part=name)] if len(frame) else []
    return pd.concat(frames, ignore_index=True)


def split_parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Undo :func:`join_parts`."""
    return {str(name): one_part(data, str(name)) for name in data["part"].unique()}


def one_part(data: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return one of the tables; an empty one if there is none of that name."""
    own = data[data["part"] == name].drop(columns="part").dropna(axis="columns", how="all").reset_index(drop=True)
    kinds = {"Int64": "int64", "boolean": "bool"}
    whole = {column: kinds[kind.name] for column, kind in own.dtypes.items() if kind.name in kinds}
    return own.astype({column: kind for column, kind in whole.items() if own[column].notna().all()})
