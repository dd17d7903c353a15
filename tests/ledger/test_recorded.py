"""What docs/RECORDED.md says of an H200 and an H100 is what the tracked summaries and recordings hold."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from own_cases import reduced

from gpuledger.ledger.datasets import Repository
from gpuledger.ledger.parts import split_parts
from gpuledger.models.time_model.constants.table import unseen_constants
from gpuledger.models.time_model.operators import LAWS
from gpuledger.models.time_model.step import predict
from gpuledger.models.training import TrainingRun, training_memory
from gpuledger.models.training.step import predict_kernels
from gpuledger.models.transformer import read_model
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.timelines import read_timeline
from gpuledger.readers.timelines.table import work_rates
from gpuledger.record import attention
from gpuledger.record.attention import AttentionCall
from gpuledger.studies.block_scheduling import parts
from gpuledger.studies.kernel_breakdown.timeline.shapes import kernels_of_shapes
from gpuledger.studies.kernel_breakdown.timeline.training import read_training
from gpuledger.studies.kernel_time import engine_prediction

H200, H100, SIMULATED = "nvidia-h200", "nvidia-h100", "simulated"
BLOCKS, NORM = "block_scheduling/zeros_4096", f"{H200}/normalization_roofline/measured"
TRAINING = "nvidia-h100-training/kernel_breakdown"
STEPS = ("autocast", "recompute", "bf16")
TOY, DECODE = f"{H200}/flop_reconciliation/toy_network", "nvidia-h200-decode/kernel_breakdown/eager"
SAID = [
    (TOY, "counts", 1, "of {} counts 57"),
    (TOY, "counts_predicted_exact", 1, "({} of 117 counts predicted, 20"),
    (TOY, "counts_explained", 1, "predicted, {} explained"),
    (TOY, "forward_total_flops", 1, "{:,} FLOPs forward"),
    (TOY, "backward_total_flops", 1, "{:,} backward, residual 0"),
    (f"{H200}/flop_reconciliation/gpt2", "matrix_launches", 1, "All {} products of 15 sizes"),
    (f"{H200}/warp_scheduling/fig17b", "tail_ratio", 100, "| {:.1f} %, with a kernel of our own"),
    (f"{H200}/warp_scheduling/fig13cd", "speed_gain_percent", 1, "| by {:.0f} %; 77 %"),
    (f"{H200}/warp_scheduling/fig13cd", "tied_percent", 1, "{:.0f} % of the changes of speed"),
    (f"{H200}/warp_scheduling/fig13cd", "tied_by_chance_percent", 1, "against {:.0f} % by chance"),
    (f"{H200}/warp_scheduling/fig13cd", "sped_up_percent", 1, "real blocks, {:.0f} % changed speed"),
    (f"{H200}/warp_scheduling/fig13cd", "blocks_followed", 1, "Of {} real blocks"),
    (f"{SIMULATED}/warp_scheduling/fig13cd", "sped_up_percent", 1, "In the simulation {:.0f} % of the blocks"),
    (NORM, "speedup_over_torch_cold_geometric_mean", 1, "| {:.1f} times (geometric mean of 13 shapes"),
    (NORM, "speedup_over_torch_cold_shapes", 1, "mean of {} shapes"),
    (NORM, "dram_roof", 1e-12, "| {:.2f} TB/s, 88 %"),
    (NORM, "dram_roof_data_sheet_percent", 1, "TB/s, {:.0f} % of the data sheet"),
    (f"{SIMULATED}/normalization_roofline/model_h200", "dram_roof", 1e-12, "about {:.1f} TB/s (simulated)"),
    (f"{SIMULATED}/normalization_roofline/model_h200", "large_cold_copy_min_percent", 1, "kernel {:.0f} % of a copy"),
    (NORM, "one_pass_16384x1024_cold_copy_percent", 1, "fp32: {:.0f} to 98 % with rows of 1,024"),
    (NORM, "one_pass_65536x1024_cold_copy_percent", 1, "to {:.0f} % with rows of 1,024"),
    (NORM, "one_pass_16384x1023_cold_copy_percent", 1, "32,768 values, {:.0f} to"),
    (NORM, "one_pass_16384x4095_cold_copy_percent", 1, "values, 93 to {:.0f} % where rows are not"),
    (NORM, "one_pass_1024x131072_cold_copy_percent", 1, "not aligned, {:.0f} % at 131,072."),
    (NORM, "one_pass_1024x128_cold_copy_percent", 1, "in fp32 ({:.0f} % for 1,024 × 128, 89"),
    (NORM, "one_pass_4096x256_cold_copy_percent", 1, "× 128, {:.0f} % for 4,096 × 256)"),
    (NORM, "one_pass_131072x128_cold_copy_percent", 1, "In fp32 it is {:.0f} % instead of 92."),
    *(
        (f"{NORM}_{element}", f"one_pass_{shape}_cold_copy_percent", 1, form)
        for element, shape, form in (
            ("fp16", "65536x1024", "16 bits: {:.0f} to 98 % with rows of 1,024"),
            ("fp16", "8192x8192", "16 bits: {:.0f} to 98 % with rows of 1,024"),
            ("bf16", "65536x1024", "16 bits: 97 to {:.0f} % with rows of 1,024"),
            ("bf16", "4096x32768", "16 bits: {:.0f} to 98 % with rows of 1,024"),
            ("fp16", "1024x131072", "aligned, {:.0f} to 89 % at 131,072 and"),
            ("bf16", "1024x131072", "88 to {:.0f} % at 131,072 and"),
            ("fp16", "16384x4095", "32,768, {:.0f} to 94 % where"),
            ("bf16", "16384x4095", "92 to {:.0f} % where"),
            ("fp16", "131072x128", "and {:.0f} % at 128 values"),
            ("bf16", "131072x128", "they move at {:.0f} % of the speed"),
        )
    ),
    *(
        (f"{H100}/normalization_roofline/measured{element}", quantity, 1, form)
        for element, quantity, form in (
            ("", "large_cold_copy_min_percent", "and larger reach {:.0f} to 100 % in fp32"),
            ("", "large_cold_copy_max_percent", "98 to {:.0f} % in fp32"),
            ("_fp16", "large_cold_copy_min_percent", "and {:.0f} to 100 % in 16 bits there"),
            ("_fp16", "one_pass_131072x128_cold_copy_percent", "and reach {:.0f} to 97 % on the H100"),
            ("_bf16", "one_pass_131072x128_cold_copy_percent", "96 to {:.0f} % on the H100"),
            ("", "one_pass_1024x131072_cold_copy_percent", "131,072 included ({:.0f} %)"),
            ("", "one_pass_1024x128_cold_copy_percent", "on it, too ({:.0f} % for 1,024 × 128)"),
        )
    ),
    (f"{H200}/kernel_time/attention", "mape_unseen_percent", 1, "a mean error of {:.1f} % on the half"),
    (f"{H200}/kernel_time/attention", "shapes_held_back", 1, "({}) that judges"),
    (f"{H200}/kernel_time/attention", "mape_held_back_percent", 1, "other half, err by {:.1f} % (median"),
    (f"{H200}/kernel_time/attention", "median_held_back_percent", 1, "(median {:.1f} %), as the H100"),
    (f"{H100}/kernel_time/attention", "mape_held_back_percent", 1, "do by {:.1f} % at home"),
    (NORM, "launch_floor", 1e-3, "takes {:.2f} µs, not 1.5"),
    (NORM, "torch_nn_131072x128_cold_copy_percent", 1, "LayerNorm reaches {:.0f} to"),
    (NORM, "torch_nn_16384x4096_cold_copy_percent", 1, "reaches 17 to {:.0f} %"),
    (f"{H100}-decode/kernel_breakdown/eager", "predicted_kernel_time", 1e3, "predicted to take {:.2f} ms took"),
    (f"{H100}-decode/kernel_breakdown/eager", "matched_kernel_time", 1e3, "took {:.2f} ms (98 %"),
    (f"{H100}-decode/kernel_breakdown/eager", "matched_percent", 1, "ms ({:.0f} % of them covered)."),
    (f"{TRAINING}/autocast", "idle_time", 1e3, "No kernel runs for {:.1f} ms of the eager"),
    (f"{TRAINING}/compile", "idle_time", 1e3, "eager step and {:.1f} ms of the compiled"),
    (f"{TRAINING}/recompute", "idle_time", 1e3, "falls behind: no kernel runs for {:.1f} ms"),
    *(
        (f"{TRAINING}/autocast", name, 1e3, form)
        for name, form in (
            ("elementwise_predicted_from_shapes_time", "predicts {:.1f} ms for elementwise kernels"),
            ("elementwise_with_shapes_time", "kernels that take {:.1f} ms"),
            ("gemm_predicted_from_shapes_time", "and {:.1f} for 78.2 ms of GEMMs"),
            ("gemm_with_shapes_time", "for {:.1f} ms of GEMMs"),
        )
    ),
    (f"{TRAINING}/compile_instead_of_eager", "after_time", 1e3, "A step takes {:.0f} ms instead of 247"),
    (f"{TRAINING}/compile_instead_of_eager", "before_time", 1e3, "220 ms instead of {:.0f}]"),
    (f"{H100}/warp_scheduling/fig17b", "tail_ratio", 100, "a tail of {:.1f} % on the H100"),
    (f"{H200}/warp_scheduling/fig17b", "tail_ratio", 100, "and {:.1f} % on the H200"),
    (f"{H100}/warp_scheduling/fig13b", "tail_ratio", 100, "attention blocks {:.1f} and"),
    (f"{H200}/warp_scheduling/fig13b", "tail_ratio", 100, "9.2 and {:.1f} %"),
    (f"{H100}/kernel_overhead/table2", "lightweight_slowdown_mean", 1, "probes cost 1 % on both"),
    (f"{H200}/kernel_time/gemm", "mape_held_back_percent", 1, "on the second recording is {:.1f} % in bf16"),
    (f"{H200}/kernel_time/gemm", "mape_held_back_percent_fp8_static", 1, "and {:.1f} % in fp8, on the half"),
    (f"{H100}/kernel_time/gemm", "mape_held_back_percent", 1, "fitted to, and {:.1f} and"),
    (f"{H100}/kernel_time/gemm", "mape_held_back_percent_fp8_static", 1, "5.0 and {:.1f} % on the H100"),
    (DECODE, "predicted_kernel_time", 1e3, "predicted to take {:.2f} ms"),
    (DECODE, "matched_percent", 1, "({:.0f} % of them covered)"),
    (DECODE, "matched_kernel_time", 1e3, "| these took {:.2f} ms"),
    (f"{SIMULATED}/{BLOCKS}", "gap_cycles_mean", 1, "(mean {:.0f})"),
    (f"{SIMULATED}/{BLOCKS}", "lost_percent", 1, "so that {:.1f} % of the slots"),
    *(
        ("nvidia-h200-gemm/gemm_tiles/cublas", name, 1, form)
        for name, form in (
            ("shapes", "For {:,} bf16 shapes"),
            ("tiles", "launches {} different ones"),
            ("listed_tiles_percent", "{:.0f} % of the launches use one of the guide"),
            ("same_tile_percent", "it picks it for {:.0f} %"),
            ("same_waves_percent", "as many waves for {:.0f} %"),
            ("same_choice_percent", "knows for {:.0f} % whether k is split"),
        )
    ),
    (f"{H200}/{BLOCKS}", "gap_cycles_mean", 1, "gaps of {:,.0f}:"),
    (f"{H200}/{BLOCKS}", "lost_percent", 1, ": {:.1f} % of the time of the slots"),
    (f"{H200}/{BLOCKS}", "cycles_per_block", 1, "every {:.0f} cycles on average, and all"),
    (f"{H200}/{BLOCKS}", "blocks_per_cycle", 1, "all SMs together {:.2f} per cycle"),
    (f"{H200}/{BLOCKS}", "gap_free_time_saving_percent", 1, "By the gaps, {:.0f} %"),
    (f"{H200}/{BLOCKS}", "persistent_saving_percent", 1, "saves {:.0f} %, memset"),
    (f"{H200}/{BLOCKS}", "memset_saving_percent", 1, "memset {:.0f} %"),
    *(
        (f"{dataset}/warp_scheduling/{case}", "tail_ratio", 100, form)
        for dataset, case, form in (
            (H200, "fig13a", "slowest warp is {:.1f} % behind"),
            ("published", "fig13a", "(published {:.1f} %, simulated 9.6 %)"),
            (SIMULATED, "fig13a", "simulated {:.1f} %), with"),
            (H200, "fig13b", "shared blocks {:.1f} %"),
            ("published", "fig13b", "(published {:.1f} %, simulated 25.2 %)"),
            (SIMULATED, "fig13b", "simulated {:.1f} %). The"),
            (H200, "fig17a", "Exclusive GEMM blocks: {:.1f} %"),
            ("published", "fig17a", "(published {:.1f} %, simulated 2.9 %)"),
            (SIMULATED, "fig17a", "simulated {:.1f} %)."),
            ("published", "fig17b", "tail of {:.1f} % (published)"),
        )
    ),
    (f"{H200}/exposed_latency/probes", "epilogue_max_percent", 1, "in the two longest waits, 98 to {:.0f} % of it"),
    (f"{H200}/warp_scheduling/fig13cd", "sped_up_blocks", 1, "only {} of 672 blocks change"),
    (f"{H200}/dmat/fig1", "key_bursts", 1, "shows {} and 8"),
    (f"{H200}/dmat/fig1", "value_bursts", 1, "9 and {} bursts"),
    (f"{H200}/dmat/fig1", "query_last_touch", 1, "first {:.1f} % of the cycles"),
    (f"{SIMULATED}/dmat/fig1", "query_last_touch", 1, "(simulated {:.1f} %)"),
    (f"{SIMULATED}/dmat/fig1", "key_bursts", 1, "simulated in {} stripes"),
]


def test_the_findings_say_the_same(root):
    summary = json.loads((root / f"results/{H200}/{BLOCKS}/summary.json").read_text("utf-8"))
    text = " ".join((root / "docs/FINDINGS.md").read_text("utf-8").split())
    assert f"starts {summary['blocks_per_cycle']['value']:.2f} blocks per cycle" in text
    assert f"kernel saves {summary['persistent_saving_percent']['value']:.0f} % of the time" in text
    assert f"slots that they use are empty for {summary['lost_percent']['value']:.1f} % of the time" in text
    sweep = json.loads((root / f"results/{H200}/flop_reconciliation/gpt2/summary.json").read_text("utf-8"))
    assert f"2·M·N·K misses {sweep['mape_2mnk_percent']['value']:.1f} % of the tiled ones" in text


@pytest.fixture(scope="module")
def page(root):
    return " ".join((root / "docs/RECORDED.md").read_text("utf-8").replace("**", "").split())


@pytest.mark.parametrize(("folder", "quantity", "factor", "form"), SAID)
def test_the_page_says_what_is_tracked(root, page, folder, quantity, factor, form):
    summary = json.loads((root / "results" / folder / "summary.json").read_text("utf-8"))
    value = summary[quantity]["value"]
    words = form.format(value if factor == 1 else factor * value)
    assert words in page, f"docs/RECORDED.md does not have '{words}'"


def test_the_closed_form_is_exact_for_the_passes_of_gpt2(root, page):
    for case, words in (
        ("gpt2_backward", "With these rules, all {} are exact"),
        ("gpt2_head_dim_64", "exact for all {} "),
    ):
        launches = reduced(Repository.find(root).case(H200, "flop_reconciliation", case)).data
        predicted = launches[launches["flops_predicted"].notna() & launches["role"].isin(["gemm", "split_k_reduce"])]
        assert predicted["exact"].all() and words.format(len(predicted)) in page


def test_nothing_of_the_network_is_left_over(root):
    steps = reduced(Repository.find(root).case(*TOY.split("/"))).data
    assert len(steps) == 70 and (steps["flops_predicted"] == steps["flops"]).all()


def test_two_groups_of_sms_get_a_quarter_and_three_quarters_of_the_blocks(root, page):
    """As if each of eight GPCs, two with 18 SMs and six with 16, got the same number."""
    sms, _, _ = parts(reduced(Repository.find(root).case(H200, *BLOCKS.split("/"))).data)
    more, fewer = (sms.loc[chosen, "blocks"] for chosen in (sms["blocks"] > 243, sms["blocks"] < 243))
    assert f"{len(more)} SMs got {more.min()} to {more.max()} blocks each" in page
    assert f"{len(fewer)} SMs {fewer.min()} to {fewer.max()}" in page
    assert (len(more), len(fewer)) == (6 * 16, 2 * 18)
    assert f"blocks of {sms['running_cycles'].sum() / sms['blocks'].sum():.0f} cycles with gaps" in page
    assert f"the {len(fewer)} SMs got {fewer.sum():,} blocks where two such groups would get {32768 // 4:,}" in page
    assert fewer.sum() / sms["blocks"].sum() == pytest.approx(2 / 8, rel=0.01)


def test_most_blocks_have_an_older_one_that_ends_with_them_or_at_once(root, page):
    """Of the time of a block's iterations, 31 between 32 looks at the clock."""
    result = reduced(Repository.find(root).case(H200, "warp_scheduling", "fig13cd"))
    blocks = result.data[result.data["part"] == "block"].dropna(subset="older_end_cycles")
    cycles = 31 * result["flop_per_iteration"] * result["clock"] * 1e-6 / blocks["speed_tflops"]
    end, fast = blocks["older_end_cycles"].astype(float) / cycles, blocks["transition_cycles"].notna()
    assert f"{len(blocks)} of the 672 outlive an older one" in page
    assert f"but {(end <= 0.1).sum()} of them by nearly all" in page
    assert f"and {(end > 0.9).sum()} by a tenth of it or less" in page
    between = end.between(0.1, 0.9)
    assert f"Of the other {between.sum()}, {(between & fast).sum()} speed up" in page


