"""Remove what a killed run left behind: its lock, if no process works in this folder any more, and temporary files.

`make` runs it first, so that the same command goes on after a crash. Snakemake alone asks for `snakemake --unlock`.
"""

import shutil
from pathlib import Path

import psutil


def works_here(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process is a snakemake in a folder; one that cannot be looked at counts as none."""
    try:
        return "snakemake" in " ".join(process.cmdline()) and Path(process.cwd()) == folder
    except psutil.Error:
        return False


def main() -> None:
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
