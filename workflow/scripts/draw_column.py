"""On demand, a case's first figure for one column of a paper: its notebook, with another layout."""

import fork_server

fork_server.hand_over("gpuledger.ledger.notebooks", "gpuledger.ledger.figures")

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuledger import files, logs
from gpuledger.ledger import figures, notebooks

with logs.to(snakemake.log[0]), TemporaryDirectory() as folder:
    figures.for_columns = True
    results, wildcards = str(Path(snakemake.input.data).parent), snakemake.wildcards
    parameters = {"dataset": wildcards.dataset, "case": wildcards.case, "results": results, "save_to": folder}
    notebooks.execute(snakemake.input.notebook, Path(folder, "notebook.ipynb"), parameters)
    for target in map(Path, snakemake.output):
        with files.replacing(target) as temporary:
            shutil.copyfile(Path(folder, target.name), temporary)
