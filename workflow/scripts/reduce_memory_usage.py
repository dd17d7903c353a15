"""Memory of every model and probe, in bytes and as a share of the original use."""

from pathlib import Path

from gpuledger import logs, memory_usage
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    case = open_case(snakemake.input.dataset, "memory_usage", snakemake.wildcards.case, snakemake.config["studies"])
    reduce_case(case, memory_usage.reduce_memory).write(Path(snakemake.output.data).parent)
