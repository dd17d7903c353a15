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
    def size(self) -> str:
        """The size of the file, in words."""
        from gpuledger.ledger.case_result import size_text

        return size_text(self.path.stat().st_size)

    @property
    def studies(self) -> list[str]:
        """The studies that can use it."""
        return sorted(self.cases)
