"""Predicted over measured times for a page's viewer: held-back shapes, each with its kernel, bound and times."""

from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.viewer import View, of_ratios

#: What bounds a kernel: words, and the colours that limits have in every figure.
BOUNDS = {
    "compute": ("matrix units", figures.BLUE),
    "issue": ("issue", figures.BLUE),
    "latency": ("steps", figures.GREY),
    "l2": ("L2", figures.SKY),
    "dram": ("DRAM", figures.ORANGE),
    "launch": ("launch", figures.BLACK),
    "host": ("host", figures.BLACK),
    "block": ("blocks", figures.GREY),
    "moved": ("permutation", figures.ORANGE),
    "link": ("link", figures.GREEN),
}
#: What makes up a shape, by operator; what is always the same is left out.
_SHAPE = ("m", "n", "k", "requests", "tokens", "context", "heads", "kv_heads", "head_dim")
_SHAPE += ("hidden", "inter", "experts", "chosen", "ranks", "devices", "message_bytes")


def view(result: CaseResult) -> View | None:
    """Return the held-back shapes, if the case has any; those with the largest errors stay if not all fit a page."""
    if "measured_s" not in result.data:
        return None
    data = result.data[result.data["held_back"]]
    if data.empty:
        return None
    ratio = data["predicted_s"] / data["measured_s"]
    bound = data["bound"].map({name: words for name, (words, _) in BOUNDS.items()}).fillna(data["bound"])
    measured = data["measured_s"] * 1e6
    fields = {name: data[name] for name in ("operator", "kernel", "group") if data[name].nunique() > 1}
    fields |= {name.replace("_", " "): data[name] for name in _SHAPE if name in data and data[name].nunique() > 1}
    fields |= {
        "bound": bound,
        "measured (µs)": measured,
        "predicted (µs)": data["predicted_s"] * 1e6,
        "roofline (µs)": data["roofline_s"] * 1e6,
        "error (%)": 100 * (ratio - 1),
    }
    present = set(bound)
    colors = {words: color for words, color in BOUNDS.values() if words in present}
    colors |= dict.fromkeys(sorted(present - set(colors)), "#888888")
    labels = "measured time (µs)", "predicted / measured time"
    return of_ratios("held-back shapes", measured, ratio, bound, fields, colors, labels, 10)
