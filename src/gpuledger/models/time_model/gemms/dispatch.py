"""Which tiles a kernel may take: any of its generation, or the one that its library's dispatch table names for a shape.

cuBLAS, cuBLASLt, DeepGEMM and profiled kernels have many tiles, and a heuristic or a measurement that chooses well: the
model takes the fastest. The CUTLASS kernels of serving engines are compiled with a handful of tiles, and the host code
picks one by m, sometimes by n, and never splits k. The tables below are facts from that code:

* vLLM, ``csrc/quantization/w8a8/cutlass``: ``scaled_mm_c2x_sm89_fp8_dispatch.cuh`` and
  ``c3x/scaled_mm_sm{90,100,120}_fp8_dispatch.cuh``;
* SGLang, ``sgl-kernel/csrc/gemm/fp8_gemm_kernel.cu``; for Hopper since pull request 25532 (2026)
  ``csrc/cutlass_extensions/gemm/fp8_gemm_sm90_dispatch.cuh``, with the tiles of vLLM's.

DeepGEMM picks its tile by a rule (:mod:`gpuledger.models.time_model.gemms.wave_fill`), on Hopper in SGLang by another
one (:mod:`gpuledger.models.time_model.gemms.layout_cost`). SGLang converts activations for it in groups of 128 values:
a thread block takes 16, or as many as the largest power of two that divides the number of all (``sgl-kernel/csrc/gemm/
per_token_group_quant_8bit.cu``), so that odd numbers of rows may need eight times as many blocks. For SGLang's own fp8
kernel a block converts a row, and from 16 rows an SM on eight of them, each by one warp (``per_token_quant_fp8.cu``).
DeepGEMM's scales of rows lie in groups of four on data centre Blackwell: other numbers of rows have to be padded first.
That this takes the host a third longer, and that a single row takes vLLM's fp8 kernel there as long as three further
launches, was chosen on a B200's and a GB200's tables, held-back errors in sight; why a single row does is not in the
code named here.

On Ada SGLang's fp8 kernel reads activations beyond L2 again for each column of tiles; vLLM's does not, but two of its
tiles take as long as a further launch, nearly, and its time grows with the number of blocks, on one SM as on all, by
1.25 cycles for a row of their tiles, more than twice that with 256 rows, hardly with 16 (`_HELD_UP`). The code does not
explain that: all chosen on an L40S's tables, held-back errors in sight.

FlashInfer's nvfp4 kernel scores its tiles (:mod:`gpuledger.models.time_model.gemms.flashinfer_fp4`).

TensorRT-LLM profiles its nvfp4 kernels on data centre Blackwell; all have 128 rows an SM, and 64 to 256 columns
(``cpp/tensorrt_llm/kernels/cutlass_kernels/fp4_gemm``, ``tensorrt_llm/_torch/custom_ops/cute_dsl_custom_ops.py``).
On Blackwell Ultra only 128 and 256 columns are compiled, and CUTLASS's kernels for it take 768 values along k in a
step: so do the times. There, as in the code (``NoSmemWarpSpecialized``), threads write their rows of results directly,
not through shared memory: the SM does nothing else meanwhile, and a block writes no faster where it is one of few. The
tables of B300 and GB300 agree that results then take 1.8 times as long to leave where a row of them is no power of two
long, which the next tile's steps hide (`_SCATTERED`; not so on a B200, which copies in bulk). The ring of steps in
shared memory holds both operands, and only the weights' share of it is on its way from DRAM (`_RING`). Both were
chosen on these two tables, held-back errors in sight: 5.8 and 5.6 % became 4.5 and 4.3.

Before TensorRT-LLM's fp8 products a kernel looks for the largest value: 1024 blocks of 1024 threads, each with one
value in a pass (``cpp/tensorrt_llm/common/cudaFp8Utils.cu``). A B200's times say that its loop fetches for four passes
at once, and for each of the rest alone: 7 Mi values take longer than 8 Mi. That it all takes one more wait with 64 Ki
values and another with 1 Mi, of fewer in proportion, and that a wait for DRAM is 2.75 times as long, was chosen on the
tables of B200, GB200, B300 and GB300, held-back errors in sight.
On an H100 and an L40S the traffic is all that counts.

TensorRT-LLM's int8 plugin computes up to four rows with a kernel for vectors, whose threads share k.

What cuBLAS does beyond taking the fastest tile says :mod:`gpuledger.models.time_model.gemms.cublas`.

On data centre Blackwell two SMs compute a tile together where the cluster allows it; the tables name one SM's half. A
grid is rounded up to whole clusters: at m of 257, Hopper's tiles of 128 rows in clusters of two compute 512.
"""

