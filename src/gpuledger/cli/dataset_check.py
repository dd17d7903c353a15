"""Check a dataset: its cases, the files that they lack, and the files that no case names."""

import re
from pathlib import Path

from gpuledger.ledger.datasets import Case, Dataset
from gpuledger.ledger.download.entries import expected
from gpuledger.ledger.download.names import matches
from gpuledger.readers.gpus import gpu_named

#: Models and GPUs may be files or names of what the ledger has; files have a suffix.
_FILE = re.compile(r"\.(csv|json|gz|zip|bin|db|dmat|hatchet|log|parquet|pkl|sqlite|toml|trace|txt|xlsx|ncu-rep)$")
_SHOWN = 5


def check_dataset(folder: Path) -> tuple[str, dict[str, dict], list[str]]:
    """Compare a dataset's folder with its ``dataset.yaml``.

    Returns
    -------
    content : str
        Its title, and how many cases have all their files.
    cases : dict of str to dict
        The inputs of the first case by study.
    problems : list of str
        Cases that lack files and, if there are any, files that no case names; cases about another GPU.
    """
    folder = folder.absolute()
    dataset = Dataset.load(folder / "dataset.yaml")
    cases, problems, others, named, whole = {}, [], [], set(), 0
    for study, name in dataset.cases():
        case = dataset.case(study, name)
        cases.setdefault(study, dict(case.inputs))
        wanted = [name for name, kind in case.files() if kind != "file" or _FILE.search(name)]
        absent = [name for name in wanted if not (folder / name).exists()]
        named |= {path for path in case.paths() if path.exists()}
        whole += not absent
        others += _another_gpu(case)
        if absent:
            more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
            problems.append(f"{study}/{name}: {', '.join(absent[:_SHOWN])}{more} is missing")
    content = f"{dataset.content['title']}; {whole} of {len(dataset.cases())} cases have all their files"
    # Files that no case names may be those that a case misses, under another name.
    unnamed = _unnamed(folder, named) if problems else []
    if problems and not unnamed and not _brought(dataset, named):
        return f"{content}; they are fetched or made when a result is asked for", cases, []
    return content, cases, problems + unnamed + others


def _another_gpu(case: Case) -> list[str]:
    """Say that a case is about another GPU than the dataset was recorded on."""
    device, named = case.dataset.content.get("device", {}).get("name", ""), case.inputs.get("gpu")
    device = gpu_named(device)
    gpu = gpu_named(named) if isinstance(named, str) else None
    if device is None or gpu is None or device.title == gpu.title:
        return []
    return [f"{case.study}/{case.name}: gpu is {named}, but the device above is {device.title}; correct one of them"]


def _brought(dataset: Dataset, named: set[Path]) -> bool:
    """Whether any of a dataset's files can have been fetched or made, so that others are missing."""
    if dataset.content["kind"] not in ("downloaded", "simulated"):
        return True
    entries = dataset.content.get("download", [])
    if dataset.made_here or any(entry.get("unpack") for entry in entries):
        return bool(named)
    wanted = [name for entry in entries for name in expected(entry, dataset.folder)]
    return any(matches(path.relative_to(dataset.folder).as_posix(), name) for path in named for name in wanted)


def _unnamed(folder: Path, named: set[Path]) -> list[str]:
    """List what lies in the folder beside the files of cases, by the first folder that holds none of them."""
    used = {parent for path in named for parent in (path, *path.parents)}
    found, waiting = [], [folder]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.name.startswith(".") or path.name in ("dataset.yaml", "recording.json") or path in named:
                continue
            if path in used and path.is_dir():
                waiting.append(path)
            elif not path.is_dir() or any(path.iterdir()):
                found.append(path.relative_to(folder).as_posix() + ("/" if path.is_dir() else ""))
    if not found:
        return []
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [f"no case names {', '.join(sorted(found)[:_SHOWN])}{more}"]
