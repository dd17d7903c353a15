"""Whether a recording was made on the declared GPU."""

from collections.abc import Iterable

from gpuledger.readers.gpus import Gpu, gpu_named

#: Architecture by compute capability.
_ARCHITECTURES = {
    **{"7.0": "volta", "7.2": "volta", "7.5": "turing", "8.0": "ampere", "8.6": "ampere", "8.7": "ampere"},
    **{"8.9": "ada", "9.0": "hopper"},
    **dict.fromkeys(("10.0", "10.3", "11.0", "12.0", "12.1"), "blackwell"),
}


def another_gpu(gpu: Gpu, names: Iterable[str], capabilities: Iterable[str] = ()) -> str:
    """Say on which GPU a recording was made if that was not *gpu*; empty if it may have been.

    Parameters
    ----------
    gpu : Gpu
        The one that is said to have recorded it.
    names, capabilities : iterable of str
        What the recording says: names that the driver gives, compute capabilities such as ``9.0``. Those that no data
        sheet knows say nothing.
    """
    for name in names:
        found = gpu_named(name)
        if found and found.title != gpu.title:
            return name
    for capability in capabilities:
        architecture = _ARCHITECTURES.get(capability)
        if architecture and gpu.architecture in _ARCHITECTURES.values() and architecture != gpu.architecture:
            return f"a GPU of compute capability {capability}"
    return ""
