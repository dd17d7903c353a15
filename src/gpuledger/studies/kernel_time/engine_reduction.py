"""From measured times of engines' fused kernels to predictions, errors and constants."""

import dataclasses
import itertools

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.constants.table import unseen_constants
from gpuledger.models.time_model.moe import load_table
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.kernel_tables.engines import read_attention, read_collectives, read_moe
from gpuledger.readers.kernel_tables.recurrent import read_recurrent
from gpuledger.readers.kernel_tables.small_kernels import read_products, read_quantise
from gpuledger.readers.kernel_tables.sparse import read_sparse
from gpuledger.studies.kernel_time import engine_prediction
from gpuledger.studies.kernel_time.judgement import add_baselines, add_groups, in_percent, suffix_of
from gpuledger.studies.kernel_time.measurements import check_plausible, other_tables
from gpuledger.studies.kernel_time.prediction import LEAST_SHAPES, constants_in_words, hold_back, rounded

#: Keys of a case, and how their tables are read.
LAYOUTS = {
    "attention": read_attention,
    "moe": read_moe,
    "collectives": read_collectives,
    "recurrent": read_recurrent,
    "quantise": read_quantise,
    "batched": read_products,
    "sparse": read_sparse,
}
#: What their kernels are called; others as the layout.
_WORDS = {
    "attention": "attention kernels",
    "moe": "mixture-of-experts layers",
    "recurrent": "kernels of linear attention and SSMs",
    "quantise": "quantisation kernels",
    "batched": "batched GEMMs of MLA",
    "sparse": "kernels of sparse attention",
}
#: Columns of the data that are no shape.
_OTHERS = {"operator", "group", "kernel", "precision", "measured_s"}
#: Units of the constants, by the end of their name.
_UNITS = {
    "_s": "s",
    "_share": "1",
    "doubling": "1",
    "together": "1",
    "throttled": "1",
    "_factor": "1",
    "overlap": "1",
    "_per_clock": "byte/cycle",
    "exp_per_clock": "1/cycle",
    "scores_per_clock": "1/cycle",
    "_bytes": "byte",
}


def reduce_engine(case: Case, gpu: Gpu, layout: str) -> CaseResult:
    """Reduce measured kernels of one layout: (linear) attention, experts, SSMs, collectives, kernels around them.

    Constants are fitted per kernel and data type, to one half of the shapes.

    Parameters
    ----------
    layout : str
        One of `LAYOUTS`.

    Returns
    -------
    CaseResult
        Data: ``operator, group, kernel, precision``, the shapes, ``flop, bytes, held_back, region, region_order,
        bound, measured_s, predicted_s, roofline_s, derated_s, lookup_s, corrected_s``.
    """
    read = LAYOUTS[layout]
    path = case.path(layout)
    unit, difference = case.inputs["unit"], case.path("difference") if "difference" in case.inputs else None
    frame, skipped = read_quantise(path, unit, difference) if layout == "quantise" else read(path, unit)
    if layout == "collectives" and not gpu.link_bytes_per_s > 0:
        raise case.error("gpu", f"{gpu.name} has no known link", "give link_gb_per_s")
    shapes = [name for name in frame if name not in _OTHERS]
    beside = [frame, *(read(other, unit)[0] for other in other_tables(case))]
    frame = _prepared(gpu, frame)
    # A link's time has no lower bound of its own: some messages never leave L2.
    least_s = frame["roofline_s"].to_numpy()
    check_plausible(
        case, path, gpu, 0 * least_s if layout == "collectives" else least_s, frame["measured_s"].to_numpy()
    )
    result = CaseResult(frame)
    result.add("gpu", gpu.name, "text")
    result.add("skipped_types", ", ".join(skipped) or "none", "text")
    unseen_s = pd.Series(np.nan, frame.index)
    words: dict[str, list[str]] = {}
    too_few = []
    # A kernel's name may stand for kernels of several kinds, such as attention forward and backward.
    kinds = engine_prediction.kind_names(frame["operator"])
    several = kinds.groupby(frame["kernel"]).nunique().max() > 1
    for (kernel, precision, group, name), rows in frame.groupby(["kernel", "precision", "group", kinds], sort=True):
        kind = engine_prediction.kind_of(rows["operator"].iloc[0])
        held_in = rows[~rows["held_back"]]
        if len(held_in) < LEAST_SHAPES or not rows["held_back"].any():
            frame.drop(index=rows.index, inplace=True)
            too_few.append(f"{kernel} {precision}")
            continue
        constants = engine_prediction.fit(gpu, kind, held_in)
        work = rows["compute_s"].to_numpy(), rows["traffic_s"].to_numpy()
        found = engine_prediction.predict(gpu, kind, constants, rows)
        found = found.join(add_baselines(rows, found["predicted_s"], *work, kind.look_up or kind.sizes))
        frame.loc[rows.index, found.columns] = found
        words.setdefault(group, []).append(f"{kernel}{f', {name}' if several else ''}: {in_words(constants)}")
        foreign = unseen_constants(kind.name, gpu, kernel, precision)
        if foreign is not None:
            unseen_s[rows.index] = engine_prediction.terms(gpu, kind, foreign, rows)["time_s"]
    if not words:
        problem = (
            f"no kernel has {LEAST_SHAPES} shapes in the half that constants are fitted to, and others to judge them"
        )
        raise InputError(path, "", problem, "add measurements")
    result.add("skipped_kernels", ", ".join(too_few) or "none", "text")
    frame["predicted_s"] = rounded(frame["predicted_s"])
    result.data = frame = frame.drop(columns=["compute_s", "traffic_s"])
    for group, kernels in words.items():
        result.add(f"constants{suffix_of(group)}", "; ".join(kernels), "text")
    first = add_groups(result, frame, unseen_s, beside, ["operator", *shapes])
    main = suffix_of(first)
    model, roofline, table = (
        in_percent(result[f"mape_{name}_percent{main}"]) for name in ("held_back", "roofline_held_back", "lookup")
    )
    kind = f"{first} " if layout != "collectives" else ""
    encoders = (frame["operator"] == "encoder").all()
    what = kind + ("attention kernels of encoders" if encoders else _WORDS.get(layout, layout))
    count = result[f"shapes_held_back{main}"]
    finding = (
        f"The time model predicts {count:,} held-back {what} on {gpu.title} with a mean error of {model} "
        f"(roofline: {roofline}, look-up in the fitting half: {table})"
    )
    result.add("finding", finding, "text")
    return result


