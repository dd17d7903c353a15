"""The texts of docs/ and of the notebooks say what the tracked summaries hold."""

import json
import re
from collections import Counter

import pandas as pd
import pytest

from gpuledger.ledger.datasets import Repository
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.serving_time.parallelism import WORKLOAD, averages, choices

TIMES, RUNS = "aiconfigurator/kernel_time", "aiconfigurator/serving_time"
PRODUCTS = "published-gemms/kernel_time/products"
ENGINES = "aiconfigurator/engine_comparison"
EXPECTED = [
    ("published/flop_reconciliation/toy_network", "forward_total_flops", "{:,}"),
    ("published/flop_reconciliation/toy_network", "backward_total_flops", "{:,}"),
    ("published/flop_reconciliation/toy_network", "counts_predicted_exact", "of 18 counts {} predicted exactly"),
    ("published/flop_reconciliation/toy_network", "counts_explained", "and {} explained"),
    ("linear-a100/flop_reconciliation/linear", "tiled_exact", "{:,} of 1,207 tiled GEMMs"),
    ("linear-a100/flop_reconciliation/linear", "reduce_exact", "{} of 298 split-K reductions"),
    ("linear-a100/flop_reconciliation/linear", "mape_2mnk_percent", "2·M·N·K {:.2f} %"),
    ("published/kernel_breakdown/llama-3.1-8b-source", "prefill_macs_per_layer", "{:,} MACs per layer"),
    (f"{TIMES}/gemm_a100_vllm", "mape_held_back_percent", "A100: {:.1f}"),
    (f"{TIMES}/gemm_a100_vllm", "median_held_back_percent", "and {:.1f} % (naive"),
    (f"{TIMES}/gemm_a100_vllm", "mape_lookup_percent", "fitted half {:.1f})"),
    (f"{TIMES}/gemm_h100_vllm", "mape_held_back_percent", "H100: {:.1f}"),
    (f"{TIMES}/gemm_h100_vllm", "median_held_back_percent", "and {:.1f} % (44"),
    (f"{TIMES}/gemm_h100_vllm", "mape_lookup_percent", ", {:.1f}) |"),
    (f"{TIMES}/gemm_a100_vllm", "mape_roofline_held_back_percent", "(naive roofline {:.1f}, look-up"),
    (f"{TIMES}/gemm_h100_vllm", "mape_roofline_held_back_percent", "% ({:.1f}, 6.3)"),
    (f"{TIMES}/every_table", "kernels", "Half of the {:,} kernels"),
    (f"{TIMES}/every_table", "kernels_within_20_percent", "{:.1f} % of them within 20"),
    (f"{TIMES}/every_table", "mape_percent", "| {:.1f} % over"),
    (f"{TIMES}/every_table", "shapes_held_back", "over {:,} held-back"),
    (f"{TIMES}/every_table", "unseen_percent", "other GPUs only {:.1f} %"),
    (f"{TIMES}/every_table", "roofline_percent", "roofline {:.1f} % |"),
    *(
        (f"{ENGINES}/decode_h100", f"bf16_fp8_cache_tensorrt_llm_1_3_0rc20_{name}", form)
        for name, form in (
            ("faster_percent", "TensorRT-LLM for {:.0f} % of 10,666 shapes"),
            ("shapes", "of {:,} shapes, SGLang"),
        )
    ),
    (f"{ENGINES}/gemm_h100", "fp8_block_sglang_0_5_14_faster_percent", "SGLang for {:.0f} %, TensorRT"),
    (f"{ENGINES}/gemm_h100", "fp8_block_sglang_0_5_14_shapes", "4 % of {:,} |"),
    (f"{ENGINES}/moe_h100_trtllm", "shapes", "36 % of {:,} layers"),
    ("aiconfigurator/expert_tiles/h100_sglang", "bf16_gain", "{:.2f} times the next widths' rate"),
    ("aiconfigurator/expert_tiles/h100_vllm", "bf16_gain", "larger defaults: {:.2f} times"),
    *(
        (f"{RUNS}/parallelism", f"{name}_percent", form)
        for name, form in (
            ("predicted", "{:.1f} % (mean of 170 workloads"),
            ("fewest_met", "against {:.1f} % of the fewest"),
            ("fewest", "always the fewest attain {:.1f},"),
            ("most", "always the most {:.1f},"),
            ("any", "a random one {:.1f} %"),
            ("best_chosen", "chosen for {:.1f} % of the objectives"),
            ("best_by_chance", "(by chance {:.1f} %)"),
        )
    ),
    (f"{RUNS}/parallelism", "workloads", "mean of {} workloads on four GPUs"),
    *(
        ("aiconfigurator/kernel_power/b200_vllm", name, form)
        for name, form in (
            ("static", "| {:.0f} W, 0.98 and"),
            ("bf16_flop", "W, {:.2f} and 0.64 pJ"),
            ("fp8_flop", "and {:.2f} pJ per FLOP"),
            ("dram_byte", "{:.0f} pJ per byte;"),
            ("median_error_percent", "held-back layers {:.1f} %"),
            ("steady_readings", "{:,} of 46,902"),
            ("experts_readings", "of {:,} readings of experts are steady"),
        )
    ),
    (f"{RUNS}/gb200", "tpot_median_error_unfitted_percent", "only six such runs, with {:.1f}"),
    ("tracelens/kernel_breakdown/b200_888", "kernels", "B200: {} kernels"),
    ("tracelens/kernel_breakdown/b200_888", "matched_percent", "{:.1f} % matched; H100"),
    ("tracelens/kernel_breakdown/h100_16x559", "kernels", "H100: {:,} kernels"),
    ("tracelens/kernel_breakdown/h100_16x559", "dropped_kernels", "{} of the step before left out"),
    ("tracelens/kernel_breakdown/mi300x_decode", "matched_percent", "{:.1f} % matched |"),
    ("attention-a100/kernel_profile/bert", "launches", "{} launches, 58.05 µs"),
    ("published/kernel_overhead/table2", "lightweight_slowdown_mean", "{:.4f}, "),
    ("published/kernel_overhead/table2", "dmat_slowdown_mean", ", {:.4f};"),
    ("published/kernel_overhead/table2", "lightweight_registers_mean", "+{:.3f}, "),
    ("published/kernel_overhead/table2", "dmat_registers_mean", ", +{:.3f}, "),
    ("published/kernel_overhead/table2", "registers_mean", ", +{:.2f} registers"),
    ("published/warp_scheduling/fig13a", "tail_ratio", "tail {:.2%} exclusive"),
    ("published/warp_scheduling/fig13b", "tail_ratio", "{:.2%} shared"),
    ("published/warp_scheduling/fig17a", "tail_ratio", "tail {:.2%} exclusive"),
    ("published/warp_scheduling/fig17b", "tail_ratio", "{:.2%} shared"),
    ("simulated/block_scheduling/zeros_4096", "blocks", "{:,} blocks"),
    ("simulated/block_scheduling/zeros_4096", "neutrino_lost_percent", "{:.1f} % by the upstream estimator"),
    ("simulated/block_scheduling/zeros_4096", "lost_percent", "{:.1f} % by pairing slots"),
]


