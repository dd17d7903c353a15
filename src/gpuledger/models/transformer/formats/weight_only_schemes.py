"""Quantisation methods that convert the weights alone, or those of community formats.

Layouts are those of the methods' own packages: mlx 0.32 and mlx-lm 0.32 (``mlx/nn/layers/quantized.py``,
``mlx_lm/utils.py`` and ``mlx_lm/models``), torchao 0.18 (``quantization/quant_api.py``, ``quantize_/workflows``), HQQ
0.2.8 (``hqq/core/quantize.py``, ``bitpack.py``), AQLM 1.1.7 (``aqlm/inference.py``), ExLlamaV3 1.6.5
(``modules/quant/exl3.py``, ``conversion/allocation.py``, ``conversion/quant_config.py``), and transformers 5.24 for
BitNet (``integrations/bitnet.py``).
"""

import re

from gpuledger.errors import shown
from gpuledger.models.transformer.blocks.residuals import AlternatingUpdates
from gpuledger.models.transformer.formats.scheme import MAX_GROUP, Scheme
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.names import UNCONVERTED
from gpuledger.models.transformer.rules.keys import ConfigKeys

#: Of MLX: values per scale and bits where a mode leaves them out, and the formats of modes without a minimum.
_MLX_MODES = {"affine": (64, 4, ""), "mxfp4": (32, 4, "mxfp4"), "nvfp4": (16, 4, "nvfp4"), "mxfp8": (32, 8, "mxfp8")}
#: Modules that others leave unquantised and that are linear layers or embeddings in mlx-lm.
_MLX_CONVERTED = frozenset({"embedding", "position_embedding", "lm_head", "router", "shared_gate"}) | {
    *("index_weights_proj", "delta_gates_proj", "delta_decay_proj", "delta_gate_proj", "ssm_x_proj", "ssm_step_proj"),
    *("per_layer_embedding", "altup_proj", "altup_router", "altup_coefficients", "laurel_down_proj", "laurel_up_proj"),
}
#: Architectures whose router mlx-lm 0.32 declares as a plain matrix.
_MLX_PLAIN_ROUTERS = frozenset(
    {"deepseek_v2", "deepseek_v3", "kimi_k2", "deepseek_v32", "glm_moe_dsa", "dots1", "exaone_moe", "glm4_moe"}
    | {"glm4_moe_lite", "mimo_v2_flash", "muse_spark_text", "nemotron_h", "solar_open"}
)


def mlx(keys: ConfigKeys, layers: tuple[Layers, ...], kind: str) -> Scheme:
    """MLX: every linear layer and embedding whose depth is a multiple of the group, with a scale and a minimum each.

    Keys that hold an object (or false) are names of modules with formats of their own.
    """
    own = _mlx_format(keys)
    linears = [linear for group in layers for linear in group.linears(1)]
    converted = {linear.kernel for linear in linears} & UNCONVERTED | {"embedding", "position_embedding", "lm_head"}
    converted |= {"per_layer_embedding"} if layers[0].per_layer else set()
    converted |= {"altup_proj"} if isinstance(layers[0].residuals, AlternatingUpdates) else set()
    if strange := converted - _MLX_CONVERTED:
        problem = f"how MLX stores {', '.join(sorted(strange))} is not known"
        raise keys.error("bits", problem, "remove quantization from a copy of the file, and state the formats")
    if kind in _MLX_PLAIN_ROUTERS:
        converted -= {"router"}
    modules = []
    for name, value in keys.content.items():
        if isinstance(value, dict) or value is False:
            keys.known.add(name)
            format_ = _mlx_format(keys.inner(name), keys) if value else ""
            modules.append((_mlx_module(name), (format_, None)))
    weights = {"*": own, **dict.fromkeys(sorted(converted), own)}
    tables = {**dict.fromkeys(("embed_tokens", "wte", "embeddings"), "embedding"), "wpe": "position_embedding"}
    tables["embed_tokens_per_layer"] = "per_layer_embedding"
    for name, (format_, _) in modules:
        if kernel := tables.get(name.rpartition(".")[2]):
            weights[kernel] = format_ or "bf16"
    named = [one for one in modules if one[0].rpartition(".")[2] not in tables]
    return Scheme(weights, modules=tuple(named), all_kernels=True, whole_groups=True)


def _mlx_module(name: str) -> str:
    """Return the name of a module of MLX as most checkpoints have it: experts are one module there."""
    name = re.sub(r"\b(mlp|block_sparse_moe|feed_forward)\.switch_mlp\.", "mlp.experts.*.", name)
    return re.sub(r"\bexperts\.(gate|up|down)_proj$", r"experts.*.\1_proj", name).replace(".gate.gate_proj", ".gate")


