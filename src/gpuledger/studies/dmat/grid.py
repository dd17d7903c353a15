"""Grids: which page of which tensor is which row, and which clock is which column.

The project's own grid divides the pages of each tensor among rows of its own, in the order of addresses, so that a row
holds one tensor and no page is lost. The compatible grid is that of the script which comes with the traces: rows of
pages by rank, whoever owns them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger.studies.dmat.scan import PAGE_BYTES, Plan, Survey
from gpuledger.studies.dmat.tensors import Map, Tensor

#: Of the compatible grid: target and shape of the grid, largest clock, tensors shown.
TARGET_ROWS, TARGET_COLUMNS = 100, 160
CLOCK_LIMIT = 5_000_000
SHOWN = 5
#: Fewest rows of a tensor with as many pages: a single row is hardly visible.
LEAST_ROWS = 2


@dataclass(frozen=True)
class GridLayout:
    """A plan for counting, and what its lines mean."""

    plan: Plan
    rows: np.ndarray  # int64: by line, the row of the grid
    owners: list[tuple[int, ...]]  # by line, the tensors that it counts for; -1 is unknown
    pages: np.ndarray  # int64: by line, how many pages it holds
    #: int64: by line, the place of the page in the survey that it holds a part of; -1 where it holds whole pages.
    page: np.ndarray

    def number_of_pages(self, lines: Sequence[int]) -> int:
        """Count the pages that lines hold or share."""
        shared = self.page[lines]
        return int(self.pages[lines][shared < 0].sum()) + np.unique(shared[shared >= 0]).size


def by_tensor(survey: Survey, memory: Map, rows: int, columns: int) -> GridLayout:
    """Lay out rows by tensor.

    Row 0 has the lowest addresses. A page that tensors share is divided at the byte.

    Parameters
    ----------
    rows, columns : int
        Approximate number of rows, largest number of columns.
    """
    page, owner, shared, last = _parts(survey.pages, memory)
    row = _rows(page, owner, rows)
    lines, line = np.unique(np.stack([row, owner], axis=1)[~shared], axis=0, return_inverse=True)
    lines = lines.reshape(-1, 2)
    pages = np.bincount(line.ravel(), minlength=len(lines))
    # Each part of a shared page has a line of its own: it may turn out that nothing of it is touched.
    target = np.empty(survey.pages.size, np.int64)
    target[page[~shared]] = line.ravel()
    first_part = np.flatnonzero(shared & np.concatenate([[True], page[1:] != page[:-1]]))
    number = np.cumsum(shared) - 1
    target[page[first_part]] = -1 - number[first_part]
    parts = int(shared.sum())
    width = -(-(survey.axis_end + 1) // columns)
    plan = Plan(
        target,
        lines=len(lines) + parts,
        columns=survey.axis_end // width + 1,
        width=width,
        limit=survey.axis_end + 1,
        cut_last=last[shared],
        cut_line=len(lines) + np.arange(parts),
    )
    owners = [(int(one),) for one in np.concatenate([lines[:, 1], owner[shared]])]
    line_rows = np.concatenate([lines[:, 0], row[shared]])
    line_pages = np.concatenate([pages, np.ones(parts, np.int64)])
    return GridLayout(plan, line_rows, owners, line_pages, np.concatenate([np.full(len(lines), -1), page[shared]]))


def _parts(pages: np.ndarray, memory: Map) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Divide pages where their owner changes; of each part its page, owner, whether it shares the page, last byte."""
    # Bounds between two parts of one owner divide nothing.
    bounds = memory.bounds[memory.owner[1:] != memory.owner[:-1]]
    page_end = pages + np.uint64(PAGE_BYTES - 1)
    before = np.searchsorted(bounds, pages, "right")
    inside = np.searchsorted(bounds, page_end, "right") - before
    page = np.repeat(np.arange(pages.size), inside + 1)
    place = np.arange(page.size) - np.repeat(np.cumsum(inside + 1) - inside - 1, inside + 1)
    start, last = pages[page], page_end[page]
    cut = place > 0
    start[cut] = bounds[(before[page] + place - 1)[cut]]
    last[:-1][cut[1:]] = start[1:][cut[1:]] - np.uint64(1)
    return page, memory.at(start), inside[page] > 0, last


def _rows(page: np.ndarray, owner: np.ndarray, rows: int) -> np.ndarray:
    """Return the row of every part."""
    band = np.cumsum(np.concatenate([[0], owner[1:] != owner[:-1]]))
    size = np.bincount(band)
    if 2 * size.size > rows:  # tensors are too many to have rows of their own
        number = int(page[-1]) + 1
        return page * min(rows, number) // number
    least = np.minimum(size, LEAST_ROWS)
    height = np.minimum(np.maximum(least, np.round(size * rows / max(page.size, rows)).astype(np.int64)), size)
    if page.size <= rows:
        height = size
    before, passed = np.concatenate([[0], np.cumsum(height)[:-1]]), np.concatenate([[0], np.cumsum(size)[:-1]])
    return before[band] + (np.arange(page.size) - passed[band]) * height[band] // size[band]


def compatible(survey: Survey, tensors: Sequence[Tensor]) -> GridLayout:
    """Lay out rows as the script that comes with the traces does.

    Row 100 has the lowest addresses. A page counts for every tensor that holds the page's address, or ends there; so
    the page in which a tensor starts is lost to it, unless it starts with the page.

    Parameters
    ----------
    survey : Survey
        With the page and clock 0 of slots that were not saved, if there are any.

    Raises
    ------
    ZeroDivisionError
        On fewer than 99 pages or 159 clocks, as the script does.
    """
    pages = survey.pages
    step, width = pages.size // (TARGET_ROWS - 1), survey.max_clock // (TARGET_COLUMNS - 1)
    if not step or not width:
        raise ZeroDivisionError
    # Of few pages more, the script counts from the top of the grid again.
    row = (TARGET_ROWS - np.arange(pages.size) // step) % (TARGET_ROWS + 1)
    touched, holds = [], []
    for place, tensor in enumerate(tensors):
        reach = np.array([tensor.address, min(tensor.end, 2**64 - 1)], np.uint64)
        start, end = np.searchsorted(pages, reach[0], "left"), np.searchsorted(pages, reach[1], "right")
        if tensor.bytes > 0 and start < end:
            touched.append(place)
            holds.append((np.arange(pages.size) >= start) & (np.arange(pages.size) < end))
    member = np.array(holds, bool).reshape(len(touched), pages.size).T
    sets, which = np.unique(member, axis=0, return_inverse=True)
    lines, line = np.unique(np.stack([row, which.ravel()], axis=1), axis=0, return_inverse=True)
    names = [tuple(np.array(touched, np.int64)[chosen].tolist()) or (-1,) for chosen in sets]
    plan = Plan(
        line.ravel(), lines=len(lines), columns=TARGET_COLUMNS + 1, width=width, limit=CLOCK_LIMIT, drop_late=True
    )
    owners = [names[one] for one in lines[:, 1]]
    pages = np.bincount(line.ravel(), minlength=len(lines))
    return GridLayout(plan, lines[:, 0], owners, pages, np.full(len(lines), -1))