def text_of(root, page):
    text = (root / page).read_text("utf-8")
    if page.endswith(".ipynb"):
        text = " ".join(
            "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
        )
    return " ".join(text.split())


def data_of(root, folders):
    files = [root / f"results/{folder}/data.parquet" for folder in folders]
    if not all(file.is_file() for file in files):
        pytest.skip("the median of all runs needs their data, which is not tracked: make the default target first")
    return pd.concat(map(pd.read_parquet, files))


def summary(root, folder):
    return json.loads((root / "results" / folder / "summary.json").read_text("utf-8"))


@pytest.mark.parametrize(("folder", "quantity", "form"), EXPECTED)
def test_the_appendix_expects_what_is_tracked(root, folder, quantity, form):
    value = summary(root, folder)[quantity]["value"]
    words = form.format(value).replace("%", " %").replace("  %", " %")  # as it is written: 8.19 %
    text = (root / "docs/ARTIFACT.md").read_text("utf-8").replace("**", "")
    assert words in text, f"docs/ARTIFACT.md does not have '{words}'"


MPT, STEPS, TRAINED = (
    "published/training_time/mpt",
    "nvidia-h100-training/kernel_breakdown",
    "notebooks/training_time.ipynb",
)
#: By page and folder of results, sentences with the quantities that they state (of s in ms, of ns in µs).
SENTENCES = {
    ("docs/MODELS.md", f"{TIMES}/every_table"): [
        "the mean error of {kernels:,} kernels falls",
        "half of its 109 kernels err by at most {mape_percent_rtx_pro_6000:.1f} % in the mean",
        "with other GPUs' constants {unseen_percent_rtx_pro_6000:.1f};",
    ],
    ("docs/MODELS.md", "nvidia-h200-gemm/gemm_tiles/cublas"): [
        "{ruled_tile_held_back_percent:.0f} % of held-back shapes in bf16 (waves {ruled_waves_held_back_percent:.0f}",
        "for {ruled_tile_held_back_percent_fp8_static:.0f} % in fp8 ({ruled_waves_held_back_percent_fp8_static:.0f} %)",
        "the launched one for {same_tile_percent:.0f} and {same_tile_percent_fp8_static:.0f} % of all",
        "(fitted to {splits_told:,} launches",
    ],
    ("docs/MODELS.md", "nvidia-h200-gemm/kernel_time/gemm"): [
        "shapes: {mape_held_back_percent:.1f} % in bf16, {mape_held_back_percent_fp8_static:.1f} in fp8",
    ],
    ("docs/MODELS.md", "nvidia-h200/kernel_time/attention"): [
        "constants the mean error is {mape_unseen_percent:.1f} %, with its own {mape_held_back_percent:.1f} %",
    ],
    ("docs/MODELS.md", PRODUCTS): ["Half of the runs are now within {run_mape_percent_16_bit_other_gpu:.1f} %."],
    ("docs/MODELS.md", "published-attention/kernel_time/attention"): [
        "{kernels} kernels on {gpus} GPUs, six of them",
        "(15.6 instead of {run_mape_percent_fp8_other_kernel:.1f} %)",
    ],
    ("docs/MODELS.md", f"{RUNS}/h200"): ["(6.6 to {disagg_tpot_median_error_unfitted_percent:.1f} %), those of"],
    ("docs/MODELS.md", f"{RUNS}/gb200"): ["with 9.2 and {disagg_tpot_median_error_unfitted_percent:.1f} % instead"],
    ("docs/MODELS.md", f"{RUNS}/gb300"): ["with {disagg_tpot_median_error_unfitted_percent:.1f} and 8.9 % instead"],
    ("docs/MODELS.md", "aiconfigurator/kernel_power/b200_vllm"): [
        "half | {static:.0f} W | {bf16_flop:.2f} pJ | {fp8_flop:.2f} pJ | {dram_byte:.0f} pJ | {most:.0f} W |",
        "| {static_other_half:.0f} W | {bf16_flop_other_half:.2f} pJ | {fp8_flop_other_half:.2f} pJ |",
        "| {dram_byte_other_half:.0f} pJ | {most_other_half:.0f} W |",
        "The median error on the other half is {median_error_percent:.1f} % (mean {mape_percent:.1f} %).",
        "Below the limit it is {median_error_below_limit_percent:.1f} %;",
        "one power for all layers has {constant_median_error_below_limit_percent:.0f} %",
        "6,395 readings has {lookup_median_error_below_limit_percent:.1f} %",
        "one sample ({one_sample_percent:.0f} % of all)",
        "are used: {steady_readings:,} of the {experts_readings:,} of experts",
    ],
    ("docs/MODELS.md", f"{MPT}_h100"): [
        "they are predicted {step_median_error_percent:.1f} % too short in the median",
        "attention at {attention_rate:.0f} (H100)",
    ],
    ("notebooks/kernel_time_published.ipynb", "published-gemms/kernel_time/sweep_h100"): [
        "the other half errs by {mape_held_back_percent:.1f} % in the mean",
    ],
    ("notebooks/serving_time_parallelism.ipynb", f"{RUNS}/parallelism"): [
        "only measurements tell, attain {fewest_met_percent:.1f} %",
    ],
    (TRAINED, f"{MPT}_h100"): [
        "they are predicted {step_median_error_percent:.1f} % too short in the median;",
        "At the law's clock, {slowed_clock:,.0f} MHz",
        "reached {attention_rate:.0f} TFLOP/s on the H100",
        "up to {attention_rate_predicted:.0f} TFLOP/s on an H100",
        "to {gemm_factor_other_half:.2f}, with attention at {attention_rate_other_half:.0f}, 100",
        "what these runs reached ({rule_median_error_percent:.1f} %)",
        "with at most {largest_memory_percent:.0f} % of the DRAM",
    ],
    (TRAINED, f"{MPT}_a100_80gb"): [
        "{attention_rate_predicted:.0f} on an A100 (Flash",
        "at 184, {attention_rate_other_half:.0f} and",
    ],
    (TRAINED, f"{MPT}_a100_40gb"): [
        "to {gemm_factor:.2f} times as long (fitted",
        "and {attention_rate_other_half:.1f} TFLOP/s). GEMMs",
    ],
    (TRAINED, f"{STEPS}/autocast"): [
        "*Elementwise* kernels take {elementwise_time:.1f} ms,",
        "listed are 1,663, predicted to take {elementwise_predicted_time:.1f} ms",
        "*The loss* takes {loss_time:.1f} ms instead of {loss_predicted_time:.1f}:",
        "*GEMMs* take {gemm_time:.1f} ms instead of {gemm_predicted_time:.1f},",
        "*the update* {update_time:.1f} instead of {update_predicted_time:.1f},",
        "*weights* {weights_time:.1f}, as predicted",
        "*No kernel* runs for {idle_percent:.0f} % of",
        "ms instead of {attention_time:.1f}, because",
    ],
    (TRAINED, f"{STEPS}/compile"): [
        "they would be 310 and take {elementwise_predicted_time:.1f} ms. Compiled, 301",
        "are left and take {elementwise_time:.1f} ms",
        "from memory. Compiled, it takes {loss_time:.1f} ms",
        "*Compiled*, attention takes {attention_time:.1f} ms",
    ],
    ("notebooks/block_scheduling.ipynb", "nvidia-h200/block_scheduling/zeros_4096"): [
        "own kernel takes {original_time:.1f} µs for the same tensor, a memset {memset_time:.1f} and a",
        "and a persistent kernel {persistent_time:.1f}: {persistent_saving_percent:.1f} % less",
        "where the gaps predict {gap_free_time_saving_percent:.1f} %",
    ],
    ("notebooks/exposed_latency.ipynb", "published/exposed_latency/fig12"): [
        "waits {probed_min:.1f} to {probed_max:.1f} times the kernel's time for Neutrino,",
        "and {ncu_min:.1f} to {ncu_max:.0f} times for Nsight Compute",
        "by a factor of {speedup_min:.1f} to {speedup_max:.1f}",
    ],
    ("notebooks/exposed_latency.ipynb", "nvidia-h200/exposed_latency/probes"): [
        "the ratios of {ncu_min:,.0f} to {ncu_max:,.0f} say",
    ],
}


