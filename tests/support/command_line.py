"""The command line as a user calls it."""

import json

import pandas as pd
from click.testing import CliRunner

from gpuledger.cli import __main__ as cli


def run(*arguments, status=0, columns=None):
    """Return what a command prints; *columns*: of the terminal."""
    env = {"COLUMNS": str(columns)} if columns else None
    done = CliRunner().invoke(cli.commands, list(map(str, arguments)), env=env)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout


def table(*arguments, **options):
    """Return a command's JSON as a table."""
    return pd.DataFrame(json.loads(run(*arguments, "--json", **options)))
