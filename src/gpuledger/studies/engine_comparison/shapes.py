"""The shapes that all compared tables measured, and the sizes that a kind of kernel is mapped over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from gpuledger import schemas
from gpuledger.ledger.case_result import slug
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.constants.fit_gemm import HOST_BOUND_S
from gpuledger.readers.kernel_tables.engines import read_attention, read_collectives, read_moe
from gpuledger.readers.kernel_tables.gemms import RATE, read_gemms
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable

#: Columns of a reader's frame that are no part of a shape, which is what is asked for, not what an engine makes of it.
_NO_SHAPE = {"framework", "kernel", "precision", "measured_s"}
#: Words in the name of a kernel that was measured call by call, with the host's time for each.
_EAGER = "eager"
#: A table holds the host's calls, not kernels, if its shortest times are longer than `HOST_BOUND_S` and half of its
#: times within `HOST_SPAN` of them, where another table's are a third of them for the same shapes, and differ more. (By
#: the first rule alone `kernel_time` names such kernels; but large layers have no short ones.)
HOST_TIMES, HOST_SPAN = 3.0, 2.0


@dataclass(frozen=True)
class Layout:
    """What the study knows of one kind of kernel."""

    read: Callable[[Path, str], tuple[pd.DataFrame, list[str]]]
    words: str  # what its kernels are called
    axes: tuple[str, ...]  # sizes along which neighbours are looked for, finest first
    #: From shapes to the two sizes of a map (down, across) with their names.
    map: Callable[[pd.DataFrame], tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]]


def _gemm_map(shapes: pd.DataFrame) -> tuple:
    return ("tokens m", shapes["m"]), ("weights n·k", shapes["n"] * shapes["k"])


def _attention_map(shapes: pd.DataFrame) -> tuple:
    decode = (shapes["operator"] == "decode").all()
    across = ("cached tokens of a request", shapes["context"] + 1) if decode else ("new tokens", shapes["tokens"])
    return ("requests", shapes["requests"]), across


def _moe_map(shapes: pd.DataFrame) -> tuple:
    own = np.maximum(shapes["experts"] // shapes["ranks"], 1)
    return ("tokens", shapes["tokens"]), ("weights of the experts", own * shapes["hidden"] * shapes["inter"] * 3)


def _collective_map(shapes: pd.DataFrame) -> tuple:
    return ("GPUs", shapes["devices"]), ("message (bytes)", shapes["message_bytes"])


#: By the key of a case that names the tables; the same words as in `kernel_time`.
LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "measurements": Layout(read_gemms, "GEMMs", ("m", "n", "k"), _gemm_map),
        "attention": Layout(read_attention, "attention kernels", ("tokens", "context", "requests"), _attention_map),
        "moe": Layout(read_moe, "mixture-of-experts layers", ("tokens", "ranks"), _moe_map),
        "collectives": Layout(read_collectives, "collectives", ("message_bytes",), _collective_map),
    }
)


def layout_of(case: Case) -> str:
    """Return the key of `LAYOUTS` that a case has."""
    return next(name for name in LAYOUTS if name in case.inputs)


def time_column(table: str) -> str:
    """Return the column of the data that holds the times (s) of a table."""
    return f"{slug(table)}_s"


def kernel_column(table: str) -> str:
    return f"{slug(table)}_kernel"


def tables_of(case: Case) -> dict[str, Path]:
    """Return the compared files by name, a baseline first.

    Raises
    ------
    InputError
        A missing file; two names that differ in signs alone; a third table beside a baseline, or another baseline.
    """
    key = layout_of(case)
    names = list(case.inputs[key])
    slugs = [slug(name) for name in names]
    if len(set(slugs)) < len(slugs) or "" in slugs:
        problem = "two names differ in signs alone, or one has no letter or digit"
        raise case.error(key, problem, "give the tables other names")
    baseline = case.inputs.get("baseline", names[0])
    if baseline not in names:
        raise case.error("baseline", f"no table is called '{baseline}'", schemas.nearest(baseline, names))
    if "baseline" in case.inputs and len(names) > 2:
        raise case.error(key, f"{len(names)} tables where one is compared with a baseline", "give two, or no baseline")
    if case.inputs["unit"] == RATE and key != "measurements":
        raise case.error("unit", f"{RATE} is for measurements of GEMMs", "give the unit of the times")
    names.sort(key=lambda name: name != baseline)
    return {name: case.present(case.inputs[key][name], f"{key}.{name}") for name in names}


def read_shapes(case: Case) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the tables of a case, and join them by shape.

    Returns
    -------
    shapes : DataFrame
        One row per panel and shape that all tables measured which have the panel at all, and kernels' times: ``panel``
        (a type of number, with the operator if there are several), ``operator``, ``group``, the sizes (-1: none), and
        by table ``<table>_s``, the time of its fastest kernel (NaN: it has not the panel), and ``<table>_kernel``.
    about : DataFrame
        One row per panel and table: ``panel, table, kernels`` (names), ``measured`` (shapes), ``host_bound``.
    """
    layout, frames = LAYOUTS[layout_of(case)], {}
    for name, path in tables_of(case).items():
        frame, _ = layout.read(path, case.inputs["unit"])
        frame = frame.assign(operator=frame.get("operator", "gemm"))
        frames[name] = frame[~frame["kernel"].str.contains(_EAGER, case=False)]
    several = len({operator for frame in frames.values() for operator in frame["operator"]}) > 1
    joined, keys = None, []
    for name, frame in frames.items():
        sizes = [column for column in frame if column not in _NO_SHAPE]
        if keys and sizes != keys:
            place = f"{layout_of(case)}.{name}"
            raise case.error(place, "a table of another kind of kernel", "compare tables of one kind")
        keys = sizes
        frame = frame.assign(**{column: frame[column].fillna(-1) for column in frame[keys].select_dtypes("number")})
        # Of several kernels for a shape the fastest.
        best = frame.sort_values("measured_s", kind="stable").drop_duplicates(keys)[[*keys, "measured_s", "kernel"]]
        best = best.rename(columns={"measured_s": time_column(name), "kernel": kernel_column(name)})
        joined = best if joined is None else joined.merge(best, on=keys, how="outer")
    joined["panel"] = joined["operator"] + ", " + joined["group"] if several else joined["group"]
    joined = joined.sort_values(["panel", *keys], kind="stable", ignore_index=True)
    about = pd.DataFrame([row for panel, rows in joined.groupby("panel") for row in _about(panel, rows, list(frames))])
    common = np.zeros(len(joined), dtype=bool)
    for panel, own in about[~about["host_bound"]].groupby("panel"):
        if len(own) > 1:
            times = joined[[time_column(name) for name in own["table"]]]
            common |= ((joined["panel"] == panel) & times.notna().all(axis=1)).to_numpy()
    for row in about[about["host_bound"]].itertuples():
        joined.loc[joined["panel"] == row.panel, time_column(row.table)] = np.nan
    shapes = joined[common].reset_index(drop=True)
    if shapes.empty:
        problem = "no shape was measured by all tables that have its type (without the host's time)"
        raise case.error(layout_of(case), problem, "give tables of the same shapes")
    return shapes[["panel", *keys, *(name for name in shapes if name not in ("panel", *keys))]], about


