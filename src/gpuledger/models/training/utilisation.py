"""Model and hardware FLOPs utilisation, as training throughput is reported.

    MFU = (6 N + 12 L d s) · tokens per second and GPU / peak

N parameters at two FLOPs in each of three passes; L layers whose scores and values take 4 d s FLOPs per token and pass
for s tokens of width d, *without* the causal mask, which hides half of them. HFU counts a fourth pass where layers are
computed again (V. Korthikanti et al., 2022; A. Chowdhery et al., PaLM, 2022, App. B; MosaicML's llm-foundry,
scripts/train/benchmarking).
"""

from gpuledger.models.transformer.model import Model


def model_flops_per_token(model: Model, sequence: int, causal: bool = False) -> float:
    """Return the FLOPs of a token in a forward and backward pass; *causal*: without what the mask hides."""
    width = sum(group.count * group.attention.heads * group.attention.head_dim for group in model.layers)
    seen = (sequence + 1) / 2 if causal else sequence
    return 6.0 * model.parameters + 12.0 * width * seen


def mfu_percent(model: Model, sequence: int, tokens_per_s_per_gpu: float, peak_flop_per_s: float) -> float:
    """Return the model FLOPs utilisation (%)."""
    return 100 * model_flops_per_token(model, sequence) * tokens_per_s_per_gpu / peak_flop_per_s


def hfu_percent(mfu: float, recompute: bool) -> float:
    """Return the hardware FLOPs utilisation (%) that belongs to a model FLOPs utilisation."""
    return mfu * (4 / 3 if recompute else 1)
