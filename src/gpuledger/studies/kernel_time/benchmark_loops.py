"""How a benchmark repeats a kernel: what of its operands L2 still holds when it starts, and what its clock shows."""

from collections.abc import Sequence

import numpy as np

from gpuledger.readers.gpus import Gpu

#: Copies of the weights that benchmarks use in turn, where nothing else is known.
USUAL = 6
#: The framework in tables of this project's own recorder.
RECORDER = "gpuledger"
#: Groups that vLLM's benchmark measures with one copy of the weights.
_ONE_COPY = ("fp8_block", "nvfp4")
#: Groups of those that it does not replay from a graph.
_NO_GRAPH = ("fp8_block",)
#: Whose benchmarks replay graphs.
_REPLAYED = ("trtllm", "vllm", "sglang")
#: Blackwell starts a graph after another one on ticks of so many seconds, so much after them.
TICK_S, _PHASE_S = 2.048e-6, 0.8e-6
#: The same, of the batched batched GEMMs of MLA.
BATCHED_PHASE_S = 0.35e-6
#: Share of a tick within which repetitions fall on both sides of the next, and a time from which on they spread wider.
_BLURRED, _SPREAD_S = 0.4, 6e-5


def copies_in_turn(
    framework: str, groups: Sequence[str], weight_bytes: np.ndarray, l2_bytes: float
) -> tuple[np.ndarray, bool]:
    """Return how many copies of its weights a GEMM's benchmark used in turn, and whether each had its own activations.

    As AIConfigurator's collectors do (``collector/{trtllm,vllm,sglang}/collect_gemm.py``): TensorRT-LLM's with as many
    copies as fill L2, five at most; vLLM's with six, in fp8_block and nvfp4 with one; SGLang's with six, each with its
    own activations. Nobody keeps the results: the allocator gives the next launch the same memory. The recorder of this
    project (part ``gemm``) repeats one product on one copy of all.

    Parameters
    ----------
    framework : str
        As the table names it; any other counts as vLLM in bf16.
    groups : sequence of str, shape (shapes,)
        As :func:`gpuledger.readers.kernel_tables.gemms.read_gemms` names them.
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
    if name == RECORDER:
        return np.ones(len(weight_bytes)), False
    copies = np.full(len(weight_bytes), float(USUAL))
    if name == "vllm":
        copies[np.isin(groups, _ONE_COPY)] = 1.0
    return copies, name == "sglang"


def shown(gpu: Gpu, framework: str, groups: Sequence[str], weight_bytes: np.ndarray, time_s: np.ndarray) -> np.ndarray:
    """Return what a benchmark shows of kernels that take `time_s`.

    AIConfigurator replays a captured graph six times in a row, with one GEMM for each copy of the weights. On Blackwell
    the next replay starts on a tick: where the graph holds a single GEMM (vLLM's in nvfp4), three quarters of all times
    below 14 µs lie within 0.3 µs of a multiple of the tick and its phase, on B200, GB200, B300, GB300 and RTX PRO 6000;
    of the others' sums, as many. Tick and phase were read from the tables, the rest chosen on those of a B200.

    Parameters
    ----------
    framework : str
        As the table names it; others than AIConfigurator's are shown as they are.
    groups, weight_bytes : sequence of str, array of shape (shapes,)
        As for :func:`copies_in_turn`.
    time_s : array of shape (shapes,)
    """
    name = framework.lower()
    if name not in _REPLAYED or gpu.architecture != "blackwell":
        return time_s
    kernels, _ = copies_in_turn(framework, groups, weight_bytes, gpu.l2_bytes)
    replayed = ~np.isin(groups, _NO_GRAPH) if name == "vllm" else True
    return np.where(replayed, ticked(gpu, kernels * time_s, _PHASE_S) / kernels, time_s)


def ticked(gpu: Gpu, time_s: np.ndarray, phase_s: float = BATCHED_PHASE_S) -> np.ndarray:
    """Return what the clock shows of graphs with a single kernel that takes `time_s`: on Blackwell, ticks.

    The phase is the benchmark's. Of the times below 14 µs of TensorRT-LLM's and vLLM's batched products nine of ten lie
    within 0.3 µs of a multiple of the tick and `BATCHED_PHASE_S` on a B200.
    """
    if gpu.architecture != "blackwell":
        return time_s
    ticks = (time_s - phase_s) / TICK_S
    whole = np.floor(ticks)
    on_ticks = phase_s + TICK_S * (whole + np.clip((ticks - whole - 0.5) / _BLURRED + 0.5, 0, 1))
    return time_s + (on_ticks - time_s) / (1 + (time_s / _SPREAD_S) ** 4)
