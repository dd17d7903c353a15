"""Time, traffic and bound of every kernel of a model's pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.time_model import moe, recurrent_law
from gpuledger.models.time_model.attention.kernels import VALUE_BITS, attention_times, sparse_times
from gpuledger.models.time_model.attention.sparse_kernels import SELECTION
from gpuledger.models.time_model.collectives import NODE, TRAYS, collective_terms
from gpuledger.models.time_model.constants import choice
from gpuledger.models.time_model.constants.table import Constants, Entry
from gpuledger.models.time_model.gemms.law import OPERAND_BYTES, gemm_terms
from gpuledger.models.time_model.kernel_rows import KernelRows
from gpuledger.models.time_model.operators import OperatorConstants, operator_times
from gpuledger.readers.gpus import Gpu

#: What the names of a vision tower's kernels begin with.
IMAGE = "image_"
#: What a kernel's time is bounded by. `launch` stands for all fixed latencies: the launch, steps that wait.
BOUNDS = ("compute", "dram", "l2", "launch", "link")


@dataclass(frozen=True)
class KernelConstants:
    """Whose constants predict the kernels on a GPU."""

    #: ``trtllm``, ``vllm`` or ``sglang``: its kernels, where they were measured. Empty: those of all engines, and of
    #: each kind the fastest.
    engine: str = ""
    #: By precision; those of :func:`gpuledger.models.time_model.constants.choice.gemm_entries` where there is none.
    gemm: Mapping[str, Constants] = field(default_factory=dict)
    operators: OperatorConstants = field(default_factory=OperatorConstants)
    weights_in_turn: int = 32  # of how many equal weights, used in turn, a kernel's are one: the layers of a model
    #: Rows of the tiles of a mixture of experts, one of :data:`gpuledger.models.time_model.moe.TILES`, where a
    #: recording states them. 0: by the kernels' rules.
    expert_tile: int = 0
    #: Whether the clock falls under long products as it does in the engines' benchmarks. False: the GPU's is the one at
    #: which it can go on.
    throttled: bool = True


#: As a type, made once: an index of texts takes longer than what a short frame's rows take.
_BOUNDS = pd.CategoricalDtype(list(BOUNDS))


def kernel_times(frame: pd.DataFrame, gpu: Gpu, constants: KernelConstants | None = None) -> pd.DataFrame:
    """Predict the time of every kernel.

    Parameters
    ----------
    frame : DataFrame, shape (kernels, …)
        As :func:`gpuledger.models.transformer.kernels` makes it: ``kernel, kind, batch, m, n, k, heads, kv_heads,
        value_dim, choices, arrived, experts, macs, weight_bytes, read_bytes, write_bytes, cache_bytes, comm_bytes,
        devices, precision, weight_precision`` and, optional, ``routing`` and ``law`` (of an elementwise kernel, a key
        of :data:`gpuledger.models.time_model.operators.LAWS`; empty: by its name), of one launch; the kernels of one
        mixture-of-experts layer follow each other.
    constants : KernelConstants, optional
        Those of all engines by default.

    Returns
    -------
    DataFrame, shape (kernels, … + 7)
        The frame with ``time_s``, of it ``launch_s`` (fixed cost of the launch), and, of one launch on one device,
        ``dram_bytes``, ``l2_bytes`` (both float64; for power models too), ``bound``, one of `BOUNDS`, ``constants``,
        whose they are (both categories), and ``error_percent``, the mean absolute error of these constants on
        measurements of this GPU that they were not fitted to (NaN: unknown).

    Raises
    ------
    ValueError
        An unknown kind; a precision that the GPU can neither do nor stand in for.
    InputError
        A collective on a GPU without a known link.
    """
    constants = constants or KernelConstants()
    count = len(frame)
    result = {name: np.zeros(count) for name in ("time_s", "launch_s", "dram_bytes", "l2_bytes")}
    result["error_percent"] = np.full(count, np.nan)
    bound, used = np.zeros(count, dtype=np.int8), np.full(count, "", dtype=object)

    def put(where: np.ndarray, parts: Mapping[str, np.ndarray]) -> None:
        for name, values in result.items():
            values[where] = parts.get(
                "fixed_s" if name == "launch_s" else name, np.nan if name == "error_percent" else 0
            )
        terms = np.column_stack([np.broadcast_to(parts.get(f"{name}_s", 0.0), len(where)) for name in BOUNDS])
        bound[where], used[where] = terms.argmax(axis=1), parts["constants"]

    every = KernelRows.of(frame)
    for kind_rows in every.groups(["kind"]):
        if (kind := kind_rows.label("kind")) not in _KINDS:
            raise ValueError(f"unknown kind of kernel '{kind}'; one of {', '.join(_KINDS)}")
        group, law = _KINDS[kind]
        for rows in kind_rows.groups(group):
            put(rows.where, law(rows, gpu, constants))
    for where, parts in _experts(every, gpu, constants, result):
        put(where, parts)
    for rows in every.at(every["kernel"] == SELECTION).groups(["kernel"]):
        put(rows.where, sparse_times(rows, gpu, constants.engine))
    of = pd.Categorical(used)
    return frame.assign(**result, bound=pd.Categorical.from_codes(bound, dtype=_BOUNDS), constants=of)


def gemm_precision(precision: str, weight_precision: str) -> str:
    """Return the precision that a GEMM's constants go by: products in fp8 with scales of blocks have their own."""
    return "fp8_block" if (precision, weight_precision) == ("fp8", "fp8_block") else precision


