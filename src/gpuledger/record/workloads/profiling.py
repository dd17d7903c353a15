"""What the workloads share: the device, arithmetic without TF32, and the stretch of launches that a profiler counts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with what every workload takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--device", default="cuda", help="cuda, or cpu to try the program (default: cuda)")
    return made


def prepare(device: str) -> torch.device:
    """Open the device; fp32 stays fp32 (no TF32), random numbers are the same every time."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    opened = torch.device(device)
    torch.zeros(1, device=opened)  # creates the context, or says why there is none
    return opened


@contextmanager
def counted(device: torch.device) -> Iterator[None]:
    """Let a profiler that does not count from the start count exactly the launches within."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    yield
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
