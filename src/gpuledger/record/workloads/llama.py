"""Llama 3 with random weights in bf16: one forward or backward pass is counted."""

from functools import cache

import torch
from torch import nn
from torch.nn import functional

from gpuledger.record.workloads import transformer

VOCABULARY = 128_256
#: Query heads per key/value head.
GROUP = 4
#: Base of the wavelengths of rotary embeddings.
THETA = 500_000.0


@cache
def angles_of(tokens: int, half: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of every position's angles; as in serving code, only the first pass computes them."""
    with torch.inference_mode(False):  # a backward pass may use them as well
        rates = THETA ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        angles = torch.arange(tokens, device=device, dtype=torch.float32)[:, None] * rates
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(heads: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of (first half, second half) of each head by an angle that grows with the position."""
    half = heads.shape[-1] // 2
    cosine, sine = angles_of(heads.shape[-2], half, heads.device, heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def _norm(hidden_dim: int, device: torch.device) -> nn.Module:
    return nn.RMSNorm(hidden_dim, eps=1e-5, device=device)


class LlamaBlock(nn.Module):
    """RMS norm, causal attention with rotary embeddings and grouped heads, RMS norm, SwiGLU of 3.5 times the width.

    Dubey et al., The Llama 3 Herd of Models (2024), Table 3, with the ratios of the 8B model.
    """

    def __init__(self, hidden_dim: int, heads: int, device: torch.device):
        super().__init__()
        self.heads, self.head_dim = heads, hidden_dim // heads
        self.groups = max(1, heads // GROUP)
        narrow, wide = self.groups * self.head_dim, 7 * hidden_dim // 2
        self.norm_1, self.norm_2 = _norm(hidden_dim, device), _norm(hidden_dim, device)
        sizes = {
            "query": (hidden_dim, hidden_dim),
            "key": (hidden_dim, narrow),
            "value": (hidden_dim, narrow),
            "output": (hidden_dim, hidden_dim),
            "gate": (hidden_dim, wide),
            "up": (hidden_dim, wide),
            "down": (wide, hidden_dim),
        }
        self.linear = nn.ModuleDict({name: nn.Linear(*size, bias=False, device=device) for name, size in sizes.items()})

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden_dim = states.shape
        linear, normed = self.linear, self.norm_1(states)

        def heads(name: str, count: int) -> torch.Tensor:
            return linear[name](normed).view(batch, tokens, count, self.head_dim).transpose(1, 2)

        query, key, value = heads("query", self.heads), heads("key", self.groups), heads("value", self.groups)
        query, key = rotate(query), rotate(key)
        key, value = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + linear["output"](mixed.transpose(1, 2).reshape(batch, tokens, hidden_dim))
        normed_2 = self.norm_2(states)
        return states + linear["down"](functional.silu(linear["gate"](normed_2)) * linear["up"](normed_2))


def make_model(
    n_layer: int, hidden_dim: int, n_head: int, seq_len: int, device: torch.device
) -> transformer.Transformer:
    """Return Llama of the given sizes; it needs no position embeddings, whatever `seq_len`."""
    blocks = [LlamaBlock(hidden_dim, n_head, device) for _ in range(n_layer)]
    return transformer.Transformer(blocks, _norm(hidden_dim, device), hidden_dim, VOCABULARY, 0, False, device)


if __name__ == "__main__":
    transformer.main(__doc__, make_model, VOCABULARY, torch.bfloat16)
