"""What docs/RECORDED.md says of training steps that were predicted before they were recorded, and of masks."""

import numpy as np
import pandas as pd
import pytest
from own_cases import reduced

from gpuledger.ledger.datasets import Repository
from gpuledger.ledger.parts import split_parts
from gpuledger.models.time_model.operators import LAWS, OperatorConstants
from gpuledger.models.time_model.step import predict
from gpuledger.models.training import training_memory
from gpuledger.models.training.step import predict_kernels
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_breakdown.timeline.shapes import kernels_of_shapes, read_shapes, read_types
from gpuledger.studies.kernel_breakdown.timeline.training import read_training

#: Steps that were predicted before they were recorded: name in the page, row of the predictions, peak of memory (MiB).
BLIND = {
    "qwen2_autocast": ("Qwen2.5-1.5B, autocast", 1, 61057),
    "qwen2_bf16": ("Qwen2.5-1.5B, bf16", 2, 45883),
    "qwen3_bf16": ("Qwen3-1.7B, bf16", 3, 48961),
    "qwen3_recompute": ("Qwen3-1.7B, autocast, layers computed again", 4, 36928),
    "llama3_bf16": ("Llama 3.2 3B, bf16", 0, 59363),
}


@pytest.fixture(scope="module")
def page(root):
    return " ".join((root / "docs/RECORDED.md").read_text("utf-8").replace("**", "").split())


@pytest.fixture(scope="module")
def blind(root):
    cases = {name: Repository.find(root).case("nvidia-h200-training", "kernel_breakdown", name) for name in BLIND}
    return {name: (split_parts(reduced(case).data), read_training(case)[1]) for name, case in cases.items()}


@pytest.mark.parametrize("case", BLIND)
def test_what_was_predicted_before_is_as_said(root, page, blind, case):
    name, row, peak_mib = BLIND[case]
    before = pd.read_csv(root / "traces/nvidia-h200-training/predicted_before.csv").iloc[row]
    table = blind[case][0]["purposes"].set_index("purpose")["recorded_s"]
    assert (before["model"], before["micro_batch"]) == (blind[case][1].model.name, blind[case][1].micro_batch)
    recorded = table["GEMM"], table["attention"], table.drop(["GEMM", "attention"]).sum()
    pairs = zip(before[["gemm_s", "attention_s", "other_s"]], recorded, strict=True)
    said = " | ".join(f"{1e3 * one:.1f} of {1e3 * other:.1f}" for one, other in pairs)
    said += f" | {100 * (before['step_s'] / table.sum() - 1):+.1f} % |".replace("-", "−")
    folder = f"../results/nvidia-h200-training/kernel_breakdown/{case}"
    assert f"| [{name}]({folder}) | {said} {before['memory_bytes'] / 2**20:,.0f} of {peak_mib:,} |" in page


@pytest.mark.parametrize("case", BLIND)
def test_what_the_mended_model_predicts_is_as_said(page, blind, case):
    name, _, peak_mib = BLIND[case]
    parts, run = blind[case]
    table = parts["purposes"].set_index("purpose")
    said = f"| {name} | {table['predicted_kernels']['elementwise']:,} of {table['kernels']['elementwise']:,} |"
    for purpose in ("elementwise", "loss", "update"):
        said += " {predicted_s:.1f} of {recorded_s:.1f} |".format(**1e3 * table.loc[purpose])
    kernels = predict_kernels([run], run.gpu)
    full_s = (kernels["full_s"] * kernels["count"]).sum()
    for predicted_s in (full_s, table["predicted_s"].sum()):
        said += f" {100 * (predicted_s / table['recorded_s'].sum() - 1):+.1f} % |".replace("-", "−")
    assert f"{said} {training_memory(run)['memory_bytes'] / 2**20:,.0f} of {peak_mib:,} |" in page


def test_the_slow_sum_and_the_fall_of_the_clock_are_as_said(page, blind):
    rows = blind["qwen3_bf16"][0]["launches"]
    sums = rows[rows["operator"].eq("aten::sum") & rows["shapes"].str.startswith("[[2, 4096, 16, 128]")]
    longest = sums[sums["name"] == "reduce_kernel"].query("grid == '1x2048x1'")["duration_s"].median()
    assert f"which takes {1e6 * longest:.0f} µs. 2,048 blocks do" in page
    rows = blind["llama3_bf16"][0]["launches"]
    times = 1e3 * rows[rows["kernel"].str.contains("sdpa.*fprop")]["duration_s"]
    first, last = times[:5], times[-5:]
    assert f"takes {first.min():.2f} to {first.max():.2f} ms in the first five layers" in page
    assert f"and {last.min():.2f} to {last.max():.2f} ms in the last five" in page
    runs = [run for _, run in blind.values()]
    *others, last = (predict_kernels([run], run.gpu)["clock_hz"].iloc[0] / 1e6 for run in runs)
    assert f"{last:,.0f} MHz in this step, and at {min(others):,.0f} to {max(others):,.0f} in the others" in page


