"""Which fitted constants predict a kernel: the GPU's own where it was measured, else the nearest measured GPU's."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import nan

import numpy as np

from gpuledger.models.time_model import cuda_cores
from gpuledger.models.time_model.constants.donors import alike, distance, nearest_gpu
from gpuledger.models.time_model.constants.fit_gemm import HOST_BOUND_S
from gpuledger.models.time_model.constants.table import PYTORCH, RELATED, TABLE, Entry, read_table, transferred
from gpuledger.models.time_model.cuda_cores import on_cuda_cores
from gpuledger.models.time_model.gemms.dispatch import ANY, rule_of
from gpuledger.readers.gpus import Gpu, find_gpu

#: Formats of weights and operands of a mixture of experts, and the data types of fused kernels that compute it: of each
#: group the first that was measured. Engines widen weights in mxfp4, or narrow the activations.
MOE_DTYPES = {
    ("fp8_block", "fp8"): (("fp8_block", "fp8", "bf16"),),
    ("fp8", "fp8"): (("fp8", "fp8_block", "bf16"),),
    ("nvfp4", "fp4"): (("nvfp4",),),
    ("nvfp4", "bf16"): (("w4a16_mxfp4", "int4_wo"),),
    ("mxfp4", "fp8"): (("w4a8_mxfp4_mxfp8", "w4a8_mxfp4_fp8", "w4afp8", "w4a16_mxfp4"),),
    ("mxfp4", "bf16"): (("w4a16_mxfp4", "mxfp4_as_bf16", "int4_wo"), ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4")),
    ("int4", "bf16"): (("int4_wo", "w4a16_mxfp4"),),
}
#: Kernels that update states and include a convolution or a norm, which are kernels of their own here.
_FUSED = re.compile("fused_kda_decode|kda_fused_decode")
#: Kernels of the tables that are no default of any engine, or timed with the host's calls, or in few long steps only.
_SET_ASIDE = re.compile(
    "topk_radix|triton_attn|^triton|^MLA triton|fa4|_eager|nongated|situ_as_silu|trtllmdecode$|across nodes"
)

#: Experts that served runs are a third faster than (TensorRT-LLM's of DeepSeek in fp8 by blocks, on a B200; with the
#: kernels of the other two engines they agree). And vLLM's of ModelOpt's checkpoints on Hopper, which take three to six
#: times as long as TensorRT-LLM's there (medians of shapes by tokens): they need static scales of whole tensors; other
#: fp8 checkpoints run Triton's or CUTLASS' kernels (vllm-project/vllm, ``fused_moe/experts/*.py``,
#: ``_supports_quant_scheme``).
_SLOW_EXPERTS = ("deepgemm", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts")

#: Engines that choose experts' kernels by the model, so that their tables say which run. TensorRT-LLM leaves that to
#: its user: Kimi-K2.5 is served faster than with the only kernel that its tables have for it.
DISPATCHING = ("vllm", "sglang")


def candidates(
    kind: str,
    gpu: Gpu,
    precisions: Sequence[str],
    engine: str = "",
    latent: bool = False,
    shape: tuple[float, ...] = (),
) -> Sequence[Entry]:
    """Return the constants of the kernels that may run on a GPU.

    Parameters
    ----------
    kind : str
        A key of :data:`gpuledger.models.time_model.constants.table.KINDS`.
    precisions : sequence of str
        As the table names them, the wanted one first; the others stand in for it where nothing was measured.
    engine : str
        ``trtllm``, ``vllm`` or ``sglang``: its kernels, where they were measured. Empty: all engines'. ``pytorch``:
        PyTorch's, where they were measured on a GPU that runs the same code, else all engines'.
    latent : bool
        Of multi-head latent attention.
    shape : tuple of float
        As in :attr:`gpuledger.models.time_model.constants.table.Entry.shapes`. An engine has kernels for some heads or
        experts only, and its tables say which it runs: those that were measured with such a shape come before those
        with narrower and wider heads, and these before all others.

    Returns
    -------
    sequence of Entry
        Of one precision and one GPU; transferred to `gpu` if it was not measured itself. Never empty. The error of what
        stands in for another precision or GPU is not known.
    """
    found = _known(kind, gpu, precisions, engine, latent, shape)
    if (kind, precisions[0]) == ("gemm", cuda_cores.PRECISION):
        return [entry._replace(constants=on_cuda_cores(entry.constants, gpu)) for entry in found]
    return found


def _known(
    kind: str, gpu: Gpu, precisions: Sequence[str], engine: str, latent: bool, shape: tuple[float, ...]
) -> Sequence[Entry]:
    entries = [entry for entry in read_table(kind) if entry.kernel.startswith("MLA") == latent or kind not in ATTENTION]
    plain = [entry for entry in entries if entry.framework == PYTORCH]
    near = engine == PYTORCH and any(alike(gpu, donor) for donor in _gpus_of(plain).values())
    entries = plain if near else [entry for entry in entries if entry.framework != PYTORCH]
    usual = [entry for entry in entries if _usual(kind, entry)]
    if shape:
        exact = [entry for entry in entries if shape in entry.shapes and entry.kernel not in _SLOW_EXPERTS]
        covered = {(entry.gpu, entry.framework, entry.precision) for entry in exact if _usual(kind, entry)}
        usual += [entry for entry in exact if (entry.gpu, entry.framework, entry.precision) not in covered]
    for own in (usual, entries):
        for precision in precisions:
            same = [entry for entry in own if entry.precision == precision]
            here = of_shape(_of_engine([entry for entry in same if entry.gpu == gpu.name], engine), shape)
            if here:
                known = here if precision == precisions[0] else [entry._replace(error_percent=nan) for entry in here]
                return of_shape([*known, *_unmeasured(kind, here, same, gpu)], shape)
    others = [entry for entry in usual if entry.precision in precisions]
    if not others:
        raise ValueError(f"{TABLE} holds no constants of a {kind} kernel in {' or '.join(precisions)}")
    gpus = _gpus_of(others)
    ranks = {name: min(precisions.index(entry.precision) for entry in others if entry.gpu == name) for name in gpus}

    def rank(name: str) -> tuple:
        # A kernel in the wanted precision of another generation might not run here.
        *apart, rates = distance(gpu, gpus[name], kind, latent)
        return *apart, ranks[name], rates

    donor = min(gpus, key=rank)
    same = [entry for entry in others if entry.gpu == donor and entry.precision == precisions[ranks[donor]]]
    return [_transferred(entry, gpus[donor], gpu) for entry in of_shape(_of_engine(same, engine), shape)]


def of_shape(entries: Sequence[Entry], shape: tuple[float, ...]) -> Sequence[Entry]:
    """Return the kernels that were measured with a shape, else with narrower and wider heads, else all."""
    exact = [entry for entry in entries if shape in entry.shapes]
    heads = [entry for entry in entries if entry.shapes and len(shape) == 1]
    return exact or [entry for entry in heads if entry.shapes[0] < shape < entry.shapes[-1]] or entries


def _unmeasured(kind: str, here: Sequence[Entry], same: Sequence[Entry], gpu: Gpu) -> Sequence[Entry]:
    """Return an engine's kernels that were measured on other GPUs that run the same code, but not on this one.

    Engines have several for a mixture of experts and take the fastest; which of them a GPU's table has is up to who
    measured it: TensorRT-LLM's for few tokens in nvfp4 are in those of B200 and GB200, and not of B300 and GB300 (which
    a GB300's served runs showed: they were predicted a fifth too slow).
    """
    if kind != "moe":
        return ()
    known = {(entry.framework, entry.kernel) for entry in here}
    others = [entry for entry in same if (entry.framework, entry.kernel) not in known and entry.gpu != gpu.name]
    donors = _gpus_of(others)
    near = [other for other in donors.values() if alike(other, gpu)]
    found = {}
    for donor in sorted(near, key=lambda other: distance(gpu, other, kind)):
        for entry in others:
            if entry.gpu == donor.name and entry.framework in {framework for framework, _ in known}:
                found.setdefault((entry.framework, entry.kernel), _transferred(entry, donor, gpu))
    return tuple(found.values())


def recurrent_candidates(kind: str, gpu: Gpu, engine: str, family: str, named: str = "") -> Sequence[Entry]:
    """Return the constants of the kernels of linear attention and SSMs that may run on a GPU; as :func:`candidates`.

    Parameters
    ----------
    family : str
        ``KDA `` for Kimi Delta Attention, empty for the gated delta rule and Mamba-2.
    named : str
        What the kernel's name contains.
    """
    entries = [
        entry
        for entry in read_table(kind)
        if entry.kernel.startswith("KDA ") == bool(family)
        and named in entry.kernel
        and entry.constants.launch_s < HOST_BOUND_S
        and not _FUSED.search(entry.kernel)
    ]
    return _here_or_transferred(kind, gpu, engine, entries)


def backward_candidates(gpu: Gpu) -> Sequence[Entry]:
    """Return the constants of attention's backward kernels measured on a GPU that runs the same code; maybe none."""
    entries = read_table("backward")
    donors = [donor for donor in _gpus_of(entries).values() if alike(gpu, donor)]
    if not donors:
        return ()
    donor = min(donors, key=lambda other: (other.name != gpu.name, distance(gpu, other, "backward")))
    found = [entry for entry in entries if entry.gpu == donor.name]
    return found if donor.name == gpu.name else [_transferred(entry, donor, gpu) for entry in found]


