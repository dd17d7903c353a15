"""Every published claim beside what each dataset reproduces of it."""

import fork_server

fork_server.hand_over("gpuledger.ledger.report", "gpuledger.ledger.tables")


from pathlib import Path

from gpuledger import files, logs
from gpuledger.ledger import claims, report, tables
from gpuledger.ledger.study import read_studies

with logs.to(snakemake.log[0]):
    outcomes = report.read_outcomes(snakemake.params.summaries)
    by_study = {Path(file).stem: claims.load(file) for file in snakemake.input.claims}
    card = claims.scorecard(by_study, outcomes, snakemake.params.downloads)
    csv = Path(snakemake.output.csv)
    about = {"caption": "Published claims and what is reproduced.", "people": claims.for_people(card)}
    tables.write(card, None, csv.parent, name=csv.stem, **about)
    titles = {name: study.title for name, study in read_studies().items()}
    page = report.scorecard_page(card, titles, Path(snakemake.input.template).parent)
    files.write_text(snakemake.output.page, page)
