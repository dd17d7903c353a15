"""Recorded launches of cuBLAS: which tile, which split of k and which grid a matrix multiplication got."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.kernel_names import parse
from gpuledger.readers.kernel_tables.gemms import DTYPES
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable
from gpuledger.readers.tabular import by_value

# After tile and steps come the blocks of a cluster: nvjet_sm90_tst_128x64_64x6_2x1_v_bz_splitK_TNT.
_CLUSTER = re.compile(r"^nvjet_\w{0,30}?_\d{1,4}x\d{1,4}_\d{1,4}x\d{1,3}_(\d{1,2})x(\d{1,2})_")
_SPLIT = re.compile(r"_split_?k", re.IGNORECASE)


def read_launches(path: Path) -> tuple[pd.DataFrame, int]:
    """Read recorded launches of y (m × n) = x (m × k) · wᵀ (n × k), each tensor with rows after one another.

    cuBLAS counts columns first: the first number of a name's tile and of its cluster is of n, the second of m. Grids of
    nvjet's kernels say so whatever the name ends with (TNT or TNN): a tile each, in whole clusters, up to the blocks
    that the GPU holds at once; with more tiles, a block takes one after the other.

    Parameters
    ----------
    path : path
        A table of ``gemm_dtype, m, n, k, kernel`` (name of the kernel), ``grid_x, grid_y``, a row a shape.

    Returns
    -------
    frame : DataFrame
        ``group, precision, m, n, k, kernel, tile_m, tile_n, tile_k, cluster_m, cluster_n, tiles`` (in whole clusters),
        ``blocks, most_blocks`` (that any launch with so large a cluster has), ``split`` (whether k is split),
        ``split_k`` (by how many; NaN where all places are taken, so that the grid does not tell) and ``waves`` (tiles
        of the busiest block; NaN where `split_k` is).
    unnamed : int
        Rows whose kernel's name has no tile, which are left out.
    """
    sizes = ("m", "n", "k", "grid_x", "grid_y")
    table = MeasuredTable(path, ["gemm_dtype", "kernel", *sizes])
    dtypes = by_value(table.texts("gemm_dtype"), lambda names: names.str.strip().str.lower().str.removeprefix("torch."))
    columns = {name: by_value(dtypes, {dtype: of[at] for dtype, of in DTYPES.items()}) for name, at in _TYPES}
    frame = pd.DataFrame(columns | {name: table.whole_numbers(name) for name in sizes})
    frame["kernel"] = table.texts("kernel")
    if frame["precision"].isna().any():
        table.refuse(frame["precision"].isna(), "gemm_dtype", "is no known type", f"known are: {', '.join(DTYPES)}")
    twice = frame.duplicated(["group", "m", "n", "k"])
    table.refuse(twice, "m", "is of a shape that is in the table before", "keep one row of it")
    facts = {name: _facts(name) for name in frame["kernel"].unique()}
    named = frame["kernel"].map({name: known is not None for name, known in facts.items()}).to_numpy(dtype=bool)
    if not named.any():
        raise InputError(path, "column kernel", "no name has a tile", "record cuBLAS's kernels under their full names")
    frame = frame[named].reset_index(drop=True)
    found = pd.DataFrame([facts[name] for name in frame["kernel"]], columns=_FACTS)
    frame = frame.join(found)
    down, across = (
        -(-frame[size] // (frame[f"tile_{size}"] * frame[f"cluster_{size}"])) * frame[f"cluster_{size}"]
        for size in ("m", "n")
    )
    frame["tiles"], frame["blocks"] = down * across, frame.pop("grid_x") * frame.pop("grid_y")
    cluster = frame["cluster_m"] * frame["cluster_n"]
    frame["most_blocks"] = frame.groupby(["group", cluster])["blocks"].transform("max")
    told = frame["split"] & (frame["blocks"] < frame["most_blocks"]) & (frame["blocks"] % frame["tiles"] == 0)
    frame["split_k"] = np.where(told, frame["blocks"] // frame["tiles"], np.where(frame["split"], np.nan, 1.0))
    frame["waves"] = np.where(frame["split"], np.where(told, 1.0, np.nan), np.ceil(frame["tiles"] / frame["blocks"]))
    return frame, int((~named).sum())


_TYPES = (("group", 1), ("precision", 0))
_FACTS = ["tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "split"]


def _facts(name: str) -> tuple | None:
    """Return what a kernel's name says, in the order of `_FACTS`; None without a tile."""
    known = parse(name)
    if None in (known.tile_m, known.tile_n):
        return None
    cluster = _CLUSTER.match(known.base)
    across, down = map(int, cluster.groups()) if cluster else (1, 1)
    return known.tile_n, known.tile_m, known.tile_k, down, across, bool(_SPLIT.search(known.base))
