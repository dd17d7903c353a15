"""Figures across datasets: one provenance for all cases that a figure draws."""

from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from gpuledger.ledger import figures, provenance


class Chosen(list):
    """The cases that a figure draws, where it has no room for all."""

    def __init__(self, cases: Iterable, drawn: int, of: int, what: str):
        super().__init__(cases)
        #: Says how many of `what` are drawn; empty if all are.
        self.words = f" ({drawn} of {of:,} {what} drawn)" if drawn < of else ""


def without_cases() -> Figure:
    """Return what stands in the place of a figure where no case has what it compares."""
    figure = plt.figure(figsize=(7.0, 1.0))
    figures.headline(figure, "Nothing to compare: no case has what this figure puts side by side")
    return figure


def record_of(study: str, records: Iterable[Mapping]) -> dict:
    """Return one provenance for all: every label once, and the datasets as the source.

    Parameters
    ----------
    records : iterable of mapping
        The ``provenance.json`` of the cases that are drawn.
    """
    records = list(records)
    kinds = [record["kind"] for record in records]
    # What was predicted is said once, not for each device that it was compared with.
    labels = dict.fromkeys(record["label"].split(" (")[0] for record in records)
    datasets = dict.fromkeys(record["dataset"] for record in records)
    return {
        "dataset": "across datasets",
        "study": study,
        "case": "all",
        "kind": next((kind for kind in kinds if kind in provenance.NOT_MEASURED), kinds[0]),
        "label": "; ".join(labels),
        "inputs": [],
        "source": f"Dataset{'s' * (len(datasets) > 1)} {', '.join(datasets)}",
    }
