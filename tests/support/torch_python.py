"""A Python with PyTorch, for tests that run programs in it."""

import importlib.util
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE_S

#: Runs command lines, each in a fork of this process, which has imported PyTorch: that takes longer than most of them.
SERVER = """
import json, os, runpy, sys, traceback
import torch
for line in sys.stdin:
    kind, what, *arguments = json.loads(line)["arguments"]
    child = os.fork()
    if not child:
        for number, file in zip((0, 1, 2), json.loads(line)["files"]):
            os.dup2(os.open(file, os.O_RDWR), number)
        sys.argv = [kind, *arguments]
        status = 0
        try:
            if kind == "-c":
                exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
            else:
                runpy.run_module(what, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def python():
    """A Python with PyTorch: of GPULEDGER_TORCH_PYTHON, or the one in use."""
    given = os.environ.get("GPULEDGER_TORCH_PYTHON")
    if not given and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not here: set GPULEDGER_TORCH_PYTHON to a Python that has it")
    return given or sys.executable


@pytest.fixture(scope="module")
def run(python, tmp_path_factory):
    """Run ``-c CODE ARGUMENTS`` or ``-m MODULE ARGUMENTS`` with this checkout's library."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    out, err = (tmp_path_factory.mktemp("torch") / name for name in ("out", "err"))
    command = [python, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:

        def run_forked(*arguments):
            assert arguments[0] in ("-c", "-m")
            out.write_text("")
            err.write_text("")
            server.stdin.write(json.dumps({"arguments": arguments, "files": [os.devnull, str(out), str(err)]}) + "\n")
            server.stdin.flush()
            if not select.select([server.stdout], [], [], PATIENCE_S)[0]:
                server.kill()
                pytest.fail(f"{arguments} takes more than {PATIENCE_S} s: {err.read_text('utf-8')}")
            status = int(server.stdout.readline())
            return subprocess.CompletedProcess(arguments, status, out.read_text("utf-8"), err.read_text("utf-8"))

        yield run_forked
        server.stdin.close()
