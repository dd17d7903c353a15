"""From the keys of a ``vision_config`` to a vision tower, by the ``model_type`` of the whole model.

Sources: configuration and model classes of Hugging Face transformers 5.24, which define the defaults of missing keys,
which projections have a bias and which norms there are (their parameters were counted against these classes, see the
tests); for InternVL's and Kimi-K2.5's own files also SGLang 0.5.23 (``models/internvl.py``, ``kimi_k25.py``), for those
of Kimi-VL vLLM (``moonvit.py``, ``kimi_vl.py``). Bounds of an image's pixels are in the checkpoints'
``preprocessor_config.json``; where there is none beside the model's file, those that were published: of Qwen2.5-VL-7B,
Qwen3-VL-8B, Qwen3-Omni-30B-A3B, GLM-4.5V, Llama-4, Kimi-VL-A3B-Instruct, Kimi-K2.5 and MiniMax-M3.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpuledger.models.transformer.blocks.image_sizes import (
    MAX_SIDE,
    AnyResolution,
    AspectTiles,
    Filled,
    LlamaTiles,
    Padded,
    Rows,
    Square,
)
from gpuledger.models.transformer.blocks.vision import Step, VisionTower
from gpuledger.models.transformer.rules.keys import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ConfigKeys
from gpuledger.models.transformer.rules.vision_parts import (
    ENCODERS,
    LARGE,
    MAX_PIXELS,
    MAX_TILES,
    SMALL,
    bounds_of,
    encoder,
    feature_layers,
    joined_patches,
    layer_numbers,
    mlp,
    patches_of,
    pixtral,
    resized,
    side_of,
    siglip,
    vision_keys,
)


def read_vision(content: Mapping[str, Any], file: str, text_hidden: int, limits: ConfigKeys) -> VisionTower:
    """Read the vision tower of a multimodal model.

    Parameters
    ----------
    content : mapping
        The whole config.json.
    text_hidden : int
        Width of the text model's residual stream.
    limits : ConfigKeys
        Of the ``preprocessor_config.json``; empty without one.

    Raises
    ------
    InputError
        The family has no rule here; a key has the wrong type or an absurd value, or sizes contradict each other.
    """
    outer, kind = ConfigKeys(content, file), content.get("model_type")
    family = _FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        problem = f"no rule is known for the vision tower of {kind if isinstance(kind, str) else 'this model_type'}"
        raise outer.error("model_type", problem, f"known: {', '.join(_FAMILIES)}")
    vision = outer.mapping("vision_config")
    if not vision:
        raise outer.error("vision_config", "it is empty", "use a model's complete config.json")
    return family(outer, text_hidden, limits)


_QWEN = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads", "in_channels": "num_channels"} | {
    "in_chans": "num_channels"
}


def _qwen2(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "patch_size": 14, "hidden_size": 3584, "mlp_ratio": 4}
    keys = vision_keys(outer, _usual(sizes) | {"spatial_merge_size": 2, "temporal_patch_size": 2}, _QWEN)
    # What is called so is the width of the text model.
    out, hidden = keys.integer("hidden_size", MAX_WIDTH), keys.integer("embed_dim", MAX_WIDTH)
    ratio = keys.number("mlp_ratio", 4)
    if not ratio or not 1 <= int(hidden * ratio) <= MAX_WIDTH:
        raise keys.error("mlp_ratio", f"{ratio} times the width is out of range", "correct it")
    keys.content["hidden_size"] = hidden
    return _qwen_tower(keys, out, limits, 3136, 12845056, width=int(hidden * ratio))


def _qwen25(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "patch_size": 14, "intermediate_size": 3420}
    sizes |= {"out_hidden_size": text, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}
    keys = vision_keys(outer, _usual(sizes) | {"spatial_merge_size": 2, "temporal_patch_size": 2}, _QWEN)
    out = keys.integer("out_hidden_size", MAX_WIDTH)
    merge, patch = keys.integer("spatial_merge_size", 64), side_of(keys, "patch_size")
    window = keys.integer("window_size", MAX_SIDE) // (merge * patch) * merge
    if not window:
        raise keys.error("window_size", "it is less than a token", "correct it")
    full = len(layer_numbers(keys, "fullatt_block_indexes", keys.integer("num_hidden_layers", MAX_LAYERS)))
    more = {"gated": True, "norm_values": 1, "window": window, "full_layers": full}
    return _qwen_tower(keys, out, limits, 3136, 12845056, **more)


def _qwen_tower(keys: ConfigKeys, out: int, limits: ConfigKeys, least: int, most: int, **more: Any) -> VisionTower:
    parts = encoder(keys, rotary=True, **more)
    hidden, merged = parts["hidden"], keys.integer("spatial_merge_size", 64) ** 2
    norm = Step("norm", hidden, hidden, 1, weights=parts.get("norm_values", 2) * hidden)
    steps = (norm, *mlp(merged * hidden, merged * hidden, out, merged))
    return VisionTower(image=resized(keys, limits, least, most), steps=steps, **parts)


def _qwen3(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"depth": 27, "hidden_size": 1152, "num_heads": 16, "patch_size": 16, "intermediate_size": 4304}
    taps = [] if outer.content["model_type"].startswith("qwen3_5") else [8, 16, 24]
    sizes |= {"out_hidden_size": text, "num_position_embeddings": 2304, "deepstack_visual_indexes": taps}
    keys = vision_keys(outer, _usual(sizes) | {"spatial_merge_size": 2, "temporal_patch_size": 2}, _QWEN)
    positions = keys.integer("num_position_embeddings", MAX_PIXELS)
    taps = layer_numbers(keys, "deepstack_visual_indexes", keys.integer("num_hidden_layers", MAX_LAYERS))
    out = keys.integer("out_hidden_size", MAX_WIDTH)
    omni = outer.content["model_type"] == "qwen3_omni_moe_thinker"
    bounds = (3136, 12845056) if omni else (65536, 16777216)
    tower = _qwen_tower(keys, out, limits, *bounds, patch_bias=True, positions=positions)
    merged = tower.image.merge**2
    width = merged * tower.hidden
    tapped = [Step("norm", width, width, merged, weights=2 * width), *mlp(width, width, out, merged)]
    return replace(tower, steps=(*tower.steps, *tapped * len(taps)), taps=len(taps))


def _usual(sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {_QWEN.get(key, key): value for key, value in sizes.items()}


def _glm(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"depth": 24, "hidden_size": 1536, "num_heads": 12, "patch_size": 14, "intermediate_size": 13696}
    sizes |= {"out_hidden_size": text, "image_size": 336, "spatial_merge_size": 2, "temporal_patch_size": 2}
    keys = vision_keys(outer, _usual(sizes), _QWEN)
    out, context = keys.integer("out_hidden_size", MAX_WIDTH), keys.integer("intermediate_size", MAX_WIDTH)
    bias, frames = keys.flag("attention_bias"), keys.integer("temporal_patch_size", 64)
    parts = encoder(keys, True, False, width=out, norm_values=1, qkv_bias=bias, out_bias=False)
    hidden, merged = parts["hidden"], keys.integer("spatial_merge_size", 64) ** 2
    # A convolution joins the patches; then the block that is called merger.
    steps = [
        Step("proj", merged * hidden, out, merged, bias=True),
        Step("proj", out, out, merged),
        Step("norm", out, out, merged, weights=2 * out),
        Step("act", out, out, merged),
        Step("proj", out, 2 * context, merged, split="columns"),
        Step("act", 2 * context, context, merged, split="columns"),
        Step("proj", context, out, merged, split="rows"),
    ]
    more = {"patch_bias": True, "rotary": True, "pre_norm": True, "post_norm": True, "positions": patches_of(keys) ** 2}
    return VisionTower(image=resized(keys, limits, 12544, 9633792, frames), steps=tuple(steps), **parts, **more)


def _minimax(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"num_hidden_layers": 32, "hidden_size": 1280, "num_attention_heads": 16, "intermediate_size": 5120}
    sizes |= {"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2}
    keys, width = vision_keys(outer, sizes), outer.integer("projector_hidden_size", MAX_WIDTH, 6144)
    parts = encoder(keys, rotary=True, pre_norm=True)
    merged = keys.integer("spatial_merge_size", 64) ** 2
    steps = [*mlp(parts["hidden"], width, text, 1), *mlp(merged * text, width, text, merged)]
    return VisionTower(image=resized(keys, limits, 3136, 451584), steps=tuple(steps), **parts)


_KIMI_NAMES = {f"vt_{name}": name for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")} | {
    **{"vt_intermediate_size": "intermediate_size", "pos_emb_height": "init_pos_emb_height"},
    "pos_emb_width": "init_pos_emb_width",
}


def _kimi(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    first = outer.content["model_type"] == "kimi_vl"
    sizes = {"num_hidden_layers": 27, "hidden_size": 1152, "num_attention_heads": 16, "intermediate_size": 4304}
    sizes |= {"patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2]}
    keys = vision_keys(outer, sizes, _KIMI_NAMES)
    positions = keys.integer("init_pos_emb_height", MAX_SIDE) * keys.integer("init_pos_emb_width", MAX_SIDE)
    parts = encoder(keys, rotary=True, patch_bias=True, positions=positions, post_norm=True)
    merge, hidden = side_of(keys, "merge_kernel_size", 64), parts["hidden"]
    width = merge**2 * hidden
    steps = [Step("norm", hidden, hidden, 1, weights=2 * hidden), *mlp(width, width, text, merge**2, shared=False)]
    if first:
        limits.fixed("pad_input", True, "images that are cropped to whole tokens")
        image = Padded(side_of(keys, "patch_size"), merge, limits.integer("in_token_limit", MAX_PIXELS, 4096), None)
    else:
        most = limits.integer("max_patches", MAX_PIXELS, 16384)
        longest = bounds_of(limits).integer("max_height", MAX_SIDE, 512)
        image = Padded(side_of(keys, "patch_size"), merge, most, longest)
    return VisionTower(image=image, steps=tuple(steps), **parts)


def _llava(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    tiled, last = outer.content["model_type"], -1 if outer.content["model_type"] == "llava_onevision" else -2
    usual = "siglip_vision_model" if tiled == "llava_onevision" else "clip_vision_model"
    kind = outer.inner("vision_config").choice("model_type", ENCODERS, usual)
    read, defaults = ENCODERS[kind]
    keys = vision_keys(outer, defaults)
    parts = read(keys)
    skipped, features = feature_layers(outer, parts["layers"], last)
    bias = outer.flag("multimodal_projector_bias", True)
    steps = mlp(features * parts["hidden"], text, text, 1, bias)
    classes = int(kind == "clip_vision_model")
    whole = outer.choice("vision_feature_select_strategy", ("default", "full"), "default" if classes else "full")
    if kind == "pixtral":
        longest = bounds_of(limits).integer("longest_edge", MAX_SIDE, side_of(keys, "image_size"))
        image = Rows(side_of(keys, "patch_size"), 1, longest)
    elif tiled == "llava":
        image = Square(patches_of(keys), patches_of(keys) ** 2 + classes - (whole == "default"))
    else:
        size = side_of(keys, "image_size")
        sides = range(size, 7 * size, size)
        known = [[a, b] for a in sides for b in sides] if tiled == "llava_onevision" else _next_sizes(size)
        pooled = _pooled(outer) if tiled == "llava_onevision" else 0
        image = AnyResolution(size, side_of(keys, "patch_size"), _resolutions(outer, known, size), pooled)
        parts["unused"] += text  # a token that ends each row
    return VisionTower(image=image, steps=tuple(steps), skipped=skipped, **parts)


def _next_sizes(size: int) -> list[list[int]]:
    return [[rows * size, columns * size] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]


def _pooled(outer: ConfigKeys) -> int:
    ratio = outer.value("vision_aspect_ratio", "anyres_max_9")
    number = str(ratio).removeprefix("anyres_max_")
    if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= MAX_TILES:
        raise outer.error("vision_aspect_ratio", "it is not of the form anyres_max_9", "only that is modelled")
    return int(number)


def _resolutions(outer: ConfigKeys, known: list[list[int]], size: int) -> tuple[tuple[int, int], ...]:
    value = outer.value("image_grid_pinpoints", None) or known
    pairs = value if isinstance(value, list) and len(value) <= 1024 else []
    sides = range(size, MAX_TILES * size + 1, size)
    if not pairs or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(side) is int and side in sides for side in pair)
        for pair in pairs
    ):
        raise outer.error("image_grid_pinpoints", f"not a list of sizes in multiples of {size} pixels", "correct it")
    return tuple((height, width) for height, width in pairs)


def _mistral3(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    keys = vision_keys(outer, LARGE | {"image_size": 1540, "patch_size": 14})
    keys.fixed("model_type", "pixtral", "another encoder")
    parts = pixtral(keys)
    hidden, merge = parts["hidden"], outer.integer("spatial_merge_size", 64, 2)
    skipped, features = feature_layers(outer, parts["layers"], -1)
    bias = outer.flag("multimodal_projector_bias")
    steps = [
        Step("norm", features * hidden, features * hidden, 1, weights=hidden),
        Step("proj", merge**2 * hidden, hidden, merge**2),
        *mlp(features * hidden, text, text, merge**2, bias),
    ]
    longest = bounds_of(limits).integer("longest_edge", MAX_SIDE, side_of(keys, "image_size"))
    image = Rows(side_of(keys, "patch_size"), merge, longest)
    return VisionTower(image=image, steps=tuple(steps), skipped=skipped, **parts)


def _gemma3(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    keys = vision_keys(outer, ENCODERS["siglip_vision_model"][1])
    keys.fixed("model_type", "siglip_vision_model", "another encoder")
    parts, side = siglip(keys), patches_of(keys)
    tokens = outer.integer("mm_tokens_per_image", MAX_PIXELS, 256)
    pool = side // round(tokens**0.5)
    if not pool or (side // pool) ** 2 != tokens:
        raise outer.error("mm_tokens_per_image", f"{tokens} do not come of {side} × {side} patches", "correct it")
    hidden = parts["hidden"]
    steps = (
        Step("pool", hidden, hidden, pool**2),
        Step("norm", hidden, hidden, pool**2, weights=hidden),
        Step("proj", hidden, text, pool**2),
    )
    parts["unused"] -= 2 * hidden  # the last norm is computed
    return VisionTower(image=Square(side, tokens), steps=steps, post_norm=True, **parts)


def _gemma4(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {**SMALL, "num_hidden_layers": 16, "patch_size": 16, "pooling_kernel_size": 3, "head_dim": 64}
    keys = vision_keys(outer, sizes | {"position_embedding_size": 10240})
    keys.fixed("num_key_value_heads", keys.integer("num_attention_heads", MAX_HEADS), "fewer heads of keys and values")
    keys.fixed("attention_bias", False, "projections with a bias")
    rows, head_dim = keys.integer("position_embedding_size", MAX_PIXELS), keys.integer("head_dim", MAX_WIDTH)
    more = {"norms": 4, "norm_values": 1, "qkv_bias": False, "out_bias": False, "positions": 2 * rows}
    parts = encoder(keys, True, False, rotary=True, qk_norm=2 * head_dim, normed=3, **more)
    hidden, pool = parts["hidden"], keys.integer("pooling_kernel_size", 64)
    steps = (
        Step("pool", hidden, hidden, pool**2),
        Step("norm", hidden, hidden, pool**2),
        Step("proj", hidden, text, pool**2),
    )
    tokens = limits.integer("max_soft_tokens", 2**20, outer.integer("vision_soft_tokens_per_image", 2**20, 280))
    image = Filled(side_of(keys, "patch_size"), pool, tokens)
    return VisionTower(image=image, steps=steps, **{**parts, "head_dim": head_dim})


def _llama4(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {**SMALL, "num_hidden_layers": 34, "num_attention_heads": 16, "intermediate_size": 5632}
    sizes |= {"image_size": 448, "patch_size": 14, "projector_input_dim": 4096, "projector_output_dim": 4096}
    keys = vision_keys(outer, sizes | {"vision_output_dim": 7680})
    side = patches_of(keys)
    more = {"class_token": True, "positions": side**2 + 1, "rotary": True, "pre_norm": True, "post_norm": True}
    parts, widths = encoder(keys, **more), [keys.integer(f"projector_{end}_dim", MAX_WIDTH) for end in _ENDS]
    merged = joined_patches(keys, "pixel_shuffle_ratio", side)
    if merged * parts["hidden"] != parts["ffn"].width:
        problem = f"{parts['ffn'].width} is not {merged} patches of {parts['hidden']} values, which its adapter reads"
        raise keys.error("intermediate_size", problem, "correct one of them")
    out = keys.integer("vision_output_dim", MAX_WIDTH)
    steps = [
        *mlp(merged * parts["hidden"], widths[0], widths[1], merged, bias=False),
        Step("act", widths[1], widths[1], merged),
        Step("proj", out, text, merged),
    ]
    size, patch = side_of(keys, "image_size"), side_of(keys, "patch_size")
    most = limits.integer("max_patches", MAX_TILES, 16)
    return VisionTower(image=LlamaTiles(size, patch, side**2 // merged, most), steps=tuple(steps), **parts)


_ENDS = ("input", "output")


_INTERNVL_NAMES = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}


def _internvl(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {**LARGE, "image_size": 448, "patch_size": 14}
    keys = vision_keys(outer, sizes, _INTERNVL_NAMES)
    hidden, size = keys.integer("hidden_size", MAX_WIDTH), side_of(keys, "image_size")
    size, patch = outer.integer("force_image_size", MAX_SIDE, size), side_of(keys, "patch_size")
    side, norm = size // patch, keys.choice("norm_type", ("layer_norm", "rms_norm"), "layer_norm")
    normed = keys.flag("use_qk_norm")
    parts = encoder(
        keys,
        **{"patch_bias": True, "class_token": True, "positions": patches_of(keys) ** 2 + 1, "scales": 2 * hidden},
        **{"norm_values": 1 + (norm == "layer_norm"), "qkv_bias": keys.flag("attention_bias")},
        **{"qk_norm": 2 * hidden * normed, "normed": 2 * normed},
    )
    chat = outer.content["model_type"] == "internvl_chat"
    merged = joined_patches(outer, "downsample_ratio", side)
    width = merged * hidden
    steps = (Step("norm", width, width, merged, weights=2 * width), *mlp(width, text, text, merged, shared=False))
    last = outer.integer("select_layer" if chat else "vision_feature_layer", -1, -1, low=-parts["layers"])
    least, most = (
        outer.integer(f"{end}_dynamic_patch", MAX_TILES, limits.integer(f"{end}_patches", MAX_TILES, usual))
        for end, usual in (("min", 1), ("max", 12))
    )
    if least > most:
        raise outer.error("min_dynamic_patch", f"{least} is more than max_dynamic_patch", "correct one of them")
    thumbnail = outer.flag("use_thumbnail", True)
    if not outer.flag("dynamic_image_size", True):
        least = most = 1
    image = AspectTiles(size, patch, side**2 // merged, least, most, thumbnail)
    return VisionTower(image=image, steps=steps, skipped=-1 - last, **parts)


def _inkling2(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = LARGE | {"num_hidden_layers": 23, "intermediate_size": None, "patch_size": 20, "spatial_merge_size": 2}
    sizes |= {"posemb_grid_size": 32, "projection_hidden_dim": 4096, "mlp_ratio": 4}
    renamed = {"native_patch_size": "patch_size", "adapter_merge_size": "spatial_merge_size"}
    keys = vision_keys(outer, sizes, renamed)
    hidden, ratio = keys.integer("hidden_size", MAX_WIDTH), keys.number("mlp_ratio", 4)
    width = keys.integer("intermediate_size", MAX_WIDTH, None) or int(hidden * (ratio or 0))
    if not 1 <= width <= MAX_WIDTH:
        raise keys.error("mlp_ratio", f"{ratio} times the width is out of range", "correct it")
    more = {"class_token": True, "positions": keys.integer("posemb_grid_size", 2**12) ** 2 + 1, "scales": 2 * hidden}
    parts = encoder(keys, rotary=True, pre_norm=True, width=width, **more)
    merge = keys.integer("spatial_merge_size", 64)
    inner, bias = keys.integer("projection_hidden_dim", MAX_WIDTH), keys.flag("projector_bias")
    steps = mlp(merge**2 * hidden, inner, text, merge**2, bias)
    image = Padded(side_of(keys, "patch_size"), merge, MAX_PIXELS, MAX_SIDE)  # never shrunk
    return VisionTower(image=image, steps=tuple(steps), **parts)


_FAMILIES: Mapping[str, Callable[[ConfigKeys, int, ConfigKeys], VisionTower]] = {
    **{"qwen2_vl": _qwen2, "qwen2_5_vl": _qwen25},
    **{"qwen2_5_omni_thinker": _qwen25, "qwen3_omni_moe_thinker": _qwen3},
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), _glm),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _qwen3),
    **dict.fromkeys(("llava", "llava_next", "llava_onevision"), _llava),
    **{"mistral3": _mistral3, "gemma3": _gemma3, "gemma4": _gemma4, "llama4": _llama4},
    **dict.fromkeys(("internvl", "internvl_chat"), _internvl),
    **{"kimi_vl": _kimi, "kimi_k25": _kimi, "minimax_m3_vl": _minimax},
    **dict.fromkeys(("inkling2", "inkling2_loop"), _inkling2),
}
