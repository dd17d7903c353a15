"""From the keys of a config.json to the feed-forward blocks of layers without experts."""

from dataclasses import replace

from gpuledger.models.transformer.blocks.standard import Experts, FeedForward, Nothing
from gpuledger.models.transformer.rules.keys import MAX_LAYERS, MAX_WIDTH, ConfigKeys


def dense(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    return [block] * layers


def nothing(keys: ConfigKeys, layers: int, block: FeedForward) -> list[Nothing]:
    return [Nothing()] * layers


def dense_or_four_times(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """A block four times as wide as the residual stream, unless the file says otherwise (GPT-2, Falcon)."""
    width = keys.integer("intermediate_size", MAX_WIDTH, None) or 4 * keys.integer("hidden_size", MAX_WIDTH)
    return [replace(block, width=width)] * layers


def halved(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """The file states the width of gates and values together (Qwen 1)."""
    if block.width % 2:
        raise keys.error("intermediate_size", f"{block.width} is not even", "correct it")
    return [replace(block, width=block.width // 2)] * layers


def mpt(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    times = keys.integer("expansion_ratio", MAX_LAYERS, 4)
    return [replace(block, width=times * keys.integer("hidden_size", MAX_WIDTH))] * layers


def bitnet(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    return [replace(block, norm=True)] * layers


def dense_lfm2(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Two thirds of the width that the file states, scaled, up to the next multiple (LFM2)."""
    keys.fixed("block_use_swiglu", True, "another feed-forward block")
    keys.known.add("block_norm_eps")
    width, scale = block.width, keys.number("block_ffn_dim_multiplier", 1.0) or 1.0
    multiple = keys.integer("block_multiple_of", MAX_WIDTH, 256)
    if keys.flag("block_auto_adjust_ff_dim", True):
        width = multiple * -(-int(scale * int(2 * width / 3)) // multiple)
        if not 1 <= width <= MAX_WIDTH:
            raise keys.error("block_ffn_dim_multiplier", f"{scale:g} gives a width of {width}", "correct it")
    return [replace(block, width=width)] * layers


def gemma3n(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Widths, and a share of gates that are 0, for all layers or for each of them (Gemma 3n)."""
    widths = keys.value("intermediate_sizes")
    widths = widths if isinstance(widths, list) else [widths] * layers
    shares = keys.value("activation_sparsity_pattern", None)
    # Without the key, of the first ten layers.
    shares = [0.95 * (i < 10 < layers) for i in range(layers)] if shares is None else shares
    shares = shares if isinstance(shares, list) else [shares] * layers
    for key, listed in {"intermediate_sizes": widths, "activation_sparsity_pattern": shares}.items():
        if len(listed) != layers:
            raise keys.error(key, f"{len(listed)} values for {layers} layers", "correct one of them")
    found = []
    for width, share in zip(widths, shares, strict=True):
        one = ConfigKeys({"width": width, "share": share}, keys.file, "intermediate_size, activation_sparsity_pattern")
        found.append(replace(block, width=one.integer("width", MAX_WIDTH), sparse=bool(one.number("share", 0.0))))
    return found
