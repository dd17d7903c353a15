"""The command line as a user calls it."""

import io
import json
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

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


def script(*arguments):
    """Run the console script in this process, and return its status and all that it says."""
    with (
        patch.object(sys, "argv", ["gpuledger", *map(str, arguments)]),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        warnings.catch_warnings(),
    ):
        try:
            cli.main()
        except SystemExit as end:
            return subprocess.CompletedProcess(sys.argv, end.code, out.getvalue(), err.getvalue())


def table(*arguments, **options):
    """Return a command's JSON as a table."""
    return pd.DataFrame(json.loads(run(*arguments, "--json", **options)))
