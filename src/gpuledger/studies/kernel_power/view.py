"""Predicted over measured power for a page's viewer: each held-back steady reading with its layer."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import Axis, Guide, View
from gpuledger.models.time_model.accuracy import errors_percent
from gpuledger.studies.kernel_power.figures import PRODUCTS, judged

#: Times of products by the time model.
_TIMES = {"nominal": "single launch, predicted", "sustained": "all the time, predicted"}


def view(result: CaseResult) -> View:
    """Return the steady readings of held-back layers; those with the largest errors stay if not all fit a page."""
    data = judged(result.data)
    measured, predicted = data["power_w"], data["predicted_w"]
    error = errors_percent(predicted, measured)
    marks = pd.DataFrame({"x": measured, "y": predicted, "group": data["products"], "weight": error.abs()})
    fields = {"kernel": data["kernel"], "precision": data["precision"]}
    if "hidden" in data:
        fields |= {
            "tokens": data["tokens"],
            "hidden × inter": [f"{a:,} × {b:,}" for a, b in zip(data["hidden"], data["inter"], strict=True)],
            "chosen of experts": [f"{a} of {b}" for a, b in zip(data["chosen"], data["experts"], strict=True)],
            "ranks": data["ranks"].astype(int),
        }
    if "sizes" in data:
        fields |= {"sizes": data["sizes"]}
    if "clock_mhz" in data:
        fields |= {"clock (MHz)": data["clock_mhz"]}
    if "sustained_s" in data:
        fields |= {f"{words} (ms)": 1e3 * data[f"{name}_s"] for name, words in _TIMES.items()}
    fields |= {
        "time (ms)": data["measured_s"] * 1e3,
        "TFLOP/s": data["flop_per_s"] / 1e12,
        "TB/s": data["bytes_per_s"] / 1e12,
        "energy of a launch (J)": measured * data["measured_s"],
        "error (%)": error,
    }
    ends = float(np.minimum(measured.min(), predicted.min())), float(result["limit"])
    x, y = Axis("measured power (W)"), Axis("predicted power (W)")
    return View("points", "readings", marks, fields, PRODUCTS, x, y, [Guide("exact", ends, ends)])
