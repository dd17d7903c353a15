"""NVRTC, CUDA's run-time compiler, through ctypes: that of PyTorch's wheels, of the CUDA toolkit, or of a package."""

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path

from gpuledger.errors import InputError

#: Folders of wheels below site-packages, and of PyTorch's own libraries.
_PLACES = ("nvidia/cu*/lib", "nvidia/cuda_nvrtc/lib", "torch/lib")
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
_LIBRARY = re.compile(r"libnvrtc(?:-[0-9a-f]+)?\.so(?:\.\d+)*")
_BUILTINS = re.compile(_LIBRARY.pattern.replace("nvrtc", "nvrtc-builtins", 1))
_REMEDY = "install PyTorch with CUDA, the CUDA toolkit, or the package nvidia-cuda-nvrtc for the driver's CUDA version"


def find_library() -> Path | None:
    """Return NVRTC's library: the one of this Python's packages, else that of the newest CUDA toolkit."""
    return next(_candidates(), None)


def _candidates() -> Iterator[Path]:
    packages = [Path(folder, place) for folder in dict.fromkeys(sys.path) if folder for place in _PLACES]
    packages.append(Path(sys.base_prefix, "lib"))  # of conda's packages
    toolkits = [Path(os.environ[name], "lib64") for name in _TOOLKITS if os.environ.get(name)]
    toolkits += sorted(Path("/").glob("usr/local/cuda*/lib64"), reverse=True)
    for pattern in (*packages, *toolkits, Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu")):
        root = Path(pattern.anchor or ".")
        for folder in sorted(root.glob(str(pattern.relative_to(pattern.anchor))), reverse=True):
            yield from sorted(path for path in folder.glob("*nvrtc*") if _LIBRARY.fullmatch(path.name))


@cache
def _load() -> ctypes.CDLL:
    problem = "NVRTC is not installed"
    for path in _candidates():
        try:
            # The wheels of NVRTC 13.0 open these by name, without a path to them (NVIDIA/cuda-python, pull 792).
            for beside in path.parent.glob("*nvrtc-builtins*"):
                if _BUILTINS.fullmatch(beside.name):
                    ctypes.CDLL(str(beside))
            return ctypes.CDLL(str(path))
        except OSError as error:
            problem = f"NVRTC cannot be loaded ({error})"
    raise InputError("GPU", "", problem, _REMEDY)


def version() -> str:
    """Return the version of NVRTC: ``13.0``."""
    major, minor = c_int(), c_int()
    _load().nvrtcVersion(byref(major), byref(minor))
    return f"{major.value}.{minor.value}"


def compile_source(code: str, architecture: str, name: str, options: Sequence[str]) -> tuple[bytes, str]:
    """Compile CUDA C++; needs no GPU.

    Parameters
    ----------
    code : str
        Kernels as ``extern "C" __global__``; NVRTC has no host headers.
    architecture : str
        ``sm_90`` for a cubin, ``compute_90`` for PTX.
    name : str
        File name for error messages.

    Returns
    -------
    image : bytes
        Cubin or PTX.
    log : str
        Warnings of the compiler.

    Raises
    ------
    InputError
        The first compiler error with its line; an architecture that this NVRTC does not support; no NVRTC.
    """
    library, program = _load(), c_void_p()
    arguments = (c_char_p(code.encode()), c_char_p(name.encode()), c_int(0), None, None)
    if library.nvrtcCreateProgram(byref(program), *arguments):
        raise InputError(name, "", "NVRTC cannot be used", _REMEDY)
    try:
        texts = [option.encode() for option in (*options, f"--gpu-architecture={architecture}")]
        failed = library.nvrtcCompileProgram(program, c_int(len(texts)), (c_char_p * len(texts))(*texts))
        log = _read(library, program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace")
        if not failed:
            return _read(library, program, "PTX" if architecture.startswith("compute_") else "CUBIN"), log
    finally:
        library.nvrtcDestroyProgram(byref(program))
    found = re.search(r"\((\d+)\): (?:catastrophic )?error\s*:?\s*(.+)", log)
    place = f"line {found[1]}" if found else f"architecture {architecture}"
    problem = found[2] if found else next((line for line in log.splitlines() if line.strip()), f"status {failed}")
    raise InputError(name, place, f"does not compile: {problem}", "fix the source or the architecture")


def _read(library: ctypes.CDLL, program: c_void_p, what: str) -> bytes:
    size = c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, text)
    return text.raw
