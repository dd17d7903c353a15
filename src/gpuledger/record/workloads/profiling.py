"""Shared by the workloads: the device, arithmetic without TF32, and the range of launches that a profiler counts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every workload."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--device", default="cuda", help="cuda, or cpu to try the program (default: cuda)")
    return made


def prepare(device: str) -> torch.device:
    """Open the device, disable TF32, and fix the random seed."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    opened = torch.device(device)
    torch.zeros(1, device=opened)  # creates the context, or fails with a reason
    return opened


@contextmanager
def counted(device: torch.device, profiled: bool = True) -> Iterator[None]:
    """Restrict a profiler that was started with profiling off to the launches within."""
    if device.type != "cuda" or not profiled:
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    yield
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
