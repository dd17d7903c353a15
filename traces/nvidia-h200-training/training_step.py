"""Training steps of models of Hugging Face's transformers with random weights, all in one process.

python training_step.py FOLDER VARIANT …

VARIANT is a config.json's name, sequences, tokens of each, and flags: models/Qwen3-1.7B.json:2:4096:autocast:recompute.
Each is trained for three steps to warm up, six that are timed without a profiler, and two under torch.profiler, with
the options of gpuledger's own (src/gpuledger/record/timeline_of.py). FOLDER gets their timelines.
"""
import gc
import sys
import time

import torch
import transformers

transformers.logging.disable_progress_bar()
device = "cuda" if torch.cuda.is_available() else "cpu"


def wait():
    if device == "cuda":
        torch.cuda.synchronize()


def run(config, batch, sequence, flags, timeline):
    torch.manual_seed(0)
    configuration = transformers.AutoConfig.from_pretrained(config)
    configuration.use_cache = False
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="sdpa")
    model.to(torch.float32 if "autocast" in flags else torch.bfloat16).train()
    if "recompute" in flags:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    tokens = torch.randint(configuration.vocab_size, (batch, sequence), device=device)

    def step():
        with torch.autocast(device, torch.bfloat16, enabled="autocast" in flags):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(3):
        loss = step()
    wait()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(6):
        begin = time.monotonic()
        step()
        wait()
        times.append(1000 * (time.monotonic() - begin))
    print(
        f"{config} {batch}×{sequence} {' '.join(flags)}:", " ".join(f"{t:.2f}" for t in times), "ms;",
        f"{sum(p.numel() for p in parameters):,} parameters; loss {loss.item():.3f};",
        f"allocated {torch.cuda.max_memory_allocated() >> 20 if device == 'cuda' else 0} MiB",
        flush=True,
    )
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], record_shapes=True) as recorder:
        for _ in range(2):
            with torch.profiler.record_function("training step"):
                step()
                wait()
    recorder.export_chrome_trace(timeline)


print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
folder, *variants = sys.argv[1:]
for variant in variants:
    config, batch, sequence, *flags = variant.split(":")
    name = config.rpartition("/")[2].removesuffix(".json")
    try:
        run(config, int(batch), int(sequence), flags, f"{folder}/{'_'.join([name, batch, sequence, *flags])}.json")
    except Exception as error:
        print(f"{variant}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