def encoder_candidates(gpu: Gpu, engine: str, head_dim: float) -> Sequence[Entry]:
    """Return the constants of the kernels of encoder attention that may run on a GPU; as :func:`candidates`.

    Each width of a head is a kernel of its own. Of a width that nobody measured, those of the nearest stand in (their
    law counts its work), and their error is not known.
    """
    # The last word of a kernel's name in the table is the width.
    widths = {entry: int(entry.kernel.rpartition(" ")[2]) for entry in read_table("encoder")}
    nearest = min(widths.values(), key=lambda width: (abs(width - head_dim), width))
    entries = [entry for entry, width in widths.items() if width == nearest]
    if nearest != head_dim:
        entries = [entry._replace(error_percent=nan) for entry in entries]
    return _here_or_transferred("encoder", gpu, engine, entries)


def _here_or_transferred(kind: str, gpu: Gpu, engine: str, entries: Sequence[Entry]) -> Sequence[Entry]:
    here = [entry for entry in entries if entry.gpu == gpu.name]
    if here:
        return _of_engine(here, engine)
    donor = nearest_gpu(gpu, _gpus_of(entries).values(), kind)
    found = _of_engine([entry for entry in entries if entry.gpu == donor.name], engine)
    return [_transferred(entry, donor, gpu) for entry in found]


