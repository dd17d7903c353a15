"""Decode steps of a served model as a profiler would record them, simulated: every kernel takes its roofline's time.

Once with weights as trained, once in fp8, whose activations a kernel of its own quantises before each product.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpuledger import files
from gpuledger.models.simulate.cases import SEED
from gpuledger.models.transformer import Parallel, Precision, decode, kernels, read_model

#: The step: eight requests with 1,024 tokens each in the cache, on two devices.
MODEL, REQUESTS, CONTEXT, DEVICES = "Llama-3.1-8B", 8, 1024, 2
#: A device's peak and bandwidth, what kernels reach of them, and what a launch costs.
FLOP_PER_S, BYTES_PER_S, SHARE, LAUNCH_US = 989e12, 3.35e12, 0.75, 2.0
#: Of a collective: its time without waiting, and the mean wait for the other device.
TRANSFER_US, WAIT_US = 9.0, 4.0
#: How long the host needs for an operator and for a launch, and from a launch to the kernel's start.
OPERATOR_US, CALL_US, DELAY_US = 9.0, 3.0, 2.0
STEPS, LEFT_OVER = 3, 20
#: What the weights of the layers are stored in, by the trace's name.
WEIGHTS = {"decode": "bf16", "decode_fp8": "fp8"}
#: What the kernels of the model are called, and their operators.
NAMES = {
    "gemm": ("nvjet_tst_128x64_64x6_1x2_h_bz_TNT", "aten::mm"),
    "attention": ("flash_fwd_splitkv_kernel", "vllm::unified_attention_with_output"),
    "collective": ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "c10d::allreduce_"),
    "embedding": ("vectorized_gather_kernel", "aten::embedding"),
    "norm": ("fused_add_rms_norm_kernel", "_C::fused_add_rms_norm"),
    "rope": ("rotary_embedding_kernel", "_C::rotary_embedding"),
    "kv_write": ("reshape_and_cache_flash_kernel", "_C_cache_ops::reshape_and_cache_flash"),
    "act": ("act_and_mul_kernel", "_C::silu_and_mul"),
    "gemm, fp8": ("nvjet_qqtst_128x64_128x6_1x2_h_bz_TNT", "aten::_scaled_mm"),
    "quantise": ("scaled_fp8_quant_kernel", "_C::static_scaled_fp8_quant"),
}


def launches(weights: str) -> Iterator[Any]:
    """Yield the row of :func:`gpuledger.models.transformer.kernels` of every launch of a step, in order."""
    rows = kernels(read_model(MODEL), decode(CONTEXT, REQUESTS), Parallel(tensor=DEVICES), Precision(weights))
    rows = rows.assign(kernel=rows["kernel"].astype(str), kind=rows["kind"].astype(str))
    inside = np.flatnonzero(rows["layers"] >= 0)
    yield from rows.iloc[: inside[0]].itertuples()
    layer = rows.iloc[inside].drop_duplicates("kernel")
    reduce = next(layer[layer["kernel"] == "all_reduce"].itertuples())
    for _ in range(int(rows.loc[rows["kernel"] == "qkv_proj", "count"].sum())):
        for row in layer[layer["kernel"] != "all_reduce"].itertuples():
            if row.kind == "gemm" and weights == "fp8":
                sizes = {"n": row.k, "macs": 0, "weight_bytes": 0, "write_bytes": row.m * row.k}
                yield row._replace(kernel="quantise", kind="elementwise", **sizes)
                row = row._replace(kind="gemm, fp8")
            yield row
            if row.kernel in ("out_proj", "down_proj"):
                yield reduce
    yield from rows.iloc[inside[-1] + 1 :].itertuples()


def simulate_timeline(weights: str = "bf16") -> dict:
    """Return a trace in the form of torch.profiler's, with the end of a step before; the same every time.

    Parameters
    ----------
    weights : {"bf16", "fp8"}
        Format of the layers' weights.
    """
    rng = np.random.default_rng([SEED, *b"timeline"])
    step = [(row, _time_us(row)) for row in launches(weights)]
    events: list[dict] = []
    # Moments are of a machine that has been running for a while.
    host = gpu = 1e9
    for row, time in step[-LEFT_OVER:]:
        events.append(_kernel(row, gpu, time, None))
        gpu += time + 1
    number = 0
    for index in range(STEPS):
        begin = host
        for row, time in step:
            number += 1
            time += rng.exponential(WAIT_US) if row.kind == "collective" else 0.02 * time * rng.standard_normal()
            called = host + OPERATOR_US - CALL_US
            name = {"External id": number, "Input Dims": _shapes(row), "Input type": ["c10::BFloat16"] * 2}
            events.append(_host("cpu_op", NAMES[_role(row)][1], host, OPERATOR_US, **name))
            call = {"External id": number, "correlation": number}
            events.append(_host("cuda_runtime", "cudaLaunchKernel", called, CALL_US, **call))
            host += OPERATOR_US
            start = max(gpu + 0.5, called + DELAY_US)
            events.append(_kernel(row, start, time, number))
            gpu = start + time
        events.append(_host("cuda_runtime", "cudaStreamSynchronize", host, max(gpu - host, 0) + 5))
        host = max(gpu, host) + 5
        keys = REQUESTS * (CONTEXT + index + 1)
        annotation = f"execute_context_0(0)_generation_{REQUESTS}({keys})"
        events.append(_host("user_annotation", annotation, begin, host - begin))
        host += 400  # sampling and scheduling
    properties = [{"id": 0, "name": "a simulated GPU", "numSms": 132}]
    return {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}


def _time_us(row: Any) -> float:
    if row.kind == "collective":
        return TRANSFER_US
    moved = row.weight_bytes + row.read_bytes + row.write_bytes + row.cache_bytes
    return LAUNCH_US + 1e6 * max(2 * row.macs / FLOP_PER_S, moved / BYTES_PER_S) / SHARE


def _role(row: Any) -> str:
    if row.kind != "elementwise":
        return row.kind
    return next(
        (name for name in ("embedding", "rope", "kv_write", "act", "quantise") if row.kernel.endswith(name)), "norm"
    )


def _shapes(row: Any) -> list:
    return [[row.m, row.k], [row.k, row.n]] if row.kind.startswith("gemm") else [[row.m, row.n]]


def _host(category: str, name: str, start: float, duration: float, **inside: Any) -> dict:
    return _event(category, name, 1, 1, start, duration, inside)


def _kernel(row: Any, start: float, time: float, number: int | None) -> dict:
    inside: dict[str, Any] = {"device": 0, "stream": 7}
    if number is not None:
        inside |= {"correlation": number, "External id": number}
    return _event("kernel", NAMES[_role(row)][0], 0, 7, start, time, inside)


def _event(category: str, name: str, pid: int, tid: int, start: float, duration: float, inside: dict) -> dict:
    times = {"ts": round(start, 3), "dur": round(duration, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": inside}


def write_timeline(path: str | Path) -> Path:
    """Write the trace of `WEIGHTS` that has the file's name, as JSON."""
    path = Path(path)
    files.write_text(path, json.dumps(simulate_timeline(WEIGHTS[path.stem])) + "\n")
    return path
