"""Tell tensors apart that nothing names: by how often and when their pages are touched.

Memory is often allocated without gaps, so that a ``.dmat`` without logs is one block of pages. But every page of a
tensor is usually touched about equally often, and at about the same times as the pages next to it. A boundary is where
either changes for good. What is found this way is a guess, and is called one.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gpuledger.studies.dmat.scan import Accesses, Plan, Survey
from gpuledger.studies.dmat.tensors import MAX_REGIONS, Tensor

#: Resolution: at most this many groups of pages, and intervals of the clock.
GROUPS, INTERVALS = 4096, 256
#: A boundary by number of accesses: pages compared on either side, and least difference (log2 of accesses per page).
AMOUNT_PAGES, AMOUNT_LOG2 = 8, 0.75
#: A boundary by time: share of a region compared on either side, fewest pages, and least distance of the two
#: distributions over time (1: they do not overlap).
TIME_SHARE, TIME_PAGES, TIME_DISTANCE = 1 / 8, 16, 0.3
#: A region that is this many times as large as two or more others of one size is divided into parts of that size.
MULTIPLES = (2, 3, 4)


def divide_regions(regions: Sequence[Tensor], accesses: Accesses, survey: Survey) -> list[Tensor]:
    """Divide regions of pages where the way changes in which they are touched.

    Parameters
    ----------
    regions : sequence of Tensor
        See :func:`gpuledger.studies.dmat.tensors.regions`.

    Returns
    -------
    list of Tensor
        Parts of divided regions are called ``part 1 (inferred)`` and so on. The regions as they were, if there is
        nothing to tell apart or too much.
    """
    profile, group = _profile(accesses, survey)
    starts = np.searchsorted(survey.pages, np.array([region.address for region in regions], np.uint64)) // group
    bounds = [*starts.tolist(), len(profile)]
    cuts = [_cuts(profile[start:end]) for start, end in pairwise(bounds)]
    cuts = _divide_evenly([[start + cut for cut in own] for start, own in zip(bounds, cuts, strict=False)], bounds)
    if not any(cuts) or len(regions) + sum(map(len, cuts)) > MAX_REGIONS:
        return list(regions)
    found = []
    for region, own in zip(regions, cuts, strict=True):
        inside = survey.pages[np.array(own, np.int64) * group]
        inside = inside[(inside > region.address) & (inside < region.end)]
        places = [region.address, *inside.tolist(), region.end]
        for start, end in pairwise(places):
            name = f"part {len(found) + 1} (inferred)" if own else region.name
            found.append(Tensor(name, start, end - start))
    return found


def _profile(accesses: Accesses, survey: Survey) -> tuple[np.ndarray, int]:
    """Count accesses by group of consecutive pages and interval of the clock; also return the pages of a group."""
    group = -(-survey.pages.size // GROUPS)
    line = np.arange(survey.pages.size) // group
    width = -(-(survey.axis_end + 1) // INTERVALS)
    columns = survey.axis_end // width + 1
    plan = Plan(line, lines=int(line[-1]) + 1, columns=columns, width=width, limit=survey.axis_end + 1)
    return accesses.count(survey, plan, "profile").cells.astype(np.float64), group


def _cuts(profile: np.ndarray) -> list[int]:
    """Return where a region is to be divided, ascending."""
    amount = np.log2(np.maximum(profile.sum(axis=1), 1))
    size = min(AMOUNT_PAGES, len(profile) // 2)
    places = _peaks(np.abs(_difference(amount[:, None], size)[:, 0]), AMOUNT_LOG2, size) if size else []
    for start, end in zip([0, *places], [*places, len(profile)], strict=True):
        places = places + [start + cut for cut in _cuts_in_time(profile[start:end])]
    return sorted(places)


def _cuts_in_time(profile: np.ndarray) -> list[int]:
    size = max(TIME_PAGES, round(TIME_SHARE * len(profile)))
    if len(profile) < 2 * size:
        return []
    distance = _distance(profile, size)
    # The region's first and last pages are those of the first and last blocks, which differ from all others.
    distance[: size - 1] = distance[len(distance) - size + 1 :] = 0
    near = _distance(profile, max(2, size // 8))
    # Where time goes on steadily from page to page, every page is a boundary, and so none is.
    return [cut for cut in _peaks(distance, TIME_DISTANCE, size) if near[cut - 1] > 2 * np.median(near)]


def _difference(values: np.ndarray, size: int) -> np.ndarray:
    """Return mean of the `size` rows after less that before each place between rows, for each column."""
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    place = np.arange(1, len(values))
    low, high = np.maximum(place - size, 0), np.minimum(place + size, len(values))
    before, after = total[place] - total[low], total[high] - total[place]
    return after / (high - place)[:, None] - before / (place - low)[:, None]


def _distance(profile: np.ndarray, size: int) -> np.ndarray:
    """Return the distance over time of the rows before and after each place between rows.

    One less the overlap (Bhattacharyya coefficient) of both distributions.
    """
    total = np.concatenate([np.zeros((1, profile.shape[1])), np.cumsum(profile, axis=0)])
    place = np.arange(1, len(profile))
    before = total[place] - total[np.maximum(place - size, 0)]
    after = total[np.minimum(place + size, len(profile))] - total[place]
    both = np.sqrt(before.sum(axis=1) * after.sum(axis=1))
    return 1 - np.sqrt(before * after).sum(axis=1) / np.maximum(both, 1e-300)


def _peaks(values: np.ndarray, least: float, size: int) -> list[int]:
    """Return the places (1 is after the first row) of the largest values, none within `size` rows of a larger one."""
    left, found = values.copy(), []
    while left.size and left[peak := int(left.argmax())] >= least:
        found.append(peak + 1)
        left[max(0, peak - size + 1) : peak + size] = 0
    return sorted(found)


def _divide_evenly(cuts: list[list[int]], bounds: Sequence[int]) -> list[list[int]]:
    """Divide parts that are a multiple of a size that two or more others have: tensors touched in one way."""
    parts = [
        (number, start, end)
        for number, own in enumerate(cuts)
        for start, end in zip([bounds[number], *own], [*own, bounds[number + 1]], strict=True)
    ]
    sizes = [end - start for _, start, end in parts]
    common = {size for size in sizes if sizes.count(size) >= 2 and size >= TIME_PAGES}
    for number, start, end in parts:
        for multiple in MULTIPLES:
            if (end - start) % multiple == 0 and (size := (end - start) // multiple) in common:
                cuts[number] = sorted(cuts[number] + list(range(start + size, end, size)))
                break
    return cuts
