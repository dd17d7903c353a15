"""Kernels of layers that keep a state: the gated delta rule and the scan of Mamba-2.

Their time is taken to be that of their traffic, a lower bound for long prompts.
"""

from gpuledger.models.transformer.attention_rows import split
from gpuledger.models.transformer.recurrent_blocks import DeltaAttention, StateSpace
from gpuledger.models.transformer.rows import Rows

#: Tokens of a chunk, within which several new tokens are a product of matrices (FLA, vLLM, SGLang; Mamba-2).
_DELTA_CHUNK, _SCAN_CHUNK = 64, 128


def add_delta(rows: Rows, attention: DeltaAttention, by_kernel: dict[str, list]) -> None:
    """Add the gated delta rule."""
    tensor = rows.parallel.tensor
    for kernel in ("delta_in_proj", "delta_gates_proj", "delta_decay_proj", "delta_gate_proj"):
        if kernel in by_kernel:
            rows.gemms(by_kernel[kernel], rows.work.tokens)
    mixed, heads = attention.mixed // tensor, attention.value_heads // tensor
    key_dim, value_dim = attention.key_dim, attention.value_dim
    _convolution(rows, "delta_conv", mixed, attention.conv, attention.conv)
    width = heads * value_dim
    matrix = width * key_dim
    _recurrence(
        rows,
        "delta_rule",
        inputs=mixed + heads + attention.decay_width // tensor,
        width=width,
        matrix=matrix,
        state=matrix * attention.state_bits // 8,
        chunk=_DELTA_CHUNK,
        macs=3 * matrix,
        chunk_macs=heads * (3 * key_dim + 2 * value_dim),
    )
    rows.per_token("delta_norm", width, 2 * width, width, "out_proj")


def add_state_space(rows: Rows, attention: StateSpace, by_kernel: dict[str, list]) -> None:
    """Add a Mamba-2 scan."""
    tensor = rows.parallel.tensor
    rows.gemms(by_kernel["ssm_in_proj"], rows.work.tokens)
    heads, groups = attention.heads // tensor, max(attention.groups // tensor, 1)
    width = heads * attention.head_dim
    mixed = width + 2 * groups * attention.state
    _convolution(rows, "ssm_conv", mixed, attention.conv, attention.conv + attention.conv_bias)
    matrix = width * attention.state
    _recurrence(
        rows,
        "ssm_scan",
        inputs=mixed + heads,
        width=width,
        matrix=matrix,
        state=matrix * attention.state_bits // 8,
        chunk=_SCAN_CHUNK,
        macs=2 * matrix,
        chunk_macs=groups * attention.state + width,
    )
    rows.per_token("ssm_norm", width, 2 * width, width, "out_proj")


def _convolution(rows: Rows, kernel: str, width: int, span: int, weights: int) -> None:
    """Add a causal convolution over *span* tokens of *width* channels with *weights* parameters each."""
    tokens, value = rows.work.tokens, rows.value_bytes
    last = rows.work.total(rows.work.requests) * (width * (span - 1) * value)  # the tokens before, kept for it
    stream = tokens * (width * value)
    rows.elementwise(kernel, tokens, width, stream + last, stream + last, weight=rows.plain_bytes(width * weights))


def _recurrence(
    rows: Rows, kernel: str, inputs: int, width: int, matrix: int, state: int, chunk: int, macs: int, chunk_macs: int
) -> None:
    """Add the update of a state of *matrix* values, *state* bytes, by tokens of *inputs* values.

    A token takes *macs* multiply-accumulates, and *chunk_macs* times the length of a chunk if there are several.
    """
    work, value = rows.work, rows.value_bytes
    for decoding, own in split(rows).items():
        if not own.any():
            continue
        new, kept = work.total(own * work.new_tokens), work.total(own) * state
        # Every chunk's state is written once and read once.
        chunks = 0 if decoding else work.total(own * -(-work.new_tokens // chunk)) * (matrix * value)
        rows.elementwise(
            ("decode_" if decoding else "") + kernel,
            new,
            width,
            new * (inputs * value) + kept + chunks,
            new * (width * value) + kept + chunks,
            macs=rows.product(new, macs + (0 if decoding else chunk * chunk_macs)),
        )
