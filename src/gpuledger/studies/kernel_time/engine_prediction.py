"""Predictions for engines' fused kernels: fits of the law of each kind, and what it says."""

import dataclasses
import itertools
import re
from collections.abc import Mapping

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
    recurrent_law,
    triton_tiles,
)
from gpuledger.models.time_model.constants import AnyConstants
from gpuledger.models.time_model.fit_law import fit_law
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_time.attention_kinds import ATTENTION
from gpuledger.studies.kernel_time.kind import Kind, Shapes
from gpuledger.studies.kernel_time.layer_kinds import LAYERS

#: Rows that a fit uses at most, and that choosing among a kernel's discrete properties does.
FIT_ROWS, CHOICE_ROWS = 1200, 300

#: By the operator of a row (collectives: any other).
KINDS: Mapping[str, Kind] = {**ATTENTION, **LAYERS}


def kind_of(operator: str) -> Kind:
    """Return the kind of kernel that an operator is."""
    return KINDS.get(operator, KINDS["collective"])


#: Kernels of TensorRT-LLM, as its tables name them; theirs are the rules of `PACKING` that begin with "enough".
_RULED = "torch_flow"


def _possible(constants: AnyConstants, kernel: str) -> bool:
    """Whether a kernel may have these discrete properties, by its name."""
    if isinstance(constants, moe.MoeConstants):
        if "marlin" in kernel or constants.tiles == "marlin":
            return "marlin" in kernel and constants.tiles in ("best", "marlin")
        if constants.tiles in triton_tiles.RULES:
            return bool(re.search(triton_tiles.KERNELS, kernel)) and kernel.startswith("sglang") == (
                constants.tiles == triton_tiles.SGLANG
            )
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
    if isinstance(start, collectives.CollectiveConstants):
        return start, collectives.bounds_of(start)
    return moe.started(start, kernel) if isinstance(start, moe.MoeConstants) else (start, kind.bounds)


def _cut(starts: list[prefill_law.PrefillConstants], pattern: str) -> list[prefill_law.PrefillConstants]:
    """Return starts with a rule for tiles, which leaves nothing to choose but whether it holds."""
    if pattern in ("fixed", "tensorrt"):
        return [dataclasses.replace(start, pattern=pattern) for start in starts]
    if pattern.endswith("flash 3"):
        return [dataclasses.replace(starts[-1], pattern=pattern)]
    if pattern == "tensorrt fp8":
        return [dataclasses.replace(starts[0], pattern=pattern)]
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
        starts = _cut(starts, prefill_tiles.pattern_of(kernel, gpu, precision))
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
