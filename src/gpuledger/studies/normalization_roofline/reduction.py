"""From times of kernels and ceilings to bandwidths, shares of a copy's speed, roofs and speedups."""

from statistics import geometric_mean

import numpy as np
import pandas as pd

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.ledger import provenance
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.readers import gpus
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.tabular import Column, read_csv, refuse_row
from gpuledger.studies.normalization_roofline.liger import LIGER, NORMALIZATIONS, TORCH_LAYER, read_benchmark

#: The kernels whose distance to the roofs is in question (a case has one of them), and the one that sets the roofs.
OPTIMISED, COPY = ("one_pass", LIGER), "copy"
#: How many times as fast as the data sheet's DRAM no large input is, even if all that is written stays in the L2.
IMPOSSIBLE = 3
#: Shapes with at least as many elements count as large: 16384×1024, the largest of the source document.
LARGE = 16384 * 1024
CACHES = ("cold", "warm")
#: Size of an element by its type.
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

_TIMES = (
    Column("time_median_ns", "number", minimum=1e-3, maximum=1e15),
    Column("time_p5_ns", "number", minimum=0, maximum=1e15, optional=True),
    Column("time_p95_ns", "number", minimum=0, maximum=1e15, optional=True),
    Column("launches", "integer", minimum=1, maximum=1e12, optional=True),
)
_ROWS = (
    Column("kernel"),
    Column("rows", "integer", minimum=1, maximum=2**40),
    Column("length", "integer", minimum=1, maximum=2**31),
    Column("cache", choices=CACHES),
    Column("configuration", optional=True),
    *_TIMES,
)
_CEILINGS = (
    Column("ceiling", choices=("copy", "launch", "multiply_add")),
    Column("cache", choices=CACHES),
    Column("moved_bytes", "integer", minimum=0, maximum=2**50),
    Column("flops", "integer", minimum=0, maximum=2**53),
    Column("configuration", optional=True),
    *_TIMES,
)
#: By the key of a case: a table's columns, and which of them no two rows share.
_TABLES = {
    "rows": (_ROWS, ["kernel", "rows", "length", "cache"]),
    "ceilings": (_CEILINGS, ["ceiling", "cache", "moved_bytes", "flops"]),
}


def flops_of(rows: int | pd.Series, length: int | pd.Series) -> int | pd.Series:
    """FLOP of normalizing rows, as the source document counts them: 6·length + 1 per row.

    length for the mean, 3·length for the variance, 1 for the root, 2·length for the result. This counts the formula,
    not what a kernel executes.
    """
    return rows * (6 * length + 1)


def moved_bytes_of(rows: int | pd.Series, length: int | pd.Series, element_bytes: int = 4) -> int | pd.Series:
    """Least possible traffic in bytes: every element is read once and written once."""
    return 2 * element_bytes * rows * length


def intensity(length: int | pd.Series, element_bytes: int = 4) -> float | pd.Series:
    """Arithmetic intensity (FLOP/byte), in fp32 (6·length + 1)/(8·length): slightly above 0.75."""
    return flops_of(1, length) / moved_bytes_of(1, length, element_bytes)


