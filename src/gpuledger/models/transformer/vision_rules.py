"""From the keys of a ``vision_config`` to a vision tower, by the ``model_type`` of the whole model.

Sources: configuration and model classes of Hugging Face transformers 5.24, which define the defaults of missing keys,
which projections have a bias and which norms there are (their parameters were counted against these classes, see the
tests); for InternVL's and Kimi-K2.5's own files also SGLang 0.5.23 (``models/internvl.py``, ``kimi_k25.py``). Bounds of
an image's pixels are in the checkpoints' ``preprocessor_config.json``; where there is none beside the model's file,
those that were published: of Qwen2.5-VL-7B, Qwen3-VL-8B, GLM-4.5V, Llama-4, Kimi-K2.5 and MiniMax-M3.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpuledger.models.transformer.blocks import FeedForward
from gpuledger.models.transformer.families import ACTIVATIONS
from gpuledger.models.transformer.image_sizes import (
    MAX_SIDE,
    AnyResolution,
    AspectTiles,
    Filled,
    LlamaTiles,
    Padded,
    Resized,
    Rows,
    Square,
)
from gpuledger.models.transformer.keys import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ConfigKeys
from gpuledger.models.transformer.vision import Step, VisionTower

MAX_PIXELS, MAX_TILES = 2**32, 64


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


def _keys(outer: ConfigKeys, defaults: Mapping[str, Any], renamed: Mapping[str, str] | None = None) -> ConfigKeys:
    keys = ConfigKeys(outer.mapping("vision_config"), outer.file, "vision_config", defaults, renamed)
    keys.choice("hidden_act", ACTIVATIONS | {"quick_gelu"}, "gelu")
    return keys


def _encoder(keys: ConfigKeys, gated: bool = False, mlp_bias: bool = True, **more: Any) -> dict[str, Any]:
    """Return the sizes that all encoders have; *more* are other attributes of :class:`VisionTower`."""
    hidden, heads = keys.integer("hidden_size", MAX_WIDTH), keys.integer("num_attention_heads", MAX_HEADS)
    if hidden % heads:
        raise keys.error("hidden_size", f"{hidden} is no multiple of {heads} heads", "correct one of them")
    width = more.pop("width", None) or keys.integer("intermediate_size", MAX_WIDTH)
    patch, frames = _side(keys, "patch_size"), keys.integer("temporal_patch_size", 64, 1)
    return {
        **{"hidden": hidden, "heads": heads, "head_dim": hidden // heads},
        "layers": keys.integer("num_hidden_layers", MAX_LAYERS),
        "ffn": FeedForward(width, gated, mlp_bias, stored_fused=False),
        "patch_values": keys.integer("num_channels", 64, 3) * frames * patch**2,
        **more,
    }


def _side(keys: ConfigKeys, name: str, most: int = MAX_SIDE) -> int:
    """Return a side in pixels, which may be written as a pair of two equal ones."""
    value = keys.value(name)
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        keys = ConfigKeys({name: value[0]}, keys.file, keys.inside)
    return keys.integer(name, most)


def _patches(keys: ConfigKeys) -> int:
    """Return the patches along a side of an image of the size that the tower was made for."""
    size, patch = _side(keys, "image_size"), _side(keys, "patch_size")
    if size < patch:
        raise keys.error("image_size", f"{size} is less than a patch of {patch}", "correct one of them")
    return size // patch


def _mlp(inputs: int, width: int, outputs: int, patches: int, bias: bool = True, shared: bool = True) -> list[Step]:
    """Return two projections with an activation between them, which devices share or not."""
    first, last = ("columns", "rows") if shared else ("", "")
    return [
        Step("proj", inputs, width, patches, bias, split=first),
        Step("act", width, width, patches, split=first),
        Step("proj", width, outputs, patches, bias, split=last),
    ]


def _limit(limits: ConfigKeys, old: str, new: str, published: int) -> int:
    """Return a bound on an image's pixels: under its older key, within ``size``, or as published."""
    if limits.content.get(old) is not None:
        return limits.integer(old, MAX_PIXELS)
    return limits.inner("size").integer(new, MAX_PIXELS, published)


