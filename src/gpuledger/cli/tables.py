"""Tables that studies read, by the columns that they must have."""

from collections.abc import Collection
from typing import Any

# What a table is, its columns, its study and key, and what else a case has; None is left for the user to fill in.
_GPU, _TIMES = {"gpu": None}, {"gpu": None, "unit": "ms"}
# Whose latencies they are: the paper's artifact says Neutrino's.
_PROBES = ("probed", "neutrino")
_TABLES = (
    ("table of probe overheads", "operator probe slowdown_ratio", "kernel_overhead table", {}),
    ("table of memory use", "model batch_size use", "memory_usage table", {}),
    *(("table of exposed latencies", f"probe ncu_ratio {tool}_ratio", "exposed_latency table", {}) for tool in _PROBES),
    *(
        ("table of exposed latencies", f"probe {tool}_{unit} ncu_{unit}", "exposed_latency table", {})
        for tool in _PROBES
        for unit in ("ms", "us", "ns", "s")
    ),
    ("tidy table of metrics", "kernel_class metric n_layer hidden_dim seq_len value", "metric_sweep measurements", {}),
    ("table of GEMM launches", "gemm_dtype m n k kernel grid_x grid_y", "gemm_tiles launches", _GPU),
    ("table of GEMM times", "gemm_dtype m n k latency", "kernel_time measurements", _TIMES),
    (
        "table of matrix products on many GPUs",
        "run gpu precision m n k tflop_per_s same_operands",
        "kernel_time products",
        {},
    ),
    (
        "table of attention on many GPUs",
        "run gpu library pass precision causal requests queries keys heads kv_heads key_dim value_dim",
        "kernel_time attention_runs",
        {},
    ),
    (
        "table of cutlass_profiler's GEMMs",
        "Provider OperationKind m n k A B Runtime",
        "kernel_time measurements",
        _TIMES,
    ),
    ("table of attention times", "attn_dtype kv_cache_dtype batch_size isl latency", "kernel_time attention", _TIMES),
    (
        "table of times of attention blocks (of kernels in them: key sparse)",
        "architecture gemm_type mla_dtype batch_size isl latency",
        "kernel_time modules",
        {"configs": None, **_TIMES},
    ),
    (
        "table of latent attention's times",
        "mla_dtype kv_cache_dtype batch_size isl step latency",
        "kernel_time attention",
        _TIMES,
    ),
    ("table of encoders' times", "attn_dtype head_dim batch_size isl latency", "kernel_time attention", _TIMES),
    ("table of quantisation times", "quant_dtype m k latency", "kernel_time quantise", _TIMES),
    ("table of times of batched products", "bmm_dtype num_tokens num_heads latency", "kernel_time batched", _TIMES),
    ("table of GEMM rates", "gemm_dtype m n k rate", "kernel_time measurements", {"gpu": None, "unit": "TFLOP/s"}),
    (
        "table of mixture-of-experts times",
        "moe_dtype num_tokens inter_size num_experts latency",
        "kernel_time moe",
        _TIMES,
    ),
    ("table of collective times", "num_gpus message_size latency", "kernel_time collectives", _TIMES),
    (
        "table of times of linear attention or SSMs",
        "op_name kernel_source phase batch_size seq_len d_conv latency",
        "kernel_time recurrent",
        _TIMES,
    ),
    (
        "Vidur's times of operators",
        "time_stats.input_layernorm.median num_tokens num_tensor_parallel_workers",
        "kernel_time operators",
        _TIMES,
    ),
    (
        "LLMServingSim's times of layers",
        "layer_name input kv_cache tp_size latency(ns)",
        "kernel_time layers",
        {"model": None, "gpu": None, "unit": "ns"},
    ),
    (
        "Liger's benchmarks",
        "kernel_name kernel_provider metric_name x_value y_value_50 gpu_name",
        "normalization_roofline benchmark",
        {"kernel": None, "device": None, **_GPU},
    ),
    ("table of normalization kernels", "kernel rows cache time_median_ns", "normalization_roofline rows", _GPU),
    ("table of power readings", "kernel precision flop bytes time_us power_w", "kernel_power readings", _GPU),
    ("points of a distribution of warps", "completed_percent elapsed_cycles", "warp_scheduling cdf", {}),
    ("measured steps of served models", "isl osl batch_size tp_size system model_path", "serving_time runs", _GPU),
    ("measured steps of training runs", "model gpu sequence_tokens micro_batch", "training_time runs", _GPU),
)


def find_table(columns: Collection[str], file: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return what a table with these columns is, and by study the inputs of a case that reads it; empty if unknown."""
    have = {column.strip().lower() for column in columns}
    for title, needed, place, others in _TABLES:
        if set(needed.lower().split()) <= have:
            study, key = place.split()
            return title, {study: {key: file, **others}}
    return "", {}


def nearly_a_table(columns: Collection[str]) -> str:
    """Say what a table with these columns would be if one or two of them were there; empty if nothing is near."""
    have = {column.strip().lower() for column in columns}
    for title, needed, *_ in _TABLES:
        missing = [column for column in needed.split() if column.lower() not in have]
        if len(missing) <= min(2, len(needed.split()) - 3):
            return f"nearest: {title}, which would need the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
    return ""
