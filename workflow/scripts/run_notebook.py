"""Run a study's notebook on a reduced case: figure, table and an offline page."""

import json
from pathlib import Path

from gpuledger import logs, pages

with logs.to(snakemake.log[0]):
    wildcards, output = snakemake.wildcards, snakemake.output
    parameters = {
        "dataset": wildcards.dataset,
        "case": wildcards.case,
        "folder": str(Path(output.notebook).parent),
    }
    pages.execute(snakemake.input.notebook, output.notebook, parameters)
    label = json.loads(Path(snakemake.input.provenance).read_text("utf-8"))["label"]
    templates = Path(snakemake.input.template).parent.parent
    title = snakemake.config["studies"][wildcards.study]["title"]
    pages.render(output.notebook, output.page, templates, f"{title}: {wildcards.dataset}/{wildcards.case}", label)
