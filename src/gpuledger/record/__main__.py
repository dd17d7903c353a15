"""Record this machine's GPU as a dataset: ``python -m gpuledger.record [PART ...]``, from the checkout.

``python -m gpuledger.record [OPTION ...] -- COMMAND ...`` records a program instead.
"""

import argparse
import logging
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

if sys.version_info < (3, 11) or find_spec("numpy") is None:
    version = ".".join(map(str, sys.version_info[:2]))
    sys.exit(f"{sys.executable}: Python {version}, or without NumPy; take a Python from 3.11 on with PyTorch and NumPy")

from gpuledger.errors import InputError
from gpuledger.record import blocks, command, device, dry_run
from gpuledger.record.parts import BUDGET_S, PARTS
from gpuledger.record.profiler import Control
from gpuledger.record.recording import MOST_BYTES, OutOfTimeError, Recording
from gpuledger.record.run import record_parts

LOG = logging.getLogger("gpuledger")
CONFIG = Path("config/config.yaml")
_PROGRAMS = (
    "To record a program: %(prog)s [OPTION ...] -- COMMAND ...; its options: %(prog)s --help --. "
    "Example: gpuledger record -- python train.py"
)
#: Exit status when time ran out before everything was recorded.
UNFINISHED = 3
#: After Ctrl-C, as shells count it.
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Record; return 0 if all was recorded, 1 if a part failed, 2 for bad input, 3 without time, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="gpuledger record", description=__doc__.partition(":")[0], epilog=_PROGRAMS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--folder", type=Path, help="default: traces/<name of the GPU>")
    limit = "stop after so many, or inf (default: %(default)g); the next call resumes"
    parser.add_argument("--minutes", type=command.minutes, default=BUDGET_S / 60, help=limit)
    parser.add_argument("--missing", action="store_true", help="keep complete parts, also if tools changed")
    parser.add_argument("--shape", action="append", help=f"of the part blocks, repeatable (default: {blocks.SHAPE})")
    parser.add_argument("--dry-run", action="store_true", help="list parts, planned time and ncu's command lines only")
    parser.add_argument("--chip", default="", help="with --dry-run: plan for a chip by ncu's name, such as gh100")
    arguments = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends programs under ncu as well, as Ctrl-C does
    if "--" in arguments:
        place = arguments.index("--")
        return command.main(arguments[:place], arguments[place + 1 :])
    given = parser.parse_args(arguments)
    for name in given.parts:
        if name not in PARTS:
            parser.error(f"unknown part {name!r}; choose from {', '.join(PARTS)}; a program comes after --")
    if given.chip and not given.dry_run:
        parser.error("--chip goes with --dry-run: a recording is of this machine's GPU")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for shape in given.shape or ():
            blocks.parse_shape(shape)
        settings = _settings()
        control = Control(clock=settings.get("clock_control", "none"), cache=settings.get("cache_control", "all"))
        if given.dry_run:
            names, seconds = given.parts or tuple(PARTS), 60 * given.minutes
            print(*dry_run.describe(names, control, settings.get("python"), given.chip, seconds), sep="\n")
            return 0
        folder = given.folder or Path("traces") / device.find_device().slug
        recording = Recording(folder, seconds=60 * given.minutes)
        options = {"blocks": {"shapes": given.shape}} if given.shape else {}
        parts, python = given.parts or tuple(PARTS), settings.get("python")
        if given.missing:
            parts = [name for name in parts if name not in recording.parts]
        failed = record_parts(recording, parts, python=python, control=control, options=options)
    except FileNotFoundError as error:
        print(f"{error.filename}: the file does not exist; run this in the folder of the checkout", file=sys.stderr)
        return 1
    except InputError as error:
        print(f"gpuledger: {error}", file=sys.stderr)
        return command.BAD_INPUT
    except OutOfTimeError as late:
        print(f"{folder}: no time was left for all of {late}; the same call again resumes", file=sys.stderr)
        return UNFINISHED
    except KeyboardInterrupt:
        print("interrupted: complete parts are kept; the same call again resumes the recording", file=sys.stderr)
        return INTERRUPTED
    size = recording.size_bytes()
    print(f"{folder}: {', '.join(sorted(recording.parts)) or 'nothing'} recorded, {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        print(f"{folder} exceeds the {MOST_BYTES / 1e6:g} MB that a repository should hold", file=sys.stderr)
    if recording.parts:
        print(f"add {folder.name} to datasets in config/config.yaml to include it in the default target")
    return 1 if failed else 0


def _settings() -> dict[str, str | None]:
    """Return the key `record` of config/config.yaml; none outside a checkout or without PyYAML."""
    if not CONFIG.is_file():
        LOG.info("there is no %s: defaults apply", CONFIG)
        return {}
    try:
        import yaml
    except ImportError:
        LOG.info("%s is not read, because PyYAML is not installed: defaults apply", CONFIG)
        return {}
    return (yaml.safe_load(CONFIG.read_text("utf-8")) or {}).get("record", {})


if __name__ == "__main__":
    sys.exit(main())
