"""What a prediction assumes that a reader would not expect, in sentences."""

import re

import numpy as np
import pandas as pd

from gpuledger.models.deployment.passes import Deployment
from gpuledger.models.time_model.collectives import NODE, TRAYS
from gpuledger.models.time_model.constants.choice import candidates
from gpuledger.models.time_model.constants.donors import BRIDGED, ODD_SERVERS, PCIE_BYTES_PER_S, known
from gpuledger.models.time_model.constants.table import read_table
from gpuledger.models.time_model.step import NARROW, predict, widened
from gpuledger.models.time_model.triton_tiles import KERNELS, tuned_shapes
from gpuledger.models.transformer.formats.precision import number_format
from gpuledger.models.transformer.routing import SERVED_LOAD
from gpuledger.readers.gpus import Gpu

_GUESS = "A rough guess: "
#: Columns of the narrowest experts that the study ``expert_tiles`` compares.
_WIDE = 256


def notes(deployment: Deployment) -> list[str]:
    """Return what a deployment's prediction assumes of formats, of the GPU's architecture, and of its links."""
    gpu, parallel = deployment.gpu, deployment.parallel
    rows = deployment.kernels(deployment.workload(np.array([1]), deployment.input_tokens))
    found = _images(deployment)
    for name, own in widened(rows, gpu).items():
        if name in NARROW:
            what = f"weights are widened to {own} as they are multiplied, activations are not narrowed (weight-only)"
        else:
            what = f"{own} takes its place"
        found.append(f"No units for {name}: {what}.")
    if deployment.expert_load == SERVED_LOAD and (rows["kind"] == "grouped_gemm").any():
        found.append(f"Experts are chosen unevenly, as random tokens choose them (Zipf exponent {SERVED_LOAD}).")
    found += _tiles(deployment, rows)
    if not known(gpu) and all(entry.gpu != gpu.name for entry in read_table("gemm")):
        found.append(_GUESS + _unknown(gpu))
    return found + _links(gpu, parallel.group, deployment.engine) if parallel.group > 1 else found


def _images(deployment: Deployment) -> list[str]:
    """Say what is assumed of a vision tower: how it runs, or why it is left out."""
    model, tensor = deployment.model, deployment.parallel.tensor
    found = []
    if model.unread:
        found.append(f"The vision tower takes memory that is not counted: {model.unread}.")
    weights = (deployment.precision or model.precision).weights
    formats = [weights] if isinstance(weights, str) else weights.values()
    if model.vision and any(number_format(name).bits < 16 for name in formats):
        found.append("The vision tower is taken to be unquantised, as checkpoints leave it.")
    if model.vision and tensor > 1 and not model.vision.splits(tensor):
        found.append(f"The vision tower cannot be split among {tensor} GPUs: each holds and computes all of it.")
    if deployment.images:
        found.append(
            "The vision tower's kernels follow each other without a gap, one for each norm, sum, rotation and "
            "activation; engines that neither compile nor capture the tower take longer. Preparing images on the host "
            "is not included."
        )
    return found


def _tiles(deployment: Deployment, rows: pd.DataFrame) -> list[str]:
    """Say if SGLang's Triton kernel has no tiles that were tuned for these experts on this GPU.

    Only in 16 bits: in others, and in vLLM, defaults are about as fast (the study ``expert_tiles``).
    """
    gpu = deployment.gpu
    products = rows[rows["kernel"] == "expert_down_proj"].drop_duplicates(["experts", "k"])
    if deployment.engine != "sglang" or products.empty:
        return []
    whose = predict(rows, gpu, "sglang").loc[products.index, "constants"]
    known = tuned_shapes("sglang", gpu.name)
    return [
        f"SGLang ships no tiles for {experts} experts of {columns:,} columns in 16 bits on this GPU, and takes defaults"
        + ("; tuned ones computed long prompts twice as fast where both were measured." if columns >= _WIDE else ".")
        for experts, columns, name in zip(products["experts"], products["k"], whose, strict=True)
        if re.search(rf"(?:{KERNELS}) bf16,", name) and ("bf16", experts, columns) not in known
    ]


def _unknown(gpu: Gpu) -> str:
    """Say why nothing measured is known to be like a GPU."""
    if gpu.hypothetical:
        return "this GPU is hypothetical, its kernels are taken to be those of measured GPUs."
    if gpu.architecture.startswith(("cdna", "rdna")):
        return (
            "no kernels of AMD's GPUs were measured; a step recorded on an MI300X took a third longer than predicted."
        )
    if gpu.architecture != "unknown":
        return (
            f"no kernels of the architecture {gpu.architecture} were measured, nor of one that is known to be like it."
        )
    return "the GPU's table names no architecture; its kernels are taken to be those of older data centre GPUs."


def _links(gpu: Gpu, group: int, engine: str) -> list[str]:
    """Say what is assumed of the links between so many GPUs."""
    measured = candidates("collective", gpu, ("all_reduce",), engine)[0].gpu
    most, found = TRAYS.get(measured, NODE), []
    if group > most:
        found.append(f"Links are taken to join all {group} GPUs as they join {most}; that was not measured.")
    if gpu.name in BRIDGED and group > 2:
        found.append(f"Bridges join two of these GPUs; the links of all {group} are taken to be as fast.")
    if measured in ODD_SERVERS and group > 2:
        found.append(
            "Collectives are those of the server that was measured, 2 GB/s among eight; another with this GPU was ten "
            "times as fast."
        )
    elif gpu.link_bytes_per_s <= PCIE_BYTES_PER_S:
        found.append("The GPUs are taken to share PCIe as in a measured server; others may be several times as fast.")
    return found