from typing import NamedTuple

import numpy as np

from gpuledger.models.time_model.gemms import cublas, flashinfer_fp4, layout_cost
from gpuledger.models.time_model.gemms.tiles import WARP_GROUP, generation_of, nvjet_tiles, stacked
from gpuledger.models.time_model.gemms.wave_fill import RULES, tiles_of
from gpuledger.readers.gpus import Gpu

#: The name of the free choice among all tiles of a generation.
ANY = "any"
_ALL = np.iinfo(np.int64).max
#: Elements of all tiles that an SM computes side by side, where the choice is free.
_HELD = 2.0 * 128 * 128


class _TileRule(NamedTuple):
    """A tile (m × n) for shapes of at most so many rows and columns.

    `step` elements along k are fetched at once; so many blocks along m and n start together, needed or not; an SM holds
    so many side by side (one takes all shared memory for its steps on their way). It takes so many launches' time more.
    """

    rows: int
    columns: int
    tile_m: int
    tile_n: int
    step: int = 128
    cluster_m: int = 1
    cluster_n: int = 1
    held: int = 1
    launches: float = 0.0


# Kernels whose few blocks begin no sooner than many; so do all with a table.
_TOGETHER = ("tensorrt-deepgemm",)
# Bytes of partial sums that an SM writes or reads in a cycle.
_PARTIAL = {"sm100": 12.0}

