"""The progress of blocks over time: their speed, where it changes, and which block ended at that moment.

Source of the question: S. Huang, C. Wu, OSDI 2025, Sec. 7: the speed of a block rises when the block that came to the
same SM before it ends, as if warps were served first come, first served.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.block_trace import TracedBlocks
from gpuledger.readers.neutrino.records import PROGRAM_PROGRESS
from gpuledger.studies.warp_scheduling.pickled import REMEDY, load_plain

#: With fewer samples on a side, a change of speed cannot be told from noise.
MARGIN = 3
#: Clocks of all blocks that a pickle may hold, in a table as wide as the longest block's.
MOST_CLOCKS = 2**26
#: A change counts when it is this many standard errors wide. Of the places to split a block the best one is tested, so
#: this finds a change in up to 2 of 1,000 blocks whose 6 iterations are normally distributed, and with 32 of them in
#: less than 1 of 10,000 (simulated).
ERRORS = 6


@dataclass(frozen=True)
class Clocks:
    """When one thread of each block passed its branches."""

    path: Path
    block: np.ndarray  # int: number of each followed block in the grid
    clocks: np.ndarray  # int64, (followed blocks, samples): cycles of the SM's clock; 0 beyond a block's last sample
    counts: np.ndarray  # int: samples of each
    #: Blocks whose thread saved too few clocks, or whose clocks do not rise because another thread overwrote them.
    left_out: int
    full: int  # followed blocks that filled their slots, and may have continued

    @property
    def elapsed(self) -> np.ndarray:
        """Cycles from each block's first sample to its last."""
        return np.take_along_axis(self.clocks, self.counts[:, None] - 1, 1)[:, 0] - self.clocks[:, 0]


def read_progress(path: str | Path) -> Clocks:
    """Read a trace of ``program_progress``: the clocks of the first thread, or warp, of each block."""
    path = Path(path)
    trace = neutrino.open_trace(path)
    fitting = [section for section in trace.sections if section.bytes_per_unit > 16]
    if not fitting:
        what = ", ".join(f"{section.bytes_per_unit} bytes for each {section.level}" for section in trace.sections)
        remedy = "give a trace of the probe program_progress, which saves clocks of each thread or warp"
        raise InputError(path, "byte 32", f"no section holds clocks of branches: {what}", remedy)
    section = max(fitting, key=lambda section: section.bytes_per_unit)
    clocks = trace.records(section.index, PROGRAM_PROGRESS)["clock"][:, 0, :]
    return _checked(path, np.ascontiguousarray(clocks).view(np.int64))


def read_pickled_progress(path: str | Path) -> Clocks:
    """Read clocks from a pickle of plain data.

    A block's clocks are an array or list that rises; blocks are the rows of an array, or the entries of a list or dict.
    """
    path = Path(path)
    content = load_plain(path)
    parts = list(content.values()) if isinstance(content, dict) else content
    lengths = [len(part) for part in parts if hasattr(part, "__len__")] if isinstance(parts, (list, tuple)) else []
    if len(lengths) * max(lengths, default=0) > MOST_CLOCKS:
        problem = (
            f"{len(lengths):,} blocks of up to {max(lengths):,} clocks are more than the {MOST_CLOCKS:,} that are read"
        )
        raise InputError(path, "", problem, "give the trace itself as 'progress'")
    rows = [_clock_row(part) for part in parts] if isinstance(parts, (list, tuple)) else [None]
    if isinstance(content, np.ndarray) and content.ndim in (2, 3) and content.dtype.kind in "iu":
        # (blocks, samples) or (blocks, threads, samples), as in a trace.
        rows = list(content.astype(np.int64) if content.ndim == 2 else content[:, 0].astype(np.int64))
    if not rows or any(row is None for row in rows):
        problem = f"it holds {_describe(content)}, not the clocks of blocks"
        raise InputError(path, "", problem, f"the layout is not known; {REMEDY}")
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return _checked(path, padded)


def _clock_row(part: Any) -> np.ndarray | None:
    if isinstance(part, (list, tuple)) and part and all(_is_clock(item) for item in part):
        return np.array(part, np.int64)
    if isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype.kind in "iu" and len(part):
        return part.astype(np.int64)
    return None


def _is_clock(item: Any) -> bool:
    return isinstance(item, (int, np.integer)) and not isinstance(item, bool) and 0 <= item < 2**63


def _describe(content: Any, depth: int = 0) -> str:
    if isinstance(content, np.ndarray):
        return f"an array of shape {content.shape} and type {content.dtype}"
    name = type(content).__name__
    if not isinstance(content, (dict, list, tuple)) or not content or depth > 2:
        return f"a {name}" if not isinstance(content, (dict, list, tuple)) or content else f"an empty {name}"
    key, first = next(iter(content.items())) if isinstance(content, dict) else (None, content[0])
    under = f" (one is {str(key)[:30]!r})" if isinstance(content, dict) else ""
    return f"a {name} of {len(content)}{under}, the first {_describe(first, depth + 1)}"


