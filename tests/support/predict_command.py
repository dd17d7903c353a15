"""``gpuledger predict`` as a user calls it."""

import json

import pandas as pd
from click.testing import CliRunner

from gpuledger.cli import __main__ as cli


def run(*arguments, status=0):
    """Return what the command prints."""
    done = CliRunner().invoke(cli.commands, ["predict", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout


def predict(*arguments):
    """Return its JSON as a table."""
    return pd.DataFrame(json.loads(run(*arguments, "--json")))