# The first rule that covers a shape holds.
_TABLES: dict[tuple[str, str], tuple[_TileRule, ...]] = {
    ("vllm-fp8", "sm89"): (
        _TileRule(16, 8192, 16, 64),
        _TileRule(16, 16384, 16, 128, 64),
        _TileRule(32, 8192, 32, 64, launches=0.8),
        _TileRule(32, 16384, 32, 128),
        _TileRule(32, _ALL, 32, 64),
        _TileRule(64, 8192, 64, 64, launches=0.8),
        _TileRule(64, 16384, 64, 128),
        _TileRule(64, _ALL, 64, 64),
        _TileRule(128, 8192, 64, 128),
        _TileRule(128, 16384, 128, 128, 64),
        _TileRule(128, _ALL, 128, 64),
        _TileRule(256, 4096, 64, 128),
        _TileRule(_ALL, 4096, 128, 128, 64),
        _TileRule(256, _ALL, 128, 128, 64),
        _TileRule(_ALL, 8192, 256, 128, 64),
        _TileRule(_ALL, _ALL, 128, 128, 64),
    ),
    ("vllm-fp8", "sm90"): (
        _TileRule(16, 1280, 16, 64, 256, 2),
        _TileRule(16, _ALL, 16, 64, 256),
        _TileRule(64, 1280, 16, 64, 256, 4),
        _TileRule(64, _ALL, 64, 64, 256),
        _TileRule(128, _ALL, 64, 128, 128, 2),
        _TileRule(_ALL, _ALL, 128, 128, 128, 2),
    ),
    ("vllm-fp8", "sm100"): (
        _TileRule(16, _ALL, 32, 64, 128, 1, 4),
        _TileRule(64, _ALL, 64, 64, 256, 1, 4),
        _TileRule(256, _ALL, 64, 128, 128, 2),
        _TileRule(_ALL, _ALL, 128, 128, 128, 2, 2),
    ),
    ("vllm-fp8", "sm120"): (
        _TileRule(16, _ALL, 16, 64),
        _TileRule(32, _ALL, 32, 64),
        _TileRule(256, _ALL, 64, 64),
        _TileRule(_ALL, _ALL, 128, 128),
    ),
    ("sglang-fp8", "sm89"): (
        _TileRule(16, 8192, 16, 64),
        _TileRule(16, 16384, 32, 64),
        _TileRule(64, 16384, 32, 64),
        _TileRule(64, _ALL, 16, 64),
        _TileRule(128, 16384, 64, 64),
        _TileRule(128, _ALL, 32, 64),
        _TileRule(256, 8192, 128, 64, 64),
        _TileRule(256, 16384, 64, 128, 64),
        _TileRule(256, _ALL, 128, 64),
        _TileRule(_ALL, _ALL, 128, 128, 64),
    ),
    ("sglang-fp8", "sm100"): (
        _TileRule(16, _ALL, 64, 64, 128, 1, 4),
        _TileRule(64, _ALL, 64, 64),
        _TileRule(256, _ALL, 64, 128, 128, 2),
        _TileRule(_ALL, _ALL, 128, 128, 64, 2, 2),
    ),
    ("sglang-fp8", "sm120"): (_TileRule(_ALL, _ALL, 128, 128),),
}
# SGLang took over vLLM's dispatch for Hopper.
_TABLES["sglang-fp8", "sm90"] = _TABLES["vllm-fp8", "sm90"]
# Tiles of a profiled kernel that are compiled; one fills an SM.
_COMPILED = {
    ("tensorrt-nvfp4", "sm100"): tuple(_TileRule(_ALL, _ALL, 128, columns, 256) for columns in (256, 192, 128, 64)),
    ("tensorrt-nvfp4", "sm103"): tuple(_TileRule(_ALL, _ALL, 128, columns, 768) for columns in (256, 128)),
}
# Kernels for vectors, beside a free choice for more rows.
_VECTORS = {"tensorrt-int8": _TileRule(4, _ALL, 4, 8, 2048, held=1024)}
# Further launches' worth of time for a single row.
_ROW_LAUNCHES = {("vllm-fp8", "sm100"): 3.0}
# Cycles for which a block holds up all others, by the rows of its tile.
_HELD_UP = {("vllm-fp8", "sm89"): {16: 0, 32: 40, 64: 80, 128: 160, 256: 750}}
# Bytes of a row of operands that one copy of data centre Blackwell's engine fetches.
_SHORT = 128.0
# Kernels that work their tiles off along the rows.
_ALONG_ROWS = (("sglang-fp8", "sm89"),)
# Share of the host's time that padding to groups of four rows takes.
_PADDING_CALLS = {("deepgemm", "sm100"): 1 / 3}
# Values along k that SGLang's DeepGEMM has one scale for; who picks tiles by their estimated cost.
_GROUP = 128
_BY_COST = ("sglang-deepgemm", "sm90")
# Of TensorRT-LLM's search for the largest value: values that all blocks compare in a pass, passes that fetch at once,
# numbers of values with a further wait, and by how many times a wait for DRAM is longer.
_SEARCHED, _UNROLLED, _FURTHER, _FROM_DRAM = 1024 * 1024, 4, (2.0**16, 2.0**20), 1.75
# Of TensorRT-LLM's nvfp4: how much longer rows of results that are no power of two long take to leave Blackwell Ultra's
# SMs, and the bytes in a cycle that a ring full of weights takes in from DRAM.
_SCATTERED, _RING = 1.8, 48.0
#: By a part of the kernel's name: its dispatch table.
_KERNELS = {
    "CutlassFP8ScaledMM": "vllm-fp8",
    "sgl_kernel_fp8_scaled_mm": "sglang-fp8",
    "SmoothQuantGemm": "tensorrt-int8",
    "sglang_deepgemm": "sglang-deepgemm",
    "deepgemm": "deepgemm",
    "DeepGemm": "deepgemm",
    "FlashInferCuteDslNvFp4": "vllm-nvfp4",
    "flashinfer_cutedsl_nvfp4": "sglang-nvfp4",
}
# Names of bf16 kernels of engines of 2025 and 2026, all of which are cuBLAS's.
_CUBLAS = ("torch_flow", "vllm_default", "torch.nn.functional.linear", "sglang", "sglang_torch_linear", "cublas")
#: Kernels whose name stands for several: their dispatch table by precision.
_NAMED = {
    **{(kernel, "bf16"): cublas.NAME for kernel in _CUBLAS},
    ("cublas", "fp8"): cublas.NAME,
    ("torch_flow", "fp8"): "tensorrt-fp8",
    ("torch_flow", "fp8_block"): "tensorrt-deepgemm",
    ("torch_flow", "fp4"): "tensorrt-nvfp4",
}
#: How architectures of Intel's and AMD's GPUs begin.
OTHER_MAKERS = ("xe", "cdna", "rdna")
#: Names whose kernels have all tiles and splits of k to choose from.
FREE = (ANY, cublas.NAME, "tensorrt-fp8")
#: All names that a row of constants may have.
NAMES = (
    *FREE,
    *dict.fromkeys(name for name, _ in (*_TABLES, *RULES, _BY_COST, *_COMPILED)),
    *_VECTORS,
    *flashinfer_fp4.NAMES,
)