@pytest.mark.parametrize(
    ("page", "folder", "form"), [(*where, form) for where, forms in SENTENCES.items() for form in forms]
)
def test_the_sentences_say_what_is_tracked(root, page, folder, form):
    factors = {"s": 1e3, "ns": 1e-3}
    values = {
        name: one["value"] * factors[one["unit"]] if one["unit"] in factors else one["value"]
        for name, one in summary(root, folder).items()
    }
    words = form.format(**values)
    assert words in text_of(root, page), f"{page} does not have '{words}'"


@pytest.mark.parametrize(
    ("folder", "quantity", "form", "factor"),
    [
        ("linear-a100/flop_reconciliation/linear", "mape_2mnk_percent", "misses {:.1f} % of what", 1),
        ("linear-a100/flop_reconciliation/linear", "tiled_exact", "[{:,.0f} GEMMs]", 1),
        (f"{TIMES}/every_table", "kernels", "[{:,.0f} measured kernels]", 1),
        (f"{TIMES}/every_table", "mape_percent", "within {:.1f} % of their", 1),
        (f"{TIMES}/every_table", "unseen_percent", "within {:.1f} % with constants of other", 1),
        (f"{TIMES}/every_table", "kernels_unseen", "of {:,.0f} of them within", 1),
        (f"{TIMES}/every_table", "roofline_percent", "roofline, which knows no launches, errs by {:.1f} %", 1),
        (PRODUCTS, "products", "[{:,.0f} matrix products]", 1),
        (PRODUCTS, "gpus", "published for {:.0f} GPUs", 1),
        (PRODUCTS, "run_mape_percent_16_bit_own", "within {:.1f} % by a GPU's own", 1),
        (PRODUCTS, "run_roofline_percent_16_bit_own", "(roofline: {:.0f} and", 1),
        (PRODUCTS, "runs_fp32_other_gpu", "half of {:.0f} others", 1),
        (PRODUCTS, "run_mape_percent_fp32_other_gpu", "are within {:.1f} % instead of 27.4", 1),
        (PRODUCTS, "runs_16_bit_other_gpu", "half of {:.0f} are", 1),
        (PRODUCTS, "run_mape_percent_16_bit_other_gpu", "are within {:.1f} %.", 1),
        (f"{RUNS}/parallelism", "predicted_percent", "serves {:.0f} % of the best measured", 1),
        (f"{RUNS}/parallelism", "fewest_met_percent", "turned out fast enough serve {:.0f} %", 1),
        (f"{RUNS}/parallelism", "workloads", "in {:.0f} workloads", 1),
        ("aiconfigurator/expert_tiles/h100_sglang", "bf16_tuned_prompt", "process prompts at {:.0f} TFLOP/s", 1e-12),
        ("aiconfigurator/expert_tiles/h100_sglang", "bf16_default_prompt", "at {:.0f} where nobody", 1e-12),
        ("aiconfigurator/kernel_power/b200_vllm", "steady_readings", "{:,.0f} of 46,902", 1),
        ("aiconfigurator/kernel_power/b200_vllm", "experts_readings", "12,610 of {:,.0f}", 1),
    ],
)
def test_the_findings_are_what_is_tracked(root, folder, quantity, form, factor):
    words = form.format(factor * summary(root, folder)[quantity]["value"])
    assert words in text_of(root, "docs/FINDINGS.md"), words


