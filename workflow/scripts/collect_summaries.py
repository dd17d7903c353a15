"""One table a study: every quantity of every case."""

import fork_server

fork_server.hand_over("gpuledger.ledger.report", "gpuledger.ledger.tables")


from pathlib import Path

from gpuledger import logs
from gpuledger.ledger import report, tables
from gpuledger.ledger.case_result import brief
from gpuledger.ledger.study import read_studies

with logs.to(snakemake.log[0]):
    outcomes = report.read_outcomes(snakemake.params.summaries)
    csv = Path(snakemake.output.csv)
    title = read_studies()[csv.stem].title
    caption = f"{title}: every quantity of every case."
    people = report.ledger(outcomes, brief)
    tables.write(report.ledger(outcomes), None, csv.parent, caption=caption, name=csv.stem, people=people)
