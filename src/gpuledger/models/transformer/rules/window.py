"""From the keys of a config.json to the windows of every layer."""

from collections.abc import Callable

from gpuledger.errors import shown
from gpuledger.models.transformer.rules.keys import MAX_LAYERS, MAX_POSITIONS, ConfigKeys


def _layer_types(keys: ConfigKeys, layers: int) -> list[bool] | None:
    """Return which layers have a window according to ``layer_types``; None without that key."""
    types = keys.strings("layer_types")
    if not types:
        return None
    if strange := sorted(set(types) - {"sliding_attention", "full_attention"}):
        remedy = "only sliding_attention and full_attention are modelled"
        raise keys.error("layer_types", f"unknown layer types: {', '.join(strange)}", remedy)
    if len(types) == layers + keys.integer("num_nextn_predict_layers", MAX_LAYERS, 0, low=0):
        types = types[:layers]  # multi-token prediction layers are left out
    if len(types) != layers:
        raise keys.error("layer_types", f"{len(types)} types for {layers} layers", "correct one of them")
    return [name == "sliding_attention" for name in types]


def _windows(keys: ConfigKeys, layers: int, slides: Callable[[int], bool]) -> list[int | None]:
    window = keys.integer("sliding_window", MAX_POSITIONS, None)
    types = _layer_types(keys, layers)
    if types is None:
        types = [slides(i) for i in range(layers)]
    longest = keys.integer("max_position_embeddings", MAX_POSITIONS, None)
    if window is not None and longest is not None and window >= longest:
        window = None  # never takes effect
    return [window if slide else None for slide in types]


def none(keys: ConfigKeys, layers: int) -> list[int | None]:
    return [None] * layers


def everywhere(keys: ConfigKeys, layers: int) -> list[int | None]:
    return _windows(keys, layers, lambda i: True)


def every_second(keys: ConfigKeys, layers: int) -> list[int | None]:
    size = keys.integer("sliding_window_size", MAX_POSITIONS, None)
    if size not in (None, keys.integer("sliding_window", MAX_POSITIONS, None)):
        raise keys.error("sliding_window_size", f"{size} differs from sliding_window", "correct one of them")
    return _windows(keys, layers, lambda i: i % 2 == 0)


def but_every_nth(keys: ConfigKeys, layers: int) -> list[int | None]:
    period = keys.integer("_sliding_window_pattern", MAX_LAYERS, None)
    period = keys.integer("sliding_window_pattern", MAX_LAYERS, period or 6)
    return _windows(keys, layers, lambda i: (i + 1) % period != 0)


def listed(keys: ConfigKeys, layers: int) -> list[int | None]:
    """Windows in the layers that ``layer_types`` lists; none without it."""
    return _windows(keys, layers, lambda i: False)


def if_used(slides: Callable[[int, int], bool]) -> Callable[[ConfigKeys, int], list[int | None]]:
    """Windows of Qwen models: ``sliding_window`` only applies with ``use_sliding_window``."""

    def windows(keys: ConfigKeys, layers: int) -> list[int | None]:
        first = keys.integer("max_window_layers", MAX_LAYERS, 28, low=0)
        if not keys.flag("use_sliding_window"):
            keys.known |= {"sliding_window", "layer_types"}
            return [None] * layers
        return _windows(keys, layers, lambda i: slides(i, first))

    return windows


def of_exaone(keys: ConfigKeys, layers: int) -> list[int | None]:
    """Windows but in every fourth layer, written as a number or as LLLG; none without ``sliding_window``."""
    pattern = keys.value("sliding_window_pattern", None)
    if pattern is not None and not isinstance(pattern, str):
        pattern = "L" * (keys.integer("sliding_window_pattern", MAX_LAYERS, low=0) - 1) + "G"
    signs = pattern or "LLLG"
    if set(signs) - {"L", "G"}:
        raise keys.error("sliding_window_pattern", f"{shown(signs)} is not a sequence of L and G", "write LLLG, or 4")
    return _windows(keys, layers, lambda i: signs[i % len(signs)] == "L")


