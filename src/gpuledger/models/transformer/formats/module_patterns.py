"""Which weight matrices a quantised checkpoint stores in which format: its patterns, applied to names of modules."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache

from gpuledger.errors import InputError, shown, warn
from gpuledger.models.transformer.formats.module_names import Module, layer_prefixes, layers_of_a_number, modules_of
from gpuledger.models.transformer.formats.precision import Precision, number_format
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.names import UNCONVERTED
from gpuledger.models.transformer.rules.keys import ConfigKeys
from gpuledger.regexes import slow_regex

#: Formats of weights (empty: unquantised) and operands.
Formats = tuple[str, str | None]
#: A module of a kind of layers: number of the matrix, and of the module among those that it is stored as.
Place = tuple[int, int]

#: Names of one kind of layers with which patterns are compared, at most.
_MOST_TRIALS = 3_000_000
#: Long repetitions in a pattern; fewer if it is compared with the name of every expert in every layer.
_MOST_REPETITIONS, _MOST_WITH_NUMBERS = 3, 2
#: What stands before a layer in a name, its number or a star, and what follows.
_LAYER = re.compile(r"((?:.*?[.*])?)(?:layers|blocks|h)\.(\d{1,6}\*?|\*)((?:\..*)?)")
#: What is not quantised anyway, or is none of the text model's layers.
_ELSEWHERE = re.compile(
    r"lm_head|output_layer|embed|wte|norm|router|gate\b|vision|visual|multi_modal|mm_|patch_|rotary_emb|correction_bias"
    r"|mtp|audio|talker|2wav|indexers_proj|conv1d|A_log|dt_bias|sinks|(^|\.)(head|nextn|projector|connector"
    r"|merger|modality_projection|mlp1)|^model\.decoder\.self_attn"
)
#: An expression in which digits stand only for the number of the layer, which ``layers.`` precedes in every name.
_OF_LAYERS = re.compile(r"[^\d{]*layers\\?\.[\d()|\[\]:?*+\\d-]+?\\?\.[^\d{]*")
_DIGITS = str.maketrans("123456789", "0" * 9)
_HEADS = ("lm_head", "head", "model.lm_head", "language_model.lm_head")


@dataclass(frozen=True)
class ModulePattern:
    """A regular expression, a name or a name with stars.

    A name applies to all that is within the module, too, and may lack what the modules around it are called.
    """

    text: str  # the expression, which matches from the beginning of full names; or a name within a layer
    is_regex: bool
    origin: tuple[str, str, str] = field(compare=False)  # for messages: file, key and what it says

    @cached_property
    def by_digits(self) -> bool:
        r"""Whether the pattern tells numbers of the same length apart: it has a digit, but in ``\d`` or ``[0-9]``."""
        return re.search(r"[\d{]", self.text.replace("[0-9]", r"\d")) is not None

    @cached_property
    def by_number(self) -> bool:
        """Whether the pattern may tell experts apart."""
        return self.by_digits and not (self.is_regex and _OF_LAYERS.fullmatch(self.text.replace("[0-9]", r"\d")))

    def alike(self, layer: int) -> int:
        """Return a number that is the same for layers in which the pattern applies to the same modules."""
        return 0 if not self.is_regex else layer if self.by_digits else -len(str(layer))

    @cached_property
    def _compiled(self) -> re.Pattern:
        text = self.text
        if not self.is_regex:
            name = text.removeprefix("*.").removesuffix(".*")
            start, end = ("" if name[at : at + 1] == "*" else r"\." for at in (0, len(name) - 1))
            text = start + re.escape(name.strip("*")).replace(r"\*", ".*") + end
        # What ends in anything is found at once.
        counted = re.sub(r"(?<!\\)(\.\*)+\$?$", "", text)
        try:
            compiled = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:  # too many repetitions, nested too deeply
            raise self.error(f"does not compile: {error}", "correct it") from error
        if fault := slow_regex(counted, _MOST_WITH_NUMBERS if self.by_number else _MOST_REPETITIONS):
            raise self.error(fault, "write it with fewer or bounded repetitions")
        return compiled

    def error(self, problem: str, remedy: str) -> InputError:
        file, key, text = self.origin
        return InputError(file, f"key {key}", f"pattern {shown(text)} {problem}", remedy)

    def applies(self, name: str) -> bool:
        """Return whether the pattern applies to a module: by its full name for an expression, else within its layer."""
        if self.is_regex:
            return self._compiled.match(name) is not None
        if "*" in self.text:
            return self._compiled.search(f".{name}.") is not None
        return f".{self.text}." in f".{name}." or not self.text

    def may_convert(self, module: Module, everything: bool) -> bool:
        """Return whether the pattern is specific enough for a matrix that checkpoints leave unquantised."""
        if module.kernel not in UNCONVERTED or everything:
            return True
        last = self.text.rpartition(".")[2]
        named = any(name.rpartition(".")[2] == last for names in module.names for name in names)
        return named and not self.is_regex and module.kernel not in ("router", "shared_gate")


def _parsed(text: str, count: int, keys: ConfigKeys) -> tuple[ModulePattern, Sequence[int | None]]:
    """Return a pattern and those of *count* layers that it names (None: all).

    Parameters
    ----------
    text : str
        As the file has it, with ``re:`` before a regular expression.
    """
    origin = (keys.file, keys.inside, text)
    if text.startswith("re:"):
        return ModulePattern(text.removeprefix("re:"), True, origin), [None]
    layer = _LAYER.fullmatch(text)
    if layer is None or _ELSEWHERE.search(layer[1]):
        number, name = "*", text
    else:
        _, number, name = layer.groups()
    name = name.removesuffix(".weight").strip(".")
    numbers: Sequence[int | None] = [None]
    if number != "*":
        numbers = [int(number)] if number.isdigit() else [i for i in range(count) if f"{i}".startswith(number[:-1])]
    return ModulePattern(name, False, origin), [i for i in numbers if i is None or i < count]


class _Names:
    """The names of the modules of one kind of layers, and to which of them patterns apply."""

    def __init__(self, modules: tuple[Module, ...], prefixes: tuple[str, ...], several: int = 1):
        self.modules, self.prefixes, self.several = modules, prefixes, several
        # A pattern without digits of its own applies to all or none of the names that differ in digits alone.
        alike: dict[tuple[str, ...], list[Place]] = {}
        for i, one in enumerate(modules):
            for names, numbers in _alike(one.names):
                alike.setdefault(names, []).extend((i, j) for j in numbers)
        self.alike = [(places, names) for names, places in alike.items()]
        self._hits: dict[tuple[ModulePattern, int], list[Place]] = {}
        self._trials = 0

    @cached_property
    def all(self) -> list[tuple[list[Place], tuple[str, ...]]]:
        return [([(i, j)], names) for i, one in enumerate(self.modules) for j, names in enumerate(one.names)]

    def hits(self, pattern: ModulePattern, layer: int) -> list[Place]:
        """Return the modules of *layer* to which a pattern applies."""
        layer //= self.several
        key = pattern, pattern.alike(layer)
        if key not in self._hits:
            kinds = self.all if pattern.by_number else self.alike
            self._trials += len(kinds)
            if self._trials > _MOST_TRIALS:
                problem = f"is one of too many for {len(self.all)} modules in each of many layers"
                raise pattern.error(problem, "write fewer, or such without numbers")
            starts = [f"{prefix}{layer}." for prefix in self.prefixes] if pattern.is_regex else [""]
            self._hits[key] = [
                place
                for places, names in kinds
                if any(pattern.applies(start + name) for name in names for start in starts)
                for place in places
            ]
        return self._hits[key]


@lru_cache(maxsize=64)  # a thousand experts have the same names in every layer
def _alike(members: tuple[tuple[str, ...], ...]) -> tuple[tuple[tuple[str, ...], list[int]], ...]:
    """Return the names of modules with every digit 0, and the numbers of the modules that are so called."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number, names in enumerate(members):
        found.setdefault(tuple([name.translate(_DIGITS) for name in names]), []).append(number)
    return tuple(found.items())


