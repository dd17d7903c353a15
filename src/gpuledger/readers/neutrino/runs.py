"""Logs of many runs, in folders whose names say what was run."""

from collections.abc import Collection, Iterable
from pathlib import Path

from gpuledger.errors import InputError


def logs_by_run(
    folder: Path, files: Iterable[Path], logs: Collection[str], layout: str
) -> dict[tuple[str, ...], list[Path]]:
    """Group logs by the folders that name their run.

    Parameters
    ----------
    files : iterable of Path
        The files in `folder`, at any depth.
    logs : collection of str
        Names of the files that count as logs.
    layout : str
        What the upper levels of folders are: ``<group>/<operator>/<probe>``. Below them logs may lie at any depth.
    """
    levels = layout.count("/") + 1
    found: dict[tuple[str, ...], list[Path]] = {}
    for path in files:
        if path.name in logs:
            parts = path.relative_to(folder).parts
            if len(parts) <= levels:
                raise InputError(path, "", f"is not in a folder {layout}", "move it to the folder of its run")
            found.setdefault(parts[:levels], []).append(path)
    if not found:
        raise InputError(folder, "", f"holds no {' or '.join(logs)}", f"give a folder with the layout {layout}")
    return found