@pytest.mark.parametrize(
    ("extreme", "form"), [("min", "at {:.0f} to 98 % of the speed"), ("max", "to {:.0f} % of the speed")]
)
def test_the_findings_say_how_fast_rows_from_dram_are_normalised(root, extreme, form):
    shares = [
        entry["value"]
        for element in ("bf16", "fp16")
        for name, entry in summary(root, f"nvidia-h200/normalization_roofline/measured_{element}").items()
        if re.fullmatch(r"one_pass_\d+x(?!131072)\d+_cold_copy_percent", name)
    ]
    assert form.format({"min": min, "max": max}[extreme](shares)) in text_of(root, "docs/FINDINGS.md")


#: Rows of the table of aims in MODELS.md: their beginning; kinds, types, GPUs and engine of the tables; what errs.
HOPPER, AMPERE_AND_B200 = "h100-sxm h200-sxm", "a100-sxm-80gb b200 gb200"
AIMS = [
    ("GEMM, bf16: H100, H200", "GEMM", "16-bit", HOPPER, "", "mape_percent"),
    ("A100, B200, GB200", "GEMM", "16-bit", AMPERE_AND_B200, "", "mape_percent"),
    ("L40S, RTX PRO 6000", "GEMM", "16-bit", "l40s rtx-pro-6000", "", "mape_percent"),
    ("fp8, TensorRT-LLM", "GEMM", "fp8", "", "trtllm", "mape_percent"),
    ("fp8, vLLM", "GEMM", "fp8", "", "vllm", "mape_percent"),
    ("fp8 in blocks", "GEMM", "fp8_block", "", "", "mape_percent"),
    ("nvfp4: B200, GB200", "GEMM", "nvfp4", AMPERE_AND_B200, "", "mape_percent"),
    ("prefill", "prefill attention", "", "", "", "mape_percent"),
    ("decode", "decode attention", "", "", "", "mape_percent"),
    ("MoE", "MoE", "", "", "", "mape_percent"),
    ("NCCL", "NCCL", "", "", "", "mape_percent"),
    ("all-reduce in engines", "all-reduce", "", "", "", "mape_percent"),
    ("unseen GPU, bf16: H200 / B200 / L40S", "GEMM", "16-bit", "h200-sxm b200 l40s", "", "unseen_percent"),
]


