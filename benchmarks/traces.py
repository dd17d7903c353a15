"""Traces of any size for the benchmarks: starts and ends of blocks, and memory accesses, made piece by piece.

    python benchmarks/traces.py blocks|accesses GIB FOLDER

Writes ``large.bin`` and the ``dataset.yaml`` that declares it. Pieces repeat one another, later in time, so that a
trace larger than memory takes no longer than the disk does.
"""

from __future__ import annotations

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
    """Write a trace of so many GiB; return the dataset.yaml beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "large.bin", "wb") as handle:
        inputs = {"blocks": blocks, "accesses": accesses}[kind](handle, gib, folder)
    study = {"blocks": "block_scheduling", "accesses": "dmat"}[kind]
    content = {"title": "Made up for a benchmark", "kind": "recorded", "device": {"name": "none"}}
    content |= {"source": "made up", "license": "CC0-1.0"}
    content["studies"] = {study: {"large": {"trace": "large.bin"} | inputs}}
    if kind == "blocks":
        content["studies"]["warp_scheduling"] = {"large": {"trace": "large.bin"}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return folder / "dataset.yaml"


def blocks(handle, gib: float, folder: Path) -> dict:
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
