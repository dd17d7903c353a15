"""Recorded operators as kernels that the time model knows, by the shapes and types of their inputs."""

import ast
import math
import re
from functools import lru_cache

import numpy as np
import pandas as pd

from gpuledger.models.training.eager import indexed_launches

#: By the word that PyTorch writes for a type: the format's name here, and bytes.
TYPES = {
    "BFloat16": ("bf16", 2),
    "Half": ("fp16", 2),
    "float": ("fp32", 4),
    "double": ("fp32", 8),
    "Float8_e4m3fn": ("fp8", 1),
    "Float8_e5m2": ("fp8", 1),
    "Float8_e4m3fnuz": ("fp8", 1),
    "long int": ("fp32", 8),
    "long": ("fp32", 8),
    "int": ("fp32", 4),
    "short": ("fp16", 2),
    "signed char": ("int8", 1),
    "unsigned char": ("int8", 1),
    "bool": ("int8", 1),
}
_PRODUCTS = re.compile(r"(?:^|::)_?(?:scaled_)?(addmm|mm|bmm|baddbmm|matmul|linear|scaled_mm)\b")
_REDUCTIONS = re.compile(r"::(mean|sum|prod|all|any|max|min|amax|amin|argmax|argmin|norm|var|std|logsumexp)$")
_WRITES = re.compile(r"::(fill_|zero_|arange|full|ones|zeros|uniform_|normal_|random_|exponential_)$")
_PICKS = re.compile(r"::(index_select|gather|embedding|index|take)$")
#: These write into parts of their first input, as many values as their last tensor has.
_PUTS = re.compile(r"::_?(index_copy|index_add|index_put|index_put_impl|scatter|scatter_add|put)_?$")
_ELEMENTWISE = frozenset({"elementwise", "copy", "fill", "reduce", "index", "norm", "embedding", "quantize", "softmax"})
#: Classes whose operators are split if an operand is larger than an index reaches.
_SPLIT = frozenset({"elementwise", "copy", "fill"})
#: Digits of a dimension: hostile traces have dimensions without end.
_LARGEST = 2**40


@lru_cache(maxsize=4096)
def read_shapes(text: str) -> tuple:
    """Read recorded shapes, such as ``[[888, 2880], [2880], []]``: one tuple of integers per input, or one of tuples.

    What is not a list of shapes gives an empty tuple.
    """
    return _shapes(_list(text))


def _list(text: str) -> list:
    """Read a list; what is none, or longer than any that was recorded, gives an empty one."""
    try:
        value = ast.literal_eval(text) if len(text) <= 10_000 else []
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return value if isinstance(value, list) else []


def _shapes(value: list) -> tuple:
    if all(isinstance(part, int) and 0 <= part < _LARGEST for part in value):
        return tuple(value)
    return tuple(_shapes(part) if isinstance(part, list) else () for part in value)


@lru_cache(maxsize=4096)
def product_sizes(operator: str, shapes: str) -> tuple[int, int, int, int] | None:
    """Return batch, m, n and k of an operator that is one matrix product, else None."""
    match = _PRODUCTS.search(operator)
    if not match:
        return None
    tensors = [shape for shape in read_shapes(shapes) if len(shape) >= 2 and all(isinstance(n, int) for n in shape)]
    if match.group(1) == "baddbmm":
        tensors = tensors[1:]
    if match.group(1) == "addmm" and len(tensors) > 2:  # its first input may be a matrix
        tensors = tensors[1:]
    if len(tensors) < 2:
        return None
    left, right = tensors[:2]
    if match.group(1) == "linear":
        right = (right[1], right[0])
    if left[-1] != right[-2]:
        return None
    if len(right) == 2:
        return 1, math.prod(left[:-1]), right[-1], left[-1]
    return math.prod(left[:-2]), left[-2], right[-1], left[-1]


def _bytes(types: str, position: int, default: int) -> int:
    found = read_types(types)
    return TYPES.get(found[position], ("", default))[1] if position < len(found) else default


@lru_cache(maxsize=4096)
def read_types(text: str) -> tuple[str, ...]:
    """Read recorded types, such as ``['c10::BFloat16', 'Scalar']``, without their namespace."""
    return tuple(str(part).removeprefix("c10::") for part in _list(text))