def test_where_ligers_kernel_is_faster_is_as_said(root, page):
    def faster(case):
        rows = json.loads((root / f"results/{H200}/normalization_roofline/{case}/summary.json").read_text("utf-8"))
        shares = {name: entry["value"] for name, entry in rows.items() if name.endswith("_cold_copy_percent")}
        own = {name[6:]: shares.get(f"one_pass_{name[12:]}") for name in shares if name.startswith("liger_layer_")}
        ahead = {name: shares[f"liger_{name}"] - value for name, value in own.items()}
        return len(own), {name.split("_")[1]: round(more, 1) for name, more in ahead.items() if more > 0}

    assert faster("measured") == (12, {"65536x1024": 1.2, "8192x8192": 0.0})
    assert faster("measured_bf16") == faster("measured_fp16") == (5, {})
    assert "two of 12 shapes in fp32 (by 1.2 points at 65,536 × 1,024, by less than 0.05 at 8,192 × 8,192)" in page
    assert "and at none of five in 16 bits" in page


def test_attention_of_both_gpus_compares_as_said(root, page):
    shape = [*AttentionCall._fields, "op_name"]
    names = dict(zip(attention._KEY, AttentionCall._fields, strict=True))
    h100, h200 = (pd.read_csv(root / f"traces/{gpu}/{attention.TABLE}").rename(columns=names) for gpu in (H100, H200))
    both = h100.merge(h200, on=shape, suffixes=("", "_h200"))
    assert (both["kernels"] == both["kernels_h200"]).all() and len(both) == len(h100) == len(h200)
    # The longest of two kernels, which take about as long.
    assert (both["kernel"] != both["kernel_h200"]).sum() == 1

    def means(ratio, of):
        by_kind = np.exp(np.log(ratio).groupby(of["op_name"]).mean())
        kinds = ("context_attention", "context_attention_backward", "generation_attention")
        return " | ".join(f"{by_kind[kind]:.2f}" for kind in kinds)

    for backend, name in (("torch_cudnn", "cuDNN"), ("torch_flash", "FlashAttention-2")):
        of = both[both["backend"] == backend]
        assert f"on the H200, {name} | {means(of['latency'] / of['latency_h200'], of)} |" in page
    for name, table in (("H200", h200), ("H100", h100)):
        flash, cudnn = (table[table["backend"] == f"torch_{backend}"] for backend in ("flash", "cudnn"))
        pair = flash.merge(cudnn, on=shape[1:], suffixes=("", "_cudnn"))
        assert f"÷ cuDNN, on the {name} | {means(pair['latency'] / pair['latency_cudnn'], pair)} |" in page
        faster = pair[pair["latency"] < pair["latency_cudnn"]]
        assert (faster["op_name"] == "generation_attention").all()
        assert f"faster {'than cuDNN ' * (name == 'H200')}in {len(faster)} of the 154 decode shapes" in page
        assert f"{(faster['head_dim'] == 256).sum()} of them with heads of 256" in page


