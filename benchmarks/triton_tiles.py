"""Write resources/triton_tiles.csv: which tiles vLLM and SGLang ship for experts on which GPU.

    python benchmarks/triton_tiles.py WHEEL...

Each WHEEL is a package of one of the engines (``pip download --no-deps vllm==0.24.0``); nothing of it is installed or
run. Of the Triton versions in SGLang's, a file of the one that the package asks for is taken, else the newest one's, as
its code does. Of numbers of tokens between which a tile does not change, only the outer ones are kept.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

import pandas as pd

from gpuledger.models.time_model.triton_tiles import TABLE

#: What CUDA calls a GPU, spaces replaced: engines look for files with just that name.
DEVICES = {
    "NVIDIA_A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA_A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA_A100_80GB_PCIe": "a100-pcie-80gb",
    "NVIDIA_H100_80GB_HBM3": "h100-sxm",
    "NVIDIA_H100_PCIe": "h100-pcie",
    "NVIDIA_H20": "h20-sxm",
    "NVIDIA_H200": "h200-sxm",
    "NVIDIA_B200": "b200",
    "NVIDIA_B300_SXM6_AC": "b300",
    "NVIDIA_GB200": "gb200",
    "NVIDIA_GB300": "gb300",
    "NVIDIA_L4": "l4",
    "NVIDIA_L40S": "l40s",
    "NVIDIA_GeForce_RTX_4090": "rtx-4090",
    "NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition": "rtx-pro-6000",
}
#: The Triton that the engines' packages run with: of PyTorch 2.11.
TRITON = (3, 6, 0)
_NAME = re.compile(
    r"configs/(?:triton_(?P<triton>[0-9_]+)/)?E=(?P<experts>\d+),N=(?P<columns>\d+),device_name=(?P<gpu>[^,]+?)"
    r"(?P<fp8>,dtype=fp8_w8a8)?(?P<block>,block_shape=\[128, ?128\])?\.json$"
)
_SIZES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages")


def rows_of(wheel: Path) -> dict[tuple, tuple[bool, tuple, dict]]:
    """Return by engine, version, GPU, data type, experts and columns which Triton a file is for, and what it says."""
    engine, version = wheel.name.split("-")[:2]
    found = {}
    with zipfile.ZipFile(wheel) as package:
        for name in package.namelist():
            match = _NAME.search(name)
            if not match or match["gpu"] not in DEVICES or (match["block"] and not match["fp8"]):
                continue
            precision = ("fp8_block" if match["block"] else "fp8") if match["fp8"] else "bf16"
            key = engine, version, DEVICES[match["gpu"]], precision, int(match["experts"]), int(match["columns"])
            triton = tuple(int(part) for part in (match["triton"] or "0").split("_"))
            if key not in found or found[key][:2] < (triton == TRITON, triton):
                found[key] = triton == TRITON, triton, json.loads(package.read(name))
    return found


def main() -> None:
    lines = []
    for wheel in map(Path, sys.argv[1:]):
        for key, (_, _, sizes) in rows_of(wheel).items():
            tiles = sorted(
                (int(tokens), tuple(tile.get(name, 3) for name in _SIZES))
                for tokens, tile in sizes.items()
                if tokens.isdigit()
            )
            kept = [
                f"{tokens}:{'x'.join(map(str, tile))}"
                for place, (tokens, tile) in enumerate(tiles)
                if {near for _, near in tiles[max(place - 1, 0) : place + 2]} != {tile} or place in (0, len(tiles) - 1)
            ]
            lines.append((*key, " ".join(kept)))
    columns = ["engine", "version", "gpu", "precision", "experts", "columns", "tiles"]
    pd.DataFrame(sorted(lines), columns=columns).to_csv(TABLE, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
