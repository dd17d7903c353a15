"""From the keys of a config.json to experts with norms of their own, or with others than routed ones to choose."""

from dataclasses import replace

from gpuledger.models.transformer.blocks.standard import Experts, FeedForward
from gpuledger.models.transformer.rules.keys import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, ConfigKeys
from gpuledger.models.transformer.rules.moe import deepseek, routed_experts, sparse_layers


def muse_spark(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Routed experts that work on narrower tokens, with norms before and behind them (Muse Spark)."""
    sparse = sparse_layers(keys, layers) if keys.content.get("mlp_layer_types") else [True] * layers
    latent = keys.integer("moe_hidden_size", MAX_WIDTH)
    more = {"latent": latent, "inner_norms": True, "router_bias": True}
    routed = routed_experts(keys, "num_local_experts", "moe_intermediate_size", **more)
    return [routed if one else block for one in sparse]


def inkling(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Routed experts and shared ones that the router scores, too (Inkling)."""
    keys.fixed("shared_expert_sink", True, "shared experts without a score")
    dense, width = keys.integer("dense_intermediate_size", MAX_WIDTH, None), "moe_intermediate_size"
    block = replace(block, scaled=True)
    if dense:  # the width of experts is then that of all blocks
        block, width = replace(block, width=dense), "intermediate_size"
        keys.known.add("moe_intermediate_size")
    first = keys.integer("dense_mlp_idx", MAX_LAYERS, 0, low=0)
    sparse = [i >= first for i in range(layers)]
    sparse = sparse_layers(keys, layers) if keys.content.get("mlp_layer_types") else sparse
    count = keys.integer("n_shared_experts", MAX_EXPERTS)
    shared = FeedForward(count * keys.integer(width, MAX_WIDTH))
    routed = routed_experts(keys, "n_routed_experts", width, shared=shared, router_bias=True, scored=count)
    return [routed if one else block for one in sparse]


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
    count, zero = keys.integer("n_routed_experts", MAX_EXPERTS), keys.integer("zero_expert_num", MAX_EXPERTS, 0, low=0)
    chosen = keys.integer("num_experts_per_tok", MAX_EXPERTS)
    active, rest = divmod(chosen * count, count + zero)
    if rest or not 1 <= active <= count:
        problem = f"of {chosen} choices, {chosen * count / (count + zero):.3g} experts compute in the mean"
        raise keys.error("num_experts_per_tok", problem, "only whole numbers of experts are modelled")
    expert = FeedForward(keys.integer("moe_intermediate_size", MAX_WIDTH))
    routed = Experts(count, active, expert, shared=block, router_bias=True, zero=zero, shortcut=True)
    return [block if i % 2 else routed for i in range(layers)]


def dots3(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """As DeepSeek-V3's, with shared experts of a width of their own (dots3-note)."""
    width = keys.integer("moe_shared_expert_intermediate_size", MAX_WIDTH, None)
    width = width or keys.integer("shared_experts_intermediate_size", MAX_WIDTH, 1536)
    shared = FeedForward(width * keys.integer("n_shared_experts", MAX_EXPERTS))
    ffns = deepseek(router_bias=True)(keys, layers, block)
    return [replace(ffn, shared=shared) if isinstance(ffn, Experts) else ffn for ffn in ffns]