def test_errors_of_attention_with_the_constants_of_the_other_gpu_are_as_said(root, page):
    data = reduced(Repository.find(root).case(H200, "kernel_time", "attention")).data
    most = (1e-12 * data["flop"] / data["measured_s"]).groupby([data["kernel"], data["operator"]]).max()
    for kernel, said in (("torch_cudnn", "cuDNN computes"), ("torch_flash", "FlashAttention-2")):
        forward, backward = most[kernel][["prefill", "backward"]]
        assert f"{said} up to {forward:.0f}{' TFLOP/s forward' * ('cudnn' in kernel)} and {backward:.0f}" in page
    data, gpu = data[data["held_back"]], find_gpu("h200-sxm")
    errors = []
    for (operator, kernel), rows in data.groupby(["operator", "kernel"]):
        kind = engine_prediction.kind_of(operator)
        constants = unseen_constants(kind.name, gpu, kernel, rows["precision"].iloc[0])
        times = engine_prediction.terms(gpu, kind, constants, rows)["time_s"]
        errors.append(100 * (times / rows["measured_s"] - 1).abs())
        if (operator, kernel) == ("decode", "torch_flash"):
            own = 100 * (rows["predicted_s"] / rows["measured_s"] - 1).abs().mean()
            assert f"with {errors[-1].mean():.1f} %; with its own constants it is {own:.1f} %" in page
    by_kind = pd.concat(errors).groupby(data["operator"]).mean()
    said = "err by {:.1f} % backward, {:.1f} % in prefill and {:.1f} % in decoding."
    assert said.format(*by_kind[["backward", "prefill", "decode"]]) in page


