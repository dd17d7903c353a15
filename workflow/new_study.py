"""Make the files of a new study from workflow/templates/study: ``python workflow/new_study.py NAME``."""

import re
import sys
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined

ROOT = Path(__file__).resolve().parents[1]
PLACES = {
    "study.yaml": "src/gpuledger/studies/{name}/study.yaml",
    "__init__.py": "src/gpuledger/studies/{name}/__init__.py",
    "reduction.py": "src/gpuledger/studies/{name}/reduction.py",
    "figures.py": "src/gpuledger/studies/{name}/figures.py",
    "notebook.py": "notebooks/{name}.ipynb",
    "claims.yaml": "resources/claims/{name}.yaml",
    "test.py": "tests/studies/test_{name}.py",
}


def notebook_of(text):
    """Cells written as ``# %%`` blocks, as a notebook."""
    cells = []
    for head, body in re.findall(r"^# %%([^\n]*)\n(.*?)(?=^# %%|\Z)", text, re.MULTILINE | re.DOTALL):
        if "[markdown]" in head:
            cells.append(nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            metadata = {"tags": ["parameters"]} if "parameters" in head else {}
            cells.append(nbformat.v4.new_code_cell(body.strip(), metadata=metadata))
    for number, cell in enumerate(cells):
        cell.id = str(number)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def main(name):
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        sys.exit(f"{name!r} cannot name a study: use lower-case letters, digits and _, such as launch_latency")
    targets = {template: ROOT / place.format(name=name) for template, place in PLACES.items()}
    there = [path for path in targets.values() if path.exists()]
    if there:
        sys.exit(f"{there[0].relative_to(ROOT)} is there already: choose another name, or remove it")
    templates = Environment(
        loader=FileSystemLoader(ROOT / "workflow/templates/study"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    for template, path in targets.items():
        text = templates.get_template(f"{template}.j2").render(name=name, title=name.replace("_", " ").capitalize())
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".ipynb":
            nbformat.write(notebook_of(text), path)
        else:
            path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the study's name: make study NAME=launch_latency")
    main(sys.argv[1])
