"""Prepare timelines of nsys and torch.profiler for a recording: check them, remove what is private, compress."""

import gzip
import json
import logging
import re
import shutil
import sqlite3
from contextlib import closing, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.files import replacing

LOG = logging.getLogger("gpuledger")
#: What to do about a program that fails, and about one that had too little time.
FIX_PROGRAM = "run it without gpuledger and fix its error"
GIVE_TIME = "give it more time, or fewer steps to do"
NO_IMPORTER = "nsys recorded a timeline but cannot export it: this installation has no importer that works"
#: Tables of an nsys export that say something about kernels. Others hold environment, commands, paths and host names.
_KEPT = re.compile(r"CUPTI_ACTIVITY_KIND_\w+|StringIds|NVTX_EVENTS|TARGET_INFO_GPU|ENUM_\w+|sqlite_\w+")
#: Whether a timeline has kernels, and whether it has a range of a name: in torch.profiler's JSON, in nsys's database.
_KERNEL = rb'"cat":\s*"kernel"'
_KERNELS = "SELECT 1 FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
_RANGE = rb'"cat":\s*"user_annotation",\s*"name":\s*'
_RANGES = "SELECT 1 FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id WHERE ? IN (text, value)"


def take(made: Path, folder: Path, name: str, status: int, ended: str, within: str) -> dict[str, str]:
    """Move a timeline into the folder of a recording.

    Parameters
    ----------
    made : path
        What the tool was to write: ``.json`` of torch.profiler, ``.sqlite`` of nsys.
    name : str
        The program's.
    status, ended : int and str
        With which it ended, and how; see :func:`gpuledger.record.command.run_whole`.
    within : str
        Range whose launches were counted; empty: all.

    Returns
    -------
    dict
        The case of ``kernel_breakdown``, whose step is the range if the timeline has it.
    """
    by_torch = made.suffix == ".json"
    tool = "torch.profiler" if by_torch else "nsys"
    if not made.is_file():
        problem, remedy = f"no timeline was written (status {status})", FIX_PROGRAM
        if not by_torch:
            remedy += "; if nsys refused an option, install a newer one"
        if ended != "by itself":
            problem, remedy = f"no timeline was written before the program was ended {ended}", GIVE_TIME
        if made.with_suffix(".qdstrm").is_file():
            problem, remedy = (
                NO_IMPORTER,
                "install Nsight Systems; the nsys of Nsight Compute and of some systems lacks it",
            )
        raise InputError(name, tool, problem, remedy)
    if not _finds(made, _KERNEL, _KERNELS):
        problem = "the timeline has no kernels"
        remedy = "check that the program launches kernels on the GPU" + (", in its own process" if by_torch else "")
        if ended != "by itself":
            problem, remedy = f"{problem}: the program was ended {ended}", GIVE_TIME
        elif status:
            problem, remedy = f"{problem}: the program ended with status {status}", FIX_PROGRAM
        raise InputError(name, tool, problem, remedy)
    case = {"timeline": f"kernel_breakdown/{name}{made.suffix}{'.gz' if by_torch else ''}"}
    if within and _finds(made, _RANGE + re.escape(json.dumps(within, ensure_ascii=False).encode()), _RANGES, within):
        case["step"] = within
    elif within:
        remedy = f"; write torch.profiler.record_function({within!r}) around it" if by_torch else ""
        LOG.warning("the timeline has no range %r%s", within, remedy)
    with replacing(folder / case["timeline"]) as partial:
        if by_torch:  # of five steps of an 8B model 15 MB, compressed 1 MB
            with made.open("rb") as plain, gzip.open(partial, "wb", 6) as packed:
                shutil.copyfileobj(plain, packed)
        else:
            _remove_private(made)
            shutil.copyfile(made, partial)
    return case


def _finds(made: Path, pattern: bytes, query: str, *values: str) -> bool:
    """Whether torch.profiler's JSON, which can have gigabytes, or nsys's database has something."""
    if made.suffix == ".json":
        with made.open("rb") as handle, mmap(handle.fileno(), 0, access=ACCESS_READ) as text:
            return re.search(pattern, text) is not None
    with closing(sqlite3.connect(made)) as database, suppress(sqlite3.OperationalError):  # no such table
        return database.execute(query, values).fetchone() is not None
    return False


def _remove_private(made: Path) -> None:
    with closing(sqlite3.connect(made)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for table in (name for (name,) in tables if not _KEPT.fullmatch(name)):
            database.execute(f'DROP TABLE "{table}"')
        database.commit()
        database.execute("VACUUM")
