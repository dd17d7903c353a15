"""Parsing the workflow is pure: a dry run writes nothing, deletes nothing, and needs no right to."""

import os

from conftest import snakemake


def tree(folder):
    """Every file with its size and time, but for compiled Python."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_dry_run_of_a_fresh_checkout_writes_nothing_and_needs_no_right_to(checkout):
    before = tree(checkout)
    # Snakemake itself keeps a folder of its own, which is there after the first call.
    (checkout / ".snakemake").mkdir()
    folders = [path for path in (checkout, *checkout.rglob("*")) if path.is_dir() and ".snakemake" not in path.parts]
    for folder in folders:
        folder.chmod(0o555)
    try:
        # A superuser may write everywhere.
        done = snakemake(checkout, "-n")
        assert done.returncode == 0, done.stderr[-3000:]
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert {name: state for name, state in tree(checkout).items() if not name.startswith(".snakemake/")} == before


def test_a_dry_run_deletes_nothing_when_a_record_no_longer_holds(own):
    os.utime(next((own / "traces/simulated").rglob("*.bin")))
    before = {name: state for name, state in tree(own).items() if not name.startswith(".snakemake/")}
    done = snakemake(own, "-n")
    assert "simulate simulated" in done.stdout + done.stderr
    assert {name: state for name, state in tree(own).items() if not name.startswith(".snakemake/")} == before
