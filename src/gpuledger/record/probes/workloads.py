"""Kernels with probes: launch parameters, tensors and expected results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from gpuledger.readers.neutrino import LaunchShape

#: log2(e): softmax is computed with powers of two.
LOG2_E = float(1 / np.log(2))


@dataclass(frozen=True)
class DeviceTensor:
    """An fp16 tensor in device memory."""

    name: str
    shape: tuple[int, ...]
    written: bool = False  # whether the kernel writes or reads it

    @property
    def size_bytes(self) -> int:
        return 2 * prod(self.shape)


@dataclass(frozen=True)
class ProbeWorkload(LaunchShape):
    """One launch."""

    name: str  # also used for folders
    #: File in ``cuda_sources``, and kernel.
    source: str
    function: str
    #: As (x, y, z).
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    tensors: tuple[DeviceTensor, ...]  # the kernel's first arguments, in order
    scalars: tuple[np.generic, ...]  # the remaining arguments, of the declared types
    blocks_per_sm: int = 0  # limits the blocks on an SM by requesting dynamic shared memory; 0: no limit
    flop: int = 0  # floating-point operations, 2·m·n·k per product
    flop_per_iteration: int = 0  # floating-point operations of a block in one loop iteration; 0 without a loop

    @property
    def tensor_cores(self) -> bool:
        """Whether it needs the tensor cores and asynchronous copies of compute capability 8.0."""
        return self.flop > 0

    def largest_error(self, tensors: Mapping[str, np.ndarray]) -> float:
        """Largest error of the result, relative to the largest value; the reference is computed in fp32.

        Parameters
        ----------
        tensors : mapping of str to ndarray
            All tensors after the launch.

        Returns
        -------
        float
            NaN if a tensor contains NaN.
        """
        if any(np.isnan(array).any() for array in tensors.values()):
            return float("nan")
        # Only the first and the last head: the scores of all heads would not fit into memory.
        ends = [0, -1] if self.function == "attention" else slice(None)
        arrays = {name: array[ends].astype(np.float32) for name, array in tensors.items()}
        if self.function == "gemm":
            found, right = arrays["c"], arrays["a"] @ arrays["b"].T
        elif self.function == "attention":
            scores = arrays["query"] @ arrays["key"].transpose(0, 2, 1) / sqrt(arrays["query"].shape[-1])
            weights = 2.0 ** ((scores - scores.max(-1, keepdims=True)) * np.float32(LOG2_E))
            found, right = arrays["out"], weights @ arrays["value"] / weights.sum(-1, keepdims=True)
        else:
            found, right = arrays["out"], 0 * arrays["out"]
        return float(abs(found - right).max() / (abs(right).max() + (right == 0).all()))


def fill(rows: int = 4096, columns: int = 4096) -> ProbeWorkload:
    """Fill with zeros like torch.zeros: every block fills 1 KiB, of which the size must be a multiple."""
    tensor = DeviceTensor("out", (rows, columns), written=True)
    grid = (tensor.size_bytes // 1024, 1, 1)
    count = np.uint64(tensor.size_bytes // 8)
    return ProbeWorkload("fill", "fill.cu", "fill", grid, (128, 1, 1), (tensor,), (count,))


def fill_persistent(blocks: int, rows: int = 4096, columns: int = 4096) -> ProbeWorkload:
    """Fill with zeros by `blocks` persistent blocks, as many as the GPU runs at once."""
    plain = fill(rows, columns)
    grid = (blocks, 1, 1)
    return ProbeWorkload(
        "fill_persistent", "fill.cu", "fill_persistent", grid, plain.block, plain.tensors, plain.scalars
    )


def gemm(size: int, blocks_per_sm: int = 0) -> ProbeWorkload:
    """c = a·bᵀ of square matrices whose size is a multiple of 128; tiles of 128×128, k steps of 32."""
    tensors = (
        DeviceTensor("a", (size, size)),
        DeviceTensor("b", (size, size)),
        DeviceTensor("c", (size, size), written=True),
    )
    return ProbeWorkload(
        f"gemm_{size}",
        "gemm.cu",
        "gemm",
        (size // 128, size // 128, 1),
        (256, 1, 1),
        tensors,
        (np.uint32(size), np.uint32(size)),
        blocks_per_sm,
        2 * size**3,
        2 * 128 * 128 * 32,
    )


def attention(heads: int, tokens: int, blocks_per_sm: int = 0) -> ProbeWorkload:
    """Attention with head_dim 64 over a multiple of 64 tokens; 64 queries per block."""
    shape = (heads, tokens, 64)
    tensors = (
        *(DeviceTensor(name, shape) for name in ("query", "key", "value")),
        DeviceTensor("out", shape, written=True),
    )
    return ProbeWorkload(
        f"attention_{tokens}",
        "attention.cu",
        "attention",
        (tokens // 64, heads, 1),
        (128, 1, 1),
        tensors,
        (np.uint32(tokens), np.float32(LOG2_E / sqrt(64))),
        blocks_per_sm,
        4 * heads * tokens**2 * 64,
        4 * 64 * 64 * 64,
    )


#: By name, a workload of a given size.
WORKLOADS: dict[str, Callable[[int], ProbeWorkload]] = {
    "fill": lambda size: fill(size, size),
    "gemm": gemm,
    "attention": lambda tokens: attention(64, tokens),
}
