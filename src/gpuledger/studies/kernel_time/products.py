"""Matrix products that others measured on many GPUs, beside what the constants of the checkout predict for them."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model import cuda_cores
from gpuledger.models.time_model.gemms.law import OPERAND_BYTES
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.studies.kernel_time.prediction import LARGE_FLOP
from gpuledger.studies.kernel_time.published_runs import (
    FITTED,
    OTHER_FORMAT,
    OTHER_GPU,
    OWN,
    add_summary,
    finding,
    with_speeds,
)
from gpuledger.studies.kernel_time.single_kernels import single_gemms

#: Number formats that are judged as one: the same units multiply them at the same rate.
GROUPS = {"bf16": "16-bit", "fp16": "16-bit"}
#: Of a table of products.
COLUMNS = [
    Column("run"),
    Column("gpu"),
    Column("precision", choices=tuple(OPERAND_BYTES)),
    *(Column(size, "integer", minimum=1, maximum=2**31) for size in ("m", "n", "k")),
    Column("tflop_per_s", "number", minimum=1e-6, maximum=1e6),
    Column("same_operands", "flag"),
]


def reduce_products(case: Case, known: Mapping[str, Gpu]) -> tuple[CaseResult, list[Gpu]]:
    """Predict each product as ``gpuledger predict`` would, by the kernels that engines may run; nothing is fitted here.

    Returns
    -------
    result : CaseResult
        Data: one row per measured product. ``run, gpu, precision, group, m, n, k, same_operands, shape`` (in words)``,
        engine, kernel, constants`` (`OWN`, `OTHER_FORMAT`, `OTHER_GPU` or `FITTED`)``, constants_of`` (in words)``,
        bound, peak_tflop_per_s`` (of the data sheet), and what
        :func:`gpuledger.studies.kernel_time.published_runs.with_speeds` adds; large products are judged.
    gpus : list of Gpu
        In the order of the table.
    """
    path = case.path("products")
    frame = read_csv(path, COLUMNS)
    gpus = {
        name: find_gpu(name, known, path, f"line {first + 2}, column gpu")
        for name, first in frame["gpu"].drop_duplicates().reset_index().set_index("gpu")["index"].items()
    }
    keys = ["gpu", "precision", "same_operands"]
    parts = [_predicted(gpus[gpu], precision, rows) for (gpu, precision, _), rows in frame.groupby(keys, sort=False)]
    data = pd.concat(parts).sort_index(ignore_index=True)
    result = CaseResult(with_speeds(data, data["flop"] >= LARGE_FLOP))
    large = result.data["judged"].sum()
    if not large:
        raise InputError(path, "", f"no product of {LARGE_FLOP / 1e9:g} GFLOP or more can be predicted", "add some")
    add_summary(result, "product")
    result.add("large_products", large, "product")
    wide = result.data[result.data["group"] == "16-bit"]
    said = finding("16-bit products that others timed", wide, {OWN: "their GPU's", OTHER_GPU: "another GPU's"})
    result.add("finding", said or f"{large:,} large matrix products are predicted", "text")
    return result, list(gpus.values())


def _predicted(gpu: Gpu, precision: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of one GPU and format with their predictions; NaN where the GPU has no units for the format."""
    shapes = rows[["m", "n", "k"]].drop_duplicates(ignore_index=True)
    rows = rows.assign(group=GROUPS.get(precision, precision), flop=2.0 * rows["m"] * rows["n"] * rows["k"])
    rows["shape"] = [f"{row.m:,} × {row.n:,} × {row.k:,}" for row in rows.itertuples()]
    rows["measured_s"] = rows["flop"] / rows.pop("tflop_per_s") / 1e12
    peak = gpu.flops.get(precision)
    rows["peak_tflop_per_s"] = peak / 1e12 if peak else np.nan
    try:
        found = single_gemms(gpu, shapes, precision, repeated=bool(rows["same_operands"].iloc[0]), alone=True)
    except InputError:
        names = ["engine", "kernel", "constants", "constants_of", "bound"]
        return rows.assign(**dict.fromkeys(names, ""), predicted_s=np.nan, roofline_s=np.nan)
    fastest = found.loc[found.groupby(["m", "n", "k"])["time_s"].idxmin()]
    rows = rows.reset_index().merge(fastest[_TAKEN], on=["m", "n", "k"], how="left").set_index("index")
    same_units = rows["stands_in"].str.startswith("the same GPU") & (rows["group"] == "16-bit")
    rows["constants_of"] = rows["stands_in"].where(~same_units, "")
    known = [rows["constants_of"] == "", rows["constants_of"].str.startswith("the same GPU")]
    rows["constants"] = np.select(known, [OWN, OTHER_FORMAT], OTHER_GPU)
    if precision == cuda_cores.PRECISION and gpu.name in cuda_cores.FITTED_TO:
        rows["constants"] = FITTED
    return rows.rename(columns={"time_s": "predicted_s"}).drop(columns="stands_in")


_TAKEN = ["m", "n", "k", "engine", "kernel", "time_s", "roofline_s", "stands_in", "bound"]
