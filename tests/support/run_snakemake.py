"""Snakemake with the arguments in RUN_SNAKEMAKE, in a fork of a job server that its own jobs use too."""

import json
import os
import sys

given = json.loads(os.environ.pop("RUN_SNAKEMAKE"))
sys.argv[1:] = given["arguments"]
sys.path[0] = os.getcwd()
os.environ["GPULEDGER_FORK_SERVER"] = given["server"]

from snakemake.cli import main  # noqa: E402

main()
