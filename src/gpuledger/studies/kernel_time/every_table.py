"""Every table of a package of measured kernels, judged with the constants that come with the checkout."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.constants.table import AnyConstants, read_table, unseen_constants
from gpuledger.models.time_model.moe import load_table
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.kernel_tables.engines import read_attention, read_collectives, read_moe
from gpuledger.readers.kernel_tables.gemms import read_gemms
from gpuledger.readers.kernel_tables.recurrent import read_recurrent
from gpuledger.readers.kernel_tables.small_kernels import read_products, read_quantise
from gpuledger.readers.kernel_tables.sparse import read_sparse
from gpuledger.studies.kernel_time import engine_prediction, prediction
from gpuledger.studies.kernel_time.judgement import in_percent
from gpuledger.studies.kernel_time.kind import Kind


def _read_both(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read quantisation kernels with a known scale and, from the table beside, those that find it."""
    return read_quantise(path, unit, path.with_name("computescale_perf.parquet"))


#: Tables below a GPU's folder, ``<folder>/<framework>/<version>/<name>``, and what reads them. Whole attention blocks
#: are not among them: they are sums of kernels.
TABLES: Mapping[str, Callable[[Path, str], tuple[pd.DataFrame, list[str]]]] = {
    "gemm/*/*/gemm_perf.parquet": read_gemms,
    "attention/*/*/*_attention_perf.parquet": read_attention,
    "mla/*/*/context_mla_perf.parquet": read_attention,
    "mla/*/*/generation_mla_perf.parquet": read_attention,
    "moe/*/*/moe_perf.parquet": read_moe,
    "comm/nccl/*/nccl_perf.parquet": read_collectives,
    "comm/oneccl/*/oneccl_perf.parquet": read_collectives,
    "comm/*/*/custom_allreduce_perf.parquet": read_collectives,
    "linear_attention/*/*/gdn_perf.parquet": read_recurrent,
    "linear_attention/*/*/mamba2_perf.parquet": read_recurrent,
    "kda/*/*/kda_perf.parquet": read_recurrent,
    "encoder_attention/*/*/encoder_attention_perf.parquet": read_attention,
    "quantize/*/*/scale_matrix_perf.parquet": _read_both,
    "mla_bmm/*/*/mla_bmm_perf.parquet": read_products,
    "sparse_attention/*/*/glm5_*_module_perf.parquet": read_sparse,
    "sparse_attention/*/*/dsv4_paged_mqa_logits_module_perf.parquet": read_sparse,
}
#: A newer table with less of the rows of an older one than this adds a model's shapes to it and does not replace it
#: (TensorRT-LLM 1.3.0rc23's experts: the package declares that all others are still those of 1.3.0rc20).
WHOLE = 0.1
#: Kinds of kernels in the order of the figure, and what they are called there.
WORDS = {
    "gemm": "GEMM",
    "prefill": "prefill attention",
    "MLA prefill": "prefill attention, MLA",
    "decode": "decode attention",
    "MLA decode": "decode attention, MLA",
    "moe": "MoE",
    "all-reduce": "all-reduce in engines",
    "nccl": "NCCL, oneCCL",
    "encoder": "encoder attention",
    "recurrent": "linear attention, SSM",
    "sparse": "sparse attention",
    "quantise": "quantisation",
    "bmm": "MLA batched GEMM",
}
#: Kinds whose number formats are told apart.
_FORMATS = ("gemm", "prefill", "MLA prefill", "decode", "MLA decode", "moe")
_RECURRENT = ("convolution", "chunked_rule", "state_update")


class Measured(NamedTuple):
    """One kernel's rows of a table."""

    kind: str  # a key of gpuledger.models.time_model.constants.table.KINDS
    spec: Kind | None  # None: a GEMM
    kernel: str
    precision: str
    rows: pd.DataFrame  # with `held_back`


def newest(folder: Path, pattern: str) -> dict[tuple[str, str], Path]:
    """Return the newest whole table of each framework and name."""
    found: dict[tuple[str, str], Path] = {}
    versions = {path: [int(part) for part in re.findall(r"\d+", path.parent.name)] for path in folder.glob(pattern)}
    rows = {path: _row_count(path) for path in versions}
    for path in sorted(versions, key=lambda path: (versions[path], path)):
        key = path.parents[1].name, path.name
        if key not in found or rows[path] >= WHOLE * rows[found[key]]:
            found[key] = path
    return found


