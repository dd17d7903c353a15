"""Logs of jobs: what a person sees when one fails, and what its log file keeps."""

import subprocess
import sys

import pytest


def run(tmp_path, statement):
    """Run a statement as a job does; return its status, its standard error and its log."""
    log = tmp_path / "job.log"
    code = f"from gpuledger import logs\nfrom gpuledger.errors import InputError\nwith logs.to({str(log)!r}):\n    "
    done = subprocess.run([sys.executable, "-c", code + statement], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, log.read_text("utf-8")


def test_bad_input_is_one_line_on_standard_error_and_in_the_log(tmp_path):
    line = "a.csv, line 3: the cell is empty; fill it in\n"
    status, said, log = run(tmp_path, "raise InputError('a.csv', 'line 3', 'the cell is empty', 'fill it in')")
    assert (status, said, log) == (1, line, line)


def test_a_defect_is_one_traceback_on_standard_error_and_in_the_log(tmp_path):
    status, said, log = run(tmp_path, "1 / 0")
    assert status == 1
    assert said.count("Traceback") == said.count("ZeroDivisionError") == 1
    assert "a defect in gpuledger" in log and log.count("Traceback") == 1


@pytest.mark.parametrize("statement", ["import warnings; warnings.warn('odd')", "import logging; logging.info('odd')"])
def test_what_does_not_fail_stays_in_the_log(tmp_path, statement):
    status, said, log = run(tmp_path, statement)
    assert (status, said) == (0, "")
    assert "odd" in log


@pytest.mark.parametrize(
    ("number", "remedy"),
    [("ENOSPC", "free disk space"), ("EROFS", "work in a folder that can be"), ("EACCES", "correct the permissions")],
)
def test_a_full_disk_or_a_read_only_folder_is_no_defect(tmp_path, number, remedy):
    statement = f"import errno, os; raise OSError(errno.{number}, os.strerror(errno.{number}), 'results/a')"
    status, said, log = run(tmp_path, statement)
    assert status == 1 and said == log
    assert said.startswith("results/a: ") and remedy in said and said.count("\n") == 1
