"""Run a Python program under torch.profiler: ``python timeline_of.py OUTPUT.json PROGRAM [ARGUMENT…]``.

PROGRAM is a script, ``-m MODULE`` or ``-c CODE``. The timeline is written when it ends in any way, also by Ctrl-C. This
file is run by its path, in the program's own Python, of which it needs PyTorch alone.
"""

import inspect
import os
import runpy
import sys


def main(output: str, *program: str) -> None:
    """Run the program and write its kernels, operators and their shapes as torch.profiler's JSON."""
    from torch import profiler

    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    # Newer versions warn without it, although there is only one cycle whose events could be cleared.
    more = {"acc_events": True} if "acc_events" in inspect.signature(profiler.profile).parameters else {}
    recorder = profiler.profile(activities=activities, record_shapes=True, **more)
    recorder.start()
    try:
        run(*program)
    finally:
        recorder.stop()
        partial = f"{output}.partial"
        recorder.export_chrome_trace(partial)
        os.replace(partial, output)


def run(first: str, *rest: str) -> None:
    """Run a program as Python itself does."""
    if first == "-m":
        sys.argv, sys.path[0] = list(rest), os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
