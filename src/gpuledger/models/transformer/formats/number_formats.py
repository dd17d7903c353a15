"""Number formats, and the bytes of a matrix that is stored in one."""

import re
from dataclasses import dataclass
from functools import lru_cache

from gpuledger.errors import InputError

#: Bits of a value. tf32 is stored in 32 bits.
BITS = {
    **{"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp8_block": 8, "int8": 8},
    **{"int4": 4, "mxfp4": 4, "nvfp4": 4, "fp4": 4},
}
#: Formats in which matrix units compute.
MATH = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
_GROUPED = re.compile(r"(fp8|int[2-8])(?:_(?:g(\d{1,5})(_zero|_affine)?|block(\d{1,4})|tiled_g(\d{1,5})))?")
_CODEBOOKS = re.compile(r"aqlm_(\d{1,2})x(\d{1,2})_(\d{1,3})(?:x(\d{1,3}))?")
_TRELLIS = re.compile(r"exl3_([1-8]|[123]\.5)")
_WORDS = re.compile(r"hqq3_g(\d{1,5})")
_MIXED = re.compile(r"(\d{1,5})\*(\S+)")


@dataclass(frozen=True)
class Format:
    """How the values of a weight matrix are stored."""

    values: str  # format of one value, a key of :data:`BITS`: of those as wide or wider, if *width* says how wide
    group: int = 0  # values along a matrix's depth that share a scale; 0: none
    scale_bits: int = 0  # bits of a scale, including a group's zero point
    block: int = 0  # side of the square blocks that share a scale; 0: none
    width: float = 0  # bits of a value, if not those of *values*; else 0
    #: Bits besides: of a matrix, of each of its rows (outputs), and of each of its columns.
    whole_bits: int = 0
    row_bits: float = 0
    column_bits: int = 0
    padded: tuple[int, int] = (1, 1)  # outputs and inputs are stored up to the next multiple
    words: bool = False  # ten values of different groups in 32 bits (HQQ's 3 bits)
    #: Copies of a matrix in different formats, and how many of each (experts); empty: all are alike.
    mixed: tuple[tuple[int, "Format"], ...] = ()

    @property
    def bits(self) -> float:
        return self.width or BITS[self.values]

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of a matrix of *outputs* × *inputs* values, scales included; of mixed formats the mean."""
        if self.mixed:
            copies = sum(count for count, _ in self.mixed)
            return -(-self.copies_bytes(outputs, inputs, copies) // copies)
        outputs, inputs = (-(-size // to) * to for size, to in zip((outputs, inputs), self.padded, strict=True))
        bits = outputs * inputs * self.bits
        groups = outputs * -(-inputs // self.group) if self.group else 0
        if self.words:
            bits = -(-groups // 10) * self.group * 32
        bits += groups * self.scale_bits
        if self.block:
            bits += -(-outputs // self.block) * -(-inputs // self.block) * self.scale_bits
        bits += self.whole_bits + outputs * self.row_bits + inputs * self.column_bits
        return int(-(-bits // 8))

    def copies_bytes(self, outputs: int, inputs: int, copies: int) -> int:
        """Return the bytes of so many *copies* of a matrix."""
        if not self.mixed:
            return copies * self.matrix_bytes(outputs, inputs)
        whole = sum(count * one.matrix_bytes(outputs, inputs) for count, one in self.mixed)
        return -(-whole * copies // sum(count for count, _ in self.mixed))


@lru_cache(maxsize=256)
def number_format(name: str) -> Format:
    """Return the format called *name*.

    Besides those of :data:`BITS`: ``int4_g128`` and ``int8_g64`` (groups of 128 or 64 values along the depth share a
    16-bit scale), ``int4_g128_zero`` (with a zero point of the values' width, as in AWQ and GPTQ), ``int4_g64_affine``
    (with a zero point or minimum of 16 bits: MLX, HQQ, torchao), ``fp8_block128`` (blocks of 128 × 128 share a 32-bit
    scale, as in DeepSeek-V3). ``mxfp4`` and ``mxfp8`` have an 8-bit scale per 32 values (OCP Microscaling Formats 1.0),
    ``nvfp4`` one per 16. ``nf4`` has a 32-bit scale per 64 values, and ``nf4_double`` an 8-bit one (bitsandbytes).
    Integers have 2 to 8 bits. Scales per tensor, per output channel or of 256 scales, less than 0.1 % of the matrix,
    are not counted.

    ``int4_tiled_g128`` is torchao's layout for tinygemm: outputs up to a multiple of 8, inputs of 1,024. ``hqq3_g64``
    is HQQ's for 3 bits: 10 values in 32 bits. ``aqlm_1x16_8`` is AQLM's with one codebook of 2^16 entries of 8 values
    (``_8x2``: 8 along the depth, 2 outputs): a code per entry in 8, 16 or 32 bits, codebooks and a scale per output in
    16. ``exl3_4`` and ``exl3_2.5`` are ExLlamaV3's: so many bits per value, and signs with scales in 16 bits per output
    and per input. ``60*int4_g32 4*bf16`` is a mixture among the experts of a layer.
    """
    parts = name.split() if isinstance(name, str) else []
    if len(parts) > 1 and all(_MIXED.fullmatch(part) for part in parts):
        found = [(int(count), number_format(of)) for count, of in (_MIXED.fullmatch(part).groups() for part in parts)]
        mean = sum(count * one.bits for count, one in found) / sum(count for count, _ in found)
        return Format(max(found, key=lambda one: one[0])[1].values, width=mean, mixed=tuple(found))
    if name in ("mxfp4", "mxfp8"):
        return Format("fp8" if name == "mxfp8" else name, 32, 8)
    if name == "nvfp4":
        return Format("nvfp4", 16, 8)
    if name in ("nf4", "nf4_double"):
        return Format("int4", 64, 32 if name == "nf4" else 8)
    if isinstance(name, str) and name in BITS:
        return Format(name)
    if isinstance(name, str) and (found := _grouped(name) or _other_layout(name)):
        return found
    remedy = f"use one of {', '.join(BITS)}, or with scales mxfp8, int4_g128, int4_g128_zero, nf4, fp8_block128"
    raise InputError("precision", "", f"there is no number format {name!r}", remedy)


def _grouped(name: str) -> Format | None:
    match = _GROUPED.fullmatch(name)
    sizes = [int(one) for one in (match[2], match[4], match[5]) if one] if match else [0]
    if match is None or 0 in sizes:
        return None
    bits = int(match[1][-1])
    values = match[1] if match[1] in BITS else "int4" if bits < 4 else "int8"
    more = {"width": 0 if match[1] in BITS else bits}
    if match[4]:
        return Format(values, block=sizes[0], scale_bits=32, **more)
    if match[5]:
        return Format(values, sizes[0], 32, padded=(8, 1024), **more)
    scale = 0 if not sizes else 16 + {None: 0, "_zero": bits, "_affine": 16}[match[3]]
    return Format(values, *sizes, scale_bits=scale, **more)


def _other_layout(name: str) -> Format | None:
    if match := _WORDS.fullmatch(name):
        return Format("int4", int(match[1]), 32, width=3.2, words=True) if int(match[1]) else None
    if match := _TRELLIS.fullmatch(name):
        bits = float(match[1])
        return Format("int4" if bits <= 4 else "int8", width=bits, row_bits=16, column_bits=16)
    if match := _CODEBOOKS.fullmatch(name):
        count, bits, deep = map(int, match.groups()[:3])
        wide = int(match[4] or 1)
        if not count or not deep or not wide or not 1 <= bits <= 24:
            return None
        code = 8 if bits <= 8 else 16 if bits <= 16 else 32
        books = count * 2**bits * deep * wide * 16
        return Format("int4", width=count * code / (deep * wide), whole_bits=books, row_bits=16 / wide)
    return None
