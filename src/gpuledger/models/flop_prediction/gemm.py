"""The closed form: FADD, FMUL and FFMA of one SIMT SGEMM launch and of the small kernels around it."""

import re
from pathlib import Path

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
_CHECKED = re.compile(r"ampere_|cutlass_80_")
_COUNTERS = ("fadd", "fmul", "ffma")


def _integers(frame: pd.DataFrame, column: str, file: str | Path, minimum: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a column as int64 and the mask of known rows; an absent column has no known row."""
    if column not in frame.columns:
        return np.zeros(len(frame), dtype=np.int64), np.zeros(len(frame), dtype=bool)
    values = pd.to_numeric(frame[column], errors="coerce")
    known = values.notna().to_numpy()
    filled = values.fillna(minimum).to_numpy()
    whole = filled.astype(np.int64)
    bad = known & ((whole != filled) | (whole < minimum))
    bad |= frame[column].notna().to_numpy() & ~known
    if bad.any():
        row = int(np.argmax(bad))
        value = frame[column].iloc[row]
        raise InputError(
            file, f"row {row + 1}, column {column}", f"{value!r} is not an integer ≥ {minimum}", "give whole counts"
        )
    return whole, known


def integer_column(frame: pd.DataFrame, column: str, file: str | Path, minimum: int) -> pd.Series:
    """Return a column of counts as Int64, ``<NA>`` where it is absent; InputError for anything but a count."""
    return pd.Series(_nullable(*_integers(frame, column, file, minimum)), index=frame.index, name=column)


def _flags(frame: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    if column not in frame.columns:
        return np.zeros(len(frame), dtype=bool), np.zeros(len(frame), dtype=bool)
    known = frame[column].notna().to_numpy()
    return np.where(known, frame[column].astype(object), False).astype(bool), known


def _ceil_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return -(-a // b)


def _nullable(values: np.ndarray, known: np.ndarray) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(np.where(known, values, 0).astype(np.int64), ~known)


def predict_gemm(launches: pd.DataFrame, *, file: str | Path = "GEMM launches") -> pd.DataFrame:
    """Predict the floating-point instructions that GEMM launches execute.

    For ``ampere_sgemm_{Tm}x{Tn}[_sliced1x{L}]_{tn|nn|nt}`` and C[M, N] = A[M, K]·B[K, N] (cuBLAS is column-major,
    so Tm tiles N and Tn tiles M)::

        tiles = ⌈N/Tm⌉·⌈M/Tn⌉            pad = tiles·Tm·Tn          s = blocks of the grid / tiles   (split-K)
        FMUL  = s·pad·L                   alpha times every partial result
        FADD  = s·pad·(L − 1)             sum of the slices in a block
        FFMA  = pad·(Σ_i ⌈k_i/8L⌉·8L + e) with split-K chunks k_i of ⌈K/s⌉
        e     = 0 with a separate reduction kernel, else s − 1, and 1 more when C is read (beta ≠ 0)

    Derived for this project and checked launch by launch on Ampere's cuBLAS and CUTLASS SIMT kernels only; kernels of
    other architectures with the same naming are predicted and marked. No factor is fitted. Two integers may have to be
    read off the counters: s off FMUL where the recording has no grid (FADD, FFMA and the reduction remain checks), and
    whether C is read off FFMA. The ``*_source`` columns say where each came from.

    Parameters
    ----------
    launches : pandas.DataFrame
        One row per launch. ``kernel`` (str) and ``m, n, k`` (integers; may be missing where unknown: FADD and
        FMUL need only the grid). Optional: ``grid_blocks`` (blocks of the grid), ``split_k`` (s, where known
        otherwise), ``fadd, fmul, ffma`` (counted thread instructions), ``followed_by_reduce`` (bool: a split-K
        reduction kernel follows) and ``accumulates`` (bool: C is read, as with a bias copied to C beforehand).

    Returns
    -------
    pandas.DataFrame
        Same index as the input. ``tiled`` (the closed form applies), ``tile_m``, ``tile_n``, ``slices``, ``s``,
        ``split_k_source`` (given, grid, counters, unknown), ``pad``, ``e``, ``epilogue_source`` (launches,
        counters, assumed), ``fadd_predicted``, ``fmul_predicted``, ``ffma_predicted``, ``flops_predicted``,
        ``flops_2mnk``, the parts of the excess over 2·M·N·K in FLOP (``excess_padding``, ``excess_alpha``,
        ``excess_slices``, ``excess_epilogue``) and ``explanation``. Counts are Int64, ``<NA>`` where not
        predicted.
    """
    if "kernel" not in launches.columns:
        raise InputError(file, "header", "there is no column kernel", "give the kernel name of every launch")
    parsed = {name: parse(name) for name in launches["kernel"].unique()}
    facts = [parsed[name] for name in launches["kernel"]]
    tiled = np.array([_MODELLED.fullmatch(fact.base) is not None for fact in facts], dtype=bool)
    checked = np.array([_CHECKED.match(fact.base) is not None for fact in facts], dtype=bool)

    def fact(attribute: str, default: int) -> np.ndarray:
        return np.array([getattr(f, attribute) or default for f in facts], dtype=np.int64)

    tile_m, tile_n, slices = fact("tile_m", 1), fact("tile_n", 1), fact("slices", 1)
    k_step = fact("tile_k", SIMT_K_STEP) * slices

    (m, has_m), (n, has_n), (k, has_k) = (_integers(launches, column, file, 1) for column in "mnk")
    grid, has_grid = _integers(launches, "grid_blocks", file, 1)
    given, has_given = _integers(launches, "split_k", file, 1)
    (_, _), (fmul, has_fmul), (ffma, has_ffma) = (_integers(launches, column, file, 0) for column in _COUNTERS)
    result, _ = _flags(launches, "followed_by_reduce")
    reads_c, knows_c = _flags(launches, "accumulates")

    shaped = tiled & has_m & has_n
    m, n, k = np.where(has_m, m, 1), np.where(has_n, n, 1), np.where(has_k, k, 1)
    work = (m + 1024.0) * (n + 1024.0) * (k + 1024.0)
    if work.max(initial=0) > 2.0**54 or grid.max(initial=0) > 2**38 or given.max(initial=0) > 2**14:
        raise InputError(file, "m, n, k, grid_blocks, split_k", "a launch is absurdly large", "check shape and grid")
    tiles = _ceil_div(n, tile_m) * _ceil_div(m, tile_n)
    pad = tiles * tile_m * tile_n

    # Split-K factor: given, else from the grid, else from the counters.
    source = np.select(
        [shaped & has_given, shaped & has_grid, shaped & has_fmul], ["given", "grid", "counters"], default="unknown"
    )
    per_split = np.where(source == "counters", pad * slices, tiles)
    total = np.select(
        [source == "given", source == "grid", source == "counters"], [given * tiles, grid, fmul], default=0
    )
    whole = (total % per_split == 0) & (total > 0)
    s = np.where(whole, total // per_split, 1)
    known = shaped & (source != "unknown") & whole

    chunk = _ceil_div(k, s)
    k_padded = (k // chunk) * _ceil_div(chunk, k_step) * k_step + _ceil_div(k % chunk, k_step) * k_step
    from_counters = ~knows_c & has_ffma & ~result
    reads_c = np.where(from_counters, ffma == pad * (k_padded + s), reads_c)
    e = np.where(result, 0, s - 1 + reads_c)
    epilogue_source = np.select([result | knows_c, from_counters], ["launches", "counters"], default="assumed")

    # Without a shape the grid alone gives s·pad.
    grid_only = tiled & ~shaped & has_grid
    partials = np.where(grid_only, grid * tile_m * tile_n, s * pad)
    sums = known | grid_only
    fused = known & has_k
    useful = m * n * k
    counts = {
        "fadd_predicted": (partials * (slices - 1), sums),
        "fmul_predicted": (partials * slices, sums),
        "ffma_predicted": (pad * (k_padded + e), fused),
    }
    added, multiplied, multiply_added = (values for values, _ in counts.values())
    out = pd.DataFrame({"kernel": launches["kernel"], "tiled": tiled}, index=launches.index)
    for column, values, mask in [
        ("tile_m", tile_m, tiled),
        ("tile_n", tile_n, tiled),
        ("slices", slices, tiled),
        ("s", s, known),
    ]:
        out[column] = _nullable(values, mask)
    out["split_k_source"] = np.where(known, source, "unknown")
    out["pad"], out["e"] = _nullable(pad, shaped), _nullable(e, known)
    out["epilogue_source"] = np.where(known, epilogue_source, "unknown")
    for column, (values, mask) in counts.items():
        out[column] = _nullable(values, mask)
    out["flops_predicted"] = _nullable(added + multiplied + 2 * multiply_added, fused)
    out["flops_2mnk"] = _nullable(2 * useful, has_m & has_n & has_k)
    excess = {
        "excess_padding": 2 * (pad * k_padded - useful),
        "excess_alpha": multiplied,
        "excess_slices": added,
        "excess_epilogue": 2 * pad * e,
    }
    for column, values in excess.items():
        out[column] = _nullable(values, fused)
    state = np.select(
        [fused, ~tiled, grid_only, tiled & shaped & (source != "unknown") & ~whole, tiled & shaped & ~has_k],
        ["predicted", "not tiled", "grid only", "not whole", "no k"],
        default="no split",
    )
    out["explanation"] = _explain(state, checked, useful, s, slices, excess)
    return out


_STATES = {
    "not tiled": "not a tiled SIMT SGEMM kernel: the closed form does not apply, 2·M·N·K alone is stated",
    "grid only": "FADD and FMUL from name and grid; FFMA needs the shape",
    "not whole": "the grid (or FMUL) is not a whole multiple of the tiles of this shape: not predicted",
    "no k": "FADD and FMUL from name and shape; FFMA needs K",
    "no split": "no grid, counters or split-K factor: not predicted",
}


def _explain(state, checked, useful, s, slices, excess) -> list[str]:
    """Describe for every launch what its FLOPs beyond 2·M·N·K consist of."""
    texts = []
    parts = [excess[column].tolist() for column in excess]
    rows = zip(state.tolist(), checked.tolist(), useful.tolist(), s.tolist(), slices.tolist(), *parts, strict=True)
    for kind, is_checked, work, split, cut, padding, alpha, summed, epilogue in rows:
        if kind != "predicted":
            texts.append(_STATES[kind])
            continue
        total = padding + alpha + summed + epilogue
        words = [f"{padding:,} padding to whole tiles and K steps"] if padding else []
        words.append(f"{alpha:,} alpha × {'partial results' if split * cut > 1 else 'results'}")
        words += [f"{summed:,} sums of {cut} slices"] if summed else []
        words += [f"{epilogue:,} accumulation into C"] if epilogue else []
        split_text = f", split-K {split}" if split > 1 else ""
        text = f"{total:,} FLOP ({total / (2 * work):.2%}) beyond 2·M·N·K{split_text}: {', '.join(words)}"
        texts.append(text if is_checked else f"{text}; form not checked on this architecture")
    return texts


def predict_split_k_reduce(
    kernels: pd.Series,
    outputs: np.ndarray,
    s: np.ndarray,
    *,
    bias: np.ndarray | bool = False,
    accumulates: np.ndarray | bool = False,
) -> pd.DataFrame:
    """Predict the instructions of split-K reduction kernels.

    FMUL = outputs (alpha); FADD = s·outputs, or (s + 1)·outputs if the kernel adds a bias; FFMA = outputs
    if it reads C (beta ≠ 0), else 0. The kernel of cuBLAS 11.1 (recognised by its four template arguments, all types)
    always executes the addition of a bias, with or without one: 298 of 298 launches of the A100 Linear set.

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
    fadd, ffma = (s + extra) * outputs, outputs * np.asarray(accumulates, dtype=bool)
    frame = {"fadd_predicted": fadd, "fmul_predicted": outputs, "ffma_predicted": ffma}
    out = pd.DataFrame({**frame, "flops_predicted": fadd + outputs + 2 * ffma}, index=kernels.index)
    return out.astype("Int64")


def _adds_always(name: str) -> bool:
    arguments = template_arguments(name)
    return len(arguments) == 4 and not any(re.search(r"\d|true|false", a.replace("float32", "")) for a in arguments)


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
