"""The document with every figure and table; it fails where a table would not compile or not fit."""

from pathlib import Path

from gpuledger import files, logs
from gpuledger.errors import InputError
from gpuledger.ledger import latex, paper, report

with logs.to(snakemake.log[0]):
    for table in snakemake.input.tables:
        if found := latex.lint(Path(table).read_text("utf-8")):
            raise InputError(table, "", "; ".join(found), "shorten headers or texts of the study's table")
    document = Path(snakemake.output.document)
    files.write_text(document, paper.document(report.read_outcomes(snakemake.input.summaries), document.parent))
