"""Page reference maps: the layout's known answer, round trips, and files whose counts and content disagree."""

import random
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from damage import damaged
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.readers import neutrino

BASE = 0x7F0000000000


def content(pages, clocks):
    """A .dmat in the given order, put together without the writer."""
    head = struct.pack(f"<2Q{len(pages)}Q", len(pages), len(clocks), *pages)
    return head + b"".join(
        struct.pack("<2Q", clock, len(pairs)) + b"".join(struct.pack("<QI", *pair) for pair in pairs)
        for clock, pairs in clocks
    )


def test_known_sparsified_trace(tmp_path):
    # Grid 2, block 3; thread (0, 0) saves four records, the others three and one empty slot; the slots are counted.
    clocks = {100 * k + t: {} for k in range(4) for t in range(3)}
    for block, thread, k in np.ndindex(2, 3, 4):
        empty = k == 3 and (block, thread) != (0, 0)
        clock, page = (0, 0) if empty else (100 * k + thread, BASE + block * 0x10000)
        clocks[clock][page] = clocks[clock].get(page, 0) + 1
    clocks = {clock: sorted(pages.items()) for clock, pages in clocks.items() if pages}
    (tmp_path / "x.dmat").write_bytes(content([BASE + 0x10000, 0, BASE], list(clocks.items())[::-1]))
    found = neutrino.read_dmat(tmp_path / "x.dmat")
    assert found.pages.tolist() == [0, BASE, BASE + 0x10000]
    assert (len(np.unique(found.clock)), found.clock[-1], found.count.sum()) == (10, 300, 24)
    at = found.clock == 0
    assert list(zip(found.page[at].tolist(), found.count[at].tolist(), strict=True)) == [
        (0, 5),
        (BASE, 1),
        (BASE + 0x10000, 1),
    ]
    sizes = np.unique(found.clock, return_counts=True)[1].tolist()
    assert sizes == [3, *[2] * 8, 1]


ENTRIES = st.dictionaries(
    st.tuples(
        st.integers(0, 20) | st.integers(0, 2**64 - 1),
        st.sampled_from([0, BASE, BASE + 65536, 2**64 - 65536]) | st.integers(0, 2**48 - 1).map(lambda n: n << 16),
    ),
    st.integers(0, 2**32 - 1),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(ENTRIES, st.randoms(use_true_random=False))
def test_what_is_written_is_read_and_order_does_not_matter(entries, chance):
    items = list(entries.items())
    chance.shuffle(items)
    columns = [
        np.array(values, dtype)
        for values, dtype in (
            ([clock for (clock, _), _ in items], np.uint64),
            ([page for (_, page), _ in items], np.uint64),
            ([count for _, count in items], np.uint32),
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.dmat"
        neutrino.write_dmat(path, *columns)
        clocks = {}
        for (clock, page), count in items:
            clocks.setdefault(clock, []).append((page, count))
        expected = content(sorted({page for _, page in entries}), sorted((c, sorted(p)) for c, p in clocks.items()))
        assert path.read_bytes() == expected
        path.write_bytes(content(sorted({page for _, page in entries}, reverse=True), list(clocks.items())))
        found = neutrino.read_dmat(path)
        rows = zip(found.clock.tolist(), found.page.tolist(), found.count.tolist(), strict=True)
        assert list(rows) == sorted((clock, page, count) for (clock, page), count in entries.items())


GOOD = content([BASE, 0], [(5, [(0, 1), (BASE, 2)]), (3, [(BASE, 4)])])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (b"", "byte 0: 0 bytes are too short"),
        (GOOD[:10], "byte 10: 10 bytes are too short"),
        (struct.pack("<2Q", 2**63, 1) + GOOD[16:], ": 9223372036854775808 pages do not fit"),
        (struct.pack("<2Q", 2, 2**64 - 1) + GOOD[16:], ": 18446744073709551615 clocks do not fit"),
        (GOOD[:-1], "not a multiple of 4"),
        (GOOD[:-4], "more pages than fit into the file"),
        (GOOD[:-12], "clocks do not fit|more pages"),
        (GOOD + bytes(8), "8 bytes follow the last clock"),
        (content([BASE], [(5, [(BASE, 2)]), (5, [(BASE, 2)])]), "a clock occurs twice"),
        (content([BASE], [(5, [(BASE, 2), (BASE, 2)])]), "same page twice"),
        (content([BASE, 7], [(5, [(BASE, 2)])]), "the listed pages are not those accessed"),
        (content([BASE], [(5, []), (6, [(BASE, 2), (0, 1)])]), "a clock without pages"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, wrong, reason):
    path = tmp_path / "x.dmat"
    path.write_bytes(wrong)
    with pytest.raises(InputError, match=reason) as caught:
        neutrino.read_dmat(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    "columns",
    [
        ([1, 1], [0, 0], [1, 1]),
        ([1], [0, 1], [1]),
        ([-1], [0], [1]),
        ([1], [0], [2**32]),
        ([1.5], [0], [1]),
        ([[1]], [[0]], [[1]]),
    ],
)
def test_a_writer_refuses_what_the_format_does_not_have(tmp_path, columns):
    with pytest.raises(ValueError):
        neutrino.write_dmat(tmp_path / "x.dmat", *columns)
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_read_or_refused(tmp_path):
    path, chance = tmp_path / "x.dmat", random.Random(1)
    for _ in range(300):
        path.write_bytes(content := damaged(GOOD, chance))
        with suppress(InputError):
            found = neutrino.read_dmat(path)
            assert len(found.clock) == len(found.page) == len(found.count) <= len(content)