def dispatch_of(gpu: Gpu, kernel: str, precision: str) -> str:
    """Return the name of the dispatch table of a kernel, as measurements call it; `ANY` if it has none.

    The tables are of NVIDIA's libraries: on GPUs of other makers the same names stand for other kernels.
    """
    if gpu.architecture.startswith(OTHER_MAKERS):
        return ANY
    named = _NAMED.get((kernel, precision), ANY)
    return next((name for part, name in _KERNELS.items() if part in kernel), named)


def rule_of(gpu: Gpu, name: str) -> object:
    """Return what the kernels of two names share if they take the same tiles on a GPU: `ANY` where they may take any.

    DeepGEMM has one rule in all engines on data centre Blackwell, and one in each on Hopper.
    """
    key = name, _compiled_for(gpu)
    own = key == _BY_COST or (key[1] == "sm100" and (key in _COMPILED or name in flashinfer_fp4.NAMES))
    return name if own else RULES.get(key) or _TABLES.get(key) or ANY


class Candidates(NamedTuple):
    """The tiles that each shape may take."""

    #: ndarray, shape (tiles, 7): rows, columns, elements of one step along k, blocks along m and n of a cluster, blocks
    #: that an SM holds side by side, cycles that a step stalls; float64.
    tiles: np.ndarray
    #: int64, shape (shapes,): those of a shape are ``tiles[first:last]``; one is no choice, and leaves k whole.
    first: np.ndarray
    last: np.ndarray
    #: float64, shape (shapes,), or float: further launches before the kernel, of its own length.
    launches: np.ndarray | float = 0.0
    held_up: np.ndarray | float = 0.0  # float64, shape (shapes,), or float: cycles for which blocks hold each other up
    calls: np.ndarray | float = 0.0  # float64, shape (shapes,), or float: by which share the host has more to call
    #: Thread blocks that convert the activations of one product, how often each of them fetches, and by how many times
    #: it waits longer where DRAM is read; None: one a row.
    converting: tuple[np.ndarray, np.ndarray | float, float] | None = None
    #: float64, shape (shapes,), or float: how often all activations pass, once for the columns of tiles that are under
    #: way at the same time: what L2 does not keep of them comes from DRAM each time.
    passes: np.ndarray | float = 1.0
    persistent: flashinfer_fp4.Persistent | None = None  # of a kernel whose blocks work off one tile after the other
    #: 1 where threads write results themselves: few blocks no faster than many, and nothing else meanwhile; else 0.
    direct: float = 0.0
    #: float64, shape (shapes,), or float: how much longer results then take until they have left.
    scattered: np.ndarray | float = 1.0
    #: Bytes of DRAM that an SM takes in in a cycle at most if its ring of steps holds weights only (0: any ring).
    ring: float = 0.0
    partial: float = 0.0  # bytes of partial sums in a cycle for each SM, busy or not (0: as busy ones take operands in)
    sooner: bool = True  # whether few blocks begin sooner than many
    whole: cublas.Whole = cublas.Whole()  # which products leave k whole
    least_k: np.ndarray | float = 0.0  # float64, shape (shapes,), or float: what k counts at least
    written: float = 1.0  # share of the results beyond L2 that DRAM is waited for
    crossed: float = 0.5  # how badly DRAM and the chain overlap: the weight of their squares' product
    short: float = 0.0  # bytes of a row of operands below which rows take twice as long to come in


