"""Accesses to global memory by page and clock, and when each tensor is touched."""

from functools import partial
from pathlib import Path

from gpuledger import dmat, logs
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    case = open_case(snakemake.input.dataset, "dmat", snakemake.wildcards.case, snakemake.config["studies"])
    reduce = partial(dmat.reduce_dmat, threads=snakemake.threads)
    reduce_case(case, reduce).write(Path(snakemake.output.data).parent)
