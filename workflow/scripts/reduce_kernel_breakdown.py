"""Every kernel of every phase with its traffic and predicted time, and how they change with context and batch."""

from functools import partial
from pathlib import Path

from gpuledger import kernel_breakdown, logs
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    studies = snakemake.config["studies"]
    case = open_case(snakemake.input.dataset, "kernel_breakdown", snakemake.wildcards.case, studies)
    reduce = partial(kernel_breakdown.reduce_breakdown, mirror=snakemake.config["mirror"])
    reduce_case(case, reduce).write(Path(snakemake.output.data).parent)
