"""Matrix products that others measured on many GPUs, beside what the constants of the checkout predict for them."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.choice import FP32_FITTED_TO
from gpuledger.models.time_model.gemm import OPERAND_BYTES
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.studies.kernel_time.judgement import in_percent
from gpuledger.studies.kernel_time.prediction import LARGE_FLOP
from gpuledger.studies.kernel_time.single_kernels import single_gemms

#: Whose constants predict a product, as the tables call it.
OWN, OTHER_FORMAT, OTHER_GPU = "its own", "its own, of another format", "another GPU's"
#: The share of the peak, in fp32, was fitted to these products.
FITTED = "fitted to these products"
_SLUGS = {OWN: "own", OTHER_FORMAT: "other_format", OTHER_GPU: "other_gpu", FITTED: "fitted"}
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
        Data: one row per measured product. ``run, gpu, precision, group, m, n, k, same_operands, engine, kernel,
        constants`` (`OWN`, `OTHER_FORMAT`, `OTHER_GPU` or `FITTED`)``, constants_of`` (in words)``, bound``; the speeds
        ``measured_tflop_per_s, predicted_tflop_per_s, roofline_tflop_per_s, peak_tflop_per_s`` (of the data sheet);
        ``error_percent``, by how much the predicted time is longer than the measured one, and
        ``roofline_error_percent``. The summary is of large products: the host's launches are a part of the others'.
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
    result = CaseResult(data)
    if (large := large_products(data)).empty:
        raise InputError(path, "", f"no product of {LARGE_FLOP / 1e9:g} GFLOP or more can be predicted", "add some")
    _add_summary(result, data, large)
    return result, list(gpus.values())


def _predicted(gpu: Gpu, precision: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of one GPU and format with their predictions; NaN where the GPU has no units for the format."""
    shapes = rows[["m", "n", "k"]].drop_duplicates(ignore_index=True)
    rows = rows.assign(group=GROUPS.get(precision, precision), flop=2.0 * rows["m"] * rows["n"] * rows["k"])
    rows = rows.rename(columns={"tflop_per_s": "measured_tflop_per_s"})
    peak = gpu.flops.get(precision)
    rows["peak_tflop_per_s"] = peak / 1e12 if peak else np.nan
    try:
        found = single_gemms(gpu, shapes, precision, repeated=bool(rows["same_operands"].iloc[0]), alone=True)
    except InputError:
        names = ["engine", "kernel", "constants", "constants_of", "bound"]
        return rows.drop(columns="flop").assign(**dict.fromkeys(names, ""), **dict.fromkeys(_SPEEDS, np.nan))
    fastest = found.loc[found.groupby(["m", "n", "k"])["time_s"].idxmin()]
    rows = rows.reset_index().merge(fastest[_TAKEN], on=["m", "n", "k"], how="left").set_index("index")
    for name in ("predicted", "roofline"):
        seconds = rows["time_s" if name == "predicted" else "roofline_s"]
        rows[f"{name}_tflop_per_s"] = rows["flop"] / seconds / 1e12
    rows["error_percent"] = 100 * (rows["measured_tflop_per_s"] / rows["predicted_tflop_per_s"] - 1)
    rows["roofline_error_percent"] = 100 * (rows["measured_tflop_per_s"] / rows["roofline_tflop_per_s"] - 1)
    same_units = rows["stands_in"].str.startswith("the same GPU") & (rows["group"] == "16-bit")
    rows["constants_of"] = rows["stands_in"].where(~same_units, "")
    known = [rows["constants_of"] == "", rows["constants_of"].str.startswith("the same GPU")]
    rows["constants"] = np.select(known, [OWN, OTHER_FORMAT], OTHER_GPU)
    if precision == "fp32" and gpu.name in FP32_FITTED_TO:
        rows["constants"] = FITTED
    return rows.drop(columns=["time_s", "roofline_s", "flop", "stands_in"])


_TAKEN = ["m", "n", "k", "engine", "kernel", "time_s", "roofline_s", "stands_in", "bound"]
_SPEEDS = ("predicted_tflop_per_s", "roofline_tflop_per_s", "error_percent", "roofline_error_percent")


