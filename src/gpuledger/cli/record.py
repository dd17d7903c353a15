"""``gpuledger record``: record a program of the user's, or this machine's GPU."""

import sys

import click


class _Everything(click.Command):
    """A command that leaves its words to another parser; click would drop the ``--`` before a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"] = args
        return []


@click.command(cls=_Everything, short_help="Record a program, or this machine's GPU.")
def record(arguments: list[str]) -> None:
    """Record ``[OPTION ...] -- COMMAND ...`` as a dataset; without a command, parts of this machine's GPU."""
    from gpuledger.record.__main__ import main

    sys.exit(main(arguments))