def _row_count(path: Path) -> int:
    try:
        return pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError):
        raise InputError(path, "", "not a Parquet file, or a damaged one", "fetch it again, or remove it") from None


def kernels_of(case: Case, path: Path, pattern: str) -> Iterator[Measured]:
    """Yield the kernels of a table, each in each precision, with what their laws need beside the shapes.

    Parameters
    ----------
    case : Case
        Its ``unit`` is the latency's.
    pattern : str
        The key of `TABLES` that the table was found by.
    """
    frame, _ = TABLES[pattern](path, case.inputs["unit"])
    gemms = TABLES[pattern] is read_gemms
    if TABLES[pattern] is read_moe:
        frame = pd.concat([frame, load_table(frame)], axis=1)
    kinds = pd.Series("gemm", frame.index)
    if not gemms:
        kinds = engine_prediction.kind_names(frame["operator"])
    for (kernel, precision, _), rows in frame.groupby(["kernel", "precision", kinds], sort=True):
        spec = None if gemms else engine_prediction.kind_of(rows["operator"].iloc[0])
        sizes = ("m", "n", "k") if gemms else spec.sizes
        back = prediction.hold_back(rows, sizes)
        yield Measured("gemm" if gemms else spec.name, spec, kernel, precision, rows.assign(held_back=back))


def reduce_tables(case: Case, gpus: Mapping[str, Gpu]) -> CaseResult:
    """Judge the shipped constants on the held-back shapes of every table of several GPUs.

    Nothing is fitted. Of each framework and kind of kernel the newest whole table is taken.

    Parameters
    ----------
    gpus : mapping of str to Gpu
        By the name of its folder.

    Returns
    -------
    CaseResult
        Data: one row per kernel and number format. ``gpu, framework, version, kind`` (a key of `WORDS`)``, group,
        kernel, precision, shapes, held_back`` and, of the held-back shapes, ``mape_percent, median_percent,
        bias_percent`` (the median of the signed error), ``roofline_percent`` and ``unseen_percent`` (MAPE with the
        constants of other GPUs only; NaN if no other has them).
    """
    rows = []
    for folder, gpu in gpus.items():
        if not (case.path("tables") / folder).is_dir():
            raise case.error("gpus", f"there is no folder '{folder}' of tables", "correct its name, or remove it")
        for pattern in TABLES:
            for path in newest(case.path("tables") / folder, pattern).values():
                for measured in kernels_of(case, path, pattern):
                    rows += _judged(gpu, path, measured)
    if not rows:
        problem = f"no kernel of its tables has constants in resources/time_constants.csv (in {', '.join(gpus)})"
        raise InputError(case.path("tables"), "", problem, "check the names of GPUs and folders")
    data = pd.DataFrame(rows)
    result = CaseResult(data)
    for name, words in (("gpus", "GPU"), ("frameworks", "framework")):
        result.add(name, data[words.lower()].nunique(), words)
    result.add("kernels", len(data), "kernel")
    result.add("shapes", int(data["shapes"].sum()), "shape")
    result.add("shapes_held_back", int(data["held_back"].sum()), "shape")
    _add_errors(result, data, "")
    for column in ("gpu", "kind"):
        for name, part in data.groupby(column, sort=False):
            _add_errors(result, part, f"_{slug(name)}")
    result.add("kernels_within_20_percent", round(100 * float((data["mape_percent"] <= 20).mean()), 4), "%")
    model, roofline, unseen = (in_percent(result[f"{name}_percent"]) for name in ("mape", "roofline", "unseen"))
    elsewhere = int(data["unseen_percent"].notna().sum())
    result.add("kernels_unseen", elsewhere, "kernel")
    finding = (
        f"Half of {len(data):,} kernels on {len(gpus)} GPUs are predicted with a mean error of at most {model} on "
        f"held-back shapes (roofline: {roofline}; with other GPUs' constants, which {elsewhere:,} have: {unseen})"
    )
    result.add("finding", finding, "text")
    return result


