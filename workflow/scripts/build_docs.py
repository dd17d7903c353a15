"""The documentation as offline pages."""

import fork_server

fork_server.hand_over("gpuledger.ledger.documentation")

from pathlib import Path

from gpuledger import files, logs
from gpuledger.ledger import documentation, report

with logs.to(snakemake.log[0]):
    outcomes = report.read_outcomes(snakemake.input.summaries)
    folder = Path(snakemake.output.index).parent
    for name, page in documentation.build(Path(), outcomes, Path(snakemake.input.template).parent).items():
        files.write_text(folder / name, page)
