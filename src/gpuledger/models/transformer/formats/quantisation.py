"""The precision of a checkpoint: ``torch_dtype`` and ``quantization_config`` of its config.json."""

import re
from collections.abc import Callable
from typing import Any

from gpuledger.errors import shown
from gpuledger.models.transformer.blocks.standard import Experts
from gpuledger.models.transformer.formats.module_patterns import by_module
from gpuledger.models.transformer.formats.precision import Precision
from gpuledger.models.transformer.formats.scheme import MAX_GROUP, Scheme, where_groups_fit
from gpuledger.models.transformer.formats.weight_only_schemes import aqlm, bitnet, exl3, hqq, mlx, torchao
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.rules.keys import ConfigKeys

#: Inference engines serve 32-bit checkpoints in 16 bits by default.
SERVED = {"float32": "bf16", "bfloat16": "bf16", "float16": "fp16", "auto": "bf16"}
#: Keys that list the modules that are not quantised.
EXCLUDED = (
    *("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude"),
    *("llm_int8_skip_modules", "skip_modules", "linear_weights_not_to_quantize"),
)
#: What makes a name of AutoRound an expression.
_EXPRESSION = re.compile(r"[*+?^$()\[\]{}|\\]")


def read_precision(
    keys: ConfigKeys, outer: ConfigKeys, layers: tuple[Layers, ...], hidden: int, kind: str, nested: bool
) -> tuple[Precision, tuple[Layers, ...]]:
    """Return the precision of a checkpoint, and its layers, split where they differ in the formats of their weights.

    Parameters
    ----------
    hidden : int
        Width of the residual stream.
    kind, nested : str, bool
        The architecture, and whether the file describes other parts beside the text model: for names of modules.

    Raises
    ------
    InputError
        Unknown data type or quantisation method, or a list of modules that cannot be matched to kernels.
    """
    name = next(
        (source.value(key) for source in (keys, outer) for key in ("dtype", "torch_dtype") if source.content.get(key)),
        "auto",
    )
    plain = SERVED.get(name.removeprefix("torch.")) if isinstance(name, str) else None
    if plain is None:
        raise keys.error("torch_dtype", f"unknown data type {shown(name)}", f"known types: {', '.join(SERVED)}")
    # DeepSeek-V4's experts: mxfp4, multiplied with fp8 operands.
    fp4 = keys.choice("expert_dtype", {"fp4", "fp8"}, "fp8") == "fp4"
    experts = [("experts", ("mxfp4", "fp8"))] if fp4 else []
    settings = keys.mapping("quantization_config")
    if not settings:
        precision = Precision(plain, plain, plain)
        return precision, by_module(layers, keys, experts, precision, kind, nested)[0]
    inner = ConfigKeys(settings, keys.file, "quantization_config")
    # Early files of Model Optimizer omit the method.
    by = inner.mapping("producer").get("name")
    method = inner.value("quant_method", "modelopt" if by == "modelopt" else "")
    if method == "exl2":
        problem = "how many bits each matrix of ExLlamaV2 has is only in its weights"
        raise inner.error("quant_method", problem, "state the formats in a copy of the file without it")
    if not isinstance(method, str) or method not in METHODS:
        remedy = (
            "remove quantization_config from a copy of the file, and state the formats (precision: {weights: int4_g64})"
        )
        problem = f"unknown value {shown(method)} (known: {', '.join(sorted(METHODS))})"
        raise inner.error("quant_method", problem, remedy)
    scheme = mlx(inner, layers, kind) if method == "mlx" else METHODS[method](inner, plain)
    precision = Precision(scheme.weights, plain, scheme.cache or plain, scheme.operands)
    if inner.content.get("moe_quant_algo") is not None:
        # Only experts were converted by Model Optimizer, the rest stays as it was: what it ignored is quantised too.
        algorithm = inner.choice("moe_quant_algo", MODELOPT, "")
        return precision, by_module(layers, inner, [("experts", MODELOPT[algorithm])], precision, kind, nested)[0]
    unquantised = [(name, ("", None)) for key in EXCLUDED for name in inner.strings(key)]
    if any(isinstance(group.ffn, Experts) and group.ffn.latent_norm for group in layers):
        # Kimi-K3's weights keep these in 16 bits though its list does not name them (SGLang and vLLM load them so).
        unquantised += [(f"fc{i}_latent_proj", ("", None)) for i in (1, 2)]
    patterns = [*unquantised, *scheme.modules, *experts]
    layers, head = by_module(layers, inner, patterns, precision, kind, nested, bool(scheme.all_kernels))
    if scheme.whole_groups:
        precision, layers = where_groups_fit(precision, layers, hidden)
    if method in ("awq", "gptq") and inner.flag("lm_head"):
        head = head or (scheme.weights, None)
    return (precision.with_formats([("lm_head", *head)]) if head and head[0] else precision), layers


def _fp8(keys: ConfigKeys, plain: str) -> Scheme:
    block = keys.value("weight_block_size", None)
    return Scheme("fp8" if block is None else _block_format(keys, block), "fp8")


