"""Predict times of thousands of GEMMs: imported by the fork server, it loads the compiled search forks then have."""

import numpy as np

from gpuledger.models.time_model.constants.table import KINDS, read_table
from gpuledger.models.time_model.gemms.law import gemm_time_s
from gpuledger.readers.gpus import find_gpu

(first, *_), *_ = (read_table(kind) for kind in sorted(KINDS, key=lambda kind: kind != "gemm"))
gemm_time_s(find_gpu(first.gpu), first.constants, np.arange(1, 8001), 64, 64)
