"""Notebooks: executed with papermill, in this process."""

import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import matplotlib as mpl
import papermill
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbformat import NotebookNode
from nbformat.v4 import new_output
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines
from traitlets import Type
from traitlets.config import Config

from gpuledger import files
from gpuledger.errors import InputError

log = logging.getLogger(__name__)

#: How a tag begins that says of which case the text of a cell is: ``only:published/gpt2``, or with ``*``.
ONLY = "only:"


def execute(notebook: str | Path, output: str | Path, parameters: Mapping[str, Any]) -> None:
    """Execute a notebook with papermill and write it to `output`, without the text about other cases than its own.

    Its cells run in this process: a kernel would be another process that imports everything once more. What they write
    to standard error goes to the log, as it names folders of this machine.

    Parameters
    ----------
    parameters : mapping
        What the notebook's first code cell sets; ``dataset`` and ``case`` also say of which case it is.

    Raises
    ------
    InputError
        A cell met bad input; with its one line.
    papermill.PapermillExecutionError
        A cell failed for another reason.
    """
    with files.replacing(output) as temporary:
        try:
            papermill.execute_notebook(
                str(notebook),
                str(temporary),
                parameters=dict(parameters),
                engine_name=InThisProcess.NAME,
                of_case=f"{parameters.get('dataset', '')}/{parameters.get('case', '')}",
                kernel_name="python3",
                progress_bar=False,
                # Written when it is done: after each cell, the whole notebook would be validated and written again.
                request_save_on_cell_execute=False,
                autosave_cell_every=0,
            )
        except papermill.PapermillExecutionError as error:
            if error.ename == "InputError":
                problem = re.sub(r"\s+", " ", error.evalue)
                raise InputError(notebook, f"cell {error.cell_index}", problem, "correct the input") from None
            raise


class InThisProcess(Engine):
    """A papermill engine without a kernel."""

    NAME = "in-this-process"

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: NotebookExecutionManager, kernel_name: str, of_case: str = "", **_: Any
    ) -> None:
        """Run the cells in order, up to the first that fails; then leave out those about other cases."""
        with _open_shell() as shell:
            for index, cell in enumerate(nb_man.nb.cells):
                if cell.cell_type != "code" or not cell.source.strip():
                    continue
                nb_man.cell_start(cell, index)
                if error := _run(cell, shell):
                    nb_man.cell_exception(cell, index, exception=error)
                    return
                nb_man.cell_complete(cell, index)
        # At the end: an error names its cell by its place in the notebook.
        nb_man.nb.cells = [cell for cell in nb_man.nb.cells if is_about(cell, of_case)]


def is_about(cell: NotebookNode, case: str) -> bool:
    """Whether a cell is about a case (``<dataset>/<case>``): without a tag that begins with `ONLY`, it is about all."""
    patterns = [tag.removeprefix(ONLY) for tag in cell.metadata.get("tags", []) if tag.startswith(ONLY)]
    return not patterns or any(fnmatchcase(case, pattern) for pattern in patterns)


papermill_engines.register(InThisProcess.NAME, InThisProcess)


class _Results(DisplayHook):
    """Collects the value of each cell's last expression as an output, among those that cells display."""

    def write_format_data(self, format_dict: Mapping, md_dict: Mapping | None = None) -> None:
        count = self.prompt_count
        output = new_output("execute_result", data=format_dict, metadata=md_dict or {}, execution_count=count)
        self.shell.display_pub.collected.append(output)

    def write_output_prompt(self) -> None:
        """Print no prompt."""

    def finish_displayhook(self) -> None:
        """Print no line end."""
        self._is_active = False


class _Displayed(DisplayPublisher):
    """Collects what cells display as their outputs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.collected: list[NotebookNode] = []

    def publish(self, data: Mapping, metadata: Mapping | None = None, **_: Any) -> None:
        self.collected.append(new_output("display_data", data=data, metadata=metadata or {}))


class _Shell(InteractiveShell):
    displayhook_class = Type(_Results)
    display_pub_class = Type(_Displayed)

    def init_virtualenv(self) -> None:
        """Leave the search path alone: another environment that is active has packages of its own."""

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        """Keep a traceback for the cell's outputs; it would go to standard output."""
        self.last_traceback = stb


@contextmanager
def _open_shell() -> Iterator[_Shell]:
    """Open an IPython shell that shows figures as Jupyter does; leave matplotlib as it was."""
    backend = mpl.get_backend()
    with tempfile.TemporaryDirectory() as folder:
        # No history and no profile: nothing of this user's, and her home may not be writable.
        settings = Config({"HistoryManager": {"enabled": False}})
        shell = _Shell.instance(config=settings, ipython_dir=folder)
        try:
            mpl.use("module://matplotlib_inline.backend_inline")
            yield shell
        finally:
            mpl.use(backend)
            _Shell.clear_instance()


def _run(cell: NotebookNode, shell: _Shell) -> BaseException | None:
    """Run one cell, fill in its outputs, and return what it raised."""
    shell.display_pub.collected = []
    with capture_output(display=False) as captured:
        done = shell.run_cell(cell.source, store_history=True)
    if captured.stderr:
        log.warning(captured.stderr.rstrip())
    cell.execution_count = done.execution_count
    cell.outputs = [new_output("stream", name="stdout", text=captured.stdout)] if captured.stdout else []
    cell.outputs += shell.display_pub.collected
    error = done.error_before_exec or done.error_in_exec
    if error is not None:
        name = type(error).__name__
        cell.outputs.append(new_output("error", ename=name, evalue=str(error), traceback=shell.last_traceback))
    return error
