"""The kernels of a training step: forward, backward and update.

The forward pass is an inference engine's prefill (:func:`gpuledger.models.transformer.kernels`) without a cache and
with kernels that nothing fuses but attention and the loss, as in eager PyTorch. Its backward pass follows kernel by
kernel:

* *GEMM* m × n × k: the gradient of the input is a GEMM m × k × n, that of the weights n × k × m.
* *Attention*: five products where the forward pass has two (T. Dao, FlashAttention-2, 2023, Sec. 2.3), with the kernels
  around it in one row (:mod:`gpuledger.models.time_model.attention.backward_law`). If one GEMM made queries, keys and
  values, their gradients are copied together.
* *Elementwise*: reads what the forward kernel read and the gradient of what it wrote, and writes the gradients of what
  it read. An addition has nothing to compute backward, but where the residual stream forks, two gradients are added.
* *Loss*: one fused kernel in either direction reads the logits in bf16; the backward one writes their gradient.
* *Weights*: with parameters in 32 bits each use rounds them to bf16; gradients are copied into the buffer that is
  reduced. Products in fp8 convert weights, activations and gradients in kernels of their own, in both layouts.
* *Update*: AdamW and the clipping of gradients, operation by operation.

With the implementation of ``transformers``, the operators of :mod:`gpuledger.models.training.eager` stand in place of
elementwise kernels, the loss, and casts of weights; projections are GEMMs of their own; and a layer is computed again
up to its last operator that keeps something.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from gpuledger.models.time_model.attention.backward_law import PRODUCTS, moved_bytes
from gpuledger.models.time_model.attention.kernels import BACKWARD
from gpuledger.models.training import eager
from gpuledger.models.training.run import VALUE, TrainingRun
from gpuledger.models.transformer import kernels, prefill
from gpuledger.models.transformer.launches.rows import SIZES
from gpuledger.models.transformer.model import Layers

#: Of a step, in order; ``update`` once, the others in every pass.
PARTS = ("forward", "recompute", "backward", "update")
#: What kernels are for.
CLASSES = ("GEMM", "attention", "elementwise", "weights", "loss", "update")
#: Units of parameters that are gathered together: what is outside layers, and each layer (by its kind, from 0).
OUTER, HEAD = -1, -2
#: Operations that a serving engine has and training has not.
_DROPPED = ("kv_write",)
_UNFUSED = ("qkv", "gate_up", "attention")
#: Kernels whose backward one moves the same bytes.
_MIRRORED = ("rope",)


def training_kernels(run: TrainingRun) -> pd.DataFrame:
    """Return the kernels of one step on one GPU, collectives excepted.

    Returns
    -------
    DataFrame
        What :func:`gpuledger.models.time_model.kernels.kernel_times` reads, one row per kernel; ``count`` (launches in
        a step, all layers and passes), ``part``, one of `PARTS`, ``purpose``, one of `CLASSES`, and ``unit``: `OUTER`,
        `HEAD` or the kind of the layer.
    """
    rows = pd.DataFrame(list(_step(run)))
    numbers = [name for name in SIZES if name not in ("count", "devices")]
    rows = rows.reindex(columns=[*rows.columns, *(name for name in numbers if name not in rows)])
    rows[numbers] = rows[numbers].fillna(0)
    rows["law"] = rows["law"].fillna("")
    rows["batch"] = rows["batch"].where(rows["batch"] > 0, 1)
    rows[["precision", "weight_precision"]] = rows[["precision", "weight_precision"]].fillna("bf16")
    return rows.assign(devices=1)


def _step(run: TrainingRun) -> Iterator[dict]:
    fused = ("attention",) if run.eager else _UNFUSED
    forward = kernels(run.model, prefill(run.sequence, run.micro_batch), fused=fused)
    forward = forward[~forward["kernel"].isin(_DROPPED)].drop(columns=["shape", "phase", "stage", "routing", "devices"])
    for row in forward.to_dict("records"):
        own, kernel = int(row.pop("layers")), str(row["kernel"])
        row |= {name: str(row[name]) for name in ("kernel", "kind", "precision", "weight_precision")}
        row["count"] *= run.accumulation
        group = run.model.layers[own] if own >= 0 else None
        head = kernel in ("final_norm", "lm_head", "logit_softcap")
        place = {"unit": HEAD if head else own}
        if kernel in ("lm_head", "logit_softcap"):
            row = _for_every_token(row, run.tokens)
        for ahead in _forward(run, row, group):
            yield ahead | place | {"part": "forward"}
            if run.recompute and group and not (run.eager and kernel in eager.NOT_AGAIN):
                yield ahead | place | {"part": "recompute"}
        for back in _backward(run, row, group):
            yield back | place | {"part": "backward"}
    yield from _loss(run)
    yield from _weights(run)
    yield from (operator | {"unit": OUTER, "part": "update"} for operator in eager.update(run))


def _moved(kernel: str, purpose: str, m: float, n: float, read: float, write: float) -> dict:
    sizes = {"m": m, "n": n, "k": 1, "read_bytes": read, "write_bytes": write}
    return {"kernel": kernel, "kind": "elementwise", "purpose": purpose, **sizes}


def _for_every_token(row: dict, tokens: int) -> dict:
    """Return a kernel of the last tokens' logits as one of all tokens: training predicts every one."""
    scale = tokens / row["m"]
    scaled = {name: row[name] * scale for name in ("macs", "read_bytes", "write_bytes")}
    return row | scaled | {"m": tokens}


