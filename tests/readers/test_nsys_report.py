"""Reports of Nsight Systems through an installed ``nsys``; a stand-in, as Debian leaves its exporter out."""

import shutil
import sqlite3
import sys
from contextlib import closing

import pytest

from gpuledger.errors import InputError
from gpuledger.readers.timelines import read_timeline


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A report, and a folder of its own on the PATH."""
    (tmp_path / "a report ü.nsys-rep").write_bytes(b"\0\1\2")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "a report ü.nsys-rep"


def install(folder, code):
    program = folder / "bin" / "nsys"
    program.write_text(f"#!{sys.executable}\nimport shutil, sys\n{code}\n", "utf-8")
    program.chmod(0o755)


def test_a_report_is_exported_and_read(report):
    with closing(sqlite3.connect(report.parent / "db")) as base:
        base.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT); INSERT INTO StringIds VALUES (1, 'gemm');"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 25, 1);"
        )
    right = f"assert sys.argv[1:4] == ['export', '--type', 'sqlite'] and sys.argv[6] == {str(report)!r}"
    install(report.parent, f"{right}\nshutil.copy({str(report.parent / 'db')!r}, sys.argv[5])")
    timeline = read_timeline(report)
    assert timeline.file == report
    assert timeline.kernels[["kernel", "duration_s"]].to_numpy().tolist() == [["gemm", pytest.approx(2e-8)]]


@pytest.mark.parametrize(
    ("code", "problem", "remedy"),
    [
        (None, "needs nsys, and none is on the PATH", "install Nsight Systems"),
        ("sys.exit('Exportation error: Cannot read from stream.')", "Cannot read from stream", "at least as new"),
        ("sys.exit(3)", "exit status 3", "at least as new"),
        ("pass", "could not export the report", "at least as new"),
        ("open(sys.argv[5], 'w').close()", "no table", "record with nsys profile"),
    ],
)
def test_what_goes_wrong_is_one_line_about_the_report(report, code, problem, remedy):
    if code is not None:
        install(report.parent, code)
    with pytest.raises(InputError, match=problem) as caught:
        read_timeline(report)
    assert caught.value.file == str(report) and remedy in caught.value.remedy


@pytest.mark.skipif(not shutil.which("nsys"), reason="Nsight Systems is not installed")
def test_the_real_nsys_says_what_is_wrong(tmp_path):
    (tmp_path / "x.nsys-rep").write_bytes(b"\0\1\2")
    with pytest.raises(InputError, match="nsys could not export the report"):
        read_timeline(tmp_path / "x.nsys-rep")
