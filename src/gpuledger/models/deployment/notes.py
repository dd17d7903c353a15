"""What a prediction assumes that a reader would not expect, in sentences."""

import numpy as np

from gpuledger.models.deployment.passes import Deployment
from gpuledger.models.time_model.collectives import NODE
from gpuledger.models.time_model.donors import ODD_SERVERS, PCIE_BYTES_PER_S, measured_maker
from gpuledger.models.time_model.step import NARROW, widened


def notes(deployment: Deployment) -> list[str]:
    """Return what a deployment's prediction assumes of formats, of the GPU's maker, and of its links."""
    gpu, parallel = deployment.gpu, deployment.parallel
    rows = deployment.kernels(deployment.workload(np.array([1]), deployment.input_tokens))
    found = []
    for name, own in widened(rows, gpu).items():
        if name in NARROW:
            what = f"weights are widened to {own} as they are multiplied, activations stay in 16 bits (weight-only)"
        else:
            what = f"{own} takes its place"
        found.append(f"No units for {name}: {what}.")
    if not measured_maker(gpu):
        words = "no kernels of this maker's GPUs were measured; a step recorded on an MI300X took a third longer"
        found.append(f"A rough guess: {words}.")
    group = max(parallel.tensor, parallel.expert)
    if group == 1:
        return found
    if group > NODE:
        found.append(f"Links are taken to join all {group} GPUs as they join {NODE}; nothing was measured among more.")
    if gpu.name in ODD_SERVERS and group > 2:
        found.append(
            "Collectives are those of the server that was measured, 2 GB/s among eight; another with this GPU was ten "
            "times as fast."
        )
    elif gpu.link_bytes_per_s <= PCIE_BYTES_PER_S:
        found.append("The GPUs share PCIe switches as those of a measured server did; others differ by factors.")
    return found
