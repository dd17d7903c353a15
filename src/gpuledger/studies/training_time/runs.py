"""Training runs: what a row of the table says, and which rows the model can express."""

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.models.training import TrainingRun
from gpuledger.models.training.run import GATHERED, IMPLEMENTATIONS, NODE, PRECISIONS
from gpuledger.models.transformer import Model, read_model
from gpuledger.readers.gpus import Gpu, rows_on
from gpuledger.readers.tabular import Column, read_csv

#: No size is larger.
_MOST = 2**31
#: Columns that say how fast a run was; one of them is needed.
SPEEDS = ("tokens_per_s", "tokens_per_s_per_gpu", "step_s")
#: What a source may state beside its runs, to be checked.
STATED = ("parameters", "mfu_percent", "hfu_percent", "model_flop_per_s_per_gpu")


def read_runs(case: Case, gpu: Gpu) -> tuple[pd.DataFrame, int]:
    """Read the runs on one GPU.

    Returns
    -------
    frame : DataFrame
        ``model, gpus, sequence_tokens, micro_batch, accumulation, recompute, precision, gathered, implementation,
        network_gbit_per_s`` (NaN: unknown), ``tokens_per_s`` (of all GPUs) and those of `STATED` that the table has.
    ignored : int
        Rows of other GPUs.
    """
    path = case.path("runs")
    sizes = {"minimum": 1, "maximum": _MOST}
    columns = [
        *(Column(name) for name in ("model", "gpu")),
        *(Column(name, "integer", **sizes) for name in ("sequence_tokens", "micro_batch")),
        *(Column(name, "integer", optional=True, **sizes) for name in ("gpus", "accumulation")),
        Column("recompute", "flag", optional=True),
        Column("precision", choices=PRECISIONS, optional=True),
        Column("gathered", choices=GATHERED, optional=True),
        Column("implementation", choices=IMPLEMENTATIONS, optional=True),
        Column("network_gbit_per_s", "number", minimum=1e-3, maximum=1e6, optional=True),
        *(Column(name, "number", minimum=1e-9, maximum=1e18, optional=True) for name in (*SPEEDS, *STATED)),
    ]
    table = read_csv(path, columns)
    own = rows_on(gpu, table, "gpu", path)
    rows = table[own].reset_index(drop=True)
    usual = {"gpus": NODE, "accumulation": 1, "recompute": "false", "precision": "bf16", "gathered": "bf16"}
    usual["implementation"] = IMPLEMENTATIONS[0]
    for name, value in usual.items():
        rows[name] = rows[name].replace("", None).fillna(value) if name in rows else value
    rows["recompute"] = rows["recompute"].astype(str).str.lower() == "true"
    rows = rows.astype({"gpus": np.int64, "accumulation": np.int64})
    step_tokens = rows["sequence_tokens"] * rows["micro_batch"] * rows["accumulation"] * rows["gpus"]
    none = pd.Series(np.nan, rows.index)
    speed = rows.get("tokens_per_s", none).fillna(rows.get("tokens_per_s_per_gpu", none) * rows["gpus"])
    rows["tokens_per_s"] = speed.fillna(step_tokens / rows.get("step_s", none))
    if (unknown := rows["tokens_per_s"].isna()).any():
        line = f"line {int(np.flatnonzero(own)[np.flatnonzero(unknown)[0]]) + 2}"
        raise InputError(path, line, "nothing says how fast the run was", f"fill one of {', '.join(SPEEDS)}")
    default = case.inputs.get("network_gbit_per_s", np.nan)
    rows["network_gbit_per_s"] = rows.get("network_gbit_per_s", none).astype(float).fillna(default)
    kept = [name for name in STATED if name in rows]
    order = ["model", "gpus", "sequence_tokens", "micro_batch", *list(usual)[1:], "network_gbit_per_s", "tokens_per_s"]
    return rows[[*order, *kept]], int((~own).sum())


def express(case: Case, gpu: Gpu, rows: pd.DataFrame) -> tuple[list[TrainingRun], list[int], Counter]:
    """Return the runs that the model can express, their places in `rows`, and why the others cannot be, counted."""
    read: dict[str, Model | InputError] = {}
    runs, places, refused = [], [], Counter()
    for place, row in enumerate(rows.to_dict("records")):
        name = row["model"]
        if name not in read:
            read[name] = _model(case, name)
        model = read[name]
        if isinstance(model, InputError):
            refused[f"model: {model.problem}"] += 1
            continue
        if model.positions:
            # A position table is as long as the sequence that it is trained with.
            model = replace(model, positions=row["sequence_tokens"])
        sizes = (row[name] for name in ("sequence_tokens", "micro_batch", "accumulation", "gpus"))
        formats = (row[name] for name in ("recompute", "precision", "gathered"))
        try:
            network = row["network_gbit_per_s"] * 1e9 / 8
            runs.append(TrainingRun(model, gpu, *sizes, *formats, network, row["implementation"]))
            places.append(place)
        except InputError as error:
            refused[error.problem] += 1
    return runs, places, refused


def _model(case: Case, name: str) -> Model | InputError:
    file = case.path("configs") / f"{name}.json" if "configs" in case.inputs else None
    try:
        # A name in a table is no path.
        known = file is not None and os.path.basename(name) == name and os.path.isfile(file)
        return read_model(file) if known else read_model(name, paths=False)
    except InputError as error:
        return error
