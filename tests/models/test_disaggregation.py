"""Disaggregated serving: every number of workers is as good as a search over all of them finds."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.models.deployment import Deployment, Objective, cheapest, disaggregated, passes
from gpuledger.models.transformer import Parallel, read_model
from gpuledger.readers.gpus import find_gpu

H200, L40S = find_gpu("h200-sxm"), find_gpu("l40s")
LLAMA, DEEPSEEK = read_model("Llama-3.1-8B"), read_model("DeepSeek-V3")
BATCHES = [1, 4, 16, 64]


def passed(deployments):
    return [passes(deployment, BATCHES) for deployment in deployments]


def planned(deployments, objective, most_gpus, *more):
    return disaggregated(deployments, passed(deployments), objective, most_gpus, *more)


def made_up(prompt_s, rates):
    """Return passes of a model's worker that generates `rates` tokens per second with each of `BATCHES` requests."""
    batches = np.array(BATCHES)
    table = {
        **{"batch": np.r_[1, batches], "time_s": np.r_[prompt_s, batches / rates], "fits": True, "bound": "DRAM"},
        **{"tokens_per_s": np.r_[1024 / prompt_s, rates], "tpot_s": np.r_[np.nan, batches / rates]},
        **{"served_tpot_s": np.r_[np.nan, batches / rates], "served_tokens_per_s": np.r_[np.nan, rates]},
        **{"memory_bytes": 1, "cache_bytes": 0},
    }
    return pd.DataFrame(table)


@given(
    prompts_s=st.tuples(*[st.floats(1e-3, 10)] * 2),
    rates=st.tuples(*[st.lists(st.floats(1, 1e5), min_size=4, max_size=4)] * 2),
    most_gpus=st.integers(2, 24),
    ttft_s=st.floats(1e-3, 10),
)
def test_no_numbers_of_workers_serve_more(prompts_s, rates, most_gpus, ttft_s):
    deployments = [Deployment(LLAMA, H200, 1024, 256, Parallel(tensor)) for tensor in (1, 4)]
    tables = [made_up(prompt_s, np.array(rate)) for prompt_s, rate in zip(prompts_s, rates, strict=True)]
    found = disaggregated(deployments, tables, Objective(ttft_s), most_gpus)
    for tensor, rate in zip((1, 4), rates, strict=True):
        options = {
            (others, other, workers): min(others / prompt_s, workers * max(rate) / 256)
            / (others * other + workers * tensor)
            for other, prompt_s in zip((1, 4), prompts_s, strict=True)
            for others in range(1, most_gpus)
            for workers in range(1, most_gpus)
            if others * other + workers * tensor <= most_gpus and prompt_s <= ttft_s
        }
        rows = found[found["decode_tensor"] == tensor] if len(found) else found
        assert len(rows) == bool(options)
        for row in rows.to_dict("records"):
            assert row["output_tokens_per_s_per_gpu"] == pytest.approx(256 * max(options.values()))
            key = row["prefill_workers"], row["prefill_tensor"], row["decode_workers"]
            assert options[key] == pytest.approx(max(options.values()))
            assert row["gpus"] == key[0] * key[1] + key[2] * tensor <= most_gpus
            # The smallest batch that keeps up.
            able = [
                batch
                for batch, own in zip(BATCHES, rate, strict=True)
                if key[2] * own >= row["output_tokens_per_s"] * (1 - 1e-9)
            ]
            assert row["batch"] == able[0]


def test_a_plan_is_what_its_passes_say():
    """Of each worker, the rates of `gpuledger predict`; TTFT includes the transfer of what one GPU holds."""
    deployments = [Deployment(LLAMA, H200, 2048, 128, Parallel(tensor)) for tensor in (1, 2)]
    tables = dict(zip((1, 2), passed(deployments), strict=True))
    found = planned(deployments, Objective(1.0, 0.02), 8, {"h200-sxm": 3.6})
    assert set(found["decode_tensor"]) == {1, 2} and found["usd_per_million_output_tokens"].is_monotonic_increasing
    for row in found.to_dict("records"):
        prompt, steps = tables[row["prefill_tensor"]].iloc[0], tables[row["decode_tensor"]].iloc[1:]
        step = steps[steps["batch"] == row["batch"]].iloc[0]
        kinds = row["prefill_workers"] / prompt["time_s"], row["decode_workers"] * step["tokens_per_s"] / 128
        most = row["decode_workers"] * steps["tokens_per_s"].max() / 128
        assert (
            row["output_tokens_per_s"] == pytest.approx(128 * min(kinds[0], most)) and step["tpot_s"] == row["tpot_s"]
        )
        assert row["limited_by"] == ("prefill" if kinds[0] < most else "decode")
        # Llama-3.1-8B keeps 131,072 bytes per token, half on each of two GPUs; the GPU with more has all of it.
        sent_s = 2048 * 131072 / min(row["prefill_tensor"], row["decode_tensor"]) / H200.link_bytes_per_s
        assert row["transfer_s"] == pytest.approx(sent_s) and row["ttft_s"] == pytest.approx(prompt["time_s"] + sent_s)
        assert row["usd_per_million_output_tokens"] == pytest.approx(1e3 / row["output_tokens_per_s_per_gpu"])
    together = cheapest(deployments, list(tables.values()), Objective(1.0, 0.02))
    assert (found["together_output_tokens_per_s_per_gpu"] == together["output_tokens_per_s_per_gpu"].max()).all()


def test_a_slow_network_delays_the_first_token_and_limits_the_rate():
    deployments = [Deployment(LLAMA, H200, 8192, 16)]
    fast, slow = (planned(deployments, Objective(60.0), 4, None, speed).iloc[0] for speed in (None, 1e9))
    assert slow["transfer_s"] == pytest.approx(8192 * 131072 / 1e9)
    # Neither can a worker send more caches than that, nor another take them.
    assert slow["output_tokens_per_s"] == pytest.approx(
        16 * min(slow["prefill_workers"], slow["decode_workers"]) / slow["transfer_s"]
    )
    assert slow["output_tokens_per_s_per_gpu"] < fast["output_tokens_per_s_per_gpu"]
    assert planned(deployments, Objective(1.0), 4, None, 1e9).empty


def test_replicas_that_share_experts_have_caches_of_their_own():
    deployments = [Deployment(DEEPSEEK, H200, 4096, 512, Parallel(1, 1, 16))]
    row = planned(deployments, Objective(5.0, 0.1), 32).iloc[0]
    assert (row["gpus"], row["prefill_replicas"], row["decode_replicas"]) == (32, 16, 16)
    assert row["transfer_s"] == pytest.approx(4096 * DEEPSEEK.kv_bytes_per_token() / H200.link_bytes_per_s, rel=1e-3)


def test_what_cannot_be_planned_is_empty_or_one_line():
    deployments = [Deployment(LLAMA, H200, 1024, 128)]
    assert planned(deployments, Objective(1.0), 1).empty, "one GPU has no other"
    assert planned(deployments, Objective(1e-6), 4).empty and planned(deployments, Objective(1.0, 1e-6), 4).empty
    with pytest.raises(InputError, match=r"l40s, links: its data sheet has none.*add --network"):
        planned([Deployment(LLAMA, replace(L40S, link_bytes_per_s=math.nan), 1024, 128)], Objective(1.0), 4)