def reduce(case: Case, large_elements: int = LARGE) -> CaseResult:
    """Compute from times how close normalization kernels come to the roofs.

    Parameters
    ----------
    large_elements : int
        Shapes with at least as many elements count as large.

    Returns
    -------
    CaseResult
        Data: the rows with ``moved_bytes, flops, intensity_flop_per_byte, bandwidth_byte_per_s,
        achieved_flop_per_s, copy_share_percent, speedup_ratio`` (the same kernel's time over the optimised one's) and
        ``bound`` (``launch``, ``L2``, ``DRAM``), then the ceilings, with ``ceiling`` in place of ``kernel``. Without
        copies ``data_sheet_share_percent`` takes the place of ``copy_share_percent``.
    """
    rows = read_benchmark(case) if "benchmark" in case.inputs else read_times(case, "rows")
    optimised = (case.inputs["optimised"],) if "optimised" in case.inputs else OPTIMISED
    if not rows["kernel"].isin(optimised).any():
        problem = f"no row is of '{optimised[0]}' ({schemas.nearest(optimised[0], rows['kernel'].unique())})"
        remedy = "add the kernel's times, or name another one with optimised:"
        raise InputError(case.path("rows"), "column kernel", problem, remedy)
    if COPY in optimised:
        raise case.error("optimised", "the copy sets the roof, and is no kernel in question", "name another kernel")
    ceilings = None
    if "ceilings" in case.inputs:
        ceilings = read_times(case, "ceilings")
    gpu = None
    if "gpu" in case.inputs:
        gpu = gpus.find_gpu(case.inputs["gpu"], file=case.dataset.file, place=f"{case.place}.gpu")
    data_sheet = [provenance.describe_file(gpus.TABLE, gpus.TABLE.parents[1])] if gpu else []
    if ceilings is None and gpu is None:
        raise case.error("", "neither ceilings nor gpu is given, so there is no roof", "add one of them")
    copied = (rows["kernel"] == COPY) & (rows["cache"] == "cold")
    if gpu is None and not copied.any() and not ceilings.query("ceiling == @COPY and cache == 'cold'").size:
        problem = "neither rows nor ceilings have a copy with a cold cache, and there is no gpu, so there is no roof"
        raise case.error("", problem, "add one of them")
    element_bytes = ELEMENT_BYTES[case.inputs.get("element", "fp32")]
    rows = _with_rates(rows, element_bytes, optimised)
    if gpu:
        large = (rows["cache"] == "cold") & (rows["rows"] * rows["length"] >= large_elements)
        ratio = rows["bandwidth_byte_per_s"].where(large).max() / gpu.dram_bytes_per_s
        if ratio > IMPOSSIBLE:
            problem = f"a large input moves {ratio:.3g} times as fast as the data sheet of {gpu.name} allows"
            raise case.error("", problem, "correct the unit of the times, the element or the gpu")
    if gpu and not (rows["kernel"] == COPY).any():
        share = 100 * rows["bandwidth_byte_per_s"] / gpu.dram_bytes_per_s
        rows = rows.drop(columns="copy_share_percent").assign(data_sheet_share_percent=share)
    result = CaseResult(pd.DataFrame(), provenance={"inputs": data_sheet})
    if "benchmark" in case.inputs:
        result.add("library", f"Liger-Kernel {case.inputs['version']}", "text")
        result.add("normalization", NORMALIZATIONS[case.inputs["kernel"]], "text")
        result.provenance["label"] = provenance.label(case.dataset.content["kind"], case.inputs["device"])
    _add_shapes(result, rows, element_bytes)
    _add_roofs(result, rows, ceilings, gpu)
    l2_bytes = case.inputs.get("l2_bytes", gpu.l2_bytes if gpu else 0)
    rows["bound"] = _bounds(rows, result, l2_bytes)
    _add_shares(result, rows, optimised, large_elements)
    _add_speedups(result, rows, optimised)
    result.add("finding", _finding(case, result), "text")
    if ceilings is not None:
        seconds = 1e-9 * ceilings["time_median_ns"]
        moved, done = ceilings["moved_bytes"].where(ceilings["moved_bytes"] > 0), ceilings["flops"]
        ceilings["bandwidth_byte_per_s"] = moved / seconds
        ceilings["achieved_flop_per_s"] = done.where(done > 0) / seconds
        rows = pd.concat([rows, ceilings], ignore_index=True)
    result.data = rows
    return result


def read_times(case: Case, key: str) -> pd.DataFrame:
    """Read the table of times that a case names as its ``rows`` or ``ceilings``, with their columns."""
    path = case.path(key)
    table = read_csv(path, *_TABLES[key])
    for low, high in (("time_p5_ns", "time_median_ns"), ("time_median_ns", "time_p95_ns")):
        if low in table and high in table:
            refuse_row(path, table[low] > table[high], low, f"{low} is larger than {high}", "correct the row")
    return table