def _add_summary(result: CaseResult, data: pd.DataFrame, large: pd.DataFrame) -> None:
    result.add("products", len(data), "product")
    result.add("large_products", len(large), "product")
    result.add("gpus", data["gpu"].nunique(), "GPU")
    result.add("runs", data.groupby(["run", "gpu"]).ngroups, "run")
    for (group, constants), rows in large.groupby(["group", "constants"], sort=True):
        suffix = f"_{slug(group)}_{_SLUGS[constants]}"
        runs = _run_errors(rows)
        result.add(f"products{suffix}", len(rows), "product")
        result.add(f"gpus{suffix}", rows["gpu"].nunique(), "GPU")
        result.add(f"runs{suffix}", len(runs), "run")
        # A run counts once, however many products it has.
        result.add(f"run_mape_percent{suffix}", round(float(runs["error_percent"].median()), 4), "%")
        result.add(f"run_roofline_percent{suffix}", round(float(runs["roofline_error_percent"].median()), 4), "%")
        result.add(f"bias_percent{suffix}", round(float(rows["error_percent"].median()), 4), "%")
    wide = large[large["group"] == "16-bit"]
    said = [
        f"half of {len(runs)} runs are predicted within {in_percent(runs['error_percent'].median())} by {whose} "
        f"constants (roofline: {in_percent(runs['roofline_error_percent'].median())})"
        for constants, whose in ((OWN, "their GPU's"), (OTHER_GPU, "another GPU's"))
        if len(runs := _run_errors(wide[wide["constants"] == constants]))
    ]
    finding = f"16-bit products that others timed: {', '.join(said)}"
    result.add("finding", finding if said else f"{len(large):,} large matrix products are predicted", "text")


def _run_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean absolute errors (%) of each run on each GPU."""
    errors = rows.set_index(["run", "gpu"])[["error_percent", "roofline_error_percent"]].abs()
    return errors.groupby(["run", "gpu"], sort=False).mean()


def product_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of large products by number format and GPU.

    Returns
    -------
    DataFrame
        ``group, gpu, constants_of`` (the GPU itself, or where constants are from)``, runs, products,
        best_tflop_per_s`` (measured)``, of_peak_percent`` (of the data sheet's peak)``, mape_percent, bias_percent``
        (the median)``, roofline_percent``.
    """
    large = large_products(data)
    table = large.groupby(["group", "gpu"], sort=False).agg(
        constants_of=("constants_of", "first"),
        runs=("run", "nunique"),
        products=("run", "size"),
        best_tflop_per_s=("measured_tflop_per_s", "max"),
        peak_tflop_per_s=("peak_tflop_per_s", "max"),
        mape_percent=("error_percent", lambda errors: errors.abs().mean()),
        bias_percent=("error_percent", "median"),
        roofline_percent=("roofline_error_percent", lambda errors: errors.abs().mean()),
    )
    table.insert(4, "of_peak_percent", 100 * table["best_tflop_per_s"] / table.pop("peak_tflop_per_s"))
    table = table.reset_index().round(4)
    order = {name: place for place, name in enumerate(("16-bit", "tf32", "fp32", "fp8"))}
    return table.sort_values("group", key=lambda groups: groups.map(order).fillna(9), kind="stable", ignore_index=True)


def bias_sentence(data: pd.DataFrame) -> str:
    """Say by how much predictions are off in each group of formats: medians of the runs' medians."""
    runs = large_products(data).groupby(["group", "run", "gpu"])["error_percent"].median()
    bias = runs.groupby("group").median()
    said = [
        f"{in_percent(abs(value))} too {'short' if value < 0 else 'long'} in {name}" for name, value in bias.items()
    ]
    listed = ", ".join(said[:-1]) + f" and {said[-1]}" if len(said) > 1 else said[0]
    return f"In the median run, predicted times are {listed.replace('in 16-bit', 'in 16 bits')}"


def large_products(data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `LARGE_FLOP` and more that are predicted."""
    flop = 2.0 * data["m"] * data["n"] * data["k"]
    return data[data["predicted_tflop_per_s"].notna() & (flop >= LARGE_FLOP)]


def best_products(data: pd.DataFrame, group: str = "16-bit") -> pd.DataFrame:
    """Return the fastest measured large product of each GPU, from the largest share of the peak to the smallest."""
    rows = large_products(data[data["group"] == group])
    best = rows.loc[rows.groupby("gpu", sort=False)["measured_tflop_per_s"].idxmax()]
    share = best["measured_tflop_per_s"] / best["peak_tflop_per_s"]
    return best.loc[share.sort_values(ascending=False, kind="stable").index]
