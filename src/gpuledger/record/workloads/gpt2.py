"""Blocks as in GPT-2 with random weights, in fp32: the last one's forward pass is counted."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gpuledger.record.workloads import transformer

HEAD_DIM = 64


class GPT2Block(nn.Module):
    """Layer norm, causal attention of heads of 64, layer norm, MLP of four times the width with GELU; all with biases.

    Radford et al., Language Models are Unsupervised Multitask Learners (2019).
    """

    def __init__(self, hidden_dim: int, device: torch.device):
        super().__init__()
        self.heads = transformer.head_count(hidden_dim, HEAD_DIM)
        self.norm_1 = nn.LayerNorm(hidden_dim, device=device)
        self.query_key_value = nn.Linear(hidden_dim, 3 * hidden_dim, device=device)
        self.projection = nn.Linear(hidden_dim, hidden_dim, device=device)
        self.norm_2 = nn.LayerNorm(hidden_dim, device=device)
        self.up = nn.Linear(hidden_dim, 4 * hidden_dim, device=device)
        self.down = nn.Linear(4 * hidden_dim, hidden_dim, device=device)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden_dim = states.shape
        parts = self.query_key_value(self.norm_1(states)).split(hidden_dim, dim=2)
        query, key, value = (part.view(batch, tokens, self.heads, HEAD_DIM).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, hidden_dim))
        return states + self.down(functional.gelu(self.up(self.norm_2(states)), approximate="tanh"))


if __name__ == "__main__":
    transformer.main(__doc__.splitlines()[0], GPT2Block, torch.float32)
