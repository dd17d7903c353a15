"""Training steps of Llama 3.2 1B with random weights, as Hugging Face's transformers has it.

python training_step.py [--autocast] [--compile] [--recompute] [--steps N] [--sequence TOKENS] [--batch SEQUENCES]
"""
import argparse
import time

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--autocast", action="store_true", help="keep parameters in 32 bits and multiply in bf16")
parser.add_argument("--compile", action="store_true", help="compile the model")
parser.add_argument("--recompute", action="store_true", help="keep only the inputs of layers for the backward pass")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--sequence", type=int, default=4096)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--layers", type=int, default=16)
parser.add_argument("--vocabulary", type=int, default=128256)
parser.add_argument("--device", default="cuda")
given = parser.parse_args()
transformers.logging.disable_progress_bar()
torch.manual_seed(0)
configuration = transformers.LlamaConfig(
    vocab_size=given.vocabulary, hidden_size=2048, intermediate_size=8192, num_hidden_layers=given.layers,
    num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
    tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa",
)
with torch.device(given.device):
    model = transformers.LlamaForCausalLM(configuration).to(torch.float32 if given.autocast else torch.bfloat16)
model.train()
if given.recompute:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=1e-5)
called = torch.compile(model) if given.compile else model
tokens = torch.randint(given.vocabulary, (given.batch, given.sequence), device=given.device)


def step():
    with torch.autocast(given.device, torch.bfloat16, enabled=given.autocast):
        loss = called(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def wait():
    if given.device == "cuda":
        torch.cuda.synchronize()


begin = time.monotonic()
for _ in range(3):
    loss = step()
wait()
print(f"three steps to warm up: {time.monotonic() - begin:.1f} s; loss {loss.item():.3f}", flush=True)
times = []
for _ in range(given.steps):
    begin = time.monotonic()
    with torch.profiler.record_function("training step"):
        step()
        wait()
    times.append(1000 * (time.monotonic() - begin))
print(
    "training step:", " ".join(f"{t:.2f}" for t in times), "ms;",
    f"{sum(p.numel() for p in parameters):,} parameters; torch {torch.__version__}, transformers {transformers.__version__};",
    f"allocated {torch.cuda.max_memory_allocated() >> 20 if given.device == 'cuda' else 0} MiB",
)
