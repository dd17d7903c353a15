"""What a file or folder turned out to be."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Found:
    """What a path is."""

    path: Path
    format: str = "unknown"  # ``unknown`` if nothing here reads it
    content: str = ""  # what is in it, in a few words
    problems: list[str] = field(default_factory=list)
    #: By study, the inputs of a case that would use the file; a value None is left for the user to fill in.
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    device: str = ""  # the GPU that the file itself names

    @property
    def studies(self) -> list[str]:
        """The studies that can use it."""
        return sorted(self.cases)


def size_of(path: Path) -> str:
    """Return the size of a file in words."""
    size = float(path.stat().st_size)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
