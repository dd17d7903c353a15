"""What is known of single kernels: predicted times by engine, their errors, and the nearest measured shape."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.time_model.constants.choice import backward_candidates, candidates, gemm_entries, of_shape, origin
from gpuledger.models.time_model.constants.neighbours import COUNTS, Near, correction, fit_sharing
from gpuledger.models.time_model.constants.table import RELATED, Entry, read_table
from gpuledger.models.time_model.gemms.law import gemm_plan
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.readers.kernel_tables.engines import read_attention
from gpuledger.readers.kernel_tables.gemms import read_gemms
from gpuledger.studies.kernel_time import engine_prediction
from gpuledger.studies.kernel_time.benchmark_loops import copies_in_turn, shown
from gpuledger.studies.kernel_time.prediction import LEAST_SHAPES, baselines, weight_bytes

#: What benchmarks' loops call a precision where its name is another (groups of
#: :data:`gpuledger.readers.kernel_tables.gemms.DTYPES`).
_GROUPS = {"bf16": "16-bit", "fp16": "16-bit", "fp4": "nvfp4"}
#: Precisions whose units do each other's work at the same rate.
_SAME_WIDTH = dict.fromkeys(("bf16", "fp16"), ("bf16", "fp16"))
_PLAN = ("tile_m", "tile_n", "split_k", "waves", "bound")
#: How often the logarithm of a size counts in the distance of shapes, if not once: kernels differ by heads' dimension.
_SCALES = {"head_dim": 10, "window": 3}
#: By which factor a size may be beyond the measured ones and still be corrected: about that from one to the next.
_REACH = 2
#: Bytes of a value of attention.
_VALUE_BYTES = {"bf16": 2, "fp8": 1}


def measured_gpus(kind: str, precision: str, engine: str = "") -> list[Gpu]:
    """Return the GPUs on which a kernel of this kind and precision was measured, in one engine or in any."""
    entries = _usual(read_table(kind), precision, engine)
    return [find_gpu(name) for name in dict.fromkeys(entry.gpu for entry in entries)]


def single_gemms(
    gpu: Gpu,
    shapes: pd.DataFrame,
    precision: str,
    engine: str = "",
    repeated: bool = False,
    tables: Path | None = None,
    alone: bool = False,
    fastest: bool = False,
) -> pd.DataFrame:
    """Predict GEMMs by every kernel that was measured on a GPU, else by those of the nearest measured one.

    Parameters
    ----------
    shapes : DataFrame, shape (shapes, 3)
        ``m, n, k``.
    precision : str
        A key of :data:`gpuledger.models.time_model.gemms.law.OPERAND_BYTES`.
    engine : str
        ``trtllm``, ``vllm`` or ``sglang``: its kernels only.
    repeated : bool
        Whether the same operands are multiplied again and again, so that L2 may hold them. Else as the engine's own
        benchmark does, which takes several weights in turn.
    tables : path, optional
        Folder with AIConfigurator's tables, for the nearest measured shapes.
    alone : bool
        Without the conversion of activations that a benchmark of fewer bits includes, as a model's GEMMs are predicted.
    fastest : bool
        Only the fastest kernel of each shape, those whose error is known before others.

    Returns
    -------
    DataFrame, one row per shape and kernel
        The sizes, ``gpu, precision, engine, kernel, time_s``; ``error_percent``, the mean absolute error of the shapes
        that the kernel's constants were not fitted to (NaN: not measured on this GPU in this precision, or with such
        heads); ``flop``, ``bytes``, ``roofline_s``; ``bound``, ``tile_m``, ``tile_n``, ``split_k``, ``waves`` as of
        :func:`gpuledger.models.time_model.gemms.law.gemm_plan`; ``constants``, in words, and
        ``stands_in``, where they come from if such a kernel was not measured (else empty). With `tables` also
        ``measured_<size>``, ``measured_s`` and ``predicted_there_s`` of the nearest measured shape; ``corrected_s``,
        the prediction corrected by what its errors at near shapes have in common, and ``corrected_error_percent``, the
        mean error of measured shapes that the others correct (not if `repeated`); NaN: none, or far beyond what was
        measured.
    """
    # An engine may have a kernel that widens: vLLM's fp8 on Intel's B60.
    if all(entry.gpu != gpu.name for entry in _usual(read_table("gemm"), precision)):
        _require_units(gpu, "fp8" if precision == "fp8_block" else precision)
    precisions = tuple(dict.fromkeys((precision, *RELATED.get(precision, ("bf16",)))))
    entries = gemm_entries(gpu, precision, engine) if alone else _entries("gemm", gpu, precisions, engine)

    def law(entry: Entry, at: pd.DataFrame, repeated: bool) -> dict[str, np.ndarray]:
        group = _GROUPS.get(precision, precision)
        frame = baselines(gpu, at.assign(group=group, precision=precision))
        weights, groups = weight_bytes(frame), [group] * len(frame)
        copies, own = copies_in_turn(entry.framework, groups, weights, gpu.l2_bytes)
        operands = {"weights_in_turn": 1} if repeated else {"weights_in_turn": copies, "own_activations": own}
        sizes = (at[name].to_numpy() for name in ("m", "n", "k"))
        plan = gemm_plan(gpu, entry.constants, *sizes, 1, precision, weight_bytes=weights, **operands)
        time_s = plan["time_s"].to_numpy()
        found = {"time_s": time_s if repeated else shown(gpu, entry.framework, groups, weights, time_s)}
        found |= {name: frame[name].to_numpy() for name in ("flop", "bytes", "roofline_s")}
        return found | {name: plan[name].to_numpy() for name in _PLAN}

    return _predicted(gpu, precision, entries, shapes, law, (tables, read_gemms), repeated, fastest)


def single_attention(
    gpu: Gpu,
    shapes: pd.DataFrame,
    precision: str,
    engine: str = "",
    tables: Path | None = None,
    backward: bool = False,
    fastest: bool = False,
) -> pd.DataFrame:
    """Predict attention by every kernel that was measured on a GPU, else by those of the nearest measured one.

    Parameters
    ----------
    shapes : DataFrame, shape (shapes, 7)
        ``requests, tokens`` (new ones of each request), ``context`` (tokens before them), ``heads, kv_heads, head_dim``
        and ``window`` (0: none). Either all with one new token, which is decoding, or none; of one `head_dim`: kernels
        that were not measured with it are left out if the engine has others.
    precision : str
        Of the values and of the cache: ``bf16/bf16``, ``bf16/fp8`` or ``fp8/fp8``.
    backward : bool
        Whether to predict the gradients of whole sequences instead.
    fastest : bool
        As of :func:`single_gemms`.

    Returns
    -------
    DataFrame, one row per shape and kernel
        As :func:`single_gemms`, without tiles.
    """
    values, stored = precision.split("/")
    _require_units(gpu, values)
    if (shapes["heads"] % shapes["kv_heads"]).any():
        raise InputError("command line", "--heads", "it is no multiple of --kv-heads", "correct one of them")
    operator = "backward" if backward else "decode" if shapes["tokens"].max() == 1 else "prefill"
    kind = engine_prediction.kind_of(operator)

    def law(entry: Entry, at: pd.DataFrame, _: bool) -> dict[str, np.ndarray]:
        width = 2.0 * at["head_dim"] * at["kv_heads"]
        rows = at.assign(operator=operator, kernel=entry.kernel, precision=precision, cache_values=width)
        rows = rows.assign(value_bytes=_VALUE_BYTES[values], cache_bytes=_VALUE_BYTES[stored])
        found = engine_prediction.predict(gpu, kind, entry.constants, rows)
        flop, moved, peak = kind.work(gpu, rows)
        roofline_s = np.maximum(flop / peak, moved / gpu.dram_bytes_per_s)
        time_s = found["predicted_s"].to_numpy()
        return {"time_s": time_s, "flop": flop, "bytes": moved, "roofline_s": roofline_s, "bound": found["bound"]}

    entries = _entries(operator, gpu, (precision,), engine, (float(shapes["head_dim"].iloc[0]),))
    return _predicted(gpu, precision, entries, shapes, law, (tables, read_attention), fastest=fastest)


def _require_units(gpu: Gpu, precision: str) -> None:
    if not any(gpu.flops.get(name) for name in _SAME_WIDTH.get(precision, (precision,))):
        problem = f"{gpu.name} has no matrix units for {precision}"
        raise InputError("command line", "--precision", problem, f"choose of {', '.join(gpu.precisions)}")


def _usual(entries: Sequence[Entry], precision: str, engine: str = "") -> list[Entry]:
    # Latent attention has other shapes.
    known = [entry for entry in entries if entry.precision == precision and not entry.kernel.startswith("MLA")]
    return [entry for entry in known if engine in ("", entry.framework)]


def _entries(
    kind: str, gpu: Gpu, precisions: Sequence[str], engine: str, shape: tuple[float, ...] = ()
) -> Sequence[Entry]:
    every = [entry for precision in precisions for entry in _usual(read_table(kind), precision)]
    if not every:
        problem = f"no kernel was measured in {precisions[0]} for {kind}"
        raise InputError("command line", "--precision", problem, "choose another, or --cache alone")
    own = [entry for entry in every if (entry.gpu, entry.precision) == (gpu.name, precisions[0])]
    found = own or (
        backward_candidates(gpu) if kind == "backward" else candidates(kind, gpu, precisions, engine, shape=shape)
    )
    if not found:
        known = ", ".join(dict.fromkeys(entry.gpu for entry in every))
        problem = f"no kernel for {kind} was measured on a GPU like the {gpu.name}"
        raise InputError("command line", "--gpu", problem, f"choose {known}, or another of its architecture")
    # What a kernel of decoding took for prompts of a single token says nothing of longer ones.
    found = [entry for entry in found if kind != "prefill" or not entry.kernel.endswith("decode")]
    chosen = [entry for entry in found if engine in ("", entry.framework)]
    if not chosen:
        known = ", ".join(sorted({entry.framework for entry in found}))
        problem = f"no kernel of {engine} in {precisions[0]} is known for the {gpu.name}"
        raise InputError("command line", "--engine", problem, f"leave it out, or use {known}")
    engines = dict.fromkeys(entry.framework for entry in chosen)
    fitting = [entry for name in engines for entry in of_shape([one for one in chosen if one.framework == name], shape)]
    # What an error says of other heads is not known.
    return [entry if not shape or shape in entry.shapes else entry._replace(error_percent=np.nan) for entry in fitting]


def _predicted(
    gpu: Gpu,
    precision: str,
    entries: Sequence[Entry],
    shapes: pd.DataFrame,
    law: Callable[[Entry, pd.DataFrame, bool], dict[str, np.ndarray]],
    source: tuple[Path | None, Callable],
    repeated: bool = False,
    fastest: bool = False,
) -> pd.DataFrame:
    """Return what a law says of every shape and entry, and of the shapes nearest to them in its measured table."""
    found = []
    folder, read = source
    for entry in entries:
        rows = shapes.assign(gpu=gpu.name, precision=precision, engine=entry.framework, kernel=entry.kernel)
        rows = rows.assign(**law(entry, shapes, repeated), error_percent=entry.error_percent)
        rows["constants"] = entry.constants.source
        rows["stands_in"] = _stands_in(entry, gpu, precision) if np.isnan(entry.error_percent) else ""
        found.append(rows)
    if fastest:
        found = _fastest(found)
    for at, (entry, rows) in enumerate(zip(entries, found, strict=True)):
        # A source ends with the table that the constants were fitted to.
        path = folder / entry.constants.source.rpartition(": ")[2] if folder else None
        own = path and path.is_file() and (entry.gpu, entry.precision) == (gpu.name, precision)
        if len(rows) and own and len(table := _rows_of(_table(read, path), entry)):
            near = rows[list(shapes)]
            rows = rows.assign(**_beside(table, near, lambda at, entry=entry: law(entry, at, False)["time_s"]))
            if repeated:
                rows = rows.drop(columns=["corrected_s", "corrected_error_percent"])
            else:
                rows["corrected_s"] *= rows["time_s"]
            found[at] = rows
    return pd.concat([rows for rows in found if len(rows)], ignore_index=True)


def _fastest(found: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Keep of each shape the kernel that takes the least time, those whose error is known before others."""
    unknown = np.array([rows["error_percent"].isna() for rows in found])
    times = np.array([rows["time_s"] for rows in found])
    best = np.lexsort((times, unknown), axis=0)[0]
    return [rows[best == at] for at, rows in enumerate(found)]