def by_value(launches, gpu):
    """Return kernels that load values one by one, with the cycles of an SM for each value beside memory traffic."""
    own = launches[(launches["kind"] == "kernel") & launches["purpose"].isin(["elementwise", "loss", "weights"])]
    one_by_one = own["kernel"].str.contains("native::elementwise_kernel|unrolled_elementwise|CatArray")
    own = own[own["operator"].str.startswith("aten::") & one_by_one]
    work = kernels_of_shapes(own, "bf16")
    work = work[work["n"] > 2e6]
    own = own.loc[work.index]
    typed = own["types"].map(lambda text: {"float", "BFloat16"} <= set(read_types(text)))
    slow = own["kernel"].str.contains("native::elementwise_kernel") & typed | own["kernel"].str.contains("CatArray")
    values = work["n"]
    work = work.assign(law=slow.map({True: "by_value_slowly", False: "by_value"}), m=values, n=1)
    constants = OperatorConstants()
    memory_s = (work["read_bytes"] + work["write_bytes"]) / (constants.dram_share * gpu.dram_bytes_per_s)
    rest_s = ((own["duration_s"] - constants.launch_s) ** 2 - memory_s**2).clip(0) ** 0.5
    accesses = own["shapes"].map(lambda text: len([shape for shape in read_shapes(text) if shape]) + 1)
    accesses -= own["operator"].str.endswith("copy_")
    before_s = constants.launch_s + memory_s
    before_s += values * accesses / (constants.accesses_per_cycle * gpu.clock_hz * gpu.sms)
    cycles = rest_s * gpu.clock_hz * gpu.sms / values
    return own[["duration_s"]].assign(
        law=work["law"], cycles=cycles, predicted_s=predict(work, gpu)["time_s"], before_s=before_s
    )


def weighted_median(values, weights):
    order = values.sort_values().index
    return values[order][(weights[order].cumsum() >= weights.sum() / 2)].iloc[0]


def test_the_law_of_values_one_by_one_is_an_h100s_and_judged_on_an_h200(root, page, blind):
    repository = Repository.find(root)
    h100 = [
        repository.case("nvidia-h100-training", "kernel_breakdown", one) for one in ("autocast", "bf16", "recompute")
    ]
    recorded = {
        "h100-sxm": [split_parts(reduced(case).data)["launches"] for case in h100],
        "h200-sxm": [parts["launches"] for parts, _ in blind.values()],
    }
    found, errors = {}, {}
    for gpu, launches in recorded.items():
        rows = pd.concat([by_value(one, find_gpu(gpu)) for one in launches], ignore_index=True)
        found[gpu] = [weighted_median(own["cycles"], own["duration_s"]) for _, own in rows.groupby("law")]
        for name in ("predicted_s", "before_s"):
            each = np.abs(np.log(rows[name] / rows["duration_s"]))
            errors[gpu, name] = 100 * np.average(each, weights=rows["duration_s"])
    assert found["h100-sxm"] == pytest.approx(
        [LAWS[name].value_cycles for name in ("by_value", "by_value_slowly")], abs=0.005
    )
    plain, slow = found["h200-sxm"]
    assert f"on an H200, of other models, they are {plain:.2f} and {slow:.2f};".lower() in page.lower()
    assert f"its kernels are off by {errors['h200-sxm', 'predicted_s']:.0f} % in the mean" in page
    assert f"store, which is off by {errors['h200-sxm', 'before_s']:.0f} %" in page


def test_the_cost_of_a_mask_is_as_said(root, page):
    keys = ["backend", "batch", "tokens", "heads", "head_dim", "variant"]
    table = pd.read_csv(root / "traces/nvidia-h200-training/attention_mask.csv").set_index(keys)
    table = table[["forward_ms", "backward_ms"]].sort_index()
    steps = table.loc["cudnn", 2, 4096, 32, 64]
    first = steps.loc["causal"]
    assert "| `is_causal` | {:.2f} | {:.2f} |".format(*first) in page
    for before, variant, name in (
        ("causal", "all", "all pairs of tokens"),
        ("all", "mask", "with a mask in bf16"),
        ("mask", "mask expanded", "and keys and values of 32 heads"),
    ):
        pairs = zip(steps.loc[variant], steps.loc[variant] / steps.loc[before], strict=True)
        said = " | ".join(f"{ms:.2f}, {times:.2f} times that" for ms, times in pairs)
        assert f"| {name} | {said} |" in page
    assert "Together {:.2f} and {:.2f} times".format(*(steps.loc["mask expanded"] / first)) in page
    wide = table.xs(128, level="head_dim").loc["cudnn"]
    every, mask = (
        wide.xs(one, level="variant") / wide.xs(other, level="variant")
        for one, other in (("all", "causal"), ("mask", "all"))
    )
    (low, back), (high, back_high) = every.min(), every.max()
    assert f"are {low:.2f} to {high:.2f} forward and {back:.2f} to {back_high:.2f} backward" in page
    assert f"and {mask.min().min():.2f} to {mask.max().max():.2f} for the mask" in page
    cudnn = table.loc["cudnn"]
    truth = cudnn.xs("bool", level="variant") / cudnn.xs("mask", level="variant")
    assert f"truth values costs up to {100 * (truth.max().max() - 1):.0f} % more" in page
    expanded = [
        cudnn.xs(f"{one} expanded", level="variant") / cudnn.xs(one, level="variant")
        for one in ("causal", "all", "mask", "bool")
    ]
    shares = 100 * (pd.concat(expanded).dropna() - 1)
    assert f"cost −{-shares.min().min():.0f} to +{shares.max().max():.0f} %" in page
    assert set(table.loc["flash"].index.get_level_values("variant").str.split().str[0]) == {"causal", "all"}
    slow = table.loc["efficient"].filter(like="mask", axis=0)
    ratios = (slow / cudnn.reindex(slow.index)).stack()
    assert f"takes {ratios.min():.1f} to {ratios.max():.1f} times as long with one" in page
