"""Tables that studies read, by the columns that they must have."""

from __future__ import annotations

from collections.abc import Callable

#: Tables by the columns that they must have: what they are, study, and the case's inputs for the file's name.
TABLES: tuple[tuple[str, set[str], str, Callable[[str], dict]], ...] = (
    ("table of probe overheads", {"operator", "probe", "slowdown_ratio"}, "kernel_overhead", lambda f: {"table": f}),
    ("table of memory use", {"model", "batch_size", "use"}, "memory_usage", lambda f: {"table": f}),
    ("table of exposed latencies", {"probe", "ncu_ratio", "neutrino_ratio"}, "exposed_latency", lambda f: {"table": f}),
    ("table of exposed latencies", {"probe", "neutrino_ms", "ncu_ms"}, "exposed_latency", lambda f: {"table": f}),
    (
        "tidy table of metrics",
        {"kernel_class", "metric", "unit", "n_layer", "hidden_dim", "seq_len", "value"},
        "metric_sweep",
        lambda f: {"measurements": f},
    ),
    (
        "table of GEMM times",
        {"gemm_dtype", "m", "n", "k", "latency"},
        "kernel_time",
        lambda f: {"measurements": f, "gpu": None, "unit": "ms"},
    ),
    (
        "table of attention times",
        {"attn_dtype", "kv_cache_dtype", "batch_size", "isl", "latency"},
        "kernel_time",
        lambda f: {"attention": f, "gpu": None, "unit": "ms"},
    ),
    (
        "table of mixture-of-experts times",
        {"moe_dtype", "num_tokens", "topk", "num_experts", "latency"},
        "kernel_time",
        lambda f: {"moe": f, "gpu": None, "unit": "ms"},
    ),
    (
        "table of collective times",
        {"num_gpus", "message_size", "latency"},
        "kernel_time",
        lambda f: {"collectives": f, "gpu": None, "unit": "ms"},
    ),
    (
        "table of normalization kernels",
        {"kernel", "rows", "length", "cache", "time_median_ns"},
        "normalization_roofline",
        lambda f: {"rows": f, "gpu": None},
    ),
    (
        "points of a distribution of warps",
        {"completed_percent", "elapsed_cycles"},
        "warp_scheduling",
        lambda f: {"cdf": f},
    ),
    (
        "measured steps of served models",
        {"isl", "osl", "batch_size", "tp_size", "system", "model_path"},
        "serving_time",
        lambda f: {"runs": f, "gpu": None},
    ),
)