def _stands_in(entry: Entry, gpu: Gpu, precision: str) -> str:
    """Say where the constants of a kernel come from that was not measured so."""
    here = (entry.gpu, entry.precision) == (gpu.name, precision)
    return "the same GPU with heads of other sizes" if here else origin(entry.constants.source)


@cache
def _table(read: Callable, path: Path) -> pd.DataFrame:
    return read(path, "ms")[0]


def _rows_of(table: pd.DataFrame, entry: Entry) -> pd.DataFrame:
    return table[(table["kernel"] == entry.kernel) & (table["precision"] == entry.precision)]


def _beside(table: pd.DataFrame, shapes: pd.DataFrame, predict: Callable) -> dict[str, np.ndarray]:
    """Return the measured shape nearest to each, as measured and as predicted, and how near ones correct predictions.

    ``corrected_s`` is a factor (that of a shape that was measured makes it the measured time), and
    ``corrected_error_percent`` the error of each measured shape when the others correct it; NaN for a table of few, and
    for a size that is beyond `_REACH` times the measured ones, of which neighbours' errors say nothing.
    """
    names = list(shapes)
    scales = np.array([_SCALES.get(name, 1) for name in names])
    # A context or a window may be empty.
    known, asked = (of[names].to_numpy(float) for of in (table, shapes))
    measured_s, predicted_s = table["measured_s"].to_numpy(), predict(table[names].astype(np.int64))
    near = Near(known, asked, max(COUNTS), scales=scales)
    weights, places = near.weigh(1)
    first = places[np.arange(len(asked)), weights.argmax(axis=1)]
    found = {f"measured_{name}": table[name].to_numpy(np.int64)[first] for name in names}
    found |= {"measured_s": measured_s[first], "predicted_there_s": predicted_s[first]}
    if len(table) < LEAST_SHAPES:
        return found | {"corrected_s": np.nan, "corrected_error_percent": np.nan}
    ratios = measured_s / predicted_s
    sharing = fit_sharing(known, ratios, scales)
    factor = correction(sharing, near, ratios)
    exact = (known[first] == asked).all(axis=1)
    within = ((asked >= known.min(axis=0) / _REACH) & (asked <= known.max(axis=0) * _REACH)).all(axis=1)
    return found | {
        "corrected_s": np.where(within, np.where(exact, ratios[first], factor), np.nan),
        "corrected_error_percent": np.where(within, sharing.error_percent, np.nan),
    }
