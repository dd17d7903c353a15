"""Theory, prediction and measurement of every kernel of a case."""

from pathlib import Path

from gpuledger import flop_reconciliation, logs
from gpuledger.datasets import open_case
from gpuledger.reduced import reduce_case

with logs.to(snakemake.log[0]):
    study, config = "flop_reconciliation", snakemake.config
    case = open_case(snakemake.input.dataset, study, snakemake.wildcards.case, config["studies"])
    reduce_case(case, flop_reconciliation.reduce).write(Path(snakemake.output.data).parent)
