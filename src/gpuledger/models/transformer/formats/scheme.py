"""What a quantisation method says of a checkpoint's formats."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuledger.models.transformer.formats.precision import Precision
from gpuledger.models.transformer.model import Layers

MAX_GROUP = 65_536


@dataclass(frozen=True)
class Scheme:
    """Formats of weights, operands and cache (None: unquantised), and of single modules, (weights, operands)."""

    weights: str | Mapping[str, str]
    operands: str | None = None
    cache: str | None = None
    modules: tuple[tuple[str, tuple[str, str | None]], ...] = ()
    #: Whether it converts what others leave unquantised (embedding, LM head, router), too.
    all_kernels: bool = False
    whole_groups: bool = False  # whether a matrix whose depth is no multiple of the group stays unquantised


def where_groups_fit(
    precision: Precision, layers: tuple[Layers, ...], hidden: int
) -> tuple[Precision, tuple[Layers, ...]]:
    """Return formats in which matrices are unquantised whose depth is no multiple of the values that share a scale."""

    def fits(one: Precision, kernel: str, part: str, inputs: int) -> bool:
        group = one.format_of(kernel, part).group
        return not group or inputs % group == 0

    found = []
    for group in layers:
        own = precision.with_formats(group.formats)
        matrices = {(linear.kernel, linear.part): linear.inputs for linear in group.linears(hidden)}
        without = [names for names, inputs in matrices.items() if not fits(own, *names, inputs)]
        kernels = {
            kernel for kernel, _ in without if all((kernel, part) in without for of, part in matrices if of == kernel)
        }
        more = [(kernel, "", None) for kernel in sorted(kernels)]
        more += [(f"{kernel}.{part}", "", None) for kernel, part in without if kernel not in kernels]
        kept = [one for one in group.formats if one[0] not in kernels]
        found.append(replace(group, formats=(*kept, *more)))
    tables = dict.fromkeys(("embedding", "position_embedding", "altup_proj", "lm_head"), hidden)
    tables["per_layer_embedding"] = sum(group.count * group.per_layer for group in layers)
    outer = [kernel for kernel, width in tables.items() if not fits(precision, kernel, "", width)]
    return precision.with_formats([(kernel, "", None) for kernel in outer]), tuple(found)
