"""The operators of a training step as Hugging Face's ``transformers`` runs it eagerly: each is a kernel of its own.

Tables of operations, one a line: ``operator: what it reads -> what it writes``, where ``5 operator`` runs five times.
A tensor is its extent and the format of its values, ``x.s``. Extents:

==========  =====================================================================================================
x, 1, n     values of the residual stream (or of what a norm reads), one value for each of its rows, and one row
t, p        tokens of the pass, and positions (tokens of one sequence)
q, k, v     queries, keys, values; q/2, k/2: half of each head; o, l: attention's result, one value a query head
a, a/2, f   angles of the rotation (a head's for each position), half of them, and their frequencies
g           values of the feed-forward block
y, y2       logits, and what the softmax reads again where a row is longer than an SM's shared memory
m           values of a matrix of parameters
s           parameters of this GPU's share
==========  =====================================================================================================

Formats: ``h``, 16 bits; ``w``, 32 bits; ``i``, 64-bit integers; ``s``, that of the residual stream and of the
parameters: ``w`` under autocast, else ``h``; ``v``, that of the optimizer's state. A ``cast`` between equal formats
launches nothing, so that one table is for both. ``!`` marks what autograd keeps for the backward pass. Scalars are too
few to count.

``~`` marks operators that load and store values one by one: PyTorch vectorises only where all operands lie alike in
memory, not where one is broadcast, transposed or half of each row. Nor does it where their types differ, but for casts
to 16 bits (``gpu_kernel_impl`` and ``bfloat16_copy_kernel_cuda`` in its ``aten/src/ATen/native/cuda``).

The operators and their order are those of the recorded timelines of Llama 3.2 1B (traces/nvidia-h100-training:
``transformers`` 5.17, PyTorch 2.11). `LlamaRMSNorm` normalises in 32 bits; autocast caches casts of weights, not of
activations, so that every projection casts its own input; nothing is in place but sums of gradients.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, isnan
from typing import NamedTuple

from gpuledger.models.training.run import VALUE, TrainingRun
from gpuledger.models.transformer.model import Layers

#: A copy within the GPU's memory, which is no kernel.
MEMORY_COPY = "memory_copy"
#: Bytes that an elementwise operator's index reaches in one launch; with more it is halved (PyTorch's TensorIterator).
INDEXED_BYTES = 2**31 - 1
#: Values that an operator over a list of tensors takes in one launch: 320 blocks of 65,536 (PyTorch's
#: ``MultiTensorApply.cuh``).
LISTED_VALUES = 320 * 65536
#: Operators that are not split, whatever their size.
_WHOLE = frozenset({"log_softmax_forward", "log_softmax_gradient", "nll_loss", "nll_loss_gradient", MEMORY_COPY})
_CAST = "cast"
#: Operators whose operands may differ in type, and bytes of a value by format; others are of the residual stream's.
_TYPED, _VALUE_BYTES = (_CAST, "add"), {"h": VALUE, "w": 4, "i": 8}

_FORWARD = {
    "embedding": """
        gather: t.i x.s -> x.s
    """,
    # Positions from scratch, and whether they begin again within a sequence: it may be several that were packed.
    "positions": """
        arange: -> p.i
        add: p.i -> p.i
        sub: p.i -> p.i
        cat: t.i -> t.i
        sub: t.i t.i -> t.i
        ne: t.i -> t.i
        copy_: t.i -> t.i
        cumsum: t.i -> t.i
        eq: 1.i -> 1.i
        all: 1.i -> 1.i
    """,
    # The product of frequencies and positions is a GEMM of one column. Cosine, sine, and their scales.
    "angles": """
        cast: f.s -> f.w
        copy_: p.i -> p.w
        bmm: f.w p.w -> a/2.w
        cat: a/2.w a/2.w -> a.w
        cos: a.w -> a.w
        mul: a.w -> a.w
        sin: a.w -> a.w
        mul: a.w -> a.w
        2 cast: a.w -> a.s
    """,
    "norm": """
        cast: x.s -> x.w
        pow: x.w! -> x.w
        mean: x.w -> 1.w
        add: 1.w -> 1.w
        rsqrt: 1.w -> 1.w!
        mul~: x.w 1.w -> x.w
        cast: x.w -> x.s
        mul~: x.s! n.s -> x.s
    """,
    "layer_norm": "native_layer_norm: x.s! -> x.s 1.w! 1.w!",
    # Of a projection that reads the stream.
    "input": "cast: x.s -> x.h",
    # x · cos + cat(−second half, first half) · sin; attention reads 16 bits.
    "rope": """
        mul~: q.h a.s -> q.s
        neg~: q/2.h -> q/2.h
        cat~: q/2.h q/2.h -> q.h
        mul~: q.h a.s -> q.s
        add~: q.s q.s -> q.s
        mul~: k.h a.s -> k.s
        neg~: k/2.h -> k/2.h
        cat~: k/2.h k/2.h -> k.h
        mul~: k.h a.s -> k.s
        add~: k.s k.s -> k.s
        cast: k.s -> k.h
        cast: q.s -> q.h
    """,
    "residual": "add: x.s x.h -> x.s",
    "activation": """
        silu: g.h! -> g.h!
        mul: g.h g.h! -> g.h!
    """,
    # Without a gate: taken for one operator, as `torch.nn.GELU` is.
    "ungated": "gelu: g.h! -> g.h!",
    # Labels are shifted by one in a padded copy.
    "labels": """
        fill_: -> t.i
        copy_: t.i -> t.i
        copy_: t.i -> t.i
    """,
    # The softmax reads a row for its maximum, for its sum, and to write it. A block has a row, and rows of as many
    # logits as these kernels cannot hold are together larger than L2: they are read again from memory.
    "loss": """
        cast: y.h -> y.w
        log_softmax_forward: y.w y2.w y2.w -> y.w!
        nll_loss: t.w t.i ->
    """,
    "weights": "cast: m.s -> m.h",
}

_BACKWARD = {
    # Tokens are sorted (a histogram, its sums, and eight passes over keys of 64 bits), counted and added up in 32 bits.
    "embedding": """
        arange: -> t.i
        histogram: t.i ->
        scan: ->
        8 radix_sort: t.i t.i -> t.i t.i
        7 segments: t.i -> t.i
        partial_sums: x.s t.i -> x.w
        sums: x.w -> x.s
    """,
    # Of x · r · weight, r = rsqrt(mean(x²) + ε): of the weight; of x through r and through the mean.
    "norm": """
        mul~: x.s n.s -> x.s
        mul: x.s x.s -> x.s
        sum: x.s ->
        cast: x.s -> x.w
        mul: x.w x.w -> x.w
        mul~: x.w 1.w -> x.w
        sum: x.w -> 1.w
        pow: 1.w -> 1.w
        mul: 1.w -> 1.w
        mul: 1.w 1.w -> 1.w
        div~: 1.w -> x.w
        memory_copy: x.w -> x.w
        mul: x.w -> x.w
        mul: x.w x.w -> x.w
        add_: x.w x.w -> x.w
        cast: x.w -> x.s
    """,
    # Of the input; of weights and biases.
    "layer_norm": """
        native_layer_norm_backward: x.s x.s -> x.s
        native_layer_norm_weights: x.s x.s ->
    """,
    "input": "cast: x.h -> x.s",
    # Each half goes into zeros of the whole. Queries and keys are transposed for the GEMMs.
    "rope": "\n".join(
        f"""
        cast: {x}.h -> {x}.s
        2 mul~: {x}.s a.s -> {x}.s
        2 cast: {x}.s -> {x}.h
        neg~: {x}/2.h -> {x}/2.h
        2 fill_: -> {x}.h
        2 copy_~: {x}/2.h -> {x}/2.h
        add_: {x}.h {x}.h -> {x}.h
        add_~: {x}.h {x}.h -> {x}.h
        copy_~: {x}.h -> {x}.h
        """
        for x in "kq"
    ),
    # The block's gradient, rounded, and where the stream forks, the sum of both gradients.
    "residual": """
        cast: x.s -> x.h
        add_: x.s x.s -> x.s
    """,
    "activation": """
        2 mul: g.h g.h -> g.h
        silu_backward: g.h g.h -> g.h
    """,
    "ungated": "gelu_backward: g.h g.h -> g.h",
    "labels": "fill_: ->",
    "loss": """
        fill_: -> y.w
        nll_loss_gradient: t.i -> t.w
        log_softmax_gradient: y.w y2.w y.w -> y.w
        cast: y.w -> y.h
    """,
    "weights": "cast: m.h -> m.s",
    # A matrix that is looked up has gradients of zero in its other rows.
    "table": "fill_: -> m.s",
}

#: Clipping, and AdamW without a fused kernel: over lists of all tensors.
_UPDATE = """
    _foreach_norm: s.v ->
    2 _foreach_mul_: s.v -> s.v
    _foreach_lerp_: s.v s.v -> s.v
    _foreach_mul_: s.v -> s.v
    _foreach_addcmul_: s.v s.v -> s.v
    _foreach_sqrt: s.v -> s.v
    _foreach_div_: s.v -> s.v
    _foreach_add_: s.v -> s.v
    _foreach_addcdiv_: s.v s.v s.v -> s.v
