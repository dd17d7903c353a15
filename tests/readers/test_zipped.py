"""Timelines in zip archives: any kind, alone; hostile archives in one line."""

import json
import warnings
import zipfile

import pytest

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.timelines import read_timeline, timeline_format

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"device": 0, "stream": 7}}
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": [KERNEL, KERNEL | {"ts": 9}]})
TABLE = "Time (%),Total Time (ns),Instances,Name\n75.0,6000,3,gemm\n"


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return path


@pytest.mark.parametrize(("name", "content"), [("trace_json", TRACE), ("sums_csv", TABLE)])
def test_any_timeline(tmp_path, name, content):
    path = zipped(tmp_path / "a.zip", **{name: content})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timeline = read_timeline(path)
        (found,) = recognise(path)
    assert timeline.file == path and timeline.kernels["launches"].sum() in (2, 3)
    assert timeline_format(path) == "zip" and found.cases["kernel_breakdown"] == {"timeline": "a.zip"}


def test_a_trace_that_is_cut_off_is_told_of_by_the_archives_name(tmp_path):
    with pytest.warns(InputWarning, match=r"a.zip, character \d+: the file ends in the middle") as caught:
        assert len(read_timeline(zipped(tmp_path / "a.zip", a_json=TRACE[:-9])).kernels) == 1
    assert "gpuledger-" not in str(caught[0].message)


def test_hostile_archives(tmp_path):
    with pytest.raises(InputError, match="the archive holds 2 files, not one"):
        read_timeline(zipped(tmp_path / "a.zip", a_json=TRACE, b_json=TRACE))
    inner = zipped(tmp_path / "inner.zip", a_json=TRACE).read_bytes()
    with pytest.raises(InputError, match=r"b.zip: an archive in an archive; unpack it"):
        read_timeline(zipped(tmp_path / "b.zip", inner_zip=inner))
    with pytest.raises(InputError, match="the archive unpacks to more than fits"):
        read_timeline(zipped(tmp_path / "c.zip", a_json=bytes(1 << 28)))
    (tmp_path / "d.zip").write_bytes(inner[:-30])
    with pytest.raises(InputError, match="the archive is damaged"):
        read_timeline(tmp_path / "d.zip")
