"""From the keys of a config.json to the layers that have experts."""

from collections.abc import Callable
from dataclasses import replace

from gpuledger.errors import shown
from gpuledger.models.transformer.blocks.standard import Experts, FeedForward
from gpuledger.models.transformer.rules.keys import MAX_EXPERTS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, ConfigKeys


def routed_experts(keys: ConfigKeys, experts: str, width: str, bias=False, gated=True, **more: object) -> Experts:
    """Return routed experts whose number and width are under these keys; *more* are other attributes of the class."""
    count = keys.integer(experts, MAX_EXPERTS)
    active = keys.integer("num_experts_per_tok", MAX_EXPERTS)
    if active > count:
        raise keys.error("num_experts_per_tok", f"a token uses {active} of {count} experts", "correct one of them")
    keys.fixed("experts_per_token", active, "differs from num_experts_per_tok")
    expert = FeedForward(keys.integer(width, MAX_WIDTH), gated, bias)
    return Experts(count, active, expert, **{"router_bias": bias, **more})


def _selection_bias(keys: ConfigKeys) -> bool:
    """Whether the selection of experts has a bias per expert."""
    return keys.choice("topk_method", {"noaux_tc", "greedy", "group_limited_greedy"}, "noaux_tc") == "noaux_tc"


def all_routed(experts: str, bias: bool = False, width: str = "intermediate_size", **more: object) -> Callable:
    """Every layer has experts of the width under a key; *more* are other attributes of theirs."""

    def ffns(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
        return [routed_experts(keys, experts, width, bias, **more)] * layers

    return ffns


def sparse_steps(shared: bool, gate: bool = True) -> Callable:
    """Every ``decoder_sparse_step``-th layer has experts, except those in ``mlp_only_layers`` (Qwen)."""

    def ffns(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
        step = keys.integer("decoder_sparse_step", MAX_LAYERS, 1)
        only = keys.value("mlp_only_layers", None) or []
        if not isinstance(only, list) or not all(type(i) is int for i in only):
            raise keys.error("mlp_only_layers", "not a list of layer numbers", "correct it")
        more = {}
        if shared:
            width = keys.integer("shared_expert_intermediate_size", MAX_WIDTH, low=0)
            more = {"shared": FeedForward(width), "shared_gate": gate} if width else {}
        routed = routed_experts(keys, "num_experts", "moe_intermediate_size", **more)
        return [routed if (i + 1) % step == 0 and i not in only else block for i in range(layers)]

    return ffns


def deepseek(router_bias: bool) -> Callable:
    """The first layers are dense, then every ``moe_layer_freq``-th layer has routed and shared experts."""

    def ffns(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
        first = keys.integer("first_k_dense_replace", MAX_LAYERS, 0, low=0)
        step = keys.integer("moe_layer_freq", MAX_LAYERS, 1)
        if keys.value("n_routed_experts", None) is None:
            return [block] * layers
        width = keys.integer("moe_intermediate_size", MAX_WIDTH)
        shared = keys.integer("n_shared_experts", MAX_EXPERTS, 0, low=0)
        types = ["sparse" if i >= first and i % step == 0 else "dense" for i in range(layers)]
        if keys.content.get("first_k_dense_replace") is None and keys.content.get("mlp_layer_types"):
            types = ["sparse" if sparse else "dense" for sparse in sparse_layers(keys, layers)]
        # Newer files say the same once more, layer by layer.
        keys.fixed("mlp_layer_types", types, "differs from first_k_dense_replace and moe_layer_freq")
        more = {"shared": FeedForward(shared * width)} if shared else {}
        more["router_bias"] = router_bias and _selection_bias(keys)
        routed = routed_experts(keys, "n_routed_experts", "moe_intermediate_size", **more)
        return [routed if kind == "sparse" else block for kind in types]

    return ffns


def granite(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Routed experts of width ``intermediate_size`` and a shared block, or that block alone."""
    width = keys.integer("shared_intermediate_size", MAX_WIDTH, 0, low=0)
    shared = FeedForward(width) if width else None
    if shared and not keys.integer("num_local_experts", MAX_EXPERTS, 0, low=0):
        keys.known.add("num_experts_per_tok")
        return [shared] * layers
    return [routed_experts(keys, "num_local_experts", "intermediate_size", shared=shared)] * layers


def _of_both(keys: ConfigKeys, key: str, high: int, *default: int, low: int = 1) -> list[int]:
    """Return a number for the tokens of text and, if the file states two, one for those of images (ERNIE-4.5-VL)."""
    value = keys.content.get(key)
    if not isinstance(value, list):
        return [keys.integer(key, high, *default, low=low)]
    keys.known.add(key)
    if len(value) != 2:
        raise keys.error(key, "neither a number nor two, for text and for images", "correct it")
    return [ConfigKeys({key: one}, keys.file, keys.inside).integer(key, high, low=low) for one in value]


def ernie(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every ``moe_layer_interval``-th layer of a range has routed and shared experts (ERNIE 4.5).

    Tokens of images may have routed experts of their own.
    """
    first, *_ = firsts = _of_both(keys, "moe_layer_start_index", MAX_LAYERS, 0, low=0)
    ends = _of_both(keys, "moe_layer_end_index", MAX_LAYERS, layers - 1, low=-1)
    last, *_ = lasts = [layers - 1 if end == -1 else min(end, layers - 1) for end in ends]
    counts = _of_both(keys, "n_routed_experts", MAX_EXPERTS)
    if max(len({*firsts}), len({*lasts}), len({*counts})) > 1:
        problem = "as many experts for images as for text, in the same layers, are modelled"
        raise keys.error("n_routed_experts", problem, "use a model of another architecture")
    step = keys.integer("moe_layer_interval", MAX_LAYERS, 1)
    sparse = [(i + 1) % step == 0 and first <= i <= last for i in range(layers)]
    sparse = sparse_layers(keys, layers) if keys.content.get("mlp_layer_types") else sparse
    shared = keys.integer("moe_num_shared_experts", MAX_EXPERTS, 0, low=0)
    width, *others = _of_both(keys, "moe_intermediate_size", MAX_WIDTH)
    keys.content |= {"n_routed_experts": counts[0], "moe_intermediate_size": width}
    more = {"shared": FeedForward(shared * width)} if shared else {}
    more |= {"image_expert": FeedForward(others[0])} if others else {}
    # How tokens are chosen while training, and a limit of the weights' sum.
    keys.known |= {"moe_capacity", "moe_gate", "moe_norm_min"}
    bias = keys.flag("moe_use_aux_free", True)
    routed = routed_experts(keys, "n_routed_experts", "moe_intermediate_size", router_bias=bias, **more)
    return [routed if one else block for one in sparse]


def _alike(keys: ConfigKeys, key: str, high: int, *default: int) -> int:
    """Return a whole number that may be written once for every layer."""
    value = keys.content.get(key)
    if not isinstance(value, list) or not value or value.count(value[0]) < len(value):
        return keys.integer(key, high, *default)
    keys.known.add(key)
    return ConfigKeys({key: value[0]}, keys.file, keys.inside).integer(key, high)


def hunyuan(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer has routed and shared experts, unless there is one expert (Hunyuan)."""
    count = _alike(keys, "num_experts", MAX_EXPERTS, 1)
    active, shared = _alike(keys, "moe_topk", MAX_EXPERTS, 1), _alike(keys, "num_shared_expert", MAX_EXPERTS, 1)
    width = _alike(keys, "moe_intermediate_size", MAX_WIDTH, block.width)
    keys.fixed("moe_layer_num_skipped", 0, "dense layers among those with experts")
    if count == 1:
        return [block] * layers
    if active > count:
        raise keys.error("moe_topk", f"a token uses {active} of {count} experts", "correct one of them")
    return [Experts(count, active, FeedForward(width), shared=FeedForward(shared * width))] * layers


def bailing(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """As DeepSeek-V3's (Ling and Ring)."""
    keys.fixed("norm_head", False, "a normalised LM head")
    keys.fixed("use_sliding_window", False, "attention with a window")
    width = keys.integer("moe_intermediate_size", MAX_WIDTH)
    keys.fixed("moe_shared_expert_intermediate_size", width, "differs from moe_intermediate_size")
    # How scores are computed; what is not in use.
    keys.known |= {"score_function", "router_dtype", "router_type", "moe_router_enable_shared_expert", "use_rmsnorm"}
    keys.known |= {"sliding_window", "output_dropout", "multi_gate", "group_norm_size", "mtp_loss_scaling_factor"}
    return deepseek(router_bias=keys.flag("moe_router_enable_expert_bias"))(keys, layers, block)


def grok(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer has routed experts, whose sum with a dense block is scaled (Grok 2)."""
    return [routed_experts(keys, "num_local_experts", "moe_intermediate_size", shared=block)] * layers


_DBRX = {"moe_num_experts": "num_experts", "moe_top_k": "num_experts_per_tok", "ffn_hidden_size": "intermediate_size"}


def dbrx(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer has experts, whose sizes are in an object of their own (DBRX)."""
    settings = ConfigKeys(keys.mapping("ffn_config"), keys.file, "ffn_config", renamed=_DBRX)
    settings.fixed("ffn_act_fn", {"name": "silu"}, "another activation")
    settings.fixed("hidden_size", keys.integer("hidden_size", MAX_WIDTH), "differs from d_model")
    settings.known |= {"moe_normalize_expert_weights", "moe_jitter_eps", "moe_loss_weight"}  # scales of the router's
    routed = routed_experts(settings, "num_experts", "intermediate_size")
    if strange := settings.unknown():
        raise settings.error(strange[0], "an unknown key, which may change kernels", "remove it if it changes none")
    return [routed] * layers


def aria(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer has routed experts and shared ones of the same width (Aria)."""
    shared = replace(block, width=block.width * keys.integer("moe_num_shared_experts", MAX_EXPERTS))
    return [routed_experts(keys, "num_local_experts", "intermediate_size", shared=shared)] * layers


def llama4(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every n-th layer has experts beside a shared one, all of the width of ``block``; the others are wider."""
    step = keys.integer("interleave_moe_layer_step", MAX_LAYERS, 1)
    routed = routed_experts(keys, "num_local_experts", "intermediate_size", shared=block)
    wide = FeedForward(keys.integer("intermediate_size_mlp", MAX_WIDTH))
    sparse = [i for i in range(layers) if (i + 1) % step == 0]
    keys.fixed("moe_layers", sparse, "differs from interleave_moe_layer_step")
    return [routed if i in sparse else wide for i in range(layers)]


def minimax(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer has experts; full attention and one norm over all heads are what the keys must say."""
    for key, wanted in {"qk_norm_type": "per_layer", "use_qk_norm": True, "attn_type_list": [1] * layers}.items():
        keys.fixed(key, wanted, "another kind of attention")
    # Multi-token prediction layers are left out.
    keys.known |= {"use_mtp", "mtp_transformer_layers", "num_mtp_modules"}
    bias = keys.flag("use_routing_bias")
    return [routed_experts(keys, "num_local_experts", "intermediate_size", router_bias=bias)] * layers


def sparse_layers(keys: ConfigKeys, layers: int) -> list[bool]:
    """Return which layers have experts, according to ``mlp_layer_types`` or a list in ``moe_layer_freq``."""
    types = keys.strings("mlp_layer_types")
    if types and (set(types) - {"dense", "sparse"} or len(types) != layers):
        raise keys.error("mlp_layer_types", f"not dense or sparse for each of {layers} layers", "correct it")
    listed = isinstance(keys.content.get("moe_layer_freq"), list) or not types
    marked = keys.flags("moe_layer_freq", layers) if listed else None
    sparse = [kind == "sparse" for kind in types] if types else marked
    if sparse is None:
        raise keys.error("moe_layer_freq", "it is missing", "use a model's complete config.json")
    if marked is not None and marked != sparse:
        raise keys.error("moe_layer_freq", "differs from mlp_layer_types", "correct one of them")
    first = sparse.index(True) if True in sparse else layers
    keys.fixed("first_k_dense_replace", first, "differs from moe_layer_freq")
    return sparse


def mimo_v2(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Listed layers have experts, none of them shared."""
    keys.fixed("n_shared_experts", 0, "shared experts")
    routed = routed_experts(keys, "n_routed_experts", "moe_intermediate_size", router_bias=_selection_bias(keys))
    return [routed if sparse else block for sparse in sparse_layers(keys, layers)]


def minimax_m3(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Listed layers have experts, the others a wider block."""
    keys.fixed("moe_intermediate_size", block.width, "differs from intermediate_size")
    shared = keys.integer("n_shared_experts", MAX_EXPERTS, 1, low=0) * keys.integer(
        "shared_intermediate_size", MAX_WIDTH
    )
    more = {"shared": FeedForward(shared)} if shared else {}
    bias = keys.flag("use_routing_bias")
    routed = routed_experts(keys, "num_local_experts", "intermediate_size", router_bias=bias, **more)
    wide = FeedForward(keys.integer("dense_intermediate_size", MAX_WIDTH))
    keys.known.add("num_mtp_modules")  # multi-token prediction is left out
    return [routed if sparse else wide for sparse in sparse_layers(keys, layers)]


def gemma4(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer is dense or, with ``enable_moe_block``, has routed experts beside the dense block."""
    keys.known.add("use_bidirectional_attention")
    if keys.content.get("hidden_size_per_layer_input"):
        keys.fixed("vocab_size_per_layer_input", keys.integer("vocab_size", MAX_VOCAB), "differs from vocab_size")
    keys.known.add("vocab_size_per_layer_input")
    # In the small models, layers that reuse keys and values are wider.
    sharing = keys.integer("num_kv_shared_layers", layers, 0, low=0) * keys.flag("use_double_wide_mlp")
    if not keys.flag("enable_moe_block"):
        keys.known |= {"num_experts", "num_experts_per_tok", "moe_intermediate_size"}
        return [block] * (layers - sharing) + [replace(block, width=2 * block.width)] * sharing
    routed = routed_experts(keys, "num_experts", "moe_intermediate_size", shared=block, own_norms=True)
    return [routed] * layers


def step(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """All but the first layers have routed experts and a shared one."""
    named = keys.value("moe_layers_enum", None)
    if keys.content.get("mlp_layer_types"):
        sparse = {i for i, chosen in enumerate(sparse_layers(keys, layers)) if chosen}
    elif named is None:
        first = keys.integer("first_k_dense_replace", MAX_LAYERS, 3, low=0)
        sparse = set(range(first, layers))
    else:
        parts = named.split(",") if isinstance(named, str) else named
        if not isinstance(parts, list) or not all(
            str(part).strip().isdecimal() and len(str(part)) < 9 for part in parts
        ):
            raise keys.error("moe_layers_enum", f"{shown(named)} is not a list of layers", "correct it")
        sparse = {int(part) for part in parts}
    keys.fixed("n_shared_experts", 1, "several shared experts")
    shared = FeedForward(keys.integer("share_expert_dim", MAX_WIDTH))
    bias = keys.flag("use_moe_router_bias", True)
    # Formats, limits and scales of the router and of activations; layers without a rotation are not in use.
    keys.known |= {"need_fp32_gate", "norm_expert_weight", "moe_router_activation", "moe_router_scaling_factor"}
    keys.known |= {"swiglu_limits", "swiglu_limits_shared", "use_moe", "moe_every_n_layer", "moe_layer_offset"}
    routed = routed_experts(keys, "num_experts", "moe_intermediate_size", shared=shared, router_bias=bias)
    return [routed if i in sparse else block for i in range(layers)]


def deepseek_v4(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Every layer has experts; the first ones choose them by a table of tokens, without a bias."""
    listed = keys.strings("mlp_layer_types")
    hashed = keys.integer("num_hash_layers", MAX_LAYERS, listed.count("hash_moe") if listed else 3, low=0)
    keys.fixed("mlp_layer_types", ["hash_moe"] * hashed + ["moe"] * (layers - hashed), "differs from num_hash_layers")
    width, shared = keys.integer("moe_intermediate_size", MAX_WIDTH), keys.integer("n_shared_experts", MAX_EXPERTS)
    routed = routed_experts(keys, "n_routed_experts", "moe_intermediate_size", shared=FeedForward(shared * width))
    bias = _selection_bias(keys)
    return [replace(routed, router_bias=bias and i >= hashed) for i in range(layers)]


def cohere2_moe(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """Routed experts and a shared one, as wide as so many of them; marked layers are dense, with their own width."""
    sparse = sparse_layers(keys, layers) if keys.content.get("mlp_layer_types") else [True] * layers
    keys.known |= {"expert_selection_fn", "shared_expert_combination_strategy", "prefix_dense_sliding_window_pattern"}
    count = keys.integer("num_shared_experts", MAX_EXPERTS, 0, low=0)
    more = {"shared": replace(block, width=count * block.width)} if count else {}
    routed = routed_experts(keys, "num_experts", "intermediate_size", **more)
    dense = replace(block, width=keys.integer("prefix_dense_intermediate_size", MAX_WIDTH, None) or block.width)
    return [routed if chosen else dense for chosen in sparse]


def kimi_linear(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """As DeepSeek-V3's; Kimi-K3's routed experts work on narrower tokens."""
    latent = keys.integer("routed_expert_hidden_size", MAX_WIDTH, None) or 0
    norm = keys.flag("latent_moe_use_norm") and bool(latent)
    # How scores and activations are scaled.
    keys.known |= {"moe_renormalize", "moe_router_activation_func", "use_grouped_topk", "num_expert_group"}
    keys.known |= {"activation_situ_beta", "activation_situ_linear_beta"}
    ffns = deepseek(router_bias=True)(keys, layers, block)
    return [replace(ffn, latent=latent, latent_norm=norm) if isinstance(ffn, Experts) else ffn for ffn in ffns]


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


def lfm2_moe(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """As DeepSeek-V3's, without shared experts."""
    return deepseek(router_bias=keys.flag("use_expert_bias", True))(keys, layers, block)


def jamba(keys: ConfigKeys, layers: int, block: FeedForward) -> list[FeedForward | Experts]:
    """One layer of a period has experts as wide as the dense blocks of the others; none, if there is one (Jamba)."""
    period = keys.integer("expert_layer_period", MAX_LAYERS)
    offset = keys.integer("expert_layer_offset", period - 1, low=0)
    if keys.integer("num_experts", MAX_EXPERTS) == 1:
        keys.known.add("num_experts_per_tok")
        return [block] * layers
    routed = routed_experts(keys, "num_experts", "intermediate_size")
    return [routed if i % period == offset else block for i in range(layers)]