def test_the_h100_executes_the_same_instructions(root):
    def counts(gpu, run):
        path = root / f"traces/{gpu}/flop_reconciliation/toy_network_{run}.csv"
        table = pd.read_csv(path, dtype=str)
        kept = [name for name in table if name in ("Kernel Name", "Grid Size") or "sass_thread_inst_executed" in name]
        return table[kept]

    runs = [(counts(H100, run), counts(H200, run)) for run in ("setup", "forward", "forward_backward")]
    assert all(one.equals(other) for one, other in runs)
    assert sum(one["Grid Size"].str.startswith("(").sum() for one, _ in runs) == 133


def test_groups_of_sms_of_the_h100(root, page):
    sms, _, _ = parts(reduced(Repository.find(root).case(H100, *BLOCKS.split("/"))).data)
    blocks, said = sms["blocks"], []
    for size, groups, low, high in ((18, 4, 0, 243), (16, 3, 243, 300), (12, 1, 300, 999)):
        own = blocks[blocks.between(low, high)]
        assert len(own) == groups * size
        assert own.mean() * size == pytest.approx(32768 / 8, rel=0.02)
        said.append(f"{len(own)} {'SMs ' if size == 18 else ''}got {own.min()} to {own.max()}")
    assert all(words in page for words in said)
    assert f"would make {4096 / 18:.0f}, {4096 / 16:.0f} and {4096 / 12:.0f}" in page


