"""From the keys of a config.json to attention over compressed keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.models.transformer.blocks.latent import CompressedAttention, LatentAttention
from gpuledger.models.transformer.blocks.standard import Block, Indexer
from gpuledger.models.transformer.rules.attention import Windows, chosen, divisor, grouped
from gpuledger.models.transformer.rules.keys import (
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_WIDTH,
    ConfigKeys,
)

if TYPE_CHECKING:
    from gpuledger.models.transformer.families.family import ModelFamily


def latent_attention(keys: ConfigKeys, family: ModelFamily) -> LatentAttention:
    heads = keys.integer("num_attention_heads", MAX_HEADS)
    rank = keys.integer("q_lora_rank", MAX_WIDTH, None)
    sizes = [keys.integer(name, MAX_WIDTH) for name in ("kv_lora_rank", "qk_nope_head_dim")]
    sizes += [keys.integer("qk_rope_head_dim", MAX_WIDTH, low=0), keys.integer("v_head_dim", MAX_WIDTH)]
    # Latent attention caches one vector for all heads; these keys do not apply to it.
    keys.known |= {"num_key_value_heads", "head_dim", "qk_head_dim"}
    return LatentAttention(heads, rank, *sizes, chosen(keys, family.out_bias), rope=sizes[2] > 0)


def latent(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    if not keys.flag("use_mla", True):  # DeepSeek-OCR
        return grouped(keys, family, hidden, windows)
    return [latent_attention(keys, family)] * len(windows)


_INDEXED = ["indexed_attention"]


def read_indexer(keys: ConfigKeys) -> Indexer:
    heads, dim = keys.integer("index_n_heads", MAX_HEADS), keys.integer("index_head_dim", MAX_WIDTH)
    return Indexer(heads, dim, keys.integer("index_topk", MAX_POSITIONS))


def sparse_latent(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """An indexer selects the tokens that latent attention reads; layers may share its selection (GLM-5.2)."""
    layers, attention, indexer = len(windows), latent_attention(keys, family), read_indexer(keys)
    keys.known |= {"indexer_rope_interleave", "moe_router_dtype"}
    # The second is what transformers 5 calls it.
    kind = "deepseek_sparse_attention" if keys.strings("layer_types")[:1] != _INDEXED else _INDEXED[0]
    keys.fixed("layer_types", [kind] * layers, "another kind of attention")
    keys.fixed("num_experts", keys.integer("n_routed_experts", MAX_EXPERTS), "differs from n_routed_experts")
    types = keys.strings("indexer_types")
    if not types:
        keys.fixed("index_topk_freq", 1, "layers share an indexer, but indexer_types does not say which")
        types = ["full"] * layers
    # What indexer_types follows from; and multi-token prediction, which is left out.
    keys.known |= {"index_topk_freq", "index_topk_pattern", "index_skip_topk_offset", "index_share_for_mtp_iteration"}
    if set(types) - {"full", "shared"} or len(types) != layers or types[0] != "full":
        raise keys.error("indexer_types", f"not full or shared for each of {layers} layers", "correct it")
    keys.fixed("kv_source_layers", list(range(layers)), "layers share a cache")
    # Without a rotation a head is as wide, but has no part of its own beside the compressed one (Mistral Large 4).
    plain = replace(attention, nope_dim=attention.query_dim, rope_dim=0, rope=False)
    turned = keys.flags("no_rope_layers", layers) or [True] * layers
    return [
        replace(attention if rope else plain, indexer=replace(indexer, own=kind == "full"))
        for rope, kind in zip(turned, types, strict=True)
    ]


def hunyuan4(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Sparse latent attention with sinks and a gate per value (Hunyuan 4)."""
    # Constants of its hyper-connections, and where sinks begin.
    keys.known |= {"hc_eps", "hc_magnitude", "learnable_sink_init"}
    if not keys.content.get("indexer_types"):
        keys.content["indexer_types"] = ["full" if i == 0 or i % 4 == 1 else "shared" for i in range(len(windows))]
    return [replace(one, gate="value", sinks=True) for one in sparse_latent(keys, family, hidden, windows)]


