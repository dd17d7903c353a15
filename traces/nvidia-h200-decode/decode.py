"""Decode steps of Llama 3.1 8B with random weights: python decode.py [--graph] [--steps N] [--layers N]."""
import argparse

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--graph", action="store_true", help="replay each step as a CUDA graph")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--layers", type=int, default=32)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--context", type=int, default=2048)
given = parser.parse_args()
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 4096, 32, 8, 128, 14336, 128256
torch.manual_seed(0)
new = {"device": "cuda", "dtype": torch.bfloat16}


def weight(rows, columns):
    return torch.randn(rows, columns, **new) * columns**-0.5


layers = [
    dict(
        norm=torch.ones(HIDDEN, **new), qkv=weight((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
        out=weight(HIDDEN, HEADS * HEAD_DIM), norm2=torch.ones(HIDDEN, **new),
        up=weight(2 * INTERMEDIATE, HIDDEN), down=weight(HIDDEN, INTERMEDIATE),
        keys=torch.randn(given.batch, KV_HEADS, given.context, HEAD_DIM, **new),
        values=torch.randn(given.batch, KV_HEADS, given.context, HEAD_DIM, **new),
    )
    for _ in range(given.layers)
]
embedding, norm, head = weight(VOCABULARY, HIDDEN), torch.ones(HIDDEN, **new), weight(VOCABULARY, HIDDEN)
angles = torch.outer(torch.arange(given.context, device="cuda"), 500000.0 ** (-torch.arange(0, HEAD_DIM, 2, device="cuda") / HEAD_DIM))
cosine, sine = (f(torch.cat([angles, angles], 1)).to(torch.bfloat16) for f in (torch.cos, torch.sin))
tokens = torch.zeros(given.batch, dtype=torch.long, device="cuda")
position = torch.full((1,), given.context - given.steps - 8, device="cuda")


def rotate(x, at):
    half = HEAD_DIM // 2
    return x * cosine[at] + torch.cat([-x[..., half:], x[..., :half]], -1) * sine[at]


def step():
    x = F.embedding(tokens, embedding)
    for layer in layers:
        q, k, v = (F.rms_norm(x, (HIDDEN,), layer["norm"], 1e-5) @ layer["qkv"].T).split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], -1)
        q = rotate(q.view(-1, HEADS, 1, HEAD_DIM), position)
        layer["keys"].index_copy_(2, position, rotate(k.view(-1, KV_HEADS, 1, HEAD_DIM), position))
        layer["values"].index_copy_(2, position, v.view(-1, KV_HEADS, 1, HEAD_DIM))
        y = F.scaled_dot_product_attention(q, layer["keys"], layer["values"], enable_gqa=True)
        x = x + y.reshape(given.batch, -1) @ layer["out"].T
        gate, up = (F.rms_norm(x, (HIDDEN,), layer["norm2"], 1e-5) @ layer["up"].T).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ layer["down"].T
    tokens.copy_((F.rms_norm(x, (HIDDEN,), norm, 1e-5) @ head.T).argmax(-1))
    position.add_(1)


with torch.no_grad():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    run = step
    if given.graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    torch.cuda.synchronize()
    times = []
    for number in range(given.steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.profiler.record_function("decode step"):
            torch.cuda.nvtx.range_push("decode step")
            begin.record()
            run()
            end.record()
            torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
print("decode step:", " ".join(f"{t:.3f}" for t in times), "ms; allocated", torch.cuda.max_memory_allocated() >> 20, "MiB")