def test_what_was_recorded_twice_differs_as_said(root, page):
    one, other = (root / "traces/nvidia-h200/gemm_tiles/gemm.csv", root / "traces/nvidia-h200-gemm/gemm.parquet")
    shape = ["gemm_dtype", "m", "n", "k"]
    both = pd.read_csv(one).merge(pd.read_parquet(other), on=shape, suffixes=("", "_other"))
    assert (both["kernel"] == both["kernel_other"]).all()
    assert f"{len(both):,} shapes were recorded in both" in page
    apart = 100 * (both["latency"] / both["latency_other"] - 1).abs()
    bf16, fp8 = (apart[both["gemm_dtype"] == name] for name in ("bfloat16", "fp8_static"))
    assert f"The times of the {len(bf16):,} in bf16 differ by {bf16.mean():.1f} % on average" in page
    assert (
        f"(median {bf16.median():.1f} %), those of the {len(fp8)} in fp8 by {fp8.mean():.1f} % ({fp8.median():.1f} %)"
        in page
    )
    table = pd.read_csv(one)
    second, third = 1e6 * table["latency"], table["third_ns"] + table["third_reduction_ns"].fillna(0)
    assert f"differ by {100 * (third / second - 1).abs().mean():.1f} %. In stretches" in page
    reference = table.loc[table["gemm_dtype"] == "bfloat16", "reference_ns"] / 1000
    assert f"took {reference.min():.1f} to {reference.max():.1f} µs throughout" in page


