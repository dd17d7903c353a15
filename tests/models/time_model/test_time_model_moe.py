"""The law of mixtures of experts: loads of a rank, tiles and their rules, what a layer's kernels take beside them."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.models.time_model import triton_tiles as tile_rules
from gpuledger.models.time_model.constants.table import read_table
from gpuledger.models.time_model.moe import DTYPES, TILES, MoeConstants, expert_loads, load_table, moe_terms
from gpuledger.models.time_model.step import predict
from gpuledger.models.time_model.triton_tiles import RULES, triton_tiles
from gpuledger.models.transformer import Parallel, decode, kernels, read_model
from gpuledger.readers.gpus import find_gpu

H100 = find_gpu("h100-sxm")
MOE = MoeConstants(2e-5, 0.8, 0.7, 1e9, 0.0, 0.0)
MOE_VLLM = dataclasses.replace(MOE, tiles="triton vllm")


def layers(dtype="bf16", **values):
    """Shapes of one rank's mixture-of-experts layer as in Qwen3-30B-A3B."""
    shapes = {"tokens": 64, "chosen": 8, "experts": 128, "ranks": 1, "power": np.nan} | values
    length = max(np.size(value) for value in shapes.values())
    frame = pd.DataFrame({name: np.broadcast_to(value, length) for name, value in shapes.items()})
    sizes = {"hidden": 2048.0, "inter": 768.0, "gates": 2.0} | {
        k: v for k, v in values.items() if k in ("hidden", "inter")
    }
    return {
        name: column.to_numpy(dtype=float) for name, column in frame.assign(**sizes).join(load_table(frame)).items()
    }


def test_choices_of_other_ranks_are_computed_where_a_benchmark_does():
    even = {"tokens": 4096, "chosen": 8, "experts": 128, "ranks": [1, 4, 16], "power": np.nan}
    table = load_table(pd.DataFrame(even | {"foreign": True}))
    # A token has two choices on a rank of four, and one of 16 ranks has half of the tokens.
    assert table["rows"].tolist() == [4096 * 8, 4096 * 8, 4096 * 4]
    assert table["tiles_64"].tolist() == [4096 * 8 / 64, 4096 * 8 / 64, 4096 * 4 / 64]
    assert load_table(pd.DataFrame(even))["rows"].tolist() == [4096 * 8, 4096 * 2, 4096 / 2]
    # Uneven choices meet in fewer tokens.
    uneven = load_table(pd.DataFrame(even | {"power": 1.2, "foreign": True}))["rows"].to_numpy()
    assert uneven[0] == 4096 * 8 and (uneven[1:] < 4096 * 8).all() and (uneven[1:] > 4096 * 8 / 3).all()


def test_tiles_that_a_recording_states_replace_the_rule():
    shapes = layers(tokens=[888], chosen=4)
    ruled = dataclasses.replace(MOE, tiles="128", l2_bytes_per_clock=20.0)
    # 28 rows an expert are one tile of 32 rows by the rule, or two of 16.
    times = [
        moe_terms(H100, c, shapes | more, "bf16")["l2_s"][0]
        for c in (ruled, dataclasses.replace(ruled, tiles="triton vllm"))
        for more in ({"height": np.array([16.0])}, {"height": np.array([32.0])})
    ]
    assert times[0] / times[1] == pytest.approx(2 * 144 / 160) and times[2:] == times[:2]
    assert moe_terms(H100, ruled, shapes, "bf16")["l2_s"][0] == times[1]


def test_narrow_fetches_read_weights_more_slowly():
    # SGLang has no tiles for such experts: more tokens than experts fetch 32 values of a row at a time.
    shapes = layers(tokens=[64, 256], inter=1536.0)
    constants = dataclasses.replace(MOE, tiles="triton sglang", narrow_share=0.5)
    wide, narrow = (moe_terms(H100, c, shapes, "bf16")["dram_s"] for c in (MOE, constants))
    assert (narrow / wide).tolist() == pytest.approx([1, 2], rel=0.01)


