"""Time of latent attention's products with a small matrix for each head, by the law of matrix multiplications.

The law is :func:`gpuledger.models.time_model.gemm_time_s` with a batch of heads; its constants are fitted to these
products alone, because what they are bound by, reading and writing narrow matrices, weighs little in large ones. A
graph uses the same operands again and again, and what L2 keeps of them it hands out faster than between weights that
take turns.
"""

from collections.abc import Mapping

import numpy as np

from gpuledger.models.time_model.constants.fit_law import with_own
from gpuledger.models.time_model.constants.table import ProductConstants
from gpuledger.models.time_model.gemms.law import gemm_plan
from gpuledger.models.time_model.l2 import l2_of
from gpuledger.readers.gpus import Gpu

#: Where fits start, and the bounds within which a constant has its meaning.
START = ProductConstants(4e-6, 0.8, 0.7, 60.0, 4e-7)
RANGES = {
    "launch_s": (1e-6, 1e-4),
    "dram_share": (0.1, 1.0),
    "tensor_share": (0.02, 1.0),
    "l2_bytes_per_clock": (5.0, 1000.0),
    "step_s": (1e-8, 1e-5),
    "result_factor": (0.1, 50.0),
    "stream_bytes_per_clock": (5.0, 100.0),
}
#: Of kernels that quantise the activations first.
_CONVERSION = {"conversion_bytes": (3.0, 0.1, 100.0), "conversion_row_s": (1e-8, 1e-11, 1e-5)}


def started(constants: ProductConstants, precision: str) -> tuple[ProductConstants, dict[str, tuple[float, float]]]:
    """Return where a fit starts, and the bounds of all constants that products in a precision have."""
    return with_own(constants, RANGES, _CONVERSION if precision == "fp8" else {})


def product_terms(
    gpu: Gpu, constants: ProductConstants, shapes: Mapping[str, np.ndarray], precision: str
) -> dict[str, np.ndarray]:
    """Predict the time of products of one launch after another with the same weights.

    The result has ``time_s`` and the terms ``launch_s, compute_s, l2_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``tokens, columns, depth`` of each head's product, and ``heads``.
    """
    sizes = [shapes[name].astype(np.int64) for name in ("tokens", "columns", "depth", "heads")]
    l2 = l2_of(gpu)._replace(bytes_per_s=constants.stream_bytes_per_clock * gpu.sms * gpu.clock_hz)
    plan = gemm_plan(gpu, constants, *sizes, precision=precision, weights_in_turn=1, l2=l2)
    found = {name: plan[name].to_numpy() for name in ("time_s", "launch_s", "compute_s", "l2_s", "dram_s")}
    return found | {"l2_s": found["l2_s"] + plan["drain_s"].to_numpy()}