def test_the_cost_of_probes_is_as_said(root, page):
    rows = json.loads((root / f"results/{H200}/kernel_overhead/table2/summary.json").read_text("utf-8"))
    cost = {name: 100 * (entry["value"] - 1) for name, entry in rows.items() if name.endswith("_slowdown")}
    light = [value for name, value in cost.items() if "dmat" not in name and "progress" not in name]
    assert f"cost {min(light):.1f} to {max(light):.1f} %" in page
    progress = sorted(value for name, value in cost.items() if "progress" in name)
    assert f"costs {progress[0]:.0f} % in attention and {progress[1]:.0f} % in a GEMM" in page
    assert f"costs {cost['fill_dmat_slowdown']:.0f} % (fill) to {cost['gemm_2048_dmat_slowdown']:.0f} % (GEMM)" in page


def test_the_step_of_the_model_is_predicted_as_said(root):
    step = reduced(Repository.find(root).case("nvidia-h200-decode", "kernel_breakdown", "eager")).data
    sums = step[step["kind"] == "kernel"].groupby("role")[["duration_s", "predicted_s"]].sum()
    ratio = sums["predicted_s"] / sums["duration_s"]
    products = [name for name in ratio.index if name.endswith(("proj", "head"))]
    assert len(products) == 5 and (ratio[products] - 1).abs().max() < 0.06
    assert ratio["decode_attention"] == pytest.approx(1.06, abs=0.005)
    assert (1 / ratio[["attn_norm", "ffn_norm"]]).tolist() == pytest.approx([2.7, 2.7], abs=0.05)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        *(("GEMMs", "gemm"), ("attention", "attention"), ("elementwise kernels", "elementwise"), ("loss", "loss")),
        *(("weights: casts, sums of gradients", "weights"), ("update: clipping, AdamW", "update")),
    ],
)
def test_what_the_kernels_of_a_training_step_are_for_is_as_said(root, page, label, name):
    said = f"| {label} |"
    for case in ("autocast", "compile"):
        summary = json.loads((root / f"results/{TRAINING}/{case}/summary.json").read_text("utf-8"))
        times = (1e3 * summary[f"{name}{which}_time"]["value"] for which in ("_predicted", ""))
        said += " {:.1f} | {:.1f} |".format(*times)
    assert said in page


