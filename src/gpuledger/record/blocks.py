"""Block scheduling on this GPU, A/B: filling a tensor by many short blocks, by persistent blocks, and by memset.

The first two are timed and traced, memset is timed. From the gaps in the first trace, the study ``block_scheduling``
predicts what a kernel without gaps would save; the other two show what is saved (OSDI 2025, Sec. 4.6).
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.record import cuda
from gpuledger.record.parts import Recorded
from gpuledger.record.probes.launch import Runner
from gpuledger.record.probes.traces import STEM, write_directory
from gpuledger.record.probes.workloads import fill, fill_persistent

LOG = logging.getLogger("gpuledger")
#: Rows and columns of the tensor in the paper.
SHAPE = "4096x4096"
#: A block fills this much.
BLOCK_BYTES = 1024
#: A trace takes 64 bytes for each block; this keeps it below 16 MB.
MOST_BYTES = 2**28


def parse_shape(text: str) -> tuple[int, int]:
    """Return rows and columns of an fp16 tensor from ``4096x4096``."""
    match = re.fullmatch(r"([1-9]\d{0,9})x([1-9]\d{0,9})", text)
    if not match:
        raise InputError("gpuledger.record", "--shape", f"{text!r} is not a shape", "write ROWSxCOLUMNS: 4096x4096")
    rows, columns = int(match[1]), int(match[2])
    if rows * columns % (BLOCK_BYTES // 2):
        problem, remedy = f"{text} has {rows * columns} elements", f"choose a multiple of {BLOCK_BYTES // 2} elements"
        raise InputError("gpuledger.record", "--shape", problem, remedy)
    if 2 * rows * columns > MOST_BYTES:
        problem = f"{text} in fp16 exceeds {MOST_BYTES >> 20} MiB"
        raise InputError("gpuledger.record", "--shape", problem, "choose a smaller shape, to keep traces small")
    return rows, columns


def record_blocks(folder: str | Path, shapes: Sequence[str] = (SHAPE,)) -> Recorded:
    """Time and trace the kernels at each shape on the first GPU.

    Parameters
    ----------
    shapes : sequence of str
        See :func:`parse_shape`.
    """
    runner, cases = Runner(cuda.open_device()), {}
    for rows, columns in map(parse_shape, shapes):
        LOG.info("blocks: %d×%d", rows, columns)
        cases |= record_shape(Path(folder), runner, rows, columns)
    return Recorded({"block_scheduling": cases})


def record_shape(folder: Path, runner: Runner, rows: int, columns: int) -> dict[str, dict]:
    """Return the cases of one shape: the kernel with the times of its variants, and the persistent kernel."""
    plain = fill(rows, columns)
    persistent = fill_persistent(runner.resident_blocks(plain), rows, columns)
    times = {
        "original": runner.time_ns(plain),
        "persistent": runner.time_ns(persistent),
        "memset": runner.memset_ns(plain.tensors[0].size_bytes),
        "empty": runner.empty_ns(),
    }
    name = f"zeros_{rows}" if rows == columns else f"zeros_{rows}x{columns}"
    what, cases = f"zeros of ({rows}, {columns}), float16", {}
    for case, workload, kernel in (
        (name, plain, what),
        (f"{name}_persistent", persistent, f"{what}, by a persistent kernel"),
    ):
        launched = runner.run(workload, "block_sched")
        write_directory(folder / "block_scheduling" / case, launched)
        cases[case] = {
            "trace": f"block_scheduling/{case}/result/{STEM}.bin",
            "kernel": kernel,
            "device": runner.device.name,
            "clock_mhz": round(launched.clock_mhz, 1),
        }
    cases[name]["times_ns"] = {variant: round(time) for variant, time in times.items()}
    return cases
