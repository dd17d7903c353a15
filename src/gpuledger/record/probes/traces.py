"""Write launches with probes as trace directories in the format of Neutrino's driver."""

import hashlib
import time
from pathlib import Path

import numpy as np

from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.process_log import ProcessLog, write_process_log
from gpuledger.readers.neutrino.records import saved
from gpuledger.record.probes.launch import TOOLS, Launched

#: The trace layout that states the level of a section.
VERSION = "V3"
#: The driver names a launch by the seconds since its start; each directory holds one launch.
STEM = "0.500000"
#: Command of the process in event.log.
ORIGIN = "recorded by gpuledger.record.probes "


def write_directory(
    folder: str | Path, launched: Launched, tool: str = "", *, trace: str = "bin", benchmark: bool = False
) -> Path:
    """Write a trace directory: ``event.log``, ``tensor.trace``, ``kernel/`` and ``result/``.

    Parameters
    ----------
    tool : str
        Tool whose records are written; default: the launch's first.
    trace : {"bin", "dmat", ""}
        ``bin`` writes all records; ``dmat`` the number of accesses per page and clock, a thirtieth of the size; with
        an empty string only the logs are written.
    benchmark : bool
        Whether the log also states the time of the kernel without a probe.

    Returns
    -------
    Path
        The trace, or the folder if there is none.
    """
    folder, work, name = Path(folder), launched.workload, tool or next(iter(launched.records))
    records, tool_of = launched.records[name], TOOLS[name]
    result = folder / "result" / f"{STEM}.{trace}" if trace else folder
    if trace == "bin":
        sections = [(tool_of.level, records)]
        neutrino.write_trace(
            result,
            version=VERSION,
            grid=work.grid,
            block=work.block,
            shared_bytes=launched.dynamic_bytes,
            sections=sections,
        )
    elif trace == "dmat":
        neutrino.write_dmat(result, *count_accesses(records))
    now, unit_bytes = time.time_ns() // 256 * 256, records.shape[2] * records.dtype.itemsize
    about = {"function": work.function, "location": f"{work.source}:1", "time_ns": now - 1}
    tensors = [
        {"tensor": t.name, "address": launched.addresses[t.name], "bytes": t.size_bytes, "shape": t.shape, **about}
        for t in work.tensors
    ]
    neutrino.write_tensor_trace(folder / "tensor.trace", tensors)
    launch = {f"{part}_ms": getattr(launched, f"{part}_ms") for part in ("prologue", "kernel", "epilogue")}
    launch |= {"time_ns": now, "kernel": work.function, "shared_bytes": launched.dynamic_bytes}
    launch["counted_bytes"] = unit_bytes if tool_of.cap is None else None
    if result.is_file():
        launch |= {"file": f"result/{result.name}", "file_bytes": result.stat().st_size}
    if benchmark:
        launch |= {"original_ms": launched.original_ms, "impact": launched.kernel_ms / launched.original_ms}
    log = neutrino.log_of_launch(work, tool_of.level, records.shape[1], unit_bytes, tensors, ORIGIN, **launch)
    neutrino.write_event_log(folder / "event.log", log, VERSION)
    kernel = folder / "kernel" / f"0_{hashlib.sha1(work.function.encode()).hexdigest()}"
    builds = {"probed": launched.probed, "pruned": launched.plain}
    write_process_log(kernel / "process.log", ProcessLog(work.function, builds, objdump="compiled by NVRTC"))
    size = None if tool_of.cap is None else tool_of.cap * tool_of.dtype.itemsize
    parameters = len(work.tensors) + len(work.scalars)
    neutrino.write_kernel_info(
        kernel / "kernel.info", neutrino.KernelInfo(work.function, parameters, ((tool_of.level, size),))
    )
    return result


def count_accesses(records: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return clock, page and number of accesses for each pair of clock and page in records of the probe dmat."""
    records = records[saved(records)]
    pairs = np.empty((records.size, 2), np.uint64)
    pairs[:, 0] = records["clock"]
    pairs[:, 1] = records["addr"] // np.uint64(neutrino.PAGE_BYTES) * np.uint64(neutrino.PAGE_BYTES)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    pairs = pairs[order]
    first = np.flatnonzero(np.r_[len(pairs) > 0, (pairs[1:] != pairs[:-1]).any(axis=1)][: len(pairs)])
    counts = np.diff(np.r_[first, len(pairs)]).astype(np.uint32)
    return pairs[first, 0], pairs[first, 1], counts