def test_loads_of_experts():
    assert expert_loads(64, 8, 128, 1).tolist() == [4.0] * 128
    assert expert_loads(3, 2, 8, 1).tolist() == [1.0] * 6 + [0.0] * 2
    assert expert_loads(64, 8, 128, 16).tolist() == [4.0] * 8
    uneven = expert_loads(4096, 8, 128, 1, power=1.2)
    assert uneven.sum() == 4096 * 8 and uneven.max() <= 4096 and (np.diff(uneven) <= 0).all()
    # As drawn for few tokens, between 0.01 and 2 with a mean of 0.374: 58 experts are above half of it, and the 8 rows
    # that rounding loses go to experts without any.
    few = expert_loads(16, 8, 128, 1, power=1.01)
    assert few.sum() == 128 and (few > 0).sum() == 66 and few.max() == 5
    # One token chooses 8 experts once each, however uneven.
    assert sorted(expert_loads(1, 8, 128, 1, power=1.2)) == [0] * 120 + [1] * 8
    # The fullest rank has more than its share.
    assert expert_loads(4096, 8, 128, 8, power=1.2).sum() > 1.2 * 4096


def test_moe_of_few_tokens_is_as_long_as_reading_the_chosen_experts():
    time_s = moe_terms(H100, MOE, layers(tokens=[2, 64], inter=3072.0), "bf16")["time_s"]
    weights = 3 * 2048 * 3072 * 2 / (0.8 * 3.35e12)
    assert time_s - 2e-5 == pytest.approx([16 * weights, 128 * weights], rel=0.05)
    shapes = layers(tokens=64, inter=3072.0)
    assert moe_terms(H100, MOE, shapes, "fp8")["dram_s"][0] == pytest.approx(64 * weights, rel=0.02)


def test_a_repeated_layer_that_fits_stays_in_l2_and_one_of_many_does_not():
    gpu = find_gpu("l40s")
    shapes = layers(tokens=1, hidden=1024.0, inter=512.0)
    weights = 8 * 3 * 1024 * 512 * 2
    assert moe_terms(gpu, MOE, shapes, "bf16")["dram_s"][0] == pytest.approx(
        weights / (8 * gpu.sms * gpu.clock_hz), rel=0.01
    )
    among = moe_terms(gpu, MOE, shapes | {"layers": np.array([32.0])}, "bf16")["dram_s"][0]
    assert among == pytest.approx(weights / (0.8 * 864e9), rel=0.01)


def test_triton_takes_the_tiles_of_its_defaults():
    shapes = layers(tokens=[128, 256], inter=1536.0)
    compute = {
        rule: moe_terms(H100, dataclasses.replace(MOE, tiles=rule), shapes, "bf16")["compute_s"] for rule in RULES
    }
    # 8 and 16 rows of each of 128 experts: tiles of 16 or 64 rows, by tokens of 64 rows; waves are whole.
    useful = np.array([8, 16]) * 128 * 3 * 2 * 2048 * 1536 / (0.7 * 989.4e12)
    assert compute["triton sglang"] == pytest.approx(useful * [16 / 8, 64 / 16], rel=0.05)
    assert compute["triton vllm before 0.16"].tolist() == compute["triton sglang"].tolist()
    assert compute["triton vllm"] == pytest.approx(useful * [64 / 8, 64 / 16], rel=0.05)


def tiles(rule, gpu, dtype, experts, columns, tokens):
    sizes = (np.full(len(tokens), float(size)) for size in (experts, columns))
    return triton_tiles(rule, find_gpu(gpu), dtype, *sizes, np.array(tokens, dtype=float))


