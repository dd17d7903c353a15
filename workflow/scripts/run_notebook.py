"""Run a study's notebook on a reduced case: figures, tables and an offline page."""

import fork_server

study = snakemake.rule.removeprefix("run_")
# What is imported where it is needed first.
late = {
    "kernel_breakdown": ("contourpy", "gpuledger.studies.kernel_breakdown.timeline.export"),
    "metric_sweep": ("fit_once", "gpuledger.studies.metric_sweep.law_map"),
}
fork_server.hand_over(
    "gpuledger.ledger.notebooks",
    "gpuledger.ledger.pages",
    "gpuledger.ledger.report",
    "gpuledger.ledger.figures",
    "gpuledger.ledger.viewer",
    "gpuledger.models.simulate",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "pyarrow.dataset",
    "tabulate",
    f"gpuledger.studies.{study}.figures",
    f"gpuledger.studies.{study}.tables",
    f"gpuledger.studies.{study}.view",
    f"gpuledger.studies.{study}.export",
    *late.get(study, ()),
    once=["draw_once"],
)

from pathlib import Path

from gpuledger import logs
from gpuledger.ledger import claims, notebooks, pages, report, viewer
from gpuledger.ledger.case_result import CaseResult

with logs.to(snakemake.log[0]):
    wildcards, output = snakemake.wildcards, snakemake.output
    folder = str(Path(output.notebook).parent)
    parameters = {"dataset": wildcards.dataset, "case": wildcards.case, "results": folder, "save_to": folder}
    notebooks.execute(snakemake.input.notebook, output.notebook, parameters)
    result = CaseResult.read(folder)
    (outcome,) = report.read_outcomes([f"{folder}/summary.json"])
    view = viewer.of_case(study, result)
    around = {
        "finding": outcome.finding or snakemake.params.title,
        "claims": report.claims_of_case(claims.load(snakemake.input.claims), outcome),
        "exports": [Path(name).name for name in output.exports],
        "view": viewer.embed(view) if view else None,
        **snakemake.params.neighbours,
    }
    templates = Path(snakemake.input.template).parent.parent
    title = f"{snakemake.params.title}: {wildcards.dataset}/{wildcards.case}"
    pages.render(output.notebook, output.page, templates, title, outcome.record, around)
