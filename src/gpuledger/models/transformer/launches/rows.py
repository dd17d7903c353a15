"""Builder of the kernel table: rows are collected as arrays over all shapes and assembled once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.models.transformer.blocks.standard import Linear
from gpuledger.models.transformer.formats.precision import BITS, MATH, Precision
from gpuledger.models.transformer.model import Model
from gpuledger.models.transformer.names import KERNELS, KINDS, PHASES
from gpuledger.models.transformer.parallel import Parallel, ring_bytes, share
from gpuledger.models.transformer.routing import Routing
from gpuledger.models.transformer.workloads import Workload

SIZES = (
    *("count", "devices", "batch", "m", "n", "k", "heads", "kv_heads", "value_dim", "choices", "arrived", "experts"),
    *("macs", "weight_bytes", "read_bytes", "write_bytes", "cache_bytes", "comm_bytes"),
)
_KERNEL, _KIND = ({name: code for code, name in enumerate(names)} for names in (KERNELS, KINDS))
_MATH, _STORED = ({name: code for code, name in enumerate(names)} for names in (MATH, tuple(BITS)))
_MAX = float(2**63)

Number = int | np.ndarray


@cache
def _categories(names: tuple[str, ...]) -> pd.CategoricalDtype:
    # Made once: an index of texts takes longer than what a short frame's rows take.
    return pd.CategoricalDtype(list(names))


@dataclass
class KernelList:
    """Kernels added so far; ``stage``, ``layers``, ``count`` and ``precision`` apply to the rows added next."""

    model: Model
    work: Workload
    parallel: Parallel
    precision: Precision
    fused: frozenset[str]
    stage: int = 0
    layers: int = -1
    count: int = 1
    labels: list[tuple[int, ...]] = field(default_factory=list)
    sizes: list[tuple[Number, ...]] = field(default_factory=list)
    routings: list[Routing] = field(default_factory=list)

    @property
    def value_bytes(self) -> int:
        """Bytes of one activation."""
        return BITS[self.precision.activations] // 8

    def operand_bytes(self, kernel: str, part: str = "") -> float:
        """Bytes of one input value of the GEMM *kernel*, or of that with one of its matrices; half a byte in fp4."""
        bits = BITS[self.precision.operands_of(kernel, part)]
        return bits // 8 if bits % 8 == 0 else bits / 8

    def plain_bytes(self, values: int) -> int:
        """Bytes of *values* unquantised weights."""
        return values * BITS[self.precision.plain] // 8

    def add(
        self,
        kernel: str,
        kind: str,
        m: Number,
        n: Number,
        k: Number = 1,
        *,
        batch: Number = 1,
        macs: Number = 0,
        weight: Number = 0,
        read: Number = 0,
        write: Number = 0,
        cache: Number = 0,
        comm: Number = 0,
        heads: int = 0,
        kv_heads: int = 0,
        value_dim: int = 0,
        choices: Number = 0,
        arrived: Number = 0,
        experts: int = 0,
        devices: int = 0,
        math: str = "",
        stored: str = "",
        count: int = -1,
        routing: Routing | None = None,
    ) -> None:
        count = self.count if count < 0 else count
        if count:
            math, stored = math or self.precision.activations, stored or self.precision.plain
            if routing and routing not in self.routings:
                self.routings.append(routing)
            chosen = self.routings.index(routing) if routing else -1
            names = _KERNEL[kernel], _KIND[kind], _MATH[math], _STORED[stored]
            self.labels.append((self.stage, self.layers, *names, chosen))
            devices = devices or self.parallel.tensor
            shape = (count, devices, batch, m, n, k, heads, kv_heads, value_dim, choices, arrived, experts)
            self.sizes.append((*shape, macs, weight, read, write, cache, comm))

    def product(self, *factors: Number) -> Number:
        """Multiply whole numbers; raise instead of overflowing 64 bits."""
        about = 1.0
        exact: Number = 1
        for factor in factors:
            about = about * (float(factor.max()) if isinstance(factor, np.ndarray) else factor)
            exact = exact * factor
        if about >= _MAX:
            raise InputError(self.model.name, "workload", "a kernel exceeds 2^63 operations", "use smaller shapes")
        return exact

    def elementwise(self, kernel: str, m: Number, n: int, read: Number, write: Number, **more: Number) -> None:
        """Add a kernel over m rows of n values with the given traffic (bytes)."""
        self.add(kernel, "elementwise", m, n, read=read, write=write, **more)

    def per_token(self, kernel: str, width: int, read: Number, write: Number, reader: str = "", **more: Number) -> None:
        """Add a kernel over rows of *width* values, which reads and writes so many activations per token.

        Parameters
        ----------
        reader : str
            The GEMM that reads the output; it is written in the format of its operands.
        """
        tokens, written = self.work.tokens, self.operand_bytes(reader) if reader else self.value_bytes
        self.elementwise(kernel, tokens, width, tokens * (read * self.value_bytes), tokens * (write * written), **more)

    def norm(self, kernel: str, width: int, reader: str = "", weights: int | None = None) -> None:
        """Add a norm of *width* values per token, with as many weights unless *weights* says how many."""
        weight = self.plain_bytes(width if weights is None else weights)
        self.per_token(kernel, width, width, width, reader, weight=weight)

    def gemm(self, kernel: str, m: Number, n: int, k: int, batch: Number = 1, **traffic: Any) -> None:
        """Add the product of matrices of m × k and k × n, *batch* times."""
        self.add(kernel, "gemm", m, n, k, batch=batch, macs=self.product(m, n, k, batch), **traffic)

    def gemms(self, linears: Sequence[Linear], m: np.ndarray, fuse: bool = True) -> None:
        """Add one GEMM over matrices with the same input, or one GEMM each if *fuse* is false."""
        for bunch in self.bunches(linears, fuse):
            kernel, part = bunch[0].kernel, bunch[0].part if len(bunch) == 1 else ""
            n, k, weight = self.matrices(bunch, self.parallel.tensor)
            name = kernel if len(bunch) > 1 or len(linears) == 1 else bunch[0].part
            traffic = {"read": m * (k * self.operand_bytes(kernel, part)), "write": m * (n * self.value_bytes)}
            self.gemm(name, m, n, k, weight=weight, **traffic, **self.formats(kernel, part))

    def bunches(self, linears: Sequence[Linear], fuse: bool) -> list[Sequence[Linear]]:
        """Return the matrices of each GEMM over *linears*: engines join none of different formats."""
        formats = [self.precision.stated(linear.kernel, linear.part) for linear in linears]
        # Those without a kernel of their own are joined all the same, in the widest format.
        joined = fuse and (self.precision.alike(*formats) or not all(linear.part in _KERNEL for linear in linears))
        return [linears] if joined or len(linears) == 1 else [[linear] for linear in linears]

    def matrices(self, bunch: Sequence[Linear], devices: int) -> tuple[int, int, int]:
        """Return columns, depth and bytes (scales and biases included) of one device's share of joined matrices."""
        parts = [share(linear, devices) for linear in bunch]
        formats = [self.precision.format_of(linear.kernel, linear.part) for linear in bunch]
        bias = sum(outputs for (outputs, _), linear in zip(parts, bunch, strict=True) if linear.bias)
        stored = sum(one.matrix_bytes(*part) for one, part in zip(formats, parts, strict=True)) + self.plain_bytes(bias)
        return sum(outputs for outputs, _ in parts), parts[0][1], stored

    def formats(self, kernel: str, part: str = "") -> dict[str, str]:
        """Return the number formats of a GEMM as arguments of :meth:`add`."""
        weights = self.precision.format_of(kernel, part)
        stored = "fp8_block" if weights.block and weights.values == "fp8" else weights.values
        return {"math": self.precision.math_of(kernel, part), "stored": stored}

    def collective(self, kernel: str, m: Number, n: int, comm: Number, devices: int, count: int = -1) -> None:
        """Add an exchange of m rows of n activations, in which each device sends *comm* bytes."""
        payload = m * (n * self.value_bytes)
        stored = self.precision.activations
        more = {"comm": comm, "devices": devices, "count": count, "stored": stored}
        self.add(kernel, "collective", m, n, read=payload, write=payload, **more)

    def all_reduce(self, width: int, count: int = -1) -> None:
        """Sum *width* activations per token over the devices that share each matrix, if they are several."""
        if (tensor := self.parallel.tensor) > 1:
            sent = ring_bytes(self.work.tokens * (width * self.value_bytes), tensor, 2)
            self.collective("all_reduce", self.work.tokens, width, sent, tensor, count)

    def all_gather(self, m: np.ndarray, width: int) -> None:
        """Collect m rows of *width* activations from the devices that share each matrix, if they are several."""
        if (tensor := self.parallel.tensor) > 1:
            sent = ring_bytes(m * (width * self.value_bytes), tensor)
            self.collective("all_gather", m, width, sent, tensor)

    def between_replicas(self, kernel: str, width: int) -> None:
        """Collect *width* activations per token of all replicas, or sum and distribute them (``reduce_scatter``)."""
        replicas = self.parallel.replicas
        m = self.work.tokens * replicas
        self.collective(kernel, m, width, ring_bytes(m * (width * self.value_bytes), replicas), replicas)

    def frame(self) -> pd.DataFrame:
        """Return the rows of every shape, in execution order; rows without work are dropped."""
        shapes = self.work.shapes
        # Axes (shape, row), so that the boolean selection keeps the rows of a shape together.
        columns = {name: np.empty((shapes, len(self.sizes)), np.int64) for name in SIZES}
        for i, sizes in enumerate(self.sizes):
            for column, values in zip(columns.values(), sizes, strict=True):
                column[:, i] = values
        some = (columns["m"] > 0) & (columns["batch"] > 0)
        labels = np.array(self.labels, np.int16).T
        stage, layers, kernel, kind, math, stored, routing = (np.broadcast_to(row, some.shape)[some] for row in labels)
        shape = np.broadcast_to(np.arange(shapes)[:, None], some.shape)[some]

        def category(codes: np.ndarray, names: Sequence[str]) -> pd.Categorical:
            return pd.Categorical.from_codes(codes, dtype=_categories(tuple(names)))

        return pd.DataFrame(
            {
                "shape": shape,
                "phase": category(self.work.phase[shape], PHASES),
                "stage": stage.astype(np.int64),
                "layers": layers.astype(np.int64),
                "kernel": category(kernel, KERNELS),
                "kind": category(kind, KINDS),
                **{name: values[some] for name, values in columns.items()},
                "precision": category(math, MATH),
                "weight_precision": category(stored, tuple(BITS)),
                "routing": category(routing, self.routings),
            },
            copy=False,
        )