def _inputs(shapes: str, types: str, default: int) -> list[tuple[int, int]]:
    """Return how many values each tensor has, and the bytes of one."""
    found: list[tuple[int, int]] = []
    for position, shape in enumerate(read_shapes(shapes)):
        nested = shape if shape and isinstance(shape[0], tuple) else (shape,)
        found += [(math.prod(part), _bytes(types, position, default)) for part in nested if part]
    return found


def _traffic(operator: str, shapes: str, types: str, default: int) -> tuple[int, int, int] | None:
    """Return the values of the output, and the bytes that an elementwise operator reads and writes."""
    inputs = _inputs(shapes, types, default)
    if not inputs:
        return None
    largest, width = max(inputs)
    read = sum(count * size for count, size in inputs)
    if _WRITES.search(operator):
        return inputs[0][0], 0, inputs[0][0] * inputs[0][1]
    if operator.endswith("::copy_"):
        source = inputs[1] if len(inputs) > 1 else inputs[0]
        return inputs[0][0], source[0] * source[1], inputs[0][0] * inputs[0][1]
    if operator.endswith(("::cat", "::stack")):
        total = sum(count for count, _ in inputs)
        return total, total * width, total * width
    if _PICKS.search(operator):
        if len(inputs) < 2:  # the shapes of a list of indices are not recorded
            return None
        row = 1 if operator.endswith(("::gather", "::take")) else math.prod(read_shapes(shapes)[0][1:])
        picked = inputs[-1][0] * row
        return picked, picked * inputs[0][1], picked * inputs[0][1]
    if _PUTS.search(operator):
        if len(inputs) < 2:
            return None
        put, size = max(inputs[1:])
        return put, put * size, put * inputs[0][1]
    if _REDUCTIONS.search(operator):
        return largest, read, max(largest // max(read_shapes(shapes)[0][-1:] or (1,)), 1) * width
    if not operator.startswith(("aten::", "_C")):
        # A custom operator may launch several kernels: of each only the first input is known.
        return inputs[0][0], inputs[0][0] * inputs[0][1], inputs[0][0] * inputs[0][1]
    return largest, read, largest * width


def kernels_of_shapes(rows: pd.DataFrame, default: str) -> pd.DataFrame:
    """Describe launches by their operators' shapes, for :func:`gpuledger.models.time_model.step.predict`.

    Parameters
    ----------
    rows : DataFrame
        Launches with ``kernel_class, operator, shapes, types``.
    default : str
        Number format where a type is not recorded.

    Returns
    -------
    DataFrame
        In the form of :func:`gpuledger.models.transformer.kernels`, indexed as `rows`; only the launches whose work
        follows from their shapes.
    """
    found, index = [], []
    width = next((size for name, size in TYPES.values() if name == default), 2)
    for row in rows[["kernel_class", "operator", "shapes", "types"]].itertuples():
        sizes = product_sizes(row.operator, row.shapes) if row.kernel_class in ("gemm", "gemv") else None
        if sizes and min(sizes) > 0:
            batch, m, n, k = sizes
            known = [TYPES[name] for name in read_types(row.types) if name in TYPES]
            precision, size = known[-1] if known else (default, width)
            weight, read, write = (batch * count * size for count in (n * k, m * k, m * n))
            found.append(("qkv_proj", "gemm", precision, batch, m, n, k, batch * m * n * k, weight, read, write))
        elif row.kernel_class in _ELEMENTWISE and (traffic := _traffic(row.operator, row.shapes, row.types, width)):
            launches = 1
            if row.kernel_class in _SPLIT:
                largest = max(count * size for count, size in _inputs(row.shapes, row.types, width))
                launches = indexed_launches(max(largest, traffic[2]))
            values, read, write = (amount / launches for amount in traffic)
            # A vectorised pass over all values, whatever the operator is called.
            found.append(("ffn_residual", "elementwise", default, 1, 1, max(values, 1), 1, 0, 0, read, write))
        else:
            continue
        index.append(row.Index)
    names = ["kernel", "kind", "precision", "batch", "m", "n", "k", "macs", "weight_bytes", "read_bytes", "write_bytes"]
    frame = pd.DataFrame(found, columns=names, index=pd.Index(index, dtype=np.int64))
    filled = {"shape": 0, "phase": "mixed", "stage": 0, "layers": -1, "count": 1, "devices": 1, "cache_bytes": 0}
    return frame.assign(**filled, comm_bytes=0, weight_precision=frame["precision"])
