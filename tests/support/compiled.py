"""What is compiled once for all test processes, and again when something changes, as CUDA sources for the CPU."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT
from filelock import FileLock

from gpuledger.record import cuda

COMPILER = shutil.which("g++") or shutil.which("c++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA kernels with")
#: Where pytest keeps what a later run may use.
KEPT = ROOT / ".pytest_cache/d/libraries"
HEADERS = Path(__file__).parent
#: A jump to another stack is what the emulation is made of; fortified, glibc takes it for a mistake.
OPTIONS = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
OPTIONS += [f"-I{HEADERS}", f"-I{cuda.SOURCES}"]


@cache
def _surroundings():
    """What every library depends on: the compiler, and all that may be included."""
    version = subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout
    found = [*HEADERS.glob("*.hpp"), *cuda.SOURCES.iterdir()]
    return b"\0".join([version, *(path.read_bytes() for path in sorted(found) if path.is_file())])


def kept(name, suffix, made_of, make, load):
    """Load a file that is made once for all test processes, and again when something changes.

    Parameters
    ----------
    name, suffix : str
        Of the kept file, which replaces that made of something else under this name.
    made_of : bytes
        All that it depends on.
    make : callable
        From an empty folder to the path of the new file there.
    load : callable
        From the path of the kept file to what is returned.
    """
    file = KEPT / f"{name}-{hashlib.sha256(made_of).hexdigest()[:16]}{suffix}"
    KEPT.mkdir(parents=True, exist_ok=True)
    with FileLock(KEPT / f"{name}.lock"):
        if not file.is_file():
            for old in KEPT.glob(f"{name}-*{suffix}"):
                old.unlink()
            with tempfile.TemporaryDirectory(dir=KEPT) as folder:
                make(Path(folder)).replace(file)
        return load(file)


def library(name, code, changed=()):
    """Compile C++ code and load it.

    Parameters
    ----------
    name : str
        Of the kept library.
    changed : iterable of (str, str), optional
        Files that are included in place of the sources of this name.
    """
    changed = dict(changed)

    def make(folder):
        for file, text in {"kernel.cpp": code, **changed}.items():
            (folder / file).write_text(text, "utf-8")
        command = [COMPILER, *OPTIONS, "-o", "kernel.so", "kernel.cpp"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        return folder / "kernel.so"

    made_of = repr((COMPILER, OPTIONS, code, changed)).encode() + _surroundings()
    return kept(name, ".so", made_of, make, lambda file: ctypes.CDLL(str(file)))
