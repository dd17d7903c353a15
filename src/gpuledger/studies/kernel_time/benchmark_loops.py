"""How often a benchmark uses the same operands: what of them L2 still holds when a kernel starts."""

from collections.abc import Sequence

import numpy as np

#: Copies of the weights that benchmarks use in turn, where nothing else is known.
USUAL = 6
#: Groups that vLLM's benchmark measures with one copy of the weights.
_ONE_COPY = ("fp8_block", "nvfp4")


def copies_in_turn(
    framework: str, groups: Sequence[str], weight_bytes: np.ndarray, l2_bytes: float
) -> tuple[np.ndarray, bool]:
    """Return how many copies of its weights a GEMM's benchmark used in turn, and whether each had its own activations.

    As AIConfigurator's collectors do (``collector/{trtllm,vllm,sglang}/collect_gemm.py``): TensorRT-LLM's with as many
    copies as fill L2, five at most; vLLM's with six, in fp8_block and nvfp4 with one; SGLang's with six, each with its
    own activations. Nobody keeps the results: the allocator gives the next launch the same memory.

    Parameters
    ----------
    framework : str
        As the table names it; any other counts as vLLM in bf16.
    groups : sequence of str, shape (shapes,)
        As :func:`gpuledger.studies.kernel_time.measurements.read_gemms` names them.
    weight_bytes : array of shape (shapes,)
        Of one copy.
    l2_bytes : float
        Capacity of L2.

    Returns
    -------
    copies : ndarray of float64, shape (shapes,)
    own_activations : bool
    """
    name = framework.lower()
    if name == "trtllm":
        return np.clip(np.ceil(l2_bytes / weight_bytes), 1.0, 5.0), False
    copies = np.full(len(weight_bytes), float(USUAL))
    if name == "vllm":
        copies[np.isin(groups, _ONE_COPY)] = 1.0
    return copies, name == "sglang"