def _block_format(keys: ConfigKeys, block: Any) -> str:
    sides = set(block) if isinstance(block, list) and all(type(side) is int for side in block) else set()
    if len(sides) != 1 or not 0 < (side := sides.pop()) < 10_000:
        raise keys.error("weight_block_size", f"{shown(block)} is not a square block", "only square ones are modelled")
    return f"fp8_block{side}"


def _integers(keys: ConfigKeys, plain: str) -> Scheme:
    """4- and 8-bit integers with a scale per group; the arithmetic is in the format of the activations (AWQ, GPTQ)."""
    base = _integer_format(keys)
    modules = []
    # GPTQModel: patterns of modules that differ, or (with a minus) are left out.
    for name in (dynamic := keys.inner("dynamic")).content:
        own = "" if name.startswith("-:") else _integer_format(dynamic.inner(name), keys)
        modules.append(("re:" + name.removeprefix("-:").removeprefix("+:"), (own, None)))
    return Scheme(base, modules=tuple(modules))


def _auto_round(keys: ConfigKeys, plain: str) -> Scheme:
    """AutoRound: integers as GPTQ and AWQ pack them; single modules are stored in other widths or not quantised."""
    keys.choice("data_type", {"int"}, "int")
    keys.fixed("act_bits", 16, "quantised activations")
    modules = []
    for name in (other := keys.inner("extra_config")).content:
        one = other.inner(name)
        own = "" if one.integer("bits", 32, None) in (16, 32) else _integer_format(one, keys)
        # Names with signs of expressions are searched for, and only where no name says more.
        search = f"re:{'' if name.startswith(('.*', '^')) else '.*'}{name}"
        modules.append((search if _EXPRESSION.search(name) else name, (own, None)))
    modules.sort(key=lambda module: module[0].startswith("re:"))
    return Scheme(_integer_format(keys), modules=tuple(modules))


def _integer_format(keys: ConfigKeys, usual: ConfigKeys | None = None) -> str:
    """Return the format that *keys* state, with those of *usual* for what they do not."""
    usual = usual or keys
    bits = keys.integer("bits", 8, None) or usual.integer("bits", 8, 4)
    group = keys.integer("group_size", MAX_GROUP, None, low=-1) or usual.integer("group_size", MAX_GROUP, 128, low=-1)
    if bits not in (4, 8) or group == 0:
        raise keys.error("bits", f"{bits} bits with group_size {group}", "only 4 and 8 bits are modelled")
    zero = "_zero" if usual.flag("zero_point", True) else ""
    return f"int{bits}_g{group}{zero}" if group > 0 else f"int{bits}"


def _mxfp4(keys: ConfigKeys, plain: str) -> Scheme:
    experts = ("expert_gate_up_proj", "expert_up_proj", "expert_down_proj")
    return Scheme({"*": plain, **dict.fromkeys(experts, "mxfp4")})


def _compressed(keys: ConfigKeys, plain: str) -> Scheme:
    """Groups of modules with a scheme each; one group may be that of all linear layers."""
    keys.inner("sparsity_config").fixed("format", "dense", "weights without their zeros")
    everywhere: set[tuple[str, str | None]] = set()
    modules: list[tuple[str, tuple[str, str | None]]] = []
    for name in keys.mapping("config_groups"):
        group = keys.inner("config_groups").inner(name)
        formats = _weight_format(group.inner("weights"), plain), _operand_format(group.inner("input_activations"))
        targets = group.strings("targets") or ["Linear"]
        everywhere |= {formats} if "Linear" in targets else set()
        modules += [(target, formats) for target in targets if target != "Linear"]
    if len(everywhere) > 1 or (not everywhere and not modules):
        problem = f"{len(everywhere)} schemes for all linear layers"
        raise keys.error("config_groups", problem, "one scheme for them is modelled")
    scheme = keys.mapping("kv_cache_scheme")
    if scheme and (scheme.get("num_bits"), scheme.get("type")) != (8, "float"):
        raise keys.error("kv_cache_scheme", shown(scheme), "only 8-bit floats are modelled")
    weights, operands = next(iter(everywhere), (plain, None))
    return Scheme(weights, operands, "fp8" if scheme else None, tuple(modules))


def _weight_format(weights: ConfigKeys, plain: str) -> str:
    bits, kind = weights.integer("num_bits", 16), weights.choice("type", {"int", "float"}, "int")
    strategy = weights.choice("strategy", {"tensor", "channel", "group", "block", "tensor_group"}, "tensor")
    group = weights.integer("group_size", MAX_GROUP, None, low=-1)
    values = {(4, "int"): "int4", (8, "int"): "int8", (8, "float"): "fp8"}.get((bits, kind))
    if kind == "float" and (bits, group) in _MICROSCALED:
        return _MICROSCALED[bits, group]
    if kind == "float" and bits == 4 and strategy == "tensor_group":
        return "nvfp4"
    if values is None:
        raise weights.error("num_bits", f"{kind} of {bits} bits", "only int4, int8, fp8, nvfp4 and mxfp4 are modelled")
    if strategy == "group":
        if not group or group < 1:
            raise weights.error("group_size", f"{shown(group)} is not a number of values", "correct it")
        return f"{values}_g{group}{'' if weights.flag('symmetric', True) else '_zero'}"
    return _block_format(weights, weights.value("block_structure")) if strategy == "block" else values