def _with_rates(rows: pd.DataFrame, element_bytes: int, optimised: tuple[str, ...]) -> pd.DataFrame:
    seconds = 1e-9 * rows["time_median_ns"]
    moved, flops = moved_bytes_of(rows["rows"], rows["length"], element_bytes), flops_of(rows["rows"], rows["length"])
    shape = ["rows", "length", "cache"]
    of_copy, of_optimised = (
        rows[shape].merge(rows[rows["kernel"].isin(names)], on=shape, how="left")["time_median_ns"].to_numpy()
        for names in ([COPY], optimised)
    )
    return rows.assign(
        moved_bytes=moved,
        # A copy moves the bytes and does no arithmetic.
        flops=flops.where(rows["kernel"] != COPY, 0),
        intensity_flop_per_byte=intensity(rows["length"], element_bytes).where(rows["kernel"] != COPY),
        bandwidth_byte_per_s=moved / seconds,
        achieved_flop_per_s=(flops / seconds).where(rows["kernel"] != COPY),
        copy_share_percent=100 * of_copy / rows["time_median_ns"],
        speedup_ratio=rows["time_median_ns"] / of_optimised,
    )


def _add_shapes(result: CaseResult, rows: pd.DataFrame, element_bytes: int) -> None:
    kernels = [name for name in rows["kernel"].unique() if name != COPY]
    shapes = rows[rows["kernel"] != COPY].drop_duplicates(["rows", "length"])
    result.add("kernels", len(kernels), "kernel")
    result.add("shapes", len(shapes), "shape")
    result.add("arithmetic_intensity_min", intensity(shapes["length"], element_bytes).min(), "FLOP/byte")
    result.add("arithmetic_intensity_max", intensity(shapes["length"], element_bytes).max(), "FLOP/byte")
    for shape in shapes.itertuples():
        name = f"{shape.rows}x{shape.length}"
        result.add(f"{name}_moved", int(shape.moved_bytes), "byte")
        result.add(f"{name}_flops", int(shape.flops), "FLOP")
        result.add(f"{name}_arithmetic_intensity", float(shape.intensity_flop_per_byte), "FLOP/byte")


def _add_roofs(result: CaseResult, rows: pd.DataFrame, ceilings: pd.DataFrame | None, gpu: Gpu | None) -> None:
    """Add the roofs: measured ones where there are any, and those of the data sheet."""
    copies = rows.loc[rows["kernel"] == COPY, ["cache", "moved_bytes", "time_median_ns"]]
    if ceilings is not None:
        copies = pd.concat([copies, ceilings.loc[ceilings["ceiling"] == "copy", copies.columns]], ignore_index=True)
        for ceiling, name in (("launch", "launch_floor"), ("multiply_add", "fp32_roof")):
            found = ceilings[ceilings["ceiling"] == ceiling]
            if len(found):
                time_ns = found["time_median_ns"]
                value = time_ns.min() if ceiling == "launch" else (found["flops"] / (1e-9 * time_ns)).max()
                result.add(name, value, "ns" if ceiling == "launch" else "FLOP/s")
    bandwidth = copies["moved_bytes"] / (1e-9 * copies["time_median_ns"])
    cold, warm = (copies["cache"] == cache for cache in CACHES)
    if cold.any():
        # The largest copy: its launch is negligible, and nothing of it stays in L2.
        result.add("dram_roof", bandwidth[cold][copies.loc[cold, "moved_bytes"].idxmax()], "byte/s")
    if warm.any():
        result.add("l2_roof", bandwidth[warm].max(), "byte/s")
    if gpu is not None:
        result.add("gpu", gpu.title, "text")
        result.add("data_sheet_bandwidth", gpu.dram_bytes_per_s, "byte/s")
        if gpu.flops.get("fp32"):
            result.add("data_sheet_fp32_peak", gpu.flops["fp32"], "FLOP/s")
            result.add("machine_balance", gpu.flops["fp32"] / gpu.dram_bytes_per_s, "FLOP/byte")
        if "dram_roof" in result.summary:
            result.add("dram_roof_data_sheet_percent", 100 * result["dram_roof"] / gpu.dram_bytes_per_s, "%")
    if {"fp32_roof", "dram_roof"} <= result.summary.keys():
        result.add("balance_of_roofs", result["fp32_roof"] / result["dram_roof"], "FLOP/byte")


def roof_bandwidth(result: CaseResult) -> float:
    """Return the DRAM roof (byte/s): the bandwidth of the largest cold copy, or else the data sheet's."""
    return result.get("dram_roof") or result["data_sheet_bandwidth"]


