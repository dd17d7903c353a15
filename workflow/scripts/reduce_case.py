"""A case's input to tidy data, a summary and a record of where the numbers come from."""

import fork_server

study = snakemake.wildcards.study
# What is imported where it is needed first, and by every case of a study: in the server once. Compiling a law's loops
# takes 6 s in a new checkout, in each of the cases that begin before one is done.
late = {"kernel_time": ("numba", "scipy.spatial"), "dmat": ("gpuledger.studies.dmat.loops",)}
late["metric_sweep"] = ("fit_once",)
fork_server.hand_over(
    "gpuledger.ledger.case_result",
    "jsonschema",
    "pyarrow.dataset",
    "pyarrow.parquet",
    f"gpuledger.studies.{study}",
    *late.get(study, ()),
    once=["predict_once"] if study in ("kernel_breakdown", "kernel_time", "serving_time") else [],
)


from importlib import import_module
from pathlib import Path

from gpuledger import logs
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Repository
from gpuledger.ledger.passes import DividedPasses, Passes, by_pass

with logs.to(snakemake.log[0]):
    wildcards, config = snakemake.wildcards, snakemake.config
    case = Repository(Path(), config).case(wildcards.dataset, study, wildcards.case)
    reduce = import_module(f"gpuledger.studies.{study}").reduce
    parts = by_pass(snakemake.input.get("parts", []))
    passes = DividedPasses(parts) if parts else Passes()
    offered = {"threads": snakemake.threads, "mirror": config.get("mirror"), "passes": passes}
    result = reduce_case(case, reduce, snakemake.params.knobs, **offered)
    result.write(Path(snakemake.output.data).parent)
