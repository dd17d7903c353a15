"""Measured kernel times in the layouts that others publish them in, as one tidy frame."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, unreadable
from gpuledger.ledger.datasets import Case
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.kernel_tables.measured_table import MOST_S, MeasuredTable

#: Bytes of an operand's element and of a result's.
ELEMENT_BYTES = {
    **dict.fromkeys(("bf16", "fp16"), (2, 2)),
    **dict.fromkeys(("fp8", "fp8_block", "int8"), (1, 2)),
    "fp4": (0.5, 2),
    **dict.fromkeys(("fp32", "tf32"), (4, 4)),
}

#: No size, time or rate is larger, in the units of LLMCompass.
MOST = 1e12
#: No kernel takes less (s); and a launch with what frameworks do before it hardly more.
LEAST_S, SLOW_LAUNCH_S = 5e-7, 2e-5

#: Bytes of a weight's element in the groups that store it in fewer bits than it is multiplied in.
WEIGHT_BYTES = {"int8_wo": 1, "int4_wo": 0.5}

#: Operators of vidur's ``mlp.csv``: the law of :mod:`gpuledger.models.time_model.operators`, or GEMM.
VIDUR_OPERATORS = {
    "attn_pre_proj": "gemm",
    "attn_post_proj": "gemm",
    "mlp_up_proj": "gemm",
    "mlp_down_proj": "gemm",
    "input_layernorm": "norm",
    "post_attention_layernorm": "norm",
    "mlp_act": "activation",
    "add": "vectorised",
    "attn_rope": "rope",
}
#: Operators that LLMCompass measured: their law.
LLMCOMPASS_OPERATORS = {"matmul": "gemm", "softmax": "softmax", "layernorm": "layernorm", "gelu": "vectorised"}


def read_vidur(case: Case) -> pd.DataFrame:
    """Read operator times as vidur records them.

    Parameters
    ----------
    case : Case
        Its ``operators`` is a CSV of ``time_stats.<operator>.median``, ``n_head``, ``n_kv_head``, ``n_embd``,
        ``n_expanded_embd``, ``use_gated_mlp``, ``num_tokens``, ``num_tensor_parallel_workers``; ``unit`` is that of
        the times. Values are FP16 (microsoft/vidur, vidur/profiling/mlp/mlp_wrapper.py).

    Returns
    -------
    DataFrame
        ``operator, law, precision, m, n, k, read_bytes, write_bytes, measured_s``, one row an operator, tokens and
        degree of tensor parallelism. The embedding is left out: PyTorch's gather kernel of 2023 has a law of its own.
    """
    path = case.path("operators")
    about = ["n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers"]
    table = MeasuredTable(path, [*about, "use_gated_mlp"], None, case.inputs["unit"])
    heads, kv_heads, hidden, ffn, tokens, workers = (table.whole_numbers(name) for name in about)
    gated = np.where(table.cells["use_gated_mlp"].astype(str).str.lower() == "true", 2, 1)
    uneven = (heads % workers != 0) | (ffn % workers != 0)
    table.refuse(uneven, about[-1], "does not divide n_head and n_expanded_embd", "correct it")
    table.refuse(hidden < heads, "n_embd", "is less than n_head", "correct it")
    queries, head = heads // workers, hidden // heads
    keys = np.maximum(kv_heads // workers, 1)
    inner = ffn // workers
    # Columns: outputs of a row; inputs of a row (of a GEMM: k), in values; what is read beside them is small.
    shapes = {
        "attn_pre_proj": ((queries + 2 * keys) * head, hidden),
        "attn_post_proj": (hidden, queries * head),
        "mlp_up_proj": (gated * inner, hidden),
        "mlp_down_proj": (hidden, inner),
        "input_layernorm": (hidden, hidden),
        "post_attention_layernorm": (hidden, hidden),
        "mlp_act": (inner, gated * inner),
        "add": (hidden, 2 * hidden),
        "attn_rope": ((queries + keys) * head, (queries + keys) * head),
    }
    frames = []
    for operator, law in VIDUR_OPERATORS.items():
        name = f"time_stats.{operator}.median"
        if name not in table:
            continue
        # Some operators are absent in some architectures: their cells are empty.
        known = table.cells[name].notna().to_numpy()
        times = table.seconds(name, known)
        outputs, inputs = (np.broadcast_to(values, tokens.shape)[known] for values in shapes[operator])
        rows = tokens[known]
        weights = inputs * outputs if law == "gemm" else 0
        frame = {
            "operator": operator,
            "law": law,
            "precision": "fp16",
            "m": rows,
            "n": outputs,
            "k": inputs if law == "gemm" else np.ones_like(rows),
            "read_bytes": 2 * (rows * inputs + weights),
            "write_bytes": 2 * rows * outputs,
            "measured_s": times[known],
        }
        frames.append(pd.DataFrame(frame))
    if not frames:
        remedy = f"known operators are: {', '.join(VIDUR_OPERATORS)}"
        raise InputError(path, "line 1", "no column time_stats.<operator>.median", remedy)
    return pd.concat(frames, ignore_index=True)


def read_llmcompass(case: Case) -> pd.DataFrame:
    """Read operator measurements as LLMCompass records them.

    Parameters
    ----------
    case : Case
        Its ``throughput`` names a file an operator, without header lines (ae/figure5/*/plot_*.py name the columns):
        matmul ``m, n, k, <time>ms, <rate>Tflops``; softmax and layernorm ``rows, columns, Gelement/s``; gelu
        ``elements, Gelement/s``. Values are FP16, times those of the host around launch and synchronisation.

    Returns
    -------
    DataFrame
        As :func:`read_vidur`.
    """
    readers: dict[str, Callable] = {"matmul": _matmul, "gelu": _gelu}
    frames = []
    for operator, file in case.inputs["throughput"].items():
        path = case.dataset.folder / file
        cells = _read_bare(path, {"matmul": 5, "gelu": 2}.get(operator, 3))
        frame = readers.get(operator, _rows_of_columns)(path, cells)
        frames.append(frame.assign(operator=operator, law=LLMCOMPASS_OPERATORS[operator], precision="fp16"))
    columns = ["operator", "law", "precision", "m", "n", "k", "read_bytes", "write_bytes", "measured_s"]
    return pd.concat(frames, ignore_index=True)[columns]


def other_tables(case: Case) -> list[Path]:
    """Return the files of a case's ``beside``: the same GPU's kernels, as other frameworks measured them."""
    return [case.present(name, f"beside[{position}]") for position, name in enumerate(case.inputs.get("beside", ()))]


def check_plausible(case: Case, file: Path, gpu: Gpu, roofline_s: np.ndarray, measured_s: np.ndarray) -> None:
    """Refuse times that the GPU cannot have: mostly a wrong unit, or another GPU's.

    Raises
    ------
    InputError
        When the median of measured over least possible time (the roofline's, but `LEAST_S`) is below 0.7, or that over
        the roofline's and `SLOW_LAUNCH_S` beyond 100; or when a single time is a hundred times shorter than possible,
        or longer than `MOST_S`.
    """
    measured_s, least_s = np.asarray(measured_s), np.maximum(roofline_s, LEAST_S)
    shorter = float(np.median(measured_s / least_s))
    longer = float(np.median(measured_s / (roofline_s + SLOW_LAUNCH_S)))
    if shorter < 0.7:
        problem = f"times are, in the median, {1 / shorter:,.3g} times shorter than the data sheet of {gpu.name} allows"
        raise InputError(file, case.place, problem, "correct the unit or the gpu")
    if longer > 100:
        problem = (
            f"times are, in the median, {longer:,.0f} times as long as a slow launch and the roofline of {gpu.name}"
        )
        raise InputError(file, case.place, problem, "correct the unit or the gpu")
    if (impossible := measured_s < 0.01 * least_s).any():
        time_s = measured_s[impossible].min()
        problem = f"a time of {time_s:.3g} s is less than a hundredth of what the data sheet of {gpu.name} allows"
        raise InputError(file, case.place, problem, "remove the row")
    if (time_s := measured_s.max()) > MOST_S:
        raise InputError(file, case.place, f"a time of {time_s:.3g} s is more than an hour", "remove the row")


def _read_bare(path: Path, width: int) -> list[list[str]]:
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, "save it as UTF-8 text") from None
    cells = [[cell.strip() for cell in line.split(",")] for line in lines]
    for number, row in enumerate(cells, 1):
        if len(row) != width:
            raise InputError(path, f"line {number}", f"{len(row)} cells where {width} are needed", "correct the line")
    if not cells:
        raise InputError(path, "", "the file is empty", "add the measurements")
    return cells


def _numbers(path: Path, cells: list[list[str]], column: int, unit: str = "", whole: bool = False) -> np.ndarray:
    numbers = []
    for line, row in enumerate(cells, 1):
        place = f"line {line}, column {column + 1}"
        word = row[column]
        if unit and not word.endswith(unit):
            raise InputError(path, place, f"'{word}' is not in {unit}", f"give the value in {unit}, with the unit")
        word = word.removesuffix(unit)
        pattern = r"\d+" if whole else r"\d+(\.\d*)?([eE][+-]?\d+)?"
        if not re.fullmatch(pattern, word) or not 0 < float(word) < MOST:
            raise InputError(path, place, f"'{word}' is not a positive number below {MOST:g}", "correct it")
        numbers.append(float(word))
    return np.array(numbers)


def _matmul(path: Path, cells: list[list[str]]) -> pd.DataFrame:
    m, n, k = (_numbers(path, cells, column, whole=True).astype(np.int64) for column in range(3))
    time_s = _numbers(path, cells, 3, "ms") * 1e-3
    rate = _numbers(path, cells, 4, "Tflops") * 1e12
    bad = np.abs(2 * m * n * k / time_s / rate - 1) > 0.01
    if bad.any():
        place = f"line {int(np.flatnonzero(bad)[0]) + 1}"
        raise InputError(path, place, "time and rate contradict each other", "correct one of them")
    return pd.DataFrame(
        {"m": m, "n": n, "k": k, "read_bytes": 2 * (m * k + k * n), "write_bytes": 2 * m * n, "measured_s": time_s}
    )


def _rows_of_columns(path: Path, cells: list[list[str]]) -> pd.DataFrame:
    m, n = (_numbers(path, cells, column, whole=True).astype(np.int64) for column in range(2))
    return _elementwise(m, n, _numbers(path, cells, 2))


def _gelu(path: Path, cells: list[list[str]]) -> pd.DataFrame:
    elements = _numbers(path, cells, 0, whole=True).astype(np.int64)
    return _elementwise(np.ones_like(elements), elements, _numbers(path, cells, 1))


def _elementwise(m: np.ndarray, n: np.ndarray, giga_elements_per_s: np.ndarray) -> pd.DataFrame:
    moved = 2 * m * n
    time_s = m * n / (giga_elements_per_s * 1e9)
    return pd.DataFrame(
        {"m": m, "n": n, "k": np.ones_like(m), "read_bytes": moved, "write_bytes": moved, "measured_s": time_s}
    )
