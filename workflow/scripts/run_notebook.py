"""Run a study's notebook on a reduced case: figures, tables and an offline page."""

import json
from pathlib import Path

from gpuledger import logs
from gpuledger.ledger import pages

with logs.to(snakemake.log[0]):
    wildcards, output = snakemake.wildcards, snakemake.output
    folder = str(Path(output.notebook).parent)
    parameters = {"dataset": wildcards.dataset, "case": wildcards.case, "results": folder, "save_to": folder}
    pages.execute(snakemake.input.notebook, output.notebook, parameters)
    record = json.loads(Path(snakemake.input.provenance).read_text("utf-8"))
    templates = Path(snakemake.input.template).parent.parent
    title = f"{snakemake.params.title}: {wildcards.dataset}/{wildcards.case}"
    pages.render(output.notebook, output.page, templates, title, record["label"], record.get("warnings", []))