@pytest.mark.parametrize(("begin", "kind", "type", "gpus", "engine", "error"), AIMS, ids=[aim[0] for aim in AIMS])
def test_aims_are_met_and_missed_as_said(root, begin, kind, type, gpus, engine, error):
    found = pd.read_csv(root / f"results/{TIMES}/every_table/table.csv")
    found = found[(found["gpu"] != "b60") & found["kind"].str.startswith(kind) & found[error].notna()]
    found = found[(found["type"] == type) | (type == "")]
    found = found[found["gpu"].isin(gpus.split()) | (gpus == "")]
    found = found[(found["framework"] == engine) | (engine == "")]
    (row,) = re.findall(
        rf"^\| {re.escape(begin)} \| (.*?) \| (\d+) of (\d+) \((.*?)\) \|",
        (root / "docs/MODELS.md").read_text("utf-8"),
        re.M,
    )
    aims = [float(aim) for aim in row[0].split(" / ")]
    aim = found["gpu"].map(dict(zip(gpus.split(), aims, strict=True))) if len(aims) > 1 else aims[0]
    within = found.loc[found[error] <= aim, error]
    assert (len(within), len(found)) == (int(row[1]), int(row[2]))
    said = [[float(number) for number in re.findall(r"[\d.]+", part)] for part in row[3].split(" / ")]
    for part, gpu in zip(said, gpus.split() if len(aims) > 1 else [""], strict=True):
        own = within[found["gpu"] == gpu] if gpu else within
        assert [min(part), max(part)] == pytest.approx([own.min(), own.max()], abs=0.051), gpu


def test_the_errors_of_each_engine_in_bf16_are_as_said(root):
    found = pd.read_csv(root / f"results/{TIMES}/every_table/table.csv")
    found = found[found["kind"] == "GEMM"]
    half = found[found["type"] == "16-bit"].pivot(index="gpu", columns="framework", values="mape_percent")
    row = re.compile(r"^\| ([\w ]+) \| ([\d.]+), ([\d.]+), ([\d.]+) \| [\d.]+ \| [\d.]+ \|$", re.MULTILINE)
    said = row.findall((root / "docs/MODELS.md").read_text("utf-8"))
    assert len(said) == 9
    for title, *errors in said:
        own = half.loc[find_gpu(title).name, ["trtllm", "vllm", "sglang"]]
        assert [float(error) for error in errors] == pytest.approx(own.tolist(), abs=0.0501), title
    unseen = found["unseen_percent"].dropna()
    assert f"(mean of the {len(unseen)} tables: {unseen.mean():.1f} %)" in text_of(root, "docs/MODELS.md")


#: Rows of the table of what neighbours add, and the kinds of kernels of the laws' errors in them.
LAWS = [
    ("GEMM", "gemm"),
    ("prefill; latent", "prefill latent_prefill"),
    ("decode; latent", "decode latent_decode"),
    ("MoE", "moe"),
    ("all-reduce in engines; NCCL, oneCCL", "collective libraries"),
    ("linear attention, SSM; sparse attention", "state"),
]


