"""From the names of a checkpoint's modules to the kernels that hold their weights."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuledger.errors import InputError
from gpuledger.ledger.download.names import shown
from gpuledger.models.transformer.blocks import Experts
from gpuledger.models.transformer.keys import ConfigKeys
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.names import UNCONVERTED, WEIGHTS
from gpuledger.models.transformer.precision import Precision, number_format
from gpuledger.models.transformer.recurrent_blocks import DeltaAttention, SelectiveScan, ShortConvolution, StateSpace

Formats = tuple[str, str | None]

_PROJECTIONS = "gate_proj|up_proj|gate_up_proj|down_proj|w1|w2|w3|input_linear|output_linear"
_DOWN = ("down_proj", "w2", "output_linear")
#: Patterns of module names after the layer's number, and the kernels that hold their weights.
_MODULES = (
    (r"(self_attn|attn|attention|linear_attn)(\.\w+)?", "attention"),
    (r"self_attn\.indexer(\.\w+)?", "attention"),
    (r"((\w+\.)?(q_proj|k_proj|v_proj|qkv_proj|o_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj))", "attention"),
    (rf"(mlp|ffn|block_sparse_moe|feed_forward|mixer)?\.?shared_experts?(\.({_PROJECTIONS}))?", "shared_"),
    (rf"(mlp|ffn|block_sparse_moe|feed_forward|mixer)?\.?experts(\.[\w*]+)?(\.({_PROJECTIONS}))?", "expert_"),
    (r"mixer\.(in_proj|out_proj|q_proj|k_proj|v_proj|o_proj|conv1d)", "attention"),
    (r"mamba(\.(in_proj|x_proj|dt_proj|out_proj|conv1d))?", "attention"),
    (r"conv(\.(in_proj|out_proj|conv))?", "attention"),
    (rf"(mlp\.)?shared_mlp(\.({_PROJECTIONS}))?", "shared_mlp"),
    (rf"block_sparse_moe\.({_PROJECTIONS})", "expert_"),
    (r"mixer\.fc[12]_latent_proj", "latent"),
    (rf"(mlp|ffn|feed_forward)(\.({_PROJECTIONS}))?", ""),
    (rf"mixer\.({_PROJECTIONS})", ""),
    (rf"({_PROJECTIONS})", ""),
)
_ATTENTION_PARTS = {
    **{part: {"qkv_proj", "q_proj"} for part in ("q_proj", "k_proj", "v_proj", "qkv_proj")},
    **{"o_proj": {"out_proj"}, "q_a_proj": {"qkv_a_proj"}, "q_b_proj": {"q_b_proj"}, "kv_b_proj": {"kv_b_proj"}},
    "kv_a_proj_with_mqa": {"qkv_a_proj", "kv_a_proj"},
    **{"indexer": {"index_q_proj", "index_k_proj"}, "wq_b": {"index_q_proj"}, "wk": {"index_k_proj"}},
    **{"weights_proj": {"index_weights_proj"}, "in_proj_qkv": {"delta_in_proj"}, "in_proj_z": {"delta_in_proj"}},
    **{part: {"delta_gates_proj"} for part in ("in_proj_a", "in_proj_b", "in_proj_ba")},
    **{"in_proj_qkvz": {"delta_in_proj"}, "g_proj": {"attn_gate_proj"}, "output_gate": {"attn_gate_proj"}},
    **{"index_q_proj": {"index_q_proj"}, "index_k_proj": {"index_k_proj"}},
    "mamba": {"ssm_in_proj", "ssm_x_proj", "ssm_step_proj", "out_proj"},
    **{"in_proj": {"ssm_in_proj"}, "x_proj": {"ssm_x_proj"}, "dt_proj": {"ssm_step_proj"}, "out_proj": {"out_proj"}},
    **{"query_key_value": {"qkv_proj"}, "dense": {"out_proj"}},
    **{"conv": {"ssm_in_proj", "out_proj"}, "conv1d": set(), "linear_attn": {"delta_in_proj", "out_proj"}},
}
_ALL_ATTENTION = {"qkv_proj", "q_proj", "out_proj", "qkv_a_proj", "kv_a_proj", "q_b_proj", "kv_b_proj"} | {
    *("index_q_proj", "index_k_proj", "attn_gate_proj", "out_a_proj", "delta_in_proj")
}
_UNTOUCHED = re.compile(
    r".*(lm_head|embed_tokens|wte|norm|layernorm|router|(^|[._])gate|shared_expert_gate|vision\w*|visual|multi_modal\w*"
    r"|mm_\w+|patch_\w+|(^|\.)(head|embed)|rotary_emb|e_score_correction_bias)([.\w*]*)"
)


@lru_cache(maxsize=4096)
def _kernels_of(module: str) -> frozenset[str] | None:
    """Return the kernels that hold the weights of *module*; None if it is unknown."""
    if "norm" in module.rpartition(".")[2]:
        return frozenset()
    for pattern, where in _MODULES:
        if re.fullmatch(pattern, module):
            last = module.rpartition(".")[2]
            if where == "latent":
                return frozenset({"latent_down_proj" if "fc1" in last else "latent_up_proj"})
            if where == "shared_mlp":  # Granite's blocks are so called without experts, too
                shared = _kernels_of(module.removeprefix("mlp.").replace("shared_mlp", "shared_experts")) or frozenset()
                return shared | {kernel.removeprefix("shared_") for kernel in shared}
            if where == "attention":
                return frozenset(_ATTENTION_PARTS.get(last, _ALL_ATTENTION))
            kernels = frozenset({f"{where}gate_up_proj", f"{where}up_proj", f"{where}down_proj"})
            if last in _DOWN:
                return kernels & {f"{where}down_proj"}
            if last in _PROJECTIONS.split("|"):
                return kernels - {f"{where}down_proj"}
            # A whole MoE block named mlp includes its experts.
            whole = ("experts", "shared_experts") if module in ("mlp", "ffn") else ()
            return kernels.union(*map(_kernels_of, whole))
    return frozenset() if _UNTOUCHED.fullmatch(module) else None


def _alternatives(name: str) -> list[str]:
    """Expand the first group of alternatives in a pattern: ``mlp.(gate|up)_proj``."""
    match = re.search(r"\(([\w|]+)\)", name)
    return [name.replace(match[0], one) for one in match[1].split("|")] if match else [name]


@dataclass(frozen=True)
class _FormatRule:
    """Formats (weights, operands) of the kernels that hold a module, in one layer or (None) in all of them."""

    layer: int | None
    module: str
    kernels: frozenset[str]
    formats: Formats

    def concerns(self, group: Layers, number: int) -> bool:
        if self.layer not in (None, number):
            return False
        # Qwen3.5 calls the two kinds of attention differently, Kimi-K3 calls both self_attn.
        delta = group.attention if isinstance(group.attention, DeltaAttention) else None
        kind = self.module.partition(".")[0]
        kinds = {type(part) for part in group.attention.parts}
        if kind == "self_attn" and kinds <= {StateSpace, SelectiveScan, ShortConvolution}:
            return False
        if (kind == "conv") != isinstance(group.attention, ShortConvolution) and kind in ("conv", "mamba"):
            return False
        if kind == "mamba" and not kinds & {StateSpace, SelectiveScan}:
            return False
        return not ((kind == "self_attn" and delta and not delta.decay_rank) or (kind == "linear_attn" and not delta))


def _rules(name: str, formats: Formats, layers: tuple[Layers, ...], keys: ConfigKeys) -> Iterator[_FormatRule]:
    count = sum(group.count for group in layers)
    for one in _alternatives(name):
        plain = one.removeprefix("re:").replace("\\.", ".").replace(".*", "*").strip("^$*")
        if plain.startswith("mtp"):  # multi-token prediction is left out
            continue
        match = re.fullmatch(r"(?:.*?)layers\.?(\d{1,6}|\*)\.?(.*)", plain)
        layer = int(match[1]) if match and match[1] != "*" else None
        if layer is not None and layer >= count:
            continue
        module = match[2] if match else plain.removeprefix("model.").removeprefix("language_model.")
        module = module.strip(".*").removesuffix(".weight")
        if any(isinstance(group.ffn, Experts) and group.ffn.own_norms for group in layers):
            module = re.sub(r"^mlp\b", "shared_experts", module)  # Gemma 4: beside the experts
        kernels = _kernels_of(module) if module else frozenset(WEIGHTS - UNCONVERTED)
        if kernels is None:
            problem = f"unknown module {shown(name)}"
            raise InputError(keys.file, f"key {keys.inside}", problem, "name modules of the architecture")
        yield _FormatRule(layer, module, kernels, formats)


def by_module(
    layers: tuple[Layers, ...], keys: ConfigKeys, modules: Sequence[tuple[str, Formats]], precision: Precision
) -> tuple[Layers, ...]:
    """Split layers where their modules are stored in different formats.

    Parameters
    ----------
    keys : ConfigKeys
        Of the object that names the modules, for error messages.
    modules : sequence of (name, (format of the weights, format of the operands))
        Names or patterns; an empty format: unquantised. Of several formats of a kernel's parts, the widest counts.
    precision : Precision
        Of the model: formats that are the same are left out.
    """
    found = [rule for name, formats in modules for rule in _rules(name, formats, layers, keys)]
    everywhere = [rule for rule in found if rule.layer is None]
    of_layer: dict[int | None, list[_FormatRule]] = {}
    for rule in found:
        of_layer.setdefault(rule.layer, []).append(rule)
    split: list[Layers] = []
    for group in layers:
        present = {linear.kernel for linear in group.linears(1)}
        kinds: dict[tuple, list[int]] = {}
        for number in group.numbers:
            chosen: dict[str, Formats] = {}
            for rule in (*everywhere, *of_layer.get(number, ())):
                if rule.concerns(group, number):
                    for kernel in rule.kernels & present:
                        chosen[kernel] = max(chosen.get(kernel, rule.formats), rule.formats, key=_bits)
            own = ((kernel, *formats) for kernel, formats in sorted(chosen.items()))
            kinds.setdefault(tuple(one for one in own if _differs(one, precision)), []).append(number)
        split += [replace(group, numbers=tuple(numbers), formats=own) for own, numbers in kinds.items()]
    return tuple(sorted(split, key=lambda group: group.numbers))


def _bits(formats: Formats) -> int:
    return number_format(formats[0]).bits if formats[0] else 64


def _differs(formats: tuple[str, str, str | None], precision: Precision) -> bool:
    kernel = formats[0]
    other = precision.with_formats([formats])
    same = other.format_of(kernel) == precision.format_of(kernel)
    return not same or other.operands_of(kernel) != precision.operands_of(kernel)
