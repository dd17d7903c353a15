"""Time, traffic and bound of every kernel of a model's pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from gpuledger.models.time_model.attention import AttentionConstants, attention_times
from gpuledger.models.time_model.collectives import collective_times
from gpuledger.models.time_model.constants import Constants, constants_of
from gpuledger.models.time_model.gemm import OPERAND_BYTES, gemm_plan
from gpuledger.models.time_model.operators import OperatorConstants, operator_times
from gpuledger.readers.gpus import Gpu

#: What a kernel's time is bounded by. `launch` stands for all fixed latencies: the launch, steps that wait.
BOUNDS = ("compute", "dram", "l2", "launch", "link")

# Laws of elementwise kernels by their names; all others are vectorised copies and additions.
_LAWS = (("(_|^)norm$", "norm"), ("_act$", "activation"), ("^rope$", "rope"), ("softmax$", "softmax"))


@dataclass(frozen=True)
class KernelConstants:
    """The constants of all kinds of kernels on one GPU.

    Attributes
    ----------
    gemm : mapping of str to Constants
        By precision; those of :func:`gpuledger.models.time_model.constants_of` where there is none.
    operators : OperatorConstants
    attention : AttentionConstants
    weights_in_turn : int
        Of how many equal weights, used in turn, a kernel's are one: the layers of a model.
    """

    gemm: Mapping[str, Constants] = field(default_factory=dict)
    operators: OperatorConstants = field(default_factory=OperatorConstants)
    attention: AttentionConstants = field(default_factory=AttentionConstants)
    weights_in_turn: int = 32


def kernel_times(frame: pd.DataFrame, gpu: Gpu, constants: KernelConstants | None = None) -> pd.DataFrame:
    """Predict the time of every kernel.

    Parameters
    ----------
    frame : DataFrame, shape (kernels, …)
        As :func:`gpuledger.models.transformer.kernels` makes it: ``kernel, kind, batch, m, n, k, macs, weight_bytes,
        read_bytes, write_bytes, cache_bytes, comm_bytes, devices, precision, weight_precision``, of one launch.
    gpu : Gpu
    constants : KernelConstants, optional
        Fitted ones where the checkout has them, else those of the nearest GPU, by default.

    Returns
    -------
    DataFrame, shape (kernels, … + 4)
        The frame with ``time_s`` and, of one launch on one device, ``dram_bytes``, ``l2_bytes`` (both float64; for
        power models too) and ``bound``, one of `BOUNDS` (category).

    Raises
    ------
    ValueError
        An unknown kind; a precision that the GPU can neither do nor stand in for.
    InputError
        A collective on a GPU without a known link.
    """
    constants = constants or KernelConstants()
    count = len(frame)
    result = {name: np.zeros(count) for name in ("time_s", "dram_bytes", "l2_bytes")}
    bound = np.zeros(count, dtype=np.int8)
    codes, kinds = pd.factorize(frame["kind"])
    for code, kind in enumerate(map(str, kinds)):
        where = np.flatnonzero(codes == code)
        if kind not in _KINDS:
            raise ValueError(f"unknown kind of kernel '{kind}'; one of {', '.join(_KINDS)}")
        parts = _KINDS[kind](frame.iloc[where], gpu, constants)
        for name, values in result.items():
            values[where] = parts.get(name, 0.0)
        terms = np.column_stack([np.broadcast_to(parts.get(f"{name}_s", 0.0), len(where)) for name in BOUNDS])
        bound[where] = terms.argmax(axis=1)
    return frame.assign(**result, bound=pd.Categorical.from_codes(bound, categories=BOUNDS))


def _gemms(rows: pd.DataFrame, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    names = ("time_s", "compute_s", "dram_s", "l2_s", "launch_s", "dram_bytes", "l2_bytes")
    result = {name: np.zeros(len(rows)) for name in names}
    sizes = {name: rows[name].to_numpy(dtype=np.int64) for name in ("m", "n", "k", "batch")}
    weight_bytes = rows["weight_bytes"].to_numpy(dtype=float)
    codes, precisions = pd.factorize(rows["precision"])
    for code, precision in enumerate(map(str, precisions)):
        where = np.flatnonzero(codes == code)
        own = constants.gemm.get(precision) or constants_of(gpu, precision)
        m, n, k, batch = (size[where] for size in sizes.values())
        # Weights in fewer bits are widened on the way from L2 to the matrix units.
        wide = float(OPERAND_BYTES[precision]) * k * n * batch
        stored = np.where(weight_bytes[where] > 0, np.minimum(weight_bytes[where], wide), wide)
        plan = gemm_plan(gpu, own, m, n, k, batch, precision, constants.weights_in_turn, stored)
        terms = {name: plan[name].to_numpy() for name in plan if name != "bound"}
        for name in ("time_s", "compute_s", "dram_s", "dram_bytes", "l2_bytes"):
            result[name][where] = terms[name]
        result["l2_s"][where] = terms["l2_s"] + terms["drain_s"]
        result["launch_s"][where] = np.maximum(terms["launch_s"], terms["latency_s"])
    return result


def _attention(rows: pd.DataFrame, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    times = attention_times(gpu, constants.operators, rows, constants.attention)
    return {name: times[name].to_numpy() for name in times}


def _elementwise(rows: pd.DataFrame, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    codes, names = pd.factorize(rows["kernel"])
    laws = [next((law for pattern, law in _LAWS if re.search(pattern, name)), "vectorised") for name in map(str, names)]
    operator = np.array(laws, dtype=object)[codes]
    read = rows["read_bytes"].to_numpy(dtype=float) + rows["weight_bytes"].to_numpy(dtype=float)
    read += rows["cache_bytes"].to_numpy(dtype=float)
    launches = rows["m"].to_numpy() * rows["batch"].to_numpy(), rows["n"].to_numpy()
    times = operator_times(gpu, constants.operators, operator, *launches, read, rows["write_bytes"].to_numpy())
    parts = {name: times[name].to_numpy() for name in times}
    # What an SM issues is its computing; a chain of steps is latency.
    parts["compute_s"] = parts["issue_s"]
    parts["launch_s"] = np.maximum(parts["launch_s"], parts["chain_s"])
    return parts


def _collectives(rows: pd.DataFrame, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    sent = rows["comm_bytes"].to_numpy(dtype=float)
    times = collective_times(gpu, rows["kernel"].astype(str).to_numpy(), sent, rows["devices"].to_numpy())
    parts = {name: times[name].to_numpy() for name in times}
    # Each device reads what it sends and writes what it receives, as much.
    return parts | {"dram_bytes": 2 * sent, "l2_bytes": 2 * sent}


_KINDS = {
    "gemm": _gemms,
    "grouped_gemm": _gemms,
    "attention": _attention,
    "elementwise": _elementwise,
    "collective": _collectives,
}
