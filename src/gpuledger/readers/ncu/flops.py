"""Executed floating-point operations per launch, from the counters of Nsight Compute.

A fused multiply-add is two operations. What is counted, and what is not:

* CUDA cores: ``{sm,smsp}__sass_thread_inst_executed_op_*_pred_on.sum`` count thread instructions whose predicate is
  true. FP32 = fadd + fmul + 2·ffma, plus 2·fadd2 + 2·fmul2 + 4·ffma2 for the packed instructions of
  Blackwell; FP64 alike; FP16 instructions are packed half2: 2·hadd + 2·hmul + 4·hfma.
* Tensor cores: none of those counters sees them. ``sm__ops_path_tensor_*.sum`` count operations; without them, warp
  instructions times the size of one (m16n8k16: 4,096 FLOP) where the kernel name states the instruction.
* Transcendentals (``MUFU``, the XU pipe) are in none of the FLOP counters and are reported separately.

The metrics by chip: ``ncu --query-metrics --chips``; packing factors:
SpeedOfLight_HierarchicalHalfRooflineChart.section and SpeedOfLight_RooflineChart.section of Nsight Compute.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers.kernel_names import parse

__all__ = ["count_flops", "counter", "matrix_instructions"]

# Operations per thread instruction.
_FP32 = {"fadd": 1, "fmul": 1, "ffma": 2}
_FP32_PACKED = {"fadd2": 2, "fmul2": 2, "ffma2": 4}
_FP64 = {"dadd": 1, "dmul": 1, "dfma": 2}
_FP16 = {"hadd": 2, "hmul": 2, "hfma": 4}
_XU = {  # per count: a warp instruction is up to 32 thread instructions
    "thread_inst_executed_pipe_xu_pred_on": 1,
    "thread_inst_executed_pipe_xu": 1,
    "inst_executed_pipe_xu": 32,
}
_MMA_FLOPS = {(16, 8, 16): 4096, (16, 8, 8): 2048}  # 2·m·n·k of HMMA.16816 and HMMA.1688
_HALF_TYPE = re.compile(r"(?i)half|f16\b|fp16|bfloat16|bf16|f16_")
_TENSOR_OPS = re.compile(
    r"^(?:sm|smsp)__ops_path_tensor(?:_op_(?P<op>[a-z0-9]+))?_src_(?P<src>[a-z0-9_]+?)"
    r"(?:_dst_(?P<dst>[a-z0-9]+))?(?:_sparsity_(?P<sparsity>on|off))?\.sum$"
)


#: No launch executes as many instructions; twice as many still are an Int64.
_MOST_COUNTED = 2**61


def _whole(values: pd.Series, file: str | Path) -> pd.Series:
    """Return a counter as Int64; counts are whole and not negative."""
    numbers = pd.to_numeric(values, errors="coerce")
    odd = (numbers < 0) | (numbers % 1 != 0) | (numbers > _MOST_COUNTED)
    bad = (numbers.notna() & odd) | (values.notna() & numbers.isna())
    if bad.any():
        row, value = bad[bad].index[0], values[bad].iloc[0]
        problem = f"{value} is not a count"
        raise InputError(file, f"launch {row}, metric {values.name}", problem, "give .sum counters, one row per launch")
    return numbers.astype("Int64")


def counter(wide: pd.DataFrame, metric: str, *, file: str | Path = "launches") -> pd.Series | None:
    """Return one counter of a wide table, from whichever unit (``sm`` or ``smsp``) it was collected on.

    Parameters
    ----------
    wide : pandas.DataFrame
        One row per launch, columns are metric names.
    metric : str
        An operation (``ffma``) or a metric name without unit and ``.sum`` (``inst_executed_pipe_tensor``).

    Returns
    -------
    pandas.Series or None
        Int64, ``<NA>`` where the launch has no value; ``None`` if the counter was not collected.
    """
    body = metric if "_" in metric else f"sass_thread_inst_executed_op_{metric}_pred_on"
    found = [wide[f"{unit}__{body}.sum"] for unit in ("sm", "smsp") if f"{unit}__{body}.sum" in wide.columns]
    if not found:
        return None
    values = _whole(found[0], file)
    return values if len(found) == 1 else values.fillna(_whole(found[1], file))


def _weighted(wide: pd.DataFrame, weights: dict[str, int], file: str | Path) -> tuple[pd.Series | None, list[str]]:
    """Return Σ weight·counter (``<NA>`` where a launch lacks one) and the counters that were not collected."""
    found = {op: counter(wide, op, file=file) for op in weights}
    missing = [op for op, values in found.items() if values is None]
    if len(missing) == len(weights):
        return None, missing
    total = sum(weights[op] * values for op, values in found.items() if values is not None)
    return total, missing


def _unknown(wide: pd.DataFrame) -> pd.Series:
    return pd.Series(pd.NA, index=wide.index, dtype="Int64")


def _most_general(parts: dict[tuple, pd.Series]) -> pd.Series:
    """Sum counters that may include each other: (op, src, dst, sparsity), where ``""`` means all."""
    total = None
    for axis in (3, 2, 0):  # merge sparsity, then accumulator type, then instruction; a total wins over its parts
        groups: dict[tuple, dict[str, pd.Series]] = {}
        for key, values in parts.items():
            groups.setdefault((*key[:axis], "", *key[axis + 1 :]), {})[key[axis]] = values
        parts = {}
        for key, members in groups.items():
            details = [values for name, values in members.items() if name]
            detail = sum(details[1:], details[0]) if details else None
            parts[key] = detail if "" not in members else members[""] if detail is None else members[""].fillna(detail)
    for values in parts.values():
        total = values if total is None else total + values
    return total


def _tensor_operations(wide: pd.DataFrame, file: str | Path) -> tuple[pd.Series | None, pd.Series | None]:
    """Return floating-point and integer operations of the tensor path, counting overlapping counters once."""
    parts: dict[bool, dict[tuple, pd.Series]] = {False: {}, True: {}}
    for column in sorted(wide.columns.astype(str)):  # sm__ sorts before smsp__, which lacks the wgmma counters
        match = _TENSOR_OPS.match(column)
        if match is None:
            continue
        key = tuple(match[name] or "" for name in ("op", "src", "dst", "sparsity"))
        # On Hopper and later src_bf16_dst_fp32 is the total of op_*_src_bf16_dst_fp32, src_fp16 of both accumulators.
        kind = parts[key[1].startswith("int")]
        values = _whole(wide[column], file)
        kind[key] = values if key not in kind else kind[key].fillna(values)
    floating, integer = (_most_general(kind) if kind else None for kind in (parts[False], parts[True]))
    return floating, integer


def matrix_instructions(
    wide: pd.DataFrame, kernels: Iterable[str], *, file: str | Path = "launches"
) -> pd.Series | None:
    """Return the warp-level matrix instructions of every launch: what the tensor pipe executed, without HFMA2.MMA.

    Parameters
    ----------
    wide, file
        As of `count_flops`.
    kernels : iterable of str
        Full kernel names, in order. A kernel whose name says that it multiplies no matrices, and which executed
        HFMA2 instructions, has none.

    Returns
    -------
    pandas.Series or None
        Int64, ``<NA>`` where the launch has no value; ``None`` if no counter of the pipe was collected.
    """
    pipe = counter(wide, "inst_executed_pipe_tensor", file=file)
    matrix = counter(wide, "inst_executed_pipe_tensor_op_hmma", file=file)
    if pipe is None and matrix is None:
        return None
    hfma = counter(wide, "hfma", file=file)
    hfma = _unknown(wide) if hfma is None else hfma
    packed = counter(wide, "inst_executed_pipe_tensor_op_hmma_type_hfma2", file=file)
    packed = _unknown(wide) if packed is None else packed
    executed = (
        (_unknown(wide) if pipe is None else pipe)
        if matrix is None
        else matrix.fillna(pipe if pipe is not None else pd.NA)
    )
    # Only the counter of the whole pipe is known to hold HFMA2.MMA as one instruction per 32 threads.
    by_threads = (hfma / 32).round().astype("Int64") if matrix is None else _unknown(wide)
    constants = packed.fillna(by_threads).fillna(0)
    names = [str(name) for name in kernels]
    without = {name for name in set(names) if parse(name).tensor_core is False}
    no_matrix = pd.Series([name in without for name in names], index=wide.index, dtype=bool)
    # A warp of which only some threads are active counts as one instruction, and less than 32 thread instructions.
    only_packed = ((executed * 32 == hfma) | (no_matrix & (executed <= hfma))).fillna(False).astype(bool)
    return (executed - constants).clip(lower=0).mask(only_packed, 0)


def count_flops(
    wide: pd.DataFrame, kernels: Iterable[str] | None = None, *, file: str | Path = "launches"
) -> pd.DataFrame:
    """Count the floating-point operations of every launch.

    Parameters
    ----------
    wide : pandas.DataFrame
        One row per launch (or per group of launches with summed counters); columns are metric names with
        ``.sum``, unit ``sm`` or ``smsp``. Other columns are ignored. A missing value means that the launch has no
        such counter.
    kernels : iterable of str, optional
        Full kernel names, in order; by default the column ``kernel``, if any. Tensor-core kernels are recognised
        by name.

    Returns
    -------
    pandas.DataFrame
        Int64 columns ``fp32_flops``, ``fp64_flops``, ``fp16_flops``, ``tensor_flops`` (FLOP),
        ``tensor_int_ops`` (operations), ``transcendental_ops`` (thread instructions of the XU pipe: MUFU and
        type conversions; not part of the total), ``total_flops`` and the text ``note``. ``<NA>`` is unknown,
        never zero: a tensor-core kernel without a usable tensor counter has an unknown total. A kind whose
        counters were not collected at all is ``<NA>``, is left out of the total, and the note says so.

    Raises
    ------
    InputError
        If no FLOP counter was collected, or if a value is negative or not whole.
    """
    if kernels is None:
        kernels = wide["kernel"] if "kernel" in wide.columns else [""] * len(wide)
    names = [str(name) for name in kernels]
    parsed = {name: parse(name) for name in set(names)}
    half = {name for name in parsed if _HALF_TYPE.search(name[:20000])}
    by_name = pd.Series([parsed[name].tensor_core is True for name in names], index=wide.index, dtype=bool)
    half_by_name = pd.Series([name in half for name in names], index=wide.index, dtype=bool)

    fp32, missing32 = _weighted(wide, _FP32, file)
    packed, _ = _weighted(wide, _FP32_PACKED, file)
    fp64, missing64 = _weighted(wide, _FP64, file)
    fp16, missing16 = _weighted(wide, _FP16, file)
    tensor, tensor_int = _tensor_operations(wide, file)
    notes = {row: [] for row in range(len(wide))}

    def note(mask: pd.Series, text: str) -> None:
        for row in np.flatnonzero(mask.fillna(False).to_numpy(dtype=bool)):
            notes[row].append(text)

    everywhere = pd.Series(True, index=wide.index)
    out = pd.DataFrame(index=wide.index)
    for column, values, missing in [
        ("fp32_flops", fp32, missing32),
        ("fp64_flops", fp64, missing64),
        ("fp16_flops", fp16, missing16),
    ]:
        if values is not None and missing:  # add, mul and fma are only meaningful together
            note(everywhere, f"{column} unknown: {', '.join(missing)} not collected")
            values = None
        out[column] = _unknown(wide) if values is None else values
    partial = any(0 < len(missing) < 3 for missing in (missing32, missing64, missing16))
    if packed is not None:
        out["fp32_flops"] = out["fp32_flops"] + packed.fillna(0)

    # HFMA2.MMA runs on the tensor pipe; compilers use it to materialise constants in pure fp32 kernels.
    hfma = counter(wide, "hfma", file=file)
    hfma = _unknown(wide) if hfma is None else hfma
    pipe = counter(wide, "inst_executed_pipe_tensor", file=file)
    on_pipe = everywhere if pipe is None else (pipe.isna() | (pipe * 32 == hfma)).fillna(False).astype(bool)
    other_half = sum((c.fillna(0) for op in ("hadd", "hmul") if (c := counter(wide, op, file=file)) is not None), 0)
    constants = (hfma > 0).fillna(False).astype(bool) & on_pipe & ~half_by_name & ~by_name
    constants &= (out["fp32_flops"].fillna(0) > 0).astype(bool) & ((0 * hfma + other_half) == 0).fillna(False).astype(
        bool
    )
    if fp16 is not None and not missing16:
        out.loc[constants, "fp16_flops"] = 0
    note(constants, "hfma are HFMA2.MMA constants of an fp32 kernel: not counted")

    # Tensor cores: operations, else instructions of a known shape; else unknown for kernels that use them.
    out["tensor_flops"] = _unknown(wide) if tensor is None else tensor
    out["tensor_int_ops"] = _unknown(wide) if tensor_int is None else tensor_int
    operations = out["tensor_flops"].fillna(0) + out["tensor_int_ops"].fillna(0)
    silent = by_name & (operations == 0)
    out.loc[silent, "tensor_flops"] = pd.NA
    instructions = matrix_instructions(wide, names, file=file)
    if instructions is not None:
        size = pd.Series([_MMA_FLOPS.get(parsed[name].mma, 0) for name in names], index=wide.index, dtype="Int64")
        usable = silent & (size > 0) & (instructions.fillna(0) > 0)
        out.loc[usable, "tensor_flops"] = (instructions * size)[usable]
        note(usable, "tensor FLOPs from matrix instructions × the shape in the kernel name")
        silent &= ~usable
        idle = out["tensor_flops"].isna() & ~by_name & (instructions == 0).fillna(False)
        out.loc[idle, "tensor_flops"] = 0
        busy = out["tensor_flops"].isna() & ~by_name & (instructions > 0).fillna(False)
        note(busy, "matrix instructions of unknown size: FLOPs unknown")
        silent |= busy.astype(bool)
    warpgroup = counter(wide, "inst_executed_pipe_tensor_op_gmma", file=file)
    if warpgroup is not None:  # counters of hmma alone do not see wgmma
        unseen = ((warpgroup > 0) & (operations == 0) & ~by_name).fillna(False).astype(bool)
        out.loc[unseen, "tensor_flops"] = pd.NA
        note(unseen, "wgmma instructions whose operations were not counted: FLOPs unknown")
        silent |= unseen
    note(silent & by_name, "tensor-core kernel without a usable tensor counter: FLOPs unknown")

    out["transcendental_ops"] = _unknown(wide)
    for metric, per_instruction in _XU.items():
        if (values := counter(wide, metric, file=file)) is not None:
            out["transcendental_ops"] = values * per_instruction
            note(everywhere, "transcendental_ops: XU pipe, type conversions included") if values.notna().any() else None
            break

    kinds = ["fp32_flops", "fp64_flops", "fp16_flops", "tensor_flops"]
    if all(values is None for values in (fp32, fp64, fp16, tensor, instructions, warpgroup)):
        remedy = "collect smsp__sass_thread_inst_executed_op_{fadd,fmul,ffma}_pred_on.sum"
        raise InputError(file, "metrics", "no FLOP counter was collected", remedy)
    absent = [kind for kind, values in zip(kinds, (fp32, fp64, fp16, tensor), strict=True) if values is None]
    absent = [kind for kind in absent if out[kind].isna().all() and not partial]
    if absent:
        note(everywhere, f"not collected: {', '.join(kind.removesuffix('_flops') for kind in absent)}")
    total = out[kinds].sum(axis=1, min_count=1).astype("Int64")
    gaps = pd.Series(partial, index=wide.index) | silent
    for kind, values in zip(kinds[:3], (fp32, fp64, fp16), strict=True):
        if values is not None:
            gaps |= out[kind].isna()  # collected for other launches, missing for this one
    out["total_flops"] = total.mask(gaps)
    out["note"] = ["; ".join(notes[row]) for row in range(len(wide))]
    return out
