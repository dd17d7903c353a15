"""A recorded training step: what its kernels are for, beside what the model of training predicts for the same."""

from math import prod
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.ledger.datasets import Case
from gpuledger.models.time_model.step import predict
from gpuledger.models.training.eager_tables import MEMORY_COPY
from gpuledger.models.training.kernels import CLASSES
from gpuledger.models.training.run import IMPLEMENTATIONS, TrainingRun
from gpuledger.models.transformer import Parallel
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_breakdown.scenario import Scenario, name_key, read_case_model, read_hardware
from gpuledger.studies.kernel_breakdown.timeline.shapes import kernels_of_shapes, read_shapes

#: What a kernel is for by its class, where that decides.
_BY_CLASS = {
    "gemm": "GEMM",
    "gemv": "GEMM",
    "split_k_reduce": "GEMM",
    "attention": "attention",
    "optimizer": "update",
    "loss": "loss",
}
#: Operators of clipping and of the optimizer: over lists of tensors, and over their norms.
_LISTS = "_foreach_|linalg_vector_norm"
#: What a copy or a fill of memory belongs to, by the operator that made it.
_BY_OPERATOR = {"GEMM": r"::_?(?:scaled_)?(?:addmm|mm|bmm|baddbmm)$", "attention": r"attention"}
#: Classes of kernels that copy, fill or add up whole matrices, compiled ones included.
_WHOLE = frozenset({"copy", "fill", "elementwise", "memory copy", "memory set"})


def read_training(case: Case, mirror: str | Path | None = None) -> tuple[Scenario, TrainingRun]:
    """Read the model, the GPU and the batch of a case with the key ``training``.

    Raises
    ------
    InputError
        A model or a batch that training is not modelled for; no ``model`` or ``hardware``; ``phases`` beside it.
    """
    inputs, given = case.inputs, case.inputs["training"]
    for key in ("phases", "parallel", "precision", "fused", "expert_load", "speculation"):
        if key in inputs:
            raise case.error(key, "beside training", "leave one of them out")
    model, own = read_case_model(case, mirror)
    gpus = read_hardware(case)
    if len(gpus) > 1:
        raise case.error("hardware", f"{len(gpus)} GPUs beside training", "name the recorded one")
    with name_key(case, "training"):
        formats = given.get("recompute", False), "bf16", given.get("gathered", "bf16"), 0.0
        whose = given.get("implementation", IMPLEMENTATIONS[0])
        run = TrainingRun(model, gpus[0], given["sequence"], given["micro_batch"], 1, 1, *formats, whose)
    return Scenario(model, gpus, {"training": given}, Parallel(), model.precision, own_model=own), run


def purposes(rows: pd.DataFrame, run: TrainingRun) -> pd.Series:
    """Return what each launch is for, one of :data:`gpuledger.models.training.kernels.CLASSES`.

    * *GEMM*, *attention*, by the kernel's class; fills of their outputs belong to them.
    * *update*: kernels over lists of tensors: clipping, and the optimizer.
    * *loss*: whatever reads or writes the logits of all tokens, and is no GEMM.
    * *weights*: copies, fills and sums of nothing but whole matrices of parameters or their gradients, such as casts.
    * *elementwise*: everything else.

    Parameters
    ----------
    rows : DataFrame
        Launches with ``kernel_class, operator, shapes``, in which operators' shapes were recorded.
    """
    matrices = _matrices(run)
    logits = run.tokens * run.model.vocab
    found = rows["kernel_class"].map(_BY_CLASS).astype(object)
    found[rows["operator"].str.contains(_LISTS) & found.isna()] = "update"
    memory = rows["kernel_class"].str.startswith("memory")
    for purpose, pattern in _BY_OPERATOR.items():
        found[memory & rows["operator"].str.contains(pattern) & found.isna()] = purpose
    left = found.isna()
    found[left] = [
        _by_shapes(_tensors(text), name in _WHOLE, matrices, run.model.vocab, logits)
        for text, name in zip(rows.loc[left, "shapes"], rows.loc[left, "kernel_class"], strict=True)
    ]
    return found.astype(str)


def compare_purposes(rows: pd.DataFrame, predicted: pd.DataFrame, gpu: Gpu) -> pd.DataFrame:
    """Compare what the kernels of each purpose take with what is predicted.

    Parameters
    ----------
    rows : DataFrame
        Launches with ``purpose``. Copies and fills of memory count in ``recorded_s`` and are no kernels.
    predicted : DataFrame
        Of :func:`gpuledger.models.training.step.predict_kernels`.

    Returns
    -------
    DataFrame
        A row per purpose: ``purpose, kernels, recorded_s, predicted_kernels, predicted_s``; and of the kernels that ran
        whose work follows from their operator's shapes, ``shaped_s``, what these take, and ``shapes_s``, what they are
        predicted to take from those shapes.
    """
    own, theirs = rows.groupby("purpose"), predicted.groupby("purpose")
    launched = predicted["count"].where(predicted["kernel"] != MEMORY_COPY, 0)
    # Of compiled kernels, which tensors they read and which they write is not recorded.
    plain = rows[(rows["kind"] == "kernel") & rows["operator"].str.startswith("aten::")]
    work = kernels_of_shapes(plain, "bf16")
    shaped = rows.loc[work.index].assign(shapes_s=predict(work, gpu)["time_s"]) if len(work) else plain.iloc[:0]
    shaped = shaped.reindex(columns=["purpose", "duration_s", "shapes_s"]).groupby("purpose")
    table = pd.DataFrame(
        {
            "kernels": rows["launches"].where(rows["kind"] == "kernel", 0).groupby(rows["purpose"]).sum(),
            "recorded_s": own["duration_s"].sum(),
            "predicted_kernels": launched.groupby(predicted["purpose"]).sum(),
            "predicted_s": theirs["total_s"].sum(),
            "shaped_s": shaped["duration_s"].sum(),
            "shapes_s": shaped["shapes_s"].sum(),
        }
    )
    table = table.reindex(list(CLASSES)).fillna(0.0).rename_axis("purpose").reset_index()
    return table.astype({"kernels": np.int64, "predicted_kernels": np.int64})


def _tensors(text: str) -> list[tuple[int, ...]]:
    """Return the shapes of an operator's tensors, those in lists included, scalars excepted."""
    found = []
    for shape in read_shapes(text):
        found += [part for part in (shape if shape and isinstance(shape[0], tuple) else (shape,)) if part]
    return found


def _matrices(run: TrainingRun) -> set[tuple[int, int]]:
    """Return the shapes of the model's matrices, either way round."""
    hidden = run.model.hidden
    sizes = {(linear.outputs, linear.inputs) for group in run.model.layers for linear in group.linears(hidden)}
    sizes.add((run.model.vocab, hidden))
    return sizes | {(columns, rows) for rows, columns in sizes}


def _by_shapes(tensors: list[tuple[int, ...]], whole: bool, matrices: set, vocab: int, logits: int) -> str:
    if any(shape[-1] == vocab and prod(shape) >= logits for shape in tensors):
        return "loss"
    if whole and tensors and all(shape in matrices for shape in tensors):
        return "weights"
    return "elementwise"