def _prepared(gpu: Gpu, frame: pd.DataFrame) -> pd.DataFrame:
    """Add what a law needs beside the shapes, the work, the halves and the regions, and empty predictions."""
    if (frame["operator"] == "moe").all():
        frame = pd.concat([frame, load_table(frame)], axis=1)
    parts = []
    for operator, rows in frame.groupby("operator", sort=False):
        kind = engine_prediction.kind_of(operator)
        flop, moved, peak = kind.work(gpu, rows)
        compute_s, traffic_s = flop / peak, moved / kind.bandwidth(gpu)
        rows = rows.assign(flop=flop, bytes=moved, compute_s=compute_s, traffic_s=traffic_s)
        rows["held_back"] = hold_back(rows, kind.sizes)
        column, edges = kind.region
        order = np.searchsorted(edges, rows[column], side="left")
        names = [_region(column, low, high) for low, high in itertools.pairwise(edges)]
        rows["region"], rows["region_order"] = np.array(["", *names])[order], order
        parts.append(rows.assign(roofline_s=rounded(np.maximum(compute_s, traffic_s))))
    frame = pd.concat(parts)
    return frame.assign(
        bound="", predicted_s=np.nan, derated_s=np.nan, lookup_s=np.nan, corrected_s=np.nan
    ).reset_index(drop=True)


def _region(column: str, low: int, high: int) -> str:
    if column == "message_bytes":
        names = {2**14: "16 KiB", 2**20: "1 MiB", 2**26: "64 MiB"}
        return f"up to {names[high]}" if high in names else f"above {names[low]}"
    what = "cached tokens" if column == "context" else "tokens"
    if high >= 2**20:
        return f"{low + 1:,} {what} and more"
    return f"up to {high:,} {what}" if low <= 0 else f"{low + 1:,} to {high:,} {what}"


def in_words(constants: object) -> str:
    values = {name: value for name, value in dataclasses.asdict(constants).items() if name != "source"}
    # A constant of 0 is of something that the kernel has not.
    values = {name: value for name, value in values.items() if not isinstance(value, float) or value}
    numbers = {name: value for name, value in values.items() if isinstance(value, float)}
    units = {name: next(unit for end, unit in reversed(_UNITS.items()) if name.endswith(end)) for name in numbers}
    rest = [f"{name.replace('_', ' ')} {value}" for name, value in values.items() if name not in numbers]
    return ", ".join([constants_in_words(numbers, units), *rest])
