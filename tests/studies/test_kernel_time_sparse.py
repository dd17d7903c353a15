"""Measured kernels and whole blocks of sparse attention, read and judged."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from own_cases import own_case, reduced
from transformer_counts import sizes

from gpuledger.errors import InputError
from gpuledger.models.time_model.attention import sparse_law
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.sparse import read_sparse
from gpuledger.studies.kernel_time import engine_prediction
from gpuledger.studies.kernel_time.engine_reduction import _prepared
from gpuledger.studies.kernel_time.module_measurements import block_of, read_models, read_modules
from gpuledger.studies.kernel_time.module_prediction import BlockConstants, block_times, predict_blocks

H200 = find_gpu("h200-sxm")
RNG = np.random.default_rng(7)
MODEL = "maker/Sparse-1"
CONFIG = {
    **sizes("deepseek_v32", 4096, 1, 64, 64, 8192, 1000, tie_word_embeddings=False, max_position_embeddings=163840),
    **{"first_k_dense_replace": 1, "moe_intermediate_size": 1024, "n_routed_experts": 8, "num_experts_per_tok": 2},
    **{"n_shared_experts": 1, "q_lora_rank": 1024, "kv_lora_rank": 512, "qk_nope_head_dim": 128},
    **{"qk_rope_head_dim": 64, "v_head_dim": 128, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048},
}
COMPRESSED = {
    **{"model_type": "deepseek_v4", "hidden_size": 4096, "vocab_size": 1000, "num_hidden_layers": 2},
    **{"num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "moe_intermediate_size": 1024},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "qk_rope_head_dim": 64},
    **{"q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "index_head_dim": 128, "index_n_heads": 64},
    **{"index_topk": 512, "sliding_window": 128, "hc_mult": 4, "compress_ratios": [128, 4]},
    "max_position_embeddings": 1048576,
}


def opened(folder, inputs):
    return own_case(folder, "kernel_time", inputs | {"gpu": "h200-sxm", "unit": "ms"})


def kernels(operation="glm5_dsa_attn_module", count=500, **values):
    sizes = {"batch_size": RNG.choice([1, 2, 16, 64], count), "isl": RNG.choice([1, 7, 128, 1000, 4096], count)}
    sizes |= {"step": RNG.integers(0, 100_000, count), "num_heads": 64, "kernel_source": "made up"}
    return pd.DataFrame(sizes).assign(**{"op_name": operation, "latency": 0.05} | values).drop_duplicates()


def blocks(count=400, phase="generation", **values):
    sizes = {"batch_size": 2 ** RNG.integers(0, 8, count), "num_heads": RNG.choice([8, 64], count)}
    new = np.ones(count, dtype=int) if phase == "generation" else RNG.choice([256, 1024, 4096], count)
    sizes |= {"isl": new, "step": RNG.integers(1, 60_000, count), "kernel_source": "made up", "framework": "TRTLLM"}
    names = {"op_name": f"dsa_{phase}_module", "model": MODEL, "gemm_type": "bfloat16", "kv_cache_dtype": "fp8"}
    return pd.DataFrame(sizes).assign(**names | {"latency": 0.2} | values).drop_duplicates()


def of_blocks(folder, table, config=CONFIG):
    file = folder / "configs" / f"{MODEL.replace('/', '--')}_config.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(config), "utf-8")
    table.to_csv(folder / "table.csv", index=False)
    return opened(folder, {"modules": "table.csv", "configs": "configs"})


@pytest.mark.parametrize(
    ("name", "operation", "constants"),
    [
        ("glm5_dsa_attn_module", "attention", {"padded": 64, "tensor_share": 0.6, "skipped_share": 0.8}),
        ("glm5_mqa_logits_module", "scores", {"tensor_share": 0.5}),
        ("dsv4_paged_mqa_logits_module", "decode scores", {"tensor_share": 0.4, "chunk": 256}),
        ("glm5_topk_module", "top-k", {"l2_bytes_per_clock": 9.0}),
    ],
)
def test_a_made_up_kernel_comes_out_again(tmp_path, name, operation, constants):
    truth = replace(sparse_law.start_of(operation), **constants)
    table = kernels(name)
    table.to_csv(tmp_path / "table.csv", index=False)
    case = opened(tmp_path, {"sparse": "table.csv"})
    rows = _prepared(H200, read_sparse(tmp_path / "table.csv", "ms")[0])
    kind = engine_prediction.kind_of(operation)
    rows["latency"] = 1e3 * engine_prediction.terms(H200, kind, truth, rows)["time_s"]
    written = {"requests": "batch_size", "tokens": "isl", "context": "step"}
    written = rows[[*written, "latency"]].rename(columns=written)
    written.assign(op_name=name, kernel_source="made up", num_heads=64).to_csv(tmp_path / "table.csv", index=False)
    result = reduced(case)
    group = "" if operation in ("attention", "top-k") else "_fp8"
    assert result[f"mape_held_back_percent{group}"] < 1.5 < result[f"mape_roofline_percent{group}"]
    assert result[f"mape_held_back_percent{group}"] < result[f"mape_lookup_percent{group}"]
    assert "kernels of sparse attention" in result.finding


def test_a_selection_of_equal_scores_or_of_nothing_is_left_out(tmp_path):
    table = kernels("glm5_topk_module", 40, score_mode="top_last")
    equal = table.assign(score_mode="flat", latency=9.0)
    nothing = table.iloc[:5].assign(step=0, isl=1, latency=0.0)
    other = table.iloc[:5].assign(op_name="glm6_topk_module")
    pd.concat([table, equal, nothing, other]).to_csv(tmp_path / "table.csv", index=False)
    frame, skipped = read_sparse(tmp_path / "table.csv", "ms")
    assert len(frame) == len(table) and skipped == ["glm6_topk_module"]
    assert (frame["measured_s"] == 5e-5).all() and (frame["operator"] == "top-k").all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"op_name": "glm5_nothing"}, "no known operation"),
        ({"batch_size": 0}, "not a whole number from 1"),
        ({"batch_size": 2**20, "isl": 2**20}, r"more than 2\^31 tokens"),
        ({"step": -1}, "not a whole number from 0"),
        ({"latency": 0.0}, "not a positive number"),
        ({"latency": "9" * 400}, "not a positive number"),
        ({"latency": 1e-9}, "shorter than the data sheet"),
    ],
)
def test_hostile_kernels_are_refused_in_one_line(tmp_path, changed, message):
    kernels(count=80).assign(**changed).to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(InputError, match=message):
        reduced(opened(tmp_path, {"sparse": "table.csv"}))


@pytest.mark.parametrize("phase", ["generation", "context"])
def test_made_up_blocks_come_out_again(tmp_path, phase):
    case = of_blocks(tmp_path, blocks(phase=phase, kv_cache_dtype="bfloat16"))
    frame, skipped = read_modules(case, tmp_path / "table.csv")
    assert not skipped and set(frame["precision"]) == {"decode attention" if phase == "generation" else "attention"}
    parts = predict_blocks(H200, read_models(case, tmp_path / "table.csv", frame), frame)
    assert parts.sparse.all(), "TensorRT-LLM on Hopper"
    truth = BlockConstants(4e-6, 3e-6, 0.5, 0.0, 0.7, 0.0, 64, besides_s=2e-5)
    times = block_times(H200, parts, truth)
    names = {"heads": "num_heads", "requests": "batch_size", "tokens": "isl", "context": "step", "model": "model"}
    names |= {"framework": "framework", "kernel": "kernel_source"}
    same = {"op_name": f"dsa_{phase}_module", "gemm_type": "bfloat16", "kv_cache_dtype": "bfloat16"}
    case = of_blocks(tmp_path, frame[[*names]].rename(columns=names).assign(latency=1e3 * times, **same))
    result = reduced(case)
    assert result["mape_held_back_percent"] < 1.5 < result["mape_shipped_percent"]
    assert result["mape_held_back_percent"] < result["mape_lookup_percent"] and result["launched_by_host"] == "none"
    assert {"attention", "other kernels"} >= set(result.data["bound"])


def test_blocks_that_the_host_launches_are_told_apart(tmp_path):
    steps = blocks(900, framework="SGLang", kernel_source="sglang", latency=0.1)
    steps["latency"] = np.where(steps["batch_size"] > 32, 0.9, 0.1 + 1e-3 * steps["batch_size"])
    case = of_blocks(tmp_path, steps)
    frame = read_modules(case, tmp_path / "table.csv")[0]
    assert (frame["eager"] == (frame["requests"] > 32)).all()
    assert set(frame["group"]) == {"16-bit", "16-bit, eager"}
    result = reduced(case)
    assert result["launched_by_host"] == "sglang, decode attention with fp8 cache, 16-bit, eager (900 µs)"
    assert result["mape_held_back_percent_16_bit_eager"] < 1
    prompts = read_modules(of_blocks(tmp_path, blocks(phase="context", framework="VLLM")), tmp_path / "table.csv")[0]
    assert prompts["eager"].all()


def test_what_a_benchmark_leaves_out_is_not_predicted(tmp_path):
    flop, steps = {}, blocks(30, batch_size=1, num_heads=8)
    for framework in ("TRTLLM", "SGLang"):
        case = of_blocks(tmp_path, steps.assign(framework=framework))
        frame = read_modules(case, tmp_path / "table.csv")[0]
        models = read_models(case, tmp_path / "table.csv", frame)
        flop[framework] = predict_blocks(H200, models, frame).flop
        reused = predict_blocks(H200, models, frame.assign(selects=False)).flop
        assert (reused < flop[framework]).all(), "without the indexer"
    # 2 FLOP for every weight of the compression: hidden x (1024 + 512 + 64).
    assert (flop["TRTLLM"] - flop["SGLang"] == 2 * 4096 * 1600).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"op_name": "mla_generation_module"}, "no known block"),
        ({"gemm_type": "fp3"}, "no known block"),
        ({"model": "maker/Other"}, "no configuration of maker/Other"),
        ({"isl": 2}, "new tokens in a decode step"),
        ({"num_heads": 4096}, "not a whole number from 1 to"),
        ({"batch_size": 2**20, "step": 2**20}, r"more than 2\^31 tokens"),
        ({"latency": "fast"}, "not a positive number"),
        ({"latency": 1e-6}, "shorter than the data sheet"),
    ],
)
def test_hostile_blocks_are_refused_in_one_line(tmp_path, changed, message):
    case = of_blocks(tmp_path, blocks(120).assign(**changed))
    with pytest.raises(InputError, match=message):
        reduced(case)


def test_too_few_blocks_and_models_without_an_indexer_are_refused(tmp_path):
    case = of_blocks(tmp_path, blocks(12))
    with pytest.raises(InputError, match="no kernel has 20 blocks"):
        reduced(case)
    dense = {name: value for name, value in CONFIG.items() if not name.startswith("index_")}
    file = tmp_path / "configs" / f"{MODEL.replace('/', '--')}_config.json"
    file.write_text(json.dumps(dense | {"model_type": "deepseek_v3"}), "utf-8")
    with pytest.raises(InputError, match="no layer with dsa"):
        reduced(case)


@pytest.mark.parametrize("kind", ["csa", "hca"])
@pytest.mark.parametrize("phase", ["generation", "context"])
def test_made_up_blocks_of_compressed_sequences_come_out_again(tmp_path, kind, phase):
    same = {"op_name": f"dsv4_{kind}_{phase}_module", "gemm_type": "fp8_block", "kv_cache_dtype": "fp8"}
    case = of_blocks(tmp_path, blocks(phase=phase, **same), COMPRESSED)
    frame = read_modules(case, tmp_path / "table.csv")[0]
    assert not frame["eager"].any()
    models = read_models(case, tmp_path / "table.csv", frame)
    ((_, group),) = models.values()
    assert block_of(group, 8, True).attention.out_groups == 1, "one device of eight"
    parts = predict_blocks(H200, models, frame)
    assert parts.sparse.all() and parts.operation.endswith("compressed attention")
    assert parts.ranks.any() == (kind == "csa")
    truth = BlockConstants(4e-6, 6e-6, 0.5, 0.0, 0.7, 0.0, 64, besides_s=2e-5, rank_s=3e-11 * (kind == "csa"))
    names = {"heads": "num_heads", "requests": "batch_size", "tokens": "isl", "context": "step", "model": "model"}
    names |= {"framework": "framework", "kernel": "kernel_source"}
    table = frame[[*names]].rename(columns=names).assign(latency=1e3 * block_times(H200, parts, truth), **same)
    result = reduced(of_blocks(tmp_path, table, COMPRESSED))
    held_back = result["mape_held_back_percent_fp8_block"]
    assert held_back < 1.5 < result["mape_shipped_percent_fp8_block"]
    assert ("rank" in result["constants"]) == (kind == "csa")


def test_only_selections_among_equal_scores_are_ranked(tmp_path):
    steps = blocks(8, op_name="dsv4_csa_generation_module").iloc[:4]
    # 512, 1024, 2500 and 40,000 entries, of which 512 are selected.
    steps = steps.assign(batch_size=1, num_heads=64, step=[2047, 4095, 9999, 159_999])
    squares = {"TRTLLM": [0, 1024**2, 0, 0], "SGLang": [0, 1024**2, 1024**2, 0], "VLLM": [0, 0, 0, 0]}
    for framework, expected in squares.items():
        case = of_blocks(tmp_path, steps.assign(framework=framework), COMPRESSED)
        frame = read_modules(case, tmp_path / "table.csv")[0]
        ranks = predict_blocks(H200, read_models(case, tmp_path / "table.csv", frame), frame).ranks
        assert ranks == pytest.approx(np.array(expected), rel=2e-3)


def test_made_up_blocks_of_selected_blocks_of_keys_come_out_again(tmp_path):
    settings = {"use_sparse_attention": True, "sparse_score_type": "max", "sparse_init_block": 0}
    settings |= {"sparse_num_index_heads": 4, "sparse_index_dim": 128, "sparse_block_size": 128}
    latent = ("index", "kv_lora", "q_lora", "qk_", "v_head", "n_routed")
    config = {name: value for name, value in CONFIG.items() if not name.startswith(latent)}
    config |= {"model_type": "minimax_m3", "head_dim": 128, "num_key_value_heads": 4, "rotary_dim": 64}
    config |= {"sparse_attention_config": settings | {"sparse_topk_blocks": 16}, "dense_intermediate_size": 8192}
    config |= {"num_local_experts": 8, "intermediate_size": 1024, "moe_layer_freq": [1], "scoring_func": "sigmoid"}
    config |= {"shared_intermediate_size": 1024, "first_k_dense_replace": 0}
    config |= {"qk_norm_type": "per_head", "use_qk_norm": True, "hidden_act": "swigluoai", "use_routing_bias": True}
    same = {"op_name": "msa_context_module", "gemm_type": "bfloat16", "kv_cache_dtype": "bfloat16"}
    case = of_blocks(tmp_path, blocks(phase="context", framework="VLLM", **same), config)
    frame = read_modules(case, tmp_path / "table.csv")[0]
    assert set(frame["precision"]) == {"block attention"} and not frame["eager"].any(), "in a graph"
    models = read_models(case, tmp_path / "table.csv", frame)
    ((_, group),) = models.values()
    shared = block_of(group, 8, True).attention
    assert (shared.kv_heads, shared.indexer.heads) == (1, 1), "the least that a device has"
    parts = predict_blocks(H200, models, frame)
    truth = BlockConstants(4e-6, 5e-7, 0.4, 0.0, 0.5, 0.0, 64, besides_s=2e-5)
    names = {"heads": "num_heads", "requests": "batch_size", "tokens": "isl", "context": "step", "model": "model"}
    names |= {"framework": "framework", "kernel": "kernel_source"}
    table = frame[[*names]].rename(columns=names).assign(latency=1e3 * block_times(H200, parts, truth), **same)
    result = reduced(of_blocks(tmp_path, table, config))
    assert result["mape_held_back_percent"] < 1.5 < result["mape_shipped_percent"]
    eager = of_blocks(tmp_path, blocks(phase="context", framework="SGLang", **same), config)
    assert read_modules(eager, tmp_path / "table.csv")[0]["eager"].all()
