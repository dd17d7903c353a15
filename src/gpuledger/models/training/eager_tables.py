"""Tables of the operators that ``transformers`` runs eagerly in a training step, by block.

One operation a line: ``operator: what it reads -> what it writes``, where ``5 operator`` runs five times.
A tensor is its extent and the format of its values, ``x.s``. Extents:

==============  =================================================================================================
x, 1, n         values of the residual stream (or of what a norm reads), one value for each of its rows, and one row
t, p            tokens of the pass, and positions (tokens of one sequence)
q, k, v         queries, keys, values; q/2, k/2: half of each head; o: attention's result
q1, k1, d       one value for each query's (of o, too) and key's head of a token, and a head
a, a/2, f       angles of the rotation (a head's for each position), half of them, and their frequencies
g               values of the feed-forward block
z, b            what a projection with a bias writes, and the bias
y, y2           logits, and what the softmax reads again where a row is longer than an SM's shared memory
m               values of a matrix of parameters
s               parameters of this GPU's share
==============  =================================================================================================

Formats: ``h``, 16 bits; ``w``, 32 bits; ``i``, 64-bit integers; ``s``, that of the residual stream and of the
parameters: ``w`` under autocast, else ``h``; ``r``, that of what is rotated: ``s`` if queries and keys are normalised,
else ``h``; ``v``, that of the optimizer's state. A ``cast`` between equal formats launches nothing, so that one table
is for both. ``!`` marks what autograd keeps for the backward pass. Scalars are too few to count.

``~`` marks operators that load and store values one by one: PyTorch vectorises only where all operands lie alike in
memory, not where one is broadcast, transposed or half of each row. Nor does it where their types differ, but for casts
to 16 bits (``gpu_kernel_impl`` and ``bfloat16_copy_kernel_cuda`` in its ``aten/src/ATen/native/cuda``). Sums and means
of rows as short as a head are no faster, and so are marked, too. ``column_sum`` adds up rows.

The operators and their order are those of recorded timelines: of Llama 3.2 1B (traces/nvidia-h100-training:
``transformers`` 5.17, PyTorch 2.11), and, of norms of queries and keys and of biases, of Qwen3-1.7B and Qwen2.5-1.5B
(traces/nvidia-h200-training). `LlamaRMSNorm` normalises in 32 bits; autocast caches casts of weights, not of
activations, so that every projection casts its own input; nothing is in place but sums of gradients.
"""

from typing import NamedTuple

#: A copy within the GPU's memory, which is no kernel; a change of format; a sum over rows.
MEMORY_COPY, CAST, COLUMN_SUM = "memory_copy", "cast", "column_sum"


def _norm_forward(x: str, one: str, n: str, format: str, short: str = "") -> str:
    return f"""
        cast: {x}.{format} -> {x}.w
        pow: {x}.w! -> {x}.w
        mean{short}: {x}.w -> {one}.w
        add: {one}.w -> {one}.w
        rsqrt: {one}.w -> {one}.w!
        mul~: {x}.w {one}.w -> {x}.w
        cast: {x}.w -> {x}.{format}
        mul~: {x}.{format}! {n}.s -> {x}.s
    """


def _norm_backward(x: str, one: str, n: str, format: str, short: str = "") -> str:
    """Of x · r · weight, r = rsqrt(mean(x²) + ε): of the weight; of x through r and through the mean.

    *short*: rows are heads, whose gradients are transposed.
    """
    return f"""
        mul~: {x}.s {n}.s -> {x}.s
        mul{short}: {x}.s {x}.{format} -> {x}.s
        column_sum: {x}.s -> {n}.s
        cast: {x}.s -> {x}.{format}
        cast: {x}.{format} -> {x}.w
        mul{short}: {x}.w {x}.w -> {x}.w
        mul~: {x}.w {one}.w -> {x}.w
        sum{short}: {x}.w -> {one}.w
        pow: {one}.w -> {one}.w
        mul: {one}.w -> {one}.w
        mul: {one}.w {one}.w -> {one}.w
        div~: {one}.w -> {x}.w
        memory_copy: {x}.w -> {x}.w
        mul: {x}.w -> {x}.w
        mul: {x}.w {x}.w -> {x}.w
        add_{short}: {x}.w {x}.w -> {x}.w
        cast: {x}.w -> {x}.{format}
    """


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
    "norm": _norm_forward("x", "1", "n", "s"),
    # Of each head of queries and keys, which projections make in 16 bits.
    "head_norms": _norm_forward("q", "q1", "d", "h", "~") + _norm_forward("k", "k1", "d", "h", "~"),
    "layer_norm": "native_layer_norm: x.s! -> x.s 1.w! 1.w!",
    # Of a projection that reads the stream.
    "input": "cast: x.s -> x.h",
    # x · cos + cat(−second half, first half) · sin; attention reads 16 bits.
    "rope": """
        mul~: q.r a.s -> q.s
        neg~: q/2.r -> q/2.r
        cat~: q/2.r q/2.r -> q.r
        mul~: q.r a.s -> q.s
        add~: q.s q.s -> q.s
        mul~: k.r a.s -> k.s
        neg~: k/2.r -> k/2.r
        cat~: k/2.r k/2.r -> k.r
        mul~: k.r a.s -> k.s
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
    "bias": "cast: b.s -> b.h",
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
    "norm": _norm_backward("x", "1", "n", "s"),
    "head_norms": _norm_backward("k", "k1", "d", "h", "~") + _norm_backward("q", "q1", "d", "h", "~"),
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
        2 cast: {x}.s -> {x}.r
        neg~: {x}/2.r -> {x}/2.r
        2 fill_: -> {x}.r
        2 copy_~: {x}/2.r -> {x}/2.r
        add_: {x}.r {x}.r -> {x}.r
        add_~: {x}.r {x}.r -> {x}.r
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
    "bias": """
        column_sum: z.h -> b.h
        cast: b.h -> b.s
    """,
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
_ATTENTION = "attention: q.h! k.h! v.h! -> o.h! q1.w!"


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
