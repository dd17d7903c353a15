"""Which GPU a kernel of a Nsight Systems export ran on, where several processes number their GPUs from 0.

``TARGET_INFO_CUDA_DEVICE`` has a row for each GPU that a process sees: its process (``pid``), its number there
(``cudaId``), its ``uuid``, and its row in ``TARGET_INFO_GPU`` (``gpuId``). Source: "SQLite Schema Reference" of Nsight
Systems' documentation, which also says where the process is in ``globalPid``.
"""

import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import warn
from gpuledger.readers.timelines.database import number, select

_SEEN = {"gpu": ("gpuId",), "device": ("cudaId",), "process": ("pid",), "uuid": ("uuid",)}


def true_gpus(path: Path, base: sqlite3.Connection, rows: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """Return the number of each row's GPU, and the names of the GPUs that kernels ran on, or else of all.

    Parameters
    ----------
    rows : DataFrame
        ``device`` and ``process`` (``globalPid``) of what ran.

    Warns
    -----
    InputWarning
        Several processes use a GPU of the same number, and the export does not say whether it is the same one.
    """
    gpus = select(base, "TARGET_INFO_GPU", {"id": ("id",), "name": ("name",)}).dropna()
    named = pd.Series(gpus["name"].to_numpy(object), number(gpus["id"])).groupby(level=0).first()
    device = number(rows["device"])
    process = np.where(rows["process"].notna(), number(rows["process"]) >> 24 & 0xFFFFFF, -1)
    # One number for both: millions of rows have few different ones.
    codes, distinct = pd.factorize((process + 1 << 32) + np.clip(device + 1, 0, 2**32 - 1))
    used = pd.MultiIndex.from_arrays([(distinct >> 32) - 1, (distinct & 0xFFFFFFFF) - 1])
    kept = used.get_level_values(1) >= 0
    used = used[kept]
    seen = select(base, "TARGET_INFO_CUDA_DEVICE", _SEEN)
    seen.index = pd.MultiIndex.from_arrays([number(seen["process"]), number(seen["device"])])
    seen = seen[~seen.index.duplicated()].reindex(used)
    gpu = number(seen["gpu"])
    # Parts of a GPU (MIG) have identifiers of their own.
    which = pd.factorize(seen["uuid"] if seen["uuid"].notna().all() else gpu)[0]
    if seen["uuid"].isna().any() and (gpu < 0).any():
        processes = used[used.get_level_values(0) >= 0].to_frame(index=False).groupby(1)[0].nunique()
        for one in processes.index[processes > 1][:1]:
            problem = f"{processes[one]} processes use a GPU {one}, and nothing says whether it is the same one"
            warn(path, "", problem, "taken as one: record each process into a report of its own if they differ")
        return device, named.tolist()
    if (gpu >= 0).all() and len(set(which)) == len(set(gpu)):
        which = gpu
    true = np.full(len(distinct), -1)
    true[kept] = which
    return true[codes], named[named.index.isin(gpu)].tolist() if (gpu >= 0).all() else named.tolist()