def test_tiles_are_those_that_an_engine_ships_for_the_experts():
    # Mixtral-8x7B on two H100: files have 2 and 4 tokens, as near to 3; of a ninth expert there is no file.
    found = tiles("triton sglang", "h100-sxm", "bf16", 8, 7168, [1, 3, 4096])
    assert found.rows.tolist() == [16, 64, 128] and found.columns.tolist() == [64, 64, 256]
    assert found.tuned.all() and not tiles("triton sglang", "h100-sxm", "bf16", 9, 7168, [1]).tuned.any()
    # Of 128 and 256 tokens, 192 are as near to both: the first.
    near = [tiles("triton vllm", "h200-sxm", "bf16", 8, 7168, [tokens]) for tokens in (128, 192, 193, 2000)]
    assert near[0] == near[1] != near[2] == near[3]
    # Before 0.16, vLLM had SGLang's defaults and files of its own.
    old, now = (tiles(rule, "a100-sxm-80gb", "bf16", 8, 7168, [64]) for rule in (RULES[2], RULES[1]))
    assert old == now and old.tuned.all()


@given(
    st.sampled_from(RULES),
    st.sampled_from(["h100-sxm", "b200", "l4", "l40s"]),
    st.sampled_from(["bf16", "fp8", "fp8_block", "int4_wo"]),
    st.integers(1, 512),
    st.integers(1, 20000),
    st.lists(st.integers(1, 2**20), min_size=1, max_size=5),
)
def test_every_tile_is_one_that_loads_are_counted_for(rule, gpu, dtype, experts, columns, tokens):
    found = tiles(rule, gpu, dtype, experts, columns, tokens)
    assert np.isin(found.rows, TILES).all() and (found.columns >= 32).all() and (found.depth >= 32).all()
    assert (found.stages >= 2).all() and len(found.tuned) == len(tokens)


def test_a_damaged_table_of_tiles_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "tiles.csv"
    path.write_text("engine,version,gpu,precision,experts,columns,tiles\nsglang,1,h100-sxm,bf16,8,7168,1:16x32x64\n")
    monkeypatch.setattr(tile_rules, "TABLE", path)
    tile_rules._tuned.cache_clear()
    with pytest.raises(InputError, match=r"tiles.csv.*line 2, column tiles: '1:16x32x64' is no list of tiles"):
        tiles("triton sglang", "h100-sxm", "bf16", 8, 7168, [1])
    tile_rules._tuned.cache_clear()


def test_a_step_waits_for_dram_and_less_for_l2():
    slow = dataclasses.replace(MOE, tiles="triton sglang", fetch_s=1e-5)
    # One expert with one token: 2 · 1536 / 32 and 2048 / 32 tiles fit on the SMs at a time, each with 32 and 24 steps
    # of 64 values, two of three in flight.
    shapes = layers(tokens=1, chosen=1, experts=1, inter=1536.0)
    warm = moe_terms(H100, slow, shapes, "bf16")["chain_s"][0]
    cold = moe_terms(H100, slow, shapes | {"layers": np.array([48.0])}, "bf16")["chain_s"][0]
    assert cold == pytest.approx((32 + 24) / 2 * 1e-5, rel=0.01) and warm == pytest.approx(0.4 * cold, rel=0.01)
    assert moe_terms(H100, MOE, shapes, "bf16")["chain_s"][0] == 0


def test_columns_that_triton_cannot_fetch_together_take_longer():
    slow = dataclasses.replace(MOE_VLLM, unaligned_factor=4.0)
    for inter, factor, dtype in ((1408.0, 1, "bf16"), (1416.0, 2, "bf16"), (1416.0, 1, "w4a16_mxfp4")):
        shapes = layers(tokens=64, inter=inter)
        usual, longer = (moe_terms(H100, c, shapes, dtype)["time_s"][0] - 2e-5 for c in (MOE_VLLM, slow))
        # The second of two GEMMs, of which the first is twice as large.
        assert longer / usual == pytest.approx(factor, rel=0.02)


def test_experts_take_a_time_each():
    slow = dataclasses.replace(MOE, router_s=1e-8, expert_s=1e-7)
    shapes = layers(tokens=64, ranks=[1, 4])
    more = moe_terms(H100, slow, shapes, "bf16")["launch_s"] - moe_terms(H100, MOE, shapes, "bf16")["launch_s"]
    assert more == pytest.approx([128e-8 + 128e-7, 128e-8 + 32e-7])


