"""The closed form: FADD, FMUL and FFMA of one SIMT SGEMM launch and of the small kernels around it."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.kernel_names import parse, template_arguments

#: K elements per step and slice of cuBLAS's SIMT SGEMM kernels; CUTLASS states its own in the kernel name.
SIMT_K_STEP = 8
#: SMs and threads per SM of an A100, which decide how PyTorch splits a large sum over blocks.
SMS, THREADS_PER_SM = 108, 2048
_MODELLED = re.compile(
    r"(?:maxwell|pascal|volta|turing|ampere)_sgemm_\d{1,4}x\d{1,4}(?:_sliced1x\d{1,2})?_[nt]{2}"
    r"|cutlass_\d{2,3}_simt_sgemm_\d{1,4}x\d{1,4}_\d{1,3}x\d{1,2}_[nt]{2}(?:_align\d{1,2})?"
)
_CHECKED = re.compile(r"ampere_|cutlass_80_|sm80_xmma_gemm_f32f32_f32f32_f32_(?:tn|nt|nn)_|sgemm_largek_")
#: Layouts, in cuBLAS's column-major sense, in which A (t) or B (n) lies along K.
_ALONG_K = re.compile(r"_(?:t[nt]|nn)(?:_|$)")
#: What cuBLAS 13 launches in fp32 on Hopper, and its kernels for few outputs of a large K.
_XMMA = re.compile(r"sm\d{2,3}_xmma_gemm_f32f32_f32f32_f32_[nt]{2}_n_tilesize\w{1,80}_ffma_\w{1,80}_execute_kernel\w*")
_XMMA_REDUCE = re.compile(r"sm\d{2,3}_xmma_gemm_\w{1,200}_execute_split_k_kernel\w*")
_LARGE_K = "sgemm_largek_lds64"
#: The multiples that parts of K have: in kernels for a large K; in CUTLASS's, a cache line of fp32 where A or B lies
#: along K in whole lines, else 16 bytes (CUTLASS, gemm/kernel/params_universal_base.h).
_PART_OF_LARGE_K, _LINE, _ALIGNED = 8, 32, 4
_COUNTERS = ("fadd", "fmul", "ffma")


def integer_column(frame: pd.DataFrame, column: str, file: str | Path, minimum: int) -> pd.Series:
    """Return a column of counts as Int64, ``<NA>`` where it is absent; InputError for anything but a count."""
    if column not in frame:
        return pd.Series(pd.NA, index=frame.index, dtype="Int64", name=column)
    values = pd.to_numeric(frame[column], errors="coerce")
    bad = frame[column].notna() & ~(values.between(minimum, 2**62) & (values % 1 == 0)).fillna(False)
    if bad.any():
        row = int(bad.to_numpy().argmax())
        problem = f"{frame[column].iloc[row]!r} is not an integer ≥ {minimum}"
        first = frame.index.start if isinstance(frame.index, pd.RangeIndex) else 0  # of a part of a file
        raise InputError(file, f"row {first + row + 1}, column {column}", problem, "give whole counts")
    return values.astype("Int64")


def _ceil_div(a: pd.Series, b: pd.Series) -> pd.Series:
    return -(-a // b)


def _whole_quotient(a: pd.Series, b: pd.Series) -> pd.Series:
    return (a // b).where((a % b == 0) & (a > 0))


def predict_gemm(launches: pd.DataFrame, *, file: str | Path = "GEMM launches") -> pd.DataFrame:
    """Predict the floating-point instructions that GEMM launches execute.

    For ``ampere_sgemm_{Tm}x{Tn}[_sliced1x{L}]_{tn|nn|nt}`` and C[M, N] = A[M, K]·B[K, N] (cuBLAS is column-major,
    so Tm tiles N and Tn tiles M)::

        tiles = ⌈N/Tm⌉·⌈M/Tn⌉            pad = tiles·Tm·Tn          s = blocks of the grid / tiles   (split-K)
        FMUL  = s·pad·L                   alpha times every partial result
        FADD  = s·pad·(L − 1)             sum of the slices in a block
        FFMA  = pad·(Σ_i ⌈k_i/8L⌉·8L + e) with split-K chunks k_i of ⌈K/s⌉
        e     = 0 with a separate reduction kernel, else s − 1, and 1 more when C is read (beta ≠ 0)

    ``sgemm_largek_lds64<_, _, p, q, r, …>`` is the same with Tm = 2^p, Tn = 2^q, K steps of 2^r, e = s, and parts of K
    that are multiples of 8. CUTLASS's are multiples of 32 where A or B lies along K and K is one, else of 4; its grid
    has s in z and, where it is swizzled, more blocks than tiles in x and y.
    ``sm80_xmma_gemm_f32f32_…_tilesize{Tn}x{Tm}x{Tk}_…_ffma_…`` multiplies by alpha and adds C in one instruction:
    FMUL = 0, FADD = (s − 1)·pad, e = 1, and with a separate reduction kernel FADD = e = 0; all its parts are as long as
    the longest, Σ = s·⌈⌈K/s⌉/8⌉·8.

    Derived for this project and checked launch by launch on Ampere's cuBLAS and CUTLASS SIMT kernels on an A100. The
    forms of cuBLAS 13.1's were found in an H200's recordings of forward passes, and of parts of K in those of backward
    passes, which they meet; others with the same naming are predicted and marked. No factor is fitted. Two integers may
    have to be read off the counters: s off FMUL where the recording has no grid (FADD, FFMA and the reduction remain
    checks), and whether C is read off FFMA. The ``*_source`` columns say where each came from.

    Parameters
    ----------
    launches : pandas.DataFrame
        One row per launch. ``kernel`` (str) and ``m, n, k`` (integers; may be missing where unknown: FADD and
        FMUL need only the grid). Optional: ``grid_blocks`` (blocks of the grid), ``grid`` (``(x, y, z)``), ``split_k``
        (s, where known otherwise), ``fadd, fmul, ffma`` (counted thread instructions), ``followed_by_reduce`` (bool: a
        split-K reduction kernel follows) and ``accumulates`` (bool: C is read, as with a bias copied to C beforehand).

    Returns
    -------
    pandas.DataFrame
        Same index as the input. ``tiled`` (the closed form applies, and the kernel is not one of a large K),
        ``tile_m``, ``tile_n``, ``slices``, ``s``,
        ``split_k_source`` (given, grid, counters, unknown), ``pad``, ``e``, ``epilogue_source`` (launches,
        counters, assumed), ``fadd_predicted``, ``fmul_predicted``, ``ffma_predicted``, ``flops_predicted``,
        ``flops_2mnk``, the parts of the excess over 2·M·N·K in FLOP (``excess_padding``, ``excess_alpha``,
        ``excess_slices``, ``excess_epilogue``) and ``explanation``. Counts are Int64, ``<NA>`` where not
        predicted.
    """
    tiled, xmma, large_k, cutlass, along_k, checked, tile_m, tile_n, k_step, slices = _read_names(launches["kernel"])
    m, n, k, grid, given = (integer_column(launches, name, file, 1) for name in (*"mnk", "grid_blocks", "split_k"))
    extents = launches.get("grid", pd.Series(None, launches.index, "str")).astype("str")
    in_z = pd.to_numeric(extents.str.extract(r"[, ]([1-9]\d{0,4})\)$")[0]).astype("Int64")
    _, fmul, ffma = (integer_column(launches, column, file, 0) for column in _COUNTERS)
    result, accumulates = (
        launches.get(name, pd.Series(pd.NA, launches.index)).astype("boolean")
        for name in ("followed_by_reduce", "accumulates")
    )
    result = result.fillna(False).astype(bool)
    work = (m.fillna(1) + 1024.0) * (n.fillna(1) + 1024.0) * (k.fillna(1) + 1024.0)
    if (work > 2.0**54).any() or (grid > 2**38).any() or (given > 2**14).any():
        raise InputError(file, "m, n, k, grid_blocks, split_k", "a launch is absurdly large", "check shape and grid")
    # What is unknown stays unknown through the arithmetic.
    tiles = _ceil_div(n, tile_m) * _ceil_div(m, tile_n)
    pad = tiles * tile_m * tile_n
    shaped = pad.notna()

    # Split-K factor: given, else from the grid, else from the counters.
    source = np.select(
        [~shaped, given.notna(), grid.notna(), fmul.notna()], ["unknown", "given", "grid", "counters"], "unknown"
    )
    s = _whole_quotient(grid, tiles).where(grid.notna(), _whole_quotient(fmul, pad * slices))
    fitting = (grid % in_z == 0) & (grid // in_z >= tiles)
    s = s.mask(cutlass & in_z.notna() & grid.notna(), in_z.where(fitting.fillna(False)))
    s = given.fillna(s).where(shaped)
    known = s.notna()

    chunk = _ceil_div(k, s)
    multiple = pd.Series(1, launches.index, "Int64").mask(large_k, _PART_OF_LARGE_K).mask(cutlass, _ALIGNED)
    multiple = multiple.mask(cutlass & along_k & (k % _LINE == 0).fillna(False), _LINE)
    chunk = _ceil_div(chunk, multiple) * multiple
    longest = _ceil_div(chunk, k_step) * k_step
    k_padded = ((k // chunk) * longest + _ceil_div(k % chunk, k_step) * k_step).mask(xmma, s * longest)
    from_counters = accumulates.isna() & ffma.notna() & ~result
    reads_c = accumulates.fillna(from_counters & (ffma == pad * (k_padded + s)).fillna(False))
    e = (s - 1 + reads_c.astype("Int64")).mask(xmma, 1).mask(result, 0).mask(large_k, s).where(known)
    epilogue_source = np.select(
        [~known, xmma | large_k | result | accumulates.notna(), from_counters],
        ["unknown", "launches", "counters"],
        "assumed",
    )

    # Without a shape the grid alone gives s·pad.
    grid_only = tiled & ~shaped & grid.notna()
    partials = (s * pad).mask(grid_only, grid * tile_m * tile_n)
    added, multiplied, multiply_added = partials * (slices - 1), partials * slices, pad * (k_padded + e)
    added = added.mask(xmma, ((s - 1) * pad).mask(result, 0))
    multiplied = multiplied.mask(xmma & multiplied.notna(), 0)
    fused = multiply_added.notna()
    out = pd.DataFrame(
        {
            "kernel": launches["kernel"],
            "tiled": tiled & ~large_k,
            "tile_m": tile_m,
            "tile_n": tile_n,
            "slices": slices,
            "s": s,
            "split_k_source": np.where(known, source, "unknown"),
            "pad": pad,
            "e": e,
            "epilogue_source": epilogue_source,
            "fadd_predicted": added,
            "fmul_predicted": multiplied,
            "ffma_predicted": multiply_added,
            "flops_predicted": added + multiplied + 2 * multiply_added,
            "flops_2mnk": 2 * m * n * k,
            "excess_padding": 2 * (pad * k_padded - m * n * k),
            "excess_alpha": multiplied.where(fused),
            "excess_slices": added.where(fused),
            "excess_epilogue": (2 * pad * e).where(fused),
        }
    )
    state = np.select(
        [fused, ~tiled, grid_only, (source != "unknown") & ~known, k.isna()],
        ["predicted", "not tiled", "grid only", "not whole", "no k"],
        default="no split",
    )
    out["explanation"] = [
        _explain(row, is_checked) if kind == "predicted" else _STATES[kind]
        for row, is_checked, kind in zip(out.itertuples(), checked, state, strict=True)
    ]
    return out


class _Named(NamedTuple):
    """What the names of kernels state, launch by launch: whether the closed form applies and which, and the tile."""

    tiled: pd.Series
    xmma: pd.Series
    large_k: pd.Series
    cutlass: pd.Series
    along_k: pd.Series  # whether A or B lies along K
    checked: list[bool]  # whether the form was checked on such a kernel
    tile_m: pd.Series
    tile_n: pd.Series
    k_step: pd.Series
    slices: pd.Series


def _read_names(kernels: pd.Series) -> _Named:
    parsed = {name: parse(name) for name in kernels.unique()}
    facts = [parsed[name] for name in kernels]
    named = [bool(fact.tile_m and fact.tile_n and fact.tile_k != 0) and fact.base for fact in facts]
    xmma = pd.Series([bool(base and _XMMA.fullmatch(base)) for base in named], kernels.index, bool)
    large = {name: _large_k_tile(name) for name, fact in parsed.items() if fact.base == _LARGE_K}
    large_k = kernels.map(lambda name: large.get(name) is not None).astype(bool)
    tiled = pd.Series([bool(base and _MODELLED.fullmatch(base)) for base in named], kernels.index, bool)
    tiled |= xmma | large_k
    cutlass = pd.Series([fact.base.startswith("cutlass_") for fact in facts], kernels.index, bool) & tiled
    along_k = pd.Series([_ALONG_K.search(fact.base) is not None for fact in facts], kernels.index, bool)
    checked = [_CHECKED.match(fact.base) is not None for fact in facts]

    def stated(attribute: str, default: int) -> pd.Series:
        return pd.Series([getattr(fact, attribute) or default for fact in facts], kernels.index, "Int64").where(tiled)

    tile_m, tile_n, slices = stated("tile_m", 1), stated("tile_n", 1), stated("slices", 1)
    tile_m, tile_n = tile_m.mask(xmma, tile_n), tile_n.mask(xmma, tile_m)
    own = [large.get(name) or (pd.NA,) * 3 for name in kernels]
    tile_m, tile_n, k_step = (
        values.mask(large_k, pd.Series([tile[place] for tile in own], kernels.index, "Int64"))
        for place, values in enumerate((tile_m, tile_n, stated("tile_k", SIMT_K_STEP) * slices))
    )
    return _Named(tiled, xmma, large_k, cutlass, along_k, checked, tile_m, tile_n, k_step, slices)


_STATES = {
    "not tiled": "not a tiled SIMT SGEMM kernel: the closed form does not apply, 2·M·N·K alone is stated",
    "grid only": "FADD and FMUL from name and grid; FFMA needs the shape",
    "not whole": "the grid (or FMUL) is not a whole multiple of the tiles of this shape: not predicted",
    "no k": "FADD and FMUL from name and shape; FFMA needs K",
    "no split": "no grid, counters or split-K factor: not predicted",
}


def _explain(row: tuple, checked: bool) -> str:
    """Describe what a launch's FLOPs beyond 2·M·N·K consist of."""
    padding, alpha, summed, epilogue = row.excess_padding, row.excess_alpha, row.excess_slices, row.excess_epilogue
    total = padding + alpha + summed + epilogue
    words = [f"{padding:,} padding to whole tiles and K steps"] if padding else []
    words += [f"{alpha:,} alpha × {'partial results' if row.s * row.slices > 1 else 'results'}"] if alpha else []
    words += [f"{summed:,} sums of {f'{row.slices} slices' if alpha else f'{row.s} parts of K'}"] if summed else []
    words += [f"{epilogue:,} {'accumulation into C' if alpha else 'alpha × results and C'}"] if epilogue else []
    words = words or ["nothing"]
    split = f", split-K {row.s}" if row.s > 1 else ""
    text = f"{total:,} FLOP ({total / row.flops_2mnk:.2%}) beyond 2·M·N·K{split}: {', '.join(words)}"
    return text if checked else f"{text}; form not checked on such kernels"


