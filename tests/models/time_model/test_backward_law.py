"""The backward pass of attention: known answers, a scheduler of blocks beside the law, what an H100 measured."""

import dataclasses
import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger import files
from gpuledger.models.time_model import held_back
from gpuledger.models.time_model.attention import backward_law, prefill_law
from gpuledger.models.time_model.attention.backward_law import PRODUCTS, BackwardConstants, backward_terms
from gpuledger.models.time_model.attention.prefill_law import PrefillConstants, prefill_terms
from gpuledger.models.time_model.constants.choice import backward_candidates, candidates, fastest
from gpuledger.models.time_model.constants.fit_law import fit_law
from gpuledger.models.time_model.constants.table import PYTORCH, read_table
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.engines import read_attention

A100, H100, H200, B200, L40S = (find_gpu(name) for name in ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "l40s"))
PEAK = H100.peak_flop_per_s("bf16")
#: Neither launches nor traffic nor scores: blocks and products alone.
PLAIN = BackwardConstants(1e-9, 1e-12, 1.0, 1e9, 1e-6, 1e-9)


def shapes(requests, tokens, heads, kv_heads=None, head_dim=128):
    sizes = {
        "requests": requests,
        "tokens": tokens,
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
    }
    sizes |= {"head_dim": head_dim, "value_bytes": 2, "peak": PEAK, "context": 0, "window": 0, "cache_bytes": 2}
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value, dtype=float)) for value in sizes.values()))
    found = dict(zip(sizes, arrays, strict=True))
    return found | {"cache_values": 2 * found["kv_heads"] * found["head_dim"], "copied_values": 0 * found["tokens"]}


def test_a_long_pass_takes_five_products_of_the_pairs_under_the_mask():
    flop = 4 * PRODUCTS * 64 * 32 * 32768**2 / 2 * 128
    assert backward_terms(H100, PLAIN, shapes(64, 32768, 32))["time_s"] == pytest.approx(flop / PEAK, rel=0.01)
    half = dataclasses.replace(PLAIN, wide_factor=0.5)
    wide = shapes(64, 32768, 32, head_dim=256)
    assert backward_terms(H100, half, wide)["time_s"] == pytest.approx(4 * flop / PEAK, rel=0.01)


def test_scores_of_small_heads_bound_their_tiles():
    slow = dataclasses.replace(PLAIN, scores_per_clock=1.0)
    scores = 16 * 16 * 16384**2 / 2 / (H100.sms * H100.clock_hz)
    assert backward_terms(H100, slow, shapes(16, 16384, 16, head_dim=64))["time_s"] == pytest.approx(scores, rel=0.02)


def test_one_head_takes_as_long_as_its_first_block_and_heads_of_one_wave_no_longer():
    one, all_at_once = (backward_terms(H100, PLAIN, shapes(1, 4096, heads))["time_s"] for heads in (1, 4))
    block = 64 * tile_s(64, 5)
    assert one == pytest.approx(block, rel=0.01) and all_at_once == pytest.approx(block, rel=0.05)


def test_heads_that_share_keys_sum_their_gradients():
    alone, shared = (backward_law.moved_bytes(shapes(2, 1000, 32, kv_heads))[0] for kv_heads in (32, 8))
    values = 2 * 1000 * 128
    # Results, their gradients twice, queries; gradients of keys and values; in 32 bits three times; rounded.
    assert alone == values * 32 * (2 * (4 + 2 + 2) + 3 * 4 + 2)
    assert shared == values * (32 * (2 * (4 + 2) + 3 * 4 + 2) + 2 * 2 * 8 + 2 * 2 * (32 + 8))
    constants = dataclasses.replace(PLAIN, grouped_s=1e-3)
    assert backward_terms(H100, constants, shapes(1, 128, 32, 8))["launch_s"] == pytest.approx(1e-3, rel=0.01)
    assert backward_terms(H100, constants, shapes(1, 128, 32))["launch_s"] == pytest.approx(1e-9)


