"""A network of Linear and Sigmoid layers in fp32: set-up, forward pass, forward and backward pass.

A longer run starts with the launches of the shorter ones, so that the passes can be separated.
"""

import torch
from torch import nn

from gpuledger.record import designs
from gpuledger.record.workloads import profiling

PASSES = ("setup", "forward", "forward_backward")


def run_network(device: torch.device, passes: str, layers: int, hidden_dim: int, tokens: int) -> torch.Tensor:
    """Run the network.

    Parameters
    ----------
    passes : {"setup", "forward", "forward_backward"}

    Returns
    -------
    Tensor
        The input, the output, or the loss (the sum of the output). The input needs no gradient.
    """
    made = [(nn.Linear(hidden_dim, hidden_dim, bias=False, device=device), nn.Sigmoid()) for _ in range(layers)]
    network = nn.Sequential(*(module for pair in made for module in pair))
    tensor = torch.randn(tokens, hidden_dim, device=device)
    if passes != "setup":
        tensor = network(tensor)
    if passes == "forward_backward":
        tensor = tensor.sum()
        tensor.backward()
    return tensor


def main() -> None:
    parser = profiling.parser(__doc__.splitlines()[0], f"of {', '.join(PASSES)}; each starts anew")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--hidden-dim", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    device = profiling.prepare(given.device)
    for passes in designs.in_time(given.point, given.seconds):
        with profiling.counted(device, passes):
            run_network(device, passes, given.layers, given.hidden_dim, given.tokens)


if __name__ == "__main__":
    main()
