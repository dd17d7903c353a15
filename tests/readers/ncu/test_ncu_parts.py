"""Reports read in parts of whole launches, which together are what is read at once."""

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.readers import ncu
from gpuledger.readers.ncu import sources
from gpuledger.readers.ncu.quantities import launch_quantities
from gpuledger.studies.kernel_profile.reduction import profile

DATA = Path(__file__).parents[2] / "data" / "ncu"
LONG = ("ID", "Process ID", "Kernel Name", "Grid Size", "Section Name", "Metric Name", "Metric Unit", "Metric Value")


def assert_parts_are_whole(path, values, **options):
    whole, parts = ncu.read(path, **options), list(ncu.read_parts(path, values=values, **options))
    metrics = pd.concat([part.metrics.astype({"kernel": str, "metric": str, "text": object}) for part in parts])
    for name in ("launch", "kernel", "metric", "value", "text"):
        expected = whole.metrics[name].astype(metrics[name].dtype)
        np.testing.assert_array_equal(metrics[name].fillna(-1), expected.fillna(-1))
    assert pd.concat([part.metrics["unit"].astype(str) for part in parts]).tolist() == whole.metrics["unit"].tolist()
    launches = pd.concat([part.launches.astype({"kernel": str}) for part in parts])
    pd.testing.assert_frame_equal(launches.astype(object), whole.launches.astype({"kernel": str}).astype(object))
    quantities = pd.concat([launch_quantities(part) for part in parts])
    pd.testing.assert_frame_equal(quantities.astype(object), launch_quantities(whole).astype(object))
    return parts


def write(path, rows, header=LONG):
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([header, *rows])
    path.write_text(text.getvalue(), "utf-8")
    return path


def launch(number, metrics, process=1, kernel="k"):
    return [(number, process, kernel, "(2, 1, 1)", "s", name, unit, value) for name, unit, value in metrics]


@pytest.mark.parametrize("file", sorted(DATA.iterdir()), ids=lambda file: file.name)
@pytest.mark.parametrize("values", [1, 10**6])
def test_every_dialect_in_parts(file, values, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    parts = assert_parts_are_whole(file, values)
    launches = sum(len(part.launches) for part in parts)
    assert len(parts) == (launches if values == 1 else 1)


@pytest.mark.parametrize("page", ["wide", "long"])
def test_launches_of_few_metrics_fill_a_part_too(tmp_path, page, monkeypatch):
    """A million launches of two metrics were one part, whose launch columns took most of the memory."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    if page == "wide":
        header = ("ID", "Process ID", "Kernel Name", "dram__bytes.sum")
        rows = [("", "", "", "byte"), *((number, 1, "k", 8) for number in range(40))]
    else:
        header, metric = LONG, [("dram__bytes.sum", "byte", 8)]
        rows = [row for number in range(40) for row in launch(number, metric)]
    parts = assert_parts_are_whole(write(tmp_path / "few.csv", rows, header), 80)
    assert len(parts) >= 4


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=7),
    values=st.integers(1, 20),
    block=st.integers(1, 900),
    twice=st.booleans(),
    wide=st.booleans(),
)
def test_parts_of_any_size(tmp_path_factory, sizes, values, block, twice, wide):
    """Launches with differing metrics; also two runs of ncu, one after the other, with the same IDs."""
    path = tmp_path_factory.mktemp("parts") / "x.csv"
    names = ("gpu__time_duration.sum", "dram__bytes.sum", "sm__a.sum", "sm__b.max")
    if wide:
        rows = [
            (at, 1, "k", "(2, 1, 1)", *(at * place if place < size else "" for place in range(4)))
            for at, size in enumerate(sizes)
        ]
        write(path, [("",) * 4 + ("ns", "Kbyte", "", ""), *rows], (*LONG[:4], *names))
    else:
        rows = [
            row
            for at, size in enumerate(sizes)
            for row in launch(at, [(name, "ns" * (name[0] == "g"), f"{at}.5") for name in names[:size]])
        ]
        write(path, rows * (1 + twice))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_BYTES", block)
        assert_parts_are_whole(path, values)


def test_a_launch_whose_rows_lie_apart_is_refused_in_parts(tmp_path, monkeypatch):
    metrics = [("a", "", "1"), ("b", "", "2")]
    by_metric = [row for metric in metrics for at in range(9) for row in launch(at, [metric])]
    path = write(tmp_path / "x.csv", by_metric)
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    assert len(ncu.read(path).launches) == 9
    with pytest.raises(InputError, match=r"metrics of launch \d lie apart, in a file too large .*sort its rows by ID"):
        list(ncu.read_parts(path, values=4))


@pytest.mark.parametrize("values", [4, None])
def test_ambiguous_values_before_the_first_clear_one(tmp_path, values, monkeypatch):
    """They were read with a point; the file is read again once a value has a decimal comma."""
    rows = [row for at in range(40) for row in launch(at, [("m", "", "1.234")])]
    path = write(tmp_path / "x.csv", [*rows, *launch(40, [("m", "", "0,5")])])
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    report = pd.concat([part.metrics for part in ncu.read_parts(path, values=values)])
    assert report["value"].tolist() == [1234] * 40 + [0.5]


def test_a_late_mixture_of_locales_is_refused(tmp_path, monkeypatch):
    rows = [row for at in range(40) for row in launch(at, [("m", "", "1.5")])]
    path = write(tmp_path / "x.csv", [*rows, *launch(40, [("m", "", "2,5 (1; 2)")])])
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    with pytest.raises(InputError, match=r"'1\.5' has a decimal point, '2,5' a decimal comma"):
        ncu.read(path)


def test_a_sign_that_shows_after_launches_were_given_is_asked_for(tmp_path, monkeypatch):
    rows = [row for at in range(40) for row in launch(at, [("m", "", "12")])]
    rows += [row for at in range(40, 60) for row in launch(at, [("m", "", "1.234")])]
    path = write(tmp_path / "x.csv", [*rows, *launch(60, [("m", "", "0,5")])])
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    with pytest.raises(InputError, match=r"the decimal sign is not clear from the first values.*say which it is"):
        list(ncu.read_parts(path, values=4))
    given = pd.concat([part.metrics for part in ncu.read_parts(path, ",", values=4)])
    assert given["value"].tolist() == ncu.read(path).metrics["value"].tolist()


def test_a_profile_of_parts_is_that_of_the_whole(monkeypatch):
    whole = profile(DATA / "raw.csv")
    parts = ncu.read_parts
    monkeypatch.setattr(ncu, "read_parts", lambda path, decimal: parts(path, decimal, 1))
    again = profile(DATA / "raw.csv")
    pd.testing.assert_frame_equal(again.data, whole.data)
    assert again.summary == whole.summary
