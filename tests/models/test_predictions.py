"""What every prediction must hold, whatever the model and the GPU: signs, sums, and which way it may change."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from gpuledger.models.deployment import Deployment, largest_batch, passes
from gpuledger.models.power import power_constants
from gpuledger.models.transformer import Parallel, Precision, read_model
from gpuledger.readers.gpus import find_gpu

MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3", "gpt-oss-120b", "Qwen3-30B-A3B")
#: Measured; not measured; on PCIe; of another maker; without the formats of today's checkpoints.
GPUS = ("h200-sxm", "gb300", "a100", "h20", "l40s", "rtx-4090", "mi300x", "v100")
BATCHES = (1, 2, 7, 32, 64, 256)
#: Of decode steps only: a prompt's pass has none.
PER_OUTPUT_TOKEN = ["tpot_s", "served_tpot_s", "served_tokens_per_s"]
#: What the laws' choice of tiles and of kernels may add where less would be expected.
SLACK = 1.05


@cache
def predicted(model, gpu, tensor=1, precision=None):
    return predicted_on(find_gpu(gpu), model, tensor, precision)


def predicted_on(gpu, model, tensor, precision=None):
    return passes(Deployment(cached_model(model), gpu, 1024, 256, Parallel(tensor), precision), BATCHES)


cached_model = cache(read_model)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS)
def test_a_larger_batch_is_no_slower_per_token_and_takes_no_less(model, gpu):
    for tensor in (1, 8):
        found = predicted(model, gpu, tensor)
        # Not every GPU's power was measured.
        assert found["power_w"].isna().all() == (power_constants(found["gpu"][0]) is None)
        numbers = found.drop(columns=["kernel_error_percent", "power_w"]).select_dtypes("number")
        assert np.isfinite(numbers[1:]).all(axis=None)
        assert np.isfinite(numbers.drop(columns=PER_OUTPUT_TOKEN)).all(axis=None)
        assert (found["time_s"] > 0).all() and (found["memory_bytes"] > 0).all()
        assert found["communication_percent"].between(0, 100).all() and found["judged_percent"].between(0, 100).all()
        assert (found["communication_percent"] > 0).all() == (tensor > 1)
        decode = found[1:]
        assert (np.diff(decode["tokens_per_s"]) > 0).all()
        assert (decode["time_s"].to_numpy()[1:] > 0.98 * decode["time_s"].to_numpy()[:-1]).all()
        assert (np.diff(decode["memory_bytes"]) > 0).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS[1:4])
def test_more_gpus_take_less_time_but_for_what_they_exchange(model, gpu):
    apart = [predicted(model, gpu, tensor) for tensor in (1, 2, 4, 8)]
    alone = [found["time_s"] * (1 - found["communication_percent"] / 100) for found in apart]
    for fewer, more in pairwise(alone):
        assert (more <= SLACK * fewer).all()
    for fewer, more in pairwise(apart):
        assert (more["memory_bytes"] < fewer["memory_bytes"]).all()
        assert not (fewer["fits"] & ~more["fits"]).any()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("quantities", [["dram_bytes_per_s"], ["link_bytes_per_s", "peer_bytes_per_s"]])
def test_bandwidth_makes_nothing_slower(gpu, quantities):
    sheet = find_gpu(gpu)
    twice = replace(sheet, **{quantity: 2 * getattr(sheet, quantity) for quantity in quantities})
    for model in ("Llama-3.1-70B", "gpt-oss-120b"):
        before, after = (predicted_on(of, model, 4)["time_s"] for of in (sheet, twice))
        assert (after <= SLACK * before).all() and (after < before).any()


@pytest.mark.parametrize(
    ("slow", "fast"),
    [("v100", "a100"), ("h20", "h200-sxm"), ("h100-pcie", "h100-sxm"), ("h100-sxm", "h200-sxm"), ("gb200", "gb300")],
)
def test_a_gpu_with_more_of_everything_is_no_slower(slow, fast):
    for model in MODELS:
        for tensor in (1, 8):
            # Where a table says otherwise, it is by less than what the model errs.
            pairs = [predicted(model, gpu, tensor)["time_s"] for gpu in (slow, fast)]
            assert (pairs[1] <= 1.1 * pairs[0]).all(), (model, tensor)


@pytest.mark.parametrize("gpu", ["v100", "a100", "rtx-3090"])
def test_narrow_formats_save_bytes_and_no_arithmetic_where_a_gpu_lacks_their_units(gpu):
    wide, narrow = (
        predicted("Llama-3.1-8B", gpu, 1, of) for of in (Precision("bf16"), Precision("fp8", operands="fp8"))
    )
    assert 0.9 < narrow["time_s"][0] / wide["time_s"][0] <= 1.02
    assert narrow["time_s"][1] / wide["time_s"][1] < 0.75
    assert (narrow["memory_bytes"] < wide["memory_bytes"]).all()


@pytest.mark.parametrize("model", MODELS)
def test_the_largest_batch_fits_and_one_more_does_not(model):
    deployment = Deployment(read_model(model), find_gpu("h200-sxm"), 1024, 256, Parallel(8))
    most = largest_batch(deployment)
    assert passes(deployment, [most, most + 1])["fits"].tolist() == [True, True, False]
