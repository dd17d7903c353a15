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
    titles = {name: study.title for name, study in read_studies().items()}
    about = {"caption": "Published claims by verdict.", "people": report.verdicts_by_study(card, titles)}
    tables.write(card, None, csv.parent, name=csv.stem, **about)
    for study, title in titles.items():
        table = report.claims_table(card[card["study"] == study])
        about = {"caption": f"{title}: published claims and what is reproduced.", "name": study}
        about["label"] = f"scorecard-{study}"
        tables.write(table, None, csv.with_suffix(""), **about)
    # Counts first, then every claim: readers of these files have no filter.
    for suffix, heading in (("md", "\n## {}\n\n"), ("tex", "")):
        counts, parts = csv.with_suffix(f".{suffix}"), csv.with_suffix("")
        rows = [
            heading.format(title) + (parts / f"{study}.{suffix}").read_text("utf-8") for study, title in titles.items()
        ]
        files.write_text(counts, counts.read_text("utf-8") + "".join(rows))
    # Of datasets that are left out there are tracked summaries, but no pages.
    made = {Path(file).parent.relative_to("results").as_posix() for file in snakemake.input.summaries}
    page = report.scorecard_page(card, titles, Path(snakemake.input.template).parent, made)
    files.write_text(snakemake.output.page, page)
