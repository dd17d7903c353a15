"""The precision of a checkpoint: ``torch_dtype`` and ``quantization_config`` of its config.json."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuledger.errors import InputError
from gpuledger.ledger.download.names import shown
from gpuledger.models.transformer.keys import Keys
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.names import UNCONVERTED, WEIGHTS
from gpuledger.models.transformer.precision import Precision

#: Inference engines serve 32-bit checkpoints in 16 bits by default.
SERVED = {"float32": "bf16", "bfloat16": "bf16", "float16": "fp16", "auto": "bf16"}
MAX_GROUP = 65_536
#: Keys that list the modules that are not quantised.
EXCLUDED = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")

_PROJECTIONS = "gate_proj|up_proj|gate_up_proj|down_proj|w1|w2|w3"
#: Patterns of module names after the layer's number, and the kernels that hold their weights.
_MODULES = (
    (r"(self_attn|attn|attention|linear_attn)(\.\w+)?", "attention"),
    (r"self_attn\.indexer(\.\w+)?", "attention"),
    (r"((\w+\.)?(q_proj|k_proj|v_proj|qkv_proj|o_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj))", "attention"),
    (rf"(mlp|block_sparse_moe|feed_forward|mixer)?\.?shared_experts?(\.({_PROJECTIONS}))?", "shared_"),
    (rf"(mlp|block_sparse_moe|feed_forward|mixer)?\.?experts(\.[\w*]+)?(\.({_PROJECTIONS}))?", "expert_"),
    (r"mixer\.(in_proj|out_proj|q_proj|k_proj|v_proj|o_proj|conv1d)", "attention"),
    (r"mixer\.fc[12]_latent_proj", "latent"),
    (rf"(mlp|feed_forward)(\.({_PROJECTIONS}))?", ""),
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
    **{"in_proj": {"ssm_in_proj"}, "out_proj": {"out_proj"}},
    **{"conv1d": set(), "linear_attn": {"delta_in_proj", "out_proj"}},
}
_ALL_ATTENTION = {"qkv_proj", "q_proj", "out_proj", "qkv_a_proj", "kv_a_proj", "q_b_proj", "kv_b_proj"} | {
    *("index_q_proj", "index_k_proj"),
}
_UNTOUCHED = re.compile(
    r".*(lm_head|embed_tokens|wte|norm|layernorm|router|(^|[._])gate|shared_expert_gate|vision\w*|visual|multi_modal\w*"
    r"|mm_\w+|rotary_emb|e_score_correction_bias)([.\w*]*)"
)


def read_precision(keys: Keys, outer: Keys, layers: tuple[Layers, ...]) -> tuple[Precision, tuple[Layers, ...]]:
    """Return the precision of a checkpoint, and its layers, split where only some of them are quantised.

    Raises
    ------
    InputError
        Unknown data type or quantisation method, or a list of excluded modules that cannot be matched to kernels.
    """
    name = next(
        (source.value(key) for source in (keys, outer) for key in ("dtype", "torch_dtype") if source.content.get(key)),
        "auto",
    )
    plain = SERVED.get(name.removeprefix("torch.")) if isinstance(name, str) else None
    if plain is None:
        raise keys.error("torch_dtype", f"unknown data type {shown(name)}", f"known types: {', '.join(SERVED)}")
    settings = keys.mapping("quantization_config")
    if not settings:
        return Precision(plain, plain, plain), layers
    inner = Keys(settings, keys.file, "quantization_config")
    # Early files of Model Optimizer omit the method.
    by = inner.mapping("producer").get("name")
    method = inner.choice("quant_method", METHODS, "modelopt" if by == "modelopt" else "")
    weights, operands, cache = METHODS[method](inner, plain)
    precision = Precision(weights, plain, cache or plain, operands)
    names = [name for key in EXCLUDED for name in inner.strings(key)]
    if method in ("awq", "gptq") and inner.flag("lm_head"):
        precision = replace(precision, weights={"*": weights, "lm_head": weights})
    return precision, _leave_out(names, layers, inner)


def _fp8(keys: Keys, plain: str) -> tuple[str, str | None, str | None]:
    block = keys.value("weight_block_size", None)
    if block is None:
        return "fp8", "fp8", None
    sides = set(block) if isinstance(block, list) and all(type(side) is int for side in block) else set()
    if len(sides) != 1 or not 0 < (side := sides.pop()) < 10_000:
        raise keys.error("weight_block_size", f"{shown(block)} is not a square block", "only square ones are modelled")
    return f"fp8_block{side}", "fp8", None


def _grouped(zero_default: bool) -> Callable:
    """4- and 8-bit integers with a scale per group; the arithmetic is in the format of the activations."""

    def method(keys: Keys, plain: str) -> tuple[str, str | None, str | None]:
        bits = keys.integer("bits", 8, 4)
        group = keys.integer("group_size", MAX_GROUP, 128, low=-1)
        if bits not in (4, 8) or group == 0:
            raise keys.error("bits", f"{bits} bits with group_size {group}", "only 4 and 8 bits are modelled")
        zero = "_zero" if keys.flag("zero_point", zero_default) else ""
        return (f"int{bits}_g{group}{zero}" if group > 0 else f"int{bits}"), None, None

    return method


def _mxfp4(keys: Keys, plain: str) -> tuple[Mapping[str, str], str | None, str | None]:
    return (
        {"*": plain, **dict.fromkeys(("expert_gate_up_proj", "expert_up_proj", "expert_down_proj"), "mxfp4")},
        None,
        None,
    )


def _compressed(keys: Keys, plain: str) -> tuple[str, str | None, str | None]:
    groups = keys.mapping("config_groups")
    schemes = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise keys.error("config_groups", f"{shown(name)} is not an object", "correct it")
        at = Keys(group, keys.file, f"quantization_config.config_groups.{name}")
        weights = Keys(at.mapping("weights"), keys.file, f"{at.inside}.weights")
        bits, kind = weights.integer("num_bits", 16), weights.choice("type", {"int", "float"}, "int")
        strategy = weights.choice("strategy", {"tensor", "channel", "group", "block", "tensor_group"}, "tensor")
        values = {(4, "int"): "int4", (8, "int"): "int8", (8, "float"): "fp8"}.get((bits, kind))
        if (bits, kind) == (4, "float") and (strategy == "tensor_group" or weights.value("group_size", None) == 16):
            weight = "nvfp4"
        elif values is None:
            raise weights.error("num_bits", f"{kind} of {bits} bits", "only int4, int8, fp8 and nvfp4 are modelled")
        elif strategy == "group":
            zero = "" if weights.flag("symmetric", True) else "_zero"
            weight = f"{values}_g{weights.integer('group_size', MAX_GROUP)}{zero}"
        elif strategy == "block":
            block = weights.value("block_structure")
            weight = _fp8(Keys({"weight_block_size": block}, keys.file, weights.inside), plain)[0]
        else:
            weight = values
        operands = None
        if inputs := at.mapping("input_activations"):
            inputs = Keys(inputs, keys.file, f"{at.inside}.input_activations")
            bits, kind = inputs.integer("num_bits", 16), inputs.choice("type", {"int", "float"}, "int")
            operands = {(8, "int"): "int8", (8, "float"): "fp8", (4, "float"): "fp4"}.get((bits, kind))
            if operands is None:
                raise inputs.error("num_bits", f"{kind} of {bits} bits", "only int8, fp8 and fp4 are modelled")
        schemes.append((weight, operands))
    if len(set(schemes)) != 1:
        problem = f"{len(set(schemes))} different schemes"
        raise keys.error("config_groups", problem, "one scheme for all linear layers is modelled")
    scheme = keys.mapping("kv_cache_scheme")
    if scheme and (scheme.get("num_bits"), scheme.get("type")) != (8, "float"):
        raise keys.error("kv_cache_scheme", shown(scheme), "only 8-bit floats are modelled")
    return *schemes[0], "fp8" if scheme else None


#: By ``quant_algo`` of TensorRT Model Optimizer: format of the weights, of the operands.
_MODELOPT = {"FP8": ("fp8", "fp8"), "NVFP4": ("nvfp4", "fp4"), "FP8_PB_WO": ("fp8_block128", "fp8")}


def _modelopt(keys: Keys, plain: str) -> tuple[str, str | None, str | None]:
    algorithm = keys.value("quant_algo", None)
    if algorithm is None and keys.content.get("config_groups"):
        return _compressed(keys, plain)
    keys.choice("quant_algo", _MODELOPT, "")
    cache = keys.value("kv_cache_quant_algo", None) or keys.value("kv_cache_scheme", None)
    return *_MODELOPT[algorithm], "fp8" if cache else None


METHODS: dict[str, Callable] = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda keys, plain: ("fp8", "fp8", None),
    "awq": _grouped(zero_default=True),
    "gptq": _grouped(zero_default=True),
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}


def _kernels_of(module: str) -> set[str] | None:
    """Return the kernels that hold the weights of *module*; None if it is unknown."""
    if "norm" in module.rpartition(".")[2]:
        return set()
    for pattern, where in _MODULES:
        if re.fullmatch(pattern, module):
            last = module.rpartition(".")[2]
            if where == "latent":
                return {"latent_down_proj" if "fc1" in last else "latent_up_proj"}
            if where == "attention":
                return set(_ATTENTION_PARTS.get(last, _ALL_ATTENTION))
            kernels = {f"{where}gate_up_proj", f"{where}up_proj", f"{where}down_proj"}
            if last in ("down_proj", "w2"):
                return {f"{where}down_proj"}
            if last in _PROJECTIONS.split("|"):
                return kernels - {f"{where}down_proj"}
            # A whole MoE block named mlp includes its experts.
            return kernels | (_kernels_of("experts") | _kernels_of("shared_experts") if module == "mlp" else set())
    return set() if _UNTOUCHED.fullmatch(module) else None


def _alternatives(name: str) -> list[str]:
    """Expand the first group of alternatives in a pattern: ``mlp.(gate|up)_proj``."""
    match = re.search(r"\(([\w|]+)\)", name)
    return [name.replace(match[0], one) for one in match[1].split("|")] if match else [name]


def _leave_out(names: list[str], layers: tuple[Layers, ...], keys: Keys) -> tuple[Layers, ...]:
    everywhere: set[str] = set()
    by_layer: dict[int, set[str]] = {}
    count = sum(group.count for group in layers)
    for name in itertools.chain.from_iterable(map(_alternatives, names)):
        plain = name.removeprefix("re:").replace("\\.", ".").replace(".*", "*").strip("^$*")
        if plain.startswith("mtp"):  # multi-token prediction is left out
            continue
        match = re.fullmatch(r"(?:.*?)layers\.?(\d+|\*)\.?(.*)", plain)
        if match and match[1] != "*" and int(match[1]) >= count:
            continue
        module = match[2] if match else plain.removeprefix("model.").removeprefix("language_model.")
        kernels = _kernels_of(module.strip(".*").removesuffix(".weight")) if module else set(WEIGHTS - UNCONVERTED)
        if kernels is None:
            problem = f"unknown module {shown(name)}"
            raise InputError(keys.file, f"key {keys.inside}", problem, "name modules of the architecture")
        if match and match[1] != "*":
            by_layer.setdefault(int(match[1]), set()).update(kernels)
        else:
            everywhere |= kernels
    split: list[Layers] = []
    for group in layers:
        present = {linear.kernel for linear in group.linears(1)}
        kinds: dict[frozenset[str], list[int]] = {}
        for number in group.numbers:
            left = frozenset((everywhere | by_layer.get(number, set())) & present)
            kinds.setdefault(left, []).append(number)
        split += [replace(group, numbers=tuple(n), unconverted=left) for left, n in kinds.items()]
    return tuple(sorted(split, key=lambda group: group.numbers))
