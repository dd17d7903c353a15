"""Cycles spent on running blocks and on replacing them, and how long slots wait."""

from pathlib import Path

from gpuledger import block_scheduling, logs
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    case = open_case(snakemake.input.dataset, "block_scheduling", snakemake.wildcards.case, snakemake.config["studies"])
    reduce_case(case, block_scheduling.reduce_blocks).write(Path(snakemake.output.data).parent)