def predict_split_k_reduce(
    kernels: pd.Series,
    outputs: np.ndarray,
    s: np.ndarray,
    *,
    bias: np.ndarray | bool = False,
    accumulates: np.ndarray | bool = False,
) -> pd.DataFrame:
    """Predict the instructions of split-K reduction kernels.

    FMUL = outputs (alpha); FADD = s·outputs, or (s + 1)·outputs if the kernel adds a bias, which the last template
    arguments of cuBLAS 13 say; FFMA = outputs if it reads C (beta ≠ 0), else 0. The kernel of cuBLAS 11.1
    (recognised by its four template arguments, all types) always executes the addition of a bias, with or without one:
    298 of 298 launches of the A100 Linear set. The one that belongs to ``xmma`` kernels multiplies by alpha and adds C
    in one instruction: FMUL = 0, FFMA = outputs.

    Parameters
    ----------
    outputs, s : array_like of int
        Elements of C and split-K factor, per launch.
    bias, accumulates : array_like of bool
        Whether the kernel adds a bias vector; whether it reads C.

    Returns
    -------
    pandas.DataFrame
        ``fadd_predicted``, ``fmul_predicted``, ``ffma_predicted``, ``flops_predicted`` (Int64), with the index
        of ``kernels``.
    """
    fixed = {name: _adds_always(name) for name in kernels.unique()}
    outputs, s = np.asarray(outputs, dtype=np.int64), np.asarray(s, dtype=np.int64)
    extra = kernels.map(fixed).to_numpy(dtype=bool) | np.asarray(bias, dtype=bool)
    fused = kernels.map(lambda name: _XMMA_REDUCE.fullmatch(parse(name).base) is not None).to_numpy(dtype=bool)
    fadd, fmul = (s + extra) * outputs, outputs * ~fused
    ffma = outputs * (fused | np.asarray(accumulates, dtype=bool))
    frame = {"fadd_predicted": fadd, "fmul_predicted": fmul, "ffma_predicted": ffma}
    return pd.DataFrame({**frame, "flops_predicted": fadd + fmul + 2 * ffma}, kernels.index, dtype="Int64")


