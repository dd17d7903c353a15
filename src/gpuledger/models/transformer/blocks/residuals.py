"""What replaces the sum of the residual stream: hyper-connections, gates, attention to blocks, alternating updates."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.models.transformer.blocks.standard import Linear


@dataclass(frozen=True)
class HyperConnections:
    """Several residual streams, which each block reads as one and adds to, with weights computed per token (mHC).

    Before a block, a projection of all streams gives the weights with which they are summed, with which the output is
    added to each, and of a matrix that mixes them, if they are mixed. The head sums them a last time.
    """

    streams: int
    mixes: bool = True  # not in Hunyuan 4
    weighted_head: bool = True  # a projection gives the weights of the last sum, too; else it is a mean (GLM-5.3)

    @property
    def width(self) -> int:
        """Weights per token and block: of the input, of the output, and of the mixing matrix."""
        return (2 + self.mixes * self.streams) * self.streams

    def linears(self, hidden: int) -> Iterator[Linear]:
        for block in ("attention", "ffn"):
            yield Linear("hyper_proj", block, self.width, self.streams * hidden)

    def vectors(self, hidden: int) -> int:
        # A bias per weight, and a scale for each kind of weights.
        return 2 * (self.width + 2 + self.mixes)

    def final_linears(self, hidden: int) -> list[Linear]:
        return [Linear("hyper_proj", "head", self.streams, self.streams * hidden)] if self.weighted_head else []

    def sent(self, layers: int) -> int:
        """Return the streams that a pipeline stage passes on after so many *layers*."""
        return self.streams

    def final_vectors(self, hidden: int) -> int:
        return self.weighted_head * (self.streams + 1)


@dataclass(frozen=True)
class GatedStreams:
    """Several residual streams, which each block reads as one: their mean, after a norm, with a gate per value.

    Two projections of low rank give the gates, a third one the weights with which the output is added to each stream
    (Qwen4-Exp). The head reads them likewise. Their norm stands for that in front of the block.
    """

    streams: int
    rank: int

    @property
    def width(self) -> int:
        """Weights per token and block with which the output is added."""
        return self.streams

    def block_linears(self, hidden: int, block: str) -> list[Linear]:
        wide = self.streams * hidden
        return [
            Linear("hyper_proj", f"{block}_down", self.rank, wide),
            *([] if block == "head" else [Linear("hyper_proj", f"{block}_add", self.streams, wide)]),
            Linear("hyper_up_proj", f"{block}_up", wide, self.rank),
        ]

    def linears(self, hidden: int) -> Iterator[Linear]:
        for block in ("attention", "ffn"):
            yield from self.block_linears(hidden, block)

    def vectors(self, hidden: int) -> int:
        return 2 * self.streams * hidden

    def final_linears(self, hidden: int) -> list[Linear]:
        return self.block_linears(hidden, "head")

    def sent(self, layers: int) -> int:
        """Return the streams that a pipeline stage passes on after so many *layers*."""
        return self.streams

    def final_vectors(self, hidden: int) -> int:
        return self.streams * hidden


@dataclass(frozen=True)
class BlockResiduals:
    """Every block's input is a softmax-weighted sum of snapshots of the residual stream, one per *every* layers.

    The weights are scalar products of one learned vector with the normalised snapshots. Without *weighted*, their norms
    have no weights, and the first attention, which has one snapshot to read, has no vector (Inkling 2).
    """

    every: int
    weighted: bool = True
    #: Rank of the gates that, in every cycle but the first, mix in what the cycle before made: a sum of its snapshots
    #: for queries, keys, values and the feed-forward block; 0: none (Inkling 2 Mini).
    gate_rank: int = 0

    def snapshots(self, layer: int) -> tuple[int, int]:
        """Return the earlier snapshots that attention and the feed-forward block of a layer read."""
        before = -(-layer // self.every)
        return before, before + (layer % self.every == 0)

    def gates(self, hidden: int) -> list[list[Linear]]:
        """Return the matrices of each gate: the first reads both that are mixed."""
        return [
            [
                Linear("message_down_proj", f"{part}_message_down", self.gate_rank, 2 * hidden),
                Linear("message_up_proj", f"{part}_message_forget", hidden, self.gate_rank),
                Linear("message_up_proj", f"{part}_message_add", hidden, self.gate_rank),
            ]
            for part in (("q", "k", "v", "mlp") if self.gate_rank else ())
        ]

    def linears(self, hidden: int) -> Iterator[Linear]:
        for gate in self.gates(hidden):
            yield from gate

    def vectors(self, hidden: int) -> int:
        # A norm and a vector for attention, and for the feed-forward block; one for each message.
        return 2 * (1 + self.weighted) * hidden + bool(self.gate_rank) * 4 * hidden

    def final_linears(self, hidden: int) -> list[Linear]:
        return []

    def sent(self, layers: int) -> int:
        """Return the stream and the snapshots that a pipeline stage passes on after so many *layers*."""
        return 1 + -(-layers // self.every)

    def final_vectors(self, hidden: int) -> int:
        # Or the last vector, less the one that the first layer does not have.
        return self.weighted * 2 * hidden


@dataclass(frozen=True)
class AlternatingUpdates:
    """Several residual streams, of which a layer reads one (AltUp), and a low-rank block beside it (LAuReL, Gemma 3n).

    Before a layer all streams are predicted from each other, with weights that a router computes per token; behind it
    all are corrected by what it made of the first, again with a router's weights. Streams are projected from the
    embedding, and back before the head.
    """

    streams: int
    rank: int  # width of the low-rank block, which is added to attention's output

    def linears(self, hidden: int) -> Iterator[Linear]:
        yield Linear("altup_router", "altup_router", self.streams, hidden)
        yield Linear("altup_coefficients", "predict", self.streams**2, self.streams)
        yield Linear("altup_coefficients", "correct", self.streams, self.streams)
        yield Linear("laurel_down_proj", "laurel_down_proj", self.rank, hidden, False, "columns", self.rank)
        yield Linear("laurel_up_proj", "laurel_up_proj", hidden, self.rank, False, "rows", self.rank)

    def vectors(self, hidden: int) -> int:
        # Norms of the router's input and of the low-rank block; a scale of the corrected stream.
        return 3 * hidden

    def final_linears(self, hidden: int) -> list[Linear]:
        one = Linear("altup_proj", "altup_proj", hidden, hidden, False, "columns", hidden)
        return [one] * (2 * (self.streams - 1))

    def sent(self, layers: int) -> int:
        """Return the streams that a pipeline stage passes on after so many *layers*."""
        return self.streams

    def final_vectors(self, hidden: int) -> int:
        return 0


Residuals = HyperConnections | GatedStreams | BlockResiduals | AlternatingUpdates
