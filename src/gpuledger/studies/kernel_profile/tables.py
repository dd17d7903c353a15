"""A row per kernel, with its baseline, and a row per tensor-core launch."""

import numpy as np
import pandas as pd

from gpuledger.readers.kernel_names import labels, short_name
from gpuledger.studies.kernel_profile.roofs import LATENCY_PERCENT, RESOURCES

_SUMS = ("time_s", "fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops", "flops", "dram_bytes", "l2_bytes")
_MEANS = ("occupancy_percent", "theoretical_occupancy_percent", "waves")
COLUMNS = (
    *("kernel", "launches", "time_s", "flops", "dram_bytes", "achieved_percent", "bound", "occupancy_percent"),
    *("share_percent", "nearest_roof", "limiter", "fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops"),
    *("l2_bytes", "dram_intensity_flop_per_byte", "l2_intensity_flop_per_byte", "theoretical_occupancy_percent"),
    *("occupancy_limiter", "stalls", "registers", "grid", "block", "waves"),
    *(f"{name}_percent" for name in RESOURCES),
)


def kernel_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return one row per kernel (full name), the longest first; cells are missing where nothing was recorded.

    Returns
    -------
    DataFrame
        `COLUMNS`; the last ones are the shares of each roof. Sums are over all launches, and missing if one of them
        lacks the value; percentages are means weighted with time. ``bound`` is the nearest roof, or ``latency`` if
        the kernel reaches less than 60 % of every roof; missing if no roof is that near and the share of DRAM, or of
        computing, is not known. With a baseline also ``baseline_kernel, baseline_launches,
        baseline_time_s, speedup``; kernels that only the baseline has follow at the end, without launches.
    """
    table = _kernels(data[data["recording"] == "report"])
    before = baseline_table(data)
    return table if before is None else _with_baseline(table, before)


def baseline_table(data: pd.DataFrame) -> pd.DataFrame | None:
    """Return the rows of `kernel_table` for the baseline itself; None if the case has none."""
    before = data[data["recording"] == "baseline"]
    return _kernels(before) if len(before) else None


def _kernels(launches: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for name, group in launches.groupby("kernel", sort=False):
        count = group["launches"]
        row: dict[str, object] = {"kernel": name, "launches": int(count.sum())}
        for column in _SUMS:
            total = (group[column] * count).sum(skipna=False)
            row[column] = total if pd.notna(total) else None
        weights = (group["time_s"] * count).fillna(0)
        weights = weights if weights.sum() > 0 else count.astype(float)
        for column in _MEANS:
            row[column] = _mean(group[column], weights)
        near = {key: _mean(group[f"{key}_share_percent"], weights) for key in RESOURCES}
        row |= {f"{key}_percent": share for key, share in near.items()}
        near = {key: share for key, share in near.items() if share is not None}
        if near:
            nearest = _nearest(near)
            row |= {"achieved_percent": near[nearest], "nearest_roof": RESOURCES[nearest]}
            # Far from the roofs that are known, a kernel may still be near another.
            whole = "dram" in near and bool(near.keys() & {"sm", "fp32", "fp64", "tensor"})
            if near[nearest] >= LATENCY_PERCENT or whole:
                row["bound"] = nearest if near[nearest] >= LATENCY_PERCENT else "latency"
        for column in ("dram", "l2"):
            known = row[f"{column}_bytes"] and row["flops"] is not None
            row[f"{column}_intensity_flop_per_byte"] = row["flops"] / row[f"{column}_bytes"] if known else None
        longest = group.loc[weights.idxmax()]
        row |= {key: longest[key] for key in ("occupancy_limiter", "stalls")}
        row["registers"] = None if group["registers"].isna().all() else int(group["registers"].max())
        row |= {key: _same(group[key]) for key in ("grid", "block")}
        if row["grid"] is None:
            row["grid"] = _same(group["grid_blocks"])
        row["limiter"] = _limiter(row)
        rows.append(row)
    table = pd.DataFrame(rows, columns=["share_percent", *(name for name in COLUMNS if name != "share_percent")])
    for column in ("launches", "registers", "fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops", "flops"):
        table[column] = table[column].astype("Int64")
    for column in ("time_s", "dram_bytes", "l2_bytes", "achieved_percent", *_MEANS, *COLUMNS[16:18], *COLUMNS[-7:]):
        table[column] = table[column].astype("float64")
    table["share_percent"] = 100 * table["time_s"] / table["time_s"].sum(min_count=1)
    order = table["time_s"] if table["time_s"].notna().any() else table["flops"].astype("Float64")
    return table.loc[order.sort_values(ascending=False, kind="stable", na_position="last").index, list(COLUMNS)]


def _nearest(near: dict[str, float]) -> str:
    """Return the nearest roof; a unit that is nearly as busy as the SM says more than the SM."""
    nearest = max(near, key=near.get)
    units = {name: share for name, share in near.items() if name in ("tensor", "fp32", "fp64")}
    if nearest == "sm" and units and max(units.values()) >= 0.8 * near["sm"]:
        nearest = max(units, key=units.get)
    return nearest


def _mean(values: pd.Series, weights: pd.Series) -> float | None:
    known = values.notna()
    if not known.any() or not weights[known].sum():
        return None
    return float((values[known] * weights[known]).sum() / weights[known].sum())


def _same(values: pd.Series) -> str | None:
    distinct = values.dropna().unique()
    return None if not len(distinct) else str(distinct[0]) if len(distinct) == 1 else f"{len(distinct)} different"


def _limiter(row: dict[str, object]) -> str | None:
    """Say in a few words what limits a kernel."""
    if "bound" not in row:
        return None
    if row["bound"] != "latency":
        return str(row["nearest_roof"])
    waves, occupancy = row["waves"], row["occupancy_percent"]
    if waves is not None and waves < 1:
        return f"latency: {waves:.2f} waves of blocks" if waves >= 0.005 else "latency: less than 0.01 waves of blocks"
    if isinstance(row["stalls"], str):
        return f"latency: stalls on {row['stalls'].split(',')[0]}"
    if occupancy is not None and occupancy < 50:
        by = f", limited by {row['occupancy_limiter']}" if isinstance(row["occupancy_limiter"], str) else ""
        return f"latency: occupancy {occupancy:.0f} %{by}"
    return "latency"


def _with_baseline(table: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Add each kernel's baseline: of the same full name, else of the same short name, else the only ones left."""
    partner: dict[str, str] = {name: name for name in table["kernel"] if name in set(before["kernel"])}
    left = [name for name in table["kernel"] if name not in partner]
    others = [name for name in before["kernel"] if name not in partner]
    for name in list(left):
        same = next((other for other in others if short_name(other) == short_name(name)), None)
        if same is not None:
            partner[name] = same
            left.remove(name)
            others.remove(same)
    if len(left) == len(others) == 1:
        partner[left[0]] = others.pop()
    known = before.set_index("kernel")
    table = table.assign(baseline_kernel=table["kernel"].map(partner).astype(object))
    table["baseline_launches"] = table["baseline_kernel"].map(known["launches"]).astype("Int64")
    table["baseline_time_s"] = table["baseline_kernel"].map(known["time_s"]).astype("float64")
    table["speedup"] = table["baseline_time_s"] / table["time_s"]
    gone = before[before["kernel"].isin(others)]
    if len(gone):
        gone = pd.DataFrame(
            {
                "kernel": gone["kernel"],
                "launches": pd.array([0] * len(gone), "Int64"),
                "baseline_kernel": gone["kernel"],
                "baseline_launches": gone["launches"],
                "baseline_time_s": gone["time_s"],
            }
        )
        table = pd.concat([table, gone.reindex(columns=table.columns).astype(table.dtypes)], ignore_index=True)
    return table


