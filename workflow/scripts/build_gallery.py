"""One page with every figure, what its numbers are, and links to all that was made of them."""

import fork_server

fork_server.hand_over("gpuledger.ledger.report")


from pathlib import Path

import pandas as pd

from gpuledger import files, logs, schemas
from gpuledger.ledger import gallery, report

with logs.to(snakemake.log[0]):
    outcomes = report.read_outcomes(snakemake.input.summaries)
    card = pd.read_csv(snakemake.input.scorecard, dtype=str, keep_default_na=False)
    folder, templates = Path(snakemake.output.page).parent, Path(snakemake.input.template).parent
    topics, paper = schemas.load_yaml(snakemake.input.topics), schemas.load_yaml(snakemake.input.paper)
    page = gallery.page(outcomes, card, topics, paper, folder, templates)
    files.write_text(snakemake.output.page, page)
    # The last line of a run: where to look.
    print(f"open {snakemake.output.page}")
