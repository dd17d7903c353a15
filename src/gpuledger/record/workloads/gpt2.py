"""GPT-2 with random weights in fp32: one forward or backward pass is counted."""

import torch
from torch import nn
from torch.nn import functional

from gpuledger.record.workloads import transformer

VOCABULARY = 50_257
#: Positions of the published model; longer sequences get as many as they need.
POSITIONS = 1024


class GPT2Block(nn.Module):
    """Layer norm, causal attention, layer norm, MLP of four times the width with GELU; all with biases.

    Radford et al., Language Models are Unsupervised Multitask Learners (2019).
    """

    def __init__(self, hidden_dim: int, heads: int, device: torch.device):
        super().__init__()
        self.heads, self.head_dim = heads, hidden_dim // heads
        self.norm_1 = nn.LayerNorm(hidden_dim, device=device)
        self.query_key_value = nn.Linear(hidden_dim, 3 * hidden_dim, device=device)
        self.projection = nn.Linear(hidden_dim, hidden_dim, device=device)
        self.norm_2 = nn.LayerNorm(hidden_dim, device=device)
        self.up = nn.Linear(hidden_dim, 4 * hidden_dim, device=device)
        self.down = nn.Linear(4 * hidden_dim, hidden_dim, device=device)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden_dim = states.shape
        parts = self.query_key_value(self.norm_1(states)).split(hidden_dim, dim=2)
        query, key, value = (part.view(batch, tokens, self.heads, self.head_dim).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, hidden_dim))
        return states + self.down(functional.gelu(self.up(self.norm_2(states)), approximate="tanh"))


def make_model(
    n_layer: int, hidden_dim: int, n_head: int, seq_len: int, device: torch.device
) -> transformer.Transformer:
    """Return GPT-2 of the given sizes, with a tied LM head."""
    blocks = [GPT2Block(hidden_dim, n_head, device) for _ in range(n_layer)]
    norm, positions = nn.LayerNorm(hidden_dim, device=device), max(seq_len, POSITIONS)
    return transformer.Transformer(blocks, norm, hidden_dim, VOCABULARY, positions, True, device)


if __name__ == "__main__":
    transformer.main(__doc__, make_model, VOCABULARY, torch.float32)
