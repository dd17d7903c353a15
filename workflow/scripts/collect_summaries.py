"""One table per study: as CSV every quantity of every case, for people the finding of each."""

import fork_server

fork_server.hand_over("gpuledger.ledger.report", "gpuledger.ledger.tables")


from pathlib import Path

from gpuledger import logs
from gpuledger.ledger import report, tables
from gpuledger.ledger.study import read_studies

with logs.to(snakemake.log[0]):
    outcomes = report.read_outcomes(snakemake.params.summaries)
    csv = Path(snakemake.output.csv)
    title = read_studies()[csv.stem].title
    about = {"caption": f"{title}: what was found in each case.", "people": report.findings(outcomes)}
    tables.write(report.ledger(outcomes), None, csv.parent, name=csv.stem, **about)
