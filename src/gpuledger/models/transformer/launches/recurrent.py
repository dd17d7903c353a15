"""Kernels of layers with a state: the gated delta rule, lightning attention, the scan of Mamba-2, LFM2's convolution.

Requests with one new token, or with a few behind a longer context, are decoding: their states are updated token by
token, and written after each of them, so that drafts can be rejected. The time of a scan is taken to be that of its
traffic, or of its products at the peak, a lower bound for long prompts.
"""

from gpuledger.models.transformer.blocks.recurrent import (
    DeltaAttention,
    LightningAttention,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from gpuledger.models.transformer.launches.attention_rows import add_gate, few, split
from gpuledger.models.transformer.launches.rows import KernelList, Number

#: Tokens of a chunk, within which several new tokens are a product of matrices (FLA, vLLM, SGLang; Mamba-2).
_DELTA_CHUNK, _SCAN_CHUNK = 64, 128
#: The same of lightning attention, and the keys of its chunk that a token is multiplied with in the mean, because tiles
#: of 32 tokens leave out those behind them (vLLM's lightning_attn.py).
_LIGHTNING_CHUNK, _LIGHTNING_KEYS = 256, 144


def add_delta(rows: KernelList, attention: DeltaAttention, by_kernel: dict[str, list]) -> None:
    """Add the gated delta rule."""
    tensor = rows.parallel.tensor
    for kernel in ("delta_in_proj", "delta_gates_proj", "delta_decay_proj", "delta_gate_proj"):
        if kernel in by_kernel:
            rows.gemms(by_kernel[kernel], rows.work.tokens)
    mixed, heads = attention.mixed // tensor, attention.value_heads // tensor
    key_dim, value_dim = attention.key_dim, attention.value_dim
    width, decays = heads * value_dim, attention.decay_width // tensor
    add_convolution(rows, "delta_conv", mixed, attention.conv, attention.conv, heads, decays)
    matrix = width * key_dim
    _recurrence(
        rows,
        "delta_rule",
        inputs=mixed + heads + decays,
        width=width,
        matrix=matrix,
        state=matrix * attention.state_bits // 8,
        chunk=_DELTA_CHUNK,
        macs=3 * matrix,
        chunk_macs=_DELTA_CHUNK * heads * (3 * key_dim + 2 * value_dim),
        sizes={
            "k": key_dim,
            "heads": heads,
            "kv_heads": attention.key_heads // tensor,
            "value_dim": value_dim,
            "choices": decays,
        },
    )
    rows.per_token("delta_norm", width, 2 * width, width, "out_proj")


def add_lightning(rows: KernelList, attention: LightningAttention, by_kernel: dict[str, list]) -> None:
    """Add lightning attention as vLLM launches it: in 32 bits from the activation to the gate.

    The four launches of a prompt are one row: products within chunks, chunks' own states, states handed on, and what
    they add to the output. More than one new token is a prompt.
    """
    work, tokens, value, full = rows.work, rows.work.tokens, rows.value_bytes, 4
    width = attention.heads // rows.parallel.tensor * attention.head_dim
    matrix = width * attention.head_dim
    rows.gemms(by_kernel["qkv_proj"], tokens)
    rows.elementwise("ssm_act", tokens, 3 * width, tokens * (3 * width * value), tokens * (3 * width * full))
    if attention.qk_norm:
        moved, weight = tokens * (2 * width * full), rows.plain_bytes(2 * attention.head_dim)
        heads = 2 * width // attention.head_dim
        rows.elementwise("qk_norm", tokens * heads, attention.head_dim, moved, moved, weight=weight)
    if attention.rotary_dim:
        turned = 2 * width // attention.head_dim * attention.rotary_dim
        read = tokens * ((turned + attention.rotary_dim) * full)
        rows.elementwise("rope", tokens, turned, read, tokens * (turned * full))
    for decoding, own in split(rows).items():
        if not own.any():
            continue
        requests, new = work.total(own), work.total(own * work.new_tokens)
        chunks = 0 if decoding else work.total(own * -(-work.new_tokens // _LIGHTNING_CHUNK)) * (2 * matrix * full)
        states = requests * (matrix * attention.state_bits // 8)
        # Queries, keys and values; of prompts, keys and values once more, and queries and the sum so far.
        read, written, products = (3, 1, 0) if decoding else (7, 2, 2 * _LIGHTNING_KEYS * width)
        rows.elementwise(
            ("decode_" if decoding else "") + "ssm_scan",
            new,
            width,
            new * (read * width * full) + states + chunks,
            new * (written * width * full) + states + chunks,
            macs=rows.product(new, 2 * matrix + products),
        )
    # The norm is over the heads of all devices: its sum of squares is one number of 32 bits per token.
    if not attention.grouped_norm:
        rows.all_reduce(full // value)
    moved = tokens * (width * full)
    rows.elementwise("ssm_norm", tokens, width, moved, moved, weight=rows.plain_bytes(width))
    rows.gemms(by_kernel["attn_gate_proj"], tokens)
    written = tokens * (width * rows.operand_bytes("out_proj"))
    rows.elementwise("attn_gate", tokens, width, tokens * (width * (value + full)), written)


def add_state_space(rows: KernelList, attention: StateSpace, by_kernel: dict[str, list]) -> None:
    """Add a Mamba-2 scan."""
    tensor = rows.parallel.tensor
    rows.gemms(by_kernel["ssm_in_proj"], rows.work.tokens)
    heads, groups = attention.heads // tensor, max(attention.groups // tensor, 1)
    width = heads * attention.head_dim
    mixed = width + 2 * groups * attention.state
    if attention.scaled:
        rows.per_token("ssm_scale", width + mixed + heads, width + mixed + heads, width + mixed + heads)
    add_convolution(rows, "ssm_conv", mixed, attention.conv, attention.conv + attention.conv_bias, heads, heads)
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
        chunk_macs=_SCAN_CHUNK * (groups * attention.state + width),
    )
    rows.per_token("ssm_norm", width, 2 * width, width, "out_proj")


def add_selective_scan(rows: KernelList, attention: SelectiveScan, by_kernel: dict[str, list]) -> None:
    """Add a scan of Mamba-1, which applies the gate and keeps the state of a prompt on the chip, as vLLM's kernels do.

    More than one new token is a prompt.
    """
    work, tokens, value = rows.work, rows.work.tokens, rows.value_bytes
    width, state, rank = attention.width // rows.parallel.tensor, attention.state, attention.step_rank
    rows.gemms(by_kernel["ssm_in_proj"], tokens)
    add_convolution(rows, "ssm_conv", width, attention.conv, attention.conv + attention.conv_bias, 1, 1, drafts=False)
    rows.gemms(by_kernel["ssm_x_proj"], tokens)
    rows.all_reduce(rank + 2 * state)
    if attention.norm:
        for part, reader in ((rank, "ssm_step_proj"), (state, ""), (state, "")):
            rows.norm("ssm_norm", part, reader, None if attention.norm == "weighted" else 0)
    rows.gemms(by_kernel["ssm_step_proj"], tokens)
    # Decays in 32 bits, and a skip per channel.
    weight = 4 * width * state + rows.plain_bytes(width)
    for decoding, own in split(rows).items():
        if not own.any():
            continue
        new, states = work.total(own * work.new_tokens), work.total(own) * (width * state * attention.state_bits // 8)
        rows.elementwise(
            ("decode_" if decoding else "") + "ssm_scan",
            new,
            width,
            new * ((3 * width + 2 * state) * value) + states,  # values, steps, gates; input and output
            new * (width * rows.operand_bytes("out_proj")) + states,
            macs=rows.product(new, 2 * width * state),
            weight=weight,
        )


def add_short_convolution(rows: KernelList, attention: ShortConvolution, by_kernel: dict[str, list]) -> None:
    """Add a convolution whose input and output are multiplied by gates."""
    width = attention.width // rows.parallel.tensor
    rows.gemms(by_kernel["ssm_in_proj"], rows.work.tokens)
    rows.per_token("attn_gate", width, 2 * width, width)
    add_convolution(rows, "ssm_conv", width, attention.conv, attention.conv + attention.bias, 1, 1)
    add_gate(rows, width, width)


def add_convolution(
    rows: KernelList, kernel: str, width: int, span: int, weights: int, heads: int, decays: int, drafts: bool = True
) -> None:
    """Add a causal convolution over *span* tokens of *width* channels with *weights* parameters each.

    Without *drafts*, only requests with one new token are decoding.
    """
    work, weight = rows.work, rows.plain_bytes(width * weights)
    for decoding, own in split(rows, few(rows) if drafts else False).items():
        if not own.any():
            continue
        requests, new = work.total(own), work.total(own * work.new_tokens)
        # With the tokens before, kept for it.
        moved = (new + requests * (span - 1)) * (width * rows.value_bytes)
        each, sizes = -(-new // requests.clip(1)), {"heads": heads, "choices": decays}
        traffic = {"weight": weight, "read": moved, "write": moved}
        name = ("decode_" if decoding else "") + kernel
        rows.add(name, "recurrent", each, width, span, batch=requests, **sizes, **traffic)


def _recurrence(
    rows: KernelList,
    kernel: str,
    inputs: int,
    width: int,
    matrix: int,
    state: int,
    chunk: int,
    macs: int,
    chunk_macs: int,
    sizes: dict[str, int] | None = None,
) -> None:
    """Add the update of a state of *matrix* values, *state* bytes, by tokens of *inputs* values.

    A token takes *macs* multiply-accumulates, and *chunk_macs* more if there are several. The law of its time goes by
    *sizes*; without, by its bytes.
    """
    work, value = rows.work, rows.value_bytes
    for decoding, own in split(rows, few(rows)).items():
        if not own.any():
            continue
        requests, new = work.total(own), work.total(own * work.new_tokens)
        # Every chunk's state is written once and read once.
        chunks = 0 if decoding else work.total(own * -(-work.new_tokens // chunk)) * (matrix * value)
        written = new if decoding else requests
        name = ("decode_" if decoding else "") + kernel
        traffic: dict[str, Number] = {
            "read": new * (inputs * value) + requests * state + chunks,
            "write": new * (width * value) + written * state + chunks,
            "macs": rows.product(new, macs + (0 if decoding else chunk_macs)),
        }
        if sizes:
            each = -(-new // requests.clip(1))
            rows.add(name, "recurrent", each, width, batch=requests * sizes["heads"], **sizes, **traffic)
        else:
            rows.elementwise(name, new, width, **traffic)
