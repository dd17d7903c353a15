"""Run a study's notebook in this process, on a result that a test has made, and make what its page shows beside it."""

import ast
from unittest.mock import patch

import nbformat
from conftest import ROOT
from IPython.display import Markdown

from gpuledger.ledger import viewer
from gpuledger.ledger.study import read_studies


def run_notebook(study, result, save_to=None):
    """Run every cell; return the notebook's variables and what its cells show, as text.

    ``open_case`` returns `result`; the figures and tables go to `save_to`.
    """
    variables, shown = {}, []
    notebook = nbformat.read(ROOT / f"notebooks/{study}.ipynb", as_version=4)
    with patch("gpuledger.studies.open_case", return_value=result):
        for cell in notebook.cells:
            if cell.cell_type != "code":
                continue
            body = ast.parse(cell.source).body
            last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), study, "exec"), variables)
            if "parameters" in cell.metadata.get("tags", []):
                variables["save_to"] = save_to
            if last is not None:
                value = eval(compile(ast.Expression(last.value), study, "eval"), variables)
                shown.append(value.data if isinstance(value, Markdown) else str(value))
    # The page's own viewer, as the job that runs a notebook does.
    name = next(name for name in read_studies() if study.startswith(name))
    if view := viewer.of_case(name, result):
        viewer.embed(view)
    return variables, shown
