"""The search for the tile and the split of k with which a matrix multiplication takes least time.

It states the terms of :mod:`gpuledger.models.time_model.gemms.law` for one tile and split, and runs over all that a
library may choose, compiled where there are many multiplications.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np

from gpuledger.models.time_model.gemms.cublas import LONG

_CHUNK = 4096
# Structure: chosen once, by an A100's and an H100's shapes together, and the same for every GPU.
_LEAST = 128  # k of a block at least, when k is split
_THROTTLED_AFTER = 5e-4  # the clock drops when all matrix units are busy for about so long (s)
#: Times of tiles that are close to the fastest, over its time. A constant that changes by 2.1 % changes a tile's time
#: by 2.8 % at most (the clock's drop makes a third more of it), so that one beyond 5.7 % does not become the fastest.
_CLOSE = 1.08


class CloseTiles(NamedTuple):
    """The tiles that were close to the fastest, multiplication after multiplication, and where each one's begin."""

    tiles: np.ndarray
    first: np.ndarray
    last: np.ndarray


class Machine(NamedTuple):
    """A GPU with its constants, in base units."""

    launch: float
    dram: float
    flop_per_sm: float
    l2_per_sm: float
    clock: float
    step: float
    sms: float
    operand: float
    result: float
    least_rows: float
    throttled: float
    conversion: float
    conversion_row: float
    split: float
    result_factor: float
    host: float
    first: float
    fill: float
    outside: float
    direct: float = 0.0
    ring: float = 0.0
    partial: float = 0.0
    hidden: float = 0.0
    later: float = 0.0
    crowd: float = 1.0
    few: float = 0.0
    narrow: float = 0.0
    crossed: float = 0.5
    short: float = 0.0
    turnover: float = 0.0


#: Tiles of all multiplications up to which a process interprets the search: loading its compiled form takes 0.7 s.
_FEW = 250_000


def _search(
    m, n, k, batch, stored, colds, warms, flights, scattered, choice, first, last, listed, tiles_m, tiles_n, steps,
    clusters_m, clusters_n, together, stalls, splits, g, margin, time, chosen, terms, least_times,
):  # fmt: skip
    """Fill the time (s), the best tile, split and step along k, and their terms.

    Terms: compute, latency, L2, DRAM, drain, split (s); bytes between L2 and SMs. The same statements run interpreted
    and compiled, with the same bits: powers are written as products, because ``pow`` of C and numba round differently.
    With a margin above 1, also the least time of each tile that is not slower than the fastest by more than that.
    """
    for i in range(len(m)):
        rows, columns, depth, many, cold, warm = m[i], n[i], k[i], batch[i], colds[i], warms[i]
        best = inf
        free = choice[i]
        least = min(rows, columns)
        unsplit = many == 1.0 < rows and depth < LONG
        if unsplit and rows * columns * depth >= g.few:
            unsplit = least <= g.narrow and max(rows, columns) > 16.0 * g.narrow
        passes = 2.0 if depth * g.operand < g.short else 1.0
        for place in range(first[i], last[i]):
            j = listed[place]
            fastest = inf
            tile_m, tile_n, step = tiles_m[j], tiles_n[j], steps[j]
            if free and tile_m > g.least_rows and tile_m > 2 * rows:
                continue
            high, wide = clusters_m[j], clusters_n[j]
            down, across = ceil(rows / (tile_m * high)) * high, ceil(columns / (tile_n * wide)) * wide
            whole = down * across * many
            outside = 0.0
            if not free:
                outside = g.outside * (down * tile_m - rows) * across / wide * many * depth * g.operand
            area = tile_m * tile_n
            held = together[j]
            used_m, used_n = min(tile_m, rows), min(tile_n, columns)
            operands = used_m * g.operand + used_n * stored[i]
            result = used_m * used_n * g.result
            for split in splits:
                blocks = whole * split
                if split > 1 and (not free or unsplit or depth < split * _LEAST or blocks > 4 * g.sms):
                    break
                waves = ceil(blocks / g.sms)
                length = ceil(depth / (split * step)) * step
                begun = g.turnover * (tile_m + tile_n) if many == 1.0 else 0.0
                compute = waves * (area * length + begun) * 2.0 / g.flop_per_sm
                rounds = ceil(waves / held)
                latency = rounds * (length / step) * (g.step + stalls[j] / g.clock)
                if not free:
                    latency += (rounds - 1.0) * g.fill * g.step
                active = min(blocks, g.sms)
                written = g.result_factor * result * max(active / g.sms, g.direct)
                l2 = waves * (operands * length * passes + (1.0 - g.direct) * written) / g.l2_per_sm
                if max(compute, latency, l2) > margin * best:
                    continue
                compute *= 1.0 + g.throttled * compute / (compute + _THROTTLED_AFTER)
                drain = rounds * written / g.l2_per_sm
                flight = g.ring * used_n / (tile_m + tile_n) if g.ring > 0.0 else flights[i]
                dram = cold / min(g.dram, active * flight * g.clock) + warm
                extra = 0.0
                if split > 1:
                    sums = rows * columns * many * 4.0
                    extra = g.split + split * sums / (active * g.l2_per_sm)
                    if g.partial > 0.0 and many == 1.0:
                        extra = g.split + (split + 1.0) * sums / (g.sms * g.partial * g.clock)
                a, b, c, d = compute * compute, latency * latency, l2 * l2, dram * dram
                chain = sqrt(sqrt(a * a + b * b + c * c)) + drain + outside / (g.sms * g.l2_per_sm)
                e = chain * chain
                if scattered[i] > 1.0:
                    leaving = scattered[i] * waves * written / g.l2_per_sm
                    chain = sqrt(sqrt(e * e + leaving * leaving * leaving * leaving))
                    chain += (scattered[i] - 1.0) * written / g.l2_per_sm
                    e = chain * chain
                if split > 1 and many == 1.0:
                    e = (chain + g.hidden * g.split) * (chain + g.hidden * g.split)
                    extra -= g.hidden * g.split
                total = sqrt(sqrt(e * e + d * d + g.crossed * e * d)) + extra
                if many == 1.0:
                    total += g.later * min(1.0, blocks / g.crowd)
                fastest = min(fastest, total)
                if total < best:
                    best = total
                    chosen[i, 0], chosen[i, 1], chosen[i, 2] = tile_m, tile_n, split
                    chosen[i, 3], chosen[i, 4] = step, blocks
                    terms[i, 0], terms[i, 1], terms[i, 2], terms[i, 3] = compute, latency, l2, dram
                    terms[i, 4], terms[i, 5], terms[i, 6] = drain, extra, blocks * (operands * length + result)
            if margin > 1.0:
                least_times[i, place - first[i]] = fastest
        time[i] = best + g.launch


