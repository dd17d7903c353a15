"""Expert tiles: known answers of layers with and without tuned tiles, models that find some, bad input in one line."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from own_cases import own_case, reduced, refused
from support.notebooks import run_notebook

from gpuledger.studies.expert_tiles.figures import draw_rates
from gpuledger.studies.expert_tiles.models import model_rows, model_table
from gpuledger.studies.expert_tiles.tables import tile_table

#: TFLOP/s of experts of a width in long prompts. SGLang has tiles for 1,792, 3,584 and 7,168 columns of 8 on an H100.
RATES = {1024: 100, 1792: 400, 3584: 500, 4000: 250, 7168: 600, 14336: 200}
TOKENS = (1, 16, 64, 256, 1024, 4096)


def measured(rates=None, kernel="sglang_fused_moe_triton", **values):
    """Make up a table of one layer in several widths; small launches take 20 µs more."""
    rows = []
    for width, rate in (rates or RATES).items():
        for tokens in TOKENS:
            time = 2 * tokens * 2 * 4096 * width * 3 / (rate * 1e12) + (2e-5 if tokens <= 256 else 0)
            rows.append({"inter_size": width, "num_tokens": tokens, "latency": 1e3 * time})
    table = pd.DataFrame(rows).assign(kernel_source=kernel, moe_dtype="bfloat16", hidden_size=4096, topk=2)
    table = table.assign(num_experts=8, moe_tp_size=1, moe_ep_size=1, distribution="balanced")
    return table.assign(**values)


@pytest.fixture
def case(tmp_path):
    def of(table, **more):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        table.to_parquet(folder / "moe.parquet")
        content = {"moe": "moe.parquet", "gpu": "h100-sxm", "unit": "ms", "engine": "sglang"}
        return own_case(folder, "expert_tiles", content | more)

    return of


def test_layers_are_told_apart_by_the_tiles_that_the_engine_ships(case):
    result = reduced(case(measured()))
    assert result["bf16_tuned_layers"] == 3 and result["bf16_default_layers"] == 3
    # With 1,024 and 4,096 tokens an expert has 256 and 1,024 rows.
    assert result["bf16_tuned_prompt"] == pytest.approx(500e12) and result["bf16_default_prompt"] == pytest.approx(
        200e12
    )
    assert result.finding == (
        "Experts in bf16 on NVIDIA H100 SXM5 reach 500 TFLOP/s with the tiles that SGLang ships for them, 200 without "
        "(median of launches with long prompts)"
    )
    data = result.data.query("kind == 'prompt' and tuned and tokens == 4096").set_index("inter")
    assert data.loc[7168, ["tile_rows", "tile_columns", "tile_depth"]].tolist() == [128, 256, 64]
    # Of 1,792 columns the next narrower has 1,024, none is wider within twice; 3,584 and 7,168 have 4,000 and 14,336.
    assert data["over_narrower"].to_dict() == pytest.approx({1792: 4, 3584: np.nan, 7168: 2.4}, nan_ok=True)
    assert data["over_wider"].to_dict() == pytest.approx({1792: np.nan, 3584: 2, 7168: 3}, nan_ok=True)
    assert result["bf16_gain"] == pytest.approx(np.sqrt(3.2 * 2.5)) and result["bf16_pairs"] == 2 * 4
    table = tile_table(result.data, result["dram_bandwidth"]).set_index(["kind", "tiles"])
    assert table.loc[("prompt", "tuned"), "flop_per_s"] == pytest.approx(500e12)
    assert table["launches"].sum() == len(RATES) * len(TOKENS)
    # A single token reads two experts of 3,584 columns in 20 µs and what their products take.
    weights = 2 * 3 * 4096 * 3584 * 2
    one = result.data.query("tokens == 1 and inter == 3584").iloc[0]
    assert one["weights_per_s"] == pytest.approx(weights / one["measured_s"], rel=1e-5) and one["kind"] == "decode"


def test_a_panel_has_room_for_what_was_measured_and_says_peak_and_gain(case):
    data = reduced(case(measured())).data.query("kind != 'model'")
    _, axes = plt.subplots()
    draw_rates(axes, data, peak=989e12)
    (text,) = axes.texts
    assert text.get_text() == "data sheet's peak: 989 TFLOP/s\ntuned: 2.83 times the next widths' rate"
    assert 600 < axes.get_ylim()[1] < 989
    plt.close("all")


def test_without_both_kinds_of_tiles_no_rates_are_compared(case):
    usual = reduced(case(measured({5000: 200, 6000: 210})))
    assert usual.finding == "SGLang ships no tiles for any of these experts on NVIDIA H100 SXM5"
    assert usual.get("bf16_gain") is None and usual["bf16_pairs"] == 0
    tuned = reduced(case(measured({1792: 200})))
    assert tuned.finding == "SGLang ships tiles for all of these experts on NVIDIA H100 SXM5"


def test_models_are_listed_with_the_splits_that_have_tiles(tmp_path):
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "me--Broken_config.json").write_text("{")
    (configs / "me--Coder_config.json").write_text(
        json.dumps(json.loads((ROOT / "resources/models/Qwen3-30B-A3B.json").read_text()) | {"num_experts": 160})
    )
    table = model_table(model_rows("sglang", "h100-sxm", configs)).set_index("model")
    gpus = [f"gpus_{split}" for split in (1, 2, 4, 8)]
    assert table.loc["Mixtral-8x7B-v0.1", gpus].tolist() == ["fp8", "bf16, fp8", "bf16, fp8", "bf16"]
    assert table.loc["Qwen3-30B-A3B", gpus].tolist() == ["bf16", "bf16, fp8_block", "bf16", "–"]
    assert table.loc["Coder", "experts"] == 160 and "me--Broken" not in table.index
    # 2,880 columns divide among 8 GPUs, and a shared expert counts as one more.
    assert table.loc["gpt-oss-120b", gpus].tolist() == ["–"] * 4
    shared = model_table(model_rows("sglang", "h200-sxm")).set_index("model")
    assert "fp8_block" in shared.loc["DeepSeek-V3", "gpus_8"]


@pytest.mark.parametrize(
    ("values", "more", "words"),
    [
        ({"kernel_source": "moe_torch_flow_cutlass"}, {}, "column kernel_source: no kernel of Triton's"),
        ({"moe_ep_size": 2}, {}, "no kernel of Triton's on a single rank"),
        ({}, {"gpu": "h1000"}, "h1000"),
        ({"num_tokens": 0}, {}, "num_tokens"),
        ({"latency": -1.0}, {}, "latency"),
    ],
)
def test_bad_input_is_one_line(case, values, more, words):
    with refused(words):
        reduced(case(measured(**values), **more))


@pytest.mark.parametrize("values", [{}, {"rates": {5000: 200}, "moe_dtype": "fp8"}])
def test_the_notebook_draws_and_tabulates_what_a_case_has(case, tmp_path, values):
    run_notebook("expert_tiles", reduced(case(measured(**values))), tmp_path / "out")
    assert (tmp_path / "out/figure.pdf").exists() and (tmp_path / "out/table.csv").exists()
    assert "Mixtral-8x7B-v0.1" in (tmp_path / "out/models.csv").read_text("utf-8")
