"""Check that files can be made, and remove what a killed run left behind: its lock and temporary files.

`make` runs it first, so that the same command goes on after a crash. Snakemake alone asks for `snakemake --unlock`.
"""

import os
import shutil
import sys
from pathlib import Path

import psutil

from gpuledger import files
from gpuledger.errors import InputError


def works_here(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process is a snakemake in a folder; one that cannot be looked at counts as none."""
    try:
        return "snakemake" in " ".join(process.cmdline()) and Path(process.cwd()) == folder
    except psutil.Error:
        return False


def check_folders() -> None:
    """Raise an error for what Snakemake and Jupyter would meet with a traceback."""
    files.check_writable(".snakemake")
    home = Path.home() / ".cache"
    for folder in {home, Path(os.environ.get("XDG_CACHE_HOME") or home)}:
        files.check_writable(folder, "set HOME (and XDG_CACHE_HOME, if it is set) to a folder that can be written")


def main() -> None:
    try:
        check_folders()
    except InputError as error:
        sys.exit(str(error))
    folder = Path.cwd()
    locks = folder / ".snakemake/locks"
    if not locks.is_dir() or any(works_here(process, folder) for process in psutil.process_iter()):
        return
    shutil.rmtree(locks)
    # Names as gpuledger.files.replacing makes them: a dot, eight signs, the suffix of the result.
    for path in (folder / "results").rglob(".????????.*"):
        path.unlink()
    print("an earlier run was interrupted: its lock and temporary files are removed")


if __name__ == "__main__":
    main()