def instruction_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the FP32 instructions of each kernel, in the order of `kernel_table`, from launches that count them all.

    Returns
    -------
    DataFrame
        ``kernel, fma, multiply, add`` (instructions of threads).
    """
    rows = data[data["recording"] == "report"].dropna(subset=["fp32_flops", "fadd_instructions", "fmul_instructions"])
    count = rows["launches"].astype("float64")
    names = {"fma": "fp32_flops", "multiply": "fmul_instructions", "add": "fadd_instructions"}
    sums = pd.DataFrame({name: rows[column].astype("float64") * count for name, column in names.items()})
    sums = sums.groupby(rows["kernel"], sort=False).sum()
    sums["fma"] = (sums["fma"] - sums["multiply"] - sums["add"]) / 2
    sums = sums.reindex([name for name in kernel_table(data)["kernel"] if name in sums.index])
    return sums[sums.sum(axis=1) > 0].rename_axis("kernel").reset_index()


def tensor_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return one row per tensor-core launch of the report, and per split-K reduction after one."""
    rows = data[(data["recording"] == "report") & (data["explanation"] != "")]
    columns = ["launch", "kernel", "grid_blocks", "steps", "steps_source", "predicted_instructions"]
    rows = rows[[*columns, "tensor_instructions", "exact", "explanation"]]
    return rows.rename(columns={"tensor_instructions": "recorded_instructions"}).reset_index(drop=True)


def tensor_table_for_people(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `tensor_table` with short names, those that say the same as one with their number."""
    shown = table.drop(columns="launch").assign(kernel=labels(table["kernel"]), exact=table["exact"].map(_YES))
    same = shown.groupby(list(shown), sort=False, dropna=False).size().reset_index(name="launches")
    return same[["kernel", "launches", *(name for name in same if name not in ("kernel", "launches"))]]


_YES = {True: "yes", False: "no"}


def table_for_people(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that fit a page, with short names and units that people read."""
    shown = pd.DataFrame({"kernel": labels(table["kernel"]), "launches": table["launches"]})
    scaled = {
        "time_s": ("time (µs)", 1e6),
        "share_percent": ("share (%)", 1),
        "flops": ("GFLOP", 1e-9),
        "dram_bytes": ("DRAM (MB)", 1e-6),
        "dram_intensity_flop_per_byte": ("FLOP/byte", 1),
        "achieved_percent": ("of nearest roof (%)", 1),
    }
    for column, (header, factor) in scaled.items():
        shown[header] = table[column].astype("Float64").to_numpy(dtype=float, na_value=np.nan) * factor
    shown["limited by"] = table["limiter"]
    shown["occupancy (%)"] = table["occupancy_percent"]
    shown["registers"] = table["registers"]
    if "baseline_time_s" in table:
        # A speedup is of all of a kernel's launches, which may be more or fewer than before.
        if (table["launches"] != table["baseline_launches"].fillna(0)).any():
            shown["launches before"] = table["baseline_launches"]
        shown["before (µs)"] = table["baseline_time_s"] * 1e6
        shown["speedup (×)"] = table["speedup"]
    return shown.loc[:, shown.notna().any()]
