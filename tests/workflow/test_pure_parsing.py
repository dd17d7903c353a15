"""Parsing the workflow is pure: a dry run writes nothing, deletes nothing, and needs no right to."""

import os
import shutil
import subprocess
import sys

from conftest import snakemake

#: A superuser may write everywhere, unless behind these words.
ORDINARY = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]


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
    (checkout / "results").mkdir(exist_ok=True)
    folders = [path for path in (checkout, *checkout.rglob("*")) if path.is_dir() and ".snakemake" not in path.parts]
    for folder in folders:
        folder.chmod(0o555)
    try:
        ordinary = ORDINARY if os.geteuid() == 0 and shutil.which("setpriv") else []
        command = [*ordinary, sys.executable, "-m", "snakemake", "-n"]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=300)
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


def test_a_dry_run_leaves_the_lock_and_the_temporary_files_of_a_killed_run(own):
    lock, temporary = own / ".snakemake/locks/0.output.lock", own / "results/.abcdefgh.json"
    for path in (lock, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    try:
        assert snakemake(own, "-n").returncode == 0
        assert lock.exists() and temporary.exists()
    finally:
        lock.unlink(missing_ok=True)
        temporary.unlink(missing_ok=True)