def _mlx_format(keys: ConfigKeys, usual: ConfigKeys | None = None) -> str:
    mode = keys.choice("mode", _MLX_MODES, "affine")
    group, bits, name = _MLX_MODES[mode]
    group = keys.integer("group_size", MAX_GROUP, None) or (usual or keys).integer("group_size", MAX_GROUP, group)
    bits = keys.integer("bits", 8, None, low=2) or (usual or keys).integer("bits", 8, bits, low=2)
    keys.fixed("global_scale", False, "a scale of every expert besides")
    if bits == 7:
        raise keys.error("bits", "7 bits", "MLX has 2, 3, 4, 5, 6 and 8")
    return name or f"int{bits}_g{group}_affine"


def hqq(keys: ConfigKeys, plain: str) -> Scheme:
    """HQQ: a scale and a zero point in 16 bits for each group; one scheme, or one for each kind of module."""
    described = keys.inner("quant_config")
    if "weight_quant_params" in described.content:
        return Scheme(_hqq_format(described))
    modules = [(name, (_hqq_format(described.inner(name)), None)) for name in described.content]
    if not modules:
        raise keys.error("quant_config", "it is missing or empty", "use a complete config.json")
    return Scheme(plain, modules=tuple(modules))


def _hqq_format(keys: ConfigKeys) -> str:
    # Either with the weights' settings in an object, or, by kind of module, these alone.
    weights = keys.inner("weight_quant_params") if "weight_quant_params" in keys.content else keys
    for key in ("scale_quant_params", "zero_quant_params"):
        keys.fixed(key, None, "quantised scales")
    bits, group = weights.integer("nbits", 8), weights.integer("group_size", MAX_GROUP, None)
    stored = {1: 0, 2: 2, 3: 3, 4: 4, 5: 8, 6: 8, 8: 8}.get(bits, 0)
    if not stored:
        raise weights.error("nbits", f"{bits} bits", "only 2, 3, 4, 5, 6 and 8 are modelled")
    if bits == 3:
        if not group:
            raise weights.error("group_size", "3 bits without groups", "only groups are modelled")
        # With the other axis, words are padded differently.
        weights.fixed("axis", 1, "3 bits in groups along the outputs")
        return f"hqq3_g{group}"
    return f"int{stored}_g{group}_affine" if group else f"int{stored}"


def aqlm(keys: ConfigKeys, plain: str) -> Scheme:
    """AQLM: each group of values is the sum of an entry of every codebook, of which each matrix has its own."""
    count, bits = keys.integer("num_codebooks", 64), keys.integer("nbits_per_codebook", 24)
    deep, wide = keys.integer("in_group_size", 256), keys.integer("out_group_size", 256, 1)
    return Scheme(f"aqlm_{count}x{bits}_{deep}" + (f"x{wide}" if wide > 1 else ""))


def bitnet(keys: ConfigKeys, plain: str) -> Scheme:
    """BitNet: four ternary weights in a byte, multiplied with 8-bit integers, or unpacked when they are loaded."""
    if keys.choice("linear_class", {"bitlinear", "autobitlinear"}, "bitlinear") == "autobitlinear":
        return Scheme(plain)
    return Scheme("int2", "int8")


def exl3(keys: ConfigKeys, plain: str) -> Scheme:
    """ExLlamaV3: the bits of each matrix are in ``tensor_storage``; without it, all have as many if they are whole."""
    stored, head = keys.inner("tensor_storage"), keys.integer("head_bits", 16, 6)
    modules: list[tuple[str, tuple[str, str | None]]] = []
    for name in stored.content:
        one = stored.inner(name)
        if one.value("quant_format", None) == "exl3":
            modules.append((name, (_trellis(one, one.number("bits_per_weight", None)), None)))
    if stored.content:
        return Scheme(plain, modules=tuple(modules))
    bits = keys.number("bits", None)
    if bits is not None and bits % 1:
        problem = f"{bits:g} bits are a mean: matrices differ"
        raise keys.error("bits", problem, "put the checkpoint's quantization_config.json beside config.json")
    if head < 16:
        modules.append(("lm_head", (_trellis(keys, head), None)))
    return Scheme(_trellis(keys, bits), modules=tuple(modules))


def _trellis(keys: ConfigKeys, bits: float | None) -> str:
    if bits not in (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8):
        raise keys.error("bits", f"{bits} bits", "ExLlamaV3 has 1 to 8, and 1.5, 2.5 and 3.5")
    return f"exl3_{bits:g}"


