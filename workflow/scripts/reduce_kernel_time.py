"""Measured times of kernels beside predicted ones, with fitted constants and errors on the held-back half."""

from pathlib import Path

from gpuledger import kernel_time, logs
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    case = open_case(snakemake.input.dataset, "kernel_time", snakemake.wildcards.case, snakemake.config["studies"])
    reduce_case(case, kernel_time.reduce_kernel_time).write(Path(snakemake.output.data).parent)
