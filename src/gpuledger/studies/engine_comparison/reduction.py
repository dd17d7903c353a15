"""From tables of the same shapes to who is fastest where, and what changed from one version to the next."""

import numpy as np
import pandas as pd

from gpuledger import schemas
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.readers.gpus import find_gpu, known_gpus
from gpuledger.studies.engine_comparison import comparison
from gpuledger.studies.engine_comparison.shapes import LAYOUTS, layout_of, read_shapes, repeated_percent, tables_of

#: Quantities of every panel and table, by column of the table of statistics, and their units.
_QUANTITIES = {
    "shapes": "shape",
    "faster_percent": "%",
    "slower_percent": "%",
    "mean_ratio": "1",
    "slowest_ratio": "1",
    "noise_percent": "%",
}


def reduce(case: Case, least_percent: float = 5.0) -> CaseResult:
    """Compare tables of the same kind of kernel on one GPU, shape by shape.

    Parameters
    ----------
    least_percent : float
        No difference below this counts, however little noise there is.

    Returns
    -------
    CaseResult
        Data: a row per shape that two tables measured; see
        :func:`gpuledger.studies.engine_comparison.comparison.compare`.
    """
    known = known_gpus(case.path("hardware") if "hardware" in case.inputs else None)
    gpu = find_gpu(case.inputs["gpu"], known, case.dataset.file, f"{case.place}.gpu")
    layout, files = layout_of(case), tables_of(case)
    versions, tables = "baseline" in case.inputs, list(files)
    shapes, about = read_shapes(case)
    repeated, count = repeated_percent(list(files.values()))
    least = max(least_percent, repeated if count >= 100 else 0) / 100
    data = comparison.compare(shapes, tables, layout, versions, least)
    result = CaseResult(data)
    result.add("gpu", gpu.name, "text")
    result.add("tables", "; ".join(tables), "text")
    result.add("layout", layout, "text")
    result.add("baseline", case.inputs.get("baseline", "none"), "text")
    result.add("panels", "; ".join(about["panel"].unique()), "text")
    result.add("shapes", len(data), "shape")
    result.add("repeated_rows", count, "row")
    result.add("repeated_percent", round(repeated, 4) if count else "unknown", "%")
    result.add("least_percent", round(100 * least, 4), "%")
    notes = _notes(case, about, data)
    table = comparison.table_of(data, about, layout, versions, notes)
    for row in table[table["shapes"] > 0].to_dict("records"):
        for column, unit in _QUANTITIES.items():
            result.add(f"{slug(row['panel'])}_{slug(row['table'])}_{column}", row[column], unit)
    for row in about.itertuples():
        word = f"{slug(row.panel)}_{slug(row.table)}"
        result.add(f"{word}_measured", row.measured, "shape")
        result.add(f"{word}_kernels", row.kernels, "text")
        result.add(f"{word}_host_bound", row.host_bound, "text")
    for panel in about["panel"].unique():
        note = comparison.note_of(panel, data[data["panel"] == panel], notes)
        result.add(f"{slug(panel)}_unlike", note or "none", "text")
    for number, remark in enumerate(case.inputs.get("remarks", ()), 1):
        result.add(f"remark_{number}", remark, "text")
    operators = data["operator"].unique()
    kind = f"{operators[0]} " * (layout == "attention" and len(operators) == 1)
    what = f"{kind}{LAYOUTS[layout].words} on {gpu.title}"
    said = _of_versions(table[table["compared"] == "yes"], tables, what) if versions else _of_engines(table, what)
    result.add("finding", said, "text")
    return result


def _notes(case: Case, about: pd.DataFrame, data: pd.DataFrame) -> dict[str, str]:
    """Return what the tables did not measure alike, by type of number."""
    notes = case.inputs.get("unlike", {})
    known = {"all", *about["panel"], *data["group"]}
    for name in notes:
        if name not in known:
            problem = f"no table has numbers of the type '{name}'"
            raise case.error("unlike", problem, schemas.nearest(name, sorted(known)))
    return dict(notes)


def _of_engines(table: pd.DataFrame, what: str) -> str:
    """Say who is the fastest in the type of number with the most shapes; of types that were measured alike."""
    compared = table[table["compared"] == "yes"]
    alike = compared[compared["note"] == ""]
    chosen = alike if len(alike) else compared
    panel = chosen.sort_values(["shapes", "panel"], ascending=[False, True])["panel"].iloc[0]
    rows = compared[compared["panel"] == panel].sort_values("mean_ratio", kind="stable")
    short = _short(list(table["table"].unique()))
    ahead = rows.sort_values("faster_percent", ascending=False, kind="stable")
    first, *others = ((short[row.table], _longer(row.mean_ratio)) for row in rows.itertuples())
    longer = "".join(f", {name} {much}" for name, much in others)
    won = [(short[row.table], f"{row.faster_percent:.0f} %") for row in ahead.itertuples()]
    shares = "".join(f", {name} in {share}" for name, share in won[1:] if share != "0 %")
    of = f"of {rows['shapes'].max():,} shapes"
    best = f"{won[0][0]} leads in {won[0][1]} {of}{shares}"
    if won[0][1] == "0 %":
        best = f"none leads in as many as 1 % {of}"
    longer = f"{first[0]} takes {first[1]} longer than the fastest on average{longer}"
    said = f"{panel} {what}: {longer}; beyond noise {best}"
    if len(host := table[(table["panel"] == panel) & (table["compared"] == "host")]):
        said += f"; left out: {', '.join(short[name] for name in host['table'])}, whose times are the host's"
    return said if len(alike) else f"{said}; the benchmarks differ (see notes)"


def _short(tables: list[str]) -> dict[str, str]:
    """Return the names without their last word, the version, if they still differ."""
    names = [name.rsplit(" ", 1)[0] for name in tables]
    return dict(zip(tables, names if len(set(names)) == len(names) else tables, strict=True))


def _longer(ratio: float) -> str:
    return f"{100 * (ratio - 1):,.0f} %"


def _of_versions(table: pd.DataFrame, tables: list[str], what: str) -> str:
    """Say what changed most from the first table to the second, and what was not measured alike."""
    table = table.assign(change=np.log(table["mean_ratio"]).abs())
    table = table.sort_values("change", ascending=False, kind="stable")
    alike, apart = table[table["note"] == ""], table[table["note"] != ""]
    rows = alike if len(alike) else table
    changed = ", ".join(f"{row.panel} {row.mean_ratio:.2f} times" for row in rows.iloc[:3].itertuples())
    slower, faster = (
        (rows[f"{word}_percent"] * rows["shapes"]).sum() / rows["shapes"].sum() for word in ("slower", "faster")
    )
    engine, _, version = tables[0].rpartition(" ")
    old = version if engine and tables[1].startswith(f"{engine} ") else tables[0]
    said = (
        f"{tables[1]} against {old}, {what}: {changed} as long (geometric means); beyond noise {slower:.0f} % of "
        f"{rows['shapes'].sum():,} shapes are slower, {faster:.0f} % faster"
    )
    if not len(alike):
        return f"{said}; the benchmarks differ (see notes)"
    if len(apart):
        aside = ", ".join(f"{row.panel} {row.mean_ratio:.2f} times" for row in apart.iloc[:2].itertuples())
        said += f"; not measured alike: {aside}"
    return said