"""

#: The gradients of what several projections read, and of a matrix that is used twice, are added up.
_SUM = {"input": "add_: x.s x.s -> x.s", "weights": "add_: m.s m.s -> m.s"}
#: What attention keeps: its inputs, its result, and the logarithm of each row's sum.
_ATTENTION = "attention: q.h! k.h! v.h! -> o.h! l.w!"
#: Of operators that the model of a serving engine has as one kernel.
_BLOCKS = {
    **dict.fromkeys(("attn_norm", "ffn_norm", "final_norm"), "norm"),
    **dict.fromkeys(("attn_residual", "ffn_residual"), "residual"),
    # Projections that read the residual stream.
    **dict.fromkeys(("qkv_proj", "q_proj", "k_proj", "v_proj", "gate_up_proj", "gate_proj", "up_proj"), "input"),
    **{"embedding": "embedding", "rope": "rope", "ffn_act": "activation", "lm_head": "input"},
}
#: Those of them that share their input with one before.
_SHARING = ("k_proj", "v_proj", "up_proj")
#: What is not computed again: after the last operator of a layer that keeps something, recomputation stops.
NOT_AGAIN = ("down_proj", "ffn_residual")


class Operand(NamedTuple):
    extent: str
    format: str
    kept: bool


class Operation(NamedTuple):
    operator: str
    by_value: bool
    count: int
    read: tuple[Operand, ...]
    write: tuple[Operand, ...]


def _operands(text: str) -> tuple[Operand, ...]:
    marks = (part.endswith("!") for part in text.split())
    parts = (part.removesuffix("!").split(".") for part in text.split())
    return tuple(Operand(*names, kept) for names, kept in zip(parts, marks, strict=True))


def _operations(text: str) -> tuple[Operation, ...]:
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, operands = line.split(":")
        *count, operator = name.split()
        read, write = map(_operands, operands.split("->"))
        by_value = operator.endswith("~")
        found.append(Operation(operator.removesuffix("~"), by_value, int(count[0]) if count else 1, read, write))
    return tuple(found)


FORWARD, BACKWARD, SUM = (
    {name: _operations(text) for name, text in table.items()} for table in (_FORWARD, _BACKWARD, _SUM)
)
ATTENTION, UPDATE = _operations(_ATTENTION), _operations(_UPDATE)


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
    return [row for block in blocks for row in _rows(FORWARD.get(block, ()), _extents(run, group), run)]


def backward(run: TrainingRun, kernel: str, group: Layers | None) -> list[dict]:
    """Return the operators in place of, or after, the backward pass of a kernel (see :func:`forward`)."""
    operations = BACKWARD.get(_block(run, kernel, group), ())
    if run.eager and kernel in _SHARING and (kernel != "up_proj" or group.ffn.gated):
        operations += SUM["input"]
    return list(_rows(operations, _extents(run, group), run))


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


def kept_bytes(run: TrainingRun, group: Layers) -> int:
    """Return what a layer keeps for its backward pass, if nothing is computed again."""
    sizes, attention, ffn = _extents(run, group), group.attention, group.ffn
    norm = _kept(FORWARD[_block(run, "attn_norm", group)], sizes, run)
    readers = (1 if attention.stored_fused else 3) + (2 if ffn.gated and not ffn.stored_fused else 1)
    # Each projection keeps its own cast of its input, or all of them the same.
    inputs = sizes["x"] * VALUE * (readers if run.wide else 2)
    block = _kept(FORWARD[_block(run, "ffn_act", group)], sizes, run)
    return group.norms * norm + inputs + _kept(ATTENTION, sizes, run) + block


def outer_kept_bytes(run: TrainingRun) -> int:
    """Return what the last norm and the LM head keep for the backward pass."""
    sizes = _extents(run, None)
    return _kept(FORWARD[_block(run, "final_norm", None)], sizes, run) + sizes["x"] * VALUE


def _block(run: TrainingRun, kernel: str, group: Layers | None) -> str:
    block = _BLOCKS.get(kernel, "") if run.eager else ""
    if block == "norm" and run.model.norm_bias:
        return "layer_norm"
    return "ungated" if block == "activation" and not group.ffn.gated else block


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
        sizes |= {"q/2": sizes["q"] // 2, "k/2": sizes["k"] // 2, "o": heads * attention.value_dim, "l": heads}
        sizes["g"] = tokens * group.ffn.width
    return sizes


def _bytes(operand: Operand, sizes: Mapping[str, int], run: TrainingRun) -> int:
    return sizes[operand.extent] * _value_bytes(operand, run)


def _value_bytes(operand: Operand, run: TrainingRun) -> int:
    own = {"s": run.stream_bytes, "v": run.state_value_bytes}
    return (_VALUE_BYTES | own)[operand.format]


def _rows(
    operations: Iterable[Operation], sizes: Mapping[str, int], run: TrainingRun, purpose: str = "elementwise"
) -> Iterator[dict]:
    for operation in operations:
        read, write = ([_bytes(operand, sizes, run) for operand in side] for side in (operation.read, operation.write))
        values = max((sizes[operand.extent] for operand in (*operation.read, *operation.write)), default=1)
        if operation.operator == _CAST and read[0] == write[0]:
            continue
        launches = 1
        if purpose == "update":
            launches = ceil(values / LISTED_VALUES)
        while launches * INDEXED_BYTES < max([*read, *write], default=0) and operation.operator not in _WHOLE:
            launches *= 2
        widths = {_value_bytes(operand, run) for operand in (*operation.read, *operation.write)}
        narrowed = operation.operator == _CAST and read[0] > write[0]
        by_value = operation.by_value or (operation.operator in _TYPED and len(widths) > 1 and not narrowed)
        yield {
            **{"kernel": operation.operator, "kind": "elementwise", "purpose": purpose, "m": values, "n": 1, "k": 1},
            **{"read_bytes": sum(read) / launches, "write_bytes": sum(write) / launches},
            "count": operation.count * launches,
            "accesses": (len(read) + len(write)) * by_value,
        }


def _kept(operations: Iterable[Operation], sizes: Mapping[str, int], run: TrainingRun) -> int:
    operands = (operand for operation in operations for operand in (*operation.read, *operation.write))
    return sum(_bytes(operand, sizes, run) for operand in operands if operand.kept)