def by_module(
    layers: tuple[Layers, ...],
    keys: ConfigKeys,
    patterns: Iterable[tuple[str, Formats]],
    precision: Precision,
    kind: str,
    nested: bool,
    everything: bool = False,
) -> tuple[tuple[Layers, ...], Formats | None]:
    """Split layers where their modules are stored in different formats.

    Parameters
    ----------
    keys : ConfigKeys
        Of the object that names the modules, for error messages.
    patterns : iterable of (text, (format of the weights, format of the operands))
        See :class:`ModulePattern`, with ``re:`` before regular expressions; an empty format: unquantised. The first
        that applies to a module counts.
    precision : Precision
        Of the model: formats that are the same are left out.
    kind, nested : str, bool
        As for :func:`gpuledger.models.transformer.formats.module_names.layer_prefixes`.
    everything : bool
        Patterns also apply to matrices that most checkpoints leave unquantised.

    Returns
    -------
    layers : tuple of Layers
    lm_head : (str, str or None) or None
        The formats that a pattern states for the LM head.

    Raises
    ------
    InputError
        A name is none of the architecture's; a pattern takes long.

    Warns
    -----
    InputWarning
        An expression, a name with stars or a class applies to no module: engines take no notice of it, either.
    """
    patterns = list(patterns)
    if not patterns:
        return layers, None
    prefixes, several = layer_prefixes(kind, nested), layers_of_a_number(kind)
    count = sum(group.count for group in layers) // several

    @cache
    def named(kind: str, joined: bool = False) -> list[_Names]:
        return [_Names(modules_of(group, kind, joined), prefixes, several) for group in layers]

    @cache
    def meant(pattern: ModulePattern) -> list[_Names] | None:
        # Where no module is so called: names of matrices that engines join, and those that most architectures have.
        others = [] if pattern.is_regex else [("", False)]
        ways = [(kind, False), (kind, True), *others]
        return next((named(*way) for way in ways if _applies(pattern, layers, named(*way))), None)

    # By layer, None for all: patterns with their places in the order, and formats.
    of_layer: dict[int | None, list[tuple[int, ModulePattern, Formats]]] = {}
    same: dict[ModulePattern, ModulePattern] = {}
    without: list[str] = []
    head: Formats | None = None
    for order, (text, formats) in enumerate(patterns):
        pattern, numbers = _parsed(text, count, keys)
        pattern = same.setdefault(pattern, pattern)  # lists name every layer's modules
        if "head" in text and head is None and any(map(pattern.applies, _HEADS)):
            head = formats
        if numbers and meant(pattern) is None:
            without.append(text)
            continue
        for number in numbers:
            for own in [None] if number is None else range(several * number, several * (number + 1)):
                of_layer.setdefault(own, []).append((order, pattern, formats))
    _report(without, keys)
    split: list[Layers] = []
    for at, group in enumerate(layers):
        kinds: dict[tuple, list[int]] = {}
        known: dict[tuple, tuple] = {}
        modules = named(kind)[at].modules
        for number in group.numbers:
            stored = group.stored(number)
            own = sorted((*of_layer.get(None, ()), *of_layer.get(stored, ())), key=lambda one: one[0])
            key = tuple((pattern, pattern.alike(stored // several), formats) for _, pattern, formats in own)
            if key not in known:
                chosen: dict[Place, Formats] = {}
                for pattern, _, formats in key:
                    for place in meant(pattern)[at].hits(pattern, stored):
                        if pattern.may_convert(modules[place[0]], everything):
                            chosen.setdefault(place, formats)
                known[key] = _of_kernels(modules, chosen, precision)
            kinds.setdefault(known[key], []).append(number)
        split += [replace(group, numbers=tuple(numbers), formats=own) for own, numbers in kinds.items()]
    return tuple(sorted(split, key=lambda group: group.numbers)), head


def _applies(pattern: ModulePattern, layers: tuple[Layers, ...], names: list[_Names]) -> bool:
    """Return whether a pattern applies to a module of any layer, whichever a name says."""
    return any(
        one.hits(pattern, number)
        for one, group in zip(names, layers, strict=True)
        for number in (group.numbers if pattern.is_regex else group.numbers[:1])
    )


def _report(without: list[str], keys: ConfigKeys) -> None:
    """Refuse names, and warn of expressions, that apply to nothing, unless they mean what is unquantised anyway."""
    strange = [text for text in without if not _ELSEWHERE.search(text)]
    for text in strange:
        # Classes are named with a capital letter; that of linear layers is none of these.
        if not text.startswith("re:") and "*" not in text and not text[:1].isupper():
            problem = f"unknown module {shown(text)}"
            raise InputError(keys.file, f"key {keys.inside}", problem, "name modules of the architecture")
    if strange:
        few = ", ".join(map(shown, strange[:3])) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
        problem = f"no module of the architecture matches {few}"
        warn(keys.file, f"key {keys.inside}", problem, "left out, as engines do")


def _of_kernels(
    modules: tuple[Module, ...], chosen: dict[Place, Formats], precision: Precision
) -> tuple[tuple[str, str, str | None], ...]:
    """Return :attr:`gpuledger.models.transformer.model.Layers.formats` from the formats of single modules."""
    kernels: dict[str, dict[str, Formats]] = {}
    for i, module in enumerate(modules):
        usual = precision.stated(module.kernel)
        given = [chosen.get((i, j), usual) for j in range(len(module.names))]
        kernels.setdefault(module.kernel, {})[module.part] = _of_copies(given, precision)
    found: list[tuple[str, str, str | None]] = []
    for kernel, parts in sorted(kernels.items()):
        # Where parts differ, the kernel has the widest format, and the others are named beside it.
        widest = max(parts.values(), key=lambda formats: number_format(formats[0] or precision.plain).bits)
        if not precision.alike(widest, precision.stated(kernel)):
            found.append((kernel, *widest))
        found += [(f"{kernel}.{part}", *one) for part, one in parts.items() if not precision.alike(one, widest)]
    return tuple(found)


def _of_copies(given: list[Formats], precision: Precision) -> Formats:
    """Return the formats of a matrix of every expert: of several a mixture, with the operands of most."""
    if all(one == given[0] or precision.alike(one, given[0]) for one in given):
        return given[0]
    counted = Counter(given).most_common()
    return " ".join(f"{count}*{weights or precision.plain}" for (weights, _), count in counted), counted[0][0][1]
