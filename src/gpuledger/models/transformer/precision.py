"""Number formats, and which tensor uses which."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from gpuledger.errors import InputError
from gpuledger.models.transformer.names import UNCONVERTED, WEIGHTS

#: Bits of a value. tf32 is stored in 32 bits.
BITS = {
    **{"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp8_block": 8, "int8": 8},
    **{"int4": 4, "mxfp4": 4, "nvfp4": 4, "fp4": 4},
}
#: Formats in which matrix units compute.
MATH = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
_SUFFIX = re.compile(r"(fp8|int8|int4)_(?:g(\d{1,5})(_zero)?|block(\d{1,4}))")


@dataclass(frozen=True)
class Format:
    """How the values of a weight matrix are stored."""

    values: str  # format of one value, a key of :data:`BITS`
    group: int = 0  # values along a matrix's depth that share a scale; 0: none
    scale_bits: int = 0  # bits of a scale, including a group's zero point
    block: int = 0  # side of the square blocks that share a scale; 0: none

    @property
    def bits(self) -> int:
        return BITS[self.values]

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of a matrix of *outputs* × *inputs* values, scales included."""
        bits = outputs * inputs * self.bits
        if self.group:
            bits += outputs * -(-inputs // self.group) * self.scale_bits
        elif self.block:
            bits += -(-outputs // self.block) * -(-inputs // self.block) * self.scale_bits
        return -(-bits // 8)


@lru_cache(maxsize=256)
def number_format(name: str) -> Format:
    """Return the format called *name*.

    Besides those of :data:`BITS`: ``int4_g128`` and ``int8_g64`` (groups of 128 or 64 values along the depth share a
    16-bit scale), ``int4_g128_zero`` (with a zero point of the values' width, as in AWQ and GPTQ), ``fp8_block128``
    (blocks of 128 × 128 share a 32-bit scale, as in DeepSeek-V3). ``mxfp4`` and ``mxfp8`` have an 8-bit scale per 32
    values (OCP Microscaling Formats 1.0), ``nvfp4`` one per 16. ``nf4`` has a 32-bit scale per 64 values, and
    ``nf4_double`` an 8-bit one (bitsandbytes). Scales per tensor, per output channel or of 256 scales, less than 0.1 %
    of the matrix, are not counted.
    """
    if name in ("mxfp4", "mxfp8"):
        return Format("fp8" if name == "mxfp8" else name, 32, 8)
    if name == "nvfp4":
        return Format("nvfp4", 16, 8)
    if name in ("nf4", "nf4_double"):
        return Format("int4", 64, 32 if name == "nf4" else 8)
    if isinstance(name, str) and name in BITS:
        return Format(name)
    match = _SUFFIX.fullmatch(name) if isinstance(name, str) else None
    if match and int(match[2] or match[4]) > 0:
        if match[4]:
            return Format(match[1], block=int(match[4]), scale_bits=32)
        return Format(match[1], int(match[2]), 16 + (BITS[match[1]] if match[3] else 0))
    remedy = f"use one of {', '.join(BITS)}, or with scales mxfp8, int4_g128, int4_g128_zero, nf4, fp8_block128"
    raise InputError("precision", "", f"there is no number format {name!r}", remedy)


@dataclass(frozen=True)
class Precision:
    """Number formats of weights, activations and cache."""

    #: Format of the linear layers (see :func:`number_format`). A mapping sets it per kernel, or per matrix of a kernel
    #: that joins several (``qkv_proj.k_proj``), with ``"*"`` for the rest. Embeddings, LM head, router and the gate of
    #: shared experts are unquantised unless named.
    weights: str | Mapping[str, str] = "bf16"
    activations: str = "bf16"  # format of kernel outputs and of the residual stream
    cache: str = "bf16"  # Format of cached keys and values. Attention computes in ``activations`` regardless.
    #: Format to which the inputs of a GEMM are converted if its weights are narrower than ``activations``: ``fp8`` for
    #: a checkpoint with fp8 weights and dynamically quantised activations. The preceding kernel converts them (fused).
    #: None: weights are converted when read, and the arithmetic is in ``activations``. A mapping sets it per kernel,
    #: with ``"*"`` for the rest.
    operands: str | Mapping[str, str | None] | None = None
    #: Format of embeddings, LM head, norms, router and biases. None: ``activations``, at least 16 bits.
    unquantised: str | None = None

    def __post_init__(self):
        for what in ("weights", "operands"):
            for kernel in {name.partition(".")[0] for name in _per_kernel(getattr(self, what))} - {"*"} - WEIGHTS:
                remedy = f"name one of {', '.join(sorted(WEIGHTS))}, or '*' for the rest"
                raise InputError("precision", what, f"no kernel with weights is named {kernel!r}", remedy)
        for name in _per_kernel(self.weights).values():
            number_format(name)
        for what, names in (("activations", [self.activations]), ("operands", _per_kernel(self.operands).values())):
            for name in names:
                if name not in MATH and not (what == "operands" and name is None):
                    raise InputError("precision", what, f"GPUs do not compute in {name!r}", f"use {', '.join(MATH)}")
        for what in ("cache", "unquantised"):
            if (name := getattr(self, what)) is not None and name not in BITS:
                raise InputError("precision", what, f"there is no number format {name!r}", f"use {', '.join(BITS)}")

    def with_formats(self, formats: Iterable[tuple[str, str, str | None]]) -> Self:
        """Return this precision with other formats of the weights and operands of some kernels.

        Parameters
        ----------
        formats : iterable of (kernel, format of the weights, format of the operands)
            An empty format of the weights: unquantised.
        """
        if not formats:
            return self
        weights = {kernel: weight or self.plain for kernel, weight, _ in formats}
        operands = {kernel: operand for kernel, _, operand in formats}
        return replace(
            self, weights={**_per_kernel(self.weights), **weights}, operands={**_per_kernel(self.operands), **operands}
        )

    @property
    def plain(self) -> str:
        """Format of tensors that are never quantised."""
        return self.unquantised or (self.activations if BITS[self.activations] >= 16 else "bf16")

    @property
    def formats_of_weights(self) -> tuple[str, ...]:
        """Formats of the weights of all kernels that are named, each once, that of the rest first."""
        weights = _per_kernel(self.weights)
        return tuple(dict.fromkeys([weights.get("*", self.plain), *weights.values()]))

    def stated(self, kernel: str, part: str = "") -> tuple[str, str | None]:
        """Return the formats of weights (empty: unquantised) and operands that are stated for a matrix of *kernel*."""
        weights, operands = _per_kernel(self.weights), _per_kernel(self.operands)
        usual = "" if kernel in UNCONVERTED else weights.get("*", "")
        return _of_part(weights, kernel, part, usual), _of_part(operands, kernel, part, operands.get("*"))

    def alike(self, *formats: tuple[str, str | None]) -> bool:
        """Return whether pairs as those of :meth:`stated` store and multiply the same."""
        if len(set(formats)) == 1:
            return True
        return len({(number_format(weights or self.plain), self._used(weights, how)) for weights, how in formats}) == 1

    def _used(self, weights: str, operands: str | None) -> str:
        narrow = operands is not None and number_format(weights or self.plain).bits < BITS[self.activations]
        return operands if operands and narrow else self.activations

    def format_of(self, kernel: str, part: str = "") -> Format:
        """Return the format of the weights of *kernel*, or of one of the matrices that it joins."""
        return number_format(self.stated(kernel, part)[0] or self.plain)

    def operands_of(self, kernel: str, part: str = "") -> str:
        """Return the format of the activations that *kernel* multiplies with its weights."""
        return self._used(*self.stated(kernel, part))

    def math_of(self, kernel: str, part: str = "") -> str:
        """Return the format in which *kernel* computes: its operands', or its weights' if wider."""
        weights, operands = self.format_of(kernel, part), self.operands_of(kernel, part)
        return weights.values if weights.bits > BITS[operands] else operands


def _per_kernel(formats: str | Mapping | None) -> Mapping:
    return formats if isinstance(formats, Mapping) else {"*": formats}


def _of_part(formats: Mapping, kernel: str, part: str, usual: str | None) -> str | None:
    own = formats.get(kernel, usual)
    return formats.get(f"{kernel}.{part}", own) if part and len(formats) > 1 else own