def torchao(keys: ConfigKeys, plain: str) -> Scheme:
    """Torchao: one scheme for all linear layers, or one for each named module."""
    keys.fixed("include_input_output_embeddings", False, "quantised embeddings")
    described = keys.value("quant_type", None)
    if isinstance(described, str):  # of transformers before 5
        given = keys.inner("quant_type_kwargs")
        return _torchao_scheme(given, _OLD_NAMES.get(described, described))
    outer = keys.inner("quant_type").inner("default")
    kind, settings = str(outer.value("_type", "")), outer.inner("_data")
    if kind not in ("FqnToConfig", "ModuleFqnToConfig"):
        return _torchao_described(outer)
    key = next((key for key in ("fqn_to_config", "module_fqn_to_config") if settings.mapping(key)), "fqn_to_config")
    listed, usual, modules = settings.inner(key), Scheme(plain), []
    for name, value in listed.content.items():
        scheme = _torchao_described(listed.inner(name)) if value else None
        if name == "_default":
            usual = scheme or usual
        else:
            modules.append((name, (scheme.weights, scheme.operands) if scheme else ("", None)))
    return Scheme(usual.weights, usual.operands, modules=tuple(modules), whole_groups=True)


def _torchao_described(keys: ConfigKeys) -> Scheme:
    return _torchao_scheme(keys.inner("_data"), str(keys.value("_type", "")), keys.integer("_version", 9, 2))


_OLD_NAMES = {
    **{"int4_weight_only": "Int4WeightOnlyConfig", "int8_weight_only": "Int8WeightOnlyConfig"},
    **{"int8_dynamic_activation_int8_weight": "Int8DynamicActivationInt8WeightConfig"},
    **{"float8_weight_only": "Float8WeightOnlyConfig"},
    "float8_dynamic_activation_float8_weight": "Float8DynamicActivationFloat8WeightConfig",
}
#: Formats with a scale per output channel or tensor, and operands.
_TORCHAO = {
    "Int8WeightOnlyConfig": ("int8", None),
    "Int8DynamicActivationInt8WeightConfig": ("int8", "int8"),
    "Float8WeightOnlyConfig": ("fp8", None),
    "Float8DynamicActivationFloat8WeightConfig": ("fp8", "fp8"),
    "NVFP4DynamicActivationNVFP4WeightConfig": ("nvfp4", "fp4"),
    "NVFP4WeightOnlyConfig": ("nvfp4", None),
}


def _torchao_scheme(keys: ConfigKeys, kind: str, version: int = 1) -> Scheme:
    if kind == "Int4WeightOnlyConfig":
        group = keys.integer("group_size", MAX_GROUP, 128)
        packing = keys.value("int4_packing_format", None)
        packing = packing.get("_data") if isinstance(packing, dict) else packing
        # The first version has no other layout than that for tinygemm.
        packing = str(packing or ("plain" if version > 1 else "tile_packed_to_4d")).lower()
        if packing not in ("plain", "tile_packed_to_4d"):
            problem = f"layout {shown(packing)}"
            raise keys.error("int4_packing_format", problem, "only plain and tile_packed_to_4d are modelled")
        tiled = "tiled_" if packing == "tile_packed_to_4d" else ""
        return Scheme(f"int4_{tiled}g{group}" + ("" if tiled else "_affine"), whole_groups=True)
    if kind in ("Int8DynamicActivationIntxWeightConfig", "IntxWeightOnlyConfig"):
        return Scheme(_intx_format(keys), "int8" if kind.startswith("Int8") else None, whole_groups=True)
    if kind not in _TORCHAO:
        known = ", ".join(sorted({*_TORCHAO, "Int4WeightOnlyConfig", "IntxWeightOnlyConfig"}))
        raise keys.error("_type", f"unknown scheme {shown(str(kind))}", f"known: {known}")
    keys.fixed("group_size", None, "8-bit integers in groups")
    return Scheme(*_TORCHAO[kind])


def _intx_format(keys: ConfigKeys) -> str:
    """Values of any width are kept in 8 bits, with a scale and an 8-bit zero point per group."""
    packing = keys.value("intx_packing_format", None)
    packing = packing.get("_data") if isinstance(packing, dict) else packing
    if str(packing or "unpacked_to_int8").lower() != "unpacked_to_int8":
        raise keys.error("intx_packing_format", f"layout {shown(str(packing))}", "only unpacked_to_int8 is modelled")
    given = keys.inner("weight_granularity" if "weight_granularity" in keys.content else "granularity")
    size = given.inner("_data").integer("group_size", MAX_GROUP, None)
    return f"int8_g{size}_zero" if size else "int8"
