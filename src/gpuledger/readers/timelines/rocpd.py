"""Databases of rocprofv3 (rocpd, its default since ROCm 7).

Schema: share/rocprofiler-sdk-rocpd/rocpd_tables.sql of ROCprofiler-SDK. Each process has tables of its own, whose names
end with its identifier; views without it join them.
"""

import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.readers.timelines.database import extents, interval, number, select, stacked, text
from gpuledger.readers.timelines.table import Timeline, finish, grid_in_blocks, sizes

_AXES = "xyz"


def read_rocpd(path: Path, base: sqlite3.Connection, tables: set[str]) -> Timeline:
    """Read the kernels, copies and host calls of a database that rocprofv3 wrote."""

    def read(table: str, **wanted: str) -> pd.DataFrame:
        names = {name: (own,) for name, own in wanted.items()} | {"guid": ("guid",)}
        own = [table] if table in tables else sorted(name for name in tables if name.startswith(f"{table}_"))
        parts = [select(base, name, names).assign(part=name.removeprefix(table)) for name in own]
        return stacked(parts) if parts else pd.DataFrame(columns=[*names, "part"])

    def look_up(rows: pd.DataFrame, key: str, table: pd.DataFrame, value: str) -> np.ndarray:
        """Return the value of the row with that id, of the same process."""
        known = dict(zip(zip(table["part"], table["guid"], table["id"], strict=True), table[value], strict=True))
        keys = zip(rows["part"], rows["guid"], rows[key], strict=True)
        return np.array([known.get(key) for key in keys], object)

    extent = {f"{what}{axis}": f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in _AXES}
    times = {"start": "start", "end": "end", "stream": "stream_id", "event": "event_id"}
    kernels = read("rocpd_kernel_dispatch", **times, device="agent_id", symbol="kernel_id", **extent)
    symbols = read("rocpd_info_kernel_symbol", id="id", shown="display_name", name="kernel_name")
    symbols["name"] = symbols["shown"].fillna(symbols["name"])
    kernels["name"] = look_up(kernels, "symbol", symbols, "name")
    texts = read("rocpd_string", id="id", text="string")
    copies = read("rocpd_memory_copy", **times, device="dst_agent_id", text="name_id")
    copies["name"] = look_up(copies, "text", texts, "text")
    device = stacked([kernels.assign(kind="kernel"), copies.assign(kind="copy")])
    events = read("rocpd_event", id="id", stack="stack_id", category="category_id")
    events["category"] = look_up(events, "category", texts, "text")
    calls = read("rocpd_region", start="start", end="end", thread="tid", text="name_id", event="event_id")
    calls["name"] = look_up(calls, "text", texts, "text")
    for rows in (device, calls):
        rows["stack"] = look_up(rows, "event", events, "stack")
    markers = ["MARKER" in str(category) for category in look_up(calls, "event", events, "category")]
    calls["kind"] = np.where(markers, "annotation", "call")
    whole, moments = interval(calls)
    calls = calls[whole].assign(thread=text(calls["thread"]), **moments).reset_index(drop=True)

    valid, moments = interval(device)
    device = device[valid].reset_index(drop=True)
    launching = calls[(calls["kind"] == "call") & calls["stack"].notna()]
    launching = launching.drop_duplicates(["part", "guid", "stack"]).set_index(["part", "guid", "stack"])
    launch = launching[["start_s", "thread", "name"]].reindex(
        pd.MultiIndex.from_frame(device[["part", "guid", "stack"]])
    )
    grid, block = (extents(device, what, _AXES) for what in ("grid", "workgroup"))
    columns = {
        "kernel": device["name"].fillna("").astype(str).to_numpy(object),
        "kind": device["kind"].to_numpy(object),
        **{name: number(device[name]) for name in ("stream", "device")},
        "grid": sizes(grid_in_blocks(grid, block)),
        "block": sizes(block),
        **moments,
        "launch_s": launch["start_s"].to_numpy(float),
        "thread": launch["thread"].fillna("").to_numpy(object),
        "launched_by": launch["name"].fillna("").to_numpy(object),
    }
    agents = read("rocpd_info_agent", type="type", product="product_name", model="model_name")
    agents = agents[agents["type"] == "GPU"]
    devices = agents["product"].fillna(agents["model"]).dropna()
    host = {name: calls[name].to_numpy(object) for name in ("name", "kind", "start_s", "duration_s", "thread")}
    return finish(path, "rocprofv3 database (rocpd)", columns, host, devices, int((~valid).sum()))
