"""A row per kernel, with its baseline, and a row per tensor-core launch."""

from collections import deque

import numpy as np
import pandas as pd

from gpuledger.ledger.stored_data import Columns
from gpuledger.readers.kernel_names import are_siblings, labels, parse, short_name, without_compilers_number
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


def kernel_table(data: Columns) -> pd.DataFrame:
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
    table = _kernels(data, data["recording"] == "report")
    before = baseline_table(data)
    return table if before is None else _with_baseline(table, before)


def baseline_table(data: Columns) -> pd.DataFrame | None:
    """Return the rows of `kernel_table` for the baseline itself; None if the case has none."""
    before = data["recording"] == "baseline"
    return _kernels(data, before) if before.any() else None


class _ByKernel:
    """Columns of chosen launches, kernel by kernel; kernels in the order in which they first appear."""

    def __init__(self, data: Columns, chosen: pd.Series):
        self._data = data
        rows = np.flatnonzero(chosen)
        codes, names = pd.factorize(data["kernel"].iloc[rows])
        order = np.argsort(codes, kind="stable")
        self.kernels, self.codes, self._rows = list(names), codes[order], rows[order]

    def column(self, name: str) -> pd.Series:
        return self._data[name].iloc[self._rows].reset_index(drop=True)

    def slices(self, known: np.ndarray | slice = slice(None)) -> list[slice]:
        """Return where each kernel's launches are, of all or of known ones."""
        ends = np.searchsorted(self.codes[known], np.arange(len(self.kernels) + 1)).tolist()
        return list(map(slice, ends, ends[1:]))

    def sums(self, values: np.ndarray, known: np.ndarray | slice = slice(None)) -> np.ndarray:
        # Slice by slice, so that a sum depends on no other kernel's launches.
        return np.array([values[own].sum() for own in self.slices(known)], values.dtype)

    def totals(self, name: str, count: np.ndarray) -> pd.Series:
        """Return sums over all launches; missing where one of these lacks the value."""
        values = self.column(name)
        lacking = np.bincount(self.codes[values.isna()], minlength=len(self.kernels)) > 0
        kind = "int64" if values.dtype == "Int64" else "float64"
        sums = self.sums(values.fillna(0).to_numpy(kind) * count)
        return pd.Series(sums).astype("Int64" if kind == "int64" else kind).mask(lacking)

    def means(self, name: str, weights: np.ndarray) -> np.ndarray:
        """Return weighted means of the launches that have the value; NaN where there are none."""
        values = self.column(name).to_numpy("float64", na_value=np.nan)
        known = ~np.isnan(values)
        whole = self.sums(weights[known], known)
        sums = self.sums(values[known] * weights[known], known)
        return np.divide(sums, whole, out=np.full(len(whole), np.nan), where=whole != 0)

    def same(self, name: str) -> list[str | None]:
        """Return what is the same in all launches that have it, or how many different ones there are."""
        which, distinct = pd.factorize(self.column(name))
        known = which >= 0
        pairs = np.unique(self.codes[known] * len(distinct) + which[known])
        numbers = np.bincount(pairs // max(len(distinct), 1), minlength=len(self.kernels))
        first = np.cumsum(numbers) - numbers
        return [
            None if not number else str(distinct[pairs[at] % len(distinct)]) if number == 1 else f"{number} different"
            for at, number in zip(first, numbers, strict=True)
        ]


def _kernels(data: Columns, chosen: pd.Series) -> pd.DataFrame:
    rows = _ByKernel(data, chosen)
    count = rows.column("launches").to_numpy("int64")
    table = pd.DataFrame({"kernel": rows.kernels, "launches": rows.sums(count)}, columns=list(COLUMNS))
    for column in _SUMS:
        table[column] = rows.totals(column, count)
    weights = np.nan_to_num(rows.column("time_s").to_numpy("float64") * count)
    weights = np.where((rows.sums(weights) > 0)[rows.codes], weights, count)
    for column in (*_MEANS, *(f"{key}_share_percent" for key in RESOURCES)):
        table[column.replace("_share_percent", "_percent")] = rows.means(column, weights)
    for column in ("dram", "l2"):
        traffic = table[f"{column}_bytes"]
        table[f"{column}_intensity_flop_per_byte"] = table["flops"].astype("Float64") / traffic.where(traffic != 0)
    longest = [own.start + int(weights[own].argmax()) for own in rows.slices()]
    for column in ("occupancy_limiter", "stalls"):
        table[column] = rows.column(column).iloc[longest].tolist()
    registers = rows.column("registers").groupby(rows.codes).max()
    table["registers"] = np.floor(registers.astype("float64"))
    table["grid"] = [own or blocks for own, blocks in zip(rows.same("grid"), rows.same("grid_blocks"), strict=True)]
    table["block"] = rows.same("block")
    for column in ("launches", "registers", "fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops", "flops"):
        table[column] = table[column].astype("Int64")
    for column in ("time_s", "dram_bytes", "l2_bytes", *_MEANS, *COLUMNS[16:18], *COLUMNS[-len(RESOURCES) :]):
        table[column] = table[column].astype("float64")
    numbers = table.astype(object).where(table.notna(), None).to_dict("records")
    words = pd.DataFrame(map(_words, numbers), columns=["achieved_percent", "nearest_roof", "bound", "limiter"])
    table[list(words)] = words.astype({"achieved_percent": "float64"})
    table["share_percent"] = 100 * table["time_s"] / table["time_s"].sum(min_count=1)
    order = table["time_s"] if table["time_s"].notna().any() else table["flops"].astype("Float64")
    return table.loc[order.sort_values(ascending=False, kind="stable", na_position="last").index]


def _words(row: dict[str, object]) -> dict[str, object]:
    """Return a kernel's nearest roof, its bound and what limits it."""
    near = {key: row[f"{key}_percent"] for key in RESOURCES if row[f"{key}_percent"] is not None}
    found: dict[str, object] = {"limiter": None}
    if not near:
        return found
    nearest = _nearest(near)
    found |= {"achieved_percent": near[nearest], "nearest_roof": RESOURCES[nearest]}
    # Far from the roofs that are known, a kernel may still be near another.
    whole = bool(near.keys() & {"dram", "memory"}) and bool(near.keys() & {"sm", "fp32", "fp64", "tensor"})
    if near[nearest] >= LATENCY_PERCENT or whole:
        found["bound"] = nearest if near[nearest] >= LATENCY_PERCENT else "latency"
        found["limiter"] = _limiter(row | found)
    return found


def _nearest(near: dict[str, float]) -> str:
    """Return the nearest roof; a unit that is nearly as busy as the SM says more than the SM."""
    nearest = max(near, key=near.get)
    units = {name: share for name, share in near.items() if name in ("tensor", "fp32", "fp64")}
    if nearest == "sm" and units and max(units.values()) >= 0.8 * near["sm"]:
        nearest = max(units, key=units.get)
    return nearest


def _limiter(row: dict[str, object]) -> str:
    """Say in a few words what limits a kernel."""
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


def _may_replace(name: str, earlier: str, *recorded: pd.Series) -> bool:
    """Tell whether a kernel may compute what another one did, of which nothing else is left in both recordings."""
    same_class = parse(name).kernel_class == parse(earlier).kernel_class
    return same_class and not any(are_siblings(name, earlier, names) for names in recorded)


def _with_baseline(table: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Add each kernel's baseline: of the same full name, else of the same short name, also without a compiler's number,
    else the only ones left, if they are of one class.
    """
    earlier = set(before["kernel"])
    partner: dict[str, str] = {name: name for name in table["kernel"] if name in earlier}
    others = [name for name in before["kernel"] if name not in partner]
    for key in (short_name, without_compilers_number):
        alike: dict[str, deque[str]] = {}
        for name in others:
            alike.setdefault(key(name), deque()).append(name)
        left = [name for name in table["kernel"] if name not in partner]
        partner |= {name: same.popleft() for name in left if (same := alike.get(key(name)))}
        others = [name for same in alike.values() for name in same]
    left = [name for name in table["kernel"] if name not in partner]
    if len(left) == len(others) == 1 and _may_replace(left[0], others[0], table["kernel"], before["kernel"]):
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


def instruction_table(data: Columns) -> pd.DataFrame:
    """Return the FP32 instructions of each kernel, in the order of `kernel_table`, from launches that count them all.

    Returns
    -------
    DataFrame
        ``kernel, fma, multiply, add`` (instructions of threads).
    """
    names = {"fma": "fp32_flops", "multiply": "fmul_instructions", "add": "fadd_instructions"}
    counted = data["recording"] == "report"
    for column in names.values():
        counted &= data[column].notna()
    count = data["launches"][counted].astype("float64")
    sums = pd.DataFrame({name: data[column][counted].astype("float64") * count for name, column in names.items()})
    sums = sums.groupby(data["kernel"][counted], sort=False, observed=True).sum()
    sums.index = sums.index.astype("str")
    sums["fma"] = (sums["fma"] - sums["multiply"] - sums["add"]) / 2
    sums = sums.reindex([name for name in kernel_table(data)["kernel"] if name in sums.index])
    return sums[sums.sum(axis=1) > 0].rename_axis("kernel").reset_index()


def tensor_table(data: Columns) -> pd.DataFrame:
    """Return one row per tensor-core launch of the report, and per split-K reduction after one."""
    said = (data["recording"] == "report") & (data["explanation"] != "")
    columns = ["launch", "kernel", "grid_blocks", "steps", "steps_source", "predicted_instructions"]
    rows = pd.DataFrame(
        {name: data[name][said] for name in [*columns, "tensor_instructions", "exact", "explanation"]}
    ).reset_index(drop=True)
    rows = rows.astype(dict.fromkeys(rows.select_dtypes("category"), "str"))
    return rows.rename(columns={"tensor_instructions": "recorded_instructions"})


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
        renamed = table["baseline_kernel"].map(short_name, na_action="ignore") != table["kernel"].map(short_name)
        if (renamed := renamed & table["baseline_kernel"].notna()).any():
            shown["kernel before"] = labels(table["baseline_kernel"].dropna()).where(renamed)
        shown["before (µs)"] = table["baseline_time_s"] * 1e6
        shown["speedup (×)"] = table["speedup"]
    return shown.loc[:, shown.notna().any()]
