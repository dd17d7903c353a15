"""The console script ``gpuledger``."""

import os
import re
import sys
import warnings

import click

from gpuledger import __version__
from gpuledger.cli.attention import attention
from gpuledger.cli.diagnose import diagnose
from gpuledger.cli.gemm import gemm
from gpuledger.cli.gpus import gpus
from gpuledger.cli.inspect import inspect
from gpuledger.cli.new import new_dataset, new_study
from gpuledger.cli.predict import predict
from gpuledger.cli.profile import profile
from gpuledger.cli.record import record
from gpuledger.cli.served import served
from gpuledger.cli.train import train
from gpuledger.errors import REMEDIES, InputError, InputWarning, of_the_machine

BAD_INPUT = 2

EPILOG = """\b
Examples:
  gpuledger inspect report.csv trace/
  gpuledger profile report.csv --gpu h100-sxm
  gpuledger predict Llama-3.1-70B --gpu h200-sxm --tp 8
  gpuledger gemm 64 4096 14336 --precision fp8

Exit status: 0 fine, 1 something was found wrong in what was asked about, 2 bad input.

\b
Completion of commands in bash (likewise zsh, fish):
  eval "$(_GPULEDGER_COMPLETE=bash_source gpuledger)"
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpuledger")
def commands() -> None:
    """What GPU kernels did, from the files that profilers and probes leave behind."""


READING = (inspect, diagnose, profile, served)
PREDICTING = (predict, train, gemm, attention, gpus)
for command in (*READING, *PREDICTING, record, new_dataset, new_study):
    commands.add_command(command)


def main() -> None:
    """Run a command; bad input is one line on standard error and status 2."""
    # What is unusual about the input goes to standard error, in one line.
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", InputWarning)
    try:
        sys.exit(commands.main(prog_name="gpuledger", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(BAD_INPUT)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "gpuledger"
        problem = " ".join(error.format_message().split())
        problem = re.sub(r"\.? \(?Did you mean (.*?)\)?$", r", did you mean \1", problem).rstrip(".?")
        print(f"{command}: {problem[:1].lower()}{problem[1:]}; see {command} --help", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except click.Abort:
        sys.exit(130)  # Ctrl-C
    except InputError as error:
        print(f"gpuledger: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        print(f"gpuledger: {of_the_machine(error)}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, InputWarning):
        print(f"gpuledger: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
