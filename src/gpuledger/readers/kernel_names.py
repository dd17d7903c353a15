"""Kernel names: what a demangled CUDA kernel name says about the kernel.

A kernel is identified by its full demangled name, because kernels that differ in one template argument may behave
differently. Its class (``gemm``, ``reduce``, …) is derived from the name. The names of GEMM kernels also state the tile
of C per block, the slices of K within a block, and the layouts of A and B. ``parse`` reads these facts; ``classify``
assigns classes by the ordered table of ``kernel_patterns``.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.readers.kernel_patterns import PATTERNS, Pattern, extend_patterns

__all__ = [
    "OTHER",
    "PATTERNS",
    "KernelName",
    "Pattern",
    "classify",
    "extend_patterns",
    "parse",
    "short_name",
    "template_arguments",
]

#: Class of kernels that match no pattern.
OTHER = "other"
_SHOWN = 50


@dataclass(frozen=True)
class KernelName:
    """The facts that a kernel name states; ``None``: not stated."""

    name: str  # the full name as printed, which identifies the kernel
    #: Function name without return type, namespaces and arguments; for a CUTLASS wrapper
    #: (``cutlass::Kernel2<cutlass_80_…>``) the name of the wrapped kernel.
    base: str
    kernel_class: str | None = None  # according to ``PATTERNS``, as is the family
    family: str | None = None
    #: Tile of C per block in the library's (column-major) order, and depth of one K step.
    tile_m: int | None = None
    tile_n: int | None = None
    tile_k: int | None = None
    slices: int = 1  # slices of K within a block (``sliced1x4``: 4); 1 if there are none
    transpose: str | None = None  # layouts of A and B, column-major: nn, nt, tn or tt
    stages: int | None = None  # stages of the shared-memory pipeline
    tensor_core: bool | None = None  # whether the kernel multiplies matrices on tensor cores
    mma: tuple[int, int, int] | None = None  # shape (m, n, k) of one warp-level matrix instruction


#: Characters of a name that are searched; names of templates have some thousands.
_LONGEST = 1 << 16
_PAIRS = {")": "(", ">": "<", "]": "[", "}": "{"}
_TOKEN = re.compile(r"[<>()\[\]{}]|operator\s*(?:\(\)|\[\]|<=>|<<=?|>>=?|->\*?|<=|>=)|->")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}|\(anonymous\)|\(anonymous class\)")


def _outline(name: str) -> str:
    """Return the name without bracketed parts, up to the end of the call arguments."""
    name = _ANONYMOUS.sub("anonymous", name)
    stack: list[str] = []
    depth = dict.fromkeys("<([{", 0)  # open brackets of each kind, so that stray closing ones are cheap
    parts: list[str] = []
    position, called = 0, False
    for match in _TOKEN.finditer(name):
        token = match.group()
        if len(token) > 1:  # an operator or an arrow
            continue
        if not stack:
            text = name[position : match.start()]
            if called and not text.lstrip().startswith("::"):
                return "".join(parts)
            called = False
            parts.append(text)
        position = match.end()
        if token in depth:
            stack.append(token)
            depth[token] += 1
        elif depth[_PAIRS[token]] and (token != ">" or stack[-1] == "<"):
            opened = ""
            while opened != _PAIRS[token]:  # brackets left open inside were comparisons
                opened = stack.pop()
                depth[opened] -= 1
            called = token == ")" and not stack
        elif not stack:  # the beginning of the name is missing: ``unnamed>::kernel``
            parts.clear()
    if not stack and not (called and not name[position:].lstrip().startswith("::")):
        parts.append(name[position:])
    return "".join(parts)


def _demangled(name: str) -> str:
    """Return the nested identifiers of an Itanium-mangled name; other names unchanged."""
    if not re.match(r"_Z(?:N|L|\d)", name):
        return name
    parts, position = [], re.match(r"_ZN?[LKVr]{0,3}", name).end()
    while match := re.compile(r"L?(\d{1,4})").match(name, position):
        end = match.end() + int(match.group(1))
        if end > len(name):
            break
        parts.append("anonymous" if name[match.end() : end].startswith("_GLOBAL__N_") else name[match.end() : end])
        position = end
    return "::".join(parts) or name


def template_arguments(name: str) -> list[str]:
    """Return the template arguments of a kernel name, split at the top level.

    Returns
    -------
    list of str
        Arguments of the first template bracket, stripped; empty if there is none. ``(int)4`` stays as printed.
    """
    text = _ANONYMOUS.sub("anonymous", name)
    start = text.find("<")
    if start < 0 or ("(" in text[:start]):
        return []
    stack, arguments, position = ["<"], [], start + 1
    for match in re.finditer(r"[<>()\[\]{},]|->", text[start + 1 :]):
        token, at = match.group(), start + 1 + match.start()
        if token == "," and len(stack) == 1:
            arguments.append(text[position:at].strip())
            position = at + 1
        elif token in "<([{":
            stack.append(token)
        elif token in _PAIRS and stack[-1] == _PAIRS[token]:
            stack.pop()
            if not stack:
                return [*arguments, text[position:at].strip()]
    return [*arguments, text[position:].strip()]


def _path(name: str) -> str:
    outline = " ".join(_outline(_demangled(name[:_LONGEST].strip())).split())
    # The return type ends at the last blank before a name; a trailing ``const`` is not a name.
    words = [word for word in outline.split(" ") if word not in ("const", "void", "static", "clone")]
    return (words[-1] if words else outline).strip(": ")


_WRAPPED = re.compile(r"[<\s]((?:cutlass\w{0,6}_|fmha_)\w{1,200})")

#: XLA numbers the kernels that it generates; alike ones of several layers differ in nothing else.
_NUMBERED = re.compile(
    r"^((?:fusion|gemm_fusion|input|loop|triton_gemm|triton_softmax|wrapped)(?:_\w{1,200}?)?)(?:_\d{1,9}){1,4}$"
)


def short_name(name: str) -> str:
    """Return the bare function name of a full kernel name (see ``KernelName.base``), without the number that XLA adds.

    Parameters
    ----------
    name : str
        Full demangled name, or a bare one.
    """
    path = _path(name)
    base = path.rsplit("::", 1)[-1]
    if re.fullmatch(r"Kernel\d?|device_kernel|kernel", base) and (found := _WRAPPED.search(name[:4096])):
        return found.group(1)
    if base == "kernel" and "::" in path:  # ``internal::gemvx::kernel``
        return "::".join(path.split("::")[-2:])
    return _NUMBERED.sub(r"\1", base) or name.strip()[:200]


#: Inductor numbers its kernels by their place in the graph; Triton up to 2.1 wrote which arguments are divisible by 16
#: (``_0d1d2``).
_COMPILED = re.compile(
    r"^(?:(triton_[a-z]{2,4}_\w{1,400}?)_\d{1,5}|(\w{1,400}?[a-z])_0[dec]{0,2}1[dec]{0,2}[0-9dec]*)$"
)


def without_compilers_number(name: str) -> str:
    """Return the short name of a kernel without what Triton and Inductor add, which changes with the program."""
    base = short_name(name)
    return next(filter(None, found.groups())) if (found := _COMPILED.match(base)) else base


def are_siblings(one: str, other: str, kernels: Iterable[str]) -> bool:
    """Tell whether two kernels are different ones of a family, of which `kernels` has several: ``norm1``, ``norm2``.

    Names that differ only in the number at their end may also be versions of one kernel. Where a program has several
    such kernels, they are not; of GEMMs, such numbers are tiles and alignments.
    """
    stem = short_name(one).rstrip("0123456789")
    if stem != short_name(other).rstrip("0123456789") or parse(one).kernel_class == "gemm":
        return False
    bases = {base for name in kernels if (base := short_name(name)).startswith(stem)}
    return sum(base.rstrip("0123456789") == stem for base in bases) > 1


_D = r"(\d{1,4})"
_TILES = (  # the first match counts; groups: tile_m, tile_n, tile_k, stages (missing groups are unknown)
    re.compile(rf"tilesize{_D}x{_D}x{_D}(?:_stage{_D})?"),
    re.compile(rf"_{_D}x{_D}(?:_sliced\d{{1,2}}x\d{{1,2}})?_\w{{0,40}}stages_{_D}x{_D}"),
    re.compile(rf"^nvjet_\w{{0,30}}?_mma_{_D}x{_D}x{_D}_{_D}_"),
    re.compile(rf"^cutlass3x_\w{{0,120}}?_{_D}x{_D}x{_D}_\d{{1,2}}x\d{{1,2}}x\d{{1,2}}_"),
    re.compile(rf"^(?:cutlass|nvjet)_\w{{0,120}}?_{_D}x{_D}_{_D}x{_D}(?=_|$)"),
    re.compile(rf"^bmm_\w{{0,80}}?_t{_D}x{_D}x{_D}u\d"),
    re.compile(rf"gemm\w{{0,40}}?_{_D}x{_D}(?=_|$)"),
    re.compile(rf"^fmha_\w{{0,60}}?_{_D}x{_D}(?=_|$)"),
)
_SLICED = re.compile(r"sliced(\d{1,2})x(\d{1,2})")
_TRANSPOSE = re.compile(r"_([nt]{2})n?(?=_|$)")
_NVJET_TRANSPOSE = re.compile(r"_([TN]{2})[TN]{1,2}$")
_MMA_WORD = re.compile(
    r"(?:^|_)[a-z0-9]{0,3}?[shi](161616|168256|16832|16816|16864|1688|884|8816)(?:cuda|t?f?32|bf16|f16)?"
    r"(?:gemm|fprop|dgrad|wgrad)"
)
_MMA_SHAPE = {
    "16816": (16, 8, 16),
    "1688": (16, 8, 8),
    "16832": (16, 8, 32),
    "16864": (16, 8, 64),
    "8816": (8, 8, 16),
}
# WMMA's 16×16×16 is two instructions of Ampere, four of Turing; recorded on an A100: 2·16·16·16 FLOP in two.
_WMMA = {"80": (16, 8, 16), "75": (16, 8, 8)}
_WMMA_ARCHITECTURE = re.compile(r"^cutlass_(\d{2})_wmma")
# FlashAttention 1 on Ampere and 2 on Ampere and later issue HMMA.16816.
_FLASH_MMA = re.compile(r"(?:FMHA_kernel_traits|Flash_fwd_kernel_traits)<.*(?:half|bfloat16)")
_MMA_TENSOR = re.compile(r"tensor(\d{1,2})x(\d{1,2})x(\d{1,3})")
_TENSOR = re.compile(
    r"[shid](?:884|1688|16816|16832|16864|161616|8816)\w{0,8}(?:gemm|fprop|dgrad|wgrad)|tensorop|wmma|gmma|tensor\d{1,2}x\d{1,2}x|^nvjet_|^sm(?:9|1\d)\d_xmma"
)
_FFMA = re.compile(r"_ffma(?=_|$)")  # multiplies and adds in FP32 units, whatever comes before in the name
_SIMT = re.compile(r"simt|(?:^|_)sgemm(?=_|$)|gemmSN|gemmk1|gemv|dot_kernel")
_NO_MATRIX = {
    *("elementwise", "reduce", "split_k_reduce", "copy", "fill", "random", "norm", "softmax", "embedding", "index"),
}


#: What the names of all kernels that cuDNN generates begin and end with.
_GENERATED = re.compile(
    r"^cudnn_generated_fort_native_(\w{1,200}?)(?:_cga\d{1,2}x\d{1,2}x\d{1,2})?_kernel\d{1,2}_\d{1,2}$"
)


def labels(names: pd.Series, length: int = 40) -> pd.Series:
    """Return short names for people, different ones for different kernels; the index is kept."""
    short = {}
    taken: dict[str, int] = {}
    bases = Counter(map(short_name, names.unique()))
    for name in names.unique():
        label = short_name(name) or name
        if bases[label] > 1 and _NUMBERED.match(name):
            label = name  # with the number, by which XLA's dumps call it
        label = _GENERATED.sub(r"cudnn_\1", label)
        label = label if len(label) <= length else f"{label[: length * 2 // 3]}…{label[-(length // 3) + 1 :]}"
        taken[label] = taken.get(label, 0) + 1
        short[name] = label if taken[label] == 1 else f"{label} #{taken[label]}"
    return names.map(short).astype("str")


def _tensor_core(base: str, kernel_class: str | None, family: str | None) -> bool | None:
    if kernel_class in ("gemm", "gemv", "convolution") and _FFMA.search(base):
        return False
    if kernel_class in ("gemm", "convolution") and _TENSOR.search(base):
        return True
    if family == "flash":
        return True if re.search(r"fwd_(?:splitkv_)?kernel|bwd_dq_dk_dv|FlashAttn", base) else None
    if base.startswith("fmha_"):  # the f32 kernels exist with and without tensor cores
        return True if re.search(r"_b?f16_", base) else None
    if kernel_class in ("gemm", "gemv") and _SIMT.search(base):
        return False
    return False if kernel_class in _NO_MATRIX and family != "triton" else None


@lru_cache(maxsize=1 << 14)  # a file's kernels are parsed several times, in turns
def _parse(name: str, patterns: tuple[Pattern, ...]) -> KernelName:
    path, base = _path(name), short_name(name)
    found = next((p for p in patterns if re.search(p.regex, name[:_LONGEST] if p.on == "full" else path)), None)
    if found is None and base != path:
        found = next((p for p in patterns if p.on != "full" and re.search(p.regex, base)), None)
    kernel_class, family = (found.kernel_class, found.family or None) if found else (None, None)
    facts = base[:512]
    tile = next((m.groups() for t in _TILES if (m := t.search(facts))), ())
    tile_m, tile_n, tile_k, stages = ([int(value) if value else None for value in tile] + [None] * 4)[:4]
    sliced = _SLICED.search(facts)
    transpose = _TRANSPOSE.search(facts) or _NVJET_TRANSPOSE.search(facts)
    word, tensor = _MMA_WORD.search(facts), _MMA_TENSOR.search(facts)
    flash = kernel_class == "attention" and _FLASH_MMA.search(name[:4096]) is not None
    mma = tuple(map(int, tensor.groups())) if tensor else _MMA_SHAPE.get(word.group(1)) if word else None
    if word and word.group(1) == "161616" and (architecture := _WMMA_ARCHITECTURE.match(facts)):
        mma = _WMMA.get(architecture.group(1))
    return KernelName(
        name=name,
        base=base,
        kernel_class=kernel_class,
        family=family,
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        slices=int(sliced.group(1)) * int(sliced.group(2)) or 1 if sliced else 1,
        transpose=transpose.group(1).lower() if transpose else None,
        stages=stages,
        tensor_core=flash or _tensor_core(facts, kernel_class, family),
        mma=(16, 8, 16) if flash else mma,
    )


def parse(name: str, patterns: Sequence[Pattern] = PATTERNS) -> KernelName:
    """Read the facts in a kernel name.

    Parameters
    ----------
    name : str
        Demangled name with or without template and call arguments, a bare function name, or a truncated name.
    patterns : sequence of Pattern
        Table of classes, in order of priority (see ``extend_patterns``).

    Returns
    -------
    KernelName
        Facts that the name does not state, and the class of an unknown kernel, are ``None``.
    """
    return _parse(str(name), tuple(patterns))


def classify(
    names: Iterable[str],
    patterns: Sequence[Pattern] = PATTERNS,
    *,
    file: str | Path = "kernel names",
) -> pd.Series:
    """Return the class of every kernel name, :data:`OTHER` where no pattern matches.

    Parameters
    ----------
    names : iterable of str
        Full names. The index of a Series is kept.
    patterns : sequence of Pattern
        Table of classes, in order of priority (see ``extend_patterns``).

    Returns
    -------
    pandas.Series
        Class of each name, dtype str, named ``kernel_class``.

    Warns
    -----
    InputWarning
        Once, of all kernels that match no pattern, with a pattern that would name them.
    """
    names = names if isinstance(names, pd.Series) else pd.Series(list(names), dtype=object)
    classes = {}
    for name in names.unique():
        if not isinstance(name, str) or not name.strip():
            remedy = "profile again with --print-kernel-base demangled"
            raise InputError(file, "", "a launch has no kernel name", remedy)
        classes[name] = parse(name, patterns).kernel_class or OTHER
    unknown = list(dict.fromkeys(short_name(name) for name, found in classes.items() if found == OTHER))
    if unknown:
        _warn_of_unknown(unknown, file)
    return names.map(classes).astype("str").rename("kernel_class")


def _warn_of_unknown(bases: list[str], file: str | Path) -> None:
    shown = ", ".join(base if len(base) <= 100 else f"{base[:100]}…" for base in bases[:_SHOWN])
    more = f" and {len(bases) - _SHOWN} more" if len(bases) > _SHOWN else ""
    kernels = "1 kernel" if len(bases) == 1 else f"{len(bases)} kernels"
    regex = "|".join(re.escape(base) for base in bases[:_SHOWN] if len(base) <= 100).replace("'", "''")
    pattern = f"kernel_patterns: [{{name: mine, regex: '(?:^|::)(?:{regex})$', class: elementwise}}]"
    done = f"they count as class {OTHER}; to name them, add {pattern} to the case, with their class"
    warn(file, "", f"no class is known for {kernels}: {shown}{more}", done)
