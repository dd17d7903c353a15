"""The operators of a training step as Hugging Face's ``transformers`` runs it eagerly: each is a kernel of its own.

They stand in :mod:`gpuledger.models.training.eager_tables`; here they get the sizes of a run. Whose law is whose:

* Operators that load *by value* (marked there, or of operands that differ in type) have that law, with operands that
  are both, and where halves are joined, the slow one.
* An operator over more bytes than an index of 32 bits reaches is split into launches of equal parts.
* A launch over *lists* takes 320 blocks of 65,536 values.
* The *column sum* of n values a row: blocks of 4 rows and of 128 columns, or of as many as there are, each block with
  16 rows or more of a thread, until the GPU is full. The last block adds up what all have found, four of them at a
  time, in turn (PyTorch's ``Reduce.cuh``).
"""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, isnan

from gpuledger.models.training.eager_tables import (
    ATTENTION,
    BACKWARD,
    CAST,
    COLUMN_SUM,
    FORWARD,
    MEMORY_COPY,
    SUM,
    UPDATE,
    Operand,
    Operation,
)
from gpuledger.models.training.run import VALUE, TrainingRun
from gpuledger.models.transformer.model import Layers
from gpuledger.readers.gpus import Gpu

#: Bytes that an elementwise operator's index reaches in one launch; with more it is halved (PyTorch's TensorIterator).
INDEXED_BYTES = 2**31 - 1
#: Values of a block over lists of tensors, and blocks of a launch (PyTorch's ``MultiTensorApply.cuh``).
LISTED_VALUES, LISTED_BLOCKS = 65536, 320
#: Of a column sum: threads of a block and of an SM, columns of a thread, and its rows at least.
_THREADS, _SM_THREADS, _COLUMNS, _ROWS = 128, 2048, 4, 16
#: Operators that are not split, whatever their size.
_WHOLE = frozenset({"log_softmax_forward", "log_softmax_gradient", "nll_loss", "nll_loss_gradient", MEMORY_COPY})
#: Operators whose operands may differ in type, and bytes of a value by format; others are of the residual stream's.
_TYPED, _VALUE_BYTES = (CAST, "add"), {"h": VALUE, "w": 4, "i": 8}

#: Of operators that the model of a serving engine has as one kernel.
_BLOCKS = {
    **dict.fromkeys(("attn_norm", "ffn_norm", "final_norm"), "norm"),
    **dict.fromkeys(("attn_residual", "ffn_residual"), "residual"),
    # Projections that read the residual stream.
    **dict.fromkeys(("qkv_proj", "q_proj", "k_proj", "v_proj", "gate_up_proj", "gate_proj", "up_proj"), "input"),
    **{"embedding": "embedding", "rope": "rope", "ffn_act": "activation", "lm_head": "input"},
    "qk_norm": "head_norms",
}
#: Those of them that share their input with one before.
_SHARING = ("k_proj", "v_proj", "up_proj")
#: What is not computed again: after the last operator of a layer that keeps something, recomputation stops.
NOT_AGAIN = ("down_proj", "ffn_residual")


def forward(run: TrainingRun, kernel: str, group: Layers | None) -> list[dict]:
    """Return the operators in place of, or before, a kernel of a serving engine's forward pass; none: it is as there.

    Parameters
    ----------
    kernel : str
        As :func:`gpuledger.models.transformer.kernels` names it.
    group : Layers, optional
        None outside layers.

    Returns
    -------
    list of dict
        Rows of :func:`gpuledger.models.training.kernels.training_kernels`, with ``count`` for one layer and pass.
    """
    blocks = [_block(run, kernel, group)]
    if run.eager and kernel == "embedding":
        blocks += ["positions", *(["angles"] if _rotary_dim(run) else [])]
    sizes = _extents(run, group)
    return [row for block in blocks for row in _rows(FORWARD.get(block, ()), sizes, run, group=group)]


def backward(run: TrainingRun, kernel: str, group: Layers | None) -> list[dict]:
    """Return the operators in place of, or after, the backward pass of a kernel (see :func:`forward`)."""
    operations = BACKWARD.get(_block(run, kernel, group), ())
    if run.eager and kernel in _SHARING and (kernel != "up_proj" or group.ffn.gated):
        operations += SUM["input"]
    return list(_rows(operations, _extents(run, group), run, group=group))


