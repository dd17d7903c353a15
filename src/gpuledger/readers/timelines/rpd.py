"""Databases of AMD's rocmProfileData (``.rpd``), whose tables rocm-trace-lite writes, too.

Schema: rocpd_python/rocpd/schema_data/tableSchema.cmd of rocmProfileData. rocprofv3's rocpd is another one.
"""

import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.readers.timelines.database import interval, number, select
from gpuledger.readers.timelines.table import Timeline, finish

#: How the types of operations on a GPU begin; others are barriers and marks.
_KINDS = {"KernelExecution": "kernel", "Copy": "copy", "Fill": "set"}
#: The names under which ranges of roctx are among the host's calls; the text is their argument.
_RANGES = ("UserMarker", "USER_EVENT")


def read_rpd(path: Path, base: sqlite3.Connection) -> Timeline:
    """Read the kernels, copies, calls and ranges of a database of rocmProfileData."""

    def read(table: str, **wanted: str) -> pd.DataFrame:
        return select(base, table, {name: (own,) for name, own in wanted.items()})

    texts = read("rocpd_string", id="id", text="string")
    known = {number: str(text) for number, text in zip(texts["id"], texts["text"], strict=True)}

    def look_up(numbers: pd.Series) -> np.ndarray:
        return np.array([known.get(number, "") for number in numbers], object)

    times = {"id": "id", "start": "start", "end": "end"}
    device = read("rocpd_op", **times, stream="queueId", device="gpuId", text="description_id", type="opType_id")
    types = look_up(device["type"])
    kinds = [next((kind for begin, kind in _KINDS.items() if text.startswith(begin)), "") for text in types]
    names = look_up(device["text"])
    device = device.assign(kind=kinds, name=np.where(names == "", types, names))
    device = device[device["kind"] != ""].reset_index(drop=True)
    valid, moments = interval(device)
    device = device[valid]

    calls = read("rocpd_api", **times, thread="tid", process="pid", text="apiName_id", said="args_id")
    names = look_up(calls["text"])
    marked = np.isin(names, _RANGES)
    calls = calls.assign(
        name=np.where(marked, look_up(calls["said"]), names),
        kind=np.where(marked, "annotation", "call"),
        thread=[f"{process}/{thread}" for process, thread in zip(calls["process"], calls["thread"], strict=True)],
    )
    whole, lengths = interval(calls)
    calls = calls[whole].assign(**lengths)

    links = read("rocpd_api_ops", call="api_id", operation="op_id").drop_duplicates("operation")
    launch = pd.Series(number(links["call"]), index=number(links["operation"])).reindex(number(device["id"]))
    own = calls[calls["kind"] == "call"]
    own = own.set_index(number(own["id"]))[["start_s", "thread", "name"]].reindex(launch.fillna(-1).to_numpy())
    columns = {
        "kernel": device["name"].str.removesuffix(".kd").to_numpy(object),
        "kind": device["kind"].to_numpy(object),
        **{name: number(device[name]) for name in ("stream", "device")},
        **moments,
        "launch_s": own["start_s"].to_numpy(float),
        "thread": own["thread"].astype(object).fillna("").to_numpy(object),
        "launched_by": own["name"].astype(object).fillna("").to_numpy(object),
    }
    host = {name: calls[name].to_numpy(object) for name in ("name", "kind", "start_s", "duration_s", "thread")}
    return finish(path, "rocmProfileData database (rpd)", columns, host, left_out=int((~valid).sum()))
