"""Predicted over measured time of steps for a page's viewer: each run with its model, batch and what it consists of."""

import numpy as np

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import View, of_ratios
from gpuledger.studies.training_time.explanation import OTHER
from gpuledger.studies.training_time.figures import BAND_PERCENT, colours


def view(result: CaseResult) -> View:
    """Return every run; those with the largest errors stay if not all fit a page."""
    data = result.data
    measured = data["measured_s"]
    ratio = data["kernels_s"] / measured
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
        "at the power limit (s)": data["power_s"],
        "clock (MHz)": data["clock_hz"] / 1e6,
        "error of kernels alone (%)": 100 * (ratio - 1),
        "measured MFU (%)": data["mfu_percent"],
        "memory predicted (GB)": data["memory_bytes"] / 1e9,
    }
    labels = "measured time of a step (s)", "kernels alone / measured time"
    return of_ratios("runs", measured, ratio, data["model"], fields, colours(data), labels, BAND_PERCENT)
