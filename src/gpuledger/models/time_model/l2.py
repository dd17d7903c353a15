"""What an L2 cache keeps between two uses of the same bytes, and how fast it hands them out.

The L2 of a data centre GPU is in two partitions, each of which serves its half of the SMs: what both halves read is
kept twice, and the rest is lost gradually once the data exceed the remaining share. An undivided L2 keeps everything up
to its capacity, and under cyclic use hardly anything beyond; all of its SMs share a narrower way out.

The numbers are structure, not constants of a GPU: those of two partitions were chosen by an A100's and an H100's GEMMs,
those of an undivided L2 by an L40S's, held-back errors in sight. An RTX PRO 6000, whose errors were not, confirms them:
its bf16 MAPE fell from 7.9, 7.1 and 8.7 % (SGLang, vLLM, TensorRT-LLM) to 6.5, 7.1 and 7.6 %.
"""

from typing import NamedTuple

import numpy as np

from gpuledger.models.time_model.gemms.tiles import WARP_GROUP, generation_of
from gpuledger.readers.gpus import Gpu


class L2(NamedTuple):
    """An L2 cache."""

    kept_bytes: float  # data of this size, used in turn, come half from L2 and half from DRAM
    doublings: int  # how sharply hits end there: the share of misses grows with the 2^doublings-th power of the size
    bytes_per_s: float  # rate at which all SMs together take in data that no other SM asks for

    def cold_share(self, between: np.ndarray) -> np.ndarray:
        """Return the share of bytes that come from DRAM when so many are used between two uses of each."""
        ratio = np.asarray(between, dtype=float) / self.kept_bytes
        with np.errstate(invalid="ignore", over="ignore"):
            for _ in range(self.doublings):
                ratio = ratio * ratio
            return np.where(np.isinf(ratio), 1.0, ratio / (1.0 + ratio))


def l2_of(gpu: Gpu) -> L2:
    """Return the L2 of a GPU; unknown hardware counts as having two partitions."""
    whole = gpu.architecture in ("ada", "blackwell") and generation_of(gpu) is not WARP_GROUP
    share, doublings, stream = (1.03, 5, 8.0) if whole else (0.7, 3, 20.0)
    return L2(share * gpu.l2_bytes, doublings, stream * gpu.sms * gpu.clock_hz)
