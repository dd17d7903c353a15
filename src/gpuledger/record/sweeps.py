"""Sweeps: counters of one transformer block over sequence length, width and number of layers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tqdm import tqdm

from gpuledger import files
from gpuledger.record import metrics
from gpuledger.record.parts import Recorded
from gpuledger.record.session import Session


@dataclass(frozen=True)
class Point:
    """Sizes of a stack of transformer blocks."""

    n_layer: int
    hidden_dim: int
    seq_len: int

    @property
    def name(self) -> str:
        return f"n_layer-{self.n_layer}.hidden_dim-{self.hidden_dim}.seq_len-{self.seq_len}.csv"


@dataclass(frozen=True)
class SweepDesign:
    """Variation of one size at a time, with the others as in `base`."""

    base: Point
    n_layer: tuple[int, ...]
    hidden_dim: tuple[int, ...]
    seq_len: tuple[int, ...]

    def points(self) -> list[Point]:
        """Return every point once, the base first."""
        return list(dict.fromkeys([self.base, *self._varied()]))

    def _varied(self) -> Iterator[Point]:
        for variable in ("seq_len", "hidden_dim", "n_layer"):
            for value in getattr(self, variable):
                yield Point(**{**asdict(self.base), variable: value})


_LENGTHS = (64, 128, 256, 512, 1024, 2048)
#: By model. GPT-2's widths are those of the notes on metric sweeps; the published model has 768.
SWEEPS = {
    "gpt2": SweepDesign(Point(2, 768, 128), (1, 2, 4, 8, 12), (192, 384, 768, 1536, 3072, 6144), _LENGTHS),
    "llama": SweepDesign(Point(2, 2048, 128), (1, 2, 4, 8, 16), (512, 1024, 2048, 3072, 4096), _LENGTHS),
}
_NOTE = "Of each point: the launches of the last block in its second pass, with random weights."


def record_gpt2(session: Session) -> Recorded:
    """Record GPT-2's sweep, see :func:`record_sweep`."""
    return record_sweep(session, "gpt2")


def record_llama(session: Session) -> Recorded:
    """Record Llama's sweep, see :func:`record_sweep`."""
    return record_sweep(session, "llama")


def record_sweep(session: Session, model: str) -> Recorded:
    """Record the sweep of a model with one run of ncu per point.

    Raises
    ------
    InputError
        See :meth:`Session.count`.
    OutOfTimeError
        Time is up; the next call resumes.
    """
    names, missing = metrics.choose(metrics.SWEEP, session.ncu.metrics)
    points, root = SWEEPS[model].points(), session.recording.folder
    folder, parameters, absent = f"metric_sweep/{model}", f"metric_sweep/{model}_parameters.csv", set()
    # Files of an earlier design would be taken for points of this one.
    for path in {*(root / folder).glob("*.csv")} - {root / folder / point.name for point in points}:
        path.unlink()
    for point in tqdm(points, desc=f"{model} sweep", unit="point", disable=None):
        options = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(point).items()]
        absent |= {*session.count(f"{folder}/{point.name}", model, options, names)}
    text = io.StringIO()
    writer = csv.DictWriter(text, ["file", *asdict(points[0])], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"file": point.name, **asdict(point)} for point in points)
    files.write_text(root / parameters, text.getvalue())
    return Recorded(
        cases={"metric_sweep": {model: {"ncu_csv": {"folder": folder, "parameters": parameters}}}},
        about={"metrics": names, "metrics_missing": missing, "metrics_without_value": sorted(absent)},
        notes={folder: _NOTE},
    )