def scheduled(blocks, sms):
    """Start blocks in order, each on the SM that is free first, and return when the last one ends."""
    free, last = [0.0] * sms, 0.0
    for length in blocks:
        end = heapq.heappop(free) + length
        last = max(last, end)
        heapq.heappush(free, end)
    return last


def tile_s(rows, products=2.0):
    return 2 * products * rows * 128 * 128 * H100.sms / PEAK


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 300), st.integers(1, 100))
def test_blocks_end_when_a_scheduler_says(heads, key_tiles):
    """Longest first in each head, head by head: within 3 %, or a round of blocks where there is little to do."""
    lengths = 2 * np.arange(key_tiles, 0, -1)
    exact = tile_s(64, 5) * scheduled(np.tile(lengths, heads), H100.sms)
    found = backward_terms(H100, PLAIN, shapes(1, 128 * key_tiles, heads))["time_s"][0]
    if heads * key_tiles > 10 * H100.sms:
        assert found == pytest.approx(exact, rel=0.03)
    assert exact / 2.01 <= found <= 1.3 * exact


@pytest.mark.parametrize(("heads", "tiles"), [(8, 32), (12, 32), (16, 24), (32, 16), (8, 64)])
def test_the_forward_pass_ends_late_as_well(heads, tiles):
    constants = PrefillConstants(1e-12, 1e-12, 1.0, 1e9, 1.0, overlap=4.0, copy_factor=1e-6, row_s=1e-12)
    late, without = (
        prefill_terms(H100, dataclasses.replace(constants, late_share=share), shapes(1, 128 * tiles, heads))["time_s"][
            0
        ]
        for share in (0.8, 0.0)
    )
    exact = tile_s(128) * scheduled(np.tile(np.arange(tiles, 0, -1), heads), H100.sms)
    assert late == pytest.approx(exact, rel=0.1) and without < 0.83 * exact


def test_the_laws_without_late_heads_are_those_of_before():
    constants = PrefillConstants(1e-6, 1e-6, 0.5, 16.0, 0.8)
    found = prefill_terms(H100, constants, shapes(1, 4096, 32))["time_s"]
    later = prefill_terms(H100, dataclasses.replace(constants, late_share=0.5), shapes(1, 4096, [32, 4]))["time_s"]
    assert later[0] > found[0], "1,024 blocks fill the SMs many times"
    assert later[1] == prefill_terms(H100, constants, shapes(1, 4096, 4))["time_s"][0], "128 blocks start at once"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 64),
    st.integers(1, 65536),
    st.integers(1, 64),
    st.sampled_from([1, 4]),
    st.sampled_from([64, 128, 256]),
    st.sampled_from(["torch_flash", "torch_cudnn"]),
)
def test_more_takes_longer(requests, tokens, heads, group, head_dim, kernel):
    (entry,) = (entry for entry in backward_candidates(H100) if entry.kernel == kernel)

    def time_s(requests, tokens):
        return backward_terms(H100, entry.constants, shapes(requests, tokens, heads * group, heads, head_dim))["time_s"]

    base = time_s(requests, tokens)
    assert np.isfinite(base).all() and base > 0
    assert time_s(2 * requests, tokens) >= base and time_s(requests, 2 * tokens) >= base
    pairs = requests * heads * group * tokens**2 / 2
    assert base >= 4 * PRODUCTS * pairs * head_dim / PEAK, "never faster than the peak"


