"""The tables by rows and by tile."""

import numpy as np
import pandas as pd

from gpuledger.studies.gemm_tiles.reduction import COMPARED, groups_of

#: Rows of x up to which a line of the table counts, each behind the one before.
ROWS = (8, 16, 32, 64, 128, 256, 512, 1024, 4096, 2**20)


def row_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return how often the model agrees, by type and rows of x; the last line of a type is all of it.

    Returns
    -------
    DataFrame
        ``type, rows, shapes, tile`` (the most frequent one, m × n)``, tile_percent, split_percent`` and, of each key of
        `COMPARED`, ``<key>_percent``.
    """
    lines = []
    for group in groups_of(data):
        part = data[data["group"] == group]
        bins = np.searchsorted(ROWS, part["m"])
        for at, rows in [*part.groupby(bins), (None, part)]:
            words = "all" if at is None else f"{ROWS[at - 1] + 1 if at else 1} to {min(ROWS[at], part['m'].max())}"
            tiles = tile_names(rows).value_counts()
            line = {"type": group, "rows": words, "shapes": len(rows), "tile": tiles.index[0]}
            line |= {"tile_percent": 100 * tiles.iloc[0] / len(rows), "split_percent": 100 * rows["split"].mean()}
            lines.append(line | {f"{name}_percent": 100 * rows[name].mean() for name in COMPARED})
    return pd.DataFrame(lines).round(4)


def tile_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return what was launched, by type and tile, and what the model has in its place most often.

    Returns
    -------
    DataFrame
        ``type, tile, shapes, split_percent, same_tile_percent, instead`` (empty: nothing else) and ``instead_percent``;
        the most frequent tile of a type first.
    """
    lines = []
    for group in groups_of(data):
        part = data[data["group"] == group]
        names, predicted = tile_names(part), tile_names(part, "predicted_")
        for tile in names.value_counts().index:
            rows = names == tile
            others = predicted[rows & (predicted != tile)].value_counts()
            line = {"type": group, "tile": tile, "shapes": int(rows.sum())}
            line |= {f"{name}_percent": 100 * part.loc[rows, name].mean() for name in ("split", "same_tile")}
            line["instead"] = others.index[0] if len(others) else ""
            lines.append(line | {"instead_percent": 100 * others.iloc[0] / rows.sum() if len(others) else 0.0})
    return pd.DataFrame(lines).round(4)


def tile_names(rows: pd.DataFrame, prefix: str = "") -> pd.Series:
    """Return tiles as people write them, m × n."""
    return rows[f"{prefix}tile_m"].astype(str) + "×" + rows[f"{prefix}tile_n"].astype(str)
