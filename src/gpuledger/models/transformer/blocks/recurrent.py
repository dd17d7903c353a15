"""Layers that keep a state of fixed size per request: delta rule, lightning attention, Mamba-2, short convolutions."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.models.transformer.blocks.shared import SharedBlock
from gpuledger.models.transformer.blocks.standard import Attention, Block, Linear


@dataclass(frozen=True)
class DeltaAttention(Block):
    """Linear attention by the gated delta rule (Qwen3.5, Kimi-K3): a state of fixed size per request, no cache."""

    #: Heads of queries and of keys, of values, and their widths; the state has one matrix per value head.
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv: int  # tokens that the causal convolution over queries, keys and values spans
    state_bits: int = 32  # bits of a value of the state
    #: Rank of the projection that gives a decay per key channel (Kimi Delta Attention); 0: a decay per value head.
    decay_rank: int = 0
    gate_rank: int = 0  # rank of the projection that gives the output's gate; 0: full rank
    channel_decays: bool = False  # a decay per key channel, projected at full rank (Ling 3)

    @property
    def heads(self) -> int:
        return self.key_heads

    @property
    def mixed(self) -> int:
        """Width of queries, keys and values together, over which the convolution runs."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def decay_width(self) -> int:
        """Decays of a token."""
        return self.key_heads * self.key_dim if self.decay_rank or self.channel_decays else self.value_heads

    @property
    def state_bytes(self) -> int:
        """Bytes per request and layer: the state, and the last tokens of the convolution in 16 bits."""
        state = self.value_heads * self.key_dim * self.value_dim * self.state_bits // 8
        return state + 2 * self.mixed * (self.conv - 1)

    def linears(self, hidden: int) -> Iterator[Linear]:
        width = self.value_heads * self.value_dim
        keys = 2 * self.key_heads * self.key_dim
        yield Linear("delta_in_proj", "delta_in_proj", keys, hidden, False, "columns", self.key_heads)
        for part in ("values", "gate") if not self.gate_rank else ("values",):
            yield Linear("delta_in_proj", part, width, hidden, False, "columns", self.value_heads)
        if self.channel_decays:
            yield Linear("delta_in_proj", "decay", self.decay_width, hidden, False, "columns", self.key_heads)
        for part in ("beta",) if self.decay_rank or self.channel_decays else ("decay", "beta"):
            yield Linear("delta_gates_proj", part, self.value_heads, hidden, False, "columns", self.value_heads)
        low_rank = {"decay": (self.decay_rank, self.decay_width), "gate": (self.gate_rank, width)}
        for part, (rank, outputs) in low_rank.items():
            if rank:
                yield Linear("delta_gates_proj", f"{part}_a", rank, hidden)
                heads = self.value_heads if part == "gate" else self.key_heads
                yield Linear(f"delta_{part}_proj", f"{part}_b", outputs, rank, False, "columns", heads)
        yield Linear("out_proj", "out_proj", hidden, width, False, "rows", self.value_heads)

    def vectors(self, hidden: int) -> int:
        # The convolution's weights; a decay per head and the bias of every decay; the norm of the output.
        return self.mixed * self.conv + self.value_heads + self.decay_width + self.value_dim


@dataclass(frozen=True)
class LightningAttention(Block):
    """Linear attention with a fixed decay per head (MiniMax-Text-01): a state of fixed size per request, no cache.

    Queries, keys and values become numbers of 32 bits, by an activation or as they are; the output is normalised and
    gated per value.
    """

    heads: int
    head_dim: int
    state_bits: int = 16  # bits of a value of the state: that of the activations, as in vLLM
    rotary_dim: int = 0  # width of the part of a head that RoPE rotates; 0 without RoPE
    qk_norm: bool = False  # queries and keys are normalised per head (Ling 2.5)
    grouped_norm: bool = False  # the output is normalised in groups of heads, which no two devices share (Ling 2.5)

    @property
    def state_bytes(self) -> int:
        return self.heads * self.head_dim**2 * self.state_bits // 8

    def linears(self, hidden: int) -> Iterator[Linear]:
        width = self.heads * self.head_dim
        yield Linear("qkv_proj", "qkv_proj", 3 * width, hidden, False, "columns", self.heads)
        yield Linear("attn_gate_proj", "attn_gate_proj", width, hidden, False, "columns", self.heads)
        yield Linear("out_proj", "out_proj", hidden, width, False, "rows", self.heads)

    def vectors(self, hidden: int) -> int:
        return self.heads * self.head_dim + 2 * self.qk_norm * self.head_dim  # norms of the output, of queries and keys


