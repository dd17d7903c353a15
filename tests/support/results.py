"""What a run made, to be compared with what another made."""

import hashlib

#: Where and when a run took place is in its logs, and in the metadata of an executed notebook.
OF_THE_RUN = (".log", ".ipynb", ".reason")


def digests(folder):
    """By path, the SHA-256 of every result of a checkout."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((folder / "results").rglob("*"))
        if file.is_file() and file.suffix not in OF_THE_RUN
    }
