"""``gpuledger inspect``: what is this, and what can be done with it?"""

import sys
from pathlib import Path

import click

from gpuledger.cli.terminal import json_option, print_json, say
from gpuledger.errors import InputError


@click.command(
    short_help="What files are, and which studies can use them.",
    epilog="Example: gpuledger inspect report.csv trace/ --json",
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def inspect(paths: tuple[Path, ...], as_json: bool) -> None:
    """Say what files and folders (PATHS) are, what is wrong with them, and which studies can use them.

    The exit status is 1 if something is wrong with one of them, or nothing here reads it; 2 if one cannot be opened.
    """
    from gpuledger.cli.recognise import recognise

    found, errors = [], []
    for path in paths:
        try:
            found += recognise(path)
        except InputError as error:
            errors.append(error)
    if as_json:
        keys = ("path", "format", "studies", "problems")
        print_json([{key: getattr(entry, key) for key in keys} for entry in found])
    else:
        for entry in found:
            _print(entry)
    for error in errors[:-1]:
        say(f"gpuledger: {error}", err=True)
    if errors:
        raise errors[-1]
    sys.exit(1 if any(entry.problems for entry in found) else 0)


def _print(entry) -> None:
    from gpuledger.cli.new import as_yaml

    say(str(entry.path), bold=True)
    say(f"  {entry.format}" + (f": {entry.content}" if entry.content else ""))
    for problem in entry.problems:
        say(f"  problem: {' '.join(problem.split())}")
    if entry.cases and entry.format != "dataset of the ledger":
        say("  in a dataset.yaml:")
        studies = {study: {"mine": inputs} for study, inputs in sorted(entry.cases.items())}
        say("\n".join(f"    {line}" for line in as_yaml({"studies": studies}).splitlines()))
    elif entry.cases:
        say(f"  studies: {', '.join(entry.studies)}")
