"""Draw the cases of a study side by side, whatever datasets they are of."""

import fork_server

fork_server.hand_over("gpuledger.ledger.case_result", "gpuledger.ledger.figures")

from importlib import import_module
from inspect import signature
from pathlib import Path

from gpuledger import logs
from gpuledger.errors import InputError
from gpuledger.ledger import across, claims, figures
from gpuledger.ledger.case_result import CaseResult

with logs.to(snakemake.log[0]):
    figures.use_style()
    study = snakemake.wildcards.study
    results = [CaseResult.read(Path(summary).parent) for summary in snakemake.input.summaries]
    across_cases, options, claimed = import_module(f"gpuledger.studies.{study}.across"), {}, []
    if not results:
        problem = f"none of the datasets has a case of {study}"
        raise InputError("config/config.yaml", "datasets", problem, "add one that has")
    chosen = getattr(across_cases, "choose", list)(results)
    if "published" in signature(across_cases.draw).parameters:
        listed = claims.load(snakemake.input.claims)["claims"]
        options["published"] = {claim["quantity"]: claim["value"] for claim in listed}
        claimed = [{"dataset": f"claims of {study}", "kind": "published", "label": "published"}]
    figure = across_cases.draw(chosen, **options) if chosen else across.without_cases()
    record = across.record_of(
        study, [*(result.provenance for result in chosen or results), *(claimed if chosen else ())]
    )
    figures.save(figure, record, Path(snakemake.output.figure_pdf).parent)