def test_a_fit_finds_the_constants_that_made_the_times():
    made = BackwardConstants(9e-6, 1.5e-6, 0.55, 3.0, 0.9, 4e-6, 0.7, "cudnn")
    rng = np.random.default_rng(3)
    drawn = shapes(rng.integers(1, 9, 300), 2 ** rng.integers(8, 15, 300), 4 * rng.integers(1, 9, 300), np.ones(300))
    drawn |= {"kv_heads": np.where(rng.random(300) < 0.5, drawn["heads"], drawn["heads"] / 4)}
    drawn |= {"head_dim": rng.choice([64.0, 128.0, 256.0], 300)}
    (start,) = backward_law.starts([backward_law.START], "torch_cudnn")
    start, bounds = backward_law.started(start, drawn)
    time_s = backward_terms(H100, made, drawn)["time_s"]
    found = fit_law(lambda constants: backward_terms(H100, constants, drawn)["time_s"], start, bounds, time_s)
    assert backward_terms(H100, found, drawn)["time_s"] == pytest.approx(time_s, rel=0.01)
    assert found.tensor_share == pytest.approx(0.55, rel=0.05)
    # Heads of one width and none that share keys say nothing of what is missing.
    plain = {"head_dim": np.full(3, 128.0), "heads": np.ones(3), "kv_heads": np.ones(3)}
    assert not {"wide_factor", "grouped_s"} & set(backward_law.started(start, plain)[1])


def test_what_an_h100_measured_is_predicted_and_twice_and_a_half_the_forward_kernel_is_less_near():
    table, skipped = read_attention(files.ROOT / "traces/nvidia-h100/kernel_time/attention.csv", "ms")
    assert not skipped and table.groupby("operator").size().to_dict() == {
        "backward": 322,
        "decode": 308,
        "prefill": 322,
    }
    sizes = ("requests", "tokens", "context", "heads", "kv_heads", "head_dim", "window")
    for entry in backward_candidates(H100):
        rows = table[(table["kernel"] == entry.kernel) & (table["operator"] == "backward")]
        back = rows[held_back(*(rows[name].to_numpy() for name in sizes))]
        of = {name: back[name].to_numpy(float) for name in (*sizes, "cache_values", "value_bytes", "cache_bytes")}
        of |= {"peak": np.full(len(back), PEAK), "copied_values": np.zeros(len(back))}
        measured = back["measured_s"].to_numpy()
        error = 100 * np.abs(backward_terms(H100, entry.constants, of)["time_s"] / measured - 1).mean()
        assert error == pytest.approx(entry.error_percent, abs=0.01) and error < 4
        (ahead,) = (one for one in read_table("prefill") if (one.gpu, one.kernel) == (H100.name, entry.kernel))
        rule = PRODUCTS * prefill_terms(H100, ahead.constants, of)["time_s"]
        assert 100 * np.abs(rule / measured - 1).mean() > 2 * error


def test_pytorchs_kernels_are_those_of_gpus_that_run_the_same_code():
    assert {entry.kernel for entry in backward_candidates(H100)} == {"torch_flash", "torch_cudnn"}
    assert {entry.gpu for entry in backward_candidates(H200)} == {"h200-sxm"}, "those that it recorded itself"
    assert all("transferred from h" in entry.constants.source for entry in backward_candidates(find_gpu("gh200-144gb")))
    assert not any(map(backward_candidates, (A100, B200, L40S)))
    for kind in ("prefill", "decode"):
        for engine in ("", "vllm"):
            assert PYTORCH not in {entry.framework for entry in candidates(kind, H100, ("bf16/bf16",), engine)}
        assert {entry.framework for entry in candidates(kind, H200, ("bf16/bf16",), PYTORCH)} == {PYTORCH}
        assert PYTORCH not in {entry.framework for entry in candidates(kind, A100, ("bf16/bf16",), PYTORCH)}
    found = fastest(backward_candidates(H100), lambda entry: backward_terms(H100, entry.constants, shapes(2, 4096, 32)))
    assert "torch_cudnn" in found["constants"][0], "PyTorch prefers it on this GPU"


def test_shipped_constants_are_within_their_meaning():
    for entry in read_table("backward"):
        for name, (low, high) in backward_law.RANGES.items():
            assert low <= getattr(entry.constants, name) <= high, (entry, name)
        assert entry.constants.pattern in backward_law.PATTERNS
    assert all(0.01 <= entry.constants.late_share <= 1 for entry in read_table("prefill"))
    assert prefill_law.RANGES["late_share"] == (0.01, 1.0)