def _forward(run: TrainingRun, row: dict, group: Layers | None) -> Iterator[dict]:
    kind, kernel, m, n = row["kind"], row["kernel"], row["m"], row["n"]
    yield from _counted(eager.forward(run, kernel, group), row)
    if kind == "attention":
        yield row | {"purpose": "attention"}
    elif kind == "gemm":
        yield _product(run, row, group)
        yield from _converted(run, "operand", m, row["k"], row, group)
        yield from _bias(run, "forward", row, group)
    elif eager.replaces(run, kernel, group):
        return
    elif kernel.endswith("_residual") and run.wide:
        yield row | {"purpose": "elementwise", "read_bytes": m * n * (4 + VALUE), "write_bytes": m * n * 4}
    elif "embedding" in kernel:
        wide = run.stream_bytes / VALUE
        sizes = {name: row[name] * wide for name in ("read_bytes", "write_bytes", "weight_bytes")}
        yield row | sizes | {"purpose": "elementwise"}
    else:
        yield row | {"purpose": "elementwise"}
        if run.wide and _of_stream(kernel):
            yield _moved("cast", "elementwise", m, n, m * n * 4, m * n * VALUE) | {"count": row["count"]}


def _backward(run: TrainingRun, row: dict, group: Layers | None) -> Iterator[dict]:
    kind, kernel, m, n, k, count = (row[name] for name in ("kind", "kernel", "m", "n", "k", "count"))
    if kind == "attention":
        yield row | _backward_attention(row) | {"purpose": "attention"}
        if not run.eager or group.attention.stored_fused:
            yield _joined_gradients(run, group, count)
    elif kind == "gemm":
        both = {"read_bytes": (m + k) * n * VALUE, "count": count}
        yield _product(run, row | both | {"n": k, "k": n, "write_bytes": m * k * VALUE}, group)
        # The second operand of the gradient of the weights is the input, of which no layer has the same.
        sizes = {"m": n, "n": k, "k": m, "weight_bytes": 0, "read_bytes": m * (n + k) * VALUE}
        yield _product(run, row | sizes | {"write_bytes": n * k * VALUE}, group)
        yield from _converted(run, "gradient", m, n, row, group)
        yield from _bias(run, "backward", row, group)
    elif eager.replaces(run, kernel, group):
        pass
    elif kernel.endswith("_residual"):
        yield from _fork(run, m, n, count)
    elif kernel == "embedding":
        table, moved = n * run.model.vocab * run.gathered_bytes, m * n * run.stream_bytes
        yield _moved("embedding_gradient", "elementwise", m, n, 2 * moved, table + moved) | {"count": count}
    elif kernel == "position_embedding":
        moved = m * n * run.stream_bytes
        yield _moved("position_gradient", "elementwise", m, n, moved, moved / run.micro_batch) | {"count": count}
    else:
        ahead, written = row["read_bytes"], row["write_bytes"]
        read = ahead if kernel in _MIRRORED else ahead + written
        back = written if kernel in _MIRRORED else ahead
        yield row | {"purpose": "elementwise", "read_bytes": read, "write_bytes": back}
        if _of_stream(kernel):
            # The gradients of the norm's weights: a second pass.
            yield _moved("norm_gradient", "elementwise", m, n, read, 0) | {"count": count}
    yield from _counted(eager.backward(run, kernel, group), row)


def _counted(operators: list[dict], row: dict) -> Iterator[dict]:
    """Yield the operators of one layer and pass as often as the kernel that they belong to is launched."""
    yield from (operator | {"count": operator["count"] * row["count"]} for operator in operators)


def _backward_attention(row: dict) -> dict:
    requests, heads = row["batch"] / row["heads"], row["heads"]
    names = {"tokens": row["m"], "head_dim": (row["k"] + row["value_dim"]) / 2, "kv_heads": row["kv_heads"]}
    shape = {name: np.float64(size) for name, size in names.items()}
    moved = moved_bytes(shape | {"requests": requests, "heads": heads, "value_bytes": VALUE})
    # Gradients of queries, keys and values.
    written = requests * row["m"] * (heads * row["k"] + row["kv_heads"] * (row["k"] + row["value_dim"])) * VALUE
    sizes = {"macs": PRODUCTS * row["macs"], "read_bytes": float(moved) - written, "write_bytes": written}
    return {"kernel": BACKWARD, "cache_bytes": 0} | sizes


def _joined_gradients(run: TrainingRun, group: Layers, count: int) -> dict:
    attention, m = group.attention, run.tokens
    queries = attention.heads * attention.head_dim
    all_three = queries + attention.kv_heads * (attention.head_dim + attention.value_dim)
    joined = m * all_three * VALUE
    return _moved("join_gradients", "elementwise", m, all_three, joined, joined) | {"count": count}