_interpreted = 0


def _search_interpreted(count: int) -> bool:
    """Return whether to interpret the search for so many further tiles, and count them."""
    global _interpreted
    few = _interpreted + count <= _FEW and not _compiled.cache_info().currsize
    _interpreted += count * few
    return few


@cache
def _compiled() -> Callable:
    from numba import njit

    return njit(cache=True, nogil=True, error_model="numpy")(_search)


def fastest_tiles(
    shapes: Sequence[np.ndarray],
    tiles: np.ndarray,
    splits: np.ndarray,
    machine: Machine,
    every: bool,
    among: CloseTiles | None = None,
    find_close: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, CloseTiles | None]:
    """Find the fastest tile and split of each multiplication.

    Parameters
    ----------
    shapes : sequence of arrays of shape (multiplications,)
        What differs between multiplications, in the order of `_search`: sizes, bytes of a stored weight, DRAM's bytes
        and L2's seconds, what an SM has in flight, how results leave, and the first tile and the one after the last.
    tiles : float array of shape (tiles, columns)
        Columns in the order of `_search`.
    splits : float array
        Into how many parts k may be split, ascending.
    every : bool
        Whether the terms of all multiplications are wanted; without, those that return are scratch.
    among : CloseTiles, optional
        Which tiles to search, of the same multiplications under constants of which one differed by 2.1 % at most.
    find_close : bool
        Whether to return these for further searches.

    Returns
    -------
    time : float array of shape (multiplications,)
        In seconds.
    chosen : int array of shape (multiplications, 5)
        Rows and columns of the tile, splits, the step along k, blocks.
    terms : float array of shape (multiplications, 7)
        See `_search`.
    close : CloseTiles or None
    """
    count, (*shapes, first, last) = len(shapes[0]), shapes
    choice = last - first > 1
    listed, first, last = among or (np.arange(len(tiles)), first, last)
    time, chosen = np.empty(count), np.empty((count, 5), np.int64)
    # Only a plan needs the terms of all; a time gets by with those of one chunk a thread.
    terms = np.empty((count if every else min(count, _CHUNK), 7))
    # What is done beside takes about as long as 20 tiles.
    interpreted = _search_interpreted(count * (len(tiles) + 20))
    search, columns = (_search if interpreted else _compiled()), np.ascontiguousarray(tiles.T)

    def chunk(start: int) -> tuple[np.ndarray, np.ndarray] | None:
        part = slice(start, start + _CHUNK)
        own = terms[part] if every else np.empty((_CHUNK, 7))
        given = [*(array[part] for array in (*shapes, choice, first, last)), listed, *columns, splits]
        if interpreted:
            given = [array.tolist() for array in given]
        least = np.full((len(time[part]), int((last - first)[part].max()) if find_close else 1), np.inf)
        search(*given, machine, _CLOSE if find_close else 1.0, time[part], chosen[part], own, least)
        if not find_close:
            return None
        rows, columns_of = np.nonzero(least <= _CLOSE * (time[part] - machine.launch)[:, None])
        return np.bincount(rows, minlength=len(least)), listed[first[part][rows] + columns_of]

    if count <= _CHUNK:
        found = [chunk(0)]
    else:
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(chunk, range(0, count, _CHUNK)))
    if not find_close:
        return time, chosen, terms, None
    ends = np.cumsum(np.concatenate([counts for counts, _ in found]))
    starts = np.concatenate([[0], ends[:-1]])
    return time, chosen, terms, CloseTiles(np.concatenate([tiles for _, tiles in found]), starts, ends)