def test_a_pass_takes_the_tiles_for_its_tokens_not_for_their_choices():
    """SGLang's defaults read weights faster for up to as many tokens as experts; 64 tokens have 512 choices."""
    l40s, kernel = find_gpu("l40s"), "sglang_fused_moe_triton"
    entry = next(entry for entry in read_table("moe") if entry[:4] == ("l40s", "sglang", kernel, "bf16"))
    frame = predict(kernels(read_model("Qwen3-30B-A3B"), decode(1024, batch=64)), l40s, "sglang")
    layer = frame[frame["kernel"].str.startswith("expert_") | (frame["kernel"] == "router_topk")]
    assert layer["constants"].str.contains(kernel).all()
    shapes = layers(tokens=64) | {"layers": np.array([48.0])}
    few, many = (
        moe_terms(l40s, entry.constants, shapes | {"arrived": np.array([tokens])}, "bf16")["time_s"][0]
        for tokens in (64.0, 512.0)
    )
    assert layer["time_s"].sum() == pytest.approx(few, rel=0.05) and many > 1.2 * few


def test_experts_of_a_device_are_read_no_faster_than_its_memory_allows():
    """A token chooses 2 of 8 experts, so that the busier of two devices expects 1.46 of them: no whole number."""
    gpu, work = find_gpu("rtx-3080"), decode(512, np.array([1, 2, 3]))
    rows = predict(kernels(read_model("Mixtral-8x7B-v0.1"), work, Parallel(2, 1, 2), expert_load=0.55), gpu)
    rows = rows[rows["kind"] == "grouped_gemm"]
    assert (rows["weight_bytes"] / rows["time_s"] < gpu.dram_bytes_per_s).all()


def test_marlin_takes_tiles_that_choices_fill_to_less_than_nine_tenths():
    shapes = layers(tokens=[115, 116, 460, 2000])
    marlin = dataclasses.replace(MOE, tiles="marlin")
    found = moe_terms(H100, marlin, shapes, "bf16")["compute_s"]
    # 7.2 choices an expert are the most for tiles of 8 rows, 28.8 for those of 32; each expert has 8, 8, 29 and 125.
    useful = np.array([115, 116, 460, 2000]) * 8 * 3 * 2 * 2048 * 768 / (0.7 * 989.4e12)
    choices = shapes["rows"] / 128
    assert found == pytest.approx(useful * [8, 16, 32, 128] / choices, rel=0.02)


def test_mxfp4_is_padded_where_engines_pad_it():
    """The grid of a recorded kernel says so: gpt-oss on eight B200 has 2880 / 8 columns, and 512 in its tiles."""
    sizes = {"tokens": 1.0, "chosen": 4.0, "experts": 128.0, "own": 128.0, "rows": 4.0, "active": 4.0, "gates": 2.0}
    sizes |= {"layers": 32.0}
    sizes |= {f"tiles_{height}": 4.0 for height in TILES}
    shapes = {name: np.full(2, value) for name, value in sizes.items()}
    shapes |= {"hidden": np.array([2880.0, 3072.0]), "inter": np.array([360.0, 512.0])}

    def weights_s(gpu, dtype):
        return moe_terms(find_gpu(gpu), MOE, shapes, dtype)["dram_s"]

    assert weights_s("b200", "w4a8_mxfp4_mxfp8")[0] == pytest.approx(weights_s("b200", "w4a8_mxfp4_mxfp8")[1])
    for gpu, dtype in (("h100-sxm", "w4a16_mxfp4"), ("b200", "nvfp4"), ("rtx-pro-6000", "w4a8_mxfp4_mxfp8")):
        narrow, wide = weights_s(gpu, dtype)
        assert narrow < 0.8 * wide


def test_rows_that_fill_up_tiles_of_the_first_product_take_time():
    shapes = layers(tokens=512, ranks=16)
    filling = dataclasses.replace(MOE, tiles="256", filling_bytes_per_clock=10.0, l2_bytes_per_clock=1e9)
    found = moe_terms(H100, filling, shapes, "bf16")["l2_s"][0]
    # 32 rows in tiles of 256: eight experts with twelve tiles of columns.
    assert found == pytest.approx(8 * 12 * (256 - 32) * 2048 * 2 / (132 * 10.0 * H100.clock_hz), rel=1e-3)
    none = dataclasses.replace(filling, filling_bytes_per_clock=0.0)
    assert moe_terms(H100, none, shapes, "bf16")["l2_s"][0] < 1e-3 * found


