"""Run and render a small notebook: imported by the fork server, it loads and compiles what forks then have."""

from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from gpuledger.ledger import notebooks, pages

record = dict.fromkeys(("dataset", "study", "case", "kind", "label", "source"), "none") | {"inputs": []}
cell = f"""
import matplotlib.pyplot as plt
import pandas as pd
from gpuledger.ledger import figures, tables
figures.use_style()
figure, axes = plt.subplots()
axes.loglog([1, 1000], [1, 1000], label="0123456789")
figures.headline(figure, "Drawn once", legend=axes)
figures.save(figure, {record}, save_to)
tables.show(pd.DataFrame({{"name": ["none"], "value": [1.5]}}))
"""
with TemporaryDirectory() as folder:
    source, notebook = Path(folder, "source.ipynb"), Path(folder, "notebook.ipynb")
    parameters = new_code_cell("save_to = None", metadata={"tags": ["parameters"]})
    cells = [new_markdown_cell("# Once\n\n$x$ and `code`"), parameters, new_code_cell(cell)]
    python = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=python), source)
    notebooks.execute(source, notebook, {"save_to": folder})
    pages.render(notebook, Path(folder, "notebook.html"), Path(__file__).parent.parent / "templates", "Once", record)
