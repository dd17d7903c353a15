"""Attention and a feed-forward block whose weights several layers use (Zamba2)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuledger.models.transformer.blocks.standard import Attention, Block, FeedForward, Linear


@dataclass(frozen=True)
class SharedBlock(Block):
    """A block in front of another one: it reads the token beside its embedding, and its output is projected.

    Adapters of low rank, and the last projection, are a layer's own.
    """

    attention: Attention
    ffn: FeedForward
    rank: int  # of the adapters
    adapted: bool  # queries, keys and values have adapters, too, beside gates and values
    own: bool = True  # False: the other weights are those of an earlier layer

    @property
    def heads(self) -> int:
        return self.attention.heads

    @property
    def cache_width(self) -> int:
        return self.device_cache_width(1)

    def device_cache_width(self, tensor: int) -> int:
        return self.attention.device_cache_width(tensor)

    def linears(self, hidden: int) -> Iterator[Linear]:
        for linear in (*self.attention.linears(2 * hidden), *self.ffn.linears(hidden)):
            if linear.kernel == "out_proj":
                linear = replace(linear, kernel="block_out_proj", outputs=hidden)
            yield replace(linear, reused=not self.own)
            if linear.kernel == "gate_up_proj" or (self.adapted and linear.kernel == "qkv_proj"):
                kernel, part = f"adapter_{linear.kernel}", f"adapter_{linear.part}"
                split = {"split": "columns", "units": linear.units, "replicable": linear.replicable}
                # Gates and values have one adapter, whose first matrix is that of gates.
                if linear.part != "up_proj":
                    yield Linear(kernel, f"{part}_down", self.rank, linear.inputs)
                yield Linear(f"{kernel}_up", f"{part}_up", linear.outputs, self.rank, **split)
        yield Linear("out_proj", "block_proj", hidden, hidden)

    def vectors(self, hidden: int) -> int:
        return self.own * 3 * hidden  # norms of the token beside its embedding, and in front of the feed-forward block
