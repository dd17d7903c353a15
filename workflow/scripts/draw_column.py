"""On demand, a case's first figure for one column of a paper: its notebook's code, with another layout."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import nbformat

from gpuledger import files, logs

with logs.to(snakemake.log[0]), TemporaryDirectory() as folder:
    matplotlib.use("agg")
    from gpuledger.ledger import figures

    figures.for_columns = True
    wildcards, scope = snakemake.wildcards, {"display": lambda *shown: None}
    results = str(Path(snakemake.input.data).parent)
    parameters = {"dataset": wildcards.dataset, "case": wildcards.case, "results": results, "save_to": folder}
    for cell in nbformat.read(snakemake.input.notebook, as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, scope)
            if "parameters" in cell.metadata.get("tags", []):
                scope.update(parameters)
    for target in map(Path, snakemake.output):
        with files.replacing(target) as temporary:
            shutil.copyfile(Path(folder) / target.name, temporary)