def replaces(run: TrainingRun, kernel: str, group: Layers | None) -> bool:
    """Return whether operators stand in place of a kernel that is no matrix product."""
    return bool(_block(run, kernel, group))


def loss(run: TrainingRun) -> Iterator[tuple[str, dict]]:
    """Yield the part of the step and the row of each operator of the loss."""
    sizes = _extents(run, None)
    for part, table in (("forward", FORWARD), ("backward", BACKWARD)):
        yield from ((part, row) for row in _rows(table["labels"], sizes, run))
        yield from ((part, row) for row in _rows(table["loss"], sizes, run, "loss"))


def weights(run: TrainingRun, size: int) -> Iterator[tuple[str, dict]]:
    """Yield the casts of a matrix of `size` parameters, and of its gradient."""
    for part, table in (("forward", FORWARD), ("backward", BACKWARD)):
        yield from ((part, row) for row in _rows(table["weights"], {"m": size}, run, "weights"))


def table_gradient(run: TrainingRun) -> Iterator[dict]:
    """Yield what makes the gradient of the embedding, and adds that of the LM head where it is the same matrix."""
    operations = BACKWARD["table"] + (SUM["weights"] if run.model.tied else ())
    yield from _rows(operations, {"m": run.model.vocab * run.model.hidden}, run, "weights")


def update(run: TrainingRun) -> Iterator[dict]:
    """Yield the operators of clipping and of AdamW, in any implementation."""
    return _rows(UPDATE, {"s": ceil(run.model.parameters / run.gpus)}, run, "update")


def bias(run: TrainingRun, m: int, n: int) -> Iterator[tuple[str, dict]]:
    """Yield the casts of a bias of `n` values that `m` tokens get, and its gradient."""
    for part, table in (("forward", FORWARD), ("backward", BACKWARD)):
        yield from ((part, row) for row in _rows(table["bias"], {"z": m * n, "b": n}, run))


def kept_bytes(run: TrainingRun, group: Layers) -> int:
    """Return what a layer keeps for its backward pass, if nothing is computed again."""
    sizes, attention, ffn = _extents(run, group), group.attention, group.ffn
    norm = _kept(FORWARD[_block(run, "attn_norm", group)], sizes, run)
    readers = (1 if attention.stored_fused else 3) + (2 if ffn.gated and not ffn.stored_fused else 1)
    # Each projection keeps its own cast of its input, or all of them the same.
    inputs = sizes["x"] * VALUE * (readers if run.wide else 2)
    blocks = (FORWARD[name] for kernel in ("qk_norm", "ffn_act") if (name := _block(run, kernel, group)))
    kept = (_kept(operations, sizes, run) for operations in (ATTENTION, *blocks))
    return group.norms * norm + inputs + sum(kept)


def outer_kept_bytes(run: TrainingRun) -> int:
    """Return what the last norm and the LM head keep for the backward pass."""
    sizes = _extents(run, None)
    return _kept(FORWARD[_block(run, "final_norm", None)], sizes, run) + sizes["x"] * VALUE


def _block(run: TrainingRun, kernel: str, group: Layers | None) -> str:
    block = _BLOCKS.get(kernel, "") if run.eager else ""
    if block == "norm" and run.model.norm_bias:
        return "layer_norm"
    if block == "head_norms" and not _normalised(group):
        return ""
    return "ungated" if block == "activation" and not group.ffn.gated else block


def _normalised(group: Layers | None) -> bool:
    """Return whether each head of queries and keys is normalised."""
    return group is not None and group.attention.qk_norm == "head"


def _rotary_dim(run: TrainingRun) -> int:
    return max(group.attention.rotary_dim for group in run.model.layers)


