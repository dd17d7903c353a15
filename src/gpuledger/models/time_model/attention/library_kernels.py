"""Which fitted constants predict the attention of a library, such as FlashAttention-2 or cuDNN, on a GPU.

A library's kernel is looked up on the GPU itself, then on the nearest one that runs the same code. FlashAttention-2 is
one code for all generations since Ampere: it multiplies by the instructions of a warp (``mma.sync``), which on data
centre GPUs fall behind the data sheet's peak. Hopper's reach 62.9 % of it (W. Luo et al., Dissecting the NVIDIA Hopper
Architecture, 2025), also where, as on an H20, what else an SM does would leave time for more. From Hopper to Blackwell
such a kernel keeps what an SM computes in a cycle: the faster units are for other instructions.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuledger.models.time_model.constants import choice
from gpuledger.models.time_model.constants.donors import alike, known, nearest_gpu, sm_rate
from gpuledger.models.time_model.constants.table import Entry, read_table, transferred
from gpuledger.models.time_model.gemms.tiles import WARP_GROUP, generation_of
from gpuledger.readers.gpus import Gpu, find_gpu

FLASH_2 = "FlashAttention-2"
#: Names in the table of constants, by library. Of encoders they are followed by the width of heads. Kernels that a
#: library has for a paged cache only are not those that it is benchmarked with.
LIBRARIES = {
    FLASH_2: ("torch_flash", "vllm_vit_flash_attn_fa2"),
    "FlashAttention-3": ("vllm_flash_attn_fa3", "fa3", "vllm_vit_flash_attn_fa3", "flash_attention_v3"),
    "FlashAttention-4": ("vllm_flash_attn_fa4", "vllm_vit_flash_attn_fa4", "flash_attention_v4"),
    "cuDNN": ("torch_cudnn",),
}
#: Share of the peak that a warp's instructions reach on Hopper.
_WARP_SHARE = 0.629


class LibraryKernels(NamedTuple):
    """Kernels that may stand for one of a library."""

    entries: Sequence[Entry]  # of one GPU; transferred to the wanted one if that was not measured
    own: bool  # whether they are the library's
    here: bool  # whether they were measured on the wanted GPU


def library_entries(
    kind: str, gpu: Gpu, precisions: Sequence[str], library: str, latent: bool, head_dim: float
) -> LibraryKernels:
    """Return the constants of a library's kernels, or of those that engines may run if it was not measured.

    Parameters
    ----------
    kind, precisions, latent
        As for :func:`gpuledger.models.time_model.constants.choice.candidates`; ``encoder`` has kernels of exactly that
        width.
    library : str
        A key of `LIBRARIES`; any other has no kernels of its own.
    head_dim : float
        Mean of keys' and values'.
    """
    every = [entry for entry in read_table(kind) if entry.kernel.split(" ")[0] in LIBRARIES.get(library, ())]
    if kind == "encoder":
        every = [entry for entry in every if entry.kernel.split(" ")[1] == f"{head_dim:g}"]
    for precision in (*precisions, *(precision.split("/")[0] for precision in precisions)):
        same = [entry for entry in every if entry.precision == precision]
        donors = {entry.gpu: find_gpu(entry.gpu) for entry in same}
        donors = {name: donor for name, donor in donors.items() if _same_code(library, gpu, donor)}
        if donors:
            donor = donors.get(gpu.name) or nearest_gpu(gpu, donors.values(), kind)
            found = choice.of_shape([entry for entry in same if entry.gpu == donor.name], (head_dim,))
            if donor.name == gpu.name:
                return LibraryKernels(found, True, True)
            return LibraryKernels([_transferred(entry, donor, gpu, library) for entry in found], True, False)
    if kind == "encoder":
        widths = {entry.kernel.rpartition(" ")[2] for entry in read_table(kind)}
        known = f"{head_dim:g}" in widths
        return LibraryKernels(choice.encoder_candidates(gpu, "", head_dim) if known else (), False, False)
    if kind == "backward":
        return LibraryKernels((), False, False)
    return LibraryKernels(choice.candidates(kind, gpu, precisions, "", latent, (head_dim,)), False, False)


def _same_code(library: str, gpu: Gpu, donor: Gpu) -> bool:
    same = known(gpu) and known(donor) and generation_of(gpu) is generation_of(donor)
    return alike(gpu, donor) or (library == FLASH_2 and same)


def _transferred(entry: Entry, donor: Gpu, gpu: Gpu, library: str) -> Entry:
    constants = transferred(entry.constants, donor, gpu)
    # GPUs without warp groups have no faster instructions than a warp's.
    if library == FLASH_2 and generation_of(gpu) is WARP_GROUP:
        share = constants.tensor_share
        if not alike(gpu, donor):
            share = min(1.0, share * sm_rate(donor) / sm_rate(gpu))
        elif gpu.architecture == "hopper":
            share = min(_WARP_SHARE, share)
        constants = replace(constants, tensor_share=float(f"{share:.4g}"))
    return entry._replace(constants=constants, error_percent=float("nan"))