def _checked(path: Path, clocks: np.ndarray) -> Clocks:
    counts = (clocks != 0).sum(axis=1)
    # Clocks rise from the first sample to the last; zeros only follow the last one.
    rises = np.logical_and.accumulate(np.diff(clocks, axis=1) > 0, axis=1).sum(axis=1)
    good = (counts >= 2) & (rises == counts - 1) & (clocks[:, 0] > 0)
    if not good.any():
        saved = int((counts >= 2).sum())
        problem = f"of {len(clocks)} blocks {saved} saved clocks, and none has clocks that rise"
        remedy = "check that the probe is program_progress and that threads branch no more often than they have slots"
        raise InputError(path, "", problem, remedy)
    full = int((counts[good] == clocks.shape[1]).sum())
    return Clocks(path, np.flatnonzero(good), clocks[good], counts[good], int((~good).sum()), full)


def find_transitions(clocks: Clocks, gain_percent: float) -> pd.DataFrame:
    """Find, for each block, the sample at which its iterations become shorter.

    Of all ways to split a block's iterations in two, take the one with the least squared deviations from the means of
    the parts. It counts if the iterations before take `gain_percent` longer than those after, and by ``ERRORS``
    standard errors.

    Returns
    -------
    DataFrame
        One row per followed block: whether its speed rises (``found``), the ``clock`` of the sample at which it does,
        and the mean cycles of an iteration before and after, ``slow_cycles, fast_cycles``.
    """
    relative = (clocks.clocks - clocks.clocks[:, :1]).astype(float)
    total, intervals = clocks.elapsed.astype(float), clocks.counts - 1
    cut = np.arange(clocks.clocks.shape[1])
    allowed = (cut >= MARGIN) & (cut <= (intervals - MARGIN)[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = relative**2 / cut + (total[:, None] - relative) ** 2 / (intervals[:, None] - cut)
    explained = np.where(allowed, explained, -np.inf)
    sample = explained.argmax(axis=1)
    rows = np.arange(len(sample))
    possible = allowed[rows, sample]
    before = np.where(possible, sample, 1)
    after = np.where(possible, intervals - sample, 1)
    slow = relative[rows, sample] / before
    fast = (total - relative[rows, sample]) / after
    valid = cut[1:] < clocks.counts[:, None]
    squares = (np.where(valid, np.diff(relative, axis=1), 0) ** 2).sum(axis=1)
    variance = np.maximum(squares - explained[rows, sample], 0) / np.maximum(intervals - 2, 1)
    error = np.sqrt(np.where(possible, variance, 0) * (1 / before + 1 / after))
    found = possible & (slow > (1 + gain_percent / 100) * fast) & (slow - fast > ERRORS * error)
    clock = clocks.clocks[rows, sample]
    return pd.DataFrame({"found": found, "clock": clock, "slow_cycles": slow, "fast_cycles": fast})


def match(clocks: Clocks, blocks: TracedBlocks) -> None:
    """Check that a trace of starts and ends belongs to the same launch as the clocks.

    Raises
    ------
    InputError
        When a block's clocks do not lie between its start and its end.
    """
    remedy = "give 'trace' and 'progress' of one launch, or leave out 'trace'"
    if clocks.block[-1] >= len(blocks):
        problem = f"clocks of block {clocks.block[-1]}, where the launch of {blocks.path.name} has {len(blocks)} blocks"
        raise InputError(clocks.path, "", problem, remedy)
    start, end = blocks.start[clocks.block], blocks.end[clocks.block]
    outside = (clocks.clocks[:, 0] < start) | (clocks.clocks[:, 0] + clocks.elapsed > end)
    outside |= ~blocks.recorded[clocks.block]
    if outside.any():
        block = clocks.block[outside][0]
        problem = f"the clocks of block {block} do not lie between its start and its end in {blocks.path.name}"
        raise InputError(clocks.path, "", problem, remedy)


def ends_of_older(blocks: TracedBlocks) -> np.ndarray:
    """Return, for each block, when the last older block on its SM ended; -1 where there was none.

    Of two blocks that start in the same cycle, the one with the lower number is the older.
    """
    found = np.full(len(blocks), -1)
    order = np.lexsort((blocks.start, blocks.sm))
    order = order[blocks.recorded[order]]
    for own in np.split(order, np.flatnonzero(np.diff(blocks.sm[order])) + 1):
        latest = np.maximum.accumulate(blocks.end[own])[:-1]
        found[own[1:]] = np.where(latest > blocks.start[own[1:]], latest, -1)
    return found
