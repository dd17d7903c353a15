"""Run a study's notebook on a reduced case: figures, tables and an offline page."""

import json
import sys
from pathlib import Path

# papermill would import it, and numpy with it (0.2 s), to read notebooks from Hadoop.
sys.modules.setdefault("pyarrow", None)

from gpuledger import logs  # noqa: E402
from gpuledger.ledger import claims, pages, report  # noqa: E402
from gpuledger.ledger.claims import Outcome  # noqa: E402

with logs.to(snakemake.log[0]):
    wildcards, output = snakemake.wildcards, snakemake.output
    folder = str(Path(output.notebook).parent)
    parameters = {"dataset": wildcards.dataset, "case": wildcards.case, "results": folder, "save_to": folder}
    pages.execute(snakemake.input.notebook, output.notebook, parameters)
    record = json.loads(Path(snakemake.input.provenance).read_text("utf-8"))
    summary = json.loads(Path(snakemake.input.summary).read_text("utf-8"))
    outcome = Outcome(record["dataset"], record["study"], record["case"], summary, record)
    around = {
        "finding": summary.get("finding", {}).get("value", snakemake.params.title),
        "claims": report.claims_of_case(claims.load(snakemake.input.claims), outcome),
        **snakemake.params.neighbours,
    }
    templates = Path(snakemake.input.template).parent.parent
    title = f"{snakemake.params.title}: {wildcards.dataset}/{wildcards.case}"
    pages.render(output.notebook, output.page, templates, title, record, around)