def _bounds(rows: pd.DataFrame, result: CaseResult, l2_bytes: float) -> np.ndarray:
    """Return what bounds each row: the launch, if moving the bytes takes less; else where the bytes come from."""
    roof = roof_bandwidth(result)
    near = (rows["cache"] == "warm") & (rows["moved_bytes"] <= l2_bytes)
    at_roof_ns = 1e9 * rows["moved_bytes"] / np.where(near, result.get("l2_roof", roof), roof)
    floor_ns = result.get("launch_floor", 0)
    return np.select([at_roof_ns < floor_ns, near], ["launch", "L2"], "DRAM")


def share_of(rows: pd.DataFrame) -> str:
    """Return what a kernel's speed is compared with: ``copy``, or ``data_sheet`` where no copy was timed."""
    return "copy" if "copy_share_percent" in rows else "data_sheet"


def _add_shares(result: CaseResult, rows: pd.DataFrame, optimised: tuple[str, ...], large_elements: int) -> None:
    yardstick = share_of(rows)
    shares = rows[f"{yardstick}_share_percent"]
    for row, share in zip(rows.itertuples(), shares, strict=True):
        if row.kernel != COPY and pd.notna(share):
            name = f"{slug(row.kernel)}_{row.rows}x{row.length}_{row.cache}_{yardstick}"
            result.add(f"{name}_percent", share, "%")
    cold = rows[rows["kernel"].isin(optimised) & (rows["cache"] == "cold")]
    large = shares[cold.index[cold["rows"] * cold["length"] >= large_elements]].dropna()
    result.add("large_shapes", len(large), "shape")
    if len(large):
        result.add(f"large_cold_{yardstick}_min_percent", large.min(), "%")
        result.add(f"large_cold_{yardstick}_max_percent", large.max(), "%")
    result.add("launch_bound_shapes", int((cold["bound"] == "launch").sum()), "shape")


def _add_speedups(result: CaseResult, rows: pd.DataFrame, optimised: tuple[str, ...]) -> None:
    """Add the geometric means of speedups over the other kernels, and the quotient of sums for comparison."""
    for (kernel, cache), others in rows.groupby(["kernel", "cache"], sort=False):
        others = others[others["speedup_ratio"].notna()]
        if kernel in (COPY, *optimised) or others.empty:
            continue
        name = f"speedup_over_{slug(kernel)}_{cache}"
        result.add(f"{name}_geometric_mean", geometric_mean(others["speedup_ratio"]), "1")
        result.add(f"{name}_shapes", len(others), "shape")
        faster = others["achieved_flop_per_s"] * others["speedup_ratio"]
        result.add(f"{name}_of_sums", faster.sum() / others["achieved_flop_per_s"].sum(), "1")


def _finding(case: Case, result: CaseResult) -> str:
    if library := result.get("library"):
        words = f"{library}'s {result['normalization']}"
    else:
        simulated = case.dataset.content["kind"] == "simulated"
        words = f"{'In a simple model, the' if simulated else 'The'} optimised kernel"
        words = case.inputs.get("optimised", words)
        words += f" in {case.inputs['element']}" if "element" in case.inputs else ""
    yardsticks = {"copy": "speed of a copy", "data_sheet": "data sheet's bandwidth"}
    found = [name for name in yardsticks if f"large_cold_{name}_min_percent" in result.summary]
    if found:
        low, high = (f"{result[f'large_cold_{found[0]}_{end}_percent']:.0f}" for end in ("min", "max"))
        reached = low if low == high else f"{low} to {high}"
        words += f" moves large inputs at {reached} % of the {yardsticks[found[0]]}"
    else:
        words += " is not timed beside a copy at a large shape with a cold cache"
    others = {TORCH_LAYER: "PyTorch's layer", "torch": "PyTorch's operators", "two_pass": "the straightforward kernel"}
    for kernel, called in others.items():
        name = f"speedup_over_{kernel}_cold"
        if count := result.summary.get(f"{name}_shapes", {}).get("value"):
            times = f"{result[f'{name}_geometric_mean']:.1f} times as fast as {called} (geometric mean, n = {count:,})"
            return f"{words}; over all sizes it is {times}"
    return words
