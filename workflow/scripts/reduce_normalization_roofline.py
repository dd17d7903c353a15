"""Times of normalization kernels as bandwidths, shares of a copy, roofs and speedups."""

from pathlib import Path

from gpuledger import logs, normalization_roofline
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    studies = snakemake.config["studies"]
    case = open_case(snakemake.input.dataset, "normalization_roofline", snakemake.wildcards.case, studies)
    reduce_case(case, normalization_roofline.reduce_roofline).write(Path(snakemake.output.data).parent)
