"""Record a part in its own process: ``python -m gpuledger.record.subprocess_part MODULE FUNCTION FOLDER ANSWER
OPTIONS``."""

import json
import logging
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path

from gpuledger.errors import InputError


def main(module: str, function: str, folder: str, answer: str, options: str) -> None:
    """Call the part's function with the folder and options (JSON); write its result or its error as JSON."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends a program under ncu as well
    try:
        found = {"recorded": vars(getattr(import_module(module), function)(Path(folder), **json.loads(options)))}
    except InputError as error:
        found = {"input_error": [error.file, error.place, error.problem, error.remedy]}
    except KeyboardInterrupt:  # the waiting process was interrupted as well, and says so
        sys.exit(130)
    except Exception:  # reported by the waiting process
        found = {"traceback": traceback.format_exc()}
    Path(answer).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
