"""Communication of fully sharded data parallelism, and how much of it the kernels hide.

Every GPU holds 1/p of each parameter. Before a unit (a layer, or what is outside layers) computes, forward and once
more backward, an all-gather brings the rest of it; after its backward pass a reduce-scatter adds the gradients, in
every pass (S. Rajbhandari et al., ZeRO, 2020, stage 3; Y. Zhao et al., PyTorch FSDP, 2023). Both move the same share of
the unit's bytes, (p − 1)/p, and overlap with the computation of the unit before, so that a layer takes the longer of
both. What is exposed: the first unit's all-gather, the last unit's reduce-scatter, and what is longer than the kernels
of a layer.

Within a node, the constants are NCCL's; across nodes, a ring enters every node once, so that the unit passes the node's
network at the stated bandwidth, without a latency. The slower of both counts.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuledger.models.time_model.kernels import kernel_times
from gpuledger.models.training.kernels import OUTER
from gpuledger.models.training.run import NODE, VALUE, TrainingRun

GATHER, REDUCE = "all_gather", "reduce_scatter"


def collective_times(run: TrainingRun) -> dict[int, tuple[float, float]]:
    """Return the time of a unit's all-gather and of its reduce-scatter (s), by unit."""
    units = {OUTER: run.outer_parameters}
    units |= {i: run.layer_parameters(group) for i, group in enumerate(run.model.layers)}
    if run.gpus == 1:
        return dict.fromkeys(units, (0.0, 0.0))
    sizes = np.array([[size * run.gathered_bytes, size * VALUE] for size in units.values()], dtype=float)
    devices = min(run.gpus, NODE)
    link_s = kernel_times(_collectives(sizes, devices), run.gpu)["time_s"].to_numpy().reshape(sizes.shape)
    network_s = np.zeros_like(sizes)
    if run.gpus > NODE:
        network_s = sizes * (run.gpus - 1) / run.gpus / run.network_bytes_per_s
    return dict(zip(units, map(tuple, np.maximum(link_s, network_s).tolist()), strict=True))


def _collectives(sizes: np.ndarray, devices: int) -> pd.DataFrame:
    count = sizes.size
    sent = sizes.reshape(-1) * (devices - 1) / devices
    texts = {"kind": "collective", "precision": "bf16", "weight_precision": "bf16"}
    zeros = dict.fromkeys(("batch", "m", "n", "k", "heads", "kv_heads", "value_dim", "macs", "weight_bytes"), 0)
    names = [GATHER, REDUCE] * (count // 2)
    return pd.DataFrame({"kernel": names, "comm_bytes": sent, "devices": devices} | texts | zeros)


def exposed_s(
    run: TrainingRun,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    head_backward_s: float,
    collectives: dict[int, tuple[float, float]],
) -> float:
    """Return what a pass waits for communication (s).

    Parameters
    ----------
    forward_s, backward_s : sequence of float
        Kernels of one layer, by kind of layer; backward with what is computed again.
    head_backward_s : float
        Kernels of the last norm, the LM head and the loss.
    collectives : dict
        As :func:`collective_times` returns it.
    """
    gather, reduce = (np.array([collectives[i][side] for i in range(len(run.model.layers))]) for side in (0, 1))
    count = np.array([group.count for group in run.model.layers])
    first, last = 0, run.model.layers.index(max(run.model.layers, key=lambda group: group.numbers[-1]))
    outer_gather, outer_reduce = collectives[OUTER]
    longer = np.maximum(gather - np.asarray(forward_s), 0)
    forward = outer_gather + gather[first] + count @ longer - longer[last]
    # While the head computes, the last layer's parameters come.
    backward = max(gather[last] - head_backward_s, 0) + count @ np.maximum(gather + reduce - np.asarray(backward_s), 0)
    return float(forward + backward + reduce[first] + outer_reduce)
