"""What GEMMs in fp32 reach of the data sheet's peak: CUDA cores compute them, and no matrix units."""

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.models.time_model.gemms.tiles import stacked
from gpuledger.readers.gpus import Gpu

if TYPE_CHECKING:
    from gpuledger.models.time_model.constants.table import Constants

PRECISION = "fp32"
#: What is reached: on SMs of 64 lanes, which issue a multiplication in every other cycle and all else between; of 128
#: lanes, which need one in every cycle, so that each load and address costs one; and of 128 lanes of which half compute
#: addresses, too (GPUs without HBM). Each was fitted to one GPU's products of 10 GFLOP and more
#: (traces/published-gemms).
_SHARES = {"few lanes": 0.92, "HBM": 0.77, "other": 0.655}
FITTED_TO = ("v100-sxm2", "h100-sxm", "rtx-4090")
_FEW_LANES = 64


def on_cuda_cores(constants: "Constants", gpu: Gpu) -> "Constants":
    """Return the constants that stand in for those of fp32 with the share that CUDA cores reach."""
    share = _SHARES["few lanes" if 0 < gpu.lanes_per_sm <= _FEW_LANES else "HBM" if stacked(gpu) else "other"]
    # What a board's power allows is in the share of its matrix units.
    return replace(constants, tensor_share=min(share, constants.tensor_share), throttled=0.0)