def of_last(keys: ConfigKeys, layers: int) -> list[int | None]:
    """Windows from layer ``max_window_layers`` on."""
    first = keys.integer("max_window_layers", MAX_LAYERS, layers, low=0)
    keys.known.add("use_sliding_window")
    return _windows(keys, layers, lambda i: i >= first)


def of_chunks(keys: ConfigKeys, layers: int) -> list[int | None]:
    """Llama 4: three of four layers attend within chunks, taken as windows of that length, which is an upper bound."""
    chunk = keys.integer("attention_chunk_size", MAX_POSITIONS, 8192)
    if keys.content.get("no_rope_layers") == []:
        keys.known.add("no_rope_layers")
        local = None
    else:
        local = keys.flags("no_rope_layers", layers)
    every = keys.integer("no_rope_layer_interval", MAX_LAYERS, 4)
    local = local or [(i + 1) % every != 0 for i in range(layers)]
    types = ["chunked_attention" if value else "full_attention" for value in local]
    keys.fixed("layer_types", types, "differs from no_rope_layers")
    keys.known |= {"use_qk_norm", "attn_temperature_tuning", "attn_scale", "floor_scale", "for_llm_compressor"}
    return [chunk if value else None for value in local]


def of_inkling(keys: ConfigKeys, layers: int) -> list[int | None]:
    """Windows in the layers that ``layer_types`` or ``local_layer_ids`` list; without them, but in every sixth."""
    size, types = keys.integer("sliding_window", MAX_POSITIONS), keys.strings("layer_types")
    local = keys.value("local_layer_ids", None)
    if local is not None and not isinstance(local, list):
        raise keys.error("local_layer_ids", "not a list of layer numbers", "correct it")
    if types and (set(types) - {"hybrid", "hybrid_sliding"} or len(types) != layers):
        raise keys.error("layer_types", f"not hybrid or hybrid_sliding for each of {layers} layers", "correct it")
    slides = [(i + 1) % 6 != 0 if local is None else i in local for i in range(layers)]
    slides = [kind == "hybrid_sliding" for kind in types] if types else slides
    return [size if one else None for one in slides]


def of_gpt_neo(keys: ConfigKeys, layers: int) -> list[int | None]:
    """Windows in the layers that ``attention_layers`` calls local; without it, by repeated patterns."""
    size, listed = keys.integer("window_size", MAX_POSITIONS, 256), keys.value("attention_layers", None)
    if listed is None:
        described = keys.value("attention_types", None) or [[["global", "local"], layers // 2]]
        try:
            listed = [kind for kinds, times in described for kind in list(kinds) * min(int(times), MAX_LAYERS)]
        except (TypeError, ValueError):
            listed = None
    if not isinstance(listed, list) or len(listed) != layers or any(one not in ("global", "local") for one in listed):
        raise keys.error("attention_types", f"not global or local for each of {layers} layers", "correct it")
    return [size if one == "local" else None for one in listed]


def of_mimo_v2(keys: ConfigKeys, layers: int) -> list[int | None]:
    """Windows in the layers that ``hybrid_layer_pattern`` marks, or ``layer_types``."""
    size = keys.integer("sliding_window", MAX_POSITIONS)
    before = keys.integer("sliding_window_size", MAX_POSITIONS, size)
    if size not in (before, before + 1):  # transformers 5 counts the query itself
        raise keys.error("sliding_window_size", f"{before} differs from sliding_window", "correct one of them")
    marked, types = keys.flags("hybrid_layer_pattern", layers), _layer_types(keys, layers)
    if marked is None and types is None:
        raise keys.error("hybrid_layer_pattern", "it is missing", "use a model's complete config.json")
    if marked and types and marked != types:
        raise keys.error("hybrid_layer_pattern", "differs from layer_types", "correct one of them")
    return [before if slides else None for slides in marked or types or []]