def _adds_always(name: str) -> bool:
    """Whether a reduction kernel adds a bias whatever is asked for, or is the one that does."""
    arguments = template_arguments(name)
    if len(arguments) == 15 and arguments[-3] in ("1", "true"):
        return True
    return len(arguments) == 4 and not any(re.search(r"\d|true|false", a.replace("float32", "")) for a in arguments)


def _large_k_tile(name: str) -> tuple[int, int, int] | None:
    """Tile over N and over M, and K step, of a kernel for few outputs of a large K; None if its name says neither."""
    powers = template_arguments(name)[2:5]
    if len(powers) < 3 or not all(re.fullmatch(r"\d{1,2}", power) and int(power) < 12 for power in powers):
        return None
    return 2 ** int(powers[0]), 2 ** int(powers[1]), 2 ** int(powers[2])


def predict_sum_reduction(elements: int) -> int:
    """Predict the FADDs of PyTorch's sum over a whole contiguous fp32 tensor (``at::native::reduce_kernel``).

    ``elements − 1`` additions are needed. ATen executes more: every thread adds into four accumulators that start from
    zero and joins them; the block then reduces through shared memory down to one warp, and by warp shuffles in which
    all threads add. Large inputs are split over blocks (as many as an A100 runs), and the last block repeats the tree
    on their results. Follows the launch rules of ATen/native/cuda/Reduce.cuh (512 threads, 16 to 256 values per
    thread).

    Parameters
    ----------
    elements : int
        Elements of the tensor, at least 1 and less than 2³¹.

    Returns
    -------
    int
        FADD thread instructions. Checked against a single published count, which it matches exactly (131,072
        elements on an A100: 207,344).

    Raises
    ------
    ValueError
        If the number of elements is out of range.
    """
    if not 1 <= elements < 2**31:
        raise ValueError(f"elements must be in [1, 2**31), not {elements}")
    lanes = elements // 4 if elements > 128 else elements  # vectorised loads of four
    threads = min(1 << (max(lanes, 1).bit_length() - 1), 512)
    per_thread = -(-elements // threads)
    blocks = 1
    if per_thread >= 256:
        target = SMS * (THREADS_PER_SM // threads)
        blocks = max(min(target, -(-per_thread // 16)), -(-per_thread // 256))
    shared, width = 0, threads
    while width > 32:
        width //= 2
        shared += width
    tree = shared + threads * (width.bit_length() - 1)
    last_block = blocks + tree if blocks > 1 else 0
    return elements + 3 * threads * blocks + blocks * tree + last_block
