"""The kernels of a vision tower: what encoding the images of a shape's prompts launches.

All images of a shape are encoded in one pass, as engines do. Norms, residual adds, RoPE and activations are kernels of
their own, each of which reads its input and writes its output once.
"""

from dataclasses import replace

import numpy as np

from gpuledger.models.transformer.blocks.image_sizes import Grid
from gpuledger.models.transformer.blocks.vision import IMAGE, VisionTower
from gpuledger.models.transformer.formats.precision import Precision
from gpuledger.models.transformer.launches.rows import KernelList
from gpuledger.models.transformer.parallel import ring_bytes

#: What the column ``layers`` says of the tower's kernels.
VISION = -2


def add_vision(rows: KernelList, tower: VisionTower) -> None:
    """Add the kernels that encode the images of a workload."""
    grid = tower.image.grid(rows.work.images)
    sequences = rows.work.prompts * (rows.work.images.count * grid.sequences)
    plain, layers = rows.precision.plain, rows.layers
    rows.layers, rows.precision = VISION, Precision(plain, plain, plain)
    _Encoder(rows, tower, grid, sequences).add()
    rows.layers = layers


class _Encoder:
    """Kernels of one tower on the sequences of one grid: int64 array of shape (shapes,)."""

    def __init__(self, rows: KernelList, tower: VisionTower, grid: Grid, sequences: np.ndarray):
        self.rows, self.tower, self.grid, self.sequences = rows, tower, grid, sequences
        self.patches = sequences * (grid.rows * grid.columns)
        self.tokens = self.patches + sequences * tower.class_token
        self.devices = rows.parallel.tensor if tower.splits(rows.parallel.tensor) else 1

    def add(self) -> None:
        rows, tower, hidden = self.rows, self.tower, self.tower.hidden
        rows.product(self.tokens, self.tokens, tower.heads, tower.head_dim, 4)
        rows.gemms([tower.patch_linear], self.patches)
        if tower.positions:
            self._pass("position", hidden, 2 * hidden, hidden)
        if tower.pre_norm:
            self._norm("pre_norm")
        rows.count = tower.computed
        if rows.count:
            self._layers()
        rows.count = 1
        if tower.post_norm:
            self._norm("post_norm")
        for step in tower.steps:
            self._step(step)
        images = rows.work.prompts * rows.work.images.count
        width = tower.steps[-1].outputs
        moved = images * self.grid.tokens * (width * rows.value_bytes)
        # Taps are added to the stream of the text model's first layers.
        rows.elementwise(f"{IMAGE}insert", images * self.grid.tokens, width, moved, moved)
        rows.elementwise(f"{IMAGE}insert", images * self.grid.tokens, width, 2 * moved, moved, count=tower.taps)

    def _layers(self) -> None:
        rows, tower, devices = self.rows, self.tower, self.devices
        linears = list(tower.layer_linears(rows.parallel.tensor))
        hidden, width = tower.hidden, tower.heads * tower.head_dim // devices
        self._norm("attn_norm")
        rows.gemms(linears[:3], self.tokens, "qkv" in rows.fused)
        if tower.normed:
            self._pass("qk_norm", tower.head_dim, *[tower.normed * width] * 2, rows_of=tower.normed * width)
        if tower.rotary:
            self._pass("rope", tower.head_dim, *[2 * width] * 2, rows_of=2 * width)
        self._attention(width)
        rows.gemms(linears[3:4], self.tokens)
        self._reduce(hidden)
        if tower.norms > 2:
            self._norm("attn_post_norm")
        self._pass("attn_residual", hidden, 2 * hidden, hidden)
        self._norm("ffn_norm")
        *up, down = linears[4:]
        rows.gemms(up, self.tokens, "gate_up" in rows.fused)
        inner = tower.ffn.width // devices
        self._pass("act", inner, inner * len(up), inner)
        rows.gemms([down], self.tokens)
        self._reduce(hidden)
        if tower.norms > 2:
            self._norm("ffn_post_norm")
        self._pass("ffn_residual", hidden, 2 * hidden, hidden)

    def _pass(self, name: str, width: int, read: int, written: int, rows_of: int = 0) -> None:
        """Add a pass over the tokens, in rows of *width* values; *rows_of*: of a token, several such rows."""
        rows, value = self.rows, self.rows.value_bytes
        m = self.tokens * (rows_of // width if rows_of else 1)
        rows.elementwise(f"{IMAGE}{name}", m, width, self.tokens * (read * value), self.tokens * (written * value))

    def _norm(self, name: str) -> None:
        rows, hidden = self.rows, self.tower.hidden
        moved = self.tokens * (hidden * rows.value_bytes)
        weight = rows.plain_bytes(self.tower.norm_values * hidden)
        rows.elementwise(f"{IMAGE}{name}", self.tokens, hidden, moved, moved, weight=weight)

    def _attention(self, width: int) -> None:
        """Add attention within whole sequences, and within windows."""
        tower, grid = self.tower, self.grid
        full = grid.rows * grid.columns + tower.class_token
        local = tower.computed - tower.full_layers if tower.window else 0
        self._attend(self.sequences, full, self.sequences * full**2, width, tower.computed - local)
        if local:
            # Windows are cut from the corner; those at the two far sides may be narrower.
            sides = [_parts(side, tower.window) for side in (grid.rows, grid.columns)]
            windows, pairs = (np.prod([side[i] for side in sides], dtype=np.int64) for i in (0, 1))
            longest = min(tower.window, grid.rows) * min(tower.window, grid.columns)
            self._attend(self.sequences * windows, longest, self.sequences * pairs, width, local)

    def _attend(self, sequences: np.ndarray, longest: int, pairs: np.ndarray, width: int, count: int) -> None:
        rows, heads = self.rows, width // self.tower.head_dim
        moved = self.tokens * (width * rows.value_bytes)
        rows.add(
            f"{IMAGE}attention",
            "attention",
            np.where(sequences > 0, longest, 0),
            longest,
            self.tower.head_dim,
            batch=sequences * heads,
            macs=rows.product(pairs, 2, width),
            read=3 * moved,
            write=moved,
            heads=heads,
            kv_heads=heads,
            value_dim=self.tower.head_dim,
            stored=rows.precision.activations,
            count=count,
        )

    def _reduce(self, width: int, m: np.ndarray | None = None) -> None:
        rows, devices = self.rows, self.devices
        if devices > 1:
            m = self.tokens if m is None else m
            sent = ring_bytes(m * (width * rows.value_bytes), devices, 2)
            rows.collective(f"{IMAGE}all_reduce", m, width, sent, devices)

    def _step(self, step: object) -> None:
        rows, value, m = self.rows, self.rows.value_bytes, self.patches // step.patches
        shared = self.devices if step.split else 1
        if step.what == "proj":
            linear = step.linear if shared > 1 else replace(step.linear, split="", units=1)
            rows.gemms([linear], m)
            if step.split == "rows":
                self._reduce(step.outputs, m)
            return
        name = f"{IMAGE}pool" if step.what == "pool" else f"{IMAGE}merger_{step.what}"
        sources = step.patches if step.what == "pool" else 1
        read, written = m * (sources * step.inputs // shared * value), m * (step.outputs // shared * value)
        rows.elementwise(name, m, step.outputs // shared, read, written, weight=rows.plain_bytes(step.weights))


def _parts(side: int, window: int) -> tuple[int, int]:
    """Return into how many parts of at most *window* a side is cut, and the sum of the squares of their lengths."""
    whole, rest = divmod(side, window)
    return whole + (rest > 0), whole * window**2 + rest**2
