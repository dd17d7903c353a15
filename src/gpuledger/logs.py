"""Logs of jobs: everything in the log file, and the reason of a failure on standard error as well."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuledger.errors import REMEDIES, InputError, of_the_machine


@contextmanager
def to(path: str | Path) -> Iterator[logging.Logger]:
    """Send this process's log to `path`; on bad input or a full disk, print one line and exit with status 1.

    Any other exception is a defect of gpuledger: its traceback goes to the log, and is printed once as the process
    ends.
    """
    logging.basicConfig(
        filename=path, filemode="w", encoding="utf-8", level=logging.INFO, format="%(levelname)s %(message)s"
    )
    logging.captureWarnings(True)
    # On a full disk, what cannot be written says so once; each line of the log would add a traceback.
    logging.raiseExceptions = False
    log = logging.getLogger("gpuledger")
    try:
        yield log
    except InputError as error:
        _end(path, error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in REMEDIES:
            _end(path, of_the_machine(error))
        log.exception("this is a defect in gpuledger, not in the input")
        raise


def _end(path: str | Path, error: InputError) -> None:
    print(error, file=sys.stderr)
    with suppress(OSError), open(path, "a", encoding="utf-8") as handle:
        print(error, file=handle)
    sys.exit(1)