def test_moe_of_many_tokens_runs_at_the_tensor_share():
    shapes = layers(tokens=65536, hidden=4096.0, inter=4096.0)
    found = moe_terms(H100, MOE, shapes, "bf16")["time_s"][0]
    assert found == pytest.approx(65536 * 8 * 3 * 2 * 4096 * 4096 / (0.7 * 989.4e12), rel=0.03)


def test_tiles_chosen_by_all_choices_are_too_tall_on_one_of_many_ranks():
    shapes = layers(tokens=[16, 512], ranks=16)
    best, tall, low = (
        moe_terms(H100, dataclasses.replace(MOE, tiles=tiles), shapes, "bf16")["compute_s"]
        for tiles in ("best", "256", "64")
    )
    # 128 choices of 8 experts: tiles of 16 rows for 1; then 4096: tiles of 256 or 64 rows for 32.
    assert tall[0] == low[0] == pytest.approx(2 * best[0]) and tall[1] == pytest.approx(4 * low[1]) and low[1] > best[1]


def test_moved_bytes_count_the_rank_s_rows_or_all_choices():
    # Choices in the columns of both GEMMs: 2048 hidden ones, and 2 · 6144.
    for name, count, columns in (("row_bytes", 512 * 8 / 8, 2048), ("choice_bytes", 512 * 8, 2048 + 2 * 6144)):
        constants = dataclasses.replace(MOE, **{name: 10.0})
        moved = moe_terms(H100, constants, layers(tokens=512, ranks=8, inter=6144.0), "bf16")["moved_s"][0]
        assert moved == pytest.approx(10 * count * columns / 3.35e12, rel=1e-3)


def test_each_tile_has_a_time_of_its_own():
    # 256 experts with a row each: 12 tiles of 128 columns in the first GEMM, 16 in the second, on 132 SMs.
    constants = dataclasses.replace(MOE, tiles="64", block_s=1e-3)
    shapes = layers(tokens=32, experts=256)
    found = moe_terms(H100, constants, shapes, "bf16")["compute_s"][0]
    assert found == pytest.approx((24 + 32) * 1e-3, rel=0.01)
    even = moe_terms(H100, dataclasses.replace(constants, tiles="marlin"), shapes, "bf16")["compute_s"][0]
    assert even == pytest.approx(256 * (12 + 16) / 132 * 1e-3, rel=0.01)
    assert moe_terms(H100, constants, layers(tokens=1, chosen=1), "bf16")["compute_s"][0] == pytest.approx(
        2e-3, rel=0.01
    )


def test_a_rank_that_computes_other_ranks_choices_gets_no_other_tokens():
    constants = dataclasses.replace(MOE, choice_bytes=10.0)
    shapes = layers(tokens=4096, chosen=8, experts=64, ranks=[8, 64], foreign=[True, True])
    own, few = moe_terms(H100, constants, shapes, "bf16")["moved_s"]
    # With 64 ranks, 512 rows of an even load are of 512 tokens.
    assert own / few == pytest.approx(8, rel=0.01)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5000),
    st.sampled_from([8, 64, 256]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([np.nan, 1.01, 1.2]),
    st.sampled_from(sorted(DTYPES)),
)
def test_loads_and_times_are_consistent(tokens, experts, ranks, power, dtype):
    shapes = layers(tokens=[tokens, 2 * tokens], experts=experts, chosen=4, ranks=ranks, power=power)
    assert (shapes["active"] <= experts / ranks + 1e-9).all() and (shapes["rows"] >= shapes["active"] - 1e-9).all()
    gpu = find_gpu("b200")
    once, twice = moe_terms(gpu, dataclasses.replace(MOE, l2_bytes_per_clock=60.0), shapes, dtype)["time_s"]
    assert 2e-5 < once <= twice * 1.001
