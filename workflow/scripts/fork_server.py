"""Run the scripts of jobs in forks of one process that has imported what they need.

Starting Python and importing pandas, matplotlib and the library takes longer than most jobs. The Snakefile starts one
server for a run on this machine; scripts hand themselves over to it:

    import fork_server

    fork_server.hand_over("gpuledger.ledger.pages")

The server imports these modules once, forks, and runs the script in the child, with the job's own arguments,
environment, standard output and error. Without a server, as on another machine of a cluster or in another Python
environment, `hand_over` does nothing, and the script goes on by itself.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module
from threading import Thread

#: Names the server's socket and its Python.
VARIABLE = "GPULEDGER_FORK_SERVER"
#: What Snakemake puts before each script imports.
PREAMBLE = ("snakemake.iocontainers", "snakemake.logging", "snakemake.io")


def start():
    """Start a server for the jobs of this process, which ends with it; keep the one that there is."""
    # Scripts of jobs are in a fork before they begin.
    at_start = os.path.join(os.path.dirname(os.path.abspath(__file__)), "at_start")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [at_start, os.getenv("PYTHONPATH")]))
    if VARIABLE in os.environ:
        return
    # The path of a socket has at most 104 bytes on some systems.
    folder = "/tmp" if len(os.fsencode(tempfile.gettempdir())) > 70 else None
    try:
        address = os.path.join(tempfile.mkdtemp(prefix="gpuledger-", dir=folder), "jobs")
    except OSError:
        return
    # One thread for linear algebra, as each job has: a fork would lose the others. Nor may pyarrow start one when it is
    # imported, for its jemalloc, which is not even its default: Python 3.12 warns of every fork beside a thread.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    server = subprocess.Popen(
        [sys.executable, __file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    if server.stdout.readline() == b"listening\n":
        os.environ[VARIABLE] = f"{address}\n{sys.executable}"
        atexit.register(_stop, server)


def _stop(server):
    server.stdin.close()
    # Waited for, what its jobs used counts as used by the run.
    with suppress(subprocess.TimeoutExpired):
        server.wait(timeout=10)


def hand_over(*modules, once=()):
    """Run this script in a fork of the server, and exit with its status; return if there is no server.

    Parameters
    ----------
    *modules : str
        What the script imports, to be imported before the fork.
    once : sequence of str
        Modules that load what only use of the others does, for later scripts: imported after the fork.
    """
    address, _, python = os.getenv(VARIABLE, "").partition("\n")
    if python != sys.executable:
        return
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
        except OSError:
            return
        socket.send_fds(server, [b"."], [0, 1, 2])
        job = {"modules": [*PREAMBLE, *modules], "once": once, "script": sys.argv[0], "folder": os.getcwd()}
        server.sendall(json.dumps(job | {"path": sys.path, "environment": dict(os.environ)}).encode() + b"\n")
        status = ""
        with suppress(ConnectionError):
            status = server.makefile().readline()
    if not status:
        print("the job was killed, perhaps because memory ran out; try with fewer --cores", file=sys.stderr)
    sys.exit(int(status or 1))


def serve(address):
    """Fork for each job, until standard input ends: the process that holds its other end is gone."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("listening", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            _reap(os.WNOHANG)
            with connection:
                _, files, _, _ = socket.recv_fds(connection, 1, 3)
                job = json.loads(connection.makefile().readline())
                _load(job["modules"])
                # Forks need not search what was loaded for garbage, which would also copy its pages.
                gc.freeze()
                if os.fork() == 0:
                    # Should the server die, scripts that wait for it end at once, not with this fork.
                    listener.close()
                    _become(job, files, connection)
                for file in files:
                    os.close(file)
            _load(job["once"])
    os.unlink(address)
    os.rmdir(os.path.dirname(address))
    _reap(0)


def _load(modules):
    for module in modules:
        # A script that needs it meets the error again, and says so in its log.
        with suppress(Exception):
            import_module(module)


def _reap(options):
    """Wait for children: with os.WNOHANG, for those that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _become(job, files, connection):
    """Run a job's script in this process, send its exit status, and end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(job["environment"])
    if not job.get("nested"):
        del os.environ[VARIABLE]
    os.chdir(job["folder"])
    sys.argv[:], sys.path[:] = [job["script"]], job["path"]
    Thread(target=_end_with, args=(connection,), daemon=True).start()
    status = 1
    try:
        runpy.run_path(job["script"], run_name="__main__")
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            status = end.code or 0
    except BaseException:
        traceback.print_exc()
    # From here on, the other end may close.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        connection.sendall(f"{status}\n".encode())
    os._exit(status)


def _end_with(connection):
    """Interrupt this process when the script that handed itself over is gone."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)
    os._exit(1)


if __name__ == "__main__":
    serve(sys.argv[1])
