"""What the tests of downloads fetch from: a web server on this machine, and wheels."""

import http.server
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(server: http.server.HTTPServer) -> Iterator[http.server.HTTPServer]:
    """Let a server answer until the block ends."""
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def write_wheel(path: Path, members: Mapping[str, bytes | str], metadata: str = "") -> Path:
    """Write a wheel of the package and version in its name; `metadata` are more lines of its METADATA."""
    name, version, *_ = path.name.split("-")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, body in members.items():
            archive.writestr(member, body)
        folder = f"{name}-{version}.dist-info"
        head = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        archive.writestr(f"{folder}/METADATA", head + metadata)
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{folder}/RECORD", "")
    return path