def _extents(run: TrainingRun, group: Layers | None) -> dict[str, int]:
    """Return the values of each extent, of one layer of `group`."""
    tokens, logits, angles = run.tokens, run.tokens * run.model.vocab, run.sequence * _rotary_dim(run)
    shared = 0.0 if isnan(run.gpu.shared_memory_bytes_per_sm) else run.gpu.shared_memory_bytes_per_sm
    sizes = {"x": tokens * run.model.hidden, "1": tokens, "t": tokens, "p": run.sequence, "y": logits}
    sizes |= {"y2": logits if 4 * run.model.vocab > shared else 0, "a": angles, "a/2": angles // 2}
    sizes |= {"f": _rotary_dim(run) // 2, "n": run.model.hidden}
    if group:
        attention = group.attention
        heads, keys = tokens * attention.heads, tokens * attention.kv_heads
        sizes |= {"q": heads * attention.head_dim, "k": keys * attention.head_dim, "v": keys * attention.value_dim}
        sizes |= {"q/2": sizes["q"] // 2, "k/2": sizes["k"] // 2, "o": heads * attention.value_dim}
        sizes |= {"q1": heads, "k1": keys, "d": attention.head_dim}
        sizes["g"] = tokens * group.ffn.width
    return sizes


def _bytes(operand: Operand, sizes: Mapping[str, int], value_bytes: Mapping[str, int]) -> int:
    return sizes[operand.extent] * value_bytes[operand.format]


def _value_bytes(run: TrainingRun, group: Layers | None) -> dict[str, int]:
    rotated = run.stream_bytes if _normalised(group) else VALUE
    return _VALUE_BYTES | {"s": run.stream_bytes, "r": rotated, "v": run.state_value_bytes}


def _rows(
    operations: Iterable[Operation],
    sizes: Mapping[str, int],
    run: TrainingRun,
    purpose: str = "elementwise",
    group: Layers | None = None,
) -> Iterator[dict]:
    value_bytes = _value_bytes(run, group)
    for operation in operations:
        read, write = ([_bytes(one, sizes, value_bytes) for one in side] for side in (operation.read, operation.write))
        operands = (*operation.read, *operation.write)
        values = max((sizes[operand.extent] for operand in operands), default=1)
        if operation.operator == CAST and read[0] == write[0]:
            continue
        if purpose == "update":
            launches = ceil(values / (LISTED_VALUES * LISTED_BLOCKS))
        else:
            launches = 1 if operation.operator in _WHOLE else indexed_launches(max([*read, *write], default=0))
        mixed = len({value_bytes[operand.format] for operand in operands}) > 1
        law, m, n = _law(operation, mixed, read > write), values / launches, 1.0
        if purpose == "update":
            law, n = "list" if write else "list_read", min(LISTED_VALUES, m)
            m /= n
        elif operation.operator == COLUMN_SUM:
            columns = sizes[operation.write[0].extent]
            law, m, n = "in_turn", columns, _steps(values / columns, columns, run.gpu)
        yield {
            **{"kernel": operation.operator, "kind": "elementwise", "purpose": purpose, "m": m, "n": n, "k": 1},
            **{"read_bytes": sum(read) / launches, "write_bytes": sum(write) / launches},
            "count": operation.count * launches,
            "law": law,
        }


def indexed_launches(largest_bytes: float) -> int:
    """Return the launches of an elementwise operator whose largest operand has so many bytes."""
    launches = 1
    while launches * INDEXED_BYTES < largest_bytes:
        launches *= 2
    return launches


def _law(operation: Operation, mixed: bool, narrowed: bool) -> str:
    """Return the law of :data:`gpuledger.models.time_model.operators.LAWS`; empty: a kernel that is vectorised."""
    if operation.by_value:
        return "by_value_slowly" if mixed or operation.operator == "cat" else "by_value"
    converted = operation.operator in _TYPED and mixed and not (operation.operator == CAST and narrowed)
    return "by_value" if converted else ""


def _steps(rows: float, columns: int, gpu: Gpu) -> int:
    """Return the steps that a column sum takes in turn."""
    across = min(32, ceil(columns / _COLUMNS))
    down = _THREADS // across
    full = ceil(gpu.sms * _SM_THREADS / _THREADS / ceil(columns / _COLUMNS / across))
    blocks = min(ceil(rows / down / _ROWS), full)
    return ceil(blocks / down) + ceil(rows / down / blocks / _COLUMNS)


def _kept(operations: Iterable[Operation], sizes: Mapping[str, int], run: TrainingRun) -> int:
    operands = (operand for operation in operations for operand in (*operation.read, *operation.write))
    value_bytes = _value_bytes(run, None)
    return sum(_bytes(operand, sizes, value_bytes) for operand in operands if operand.kept)