def _judged(gpu: Gpu, path: Path, measured: Measured) -> Iterator[dict]:
    """Yield the errors of one kernel's held-back shapes, by number format; nothing of one without constants."""
    framework = path.parents[1].name
    own = _constants(measured.kind).get((gpu.name, framework, measured.kernel, measured.precision))
    if own is None:
        return
    other = unseen_constants(measured.kind, gpu, measured.kernel, measured.precision)
    for group, rows in measured.rows.groupby("group", sort=True):
        back = rows[rows["held_back"]]
        if back.empty:
            continue
        wanted = back["measured_s"].to_numpy()
        error = 100 * (predict(gpu, own, measured, back) / wanted - 1)
        unseen = np.nan if other is None else 100 * np.abs(predict(gpu, other, measured, back) / wanted - 1).mean()
        yield {
            "gpu": gpu.name,
            "framework": framework,
            "version": path.parent.name,
            "kind": _kind(measured),
            "group": group,
            "kernel": measured.kernel,
            "precision": measured.precision,
            "shapes": len(rows),
            "held_back": len(back),
            "mape_percent": round(float(np.abs(error).mean()), 4),
            "median_percent": round(float(np.median(np.abs(error))), 4),
            "bias_percent": round(float(np.median(error)), 4),
            "roofline_percent": round(float(100 * np.abs(_roofline_s(gpu, measured, back) / wanted - 1).mean()), 4),
            "unseen_percent": round(float(unseen), 4),
        }


def predict(gpu: Gpu, constants: AnyConstants, measured: Measured, rows: pd.DataFrame) -> np.ndarray:
    """Return the predicted times (s) of some of a kernel's rows."""
    if measured.spec is None:
        return prediction.gemm_times_s(gpu, constants, rows, measured.precision)
    return engine_prediction.terms(gpu, measured.spec, constants, rows)["time_s"]


def _roofline_s(gpu: Gpu, measured: Measured, rows: pd.DataFrame) -> np.ndarray:
    if measured.spec is None:
        return prediction.baselines(gpu, rows)["roofline_s"].to_numpy()
    flop, moved, peak = measured.spec.work(gpu, rows)
    return np.maximum(flop / peak, moved / measured.spec.bandwidth(gpu))


@cache
def _constants(kind: str) -> dict[tuple[str, ...], AnyConstants]:
    return {entry[:4]: entry.constants for entry in read_table(kind)}


def _kind(measured: Measured) -> str:
    """Return the key of `WORDS`."""
    if measured.kind == "collective":
        return "nccl" if measured.kernel.lower().startswith(("nccl", "oneccl")) else "all-reduce"
    if measured.kind in _RECURRENT:
        return "recurrent"
    return f"MLA {measured.kind}" if measured.kernel.startswith("MLA ") else measured.kind


def _add_errors(result: CaseResult, data: pd.DataFrame, suffix: str) -> None:
    """Enter the medians over kernels of the mean errors."""
    for name in ("mape", "roofline", "unseen"):
        result.add(f"{name}_percent{suffix}", round(float(data[f"{name}_percent"].median()), 4), "%")


def class_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the errors by kind of kernel, number format, GPU and framework; every held-back shape counts alike.

    Returns
    -------
    DataFrame
        ``kind`` (in words)``, type`` (of kinds whose formats are told apart)``, gpu, framework, kernels, shapes,
        held_back, mape_percent, roofline_percent, unseen_percent``.
    """
    data = data.assign(
        kind=pd.Categorical(data["kind"], list(WORDS)),
        type=data["group"].where(data["kind"].isin(_FORMATS), ""),
        gpu=pd.Categorical(data["gpu"], data["gpu"].unique()),
    )
    keys = ["kind", "type", "gpu", "framework"]
    classes = data.groupby(keys, observed=True)
    table = classes.agg(kernels=("kernel", "size"), shapes=("shapes", "sum"), held_back=("held_back", "sum"))
    for name in ("mape_percent", "roofline_percent", "unseen_percent"):
        known = data.dropna(subset=name)
        shapes = known["held_back"].groupby([known[key] for key in keys], observed=True)
        sums = (known[name] * known["held_back"]).groupby([known[key] for key in keys], observed=True).sum()
        table[name] = (sums / shapes.sum()).round(4)
    table = table.reset_index()
    return table.assign(kind=table["kind"].astype(str).map(WORDS), gpu=table["gpu"].astype(str))