def _about(panel: str, rows: pd.DataFrame, tables: list[str]) -> list[dict]:
    """Return what is known of every table that measured a panel's shapes."""
    times = rows[[time_column(name) for name in tables]].to_numpy()
    found = []
    for column, name in enumerate(tables):
        own = times[:, column]
        measured = np.isfinite(own)
        if not measured.any():
            continue
        others = [other for other in np.delete(times, column, axis=1).T if (measured & np.isfinite(other)).any()]
        host_bound = any(_is_host_bound(own, other) for other in others)
        kernels = rows[kernel_column(name)][measured].value_counts().index
        about = {"panel": panel, "table": name, "kernels": ", ".join(kernels), "measured": int(measured.sum())}
        found.append(about | {"host_bound": bool(host_bound)})
    return found


def _is_host_bound(own: np.ndarray, other: np.ndarray) -> bool:
    """Return whether one table's times are the host's, beside those of another, of the shapes that both measured."""
    both = np.isfinite(own) & np.isfinite(other)
    (own_s, own_half), (other_s, other_half) = (np.quantile(times[both], [0.01, 0.5]) for times in (own, other))
    flat, steep = own_half < HOST_SPAN * own_s, other_half > HOST_SPAN * other_s
    return bool(own_s > HOST_BOUND_S and own_s > HOST_TIMES * other_s and flat and steep)


def repeated_percent(paths: list[Path]) -> tuple[float, int]:
    """Return how far two measurements of the same row of a table are apart (%; 95 of 100 are nearer), and how many."""
    found = []
    for path in paths:
        cells = MeasuredTable(path, [], None).cells
        time = next((name for name in ("latency", "rate") if name in cells), None)
        if time is None:
            continue
        keys = [name for name in cells if name != time]
        times = pd.to_numeric(cells[time], errors="coerce").groupby([cells[name] for name in keys], dropna=False)
        ends = times.agg(["min", "max", "size"])
        ends = ends[(ends["size"] > 1) & (ends["min"] > 0)]
        found.append(np.log(ends["max"] / ends["min"]).to_numpy(float))
    apart = np.concatenate(found) if found else np.empty(0)
    return (100 * float(np.expm1(np.quantile(apart, 0.95))) if len(apart) else np.nan), len(apart)