def _of_stream(kernel: str) -> bool:
    return kernel in ("attn_norm", "ffn_norm", "final_norm", "attn_post_norm", "ffn_post_norm")


def _fork(run: TrainingRun, m: int, n: int, count: int) -> Iterator[dict]:
    """Add the gradients of the stream and of the block that reads it."""
    wide = run.stream_bytes
    yield _moved("gradient_sum", "elementwise", m, n, m * n * 2 * wide, m * n * wide) | {"count": count}
    if run.wide:
        # The block's gradient is widened, and the stream's rounded for the block.
        yield _moved("cast", "elementwise", m, n, m * n * (VALUE + 4), m * n * (4 + VALUE)) | {"count": count}


def _product(run: TrainingRun, row: dict, group: Layers | None) -> dict:
    formats = {"precision": "fp8", "weight_precision": "fp8"} if run.precision == "fp8" and group else {}
    return row | formats | {"purpose": "GEMM"}


def _converted(run: TrainingRun, name: str, m: int, n: int, row: dict, group: Layers | None) -> Iterator[dict]:
    if run.precision == "fp8" and group:
        moved = m * n
        yield _moved(f"{name}_fp8", "elementwise", m, n, moved * VALUE, 2 * moved) | {"count": row["count"]}


def _bias(run: TrainingRun, part: str, row: dict, group: Layers | None) -> Iterator[dict]:
    linears = group.linears(run.model.hidden) if group else ()
    if not any(linear.bias for linear in linears if row["kernel"] in (linear.kernel, linear.part)):
        return
    m, n = row["m"], row["n"]
    if run.eager:
        yield from _counted([operator for when, operator in eager.bias(run, m, n) if when == part], row)
    elif part == "backward":
        yield _moved("bias_gradient", "elementwise", m, n, m * n * VALUE, n * VALUE) | {"count": row["count"]}


def _loss(run: TrainingRun) -> Iterator[dict]:
    m, n = run.tokens, run.model.vocab
    place = {"unit": HEAD, "count": run.accumulation}
    if run.eager:
        yield from (operator | {"unit": HEAD, "part": part} for part, operator in _passes(run, eager.loss(run)))
        return
    yield _moved("cross_entropy", "loss", m, n, m * n * VALUE, 0) | place | {"part": "forward"}
    yield _moved("cross_entropy", "loss", m, n, m * n * VALUE, m * n * VALUE) | place | {"part": "backward"}


def _passes(run: TrainingRun, parts: Iterator[tuple[str, dict]], copies: int = 1) -> Iterator[tuple[str, dict]]:
    for part, operator in parts:
        yield part, operator | {"count": operator["count"] * copies * run.accumulation}


def _weights(run: TrainingRun) -> Iterator[dict]:
    """Yield what is done to parameters and their gradients in every pass, whatever the number of tokens."""
    units = {i: (run.layer_parameters(group), group.count) for i, group in enumerate(run.model.layers)}
    for unit, (size, copies) in (units | {OUTER: (run.outer_parameters, 1)}).items():
        place = {"unit": unit, "count": copies * run.accumulation}
        narrow = run.precision == "fp8" and unit >= 0
        if run.eager:
            yield from _matrices(run, unit, copies)
            # Passes after the first add their gradients to those of the one before.
            moved = size / run.gpus * run.state_value_bytes
            added = _moved("add_", "weights", size, 1, 2 * moved, moved) | {"unit": unit, "part": "backward"}
            if again := run.accumulation - 1:
                yield added | {"count": copies * again}
        elif run.wide or narrow:
            cast = _moved("cast_weights", "weights", size, 1, size * run.gathered_bytes, size * VALUE) | place
            yield cast | {"part": "forward"}
            if run.recompute and unit >= 0:
                yield cast | {"part": "recompute"}
        # Into the buffer; in 32 bits also there from 16 bits, and out of it into what is reduced.
        read, write = (VALUE + 4 + 4, 4 + 4 + VALUE) if run.wide else (VALUE, VALUE)
        if run.gpus > 1 or not run.eager:
            copied = _moved("copy_gradients", "weights", size, 1, size * read, size * write)
            yield copied | place | {"part": "backward"}


def _matrices(run: TrainingRun, unit: int, copies: int) -> Iterator[dict]:
    """Yield the casts of every matrix for its products, and of its gradient."""
    outer = unit == OUTER
    linears = [run.model.lm_head] if outer else run.model.layers[unit].linears(run.model.hidden)
    for linear in linears:
        for part, operator in _passes(run, eager.weights(run, linear.outputs * linear.inputs), copies):
            yield operator | {"unit": unit, "part": part}
            if part == "forward" and run.recompute and not outer:
                yield operator | {"unit": unit, "part": "recompute"}
    if outer:
        table = (("backward", operator) for operator in eager.table_gradient(run))
        yield from (operator | {"unit": unit, "part": part} for part, operator in _passes(run, table))
