"""Shared by the workloads: the device, arithmetic without TF32, and the range of launches that a profiler counts."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def parser(description: str, point: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every workload; `point` explains the values of ``--point``."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--device", default="cuda", help="cuda, or cpu to try the program (default: cuda)")
    made.add_argument("--seconds", type=float, default=float("inf"), help="leave out points that would take longer")
    made.add_argument("--point", action="append", required=True, help=point)
    return made


def prepare(device: str) -> torch.device:
    """Open the device, disable TF32, and fix the random seed."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    opened = torch.device(device)
    torch.zeros(1, device=opened)  # creates the context, or fails with a reason
    return opened


@contextmanager
def counted(device: torch.device, point: str) -> Iterator[None]:
    """Restrict a profiler that was started with profiling off to the launches within, in an NVTX range.

    The range is started and ended rather than pushed and popped, because autograd launches the kernels of a backward
    pass from a thread of its own.
    """
    if device.type != "cuda" or not point:
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    number = torch.cuda.nvtx.range_start(point)
    yield
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_end(number)
    torch.cuda.cudart().cudaProfilerStop()
