"""The law of sparse attention, and what of a model's kernels it is for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.models.time_model.attention import sparse_law
from gpuledger.models.time_model.attention.sparse_law import SparseConstants, sparse_terms
from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import decode, kernels, prefill
from gpuledger.models.transformer.blocks.latent import LatentAttention
from gpuledger.models.transformer.blocks.standard import FeedForward, Indexer
from gpuledger.models.transformer.model import Layers, Model
from gpuledger.readers.gpus import find_gpu

H200 = find_gpu("h200-sxm")
#: A key of 64 heads of latent attention takes 30 ns of an SM at this share.
SHARE = 2 * 64 * 1088 * H200.sms / (30e-9 * H200.peak_flop_per_s("bf16"))
ATTENTION = SparseConstants(4e-6, 2e-6, SHARE, 0.0, 0.5, 0.0, 64)


def shapes(**changed):
    usual = {"tokens": 1, "heads": 64, "keys": 2048, "places": 2048, "spread": 0, "width": 1088, "key_bytes": 4}
    usual |= {"moved": 0, "peak": H200.peak_flop_per_s("bf16")} | changed
    return {name: np.atleast_1d(np.asarray(value, dtype=float)) for name, value in usual.items()}


def time_us(constants, operation, **changed):
    return 1e6 * sparse_terms(H200, constants, shapes(**changed), operation)["time_s"]


def test_every_token_is_a_block_of_its_own():
    block = 2 + 2048 * 0.03
    found = time_us(ATTENTION, "attention", tokens=[1, H200.sms, H200.sms + 1, 10 * H200.sms])
    assert found == pytest.approx([4 + block, 4 + block, 4 + 2 * block, 4 + 10 * block])
    # Heads are filled up; more than 64 are further blocks; an empty place costs half a key.
    assert time_us(ATTENTION, "attention", tokens=H200.sms, heads=[8, 64, 65, 128]) == pytest.approx(
        [4 + block, 4 + block, 4 + 2 * block, 4 + 2 * block]
    )
    assert time_us(ATTENTION, "attention", keys=1024) == pytest.approx(4 + 2 + 1536 * 0.03)
    assert time_us(ATTENTION, "attention", moved=4.8e9) >= 900


def test_tokens_share_blocks_of_scores_and_chunks_share_the_sms():
    share = 2 * 128 * 128 * H200.sms / (4e-9 * H200.peak_flop_per_s("bf16"))
    scores = SparseConstants(3e-6, 1e-6, share)
    same = {"width": 128, "heads": 32, "keys": 10_000, "places": 10_000}
    found = time_us(scores, "scores", tokens=[1, 4 * H200.sms, 4 * H200.sms + 1], **same)
    assert found == pytest.approx([44, 44, 85])
    # The last SM ends later by half of the spread.
    assert time_us(scores, "scores", spread=5000, **same) == pytest.approx(44 + 10)
    paged = SparseConstants(3e-6, 1e-6, share, chunk=256)
    whole = 256 * H200.sms
    assert time_us(paged, "decode scores", **same | {"keys": [whole, whole + 1]}) == pytest.approx(
        [4 + 256 * 0.004, 4 + 2 * 256 * 0.004]
    )


def test_a_selection_takes_in_its_scores():
    constants = SparseConstants(2e-6, 1e-6, 0.0, 8.0)
    found = sparse_terms(H200, constants, shapes(tokens=2 * H200.sms, heads=1, keys=10_000), "top-k")
    assert found["time_s"][0] == pytest.approx(2e-6 + 2 * (1e-6 + 40_000 / (8 * H200.clock_hz)))
    assert found["l2_s"][0] > 0 == found["compute_s"][0]


@given(st.sampled_from(list(sparse_law.CHOICES)), st.integers(1, 2**17), st.integers(1, 2**20), st.integers(1, 128))
def test_more_tokens_and_keys_never_take_less(operation, tokens, keys, heads):
    for start in sparse_law.starts(operation):
        more = {"tokens": [tokens, tokens + 1, tokens], "keys": [keys, keys, keys + 1], "places": 2**21}
        times = sparse_terms(H200, start, shapes(heads=heads, **more), operation)["time_s"]
        assert times[0] <= times[1] * (1 + 1e-12) and times[0] <= times[2] * (1 + 1e-12)


def sparse_model():
    attention = LatentAttention(64, 2048, 512, 192, 64, 256, indexer=Indexer(32, 128, 2048))
    return Model("made up", "a test", 6144, 1000, (Layers((0,), attention, FeedForward(1024)),))


@pytest.mark.parametrize("engine", ["", "sglang", "vllm", "trtllm"])
@pytest.mark.parametrize("gpu", ["h200-sxm", "b300", "a100-sxm-80gb", "rtx-pro-6000"])
def test_models_that_select_keys_are_predicted_on_every_gpu(gpu, engine):
    for work in (decode([100, 100_000], [1, 64]), prefill([100, 4096, 70_000], [4, 1, 1], [0, 0, 60_000])):
        times = predict(kernels(sparse_model(), work), find_gpu(gpu), engine)
        own = times[times["kernel"].astype(str).str.contains("sparse_attention|index_scores|index_topk")]
        assert len(own) and (own["time_s"] > 1e-7).all() and np.isfinite(own["time_s"]).all()
        assert own["constants"].astype(str).str.contains("fitted to").all()


def test_long_contexts_cost_scores_but_no_attention():
    rows = kernels(sparse_model(), decode([4096, 131072], 8))
    times = predict(rows, H200, "sglang").assign(kernel=lambda frame: frame["kernel"].astype(str))
    short, long = (times[times["shape"] == shape].set_index("kernel")["time_s"] for shape in (0, 1))
    assert long["decode_sparse_attention"] == short["decode_sparse_attention"]
    assert long["decode_index_scores"] > 2 * short["decode_index_scores"] and long["index_topk"] > short["index_topk"]