def test_the_mean_errors_of_the_laws_are_as_said(root):
    """Of engines' kernels and of collectives; of sparse attention the table has fewer than there are constants."""
    found = pd.read_csv(root / "resources/time_constants.csv").query("framework != 'pytorch'")
    kind = found["kind"].replace(dict.fromkeys(("convolution", "chunked_rule", "state_update"), "state"))
    kind = kind.mask(found["kernel"].str.startswith("MLA "), "latent_" + kind)
    kind = kind.mask(found["kernel"].str.contains("^(?:NCCL|oneCCL)", case=False), "libraries")
    mean = found["held_back_percent"].groupby(kind).mean()
    models = (root / "docs/MODELS.md").read_text("utf-8")
    for name, kinds in LAWS:
        (said,) = re.findall(rf"^\| {re.escape(name)} \| [^|\n]+ \| ([^|\n]+) (?:\| [^|\n]+ ){{2}}\|$", models, re.M)
        for error, one in zip(said.split("; "), kinds.split(), strict=False):
            assert float(error) == pytest.approx(mean[one], abs=0.0501), (name, one)
    assert f"and {mean['quantise']:.1f} % in the mean of 40 kernels)" in models


@pytest.mark.parametrize(
    ("group", "gpu", "library", "column", "form"),
    [
        ("causal", "a100-pcie-80gb", "cuDNN", "mape_percent", "were 16.4 % off and are {:.1f} %"),
        ("causal", "h20-sxm", "FlashAttention-2", "bias_percent", "were predicted 35 % too fast, now {:.1f} %"),
        ("causal", "b200", "FlashAttention-2", "bias_percent", "are still {:.0f} % too slow"),
        ("latent", "h20-sxm", "FlashMLA", "mape_percent", "fall from 32.7 to {:.1f} %"),
        ("full", "rtx-3090", "Triton", "mape_percent", "the errors are {:.0f} and 23 %"),
        ("causal", "rtx-3090", "Triton", "mape_percent", "the errors are 11 and {:.0f} %"),
        ("fp8", "h100-pcie", "FlashAttention-3", "bias_percent", "is predicted {:.0f} % too slow"),
    ],
)
def test_attention_that_others_timed_is_predicted_as_said(root, group, gpu, library, column, form):
    found = pd.read_csv(root / "results/published-attention/kernel_time/attention/table.csv")
    models = text_of(root, "docs/MODELS.md")
    (row,) = found.query("group == @group and gpu == @gpu and library == @library").to_dict("records")
    assert form.format(abs(row[column])) in models, row[column]
    blackwell = found[found["gpu"].isin(["b200", "gb200", "gb300", "rtx-pro-6000"]) & (found["library"] == "cuDNN")]
    half, fp8 = (blackwell[blackwell["group"].isin(names)]["bias_percent"] for names in (["causal", "full"], ["fp8"]))
    words = f"takes {half.min():.0f} to {half.max():.0f} % longer than cuDNN in 16 bits and"
    assert f"{words} {fp8.min():.0f} to {fp8.max():.0f} % longer in fp8" in models, words


def test_the_pages_say_how_served_runs_are_mispredicted(root):
    runs = {gpu: data_of(root, [f"served-runs/serving_time/{gpu}"]) for gpu in ("h100", "h200")}
    errors = {gpu: 100 * (rows["kernels_s"] / rows["measured_s"] - 1) for gpu, rows in runs.items()}
    sliced = [errors[gpu][rows["replicas"] > 1] for gpu, rows in runs.items()]
    medians = *(one.abs().median() for one in sliced), *(one.median() for one in sliced)
    words = "{:.1f} and {:.1f} % (signed medians {:+.1f} and {:+.1f} %)".format(*medians).replace("-", "−")
    assert words in text_of(root, "docs/MODELS.md"), words
    page = text_of(root, "notebooks/serving_time.ipynb")
    assert f"(median error {pd.concat(sliced).abs().median():.0f} %, nothing" in page
    rows, error = runs["h100"], errors["h100"]
    given = 100 * (rows["given_ttft_s"] / rows["measured_s"] - 1)
    some = rows["model"].str.contains("70B") & (rows["gpus"] == 8) & rows["requests"].between(10, 50)
    words = (
        f"predicted {error[some].median():.0f} % too long (median) and up to {error[some].max():.0f} %; given the first"
    )
    assert f"{words} token, {given[some].median():.0f} % and up to {given[some].max():.0f} %." in page
    short = -error[rows["model"].str.contains("Qwen3-8B") & (rows["gpus"] == 8) & (rows["input_tokens"] == 128)]
    assert f"predicted {short.min():.0f} to {short.max():.0f} % too short" in page


