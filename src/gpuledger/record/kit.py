"""A folder to carry to a machine with a GPU: ``python -m gpuledger.record.kit FOLDER [--wheels]``.

It holds what a recording needs beside Python, NumPy, PyTorch and the driver. NVRTC, which is too large to carry, comes
with PyTorch.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpuledger import files
from gpuledger.errors import InputError

#: Limit for the folder (bytes).
MOST_BYTES = 40_000_000
#: Of the package, all that the recorder imports; of the checkout, what it reads.
_PACKAGE = ("__init__.py", "errors.py", "files.py", "schemas.py", "readers", "record")
_BESIDE = ("resources/ncu_flop_metrics.csv", "resources/gpus.csv", "config/config.yaml", "docs/GPU.md", "LICENSE")
#: Packages whose wheels may be carried along, and the Pythons of PyTorch's images.
_WHEELS, _PYTHONS = ("numpy",), ("3.11", "3.12")
_SCRIPT = """#!/bin/sh
# Records the GPU, or what the arguments say (docs/GPU.md); PYTHON names a Python with PyTorch. A second call resumes,
# also on another machine, if the recorded.tgz of the first is in this folder.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
case " $* " in *" -- "*) ;; *) cd "$here" || exit 1 ;; esac # a program runs, and is recorded, where it was called
export PYTHONPATH="$here/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
[ -d traces ] || [ ! -f recorded.tgz ] || tar xzf recorded.tgz || exit 1
# Ctrl-C ends the recorder; what is complete is packed all the same.
trap : INT
{ trap : INT; "${PYTHON:-python3}" -m gpuledger.record "$@"; echo $? > "$here/.status"; } 2>&1 | tee -ia record.log
[ ! -d traces ] || { tar czf .packed traces record.log && mv -f .packed recorded.tgz; }
exit "$(cat "$here/.status")"
"""
_README = """gpuledger's recorder. It needs Linux, Python 3.11, NumPy, PyTorch with CUDA and the driver, but no network.
Look first:   ./record.sh --dry-run           parts, planned minutes, command lines (files: sha256sum -c SHA256SUMS)
Then record:  ./record.sh                     25 minutes; --minutes 9 stops earlier, and the next call resumes
A program:    ./record.sh -- python train.py  PYTHON=/path/to/python ./record.sh … takes another Python
Bring back recorded.tgz and unpack it in the checkout: it holds datasets in traces/. Without NumPy see wheels.txt.
"""


def make_kit(folder: str | Path, wheels: bool = False) -> int:
    """Make the folder anew.

    Parameters
    ----------
    folder : path
        Must not exist, or be a kit without a recording.
    wheels : bool
        Whether to download NumPy's wheels, checked by their hashes, for images that lack it.

    Raises
    ------
    InputError
        The folder is something else; wheels cannot be downloaded; the kit is larger than :data:`MOST_BYTES`; the
        library was installed from a wheel, without its sources.
    """
    folder = Path(folder)
    if not (files.ROOT / "requirements.txt").is_file():
        problem = "a kit is made of the sources, which are not here"
        raise InputError(folder, "", problem, "run make gpu-kit in a checkout")
    if folder.exists() and not (folder / "record.sh").is_file():
        raise InputError(folder, "", "it exists and is not a recording kit", "name another folder, or remove it")
    if (folder / "recorded.tgz").exists():
        raise InputError(folder, "recorded.tgz", "the kit holds a recording", "move it away, or name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    for name in _PACKAGE:
        _copy(files.ROOT / "src/gpuledger" / name, folder / "src/gpuledger" / name)
    for name in _BESIDE:
        _copy(files.ROOT / name, folder / name)
    files.write_text(folder / "README", _README)
    files.write_text(folder / "wheels.txt", _pins())
    files.write_text(folder / "record.sh", _SCRIPT)
    (folder / "record.sh").chmod(0o755)
    if wheels:
        for python in _PYTHONS:
            _download(folder, python)
    made = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    sums = "".join(f"{files.sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in made)
    files.write_text(folder / "SHA256SUMS", sums)
    size = len(sums) + sum(path.stat().st_size for path in made)
    if size > MOST_BYTES:
        problem = f"it has {size / 1e6:.0f} MB, more than {MOST_BYTES / 1e6:g}"
        raise InputError(folder, "", problem, "make it without wheels")
    return size


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def _pins() -> str:
    """Return the pins of the wheels with their hashes, as pip takes them."""
    pinned = (files.ROOT / "requirements.txt").read_text("utf-8")
    found = (re.search(rf"^{name}==(?:.*\\\n)*.*\n", pinned, re.MULTILINE) for name in _WHEELS)
    return "".join(match[0] for match in found if match)


def _download(folder: Path, python: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--platform=manylinux_2_28_x86_64", f"--python-version={python}"]
    command += ["--require-hashes", "-r", str(folder / "wheels.txt"), "--dest", str(folder / "wheels")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["pip printed nothing"])[-1]
        raise InputError(folder / "wheels.txt", f"Python {python}", said, "make the kit without wheels")


def main(arguments: list[str] | None = None) -> int:
    """Make a kit; return 0, or 1 after an error."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", action="store_true", help=f"with wheels of {', '.join(_WHEELS)}")
    given = parser.parse_args(arguments)
    try:
        size = make_kit(given.folder, given.wheels)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{given.folder}: {size / 1e6:.1f} MB; {given.folder}/README says how to record with it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