def candidates(
    gpu: Gpu,
    name: str,
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    operand_bytes: float,
    single: np.ndarray | bool = True,
) -> Candidates:
    """Return the tiles that GEMMs, m × k by k × n, may take.

    Parameters
    ----------
    name : str
        One of `NAMES`; a table that says nothing about the GPU's generation leaves the choice free.
    m, n, k : ndarray of int64, shape (shapes,)
    operand_bytes : float
        Bytes of an operand's element.
    single : bool array of shape (shapes,), or bool
        Whether it is no batch of products.
    """
    key = name, _compiled_for(gpu)
    converting = _converting(name, m, k, gpu.sms)
    first = np.zeros(len(m), np.int64)
    if key == _BY_COST or key in RULES:
        if key == _BY_COST:
            tiles, stalls, chosen = layout_cost.tiles_of(m, n, k, gpu.sms)
        else:
            tiles, chosen = tiles_of(*key, m, n, gpu.sms)
            stalls = np.zeros(len(tiles))
        tiles = np.column_stack([tiles, np.tile([128.0, 1.0, 1.0, 1.0], (len(tiles), 1)), stalls])
        calls = _PADDING_CALLS.get(key, 0.0) * (m % 4 > 0)
        sooner = name not in _TOGETHER
        return Candidates(tiles, chosen, chosen + 1, calls=calls, converting=converting, sooner=sooner)
    if name in flashinfer_fp4.NAMES and key[1] == "sm100":
        tiles, chosen = flashinfer_fp4.tiles_of(m, n, k, gpu.sms)
        known, passes, scattered = flashinfer_fp4.persistent(name, m, n, k, *tiles[chosen, :2].T, gpu.sms)
        return Candidates(tiles, chosen, chosen + 1, passes=passes, persistent=known, scattered=scattered)
    ultra = name, "sm103"
    if compiled := _COMPILED.get(ultra if ultra in _COMPILED and _is_ultra(gpu) else key):
        tiles = np.array([(*rule[2:8], 0.0) for rule in compiled], dtype=float)
        direct = compiled is _COMPILED.get(ultra)
        scattered = np.where(direct & (n & (n - 1) > 0), _SCATTERED, 1.0)
        return Candidates(tiles, first, first + len(tiles), direct=float(direct), scattered=scattered, ring=_RING)
    rules = _TABLES.get(key)
    if rules is None:
        generation = generation_of(gpu)
        own = key[1] == "sm90" and name in FREE[1:]
        tiles = (nvjet_tiles(operand_bytes) if own else generation.tiles()).astype(float)
        step = np.full((len(tiles), 1), generation.step_bytes / operand_bytes)
        held = np.maximum(1.0, _HELD / tiles.prod(axis=1, keepdims=True))
        tiles = np.hstack([tiles, step, np.ones((len(tiles), 2)), held, np.zeros((len(tiles), 1))])
        last = first + len(tiles)
        if vector := _VECTORS.get(name):
            few = m <= vector.rows
            return Candidates(np.vstack([(*vector[2:8], 0.0), tiles]), first + ~few, np.where(few, 1, last + 1))
        of_cublas = name in (ANY, cublas.NAME) and operand_bytes == 2
        newer = of_cublas and name == cublas.NAME
        chosen = cublas.Choice(tiles, first, last)
        if of_cublas or own:
            chosen = cublas.choice(key[1], newer or own, tiles, (m, n, k), single, gpu, operand_bytes)
        # Chosen with held-back errors in sight, on data centre Blackwell.
        large = key[1] == "sm100" and name in FREE[1:]
        return Candidates(
            *chosen[:3],
            converting=converting,
            whole=cublas.WHOLE.get(key[1], cublas.Whole()) if of_cublas else cublas.Whole(),
            partial=_PARTIAL.get(key[1], 0.0),
            sooner=name not in _TOGETHER,
            least_k=chosen.least_k,
            written=0.0 if large else 1.0,
            crossed=1.0 if large else 0.5,
            short=_SHORT if large and newer else 0.0,
        )
    covered = [(m <= rule.rows) & (n <= rule.columns) for rule in rules]
    first = np.argmax(covered, axis=0)
    tiles = np.array([(*rule[2:8], 0.0) for rule in rules], dtype=float)
    launches = np.array([rule.launches for rule in rules])[first] + _ROW_LAUNCHES.get(key, 0.0) * (m == 1)
    down, across = (np.ceil(size / tile[first]) for size, tile in zip((m, n), tiles.T, strict=False))
    passes = np.ceil(down * across / np.maximum(down, gpu.sms)) if key in _ALONG_ROWS else 1.0
    cycles = np.array([_HELD_UP.get(key, {}).get(rule.tile_m, 0.0) for rule in rules])[first]
    held_up = cycles * down * across
    return Candidates(tiles, first, first + 1, launches, held_up, converting=converting, passes=passes, sooner=False)


