"""Number formats, and which tensor has which."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuledger.errors import InputError
from gpuledger.models.transformer.names import UNCONVERTED, WEIGHTS

#: Bits of a value. tf32 is stored in 32 bits.
BITS = {"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "mxfp4": 4, "nvfp4": 4}
#: Formats that matrix units multiply.
MATH = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_SUFFIX = re.compile(r"(fp8|int8|int4)_(?:g(\d{1,5})(_zero)?|block(\d{1,4}))")


@dataclass(frozen=True)
class Format:
    """How the values of a weight matrix are stored.

    Attributes
    ----------
    values : str
        Format of one value, a key of :data:`BITS`.
    group : int
        Values along the depth of a matrix that share a scale; 0 for none.
    scale_bits : int
        Bits of a scale, and of what else a group has (a zero point).
    block : int
        With blocks of block × block values that share a scale: their side; 0 for none.
    """

    values: str
    group: int = 0
    scale_bits: int = 0
    block: int = 0

    @property
    def bits(self) -> int:
        return BITS[self.values]

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of a matrix of *outputs* × *inputs* values with its scales."""
        bits = outputs * inputs * self.bits
        if self.group:
            bits += outputs * -(-inputs // self.group) * self.scale_bits
        elif self.block:
            bits += -(-outputs // self.block) * -(-inputs // self.block) * self.scale_bits
        return -(-bits // 8)


@lru_cache(maxsize=256)
def number_format(name: str) -> Format:
    """Return the format called *name*.

    Besides those of :data:`BITS`: ``int4_g128`` and ``int8_g64`` (groups of so many values along the depth share a
    16-bit scale), ``int4_g128_zero`` (and a zero point of the values' width, as AWQ and GPTQ store it),
    ``fp8_block128`` (blocks of 128 × 128 share a 32-bit scale, as DeepSeek-V3 stores it). ``mxfp4`` has an 8-bit
    scale per 32 values (OCP Microscaling Formats 1.0), ``nvfp4`` one per 16. A scale for a whole tensor or an output
    channel, less than 0.1 % of the matrix, is not counted.

    Raises
    ------
    InputError
        There is no such format.
    """
    if name == "mxfp4":
        return Format("mxfp4", 32, 8)
    if name == "nvfp4":
        return Format("nvfp4", 16, 8)
    if isinstance(name, str) and name in BITS:
        return Format(name)
    match = _SUFFIX.fullmatch(name) if isinstance(name, str) else None
    if match and int(match[2] or match[4]) > 0:
        if match[4]:
            return Format(match[1], block=int(match[4]), scale_bits=32)
        return Format(match[1], int(match[2]), 16 + (BITS[match[1]] if match[3] else 0))
    remedy = f"use one of {', '.join(BITS)}, or with scales int4_g128, int4_g128_zero, fp8_block128"
    raise InputError("precision", "", f"there is no number format {name!r}", remedy)


@dataclass(frozen=True)
class Precision:
    """Which tensor has which number format.

    Attributes
    ----------
    weights : str or mapping
        Of the linear layers (see :func:`number_format`). A mapping gives it by kernel, with ``"*"`` for the others.
        Embeddings, LM head, router and the gate of shared experts count as unquantised unless they are named.
    activations : str
        What kernels write and the residual stream is kept in.
    cache : str
        Of keys and values in the cache. Attention computes in ``activations``, whatever the cache has.
    operands : str, optional
        What the inputs of a GEMM are converted to where its weights are narrower than ``activations``: ``fp8`` for a
        checkpoint with fp8 weights and dynamically quantised activations. The kernel before writes it so (fused).
        None: weights are converted when they are read, and the math is in ``activations``.
    unquantised : str, optional
        Of embeddings, LM head, norms, router and biases. None: ``activations``, at least 16 bits.
    """

    weights: str | Mapping[str, str] = "bf16"
    activations: str = "bf16"
    cache: str = "bf16"
    operands: str | None = None
    unquantised: str | None = None

    def __post_init__(self):
        weights = self.weights if isinstance(self.weights, Mapping) else {"*": self.weights}
        for kernel, name in weights.items():
            if kernel != "*" and kernel not in WEIGHTS:
                remedy = f"name one of {', '.join(sorted(WEIGHTS))}, or '*' for all others"
                raise InputError("precision", "weights", f"no kernel with weights is called {kernel!r}", remedy)
            number_format(name)
        for what in ("activations", "operands"):
            name = getattr(self, what)
            if name not in MATH and not (what == "operands" and name is None):
                raise InputError("precision", what, f"{name!r} is no format to compute in", f"use {', '.join(MATH)}")
        for what in ("cache", "unquantised"):
            if (name := getattr(self, what)) is not None and name not in BITS:
                raise InputError("precision", what, f"there is no number format {name!r}", f"use {', '.join(BITS)}")

    def keeping(self, kernels: Collection[str]) -> Precision:
        """Return this precision with the weights of *kernels* unquantised."""
        if not kernels:
            return self
        weights = self.weights if isinstance(self.weights, Mapping) else {"*": self.weights}
        return replace(self, weights={**weights, **dict.fromkeys(kernels, self.plain)})

    @property
    def plain(self) -> str:
        """The format of what is never quantised."""
        return self.unquantised or (self.activations if BITS[self.activations] >= 16 else "bf16")

    def format_of(self, kernel: str) -> Format:
        """Return the format of the weights of *kernel*."""
        weights = self.weights if isinstance(self.weights, Mapping) else {"*": self.weights}
        if kernel in weights:
            return number_format(weights[kernel])
        if kernel in UNCONVERTED:
            return number_format(self.plain)
        return number_format(weights.get("*", self.plain))

    def operands_of(self, kernel: str) -> str:
        """Return the format of the activations that *kernel* multiplies with its weights."""
        narrow = self.operands is not None and self.format_of(kernel).bits < BITS[self.activations]
        return self.operands if narrow else self.activations

    def math_of(self, kernel: str) -> str:
        """Return what *kernel* computes in: its operands, or its weights where those are wider."""
        weights, operands = self.format_of(kernel), self.operands_of(kernel)
        return weights.values if weights.bits > BITS[operands] else operands
