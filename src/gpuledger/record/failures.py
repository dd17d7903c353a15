"""Error messages of nvidia-smi, ncu, PyTorch and CUDA, and their remedies."""

import re

_PERMISSION = (
    "as an administrator load the kernel module with NVreg_RestrictProfilingToAdminUsers=0, run as root, or start the "
    "container with --cap-add=SYS_ADMIN (docs/GPU.md)"
)

#: (pattern, problem, remedy); the first match counts. tests/record/test_record_failures.py has real outputs.
KNOWN = tuple(
    (re.compile(pattern, re.IGNORECASE), problem, remedy)
    for pattern, problem, remedy in (
        (
            r"ERR_NVGPUCTRPERM|does not have permission to (access NVIDIA GPU Performance Counters|profile)",
            "reading the GPU's counters is not permitted (ERR_NVGPUCTRPERM)",
            _PERMISSION,
        ),
        (
            r"driver resource was unavailable|no other tool \(like DCGM\)",
            "another tool holds the GPU's counters (DCGM, a second profiler, a compositor)",
            "stop it, or pause it with: dcgmi profstart/--pause, and record again",
        ),
        (
            r"Failed to initialize the profiler: LibraryNotLoaded",
            "ncu cannot load the driver's profiling library (LibraryNotLoaded)",
            "use an ncu that fits the driver; in a container or sandbox let the driver's libraries and counters in",
        ),
        (
            r"Cannot lock GPU clock frequencies|--lock-gpu-clocks=tdp",
            "the GPU does not let ncu lock its clocks",
            "set record.clock_control: none in config/config.yaml",
        ),
        (
            r"Cuda driver is not compatible with Nsight Compute",
            "ncu and the driver are incompatible",
            "update the driver, or use the ncu of the CUDA version that nvidia-smi shows",
        ),
        (
            r"Failed to open/create lock file (?P<what>\S+?)\.? ",
            "ncu cannot write its lock file {what}",
            "remove it, which another user may have left, or set TMPDIR to a folder of your own",
        ),
        (
            r"Driver/library version mismatch",
            "the driver's module and its library have different versions",
            "reboot, or load the kernel module again, after a driver update",
        ),
        (
            r"out of memory|OutOfMemory|CUBLAS_STATUS_ALLOC_FAILED",
            "the GPU's memory is full",
            "end other programs on the GPU (nvidia-smi lists them), or choose a GPU with more memory",
        ),
        (
            r"all CUDA-capable devices are busy|device\(s\) is/are busy|devices? (is|are) busy or unavailable",
            "another process has exclusive use of the GPU",
            "wait for it or end it (nvidia-smi lists it), or choose another GPU with CUDA_VISIBLE_DEVICES",
        ),
        (
            r"no kernel image is available|is not compatible with the current PyTorch installation",
            "this PyTorch has no kernels for this GPU",
            "install a PyTorch whose CUDA version supports the GPU",
        ),
        (
            r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
            "the driver is too old for this PyTorch",
            "update the driver, or install a PyTorch of an older CUDA version",
        ),
        (
            r"Torch not compiled with CUDA enabled|built without CUDA",
            "PyTorch is installed without CUDA",
            "install a CUDA build of PyTorch (pip install torch on Linux), or name its Python in record.python",
        ),
        (
            r"No module named '?torch'?",
            "PyTorch is not installed",
            "pip install -e '.[gpu]', or name a Python that has it in record.python of config/config.yaml",
        ),
        (
            r"NVRTC (is not installed|cannot be (loaded|used))",
            "NVRTC, CUDA's run-time compiler, is not installed",
            "use a PyTorch with CUDA, or install the CUDA toolkit or the package nvidia-cuda-nvrtc",
        ),
        (
            r"No module named '?(?P<what>[\w.]+)'?",
            "the Python of the workloads has no {what}",
            "install it there: docs/GPU.md lists the requirements",
        ),
        (
            r"Failed to find metric\s+(?P<what>\S+)",
            "ncu does not know the metric {what}",
            "use a newer ncu: its list of metrics does not match the GPU",
        ),
        (
            r"couldn'?t communicate with the NVIDIA driver|Driver could not be loaded|stub libcuda\.so|"
            r"Found no NVIDIA driver|libcuda\.so(\.1)?: cannot open|libcuda cannot be loaded|"
            r"Failed to load Nsight Compute CUDA modules",
            "there is no working NVIDIA driver",
            "install and load the driver, and check it with nvidia-smi",
        ),
        (
            r"No devices were found|no CUDA-capable device is detected|No CUDA GPUs are available",
            "the driver finds no GPU",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES",
        ),
        (
            r"Failed to initialize NVML",
            "the driver's management library does not start",
            "check nvidia-smi; in a container start again with --gpus",
        ),
        (
            r"Failed to prepare kernel for profiling|Unknown Error on device|==ERROR== (LaunchFailed|UnknownError)",
            "ncu cannot profile on this GPU",
            "use the ncu that comes with the CUDA version of PyTorch (an ncu for CUDA 13 does not profile CUDA 12)",
        ),
        (
            r"does not exist or is not an executable",
            "ncu cannot start the workload's Python",
            "correct record.python in config/config.yaml",
        ),
        (
            r"unrecogni[sz]ed option '?(?P<what>[\w-]+)|the argument for option '?(?P<option>[\w-]+)'? is invalid",
            "this ncu does not support the option {what}",
            "update Nsight Compute, or correct `record` in config/config.yaml",
        ),
        (
            r"No kernels were profiled",
            "no kernels were profiled",
            "check that the workload runs on the GPU, and that ncu supports its CUDA version",
        ),
    )
)


def explain(output: str) -> tuple[str, str] | None:
    """Return problem and remedy for the output of a tool; ``None`` if the error is unknown.

    Parameters
    ----------
    output : str
        Everything that the tools printed.
    """
    for pattern, problem, remedy in KNOWN:
        if match := pattern.search(output):
            groups = match.groupdict()
            what = groups.get("what") or groups.get("option") or ""
            return problem.format(what=what.strip("'")), remedy
    return None


def denies_counters(problem: str) -> bool:
    """Whether ncu will not count anything else here either, going by a problem of :data:`KNOWN`."""
    words = "(ERR_NVGPUCTRPERM)", "(LibraryNotLoaded)", "holds the GPU's counters", "are incompatible", "its lock file"
    return any(word in problem for word in words)


def last_words(output: str) -> str:
    """Return the most informative line of an unknown error: the last one with ``error``, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() and "returned an error code" not in line]
    return (errors or lines or ["it printed nothing"])[-1][:300]
