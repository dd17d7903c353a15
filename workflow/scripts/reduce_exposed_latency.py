"""Exposed latency of every workload and probe, and its parts, as multiples of the original time."""

from pathlib import Path

from gpuledger import exposed_latency, logs
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    case = open_case(snakemake.input.dataset, "exposed_latency", snakemake.wildcards.case, snakemake.config["studies"])
    reduce_case(case, exposed_latency.reduce_latency).write(Path(snakemake.output.data).parent)
