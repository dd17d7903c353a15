"""How long PyTorch's attention takes on this GPU, forward and backward, by backend; resumable chunk by chunk.

`scaled_dot_product_attention` in bf16 with a causal mask, as in training and prefill, and of one new token a request,
as in decoding. The profiler says which kernels were launched in each call, and how long they took. Heads are those of
models, whole and divided among GPUs.
"""

import logging
import random
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.record.parts import Recorded
from gpuledger.record.profiled_launches import (
    REFERENCE,
    append_rows,
    duration_ns,
    profiled,
    torch_with_attention,
    whole_rows,
    why_refused,
)

LOG = logging.getLogger("gpuledger")
TABLE = "kernel_time/attention.csv"
#: Heads of queries, of keys, and their dimensions: Llama-3.1-8B whole and divided among four GPUs, Llama-3.1-70B,
#: Llama-3.2-1B, Qwen2.5-7B, GPT-2 and gemma-2-9b.
HEADS = ((32, 8, 128), (8, 2, 128), (64, 8, 128), (32, 8, 64), (28, 4, 128), (12, 12, 64), (16, 8, 256))
#: Sequences and their tokens in a pass, and requests and tokens in the cache of each in a decode step.
PASSES = (
    *((batch, tokens) for batch, tokens in product((1, 2, 4, 16), (512, 1024, 2048, 4096)) if batch * tokens <= 32768),
    *((1, 8192), (2, 8192), (1, 16384), (1, 32768), (1, 1000), (3, 3000), (1, 5000), (8, 700)),
)
STEPS = tuple(
    (batch, context)
    for batch, context in product((1, 4, 16, 64, 128), (1000, 2048, 4096, 16384, 65536))
    if batch * context <= 2**20
)
#: PyTorch's names of its backends, by the word in the table.
BACKENDS = {"torch_flash": "FLASH_ATTENTION", "torch_cudnn": "CUDNN_ATTENTION"}
#: Launches of a call; the second one's time counts.
TURNS = 3
#: Calls between two writes of the table.
CHUNK = 40
#: Names of ranges: the call's place, its turn, what it does.
_RANGE = re.compile(r"\d+ \d (?:reference|forward|backward)")
COLUMNS = (
    *("framework", "op_name", "kernel_source", "attn_dtype", "kv_cache_dtype", "batch_size", "isl", "step"),
    *("num_heads", "num_key_value_heads", "head_dim", "latency", "kernels", "kernel", "kernel_ns"),
    *("first_ns", "third_ns", "reference_ns", "order"),
)
#: Names of operators, as other tables of kernels have them.
_FORWARD, _BACKWARD, _DECODE = "context_attention", "context_attention_backward", "generation_attention"
#: What tells shapes apart, in the order of :class:`AttentionCall`.
_KEY = ("kernel_source", "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
_NOTE = (
    "A row a shape and direction, in the order of the recording; a backward row is of the call in the row before. "
    "Three calls of a shape follow one another. latency (ms): all kernels of the second, without pauses between them; "
    "kernels: how many they are; kernel, kernel_ns: the longest. first_ns, third_ns: all kernels of the other calls. "
    f"reference_ns: the product of {'×'.join(map(str, REFERENCE))} that was launched before, whose time tells the "
    "clock."
)


class AttentionCall(NamedTuple):
    """Attention of one shape."""

    backend: str
    batch: int
    tokens: int  # new ones of each request; with a causal mask if they are several
    context: int  # tokens of each request in the cache
    heads: int
    kv_heads: int
    head_dim: int


def all_calls() -> list[AttentionCall]:
    """Return what is measured, in an order that is random but always the same."""
    passes = (
        AttentionCall(name, batch, tokens, 0, *heads)
        for name, (batch, tokens), heads in product(BACKENDS, PASSES, HEADS)
    )
    steps = (
        AttentionCall(name, batch, 1, context, *heads)
        for name, (batch, context), heads in product(BACKENDS, STEPS, HEADS)
    )
    found = [*passes, *steps]
    random.Random(1).shuffle(found)
    return found


def record_attention(folder: str | Path) -> Recorded:
    """Record all shapes; what a call before this one has recorded is kept."""
    torch = torch_with_attention()
    path = Path(folder, TABLE)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _whole_shapes(path)
    done = {tuple(row[name] for name in _KEY) for row in rows}
    before = int(rows[-1]["order"]) + 1 if rows else 0
    waiting = [call for call in all_calls() if tuple(map(str, call)) not in done]
    device, bench = torch.cuda.get_device_name(0), AttentionBench(torch)
    for at in range(0, len(waiting), CHUNK):
        LOG.info("attention: %d shapes left", len(waiting) - at)
        part = waiting[at : at + CHUNK]
        if found := rows_of(bench.profile(part), part, before + at):
            append_rows(path, COLUMNS, found)
            rows += found
    if not rows:
        problem = f"no backend takes any shape, such as {min(bench.refused)}"
        raise InputError("PyTorch", "attention", problem, "use a GPU and a PyTorch that have these backends")
    case = {"attention": TABLE, "gpu": device, "unit": "ms"}
    about = {"shapes": len(all_calls()), "refused": sorted(bench.refused)}
    return Recorded({"kernel_time": {"attention": case}}, about, {TABLE: _NOTE})


def _whole_shapes(path: Path) -> list[dict[str, str]]:
    """Return the rows in the table; if the last shape lacks its backward row, its forward row is removed."""
    rows = whole_rows(path)
    if rows and rows[-1]["op_name"] == _FORWARD:
        del rows[-1]
        files.write_csv(path, COLUMNS, rows)
    return rows


class AttentionBench:
    """PyTorch's attention, and its profiler around calls."""

    def __init__(self, torch: Any):
        self.torch = torch
        self.refused: set[str] = set()  # shapes that a backend does not take
        torch.manual_seed(0)
        new = {"device": "cuda", "dtype": torch.bfloat16}
        m, n, k = REFERENCE
        self._reference = torch.randn(m, k, **new), torch.randn(k, n, **new)
        torch.mm(*self._reference)
        torch.cuda.synchronize()

    def profile(self, calls: Sequence[AttentionCall]) -> list[dict]:
        """Make the calls and return the events that the profiler saw."""

        def launch() -> None:
            for at, call in enumerate(calls):
                try:
                    self._call(at, call)
                except RuntimeError as error:
                    self.refused.add(f"{'/'.join(map(str, call))}: {why_refused(error)}")

        return profiled(self.torch, launch)

    def _call(self, at: int, call: AttentionCall) -> None:
        torch, backend = self.torch, getattr(self.torch.nn.attention.SDPBackend, BACKENDS[call.backend])
        several = call.tokens > 1
        attend = torch.nn.functional.scaled_dot_product_attention
        with torch.profiler.record_function(f"{at} 0 reference"):
            torch.mm(*self._reference)
        query = self._heads(call.batch, call.tokens, call.heads, call.head_dim, several)
        keys, values = (
            self._heads(call.batch, call.context + call.tokens, call.kv_heads, call.head_dim, several) for _ in range(2)
        )
        gradient = torch.randn_like(query) if several else None
        for turn in range(TURNS):
            with torch.nn.attention.sdpa_kernel([backend]), torch.profiler.record_function(f"{at} {turn} forward"):
                grouped = call.heads != call.kv_heads
                found = attend(query, keys, values, is_causal=several, enable_gqa=grouped)
            if several:
                with torch.profiler.record_function(f"{at} {turn} backward"):
                    torch.autograd.grad(found, (query, keys, values), gradient)

    def _heads(self, batch: int, tokens: int, heads: int, head_dim: int, trained: bool) -> Any:
        """Return random values [batch, heads, tokens, head_dim]: as products make them, or as caches keep them."""
        new = {"device": "cuda", "dtype": self.torch.bfloat16}
        if trained:
            made = self.torch.randn(batch, tokens, heads, head_dim, **new).transpose(1, 2)
            return made.requires_grad_()
        return self.torch.randn(batch, heads, tokens, head_dim, **new)


def rows_of(events: Sequence[dict], calls: Sequence[AttentionCall], before: int) -> list[dict]:
    """Return a row for each shape and direction; a shape without all of its launches is left out.

    Parameters
    ----------
    events : sequence of dict
        Of the profiler, in any order. A kernel is of the range in which it was launched, from whatever thread.
    calls : sequence of AttentionCall
        In the order of their launches.
    before : int
        How many shapes were recorded before these.
    """
    ranges = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and _RANGE.fullmatch(event["name"])
    )
    starts = [start for start, *_ in ranges]
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    kernels: dict[str, list[dict]] = {}
    for event in events:
        if event.get("cat") != "kernel" or (ts := launched.get(event["args"].get("correlation"))) is None:
            continue
        place = bisect_right(starts, ts) - 1
        if place >= 0 and ts <= ranges[place][1]:
            kernels.setdefault(ranges[place][2], []).append(event)
    return [row | {"order": before + at} for at, call in enumerate(calls) for row in _rows(at, call, kernels)]


def _rows(at: int, call: AttentionCall, kernels: dict[str, list[dict]]) -> Iterator[dict]:
    reference = sum(map(duration_ns, kernels.get(f"{at} 0 reference", [])))
    names = {"forward": _FORWARD, "backward": _BACKWARD} if call.tokens > 1 else {"forward": _DECODE}
    turns = {name: [kernels.get(f"{at} {turn} {name}", []) for turn in range(TURNS)] for name in names}
    # The first call of a shape may launch more than the others, which launch the same.
    if not all(first and 0 < len(second) == len(third) for first, second, third in turns.values()):
        return
    shape = dict(zip(_KEY, call, strict=True))
    for direction, operator in names.items():
        first, second, third = (sum(map(duration_ns, turn)) for turn in turns[direction])
        longest = max(turns[direction][1], key=duration_ns)
        yield shape | {
            **{"framework": "PyTorch", "op_name": operator, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"},
            **{"latency": f"{second / 1e6:.6f}", "kernels": len(turns[direction][1])},
            **{"kernel": longest["name"], "kernel_ns": duration_ns(longest), "first_ns": first, "third_ns": third},
            "reference_ns": reference or "",
        }
