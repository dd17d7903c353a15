"""Measured times of the kernels of sparse attention: the indexer's scores, the selection, the attention."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable, median_of_equal


class _Operation(NamedTuple):
    """What a benchmark's name of a kernel stands for: its operation, and sizes that its table does not state."""

    name: str  # a key of gpuledger.models.time_model.attention.sparse_law.CHOICES
    group: str
    heads: int  # of the indexer; 0: as the table says, of attention
    width: int  # multiplications per key and head
    selected: int = 0  # keys that a token attends to


#: Kernels of GLM-5 and DeepSeek-V4 as AIConfigurator measures them (``collector/sglang/glm5_dsa_sparse_modules.py`` and
#: ``deepseekv4_sparse_modules.py``); the indexers' heads are in the models' config.json.
OPERATIONS = {
    "glm5_dsa_attn_module": _Operation("attention", "16-bit", 0, 576 + 512, 2048),
    "glm5_mqa_logits_module": _Operation("scores", "fp8", 32, 128),
    "glm5_topk_module": _Operation("top-k", "16-bit", 1, 0, 2048),
    "dsv4_paged_mqa_logits_module": _Operation("decode scores", "fp8", 64, 128),
}
#: Scores that a benchmark makes up so that all are equal: a selection's worst case.
_EQUAL = "flat"


def read_sparse(path: Path, unit: str) -> tuple[pd.DataFrame, list[str]]:
    """Read measured kernels of sparse attention.

    Parameters
    ----------
    path : path
        A table of ``op_name`` (a key of `OPERATIONS`), ``kernel_source, num_heads, batch_size, isl`` (new tokens),
        ``step`` (cached ones), ``latency``; optional ``compress_ratio`` (tokens that share a key; 1 if absent) and
        ``score_mode``: of a selection, equal scores (``flat``) are left out, as are rows of time 0, which stand for a
        context within the selection.

    Returns
    -------
    frame, skipped
        With the shapes ``requests, tokens, context, heads, width, places`` (the selection's; 0: none) and ``ratio``;
        ``precision`` is the operation.
    """
    wanted = ["op_name", "kernel_source", "num_heads", "batch_size", "isl", "step", "latency"]
    table = MeasuredTable(path, wanted, ["compress_ratio", "score_mode"], unit)
    operation = table.texts("op_name")
    known = operation.isin(list(OPERATIONS))
    skipped = sorted(set(operation[~known]))
    if not known.any():
        remedy = f"known are: {', '.join(OPERATIONS)}"
        raise InputError(path, "column op_name", f"no known operation (found {', '.join(skipped)})", remedy)
    selects = operation == "glm5_topk_module"
    measured = ~(selects & (table.numbers("latency") == 0))
    if "score_mode" in table:
        measured &= table.cells["score_mode"] != _EQUAL
    # Lines and rows keep their numbers until every cell is checked.
    about = operation.where(known, next(iter(OPERATIONS))).map(OPERATIONS)
    kernel, heads = table.texts("kernel_source"), table.whole_numbers("num_heads")
    requests, tokens = (table.whole_numbers(name) for name in ("batch_size", "isl"))
    context = table.whole_numbers("step", 0)
    many = requests.astype(float) * (tokens + context) > 2**31
    table.refuse(many, "batch_size", "makes more than 2^31 tokens", "correct it")
    ratio = table.whole_numbers("compress_ratio") if "compress_ratio" in table else np.ones_like(tokens)
    time_s = table.seconds(known=measured.to_numpy())
    names = [one.name for one in about]
    frame = pd.DataFrame(
        {
            "operator": names,
            "group": [one.group for one in about],
            "kernel": kernel,
            "precision": names,
            "requests": requests,
            "tokens": tokens,
            "context": context,
            "heads": [one.heads or own for one, own in zip(about, heads, strict=True)],
            "width": [one.width for one in about],
            "places": [one.selected for one in about],
            "ratio": ratio,
            "measured_s": time_s,
        }
    )[(known & measured).to_numpy()]
    if frame.empty:
        raise InputError(path, "column latency", "no row was measured", "add some")
    return median_of_equal(frame), skipped
