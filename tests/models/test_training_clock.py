"""The clock of a training step: known answers, a step that draws little, GPUs whose power nobody measured."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gpuledger.models.power import chip_constants, power_constants
from gpuledger.models.training import TrainingRun, predict_steps
from gpuledger.models.training.clock import settled
from gpuledger.models.transformer import read_model
from gpuledger.readers.gpus import find_gpu

H200, H100, A100 = (find_gpu(name) for name in ("h200-sxm", "h100-sxm", "a100-sxm-80gb"))
LAW = power_constants("h200-sxm")


def kernels(share):
    """Two steps of two kernels: products that keep matrix units busy for a share of a millisecond, and a copy."""
    rows = pd.DataFrame({"run": [0, 0, 1, 1], "count": [2, 1, 3, 1], "precision": "bf16"})
    return rows.assign(macs=[share * 4e11, 0.0, 1e9, 0.0], dram_bytes=[0.0, 3e9, 0.0, 3e9])


def scaled(rows, at, _):
    """Take products to follow the clock, copies not."""
    product = rows["macs"] > 0
    return rows.assign(time_s=np.where(product, 1e-3 * H200.clock_hz / at.clock_hz, 1e-3))


def test_a_step_settles_where_its_mean_power_is_the_limit():
    rows = kernels(1.0)
    found = settled(rows, H200, scaled)
    clock = found["clock_hz"].to_numpy() / H200.clock_hz
    assert clock[0] == clock[1] < 0.9 and (clock[2:] == 1).all()
    assert (found["full_s"] == 1e-3).all() and (found["time_s"][1:] == 1e-3).all()
    assert found["time_s"][0] == pytest.approx(1e-3 / clock[0])
    step_s = (found["time_s"] * rows["count"])[:2].sum()
    energy_j = 1e-12 * (LAW.bf16_pj_per_flop * 2 * 2 * 4e11 + LAW.dram_pj_per_byte * 3e9)
    drawn_w = (LAW.static_w + energy_j / step_s) * clock[0] ** LAW.clock_exponent
    assert drawn_w == pytest.approx(LAW.most_w, rel=0.02)


def test_products_in_fp8_count_by_their_energy():
    rows = kernels(0.9)
    narrow = rows.assign(precision="fp8", macs=rows["macs"] * LAW.bf16_pj_per_flop / LAW.fp8_pj_per_flop)
    clocks = [settled(of, H200, scaled)["clock_hz"].to_numpy() for of in (rows, narrow)]
    assert clocks[0] == pytest.approx(clocks[1]) and clocks[0][0] < H200.clock_hz


def test_where_nobody_measured_the_power_the_clock_is_the_full_one():
    for gpu in (A100, find_gpu("b200"), replace(H200, board_power_w=500.0)):
        assert (settled(kernels(1.0), gpu, scaled)["clock_hz"] == gpu.clock_hz).all()
    unknown = settled(kernels(1.0).assign(precision="fp4"), H200, scaled)
    assert (unknown["clock_hz"] == H200.clock_hz).all() and (unknown["time_s"] == unknown["full_s"]).all()


def test_the_law_of_the_same_chip_stands_in():
    assert chip_constants(H200) == (LAW, "h200-sxm") and chip_constants(H100) == (LAW, "h200-sxm")
    assert chip_constants(find_gpu("b200"))[1] == "b200" and chip_constants(A100) is None
    assert chip_constants(find_gpu("h100-pcie")) is None


@pytest.mark.parametrize("gpu", [H100, H200], ids=lambda gpu: gpu.name)
def test_the_parts_of_a_step_are_those_at_the_full_clock_and_what_power_adds(gpu):
    run = TrainingRun(read_model("Llama-3.1-8B"), gpu, 4096, 2)
    (step,) = predict_steps([run], gpu)[0].to_dict("records")
    parts = ("gemm_s", "attention_s", "elementwise_s", "weights_s", "loss_s", "update_s", "power_s", "exposed_s")
    assert step["step_s"] == pytest.approx(sum(step[name] for name in parts))
    assert 0.05 < step["power_s"] / step["step_s"] < 0.25 and 0.6 < step["clock_hz"] / gpu.clock_hz < 0.9
    # A GPU that differs in nothing but an unknown power.
    free = predict_steps([replace(run, gpu=replace(gpu, board_power_w=np.nan))], replace(gpu, board_power_w=np.nan))[0]
    assert free["power_s"][0] == 0 and free["gemm_s"][0] == pytest.approx(step["gemm_s"])
