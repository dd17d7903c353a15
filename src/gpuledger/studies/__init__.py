"""Studies: a folder each, with ``study.yaml``, ``reduce``, panel functions for figures, and tables."""

from importlib import import_module
from pathlib import Path

from gpuledger.ledger.case_result import CaseResult, reduce_case
from gpuledger.ledger.datasets import Repository


def open_case(study: str, dataset: str, case: str, results: str | Path | None = None) -> CaseResult:
    """Return what a study makes of a case, for a notebook.

    Parameters
    ----------
    results : path, optional
        A folder with the case's ``data.parquet``, ``summary.json`` and ``provenance.json``, as the workflow passes
        it. Without it the case is reduced here and now, with the configuration's knobs; simulated traces that are
        missing are made.
    """
    if results is not None:
        return CaseResult.read(results)
    repository = Repository.find()
    found = repository.case(dataset, study, case)
    if found.dataset.content["kind"] == "simulated" and not all(path.exists() for path in found.paths()):
        # Not committed, and made in a second or two. Imported here: in the workflow a rule of its own does it.
        import_module("gpuledger.models.simulate").simulate_dataset(found.dataset)
    reduce = import_module(f"gpuledger.studies.{study}").reduce
    return reduce_case(found, reduce, repository.knobs(study), mirror=repository.config.get("mirror"))
