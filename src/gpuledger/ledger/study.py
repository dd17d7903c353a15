"""Studies, as the ``study.yaml`` in each folder of ``gpuledger/studies`` declares them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpuledger import schemas

FOLDER = Path(str(resources.files("gpuledger"))) / "studies"


@dataclass(frozen=True)
class Study:
    """One question, as its ``study.yaml`` states it."""

    name: str  # the folder's name
    #: Shown in the gallery and on pages.
    title: str
    question: str
    #: JSON schema of a case's declaration in ``dataset.yaml``. Strings of format ``file`` or ``folder`` are paths
    #: relative to the dataset's folder.
    case: Mapping[str, Any]
    #: By a key of the case, the notebook of cases that have it. All others have ``notebooks/<study>.ipynb``.
    notebooks: Mapping[str, str] = field(default_factory=dict)
    #: Names of the files that the notebook writes; the first are ``figure`` and ``table``.
    figures: Sequence[str] = ("figure",)
    tables: Sequence[str] = ("table",)
    exports: Sequence[str] = ()  # further files that the notebook writes, with their suffixes
    #: Files of the checkout that the reduction reads besides the case's own, as glob patterns.
    resources: Sequence[str] = ()
    #: Folders and modules below ``gpuledger`` that the study imports, besides its own folder, ``ledger`` and the ground
    #: floor: its results are made again when one of them changes. Without it, any module counts.
    code: Sequence[str] = ()
    threads: int = 1  # the most threads that its reduction uses
    #: For inputs that may be larger than memory: ``input``, the key of the case that names the ``.bin``, and
    #: ``passes``, the names of the reduction's passes over it (see :mod:`gpuledger.ledger.passes`).
    scatter: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schema = {"type": "object", "additionalProperties": False, **self.case}
        object.__setattr__(self, "schema", schema)

    def notebook(self, inputs: Mapping[str, Any]) -> str:
        """Name of the notebook for a case with these inputs, without its suffix."""
        return next((name for key, name in self.notebooks.items() if key in inputs), self.name)

    @property
    def across(self) -> bool:
        """Whether its module ``across.py`` draws cases of all datasets side by side."""
        return (FOLDER / self.name / "across.py").exists()


def read_study(file: str | Path) -> Study:
    """Read one ``study.yaml``."""
    content = schemas.load_yaml(file)
    schemas.check(content, schemas.packaged(__package__, "study"), file)
    return Study(Path(file).parent.name, **content)


@cache
def read_studies() -> Mapping[str, Study]:
    """Read every study, by name in alphabetical order; raises as :func:`read_study` does."""
    return MappingProxyType({file.parent.name: read_study(file) for file in sorted(FOLDER.glob("*/study.yaml"))})
