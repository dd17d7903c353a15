"""From the keys of newer architectures to the feed-forward blocks of every layer."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

from gpuledger.models.transformer.blocks import Experts, FeedForward
from gpuledger.models.transformer.family_rules import deepseek, routed_experts, sparse_layers
from gpuledger.models.transformer.keys import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, ConfigKeys


def marked(first: int, router_bias: bool) -> Callable:
    """Layers that ``mlp_layer_types`` marks have routed experts and, where the file says how wide, a shared one.

    Without that key, all but the *first* ones.
    """

    def ffns(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
        listed = keys.content.get("mlp_layer_types")
        sparse = sparse_layers(keys, layers) if listed else [i >= first for i in range(layers)]
        width = keys.integer("shared_expert_intermediate_size", MAX_WIDTH, 0, low=0)
        more = {"shared": FeedForward(width)} if width else {}
        # Scales and limits of the router's scores; multi-token prediction is left out.
        keys.known |= {"moe_routed_scaling_factor", "moe_router_logit_softcapping", "mtp_layer_types"}
        keys.known |= {"mtp_mlp_layer_types"}
        keys.fixed("moe_apply_router_weight_on_input", False, "experts whose input is scaled")
        routed = routed_experts(keys, "num_experts", "moe_intermediate_size", router_bias=router_bias, **more)
        return [routed if chosen else block for chosen in sparse]

    return ffns


def deepseek_with(*known: str) -> Callable:
    """As DeepSeek-V3's, with further keys that are *known* to change no kernel."""

    def ffns(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
        keys.known |= set(known)
        if "expert_hidden_dim" in keys.content:  # Hy3
            keys.fixed(
                "expert_hidden_dim",
                keys.integer("moe_intermediate_size", MAX_WIDTH),
                "differs from moe_intermediate_size",
            )
        if "is_moe_layer" in keys.content:  # K-EXAONE
            first = keys.integer("first_k_dense_replace", MAX_LAYERS, 0, low=0)
            keys.fixed("is_moe_layer", [i >= first for i in range(layers)], "differs from first_k_dense_replace")
        return deepseek(router_bias=True)(keys, layers, block)

    return ffns


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


def lfm2_moe(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """As DeepSeek-V3's, without shared experts."""
    return deepseek(router_bias=keys.flag("use_expert_bias", True))(keys, layers, block)


def axk1(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """As DeepSeek-V3's, with a norm behind the experts."""
    ffns = deepseek(router_bias=True)(keys, layers, block)
    return [replace(ffn, post_norm=True) if isinstance(ffn, Experts) else ffn for ffn in ffns]


def longcat(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer is dense; beside every second one, from the first on, are routed experts (LongCat-Flash).

    Of the experts that a token chooses, some pass it on as it is. How many compute is taken as if all were chosen
    equally often. These are 8 of 12, and the parameters used then the 27 billion that the authors state as the mean
    (github.com/meituan-longcat/LongCat-Flash-Chat).
    """
    for key, wanted in {"zero_expert_type": "identity", "attention_method": "MLA", "router_bias": False}.items():
        keys.fixed(key, wanted, "another kind of layer")
    # Norms' weights have these scales in them; how scores are computed; multi-token prediction is left out.
    keys.known |= {"mla_scale_q_lora", "mla_scale_kv_lora", "router_dtype", "nextn_use_scmoe"}
    if re.search(r"layers\.\d", json.dumps(keys.content.get("quantization_config"))):
        problem = "names modules of single layers, which are pairs here"
        raise keys.error("quantization_config", problem, "use a checkpoint whose layers have the same formats")
    count, zero = keys.integer("n_routed_experts", MAX_EXPERTS), keys.integer("zero_expert_num", MAX_EXPERTS, 0, low=0)
    chosen = keys.integer("num_experts_per_tok", MAX_EXPERTS)
    active, rest = divmod(chosen * count, count + zero)
    if rest or not 1 <= active <= count:
        problem = f"of {chosen} choices, {chosen * count / (count + zero):.3g} experts compute in the mean"
        raise keys.error("num_experts_per_tok", problem, "only whole numbers of experts are modelled")
    expert = FeedForward(keys.integer("moe_intermediate_size", MAX_WIDTH))
    routed = Experts(count, active, expert, shared=block, router_bias=True, zero=zero, shortcut=True)
    return [block if i % 2 else routed for i in range(layers)]


def jamba(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """One layer of a period has experts as wide as the dense blocks of the others; none, if there is one (Jamba)."""
    period = keys.integer("expert_layer_period", MAX_LAYERS)
    offset = keys.integer("expert_layer_offset", period - 1, low=0)
    if keys.integer("num_experts", MAX_EXPERTS) == 1:
        keys.known.add("num_experts_per_tok")
        return [block] * layers
    routed = routed_experts(keys, "num_experts", "intermediate_size")
    return [routed if i % period == offset else block for i in range(layers)]


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
