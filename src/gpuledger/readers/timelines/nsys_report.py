"""Reports of Nsight Systems (``.nsys-rep``), which an installed ``nsys`` exports. Reading needs no GPU."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.readers.timelines.table import Timeline

SUFFIXES = (".nsys-rep", ".qdrep")
EXPORT_SECONDS = 3600
BY_HAND = "nsys export --type sqlite REPORT.nsys-rep"


def read_report_of_nsys(path: Path, read: Callable[[Path], Timeline]) -> Timeline:
    """Export a report into a temporary folder, and read the database that comes of it."""
    program = shutil.which("nsys")
    if program is None:
        remedy = f"install Nsight Systems (no GPU is needed), or export it where it is installed: {BY_HAND}"
        raise InputError(path, "", "reading a report needs nsys, and none is on the PATH", remedy)
    with tempfile.TemporaryDirectory(prefix="gpuledger-") as folder:
        database = Path(folder) / f"{path.stem}.sqlite"
        command = [program, "export", "--type", "sqlite", "--output", str(database), str(path.resolve())]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        try:
            done = subprocess.run(command, timeout=EXPORT_SECONDS, errors="replace", check=False, **options)
        except subprocess.TimeoutExpired:
            problem = f"nsys took more than {EXPORT_SECONDS:,} s"
            raise InputError(path, "", problem, f"export the report by hand: {BY_HAND}") from None
        except OSError as error:
            raise InputError(path, "", f"{program} does not start ({error})", "repair its installation") from None
        if done.returncode or not database.is_file():
            said = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            problem = f"nsys could not export the report ({(said or [f'exit status {done.returncode}'])[-1][:200]})"
            remedy = f"export it with an nsys at least as new as the one that wrote it: {BY_HAND}"
            raise InputError(path, "", problem, remedy)
        try:
            return replace(read(database), file=path)
        except InputError as error:
            raise InputError(path, error.place, error.problem, error.remedy) from None