def _resized(keys: ConfigKeys, limits: ConfigKeys, least: int, most: int, frames: int = 1) -> Resized:
    patch, merge = _side(keys, "patch_size"), keys.integer("spatial_merge_size", 64)
    bounds = [_limit(limits, "min_pixels", "shortest_edge", least), _limit(limits, "max_pixels", "longest_edge", most)]
    if not frames * (patch * merge) ** 2 <= bounds[1] or bounds[0] > bounds[1]:
        raise limits.error("max_pixels", f"{bounds[0]} … {bounds[1]} pixels leave no size", "correct it")
    return Resized(patch, merge, *bounds, frames)


_QWEN = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads", "in_channels": "num_channels"} | {
    "in_chans": "num_channels"
}


def _qwen2(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "patch_size": 14, "hidden_size": 3584, "mlp_ratio": 4}
    keys = _keys(outer, _usual(sizes) | {"spatial_merge_size": 2, "temporal_patch_size": 2}, _QWEN)
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
    keys = _keys(outer, _usual(sizes) | {"spatial_merge_size": 2, "temporal_patch_size": 2}, _QWEN)
    out = keys.integer("out_hidden_size", MAX_WIDTH)
    merge, patch = keys.integer("spatial_merge_size", 64), _side(keys, "patch_size")
    window = keys.integer("window_size", MAX_SIDE) // (merge * patch) * merge
    if not window:
        raise keys.error("window_size", "it is less than a token", "correct it")
    full = len(_numbers(keys, "fullatt_block_indexes", keys.integer("num_hidden_layers", MAX_LAYERS)))
    more = {"gated": True, "norm_values": 1, "window": window, "full_layers": full}
    return _qwen_tower(keys, out, limits, 3136, 12845056, **more)


def _qwen_tower(keys: ConfigKeys, out: int, limits: ConfigKeys, least: int, most: int, **more: Any) -> VisionTower:
    parts = _encoder(keys, rotary=True, **more)
    hidden, merged = parts["hidden"], keys.integer("spatial_merge_size", 64) ** 2
    norm = Step("norm", hidden, hidden, 1, weights=parts.get("norm_values", 2) * hidden)
    steps = (norm, *_mlp(merged * hidden, merged * hidden, out, merged))
    return VisionTower(image=_resized(keys, limits, least, most), steps=steps, **parts)


def _qwen3(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"depth": 27, "hidden_size": 1152, "num_heads": 16, "patch_size": 16, "intermediate_size": 4304}
    sizes |= {"out_hidden_size": text, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]}
    keys = _keys(outer, _usual(sizes) | {"spatial_merge_size": 2, "temporal_patch_size": 2}, _QWEN)
    positions = keys.integer("num_position_embeddings", MAX_PIXELS)
    taps = _numbers(keys, "deepstack_visual_indexes", keys.integer("num_hidden_layers", MAX_LAYERS))
    out = keys.integer("out_hidden_size", MAX_WIDTH)
    tower = _qwen_tower(keys, out, limits, 65536, 16777216, patch_bias=True, positions=positions)
    merged = tower.image.merge**2
    width = merged * tower.hidden
    tapped = [Step("norm", width, width, merged, weights=2 * width), *_mlp(width, width, out, merged)]
    return replace(tower, steps=(*tower.steps, *tapped * len(taps)), taps=len(taps))


def _numbers(keys: ConfigKeys, name: str, layers: int) -> list[int]:
    """Return a list of different layers."""
    value = keys.value(name, [])
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < layers for one in value):
        raise keys.error(name, f"not a list of numbers of {layers} layers", "correct it")
    return sorted(set(value))


