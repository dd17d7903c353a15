"""Logs of jobs: everything in the log file, bad input in one line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuledger.errors import InputError


@contextmanager
def to(path: str | Path) -> Iterator[logging.Logger]:
    """Send this process's log to `path`; leave with status 1 and one line when the input is bad.

    Any other exception is a defect: its traceback goes to the log before it is raised again.
    """
    logging.basicConfig(
        filename=path, filemode="w", encoding="utf-8", level=logging.INFO, format="%(levelname)s %(message)s"
    )
    logging.captureWarnings(True)
    log = logging.getLogger("gpuledger")
    try:
        yield log
    except InputError as error:
        # No level and no time before it: this line is what a person reads.
        with open(path, "a", encoding="utf-8") as handle:
            handle.write(f"{error}\n")
        sys.exit(1)
    except Exception:
        log.exception("this is a defect of gpuledger, not of the input")
        raise