@pytest.mark.parametrize(
    ("folder", "quantity", "form"),
    [
        ("linear-a100/flop_reconciliation/linear", "mape_2mnk_percent", "misses {:.1f} % of the FLOPs"),
        ("linear-a100/flop_reconciliation/linear", "tiled_exact", "none in any of [{:,.0f} GEMMs]"),
        (f"{TIMES}/every_table", "kernels", "[{:,.0f} measured kernels]"),
        (f"{TIMES}/every_table", "mape_percent", "within {:.1f} % of their times;"),
        (f"{TIMES}/every_table", "kernels_unseen", "half of {:,.0f} within"),
        (f"{TIMES}/every_table", "unseen_percent", "within {:.1f} %. The data"),
        (f"{TIMES}/every_table", "roofline_percent", "roofline errs by {:.1f} %"),
        (PRODUCTS, "products", "[{:,.0f} matrix products]"),
        (PRODUCTS, "gpus", "published for {:.0f} GPUs"),
        (PRODUCTS, "run_mape_percent_16_bit_own", "within {:.1f} % by a GPU's own"),
        (f"{RUNS}/parallelism", "workloads", "In [{:.0f} workloads]"),
        (f"{RUNS}/parallelism", "predicted_percent", "choice serves {:.0f} % of the best"),
        (f"{RUNS}/parallelism", "fewest_met_percent", "fast enough serves {:.0f} %"),
        ("nvidia-h200/kernel_power/kernels", "sustained_mape_slowed_percent", "tell their times within {:.1f} %"),
        ("nvidia-h200/block_scheduling/zeros_4096", "lost_percent", "empty for {:.1f} % of the time"),
        ("nvidia-h200/block_scheduling/zeros_4096", "persistent_saving_percent", "saves {:.0f} %."),
    ],
)
def test_the_readme_says_what_is_tracked(root, folder, quantity, form):
    words = form.format(summary(root, folder)[quantity]["value"])
    assert words in text_of(root, "README.md"), words


def test_the_readme_counts_the_errors_of_the_source_documents(root):
    wrong = (root / "results/tables/scorecard.csv").read_text("utf-8").count(",error in source,")
    for page in ("README.md", "docs/FINDINGS.md"):
        assert f"{wrong} statements in the source documents are wrong" in text_of(root, page)


@pytest.mark.parametrize("half", ["unfitted_", "unfitted_held_back_", ""])
def test_the_appendix_lists_the_errors_of_served_runs(root, half):
    name = f"tpot_median_error_{half}percent"
    errors = [f"{summary(root, f'{RUNS}/{gpu}')[name]['value']:.1f}" for gpu in ("h100", "h200", "b200", "b300")]
    words = f"{', '.join(errors[:3])} and {errors[3]} %"
    assert words in (root / "docs/ARTIFACT.md").read_text("utf-8"), words


def test_the_appendix_lists_the_errors_of_workers_that_only_decode(root):
    found = [summary(root, f"{RUNS}/{gpu}") for gpu in ("h200", "b200", "gb200", "gb300")]
    errors = [f"{one['disagg_tpot_median_error_unfitted_percent']['value']:.1f}" for one in found]
    runs = [f"{one['disagg_runs_expressed']['value']}" for one in found]
    words = f"{', '.join(errors[:3])} and {errors[3]} % of {', '.join(runs[:3])} and {runs[3]} runs"
    assert words in (root / "docs/ARTIFACT.md").read_text("utf-8"), words


def test_the_pages_say_how_disaggregated_runs_were_predicted(root):
    gpus = ("b200", "gb200", "gb300", "h200")
    found = {gpu: summary(root, f"{RUNS}/{gpu}") for gpu in (*gpus, "b300", "h100")}
    data = data_of(root, [f"{RUNS}/{gpu}" for gpu in gpus])
    runs = data[(data["mode"] == "disagg") & data["predicted_rate"].notna()]
    errors = 100 * (runs["predicted_rate"] / runs["measured_rate"] - 1).abs()
    median = f"a median error of {errors.median():.1f} %"
    own = [f"{found[gpu]['disagg_rate_median_error_percent']['value']:.1f}" for gpu in gpus]
    both = [f"{found[gpu]['rate_median_error_percent']['value']:.1f}" for gpu in ("b200", "h200", "b300", "h100")]
    gains = [
        [found[gpu][f"disagg_{name}"]["value"] for gpu in ("b200", "h200")]
        for name in ("gain_measured", "gain_predicted", "better_predicted_percent")
    ]
    models = text_of(root, "docs/MODELS.md")
    for words in (
        f"In {len(runs)} disaggregated runs",
        f"{median} (mean {errors.mean():.1f} %): B200 {own[0]} %, GB200 {own[1]}, GB300 {own[2]} and H200 {own[3]}",
        f"it is {both[0]} % on B200, {both[1]} on H200, {both[2]} on B300 and {both[3]} on H100",
        f"serves {gains[0][0]:.2f} times as many tokens per GPU on the B200",
        f"and {gains[0][1]:.2f} times on the H200",
        f"Predicted are {gains[1][0]:.2f} and {gains[1][1]:.2f}, and in {gains[2][0]:.0f} and {gains[2][1]:.0f} %",
    ):
        assert words in models, words
    findings = text_of(root, "docs/FINDINGS.md")
    assert f"[{len(runs)} disaggregated runs]" in findings and f"with {median}" in findings


