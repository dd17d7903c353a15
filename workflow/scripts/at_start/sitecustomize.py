"""Run a job's script in a fork from its first line on: Python imports this before it if `fork_server.start` says so.

In a process of its own, a script imports Snakemake for its arguments before it can hand itself over. That takes ten
times as long as all of this, which imports no more than is built into Python.
"""

import os
import sys


def _hand_over(script):
    import _json
    import _signal
    import _socket
    import _struct

    address, _, python = os.environ.get("GPULEDGER_FORK_SERVER", "").partition("\n")
    with open(script, "rb") as file:
        # Other scripts want a process of their own.
        if python != sys.executable or b"\nfork_server.hand_over(" not in file.read():
            return
    server = _socket.socket(_socket.AF_UNIX)
    try:
        server.connect(address)
    except OSError:
        return
    # As `fork_server.hand_over` sends it; the script hands itself over once more, with what it imports.
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _struct.pack("3i", 0, 1, 2))
    server.sendmsg([b"."], [rights])
    text = _json.encode_basestring_ascii
    path = ",".join(map(text, [os.path.dirname(script), *sys.path]))
    environment = ",".join(f"{text(name)}:{text(value)}" for name, value in os.environ.items())
    job = f'"script":{text(script)},"folder":{text(os.getcwd())},"path":[{path}],"environment":{{{environment}}}'
    server.sendall(f'{{"modules":[],"once":[],"nested":true,{job}}}\n'.encode())
    # An interrupt ends this process, and with it the fork.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    try:
        status = server.recv(16)
    except ConnectionError:
        status = b""
    if not status:
        os.write(2, b"the job was killed\n")
    os._exit(int(status or 1))


if len(sys.orig_argv) == 2 and f"{os.sep}.snakemake{os.sep}scripts{os.sep}" in sys.orig_argv[1]:
    _hand_over(sys.orig_argv[1])
