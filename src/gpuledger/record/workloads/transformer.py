"""A whole decoder-only model on random tokens, of which a profiler counts one forward or one backward pass."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from gpuledger.record import designs
from gpuledger.record.workloads import profiling

DIRECTIONS = ("forward", "backward")
#: From layers, width, heads, positions and the device to a model.
MakeModel = Callable[[int, int, int, int, torch.device], nn.Module]


class Transformer(nn.Module):
    """Embeddings, blocks, a norm, and logits of every token.

    Parameters
    ----------
    positions : int
        Learned position embeddings; 0: none.
    tied : bool
        The LM head shares the embedding's weights.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        norm: nn.Module,
        hidden_dim: int,
        vocabulary: int,
        positions: int,
        tied: bool,
        device: torch.device,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden_dim, device=device)
        self.positions = nn.Embedding(positions, hidden_dim, device=device) if positions else None
        self.blocks, self.norm = nn.ModuleList(blocks), norm
        self.head = nn.Linear(hidden_dim, vocabulary, bias=False, device=device)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.embedding(tokens)
        if self.positions is not None:
            states = states + self.positions(torch.arange(tokens.shape[-1], device=tokens.device))
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states))


def run_passes(
    model: nn.Module, vocabulary: int, device: torch.device, seq_len: int, direction: str, point: str = ""
) -> torch.Tensor | None:
    """Run the model twice on one sequence; a profiler counts the second forward or backward pass.

    The first pass loads kernels and libraries, which then choose their algorithms.

    Parameters
    ----------
    direction : {"forward", "backward"}
    point : str
        Name of the NVTX range of the counted pass.

    Returns
    -------
    Tensor
        Logits, 1 × `seq_len` × `vocabulary`.
    """
    tokens = torch.randint(vocabulary, (1, seq_len), device=device)
    logits = None
    for counted in ("", point):
        if direction == "forward":
            with torch.inference_mode(), profiling.counted(device, counted):
                logits = model(tokens)
            continue
        # Without old gradients, the second pass does not launch additional kernels that accumulate them.
        model.zero_grad(set_to_none=True)
        logits = model(tokens)
        gradient = torch.randn_like(logits)
        with profiling.counted(device, counted):
            logits.backward(gradient)
    return logits


def main(description: str, make_model: MakeModel, vocabulary: int, dtype: torch.dtype) -> None:
    parser = profiling.parser(description, "layers, width, heads and tokens: 2x768x12x128")
    parser.add_argument("--direction", choices=DIRECTIONS, default="forward", help="the pass that is counted")
    given = parser.parse_args()
    device = profiling.prepare(given.device)
    for point in designs.in_time(given.point, given.seconds):
        n_layer, hidden_dim, n_head, seq_len = map(int, point.split("x"))
        model = make_model(n_layer, hidden_dim, n_head, seq_len, device).to(dtype)
        torch.cuda.empty_cache()  # ncu would save and restore what is left of larger models, too, at every pass
        run_passes(model, vocabulary, device, seq_len, given.direction, point)
        del model  # before the next one is made
