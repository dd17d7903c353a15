"""Every published claim beside what each dataset reproduces of it."""

from pathlib import Path

from gpuledger import claims, files, logs, report, tables
from gpuledger.datasets import Dataset
from gpuledger.errors import InputError

with logs.to(snakemake.log[0]) as log:
    datasets = []
    for file in snakemake.input.datasets:
        try:
            datasets.append(Dataset.load(file, snakemake.config["studies"]))
        except InputError as error:
            # Its own jobs fail with this line; it has nothing to say about claims.
            log.warning("%s", error)
    outcomes = report.read_outcomes(snakemake.input.summaries)
    by_study = {Path(file).stem: claims.load(file) for file in snakemake.input.claims}
    card = claims.scorecard(by_study, outcomes, datasets)
    csv = Path(snakemake.output.csv)
    tables.write(card, None, csv.parent, caption="Published claims and what is reproduced.", name=csv.stem)
    titles = {name: study["title"] for name, study in snakemake.config["studies"].items()}
    page = report.scorecard_page(card, titles, Path(snakemake.input.template).parent)
    files.write_text(snakemake.output.page, page)
