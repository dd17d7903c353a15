"""A stack of blocks on random states, of which the last block's launches are counted: all blocks launch the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gpuledger.record.workloads import profiling

MakeBlock = Callable[[int, torch.device], nn.Module]


def head_count(hidden_dim: int, head_dim: int) -> int:
    """Heads of a width.

    Raises
    ------
    ValueError
        When the width is no whole number of heads.
    """
    if hidden_dim < head_dim or hidden_dim % head_dim:
        raise ValueError(f"hidden_dim {hidden_dim} is not a multiple of the head's {head_dim}")
    return hidden_dim // head_dim


@torch.inference_mode()
def run(
    make_block: MakeBlock, dtype: torch.dtype, device: torch.device, n_layer: int, hidden_dim: int, seq_len: int
) -> torch.Tensor:
    """Run the stack twice and count the second time's last block.

    The first time loads kernels and libraries and has them choose their algorithms.

    Returns
    -------
    Tensor
        1 × `seq_len` × `hidden_dim`.
    """
    stack = [make_block(hidden_dim, device).to(dtype) for _ in range(n_layer)]
    inputs = torch.randn(1, seq_len, hidden_dim, device=device).to(dtype)
    for counting in (False, True):
        states = inputs
        for block in stack[:-1]:
            states = block(states)
        if counting:
            with profiling.counted(device):
                states = stack[-1](states)
        else:
            states = stack[-1](states)
    return states


def main(description: str, make_block: MakeBlock, dtype: torch.dtype) -> None:
    parser = profiling.parser(description)
    parser.add_argument("--n-layer", type=int, default=2)
    parser.add_argument("--hidden-dim", type=int, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    given = parser.parse_args()
    device = profiling.prepare(given.device)
    run(make_block, dtype, device, given.n_layer, given.hidden_dim, given.seq_len)