def _operand_format(inputs: ConfigKeys) -> str | None:
    if not inputs.content:
        return None
    bits, kind = inputs.integer("num_bits", 16), inputs.choice("type", {"int", "float"}, "int")
    operands = {(8, "int"): "int8", (8, "float"): "fp8", (4, "float"): "fp4", (16, "float"): ""}.get((bits, kind))
    if operands is None:
        raise inputs.error("num_bits", f"{kind} of {bits} bits", "only int8, fp8 and fp4 are modelled")
    return operands or None


#: By bits of a float and values per scale.
_MICROSCALED = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
#: By ``quant_algo`` of TensorRT Model Optimizer: format of the weights, of the operands.
MODELOPT = {
    **{"FP8": ("fp8", "fp8"), "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", "fp8"), "FP8_PB_WO": ("fp8_block128", "fp8")},
    **{"NVFP4": ("nvfp4", "fp4"), "W4A16_NVFP4": ("nvfp4", None), "NVFP4_AWQ": ("nvfp4", "fp4")},
    **{"MXFP8": ("mxfp8", "fp8"), "W4A8_MXFP4_FP8": ("mxfp4", "fp8"), "W4A16_MXFP4": ("mxfp4", None)},
    **{"W4A16_AWQ": ("int4_g128", None), "W4A8_AWQ": ("int4_g128", "fp8"), "W8A16": ("int8", None)},
    **{"W8A8_SQ_PER_CHANNEL": ("int8", "int8"), "INT8_SQ": ("int8", "int8")},
}


def _modelopt(keys: ConfigKeys, plain: str) -> Scheme:
    algorithm = keys.value("quant_algo", None)
    if algorithm is None and keys.content.get("config_groups"):
        return _compressed(keys, plain)
    keys.choice("quant_algo", {*MODELOPT, "MIXED_PRECISION"}, "")
    cache = "fp8" if keys.value("kv_cache_quant_algo", None) or keys.value("kv_cache_scheme", None) else None
    if algorithm != "MIXED_PRECISION":
        return Scheme(*MODELOPT[algorithm], cache)
    listed = keys.inner("quantized_layers")
    modules = []
    for name in listed.content:
        one = listed.inner(name)
        modules.append((name, MODELOPT[one.choice("quant_algo", MODELOPT, "")]))
    if not modules:
        raise keys.error("quantized_layers", "it is missing or empty", "use a complete hf_quant_config.json")
    return Scheme(plain, None, cache, tuple(modules))


def _bitsandbytes(keys: ConfigKeys, plain: str) -> Scheme:
    """Values of 4 bits are looked up, and multiplied in the format of the activations; of 8, as integers."""
    if keys.flag("load_in_8bit"):
        return Scheme("int8", "int8")
    keys.fixed("load_in_4bit", True, "neither 4 nor 8 bits")
    return Scheme("nf4_double" if keys.flag("bnb_4bit_use_double_quant") else "nf4")


#: By what AMD's Quark calls them; ``uint4`` has zero points.
_QUARK = {
    **dict.fromkeys(("fp8_e4m3", "fp8_e4m3fn", "fp8_e4m3fnuz"), "fp8"),
    **{"fp4": "mxfp4", "int8": "int8", "int4": "int4", "uint4": "int4"},
}


def _quark(keys: ConfigKeys, plain: str) -> Scheme:
    """AMD's Quark: one scheme for all linear layers, and others by names with stars."""
    listed = keys.inner("layer_quant_config")
    modules = [(name, _quark_formats(listed.inner(name), "")) for name in listed.content]
    cache = "fp8" if keys.mapping("kv_cache_quant_config") else None
    return Scheme(*_quark_formats(keys.inner("global_quant_config"), plain), cache, tuple(modules))


def _quark_formats(keys: ConfigKeys, plain: str) -> tuple[str, str | None]:
    weight, inputs = keys.inner("weight"), keys.inner("input_tensors")
    if not weight.content:
        return plain, None
    name = weight.choice("dtype", _QUARK, "")
    values, group = _QUARK[name], weight.integer("group_size", MAX_GROUP, None, low=-1)
    if values == "mxfp4" and group not in (None, 32):
        raise weight.error("group_size", f"{group} values of fp4", "only groups of 32 are modelled")
    if values == "int4" and group and group > 0:
        values += f"_g{group}{'_zero' if name == 'uint4' else ''}"
    # Without a type they have that of the weights.
    operands = _QUARK[inputs.choice("dtype", _QUARK, name)] if inputs.content else None
    return values, "fp4" if operands == "mxfp4" else operands


METHODS: dict[str, Callable] = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda keys, plain: Scheme("fp8", "fp8"),
    "awq": _integers,
    "gptq": _integers,
    **dict.fromkeys(("auto-round", "intel/auto-round"), _auto_round),
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
    **{"torchao": torchao, "hqq": hqq, "aqlm": aqlm, "exl3": exl3, "bitnet": bitnet, "mlx": mlx},
}
