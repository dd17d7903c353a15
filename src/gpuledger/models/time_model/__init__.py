"""How long kernels take on a GPU: laws with a few constants per kernel and GPU, judged against measurements."""

from gpuledger.models.time_model.constants.fit_gemm import fit_constants, held_back
from gpuledger.models.time_model.constants.table import Constants, constants_of, transferred
from gpuledger.models.time_model.gemms.law import gemm_plan, gemm_time_s