def _gemms(rows: KernelRows, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    precision = gemm_precision(*map(rows.label, ("precision", "weight_precision")))
    own = constants.gemm.get(precision)
    given = [Entry(gpu.name, "", "", precision, own)] if own else None
    m, n, k, batch = (rows[name].astype(np.int64) for name in ("m", "n", "k", "batch"))
    (weight_bytes,) = rows.floats("weight_bytes")
    # Weights in fewer bits are widened on the way from L2 to the matrix units.
    wide = float(OPERAND_BYTES[precision]) * k * n * batch
    stored = np.where(weight_bytes > 0, np.minimum(weight_bytes, wide), wide)
    # Kernels that widen weights were not measured.
    narrow = stored < 0.9 * wide
    # Steps of many contexts, or batches of equal tokens, multiply the same shapes.
    sizes, again = np.unique(np.column_stack([m, n, k, batch, stored]), axis=0, return_inverse=True)
    *shape, stored = sizes.T
    shape = [side.astype(np.int64) for side in shape]

    def law(entry: Entry) -> dict[str, np.ndarray]:
        kept = entry.constants if constants.throttled else replace(entry.constants, throttled=0.0)
        return gemm_terms(gpu, kept, *shape, precision, constants.weights_in_turn, stored)

    terms = choice.fastest(given or choice.gemm_entries(gpu, precision, constants.engine), law)
    parts = {name: values[again.reshape(-1)] for name, values in terms.items()}
    parts["l2_s"] = parts["l2_s"] + parts["drain_s"]
    parts["fixed_s"] = parts["launch_s"]
    parts["launch_s"] = np.maximum(parts["launch_s"], parts["latency_s"])
    parts["error_percent"] = np.where(narrow, np.nan, parts["error_percent"])
    return parts | ({"constants": own.source} if own else {})


def _attention(rows: KernelRows, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    return attention_times(rows, gpu, constants.engine)


def _elementwise(rows: KernelRows, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    # Today's engines load norms, activations and RoPE vectorised, unlike those of 2024 (the law's other operators).
    operators = ["softmax" if str(name).endswith("softmax") else "vectorised" for name in rows["kernel"]]
    m, batch, n, read, write, weight, cache, macs = rows.floats(
        "m", "batch", "n", "read_bytes", "write_bytes", "weight_bytes", "cache_bytes", "macs"
    )
    words = np.full(len(operators), "operators of an A100, data sheet rates of this GPU", dtype=object)
    if "law" in rows:  # of operators that PyTorch runs one by one
        operators = [own or name for own, name in zip(rows["law"], operators, strict=True)]
        words[rows["law"] != ""] = "operators of an A100, PyTorch's of an H100, data sheet rates of this GPU"
    times = operator_times(gpu, constants.operators, operators, m * batch, n, read + weight + cache, write)
    parts = {name: times[name].to_numpy() for name in times}
    if macs.any():  # scans of long prompts: no faster than matrix units
        parts["compute_s"] = 2 * macs / gpu.peak_flop_per_s("bf16")
        parts["time_s"] = np.maximum(parts["time_s"], parts["launch_s"] + parts["compute_s"])
    # A chain of steps is latency.
    parts["fixed_s"] = parts["launch_s"]
    parts["launch_s"] = np.maximum(parts["launch_s"], parts["chain_s"])
    return parts | {"constants": words}


def _recurrent(rows: KernelRows, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    kernel, value_bytes = rows.label("kernel"), VALUE_BITS.get(rows.label("precision"), 16) / 8
    decode = kernel.startswith("decode_")
    tokens, channels, k, batch, heads, key_heads, value_dim, decays, read, write, weight = rows.floats(
        *("m", "n", "k", "batch", "heads", "kv_heads", "value_dim", "choices", "read_bytes", "write_bytes"),
        "weight_bytes",
    )
    # A decay per channel of the keys: Kimi Delta Attention.
    family = "KDA " if decays[0] > heads[0] else ""
    if kernel.endswith("_conv"):
        shapes = {"requests": batch, "tokens": tokens, "channels": channels, "span": k}
        kind, law = "convolution", recurrent_law.convolution_terms
        found = choice.recurrent_candidates(kind, gpu, constants.engine, family, "update" if decode else "_fn")
    else:
        requests = batch / heads
        results = requests * tokens * heads * value_dim * value_bytes
        states = requests * heads * k * value_dim * (tokens if decode else 1)
        chunks = 0 if decode else np.ceil(tokens / recurrent_law.CHUNK) * states * value_bytes
        # Of a value of the state: two or four.
        state_bytes = np.clip(np.rint((write - results - chunks) / states), 1, 8)
        shapes = {"requests": requests, "tokens": tokens, "heads": heads, "key_heads": key_heads, "key_dim": k}
        shapes |= {"value_dim": value_dim, "decays": decays}
        shapes |= {"read_state_bytes": state_bytes, "written_state_bytes": state_bytes}
        shapes["layers"] = np.full_like(k, constants.weights_in_turn)
        kind, law = ("state_update", recurrent_law.update_terms) if decode else _CHUNKED
        found = choice.recurrent_candidates(kind, gpu, constants.engine, family)
    terms = choice.fastest(found, lambda entry: law(gpu, entry.constants, shapes))
    terms["fixed_s"] = terms["launch_s"]
    # Chunks that wait for one another are latency.
    terms["launch_s"] = terms["launch_s"] + terms.get("chain_s", 0.0)
    return terms | {"dram_bytes": read + write + weight, "l2_bytes": read + write + weight}


_CHUNKED = "chunked_rule", recurrent_law.chunked_terms


def _collectives(rows: KernelRows, gpu: Gpu, constants: KernelConstants) -> dict[str, np.ndarray]:
    if not gpu.link_bytes_per_s > 0:
        remedy = "add link_gb_per_s, its bandwidth per direction (half of what data sheets give for both together)"
        raise InputError(gpu.file, f"GPU {gpu.name}", "it has no link to other GPUs", remedy)
    name = rows.label("kernel").removeprefix(IMAGE)
    sent, devices = rows.floats("comm_bytes", "devices")
    # Pipeline stages send to one neighbour.
    operation = {"all_to_all": "alltoall", "send": "alltoall"}.get(name, name)
    message = sent * devices / ((2 if operation == "all_reduce" else 1) * np.maximum(devices - 1, 1))
    found = choice.candidates("collective", gpu, (operation,), constants.engine)
    # Engines leave what is long to NCCL.
    nccl = choice.candidates("collective", gpu, (operation,), "nccl")
    entries = list({entry.kernel: entry for entry in (*found, *nccl)}.values())
    terms = choice.fastest(
        entries,
        lambda entry: collective_terms(gpu, entry.constants, operation, message, devices, TRAYS.get(entry.gpu, NODE)),
    )
    terms |= {name: np.where(devices > 1, terms[name], 0) for name in ("time_s", "launch_s", "link_s")}
    # Each device reads what it sends and writes what it receives, as much.
    return terms | {"dram_bytes": 2 * sent, "l2_bytes": 2 * sent}


#: By kind: columns that rows of one law share, and the law.
_KINDS = {
    "gemm": (["precision", "weight_precision"], _gemms),
    "grouped_gemm": (["precision", "weight_precision"], _gemms),
    "attention": (["kernel", "precision", "weight_precision", "k", "value_dim"], _attention),
    "recurrent": (["kernel", "precision"], _recurrent),
    "elementwise": (["kind"], _elementwise),
    "collective": (["kernel"], _collectives),
}
#: Engines whose all-to-all (DeepEP's for low latency) hands a device its own rows by expert. TensorRT-LLM's leaves room
#: for all devices' tokens, and the kernels go through it. AIConfigurator's tables of what a device computes among 16 to
#: 64 say so (``wideep_generation_moe_perf``, ``wideep_moe_perf``), to which nothing was fitted: of H100, H200, B200 and
#: GB200, SGLang's are predicted within 9 to 22 % so (27 to 337 % otherwise), TensorRT-LLM's within 17 to 59 % (13 to
#: 31 %).
SORTED = ("sglang",)
#: Kernels that a fused mixture of experts includes beside its grouped GEMMs.
FUSED = ("router_topk", "expert_act", "expert_combine")


def _experts(every: KernelRows, gpu: Gpu, constants: KernelConstants, single: Mapping):
    """Yield the rows of fused mixture-of-experts layers and their times, instead of single kernels'.

    The law gives the time of a layer. Its grouped GEMMs share what they take by their MACs, the other kernels the rest
    by their bytes. `single` holds the bytes of the single kernels.
    """
    name = every["kernel"]
    # A layer begins with its routing; permuted copies of tokens mean that its kernels are not fused.
    layer = (name == "router_topk").cumsum()
    grouped = (every["kind"] == "grouped_gemm") & (layer > 0)
    if not grouped.any() or (name == "expert_permute").any():
        return
    first = grouped & (name != "expert_down_proj")
    other = np.isin(name, FUSED) & np.isin(layer, layer[grouped])
    for rows in every.at(first).groups(["weight_precision", "precision"]):
        stored, math = map(rows.label, ("weight_precision", "precision"))
        own = layer[rows.where]
        starts = np.flatnonzero(np.r_[True, own[1:] != own[:-1]])
        sizes = rows.floats("n", "k", "macs", "batch", "choices", "arrived", "experts")
        n, k, macs, active, choices, arrived, experts = (array[starts] for array in sizes)
        gates = np.diff(np.r_[starts, len(rows)])
        (inter,) = every.at(grouped & ~first & np.isin(layer, own)).floats("k")
        loads = macs / (n * k)
        tiles = active * np.ceil(loads / active / np.array(moe.TILES)[:, None])
        uneven = rows.at(starts).codes("routing") if "routing" in rows else np.full(len(starts), -1)
        for code in np.unique(uneven[uneven >= 0]):
            of = uneven == code
            routing = rows["routing"][starts[of][0]]
            several = np.rint(choices[of] / routing.active).astype(np.int64)
            # Expected experts are no whole number, as the rows' are: 1.46 of them are read, not one.
            active[of], tiles[:, of] = routing.busiest(several)[1], routing.tiles(several, moe.TILES)
        # All layers of a model have as many experts, and choose as many.
        total, tokens, written = (
            values[0] for values in every.at(name == "router_topk").floats("n", "m", "write_bytes")
        )
        chosen = written / (tokens * 8)
        shapes = {
            "own": experts,
            "chosen": np.full_like(n, chosen),
            "experts": np.full_like(n, total),
            "hidden": k,
            "inter": inter,
            "gates": np.rint(gates * n / inter),
            "rows": loads,
            "active": active,
            "layers": np.full_like(n, constants.weights_in_turn),
            "height": np.full_like(n, constants.expert_tile),
            **{f"tiles_{height}": count for height, count in zip(moe.TILES, tiles, strict=True)},
        }
        dtypes = choice.MOE_DTYPES.get((stored, math), (("bf16",),))
        shape = (total, float(k[0]), chosen) if constants.engine in choice.DISPATCHING else ()
        found = [
            entry for same in dtypes for entry in choice.candidates("moe", gpu, same, constants.engine, shape=shape)
        ]
        # Where 8-bit weights are widened, nothing was measured: a kernel in bf16 that reads half as much stands in.
        narrow = {"bf16": "w8a16"} if VALUE_BITS.get(stored) == 8 and math in ("bf16", "fp16") else {}
        found = [entry._replace(error_percent=np.nan) if entry.precision in narrow else entry for entry in found]

        # By whether the all-to-all hands the kernels only the device's own rows.
        arriving = {True: arrived / chosen, False: choices / chosen}

        def law(
            entry: Entry, shapes: Mapping = shapes, narrow: Mapping = narrow, arriving: Mapping = arriving
        ) -> dict[str, np.ndarray]:
            tokens = arriving[(constants.engine or entry.framework) in SORTED]
            dtype = narrow.get(entry.precision, entry.precision)
            return moe.moe_terms(gpu, entry.constants, shapes | {"tokens": tokens}, dtype)

        terms = choice.fastest(found, law)
        rest = terms["launch_s"] + terms["moved_s"]
        index = dict(zip(own[starts], range(len(starts)), strict=True))
        for mask, whole, share in ((grouped, terms["time_s"] - rest, "macs"), (other, rest, None)):
            where = np.flatnonzero(mask & np.isin(layer, own[starts]))
            at = np.array([index[number] for number in layer[where]])
            part = every.at(where)
            weight = sum(part.floats(share) if share else part.floats("read_bytes", "write_bytes"))
            weight = weight / np.bincount(at, weight, len(starts))[at]
            parts = {"time_s": whole[at] * weight} | {name: single[name][where] for name in ("dram_bytes", "l2_bytes")}
            if share:
                parts |= {f"{bound}_s": terms[f"{bound}_s"][at] for bound in ("compute", "l2", "dram")}
                # Steps that wait for one another are latency.
                parts["launch_s"] = terms["chain_s"][at]
                bytes_ = sum(part.floats("weight_bytes", "read_bytes", "write_bytes"))
                parts |= {"dram_bytes": bytes_, "l2_bytes": bytes_}
            else:
                launch_s = terms["launch_s"][at] * weight
                moved_s, from_dram = terms["moved_s"][at] * weight, parts["dram_bytes"] > 0
                parts |= {"launch_s": launch_s, "fixed_s": launch_s}
                parts |= {"dram_s": np.where(from_dram, moved_s, 0), "l2_s": np.where(from_dram, 0, moved_s)}
            yield where, parts | {name: terms[name][at] for name in ("constants", "error_percent")}
