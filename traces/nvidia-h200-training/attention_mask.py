"""What a mask costs PyTorch's attention, and what expanded heads of keys cost: python attention_mask.py TABLE.csv

Forward and backward of one layer in bf16, by backend. `causal`: is_causal; `all`: every pair of tokens; `mask`: a
causal mask in bf16, `bool`: of truth values, both of batch × 1 × tokens × tokens. `expanded`: keys and values as many
heads as queries. Medians of 12 calls between CUDA events, after three.
"""
import csv
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

attend = torch.nn.functional.scaled_dot_product_attention
NEW = {"device": "cuda", "dtype": torch.bfloat16}


def median_ms(call):
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(12):
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[6]


table = csv.writer(open(sys.argv[1], "w"), lineterminator="\n")
table.writerow("backend,batch,tokens,heads,kv_heads,head_dim,variant,forward_ms,backward_ms".split(","))
for backend in ("cudnn", "flash", "efficient"):
    for batch, tokens, heads, kv_heads, dim in ((2, 4096, 32, 8, 64), (2, 4096, 32, 8, 128), (1, 8192, 16, 16, 128)):
        query, keys, values, many_keys, many_values = (
            torch.randn(batch, tokens, count, dim, **NEW).transpose(1, 2).requires_grad_()
            for count in (heads, kv_heads, kv_heads, heads, heads)
        )
        kept = torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").tril().expand(batch, 1, tokens, tokens)
        masks = {"mask": torch.zeros(batch, 1, tokens, tokens, **NEW).masked_fill(~kept, float("-inf")), "bool": kept}
        gradient = torch.randn_like(query)
        for variant in ("causal", "all", "mask", "bool"):
            for expanded in (False, True)[: 1 + (heads != kv_heads)]:
                k, v = (many_keys, many_values) if expanded else (keys, values)
                grouped = k.shape[1] != heads
                options = dict(is_causal=variant == "causal", attn_mask=masks.get(variant), enable_gqa=grouped)
                try:
                    with sdpa_kernel([getattr(SDPBackend, f"{backend.upper()}_ATTENTION")]):
                        found = attend(query, k, v, **options)
                        forward = median_ms(lambda: attend(query, k, v, **options))
                        inputs = query, k, v
                        backward = median_ms(lambda: torch.autograd.grad(found, inputs, gradient, retain_graph=True))
                except RuntimeError as error:  # this backend does not take it
                    print(backend, variant, expanded, str(error).split("\n")[0][:100])
                    continue
                shape = backend, batch, tokens, heads, kv_heads, dim, variant + " expanded" * expanded
                table.writerow([*shape, f"{forward:.4f}", f"{backward:.4f}"])
