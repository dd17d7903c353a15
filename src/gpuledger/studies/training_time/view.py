"""Predicted over measured time of steps for a page's viewer: each run with its model, batch and what it consists of."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import Axis, Guide, View
from gpuledger.studies.training_time.explanation import OTHER
from gpuledger.studies.training_time.figures import BAND_PERCENT, colours


def view(result: CaseResult) -> View:
    """Return every run; those with the largest errors stay if not all fit a page."""
    data = result.data
    measured = data["measured_s"]
    ratio = data["kernels_s"] / measured
    marks = pd.DataFrame({"x": measured, "y": ratio, "group": data["model"], "weight": np.abs(np.log(ratio))})
    fields = {
        "model": data["model"],
        "precision": data["precision"],
        "parameters gathered in": data["gathered"],
        "GPUs": data["gpus"],
        "tokens of a sequence": data["sequence_tokens"],
        "sequences of a pass": data["micro_batch"],
        "passes": data["accumulation"],
        "recomputation": np.where(data["recompute"], "yes", "no"),
        "measured (s)": measured,
        "kernels alone (s)": data["kernels_s"],
        "GEMMs (s)": data["gemm_s"],
        "attention (s)": data["attention_s"],
        "other kernels (s)": data[list(OTHER)].sum(axis=1),
        "exposed communication (s)": data["exposed_s"],
        "error of kernels alone (%)": 100 * (ratio - 1),
        "measured MFU (%)": data["mfu_percent"],
        "memory predicted (GB)": data["memory_bytes"] / 1e9,
    }
    ends = (measured.min() / 2, measured.max() * 2)
    guides = [Guide("exact", ends, (1, 1))]
    for sign, at in (("+", 1 + BAND_PERCENT / 100), ("−", 1 - BAND_PERCENT / 100)):
        guides.append(Guide(f"{sign}{BAND_PERCENT} %", ends, (at, at), dashed=True))
    x, y = Axis("measured time of a step (s)", True), Axis("kernels alone / measured time", True)
    return View("points", "runs", marks, fields, colours(data), x, y, guides)
