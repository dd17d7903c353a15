"""A Triton kernel and a product of PyTorch in scopes of proton: python scopes.py NAME writes NAME_tree.hatchet and NAME_trace.chrome_trace."""
import sys

import torch
import triton
import triton.language as tl
import triton.profiler as proton


@triton.jit
def scaled_add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, at < n) * 2 + tl.load(y + at, at < n), at < n)


x, y = (torch.randn(1 << 26, device="cuda") for _ in range(2))
z = torch.empty_like(x)
a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))


def add():
    scaled_add[(x.numel() // 1024,)](x, y, z, x.numel(), BLOCK=1024)


add()
a @ b
for name, options in ((sys.argv[1] + "_tree", {}), (sys.argv[1] + "_trace", {"data": "trace"})):
    proton.start(name, hook="triton", **options)
    for number in range(5):
        with proton.scope(f"step {number}"):
            with proton.scope("add", metrics={"bytes": 12 * x.numel()}):
                add()
            with proton.scope("multiply", metrics={"flops": 2 * 4096**3}):
                a @ b
    torch.cuda.synchronize()
    proton.finalize()