@dataclass(frozen=True)
class StateSpace(Block):
    """A Mamba-2 layer (Nemotron-H): a state of fixed size per request instead of a cache."""

    heads: int
    head_dim: int
    #: Groups of heads that share an input and an output matrix, and the width of the state.
    groups: int
    state: int
    conv: int  # tokens that the causal convolution spans; it has a bias if *conv_bias*
    conv_bias: bool = True
    state_bits: int = 32  # bits of a value of the state
    norm: bool = True  # the gated output is normalised
    scaled: bool = False  # a constant vector scales what is projected (Falcon-H1)

    @property
    def mixed(self) -> int:
        """Width over which the convolution runs: values, and the input and output matrices of all groups."""
        return self.heads * self.head_dim + 2 * self.groups * self.state

    @property
    def state_bytes(self) -> int:
        """Bytes per request and layer: the state, and the last tokens of the convolution in 16 bits."""
        state = self.heads * self.head_dim * self.state * self.state_bits // 8
        return state + 2 * self.mixed * (self.conv - 1)

    def linears(self, hidden: int) -> Iterator[Linear]:
        width = self.heads * self.head_dim
        for part in ("gate", "values"):
            yield Linear("ssm_in_proj", part, width, hidden, False, "columns", self.heads)
        for part in ("input", "output"):
            groups = self.groups * self.state
            yield Linear("ssm_in_proj", part, groups, hidden, False, "columns", self.groups, replicable=True)
        yield Linear("ssm_in_proj", "step", self.heads, hidden, False, "columns", self.heads)
        yield Linear("out_proj", "ssm_out_proj", hidden, width, False, "rows", self.heads)

    def vectors(self, hidden: int) -> int:
        # The convolution; per head a decay, a skip and a bias of the step; the norm of the output.
        return self.mixed * (self.conv + self.conv_bias) + 3 * self.heads + self.norm * self.heads * self.head_dim


@dataclass(frozen=True)
class SelectiveScan(Block):
    """A Mamba-1 layer (Mamba, Jamba): every channel has a state of its own, and a step of its own width."""

    width: int  # channels
    state: int  # width of a channel's state
    step_rank: int  # width from which the steps of all channels are projected
    conv: int  # tokens that the causal convolution spans; it has a bias if *conv_bias*
    conv_bias: bool = True
    state_bits: int = 16  # bits of a value of the state: that of the activations, as in vLLM
    #: What the step, the input and the output follow from is normalised: ``weighted`` (Jamba), ``unweighted``
    #: (Falcon-Mamba), or empty (Mamba).
    norm: str = "weighted"

    @property
    def heads(self) -> int:
        """Channels, in which devices split it."""
        return self.width

    @property
    def state_bytes(self) -> int:
        """Bytes per request and layer: the state, and the last tokens of the convolution in 16 bits."""
        return self.width * (self.state * self.state_bits // 8 + 2 * (self.conv - 1))

    def linears(self, hidden: int) -> Iterator[Linear]:
        for part in ("values", "gate"):
            yield Linear("ssm_in_proj", part, self.width, hidden, False, "columns", self.width)
        selected = self.step_rank + 2 * self.state
        yield Linear("ssm_x_proj", "ssm_x_proj", selected, self.width, False, "rows", self.width)
        yield Linear("ssm_step_proj", "ssm_step_proj", self.width, self.step_rank, True, "columns", self.width)
        yield Linear("out_proj", "out_proj", hidden, self.width, False, "rows", self.width)

    def vectors(self, hidden: int) -> int:
        # The convolution; per channel decays and a skip; norms.
        own = self.width * (self.conv + self.conv_bias + self.state + 1)
        return own + (self.norm == "weighted") * (self.step_rank + 2 * self.state)


@dataclass(frozen=True)
class AttentionBesideMamba(Block):
    """Attention and Mamba-2 that read the same input, and whose outputs are added (Falcon-H1).

    Or a shared block, whose output is added to the input of Mamba-2, which takes the same kernels (Zamba2).
    """

    attention: Attention | SharedBlock
    mamba: StateSpace

    @property
    def parts(self) -> tuple[Block, ...]:
        return self.attention, self.mamba

    @property
    def cache_width(self) -> int:
        return self.attention.cache_width

    @property
    def state_bytes(self) -> int:
        return self.mamba.state_bytes

    def device_cache_width(self, tensor: int) -> int:
        return self.attention.device_cache_width(tensor)

    def linears(self, hidden: int) -> Iterator[Linear]:
        for part in self.parts:
            yield from part.linears(hidden)

    def vectors(self, hidden: int) -> int:
        return sum(part.vectors(hidden) for part in self.parts)


@dataclass(frozen=True)
class ShortConvolution(Block):
    """A causal convolution over a few tokens between two gates, in place of attention (LFM2)."""

    width: int  # channels
    conv: int  # tokens that the convolution spans
    bias: bool = False  # of the convolution and of both projections

    @property
    def heads(self) -> int:
        """Channels, in which devices split it."""
        return self.width

    @property
    def state_bytes(self) -> int:
        """Bytes per request and layer: the last tokens of the convolution in 16 bits."""
        return 2 * self.width * (self.conv - 1)

    def linears(self, hidden: int) -> Iterator[Linear]:
        for part in ("input_gate", "output_gate", "values"):
            yield Linear("ssm_in_proj", part, self.width, hidden, self.bias, "columns", self.width)
        yield Linear("out_proj", "out_proj", hidden, self.width, self.bias, "rows", self.width)

    def vectors(self, hidden: int) -> int:
        return self.width * (self.conv + self.bias)
