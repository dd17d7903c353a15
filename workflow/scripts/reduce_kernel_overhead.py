"""Slowdown and extra registers of every operator and probe, and their means."""

from pathlib import Path

from gpuledger import kernel_overhead, logs
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    case = open_case(snakemake.input.dataset, "kernel_overhead", snakemake.wildcards.case, snakemake.config["studies"])
    reduce_case(case, kernel_overhead.reduce_overhead).write(Path(snakemake.output.data).parent)
