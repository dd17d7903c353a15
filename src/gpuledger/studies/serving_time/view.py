"""For a page's viewer: predicted over measured time per token of each run, or what each choice attains."""

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import Axis, Guide, View, of_ratios
from gpuledger.studies.serving_time.figures import BAND_PERCENT, colours, short_name
from gpuledger.studies.serving_time.parallelism import choices
from gpuledger.studies.serving_time.runs import APART


def view(result: CaseResult) -> View:
    """Return every run or choice; those with the largest errors stay if not all fit a page."""
    data = result.data
    if "kernels_s" not in data:
        return _view_of_choices(choices(data))
    ratio, measured = data["kernels_s"] / data["measured_s"], data["measured_s"] * 1e3
    tokens = zip(data["input_tokens"], data["output_tokens"], strict=True)
    fields = {
        "model": data["model"],
        "engine": data["engine"],
        "precision": data["precision"],
        "GPUs": data["gpus"],
        "GPUs that decode": np.where(data["mode"] == APART, "process no prompts", "process prompts, too"),
        "requests at once": data["requests"],
        "of them decoding": data["decoding"],
        "tokens in, out": [f"{before:,}, {after:,}" for before, after in tokens],
        "measured (ms per token)": measured,
        "kernels alone (ms)": data["kernels_s"] * 1e3,
        "with the engine's term (ms)": data["predicted_s"] * 1e3,
        "error of kernels alone (%)": 100 * (ratio - 1),
    }
    labels = "measured time per output token (ms)", "kernels alone / measured time"
    names = data["model"].map(short_name)
    return of_ratios("runs", measured, ratio, names, fields, colours(data), labels, BAND_PERCENT)


def _view_of_choices(decided: pd.DataFrame) -> View:
    time_ms = 1e3 * decided["objective_s"]
    marks = pd.DataFrame({"x": time_ms, "y": decided["predicted"], "group": decided["model"].map(short_name)})
    tokens = zip(decided["input_tokens"], decided["output_tokens"], strict=True)
    fields = {
        **{name: decided[name] for name in ("model", "precision", "engine")},
        "GPU": decided["gpu"],
        "tokens in, out": [f"{before:,}, {after:,}" for before, after in tokens],
        "no token may take longer than (ms)": time_ms,
        "chosen": decided["chosen"],
        "best": decided["best"],
        "best (tokens per s and GPU)": decided["best_rate"],
        "chosen (% of best)": decided["predicted"],
    }
    guides = [Guide("the best", (time_ms.min() / 2, time_ms.max() * 2), (100, 100))]
    x, y = Axis("longest time per output token (ms)", True), Axis("tokens per GPU (% of the best parallelism)", False)
    return View("points", "choices", marks.assign(weight=100 - marks["y"]), fields, colours(decided), x, y, guides)