def _usual(sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {_QWEN.get(key, key): value for key, value in sizes.items()}


def _glm(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"depth": 24, "hidden_size": 1536, "num_heads": 12, "patch_size": 14, "intermediate_size": 13696}
    sizes |= {"out_hidden_size": text, "image_size": 336, "spatial_merge_size": 2, "temporal_patch_size": 2}
    keys = _keys(outer, _usual(sizes), _QWEN)
    out, context = keys.integer("out_hidden_size", MAX_WIDTH), keys.integer("intermediate_size", MAX_WIDTH)
    bias, frames = keys.flag("attention_bias"), keys.integer("temporal_patch_size", 64)
    parts = _encoder(keys, True, False, width=out, norm_values=1, qkv_bias=bias, out_bias=False)
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
    more = {"patch_bias": True, "rotary": True, "pre_norm": True, "post_norm": True, "positions": _patches(keys) ** 2}
    return VisionTower(
        image=_resized(keys, limits, 12544, 9633792, frames), steps=tuple(steps), **parts, **more
    )


def _minimax(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"num_hidden_layers": 32, "hidden_size": 1280, "num_attention_heads": 16, "intermediate_size": 5120}
    sizes |= {"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2}
    keys, width = _keys(outer, sizes), outer.integer("projector_hidden_size", MAX_WIDTH, 6144)
    parts = _encoder(keys, rotary=True, pre_norm=True)
    merged = keys.integer("spatial_merge_size", 64) ** 2
    steps = [*_mlp(parts["hidden"], width, text, 1), *_mlp(merged * text, width, text, merged)]
    return VisionTower(image=_resized(keys, limits, 3136, 451584), steps=tuple(steps), **parts)


_KIMI_NAMES = {f"vt_{name}": name for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")} | {
    **{"vt_intermediate_size": "intermediate_size", "pos_emb_height": "init_pos_emb_height"},
    "pos_emb_width": "init_pos_emb_width",
}


def _kimi(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {"num_hidden_layers": 27, "hidden_size": 1152, "num_attention_heads": 16, "intermediate_size": 4304}
    sizes |= {"patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2]}
    keys = _keys(outer, sizes, _KIMI_NAMES)
    positions = keys.integer("init_pos_emb_height", MAX_SIDE) * keys.integer("init_pos_emb_width", MAX_SIDE)
    parts = _encoder(keys, rotary=True, patch_bias=True, positions=positions, post_norm=True)
    merge, hidden = _side(keys, "merge_kernel_size", 64), parts["hidden"]
    width = merge**2 * hidden
    steps = [Step("norm", hidden, hidden, 1, weights=2 * hidden), *_mlp(width, width, text, merge**2, shared=False)]
    most = limits.integer("max_patches", MAX_PIXELS, 16384)
    longest = limits.inner("size").integer("max_height", MAX_SIDE, 512)
    return VisionTower(image=Padded(_side(keys, "patch_size"), merge, most, longest), steps=tuple(steps), **parts)


def _clip(keys: ConfigKeys) -> dict[str, Any]:
    parts = _encoder(keys, class_token=True, pre_norm=True, positions=_patches(keys) ** 2 + 1)
    return parts | {"unused": 2 * parts["hidden"]}  # a norm of the class token


def _siglip(keys: ConfigKeys) -> dict[str, Any]:
    parts = _encoder(keys, patch_bias=True, positions=_patches(keys) ** 2)
    hidden, width = parts["hidden"], parts["ffn"].width
    # The last norm; the head pools what text models read token by token.
    head = hidden + 4 * hidden * (hidden + 1) + 2 * hidden + hidden * (2 * width + 1) + width
    return parts | {"unused": 2 * hidden + keys.flag("vision_use_head", True) * head}


def _pixtral(keys: ConfigKeys) -> dict[str, Any]:
    biases = {"qkv_bias": False, "out_bias": False, "norm_values": 1}
    return _encoder(keys, True, False, rotary=True, pre_norm=True, **biases)


_SMALL = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
#: By the ``model_type`` of a ``vision_config``, with the defaults of its class.
_ENCODERS = {
    "clip_vision_model": (_clip, _SMALL | {"image_size": 224, "patch_size": 32}),
    "siglip_vision_model": (_siglip, _SMALL | {"image_size": 224, "patch_size": 16}),
    "pixtral": (_pixtral, _LARGE | {"image_size": 1024, "patch_size": 16}),
}


def _llava(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    tiled, last = outer.content["model_type"], -1 if outer.content["model_type"] == "llava_onevision" else -2
    usual = "siglip_vision_model" if tiled == "llava_onevision" else "clip_vision_model"
    kind = outer.inner("vision_config").choice("model_type", _ENCODERS, usual)
    read, defaults = _ENCODERS[kind]
    keys = _keys(outer, defaults)
    parts = read(keys)
    skipped, features = _feature_layers(outer, parts["layers"], last)
    bias = outer.flag("multimodal_projector_bias", True)
    steps = _mlp(features * parts["hidden"], text, text, 1, bias)
    classes = int(kind == "clip_vision_model")
    whole = outer.choice("vision_feature_select_strategy", ("default", "full"), "default" if classes else "full")
    if kind == "pixtral":
        longest = limits.inner("size").integer("longest_edge", MAX_SIDE, _side(keys, "image_size"))
        image = Rows(_side(keys, "patch_size"), 1, longest)
    elif tiled == "llava":
        image = Square(_patches(keys), _patches(keys) ** 2 + classes - (whole == "default"))
    else:
        size = _side(keys, "image_size")
        sides = range(size, 7 * size, size)
        known = [[a, b] for a in sides for b in sides] if tiled == "llava_onevision" else _next_sizes(size)
        pooled = _pooled(outer) if tiled == "llava_onevision" else 0
        image = AnyResolution(size, _side(keys, "patch_size"), _resolutions(outer, known, size), pooled)
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
        problem = f"not a list of sizes in multiples of {size} pixels"
        raise outer.error("image_grid_pinpoints", problem, "correct it")
    return tuple((height, width) for height, width in pairs)


def _feature_layers(outer: ConfigKeys, layers: int, last: int) -> tuple[int, int]:
    """Return how many of the last layers are not computed, and of how many layers the output is projected."""
    value = outer.value("vision_feature_layer", last)
    chosen = value if isinstance(value, list) else [value]
    if not chosen or len(chosen) > layers or not all(type(one) is int and -layers <= one <= layers for one in chosen):
        raise outer.error("vision_feature_layer", f"not a layer of {layers}, or a list of them", "correct it")
    # Number 0 is the embedding, before the first layer.
    numbers = [one if one >= 0 else layers + 1 + one for one in chosen]
    return layers - max(numbers), len(numbers)


def _mistral3(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    keys = _keys(outer, _LARGE | {"image_size": 1540, "patch_size": 14})
    keys.fixed("model_type", "pixtral", "another encoder")
    parts = _pixtral(keys)
    hidden, merge = parts["hidden"], outer.integer("spatial_merge_size", 64, 2)
    skipped, features = _feature_layers(outer, parts["layers"], -1)
    bias = outer.flag("multimodal_projector_bias")
    steps = [
        Step("norm", features * hidden, features * hidden, 1, weights=hidden),
        Step("proj", merge**2 * hidden, hidden, merge**2),
        *_mlp(features * hidden, text, text, merge**2, bias),
    ]
    longest = limits.inner("size").integer("longest_edge", MAX_SIDE, _side(keys, "image_size"))
    image = Rows(_side(keys, "patch_size"), merge, longest)
    return VisionTower(image=image, steps=tuple(steps), skipped=skipped, **parts)


def _gemma3(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    keys = _keys(outer, _ENCODERS["siglip_vision_model"][1])
    keys.fixed("model_type", "siglip_vision_model", "another encoder")
    parts, side = _siglip(keys), _patches(keys)
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
    sizes = {**_SMALL, "num_hidden_layers": 16, "patch_size": 16, "pooling_kernel_size": 3, "head_dim": 64}
    keys = _keys(outer, sizes | {"position_embedding_size": 10240})
    keys.fixed("num_key_value_heads", keys.integer("num_attention_heads", MAX_HEADS), "fewer heads of keys and values")
    keys.fixed("attention_bias", False, "projections with a bias")
    rows, head_dim = keys.integer("position_embedding_size", MAX_PIXELS), keys.integer("head_dim", MAX_WIDTH)
    more = {"norms": 4, "norm_values": 1, "qkv_bias": False, "out_bias": False, "positions": 2 * rows}
    parts = _encoder(keys, True, False, rotary=True, qk_norm=2 * head_dim, normed=3, **more)
    hidden, pool = parts["hidden"], keys.integer("pooling_kernel_size", 64)
    steps = (
        Step("pool", hidden, hidden, pool**2),
        Step("norm", hidden, hidden, pool**2),
        Step("proj", hidden, text, pool**2),
    )
    tokens = limits.integer("max_soft_tokens", 2**20, outer.integer("vision_soft_tokens_per_image", 2**20, 280))
    image = Filled(_side(keys, "patch_size"), pool, tokens)
    return VisionTower(image=image, steps=steps, **{**parts, "head_dim": head_dim})


def _llama4(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {**_SMALL, "num_hidden_layers": 34, "num_attention_heads": 16, "intermediate_size": 5632}
    sizes |= {"image_size": 448, "patch_size": 14, "projector_input_dim": 4096, "projector_output_dim": 4096}
    keys = _keys(outer, sizes | {"vision_output_dim": 7680})
    side, ratio = _patches(keys), keys.number("pixel_shuffle_ratio", 0.5)
    more = {"class_token": True, "positions": side**2 + 1, "rotary": True, "pre_norm": True, "post_norm": True}
    parts, widths = _encoder(keys, **more), [keys.integer(f"projector_{end}_dim", MAX_WIDTH) for end in _ENDS]
    merged = _shuffled(keys, ratio, side)
    if merged * parts["hidden"] != parts["ffn"].width:
        problem = f"{parts['ffn'].width} is not {merged} patches of {parts['hidden']} values, which its adapter reads"
        raise keys.error("intermediate_size", problem, "correct one of them")
    out = keys.integer("vision_output_dim", MAX_WIDTH)
    steps = [
        *_mlp(merged * parts["hidden"], widths[0], widths[1], merged, bias=False),
        Step("act", widths[1], widths[1], merged),
        Step("proj", out, text, merged),
    ]
    size, patch = _side(keys, "image_size"), _side(keys, "patch_size")
    most = limits.integer("max_patches", MAX_TILES, 16)
    return VisionTower(image=LlamaTiles(size, patch, side**2 // merged, most), steps=tuple(steps), **parts)


_ENDS = ("input", "output")


def _shuffled(keys: ConfigKeys, ratio: float | None, side: int) -> int:
    """Return how many patches a token joins, from the ratio of sides by which they become fewer."""
    factor = round(1 / ratio) if ratio and 1 / 64 <= ratio <= 1 else 0
    if not factor or abs(factor * ratio - 1) > 1e-9 or side % factor:
        raise keys.error("pixel_shuffle_ratio", f"{side} patches cannot be joined by {ratio}", "correct it")
    return factor**2


_INTERNVL_NAMES = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}


def _internvl(outer: ConfigKeys, text: int, limits: ConfigKeys) -> VisionTower:
    sizes = {**_LARGE, "image_size": 448, "patch_size": 14}
    keys = _keys(outer, sizes, _INTERNVL_NAMES)
    hidden, size = keys.integer("hidden_size", MAX_WIDTH), _side(keys, "image_size")
    size, patch = outer.integer("force_image_size", MAX_SIDE, size), _side(keys, "patch_size")
    side, norm = size // patch, keys.choice("norm_type", ("layer_norm", "rms_norm"), "layer_norm")
    normed = keys.flag("use_qk_norm")
    parts = _encoder(
        keys,
        **{"patch_bias": True, "class_token": True, "positions": _patches(keys) ** 2 + 1, "scales": 2 * hidden},
        **{"norm_values": 1 + (norm == "layer_norm"), "qkv_bias": keys.flag("attention_bias")},
        **{"qk_norm": 2 * hidden * normed, "normed": 2 * normed},
    )
    chat = outer.content["model_type"] == "internvl_chat"
    merged = _shuffled(outer, outer.number("downsample_ratio", 0.5), side)
    width = merged * hidden
    steps = (Step("norm", width, width, merged, weights=2 * width), *_mlp(width, text, text, merged, shared=False))
    last = outer.integer("select_layer" if chat else "vision_feature_layer", -1, -1, low=-parts["layers"])
    least, most = (outer.integer(f"{end}_dynamic_patch", MAX_TILES, number) for end, number in (("min", 1), ("max", 12)))
    if least > most:
        raise outer.error("min_dynamic_patch", f"{least} is more than max_dynamic_patch", "correct one of them")
    thumbnail = outer.flag("use_thumbnail", True)
    if not outer.flag("dynamic_image_size", True):
        least = most = 1
    image = AspectTiles(size, patch, side**2 // merged, least, most, thumbnail)
    return VisionTower(image=image, steps=steps, skipped=-1 - last, **parts)


_FAMILIES: Mapping[str, Callable[[ConfigKeys, int, ConfigKeys], VisionTower]] = {
    **{"qwen2_vl": _qwen2, "qwen2_5_vl": _qwen25, "glm4v": _glm, "glm4v_moe": _glm},
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _qwen3),
    **dict.fromkeys(("llava", "llava_next", "llava_onevision"), _llava),
    **{"mistral3": _mistral3, "gemma3": _gemma3, "gemma4": _gemma4, "llama4": _llama4},
    **dict.fromkeys(("internvl", "internvl_chat"), _internvl),
    **{"kimi_k25": _kimi, "minimax_m3_vl": _minimax},
}