def _gpus_of(entries: Sequence[Entry]) -> dict[str, Gpu]:
    return {entry.gpu: find_gpu(entry.gpu, file=TABLE) for entry in entries}


def _transferred(entry: Entry, donor: Gpu, gpu: Gpu) -> Entry:
    return entry._replace(constants=transferred(entry.constants, donor, gpu), error_percent=nan)


#: Engines that quantise activations in kernels of their own; TensorRT-LLM does where scales are of blocks
#: (``fp8_quantize_1x128`` or ``per_token_quant_and_transform`` before each product, ``_torch/custom_ops``), and served
#: runs on Hopper and Blackwell agree.
SEPARATE = ("vllm", "sglang", ("trtllm", "fp8_block"))
#: Kinds that are attention.
ATTENTION = ("prefill", "decode")


@cache
def _is_set_aside(kernel: str) -> bool:
    return bool(_SET_ASIDE.search(kernel))


def _usual(kind: str, entry: Entry) -> bool:
    if kind == "gemm":
        return not entry.constants.host_s
    if kind == "moe" and entry.kernel in _SLOW_EXPERTS:
        return False
    return not _is_set_aside(entry.kernel) or (kind == "decode" and entry.kernel.endswith("trtllmdecode"))


def _of_engine(entries: Sequence[Entry], engine: str) -> Sequence[Entry]:
    return [entry for entry in entries if entry.framework == engine] or entries


def gemm_entries(gpu: Gpu, precision: str, engine: str = "") -> Sequence[Entry]:
    """Return the constants of the GEMMs that may run where activations already have their precision.

    The kernel before it (norm, activation or attention) writes them in that precision and pays for it. Where the
    constants were fitted to measurements that include a separate conversion, its traffic is removed, and its launches
    are replaced by those of a GEMM in bf16.

    Returns
    -------
    sequence of Entry
        Never empty. Of an engine's own kernels the one with the shortest launch. Else the one with the shortest
        launch among those whose library is free to choose its tile, because a dispatch table may leave single rows
        slow; without such a library, of each way to choose tiles the one with the shortest launch, so that the fastest
        can be taken for a shape. The least of several fits of one kernel would be their errors'.
    """
    found: dict[object, Entry] = {}
    entries = candidates("gemm", gpu, (precision, *RELATED.get(precision, ("bf16",))), engine)
    named = any(entry.framework == engine for entry in entries)
    for entry in sorted(entries, key=lambda entry: entry.constants.launch_s):
        found.setdefault("" if named else rule_of(gpu, entry.constants.dispatch), entry)
    chosen = [found[ANY]] if ANY in found else found.values()
    return [_without_conversion(entry, gpu, precision, engine) for entry in chosen]


def _without_conversion(entry: Entry, gpu: Gpu, precision: str, engine: str) -> Entry:
    # Engines launch decode steps from a captured graph.
    own = entry._replace(constants=replace(entry.constants, host_s=0.0))
    if not own.constants.conversion_bytes or engine in SEPARATE or (engine, precision) in SEPARATE:
        return own
    launch_s = min(own.constants.launch_s, gemm_entries(gpu, "bf16", engine)[0].constants.launch_s)
    return own._replace(constants=replace(own.constants, conversion_bytes=0.0, conversion_row_s=0.0, launch_s=launch_s))


def described(entry: Entry) -> str:
    """Return whose constants they are, in words."""
    return f"{entry.framework} {entry.kernel} {entry.precision}, {entry.constants.source}"


def origin(words: str) -> str:
    """Return where constants that :func:`described` put in words come from: a GPU, or data sheets."""
    donor = re.search(r"transferred from (\S+):", words)
    if donor:
        return donor[1]
    if "attention blocks" in words:
        return "whole blocks on the same GPU"
    # An A100's operators without matrix work, at the rates of the GPU's own data sheet.
    return "the same GPU in another format" if "fitted to" in words else "data sheets"


def fastest(entries: Sequence[Entry], law: Callable[[Entry], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the terms of the kernel that takes the least time, row by row, and whose constants they are.

    An engine with a good heuristic would choose it.
    """
    every = [law(entry) for entry in entries]
    best = np.argmin([terms["time_s"] for terms in every], axis=0), np.arange(len(every[0]["time_s"]))
    terms = {name: np.array([one[name] for one in every])[best] for name in every[0]}
    words = np.array([described(entry) for entry in entries], dtype=object)
    errors = np.array([entry.error_percent for entry in entries])
    return terms | {"constants": words[best[0]], "error_percent": errors[best[0]]}