def axk2(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Sparse latent attention with a gate per value that is projected with the queries (A.X-K2)."""
    return [replace(one, gate="query") for one in sparse_latent(keys, family, hidden, windows)]


_DOTS3 = {
    **{"num_attention_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "qk_nope_head_dim": 192},
    **{"qk_rope_head_dim": 64, "v_head_dim": 128},
}


def dots3(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """Latent attention with a gate per head: sparse, or with a window and sizes of its own (dots3-note)."""
    layers, types = len(windows), keys.strings("layer_types")
    types = types or [
        ("sliding" if i > 1 and i % 4 != 1 and keys.flag("use_sliding_window", True) else "indexed") + "_attention"
        for i in range(layers)
    ]
    keys.fixed("use_dsa", True, "no indexer")
    types = ["indexed_attention" if kind == "full_attention" else kind for kind in types]
    if set(types) - {"sliding_attention", "indexed_attention"} or len(types) != layers:
        problem = f"not sliding_attention or indexed_attention for each of {layers} layers"
        raise keys.error("layer_types", problem, "correct it")
    full = replace(latent_attention(keys, family), gate="head", rope_norm=True, indexer=read_indexer(keys))
    window = keys.integer("sliding_window", MAX_POSITIONS, None) or keys.integer(
        "sliding_window_size", MAX_POSITIONS, 512
    )
    # transformers 5 writes the sizes once more for every layer.
    described = list(keys.mapping("per_layer_config").values())
    if any(one != described[0] for one in described):
        raise keys.error("per_layer_config", "sliding layers differ", "only one kind of them is modelled")
    given = keys.inner("per_layer_config").inner(next(iter(keys.mapping("per_layer_config")), "0"))
    sizes = {
        name: given.integer(name, MAX_WIDTH, None) or keys.integer(f"swa_{name}", MAX_WIDTH, usual)
        for name, usual in _DOTS3.items()
    }
    keys.known |= {
        "sliding_window_size",
        "use_sliding_window",
        "swa_num_key_value_heads",
        "swa_head_dim",
        "swa_rope_theta",
    }
    heads, q_rank, *others = sizes.values()
    sliding = replace(LatentAttention(heads, q_rank, *others), gate="head", rope_norm=True, window=window)
    return [sliding if kind == "sliding_attention" else full for kind in types]


#: Tokens per compressed entry of DeepSeek-V4; the shorter ones overlap, and an indexer selects among them.
_RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def compressed(keys: ConfigKeys, family: ModelFamily, hidden: int, windows: Windows) -> list[Block]:
    """A window, and a past that is compressed by a ratio per layer (DeepSeek-V4)."""
    layers = len(windows)
    types = keys.strings("layer_types")
    ratios = [_RATIOS.get(kind) for kind in types] if types else keys.value("compress_ratios")
    if isinstance(ratios, list) and len(ratios) == layers + keys.integer("num_nextn_predict_layers", MAX_LAYERS, 0, 0):
        ratios = ratios[:layers]
    if not isinstance(ratios, list) or len(ratios) != layers or any(one not in _RATIOS.values() for one in ratios):
        key = "layer_types" if types else "compress_ratios"
        raise keys.error(key, f"not a ratio of 0, 4 or 128 for each of {layers} layers", "correct it")
    keys.fixed("compress_rates", {kind: one for kind, one in _RATIOS.items() if one}, "other ratios")
    keys.fixed("num_key_value_heads", 1, "more than one key/value head")
    # What follows from the others: the share of a head that is rotated.
    keys.known |= {
        *("partial_rotary_factor", "compress_ratios", "compress_rope_theta"),
        *("hc_eps", "hc_sinkhorn_iters", "expert_dtype"),
    }
    heads = keys.integer("num_attention_heads", MAX_HEADS)
    groups = divisor(keys, "o_groups", heads)
    dims = keys.integer("head_dim", MAX_WIDTH), keys.integer("qk_rope_head_dim", MAX_WIDTH)
    ranks = keys.integer("q_lora_rank", MAX_WIDTH), groups, keys.integer("o_lora_rank", MAX_WIDTH)
    plain = CompressedAttention(heads, *dims, *ranks, keys.integer("sliding_window", MAX_POSITIONS))
    indexer = read_indexer(keys)
    kinds = {0: plain, 4: replace(plain, ratio=4, overlap=True, indexer=indexer), 128: replace(plain, ratio=128)}
    return [kinds[ratio] for ratio in ratios]
