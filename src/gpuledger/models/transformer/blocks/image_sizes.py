"""How many patches and tokens an image becomes, by each family's own rule.

Sources: the image processors and processors of Hugging Face transformers 5.24 (``image_processing_*.py``,
``processing_*.py``), and InternVL's ``dynamic_preprocess`` as SGLang 0.5.23 has it (``multimodal/internvl_utils.py``).

Tokens are those that carry the image, and what the processor puts between its rows and tiles. The markers that stand
before and after an image belong to the text.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from gpuledger.errors import InputError

MAX_SIDE = 2**16  # pixels
_ROTATED = 512  # patches along a side for which MoonViT has rotations
_NARROWEST = 200  # of the longer side over the shorter


@dataclass(frozen=True)
class Images:
    """Images of one prompt, all of one size in pixels."""

    count: int
    width: int
    height: int

    def __post_init__(self):
        for what, value, low in (("number", self.count, 1), ("width", self.width, 1), ("height", self.height, 1)):
            if type(value) is not int or not low <= value <= MAX_SIDE:
                remedy = f"give a whole number from {low} to {MAX_SIDE}"
                raise InputError("images", what, f"{value!r} is out of range", remedy)


class Grid(NamedTuple):
    """What one image becomes."""

    #: Patches of a sequence, whose tokens attend to each other, and the number of such sequences (tiles).
    rows: int
    columns: int
    sequences: int
    tokens: int  # of the prompt


@dataclass(frozen=True)
class Resized:
    """Qwen-VL, GLM-4.5V, MiniMax-M3: sides rounded to whole tokens, the number of pixels within bounds.

    ``smart_resize`` of ``qwen2_vl`` and ``glm4v``, which counts the pixels of a temporal patch's frames together.
    """

    patch: int
    merge: int  # patches along the side of a token
    least: int  # pixels
    most: int
    frames: int = 1

    def grid(self, images: Images) -> Grid:
        width, height, factor = images.width, images.height, self.patch * self.merge
        if self.frames > 1 and min(width, height) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        if max(width, height) > _NARROWEST * min(width, height):
            problem = f"{images.width}x{images.height} is narrower than 1 : {_NARROWEST}, which the model refuses"
            raise InputError("images", "size", problem, "give another size")
        sides = [round(height / factor) * factor, round(width / factor) * factor]
        pixels = self.frames * height * width
        if self.frames * sides[0] * sides[1] > self.most:
            scale = math.sqrt(pixels / self.most)
            sides = [max(factor, math.floor(side / scale / factor) * factor) for side in (height, width)]
        elif self.frames * sides[0] * sides[1] < self.least:
            scale = math.sqrt(self.least / pixels)
            sides = [math.ceil(side * scale / factor) * factor for side in (height, width)]
        rows, columns = (side // self.patch for side in sides)
        return Grid(rows, columns, 1, rows * columns // self.merge**2)


@dataclass(frozen=True)
class Square:
    """LLaVA 1.5 and Gemma 3: every image is resized to one size."""

    side: int  # patches
    tokens: int

    def grid(self, images: Images) -> Grid:
        return Grid(self.side, self.side, 1, self.tokens)


@dataclass(frozen=True)
class Rows:
    """Pixtral, Mistral 3: shrunk to the longest side, whole tokens, a break after each row of tokens."""

    patch: int
    merge: int
    longest: int  # pixels

    def grid(self, images: Images) -> Grid:
        ratio = max(images.height, images.width) / self.longest
        sides = [images.height, images.width]
        if ratio > 1:
            sides = [max(math.floor(side / ratio), 1) for side in sides]
        rows, columns = (-(-side // (self.patch * self.merge)) for side in sides)
        return Grid(rows * self.merge, columns * self.merge, 1, rows * (columns + 1))


@dataclass(frozen=True)
class Padded:
    """Kimi, Inkling 2: never enlarged, at most so many patches in all and along a side, padded to whole tokens."""

    patch: int
    merge: int
    most: int
    most_side: int | None  # None: longer sides are not shrunk but refused, as Kimi-VL's processor does

    def grid(self, images: Images) -> Grid:
        sides = images.height, images.width
        patches = math.prod(max(1, side // self.patch) for side in sides)
        longest = (self.most_side or MAX_SIDE) * self.patch
        scale = min(1.0, math.sqrt(self.most / patches), *(longest / side for side in sides))
        rows, columns = (
            -(-min(max(1, int(side * scale)), longest) // (self.patch * self.merge)) * self.merge for side in sides
        )
        if self.most_side is None and max(rows, columns) >= _ROTATED:
            raise InputError("images", "size", f"a side has {_ROTATED} patches or more", "give a less oblong image")
        return Grid(rows, columns, 1, rows * columns // self.merge**2)


@dataclass(frozen=True)
class Filled:
    """Gemma 4: resized to as many pooled patches as are allowed, padded with empty patches to exactly that many."""

    patch: int
    pool: int  # patches along the side of a token
    most: int  # tokens

    def grid(self, images: Images) -> Grid:
        side, limit = self.patch * self.pool, self.most * self.pool**2
        scale = math.sqrt(limit * self.patch**2 / (images.height * images.width))
        rows, columns = (math.floor(scale * length / side) for length in (images.height, images.width))
        if rows == 0 and columns == 0:
            raise InputError("images", "size", "it would be resized to nothing", "give a larger image")
        if rows == 0:
            rows, columns = 1, min(images.width // images.height, self.most)
        elif columns == 0:
            rows, columns = min(images.height // images.width, self.most), 1
        # The tower computes the empty patches, too; only tokens of the image leave it.
        return Grid(1, limit, 1, rows * columns)


@dataclass(frozen=True)
class LlamaTiles:
    """Llama 4: tiles of the canvas that the image fits best, and one of the whole image; a marker with each."""

    side: int  # pixels of a tile
    patch: int
    tile_tokens: int
    most: int  # tiles of a canvas

    def grid(self, images: Images) -> Grid:
        canvases: dict[float, list[tuple[int, int]]] = {}
        for tiles in range(self.most, 0, -1):
            for rows in (number for number in range(1, tiles + 1) if tiles % number == 0):
                columns = tiles // rows
                canvases.setdefault(rows / columns, []).append((rows, columns))
        every = [canvas for same in canvases.values() for canvas in same]
        scales = [min(columns * self.side / images.width, rows * self.side / images.height) for rows, columns in every]
        larger = [scale for scale in scales if scale >= 1]
        chosen = min(larger) if larger else max(scales)
        fitting = [canvas for canvas, scale in zip(every, scales, strict=True) if scale == chosen]
        rows, columns = min(fitting, key=lambda canvas: canvas[0] * canvas[1])
        tiles = rows * columns + (rows * columns > 1)
        patches = self.side // self.patch
        return Grid(patches, patches, tiles, tiles * (self.tile_tokens + 1))


@dataclass(frozen=True)
class AspectTiles:
    """InternVL: tiles in the arrangement whose aspect is nearest, and the whole image as one more."""

    side: int
    patch: int
    tile_tokens: int
    least: int
    most: int
    thumbnail: bool

    def grid(self, images: Images) -> Grid:
        aspect, area = images.width / images.height, images.width * images.height
        sizes = range(1, self.most + 1)
        found = {(i, j) for i in sizes for j in sizes if self.least <= i * j <= self.most}
        best, nearest = (1, 1), math.inf
        # Of equally many tiles the flattest first; which of two with the same aspect is taken depends on the area only.
        for columns, rows in sorted(found, key=lambda pair: (pair[0] * pair[1], pair)):
            difference = abs(aspect - columns / rows)
            if difference < nearest:
                best, nearest = (columns, rows), difference
            elif difference == nearest and area > 0.5 * self.side**2 * columns * rows:
                best = (columns, rows)
        tiles = best[0] * best[1]
        tiles += self.thumbnail and tiles > 1
        patches = self.side // self.patch
        return Grid(patches, patches, tiles, tiles * self.tile_tokens)


@dataclass(frozen=True)
class AnyResolution:
    """LLaVA-NeXT and OneVision: tiles of the best of some resolutions without their padding, and the whole image.

    OneVision pools the tiles' tokens to at most `pooled` tiles' (``anyres_max_9``), and does not tile several images.
    """

    side: int
    patch: int
    resolutions: tuple[tuple[int, int], ...]  # height and width in pixels
    pooled: int = 0

    def grid(self, images: Images) -> Grid:
        patches = self.side // self.patch
        if self.pooled and images.count > 1:
            return Grid(patches, patches, 1, patches**2 + 1)
        height, width = max(self.resolutions, key=lambda size: self._fit(images, *size))
        rows, columns = patches * (height // self.side), patches * (width // self.side)
        if images.width / images.height > columns / rows:
            kept = int(round(images.height * (columns / images.width), 7))
            rows -= (rows - kept) // 2 * 2
        else:
            kept = int(round(images.width * (rows / images.height), 7))
            columns -= (columns - kept) // 2 * 2
        ratio = math.sqrt(rows * columns / (self.pooled * patches**2)) if self.pooled else 0
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
        tiles = (height // self.side) * (width // self.side) + 1
        return Grid(patches, patches, tiles, rows * (columns + 1) + patches**2)

    @staticmethod
    def _fit(images: Images, height: int, width: int) -> tuple[int, int]:
        scale = min(width / images.width, height / images.height)
        used = min(int(images.width * scale) * int(images.height * scale), images.width * images.height)
        return used, used - width * height


ImageRule = Resized | Square | Rows | Padded | Filled | LlamaTiles | AspectTiles | AnyResolution