def test_the_training_step_is_as_said(root, page):
    runs = pd.read_csv(root / "traces/nvidia-h100-training/runs.csv")["step_s"]
    assert (
        f"a step takes {1e3 * runs[0]:.1f} ms with parameters" in page and f"; {1e3 * runs[1]:.1f} ms if layers" in page
    )
    more = runs[1] - runs[0]
    assert f"costs {1e3 * more:.1f} ms, {100 * more / runs[0]:.0f} % of the step" in page
    assert f"for {100 * (1 - 27917 / 44894):.0f} % less memory" in page
    table = pd.read_csv(root / f"results/{TRAINING}/compile_instead_of_eager/table.csv", index_col="component")[
        "change_ms"
    ]
    assert f"becomes {table['attention'] - table['all']:.1f} ms shorter, and attention {table['attention']:.1f}" in page
    repository = Repository.find(root)
    steps = [reduced(repository.case(*f"{TRAINING}/{case}".split("/"))) for case in ("autocast", "compile")]
    kernels = [one.data[(one.data["purpose"] == "elementwise") & (one.data["kind"] == "kernel")] for one in steps]
    assert f"kernels where {len(kernels[0]):,} ran" in page and f"with {len(kernels[1])} elementwise kernels" in page
    sums = [one.data.groupby("name")["duration_s"].sum() for one in steps]
    passes = ("sdpa.*fprop", "sdpa.*bprop")
    times = [1e3 * each[each.index.str.contains(which)].sum() for which in passes for each in sums]
    said = "takes {1:.1f} ms instead of {0:.1f}, the backward one {3:.1f} instead of {2:.1f}.".format(*times)
    assert said in page


@pytest.mark.parametrize(
    ("case", "name", "peak_mib"),
    [
        ("autocast", "autocast", 44894),
        ("recompute", "autocast, layers computed again", 27917),
        ("bf16", "all in bf16", 32873),
    ],
)
def test_the_steps_of_transformers_are_predicted_as_said(root, page, case, name, peak_mib):
    source = Repository.find(root).case("nvidia-h100-training", "kernel_breakdown", case)
    table = split_parts(reduced(source).data)["purposes"].set_index("purpose")
    _, run = read_training(source)
    row = table.loc["elementwise"]
    said = f"| {name} | {row['predicted_kernels']:,.0f} of {row['kernels']:,.0f} |"
    for purpose in ("elementwise", "loss"):
        predicted, recorded = 1e3 * table.loc[purpose, ["predicted_s", "recorded_s"]]
        said += f" {predicted:.1f} of {recorded:.1f}, {100 * (predicted / recorded - 1):+.1f} % |"
    said += f" {100 * (table['predicted_s'].sum() / table['recorded_s'].sum() - 1):+.1f} % |"
    said += f" {training_memory(run)['memory_bytes'] / 2**20:,.0f} of {peak_mib:,} |"
    assert said.replace(" -", " −") in page


