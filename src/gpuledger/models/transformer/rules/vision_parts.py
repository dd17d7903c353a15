"""What the rules of vision towers share: checked sizes, encoders that several families use, and their steps."""

from collections.abc import Mapping
from typing import Any

from gpuledger.models.transformer.blocks.image_sizes import MAX_SIDE, Resized
from gpuledger.models.transformer.blocks.standard import FeedForward
from gpuledger.models.transformer.blocks.vision import Step
from gpuledger.models.transformer.families.known import ACTIVATIONS
from gpuledger.models.transformer.rules.keys import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ConfigKeys

MAX_PIXELS, MAX_TILES = 2**32, 64


def vision_keys(outer: ConfigKeys, defaults: Mapping[str, Any], renamed: Mapping[str, str] | None = None) -> ConfigKeys:
    keys = ConfigKeys(outer.mapping("vision_config"), outer.file, "vision_config", defaults, renamed)
    keys.choice("hidden_act", ACTIVATIONS | {"quick_gelu"}, "gelu")
    return keys


def encoder(keys: ConfigKeys, gated: bool = False, mlp_bias: bool = True, **more: Any) -> dict[str, Any]:
    """Return the sizes that all encoders have; *more* are other attributes of :class:`VisionTower`."""
    hidden, heads = keys.integer("hidden_size", MAX_WIDTH), keys.integer("num_attention_heads", MAX_HEADS)
    if hidden % heads:
        raise keys.error("hidden_size", f"{hidden} is no multiple of {heads} heads", "correct one of them")
    width = more.pop("width", None) or keys.integer("intermediate_size", MAX_WIDTH)
    patch, frames = side_of(keys, "patch_size"), keys.integer("temporal_patch_size", 64, 1)
    return {
        **{"hidden": hidden, "heads": heads, "head_dim": hidden // heads},
        "layers": keys.integer("num_hidden_layers", MAX_LAYERS),
        "ffn": FeedForward(width, gated, mlp_bias, stored_fused=False),
        "patch_values": keys.integer("num_channels", 64, 3) * frames * patch**2,
        **more,
    }


def side_of(keys: ConfigKeys, name: str, most: int = MAX_SIDE) -> int:
    """Return a side in pixels, which may be written as a pair of two equal ones."""
    value = keys.value(name)
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        keys = ConfigKeys({name: value[0]}, keys.file, keys.inside)
    return keys.integer(name, most)


def patches_of(keys: ConfigKeys) -> int:
    """Return the patches along a side of an image of the size that the tower was made for."""
    size, patch = side_of(keys, "image_size"), side_of(keys, "patch_size")
    if size < patch:
        raise keys.error("image_size", f"{size} is less than a patch of {patch}", "correct one of them")
    return size // patch


def mlp(inputs: int, width: int, outputs: int, patches: int, bias: bool = True, shared: bool = True) -> list[Step]:
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
    return bounds_of(limits).integer(new, MAX_PIXELS, published)


def bounds_of(limits: ConfigKeys) -> ConfigKeys:
    """Return the bounds within ``size``; none where it is a list, which processors ignore (MiniMax-M3's)."""
    return ConfigKeys({}, limits.file) if isinstance(limits.content.get("size"), list) else limits.inner("size")


def resized(keys: ConfigKeys, limits: ConfigKeys, least: int, most: int, frames: int = 1) -> Resized:
    patch, merge = side_of(keys, "patch_size"), keys.integer("spatial_merge_size", 64)
    bounds = [_limit(limits, "min_pixels", "shortest_edge", least), _limit(limits, "max_pixels", "longest_edge", most)]
    if not frames * (patch * merge) ** 2 <= bounds[1] or bounds[0] > bounds[1]:
        raise limits.error("max_pixels", f"{bounds[0]} … {bounds[1]} pixels leave no size", "correct it")
    return Resized(patch, merge, *bounds, frames)


def layer_numbers(keys: ConfigKeys, name: str, layers: int) -> list[int]:
    """Return a list of different layers."""
    value = keys.value(name, [])
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < layers for one in value):
        raise keys.error(name, f"not a list of numbers of {layers} layers", "correct it")
    return sorted(set(value))


def joined_patches(keys: ConfigKeys, name: str, side: int) -> int:
    """Return how many patches a token joins: a key says the ratio of sides by which they become fewer."""
    ratio = keys.number(name, 0.5)
    factor = round(1 / ratio) if ratio and 1 / 64 <= ratio <= 1 else 0
    if not factor or abs(factor * ratio - 1) > 1e-9 or side % factor:
        raise keys.error(name, f"{side} patches cannot be joined by {ratio}", "correct it")
    return factor**2


def feature_layers(outer: ConfigKeys, layers: int, last: int) -> tuple[int, int]:
    """Return how many of the last layers are not computed, and of how many layers the output is projected."""
    value = outer.value("vision_feature_layer", last)
    chosen = value if isinstance(value, list) else [value]
    if not chosen or len(chosen) > layers or not all(type(one) is int and -layers <= one <= layers for one in chosen):
        raise outer.error("vision_feature_layer", f"not a layer of {layers}, or a list of them", "correct it")
    # Number 0 is the embedding, before the first layer.
    numbers = [one if one >= 0 else layers + 1 + one for one in chosen]
    return layers - max(numbers), len(numbers)


def clip(keys: ConfigKeys) -> dict[str, Any]:
    parts = encoder(keys, class_token=True, pre_norm=True, positions=patches_of(keys) ** 2 + 1)
    return parts | {"unused": 2 * parts["hidden"]}  # a norm of the class token


def siglip(keys: ConfigKeys) -> dict[str, Any]:
    parts = encoder(keys, patch_bias=True, positions=patches_of(keys) ** 2)
    hidden, width = parts["hidden"], parts["ffn"].width
    # The last norm; the head pools what text models read token by token.
    head = hidden + 4 * hidden * (hidden + 1) + 2 * hidden + hidden * (2 * width + 1) + width
    return parts | {"unused": 2 * hidden + keys.flag("vision_use_head", True) * head}


def pixtral(keys: ConfigKeys) -> dict[str, Any]:
    biases = {"qkv_bias": False, "out_bias": False, "norm_values": 1}
    return encoder(keys, True, False, rotary=True, pre_norm=True, **biases)


SMALL = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
#: By the ``model_type`` of a ``vision_config``, with the defaults of its class.
ENCODERS = {
    "clip_vision_model": (clip, SMALL | {"image_size": 224, "patch_size": 32}),
    "siglip_vision_model": (siglip, SMALL | {"image_size": 224, "patch_size": 16}),
    "pixtral": (pixtral, LARGE | {"image_size": 1024, "patch_size": 16}),
}
