"""Inputs of any size for the benchmarks: blocks, memory accesses, output of Nsight Compute, made piece by piece.

    python benchmarks/made_inputs.py blocks|accesses|ncu GIB FOLDER

Traces are ``large.bin`` beside the ``dataset.yaml`` that declares it. Pieces repeat one another, later in time, so that
a trace larger than memory takes no longer than the disk does.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from gpuledger.readers import neutrino
from gpuledger.studies.block_scheduling.experiment import make_blocks

WARPS, PIECE_BLOCKS = 8, 2**20
PAGES, THREADS, RECORDS = 2048, 256, 256
BASE, MAX_CLOCK = 0x7F0000000000, 272_000


def make(kind: str, gib: float, folder: Path) -> Path:
    """Write an input of so many GiB; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "ncu":
        return report(int(gib * 2**30), folder / "report.csv")
    with open(folder / "large.bin", "wb") as handle:
        inputs = {"trace": "large.bin"} | (blocks(handle, gib) if kind == "blocks" else accesses(handle, gib, folder))
    studies = ("block_scheduling", "warp_scheduling") if kind == "blocks" else ("dmat",)
    content = {"title": "Made up for a benchmark", "kind": "recorded", "device": {"name": "none"}}
    content |= {"source": "made up", "license": "CC0-1.0", "studies": {study: {"large": inputs} for study in studies}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return folder / "large.bin"


def report(size: int, path: Path) -> Path:
    """Write the raw page of launches with 40 metrics; 50,000 of them are 28 MiB."""
    columns = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
    columns += ["Grid Size", "Device", "CC", *(f"sm__metric_{number}.sum" for number in range(40))]
    values = np.random.default_rng(0).integers(0, 10**7, (1000, 40))
    rows = [",".join(f'"{value:,}"' for value in row) for row in values.tolist()]
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(",".join(f'"{name}"' for name in columns) + "\n" + '"",' * 11 + ",".join(['"inst"'] * 40) + "\n")
        launch = 0
        while handle.tell() < size:
            for row in rows:
                about = (
                    f'"{launch}","9","app","h","void kernel_{launch % 60}<float>(float *, int)","1","7","(256, 1, 1)"'
                )
                handle.write(f'{about},"({launch % 512 + 1}, 1, 1)","0","9.0",{row}\n')
                launch += 1
    return path


def blocks(handle, gib: float) -> dict:
    """Write blocks of 8 warps, 16 to each of 132 SMs, whose times differ by a tenth."""
    number = int(gib * 2**30) // (16 * WARPS)
    made, _ = make_blocks(0.1, min(number, PIECE_BLOCKS), 132, 16, 1985, (200, 400), seed=0)
    records = np.repeat(made.first[:, None], WARPS, axis=1)
    # Warps of a block start and end within a few cycles of one another.
    random = np.random.default_rng(0)
    records["start"][:, 1:] += random.integers(0, 9, records[:, 1:].shape, dtype=np.uint64)
    records["elapsed"][:, 1:] -= random.integers(9, 20, records[:, 1:].shape, dtype=np.uint32)
    handle.write(np.array([number, 1, 1, 32 * WARPS, 1, 1, 0, 1], "<u4").tobytes())
    handle.write(np.array([16 | 32 << 32, 48], "<u8").tobytes())
    last = np.uint64(made.end.max())
    for at in range(0, number, len(records)):
        records[: number - at].tofile(handle)
        records["start"] += last
    return {}


def accesses(handle, gib: float, folder: Path) -> dict:
    """Write accesses of threads that each walk over a part of four tensors, 2,048 pages in all."""
    number = int(gib * 2**30) // (16 * RECORDS * THREADS)
    rng = np.random.default_rng(0)
    order = np.arange(RECORDS, dtype=np.uint64)
    handle.write(np.array([number, 1, 1, THREADS, 1, 1, 0, 1], "<u4").tobytes())
    handle.write(np.array([RECORDS * 16 | 1 << 32, 48], "<u8").tobytes())
    records = np.empty((THREADS, RECORDS, 2), "<u8")
    lane = np.arange(THREADS, dtype=np.uint64)[:, None] * np.uint64(16)
    for block in range(number):
        if block < 64:
            wait = rng.integers(0, MAX_CLOCK // RECORDS, (THREADS, RECORDS), np.uint64)
            records[..., 0] = order * np.uint64(MAX_CLOCK // RECORDS) + wait
        page = (order % 4) * (PAGES // 4) + (order + np.uint64(7 * block)) % (PAGES // 4)
        records[..., 1] = np.uint64(BASE) + page * np.uint64(65536) + lane
        records.tofile(handle)
    size = PAGES // 4 * 65536
    tensors = [(name, BASE + i * size, size, (PAGES // 4, 32768)) for i, name in enumerate("abcd")]
    columns = ["tensor", "address", "bytes", "shape"]
    neutrino.write_tensor_trace(folder / "tensor.trace", pd.DataFrame(tensors, columns=columns))
    return {"tensor_trace": "tensor.trace"}


if __name__ == "__main__":
    print(make(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])))
