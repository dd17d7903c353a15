"""What measured steps take beyond their kernels: baselines, and three numbers that explain the rest.

    explained = gemm · GEMMs + FLOPs of attention / rate + other · all other kernels + exposed communication

The factors are at least 1: in a step no kernel is faster than measured alone. Attention has a rate instead, because it
does not depend on the head dimension as today's kernels do.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import linprog

from gpuledger.models.training import TrainingRun
from gpuledger.models.training.utilisation import model_flops_per_token
from gpuledger.readers.gpus import Gpu

#: Columns of a step's time that are neither products, nor attention, nor waiting.
OTHER = ("elementwise_s", "weights_s", "loss_s", "update_s")
#: Runs that an explanation is fitted to at least, and the largest condition number of their times of the three classes:
#: beyond it they differ too little in what a step consists of to tell these apart.
LEAST_RUNS, MOST_ALIKE = 12, 30
#: A rule of thumb: the model FLOPs utilisation of a training run (%).
RULE_PERCENT = 40


def roofline_s(kernels: pd.DataFrame, gpu: Gpu, runs: int) -> np.ndarray:
    """Return the time of every step if each kernel were at its roof and communication hidden (s)."""
    peak = kernels["precision"].astype(str).map(lambda name: gpu.peak_flop_per_s(name))
    moved = kernels[["weight_bytes", "read_bytes", "write_bytes", "cache_bytes"]].sum(axis=1)
    each = np.maximum(2 * kernels["macs"] / peak, moved / gpu.dram_bytes_per_s)
    return np.bincount(kernels["run"], each * kernels["count"], runs)


def rule_s(runs: list[TrainingRun], gpu: Gpu) -> np.ndarray:
    """Return the time of every step at `RULE_PERCENT` of the peak (s)."""
    per_token = np.array([model_flops_per_token(run.model, run.sequence) for run in runs])
    peak = np.array([gpu.peak_flop_per_s(run.precision) for run in runs])
    return per_token * [run.step_tokens for run in runs] / (RULE_PERCENT / 100 * peak)


@dataclass(frozen=True)
class Explanation:
    """What classes of kernels take in measured steps: factors on the prediction, and attention's rate (FLOP/s)."""

    gemm: float
    attention_flop_per_s: float
    other: float

    def step_s(self, data: pd.DataFrame) -> pd.Series:
        """Return the time of steps (s)."""
        # Kernels that take longer draw less, so that the clock need not fall.
        return data["kernels_s"] - data["power_s"] + self.beyond_s(data).sum(axis=1)

    def beyond_s(self, data: pd.DataFrame) -> pd.DataFrame:
        """Return what each class of kernels takes beyond its prediction (s): ``gemm, attention, other``."""
        return pd.DataFrame(
            {
                "gemm": (self.gemm - 1) * data["gemm_s"],
                "attention": data["attention_flop"] / self.attention_flop_per_s - data["attention_s"],
                "other": (self.other - 1) * data[list(OTHER)].sum(axis=1),
            }
        )


def explain(data: pd.DataFrame) -> Explanation | None:
    """Return what minimises the mean relative error of the steps (a linear program), in three digits.

    None with fewer than `LEAST_RUNS` runs, or if these are too much alike.
    """
    count = len(data)
    if count < LEAST_RUNS:
        return None
    measured = data["measured_s"].to_numpy()
    # Seconds at the rate that was predicted at most: no kernel of those steps was faster than today's.
    fastest = float((data["attention_flop"] / data["attention_s"]).max())
    parts = (
        np.column_stack([data["gemm_s"], data["attention_flop"] / fastest, data[list(OTHER)].sum(axis=1)])
        / measured[:, None]
    )
    if np.linalg.cond(parts / np.linalg.norm(parts, axis=0)) > MOST_ALIKE:
        return None
    rest = 1 - data["exposed_s"].to_numpy() / measured
    slack = np.eye(count)
    cost = np.r_[np.zeros(3), np.ones(count)]
    limits = np.block([[parts, -slack], [-parts, -slack]]), np.r_[rest, -rest]
    gemm, slower, other = linprog(cost, *limits, bounds=[(1, None)] * 3 + [(0, None)] * count).x[:3]
    return Explanation(*(float(f"{value:.3g}") for value in (gemm, fastest / slower, other)))
