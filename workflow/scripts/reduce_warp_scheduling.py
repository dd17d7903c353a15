"""Percentiles of the warps' elapsed times, how long the tail is, and where the speed of blocks rises."""

from pathlib import Path

from gpuledger import logs, warp_scheduling
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    case = open_case(snakemake.input.dataset, "warp_scheduling", snakemake.wildcards.case, snakemake.config["studies"])
    reduce_case(case, warp_scheduling.reduce_warps).write(Path(snakemake.output.data).parent)
