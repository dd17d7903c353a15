"""Counters over sizes to the law of every series, and what in them is wrong."""

from pathlib import Path

from gpuledger import logs, metric_sweep
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    case = open_case(snakemake.input.dataset, "metric_sweep", snakemake.wildcards.case, snakemake.config["studies"])
    reduce_case(case, metric_sweep.reduce_sweep).write(Path(snakemake.output.data).parent)