def test_kernels_that_are_not_vectorised_are_slower_as_said(root, page):
    rows = reduced(Repository.find(root).case("nvidia-h100-training", "kernel_breakdown", "autocast")).data
    own = rows[(rows["purpose"] == "elementwise") & (rows["kind"] == "kernel")]
    work = kernels_of_shapes(own[own["operator"].str.startswith("aten::")], "bf16")
    times = own.loc[work.index].assign(predicted_s=predict(work, find_gpu("h100-sxm"))["time_s"])
    times = times.groupby(times["kernel"].str.contains("vectorized_elementwise"))[["duration_s", "predicted_s"]].sum()
    slow, fast = 1e3 * times.loc[False], 1e3 * times.loc[True]
    assert f"vectorised ones take {fast.iloc[0]:.1f} ms and are predicted to take {fast.iloc[1]:.1f};" in page
    assert f"the others take {slow.iloc[0]:.1f} ms instead of {slow.iloc[1]:.1f}." in page


def test_values_that_are_loaded_one_by_one_matter_as_said(root, page, monkeypatch):
    cases = [Repository.find(root).case("nvidia-h100-training", "kernel_breakdown", name) for name in STEPS]
    recorded_s = [split_parts(reduced(case).data)["purposes"]["recorded_s"].sum() for case in cases]
    for law in ("by_value", "by_value_slowly"):
        monkeypatch.setitem(LAWS, law, LAWS["vectorised"])
    runs = [read_training(case)[1] for case in cases]
    predicted_s = [predict_kernels([run], run.gpu)["total_s"].sum() for run in runs]
    short = [100 * (1 - ours / theirs) for ours, theirs in zip(predicted_s, recorded_s, strict=True)]
    assert f"the three steps {min(short):.0f} to {max(short):.0f} % too short." in page


def test_the_loss_with_rows_that_are_read_once_is_as_said(root, page):
    _, run = read_training(Repository.find(root).case("nvidia-h100-training", "kernel_breakdown", "autocast"))
    gpu = replace(run.gpu, shared_memory_bytes_per_sm=2**30)
    rows = predict_kernels([replace(run, gpu=gpu)], gpu)
    loss = rows[rows["purpose"] == "loss"]["total_s"].sum()
    assert f"Read once, the loss would be predicted to take {1e3 * loss:.1f} ms." in page


def test_a_recording_that_had_no_part_in_the_list_of_operators_agrees_as_said(root, page):
    table = pd.read_csv(root / "results/tracelens/kernel_breakdown/h100_16x559/table.csv")
    table["operator"] = table["operator"].str.removeprefix("aten::")
    model = read_model(root / "resources/models/Qwen1.5-0.5B-Chat.json")
    run = TrainingRun(model, find_gpu("h100-sxm"), 559, 16, gpus=1, implementation="transformers")
    rows = predict_kernels([run], run.gpu)
    rows = rows[(rows["part"] == "forward") & (rows["purpose"] == "elementwise")]
    names = ["mul", "add", "cat", "pow", "silu", "mean", "neg", "rsqrt"]
    ran, listed = table[table["operator"].isin(names)], rows[rows["kernel"].isin(names)]
    assert f"{listed['count'].sum():,.0f} elementwise kernels where {ran['count'].sum()} ran" in page
    took, predicted = (1e3 * part.sum() for part in (ran["time_s"], listed["total_s"]))
    assert f"predicts {predicted:.1f} ms where they took {took:.1f}" in page
    products = 1e3 * rows[rows["kernel"] == "mul"]["total_s"].sum(), 1e3 * ran[ran["operator"] == "mul"]["time_s"].sum()
    assert "products, the most, {:.1f} instead of {:.1f} ms;".format(*products) in page
    copies = rows[rows["kernel"].isin(["cast", "copy_"])]["count"].sum(), table.set_index("operator")["count"]["copy_"]
    assert "the list has {:.0f} where {} ran".format(*copies) in page


def test_programs_of_other_languages_are_read_as_said(root, page):
    programs = Repository.find(root).dataset("nvidia-h200-programs")
    jax, triton = (programs.case("kernel_breakdown", name) for name in ("jax", "triton_sums"))
    assert (reduced(jax)["step"], reduced(jax)["steps"], reduced(jax)["dropped_kernels"]) == ("train 1", 3, 0)
    launches = read_timeline(jax.path("timeline")).kernels
    times = launches[launches["kind"] == "kernel"].groupby("kernel")["duration_s"].sum()
    left = times[times.index.str.startswith("loop_epilogue")].sum() / times.sum()
    assert f"and {(launches['kind'] == 'set').sum()} memsets" in page and f"({100 * left:.1f} % of the kernel" in page
    rates = work_rates(read_timeline(triton.path("timeline")).kernels, "kernel").max()
    assert f"{rates['tb_per_s']:.2f} TB/s, and the product computes {rates['tflop_per_s']:.0f} TFLOP/s" in page