def _converting(
    name: str, m: np.ndarray, k: np.ndarray, sms: int
) -> tuple[np.ndarray, np.ndarray | float, float] | None:
    if name == "sglang-deepgemm":
        # As many groups a block, up to 16, as the power of two that divides all of them.
        groups = m * -(-k // _GROUP)
        return groups // np.minimum(16, groups & -groups), 1.0, 0.0
    if name == "sglang-fp8":
        # 256 threads a row, of 16 values each; or a warp a row, 8 of them a block.
        warps = m >= 16 * sms
        return np.where(warps, -(-m // 8), m), np.where(warps, -(-k // 512), -(-k // 4096)), 0.0
    if name == "tensorrt-fp8":
        return np.full(len(m), sms), _waits(m * k), _FROM_DRAM
    return None


def _waits(values: np.ndarray) -> np.ndarray:
    """Return how often the search for the largest of all values waits, in the mean of its blocks."""
    passes, rest = np.divmod(values, _SEARCHED)
    last = rest / _SEARCHED
    before, after = (count // _UNROLLED + count % _UNROLLED for count in (passes, passes + 1))
    further = sum(np.minimum(1.0, values / enough) for enough in _FURTHER)
    return further + (1 - last) * before + last * after


def _is_ultra(gpu: Gpu) -> bool:
    # Blackwell Ultra multiplies three times as fast in 4 bits as in 8, Blackwell twice.
    return _compiled_for(gpu) == "sm100" and gpu.peak_flop_per_s("fp4") > 2.5 * gpu.peak_flop_per_s("fp8")


def _compiled_for(gpu: Gpu) -> str:
    large = generation_of(gpu) is WARP_GROUP
    if gpu.architecture == "ampere" and stacked(gpu):
        return "sm80"
    return {"ada": "sm89", "hopper": "sm90", "blackwell": "sm100" if large else "sm120"}.get(gpu.architecture, "")
