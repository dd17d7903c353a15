"""A part of one pass over a case's trace."""

import fork_server

fork_server.hand_over("gpuledger.ledger.case_result", f"gpuledger.studies.{snakemake.wildcards.study}")


from importlib import import_module
from pathlib import Path

from gpuledger import logs
from gpuledger.ledger.case_result import reduce_part
from gpuledger.ledger.datasets import Repository
from gpuledger.ledger.passes import PartOfPass, by_pass

with logs.to(snakemake.log[0]):
    wildcards = snakemake.wildcards
    case = Repository(Path(), snakemake.config).case(wildcards.dataset, wildcards.study, wildcards.case)
    reduce = import_module(f"gpuledger.studies.{wildcards.study}").reduce
    wanted = PartOfPass(wildcards.step, int(wildcards.part), int(wildcards.parts), Path(snakemake.output.part))
    parts = by_pass(snakemake.input.get("parts", []))
    reduce_part(case, reduce, snakemake.params.knobs, parts, wanted, threads=snakemake.threads)
