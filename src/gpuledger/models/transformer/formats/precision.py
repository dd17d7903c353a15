"""Which tensor has which number format."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from gpuledger.errors import InputError
from gpuledger.models.transformer.formats.number_formats import BITS, MATH, Format, number_format
from gpuledger.models.transformer.names import UNCONVERTED, WEIGHTS


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
