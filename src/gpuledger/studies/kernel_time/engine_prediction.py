"""Predictions for engines' fused kernels: the law of each kind, its fit, its work, and its regions."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from gpuledger.models.time_model import (
    collectives,
    decode_latent,
    decode_law,
    decode_splits,
    encoder_law,
    latent_products,
    moe,
    prefill_law,
    prefill_tiles,
    quantise,
    recurrent_law,
    sparse_law,
)
from gpuledger.models.time_model.constants import AnyConstants
from gpuledger.models.time_model.fit_law import fit_law
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_time.benchmark_loops import ticked

#: Rows that a fit uses at most, and that choosing among a kernel's discrete properties does.
FIT_ROWS, CHOICE_ROWS = 1200, 300

Shapes = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Kind:
    """What the study knows of one kind of fused kernel.

    Attributes
    ----------
    name : str
        Of its constants in the table: a key of :data:`gpuledger.models.time_model.constants.KINDS`.
    shapes : callable
        From GPU and rows of one kernel to what the law takes.
    law : callable
        From GPU, constants, shapes and precision to ``time_s`` and its terms.
    start : dataclass
        Constants to start a fit from.
    bounds : mapping
        Of the fitted constants.
    choices : mapping of str to sequence
        Discrete properties of a kernel, chosen by the fitting half as well.
    work : callable
        From GPU and rows to FLOP, bytes from DRAM or over the link, and the matrix units' peak (FLOP/s).
    sizes : tuple of str
        Columns that are a row's shape: they are hashed to hold rows back.
    look_up : tuple of str
        Columns that a table look-up measures distances by.
    region : tuple of str and sequence of int
        Column and edges of the regions that errors are given by.
    """

    name: str
    shapes: Callable[[Gpu, pd.DataFrame], Shapes]
    law: Callable[[Gpu, AnyConstants, Shapes, str], dict[str, np.ndarray]]
    start: AnyConstants
    bounds: Mapping[str, tuple[float, float]]
    choices: Mapping[str, Iterable]
    work: Callable[[Gpu, pd.DataFrame], tuple[np.ndarray, np.ndarray, np.ndarray]]
    sizes: tuple[str, ...]
    look_up: tuple[str, ...]
    region: tuple[str, tuple[int, ...]]


def _columns(rows: pd.DataFrame, names: Iterable[str]) -> dict[str, np.ndarray]:
    return {name: rows[name].to_numpy(dtype=float) for name in names}


_ATTENTION = ("requests", "tokens", "context", "heads", "kv_heads", "head_dim", "cache_values", "window")
_BYTES = ("value_bytes", "cache_bytes")


def _attention_shapes(gpu: Gpu, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    peak = rows["value_bytes"].map({2: gpu.peak_flop_per_s("bf16"), 1: _peak(gpu, "fp8")}).to_numpy(dtype=float)
    return _columns(rows, (*_ATTENTION, *_BYTES)) | {"peak": peak}


def _peak(gpu: Gpu, precision: str) -> float:
    # GPUs without units for a narrow type widen it.
    try:
        return gpu.peak_flop_per_s(precision)
    except ValueError:
        return gpu.peak_flop_per_s("bf16")


def _attention_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    s = _attention_shapes(gpu, rows)
    window = np.where(s["window"] > 0, s["window"], np.inf)
    before, seen = np.minimum(s["context"], window), np.minimum(s["context"] + s["tokens"], window)
    # Causal: the first new token sees all before it, the last all; a window cuts both.
    short = np.minimum(s["tokens"], np.maximum(window - s["context"], 0))
    pairs = short * (before + seen + 1) / 2 + (s["tokens"] - short) * np.minimum(window, seen)
    flop = s["requests"] * s["heads"] * 4 * s["head_dim"] * pairs
    moved = s["requests"] * s["tokens"] * 2 * s["head_dim"] * s["heads"] * s["value_bytes"]
    return flop, moved + s["requests"] * seen * s["cache_values"] * s["cache_bytes"], s["peak"]


_MOE = (
    "tokens",
    "chosen",
    "hidden",
    "inter",
    "gates",
    "own",
    "rows",
    "active",
    "foreign",
    *(f"tiles_{tile}" for tile in moe.TILES),
)


def _moe_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    s = _columns(rows, _MOE)
    weight, activation, _ = (rows["precision"].map({k: v[i] for k, v in moe.DTYPES.items()}) for i in range(3))
    peaks = {
        name: gpu.peak_flop_per_s(kind) for name, (_, _, kind) in moe.DTYPES.items() if name in set(rows["precision"])
    }
    weights = (s["gates"] + 1) * s["inter"] * s["hidden"]
    moved = s["active"] * weights * weight.to_numpy() + 2 * s["rows"] * s["hidden"] * activation.to_numpy(dtype=float)
    return 2 * s["rows"] * weights, moved, rows["precision"].map(peaks).to_numpy(dtype=float)


def _collective_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # The link in the place of DRAM.
    message, devices = _columns(rows, ("message_bytes", "devices")).values()
    sent = np.where(rows["precision"] == "all_reduce", 2, 1) * (devices - 1) / devices * message
    return np.zeros(len(rows)), sent, np.ones(len(rows))


_STATE = ("requests", "tokens", "key_heads", "key_dim", "heads", "value_dim")
_CHANNELS = ("requests", "tokens", "channels")
_UPDATED = (*_STATE, "decays", "read_state_bytes", "written_state_bytes")


def _recurrent_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    operator, peak = rows["operator"].iloc[0], np.full(len(rows), gpu.peak_flop_per_s("bf16"))
    if operator.startswith("convolution"):
        s = _columns(rows, (*_CHANNELS, "span"))
        flop = 2 * s["span"] * s["requests"] * s["tokens"] * s["channels"]
        return flop, recurrent_law.convolution_bytes(s), peak
    s = _columns(rows, _UPDATED)
    if operator == "chunked rule":
        state = 8 * s["requests"] * s["heads"] * s["key_dim"] * s["value_dim"]
        return recurrent_law.chunked_flop(s), recurrent_law.chunked_bytes(s) + state, peak
    flop = 6 * s["requests"] * s["tokens"] * s["heads"] * s["key_dim"] * s["value_dim"]
    return flop, recurrent_law.update_bytes(s), peak


_NEW_TOKENS = ("new_tokens", (0, 64, 1024, 2**14, 2**40))
_CONVOLUTION = Kind(
    "convolution",
    lambda gpu, rows: _columns(rows, (*_CHANNELS, "span")),
    lambda gpu, constants, shapes, _: recurrent_law.convolution_terms(gpu, constants, shapes),
    recurrent_law.CONVOLUTION_START,
    recurrent_law.CONVOLUTION_BOUNDS,
    {"pattern": recurrent_law.PATTERNS},
    _recurrent_work,
    _CHANNELS,
    _CHANNELS,
    _NEW_TOKENS,
)
_ENCODER = ("requests", "tokens", "heads", "head_dim")
_QUANTISE = ("tokens", "columns", "live_bytes", "second_reads")
_PRODUCT = ("tokens", "columns", "depth", "heads")


def _encoder_shapes(gpu: Gpu, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    two = np.full(len(rows), 2.0)
    return _columns(rows, _ENCODER) | {"value_bytes": two, "peak": gpu.peak_flop_per_s("bf16") * two / 2}


def _encoder_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    requests, tokens, heads, dim = _columns(rows, _ENCODER).values()
    # All pairs: no mask hides any.
    values = requests * heads * tokens * dim
    return 4 * values * tokens, 2 * 4 * values, np.full(len(rows), gpu.peak_flop_per_s("bf16"))


def _quantise_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, columns = _columns(rows, _QUANTISE[:2]).values()
    return np.zeros(len(rows)), 3 * tokens * columns, np.ones(len(rows))


def _product_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, columns, depth, heads = _columns(rows, _PRODUCT).values()
    peaks = rows["precision"].map({name: _peak(gpu, name) for name in ("bf16", "fp8")}).to_numpy(dtype=float)
    weights = np.where(rows["precision"] == "fp8", 1, 2) * columns * depth
    return 2 * tokens * columns * depth * heads, heads * (2 * tokens * (columns + depth) + weights), peaks


def _product_terms(gpu: Gpu, constants: AnyConstants, shapes: Shapes, precision: str) -> dict[str, np.ndarray]:
    terms = latent_products.product_terms(gpu, constants, shapes, precision)
    return terms | {"time_s": ticked(gpu, terms["time_s"])}


#: Bytes of a score, of a cached key of an indexer with its scale, and of one of attention.
_SCORE, _INDEX_KEY, _KEY = 4, 132, 1152


def _sparse_shapes(gpu: Gpu, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    requests, tokens, context, heads, width, places, ratio = _columns(
        rows, ("requests", "tokens", "context", "heads", "width", "places", "ratio")
    ).values()
    operation = rows["operator"].iloc[0]
    queries, behind = requests * tokens, np.maximum((context + tokens) // ratio, 1)
    if operation.endswith("attention"):
        # Benchmarks let every token attend to as many keys as there are, later ones included.
        keys = np.minimum(behind, places)
        moved = 2 * queries * heads * width + requests * np.minimum(behind, tokens * places) * _KEY
    elif operation == "top-k":
        keys, moved = behind, queries * _SCORE * (behind + places)
    else:
        keys = np.maximum((context + (tokens + 1) / 2) // ratio, 1)
        moved = queries * (keys * _SCORE + heads * _INDEX_KEY) + requests * behind * _INDEX_KEY
    one = np.ones_like(queries)
    shapes = {
        "tokens": queries,
        "heads": heads,
        "keys": keys,
        "places": np.where(places > 0, places, keys) if operation.endswith("attention") else keys,
        "spread": 0 * one,
        "width": width,
        "key_bytes": _SCORE * one,
        "moved": moved,
        "peak": one * _peak(gpu, "bf16" if operation.endswith("attention") else "fp8"),
    }
    if operation == "scores":
        together = np.maximum(sparse_law.ROWS["scores"][0] // heads, 1)
        shapes["keys"] = keys * np.minimum(requests, np.ceil(together / tokens))
        shapes["spread"] = (tokens - 1) / ratio
    return shapes


def _sparse_work(gpu: Gpu, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    s = _sparse_shapes(gpu, rows)
    pairs = s["tokens"] * np.maximum((rows["context"] + (rows["tokens"] + 1) / 2) / rows["ratio"], 1).to_numpy()
    pairs = np.minimum(pairs, s["tokens"] * s["keys"])
    return 2 * pairs * s["heads"] * s["width"], s["moved"], s["peak"]


_SHAPE = ("requests", "tokens", "context", "heads", "kv_heads", "head_dim", "window")
_EXPERTS = ("tokens", "hidden", "inter", "chosen", "experts", "ranks")


def _sparse(operation: str) -> Kind:
    start = sparse_law.starts(operation)[0]
    shape = ("requests", "tokens", "context", "heads")
    return Kind(
        "sparse",
        _sparse_shapes,
        sparse_law.sparse_terms,
        start,
        sparse_law.bounds_of(operation),
        sparse_law.CHOICES[operation],
        _sparse_work,
        shape,
        shape,
        ("context", (-1, 255, 2047, 16383, 2**20)),
    )


#: By the operator of a row (collectives: any other).
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "prefill": Kind(
            "prefill",
            _attention_shapes,
            lambda gpu, constants, shapes, _: prefill_law.prefill_terms(gpu, constants, shapes),
            prefill_law.START,
            prefill_law.BOUNDS,
            {"packing": ("never", "one token", "up to 32", "always"), "query_tile": (16, 32, 64, 128)},
            _attention_work,
            _SHAPE,
            _SHAPE,
            ("tokens", (0, 64, 512, 4096, 2**20)),
        ),
        "decode": Kind(
            "decode",
            _attention_shapes,
            lambda gpu, constants, shapes, _: decode_law.decode_terms(gpu, constants, shapes),
            decode_law.START,
            decode_law.BOUNDS,
            {"packing": ("never", "no window", "up to 32", "always", "enough blocks", "enough blocks, whole")},
            _attention_work,
            _SHAPE,
            _SHAPE,
            ("context", (-1, 255, 2047, 16383, 2**20)),
        ),
        "moe": Kind(
            "moe",
            lambda gpu, rows: _columns(rows, _MOE),
            moe.moe_terms,
            moe.START,
            moe.BOUNDS,
            {"tiles": moe.RULES},
            _moe_work,
            _EXPERTS,
            (*_EXPERTS, "power"),
            ("tokens", (0, 64, 512, 4096, 2**20)),
        ),
        "collective": Kind(
            "collective",
            lambda gpu, rows: _columns(rows, ("message_bytes", "devices")),
            lambda gpu, constants, shapes, name: collectives.collective_terms(gpu, constants, name, *shapes.values()),
            collectives.START,
            collectives.BOUNDS,
            {"pattern": ("ring", "one shot")},
            _collective_work,
            ("message_bytes", "devices"),
            ("message_bytes", "devices"),
            ("message_bytes", (0, 2**14, 2**20, 2**26, 2**50)),
        ),
        "convolution": _CONVOLUTION,
        "convolution update": _CONVOLUTION,
        "chunked rule": Kind(
            "chunked_rule",
            lambda gpu, rows: _columns(rows, _STATE),
            lambda gpu, constants, shapes, _: recurrent_law.chunked_terms(gpu, constants, shapes),
            recurrent_law.CHUNKED_START,
            recurrent_law.CHUNKED_BOUNDS,
            {"resident": (1, 2, 4, 8)},
            _recurrent_work,
            _STATE,
            _STATE,
            _NEW_TOKENS,
        ),
        "state update": Kind(
            "state_update",
            lambda gpu, rows: _columns(rows, _UPDATED),
            lambda gpu, constants, shapes, _: recurrent_law.update_terms(gpu, constants, shapes),
            recurrent_law.UPDATE_START,
            recurrent_law.UPDATE_BOUNDS,
            {},
            _recurrent_work,
            _STATE,
            _STATE,
            _NEW_TOKENS,
        ),
        "encoder": Kind(
            "encoder",
            _encoder_shapes,
            lambda gpu, constants, shapes, _: encoder_law.encoder_terms(gpu, constants, shapes),
            encoder_law.START,
            encoder_law.BOUNDS,
            {"query_tile": (64, 128, 256), "key_tile": (64, 128)},
            _encoder_work,
            _ENCODER,
            _ENCODER,
            ("tokens", (0, 64, 512, 4096, 2**20)),
        ),
        "quantise": Kind(
            "quantise",
            lambda gpu, rows: _columns(rows, _QUANTISE),
            lambda gpu, constants, shapes, _: quantise.quantise_terms(gpu, constants, shapes),
            quantise.START,
            quantise.BOUNDS,
            {},
            _quantise_work,
            ("tokens", "columns"),
            ("tokens", "columns"),
            ("tokens", (0, 64, 512, 4096, 2**20)),
        ),
        "bmm": Kind(
            "bmm",
            lambda gpu, rows: _columns(rows, _PRODUCT),
            _product_terms,
            latent_products.START,
            latent_products.BOUNDS,
            {},
            _product_work,
            _PRODUCT,
            _PRODUCT,
            ("tokens", (0, 64, 512, 4096, 2**20)),
        ),
        **{operation: _sparse(operation) for operation in sparse_law.CHOICES},
    }
)


def kind_of(operator: str) -> Kind:
    """Return the kind of kernel that an operator is."""
    return KINDS.get(operator, KINDS["collective"])


#: Kernels of TensorRT-LLM, as its tables name them; theirs are the rules of `PACKING` that begin with "enough".
_RULED = "torch_flow"


def _possible(constants: AnyConstants, kernel: str) -> bool:
    """Whether a kernel may have these discrete properties, by its name."""
    if isinstance(constants, moe.MoeConstants):
        return not constants.tiles.startswith("triton") or "triton" in kernel or kernel.endswith("fused_moe")
    return kernel.startswith(_RULED) or not getattr(constants, "packing", "").startswith("enough")


def _started(
    kind: Kind, start: AnyConstants, kernel: str, shapes: Shapes, precision: str
) -> tuple[AnyConstants, Mapping[str, tuple[float, float]]]:
    """Return where a fit starts, and the bounds of the constants that this kernel has."""
    if isinstance(start, prefill_law.PrefillConstants):
        return prefill_law.started(start, kernel, shapes["head_dim"])
    if isinstance(start, decode_law.DecodeConstants):
        return decode_law.started(start)
    if isinstance(start, recurrent_law.UpdateConstants):
        return recurrent_law.started(start, shapes["tokens"])
    if isinstance(start, encoder_law.EncoderConstants):
        return encoder_law.started(start)
    if kind.name == "bmm":
        return latent_products.started(start, precision)
    return start, moe.bounds_of(start) if isinstance(start, moe.MoeConstants) else kind.bounds


def _cut(starts: list[prefill_law.PrefillConstants], pattern: str) -> list[prefill_law.PrefillConstants]:
    """Return starts with a rule for tiles, which leaves nothing to choose but whether it holds."""
    if pattern == "fixed":
        return starts
    if pattern == "flash 3":
        return [dataclasses.replace(starts[-1], pattern=pattern)]
    return [dataclasses.replace(starts[0], pattern=pattern), dataclasses.replace(starts[0], query_tile=64)]


def fit(gpu: Gpu, kind: Kind, rows: pd.DataFrame) -> AnyConstants:
    """Fit the constants and choose the discrete properties of one kernel.

    Parameters
    ----------
    rows : DataFrame
        Of one kernel and precision, with ``measured_s``.

    Returns
    -------
    dataclass
        With the least mean absolute logarithm of predicted over measured time among all choices.
    """

    def fitted(start: AnyConstants, part: pd.DataFrame) -> AnyConstants:
        measured = part["measured_s"].to_numpy()
        shapes = kind.shapes(gpu, part)
        start, bounds = _started(kind, start, kernel, shapes, precision)
        found = fit_law(lambda tried: kind.law(gpu, tried, shapes, precision)["time_s"], start, bounds, measured)
        return dataclasses.replace(found, source=f"fitted to {len(part)} measured shapes")

    def error(constants: AnyConstants, part: pd.DataFrame) -> float:
        ratio = terms(gpu, kind, constants, part)["time_s"] / part["measured_s"].to_numpy()
        return round(float(np.abs(np.log(ratio)).mean()), 6)

    few, many = (rows.iloc[:: max(1, len(rows) // count)] for count in (CHOICE_ROWS, FIT_ROWS))
    kernel, precision = rows[["kernel", "precision"]].iloc[0]
    options = itertools.product(*kind.choices.values())
    starts = [dataclasses.replace(kind.start, **dict(zip(kind.choices, option, strict=True))) for option in options]
    starts = [start for start in starts if _possible(start, kernel)]
    if kind.name == "collective":
        starts = [begun for start in starts for begun in collectives.starts(start, kernel, rows["measured_s"].min())]
    if kind.name == "encoder":
        starts = encoder_law.starts(starts, kernel)
    if kind.name == "prefill":
        starts = _cut(starts, prefill_tiles.pattern_of(kernel, gpu))
    if kind.name == "decode":
        pattern, heads = decode_splits.pattern_of(kernel, gpu, precision)
        starts = [dataclasses.replace(start, pattern=pattern, query_tile=heads) for start in starts]
        # Whose rules say all.
        starts = starts[:1] if pattern in decode_latent.STARTS else starts
    if len(starts) > 1:
        found = [fitted(start, few) for start in starts]
        starts = [min(found, key=lambda constants: error(constants, few))]
    return fitted(starts[0], many)


def terms(gpu: Gpu, kind: Kind, constants: AnyConstants, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return ``time_s`` and its terms, of rows of one kernel and precision."""
    return kind.law(gpu, constants, kind.shapes(gpu, rows), rows["precision"].iloc[0])


def predict(gpu: Gpu, kind: Kind, constants: AnyConstants, rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``predicted_s`` and ``bound``, the longest term, of one kernel's rows, with their index."""
    found = terms(gpu, kind, constants, rows)
    time_s = found.pop("time_s")
    names = np.array([name.removesuffix("_s") for name in found])
    longest = np.column_stack([np.broadcast_to(term, len(rows)) for term in found.values()]).argmax(axis=1)
    return pd.DataFrame({"predicted_s": time_s, "bound": names[longest]}, index=rows.index)
