"""Sweeps: counters of a whole model over sequence length, hidden size and number of layers."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from gpuledger import files
from gpuledger.record import metrics
from gpuledger.record.parts import Recorded
from gpuledger.record.session import Session

LOG = logging.getLogger("gpuledger")


@dataclass(frozen=True)
class Point:
    """Sizes of a model."""

    n_layer: int
    hidden_dim: int
    seq_len: int

    @property
    def name(self) -> str:
        return f"n_layer-{self.n_layer}.hidden_dim-{self.hidden_dim}.seq_len-{self.seq_len}.csv"


@dataclass(frozen=True)
class SweepDesign:
    """Variation of one size at a time, with the others as in `base`.

    Attributes
    ----------
    workload : str
        Module of :mod:`gpuledger.record.workloads`.
    base : Point
    n_layer, hidden_dim, seq_len : tuple of int
        Values of each size; empty: not varied.
    n_head, head_dim : int
        The one that is fixed while the hidden size varies; the other one is 0.
    direction : {"forward", "backward"}
        The pass that is counted.
    """

    workload: str
    base: Point
    n_layer: tuple[int, ...] = ()
    hidden_dim: tuple[int, ...] = ()
    seq_len: tuple[int, ...] = ()
    n_head: int = 0
    head_dim: int = 0
    direction: str = "forward"

    def points(self) -> list[Point]:
        """Return every point once, the base first."""
        return list(dict.fromkeys([self.base, *self._varied()]))

    def options(self, point: Point) -> list[str]:
        """Return the command-line options of the workload at a point."""
        heads = self.n_head or point.hidden_dim // self.head_dim
        sizes = {**asdict(point), "n_head": heads, "direction": self.direction}
        return [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]

    def _varied(self) -> Iterator[Point]:
        for variable in ("seq_len", "hidden_dim", "n_layer"):
            for value in getattr(self, variable):
                yield replace(self.base, **{variable: value})


_LENGTHS = (64, 128, 256, 512, 1024, 2048)
_WIDTHS = (192, 384, 768, 1536, 3072, 6144)
#: The sweep of the notes on metric sweeps: GPT-2's 12 heads, which become wider with the model.
_GPT2 = SweepDesign("gpt2", Point(2, 768, 128), (1, 2, 4, 8, 12), _WIDTHS, _LENGTHS, n_head=12)
_LLAMA = SweepDesign(
    "llama", Point(2, 2048, 128), (1, 2, 4, 8, 16), (512, 1024, 2048, 3072, 4096), _LENGTHS, head_dim=128
)
#: By case. In `gpt2_head_dim_64`, as in published families of models, wider models have more heads.
SWEEPS = {
    "gpt2": _GPT2,
    "gpt2_head_dim_64": SweepDesign("gpt2", _GPT2.base, hidden_dim=_WIDTHS, head_dim=64),
    "gpt2_backward": replace(_GPT2, direction="backward"),
    "llama": _LLAMA,
    "llama_backward": replace(_LLAMA, direction="backward"),
}
#: Names of kernel classes in the notes on metric sweeps.
CLASSES = [
    {"name": "fused attention", "regex": "(?i)fmha|flash_|AttentionKernel", "class": "fmha", "on": "full"},
    {"name": "layer normalization", "regex": "(?i)layer_norm|LayerNorm", "class": "layer_norm"},
]
_NOTE = "Of each point: all launches of one {} pass of the whole model, after a warm-up pass; random weights."


def record_sweep(session: Session, name: str) -> Recorded:
    """Record a sweep with one run of ncu per point.

    It becomes a case with the values per launch and, if the number of layers varies, a case with the totals per pass.

    Parameters
    ----------
    session : Session
    name : str
        A key of :data:`SWEEPS`.

    Raises
    ------
    InputError
        See :meth:`Session.count`.
    OutOfTimeError
        Time is up; the next call resumes.
    """
    design = SWEEPS[name]
    names, missing = metrics.choose(metrics.SWEEP, session.ncu.metrics)
    points, root = design.points(), session.recording.folder
    folder, parameters, absent = f"metric_sweep/{name}", f"metric_sweep/{name}_parameters.csv", set()
    # Files of an earlier design would be taken for points of this one.
    for path in {*(root / folder).glob("*.csv")} - {root / folder / point.name for point in points}:
        path.unlink()
    for number, point in enumerate(points, 1):
        LOG.info("%s: point %d of %d, %s", name, number, len(points), point.name)
        absent |= {*session.count(f"{folder}/{point.name}", design.workload, design.options(point), names)}
    text = io.StringIO()
    writer = csv.DictWriter(text, ["file", *asdict(points[0])], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"file": point.name, **asdict(point)} for point in points)
    files.write_text(root / parameters, text.getvalue())
    source = {"folder": folder, "parameters": parameters}
    cases = {name: {"ncu_csv": source, "kernel_patterns": CLASSES}}
    if design.n_layer:
        cases[f"{name}_totals"] = {"ncu_csv": {**source, "per": "pass"}, "kernel_patterns": CLASSES}
    return Recorded(
        cases={"metric_sweep": cases},
        about={"metrics": names, "metrics_missing": missing, "metrics_without_value": sorted(absent)},
        notes={folder: _NOTE.format(design.direction)},
    )
