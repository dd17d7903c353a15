"""Imported by the job server of the tests: every run of Snakemake would look for its plugins and read the studies."""

from snakemake.cli import get_argument_parser

from gpuledger.ledger.study import read_studies

get_argument_parser()
read_studies()