def test_the_pages_list_the_errors_of_served_runs_that_others_published(root):
    found = [summary(root, f"served-runs/serving_time/{gpu}") for gpu in ("h100", "h200", "b200", "l40s")]
    errors = [f"{one['tpot_median_error_unfitted_percent']['value']:.1f}" for one in found]
    runs = [one["runs_expressed"]["value"] for one in found]
    words = f"{', '.join(errors[:3])} and {errors[3]} % of {', '.join(map(str, runs[:3]))} and {runs[3]} runs"
    assert words in (root / "docs/ARTIFACT.md").read_text("utf-8"), words
    findings = text_of(root, "docs/FINDINGS.md")
    said = f"median errors of {min(errors, key=float)} to {max(errors, key=float)} % by GPU"
    assert f"[{sum(runs)} served runs]" in findings and said in findings, said


def test_the_page_says_how_choices_of_parallelism_compare(root):
    data = data_of(root, [f"{RUNS}/parallelism"])
    decided, page = choices(data), text_of(root, "notebooks/serving_time_parallelism.ipynb")
    each = decided.groupby(WORKLOAD)[["predicted", "fewest_met"]].mean()
    ahead = each["fewest_met"] - each["predicted"]
    words = f"the better choice in {100 * (ahead > 1e-9).mean():.0f} % of the workloads and the worse in"
    assert f"{words} {100 * (ahead < -1e-9).mean():.0f} %;" in page, words
    times = data.groupby([*WORKLOAD, "gpus", "parallelism"])["measured_s"].agg(["min", "max"]).groupby(WORKLOAD)
    between = decided.join(times.agg(lightest=("min", "max"), heaviest=("max", "min")), on=WORKLOAD)
    between = between[between["objective_s"].between(between["lightest"], between["heaviest"])]
    found, workloads = averages(between), between.groupby(WORKLOAD).ngroups
    words = f"Of the {len(between)} objectives that lie between both for every parallelism of their workload, predicted"
    words += f" choices attain {found['predicted']:.1f} %, the fewest GPUs {found['fewest']:.1f} %,"
    assert f"{words} the most {found['most']:.1f} % ({workloads} workloads)" in page, words


def test_the_readme_has_the_median_error_of_served_runs_that_others_published(root):
    runs = data_of(root, [f"served-runs/serving_time/{gpu}" for gpu in ("h100", "h200", "b200", "l40s")])
    error = 100 * (runs["predicted_s"] / runs["measured_s"] - 1).abs().median()
    readme = text_of(root, "README.md")
    assert f"[{len(runs)} served runs]" in readme and f"with a median error of {error:.1f} %, from" in readme
    assert f"({error:.1f} % overall)" in text_of(root, "docs/FINDINGS.md")


def test_the_appendix_lists_the_errors_of_training_steps(root):
    cases = [summary(root, f"published/training_time/mpt_{gpu}") for gpu in ("h100", "a100_80gb", "a100_40gb")]
    text = (root / "docs/ARTIFACT.md").read_text("utf-8")
    for name, last in (("step", " %"), ("roofline", ""), ("rule", ""), ("explained", " %")):
        first, second, third = (f"{one[f'{name}_median_error_percent']['value']:.1f}" for one in cases)
        assert f"{first}, {second} and {third}{last}" in text, name
    assert sum(one["steps_predicted_too_long"]["value"] for one in cases) == 0
    assert f"all {sum(one['runs_expressed']['value'] for one in cases)} published ones take longer" in text


def test_the_appendix_counts_the_cases(root):
    repository = Repository.find(root)
    datasets = [*repository.config["datasets"], *repository.config["datasets_online"]]
    declared = Counter(study for name in datasets for study, _ in repository.dataset(name).cases())
    text = (root / "docs/ARTIFACT.md").read_text("utf-8")
    listed = {study: int(count) for study, count in re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE)}
    assert listed == declared and f"| all (`make`) | {declared.total()} |" in text


def test_the_table_of_datasets_has_all_of_them(root):
    text = (root / "traces/README.md").read_text("utf-8").partition("## Datasets in this repository")[2]
    listed = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(file.parent.name for file in root.glob("traces/*/dataset.yaml"))
    for folder, noun in ((PRODUCTS, "product"), ("published-attention/kernel_time/attention", "kernel")):
        found = summary(root, folder)
        assert f"speeds of {found[noun + 's']['value']} " in text and f"in {found['runs']['value']} runs on" in text
