"""Sweeps: counters of a whole model over sequence length, hidden size and number of layers."""

import logging
from dataclasses import asdict

from gpuledger import files
from gpuledger.record import designs, metrics
from gpuledger.record.parts import Recorded
from gpuledger.record.session import RecordingSession

LOG = logging.getLogger("gpuledger")


#: Names of kernel classes in the notes on metric sweeps.
CLASSES = [
    {"name": "fused attention", "regex": "(?i)fmha|flash_|AttentionKernel", "class": "fmha", "on": "full"},
    {"name": "layer normalization", "regex": "(?i)layer_norm|LayerNorm", "class": "layer_norm"},
]
#: Least numbers of layers in a sweep for a case with its totals per pass, which is all that they are for: with fewer,
#: the study finds no law (``gpuledger.models.scaling_laws.MINIMUM_POINTS``, which needs pandas to be imported).
LAYERS_FOR_TOTALS = 5
_PRODUCTS = "m, n, k of every product in the order of its launch, of one file of {} after the other."
_NOTE = "Of each point: all launches of one {} pass of the whole model, after a warm-up pass; random weights."


def record_sweep(session: RecordingSession, name: str) -> Recorded:
    """Record a sweep with one run of ncu, in which every point is an NVTX range of its own.

    It becomes a case with the values per launch and, if there are :data:`LAYERS_FOR_TOTALS` numbers of layers, a case
    with the totals per pass. Of GPT-2, the products are a case of `flop_reconciliation`, too.

    Parameters
    ----------
    name : str
        A key of :data:`gpuledger.record.designs.SWEEPS`.

    Raises
    ------
    InputError
        See :meth:`Session.count`.
    OutOfTimeError
        Time is up; the next call resumes.
    """
    design = designs.SWEEPS[name]
    names, missing = metrics.choose(metrics.SWEEP, session.ncu.metrics)
    points, root = design.points(), session.recording.folder
    folder, parameters = f"metric_sweep/{name}", f"metric_sweep/{name}_parameters.csv"
    # Files of an earlier design would be taken for points of this one.
    for path in {*(root / folder).glob("*.csv")} - {root / folder / point.name for point in points}:
        path.unlink()
    LOG.info("%s: %d points", name, len(points))
    counted = session.count(design.counting(folder), names)
    rows = [{"file": point.name, **asdict(point)} for point in points]
    files.write_csv(root / parameters, list(rows[0]), rows)
    source = {"folder": folder, "parameters": parameters}
    cases = {name: {"ncu_csv": source, "kernel_patterns": CLASSES}}
    if len({point.n_layer for point in points}) >= LAYERS_FOR_TOTALS:
        cases[f"{name}_totals"] = {"ncu_csv": {**source, "per": "pass"}, "kernel_patterns": CLASSES}
    made, notes = {"metric_sweep": cases}, {folder: _NOTE.format(design.direction)}
    if design.workload == "gpt2":  # in fp32, whose instructions have a closed form
        shapes = f"flop_reconciliation/{name}_shapes.csv"
        in_order = sorted(points, key=lambda point: point.name)  # of the files in the folder
        products = [dict(zip("mnk", product, strict=True)) for point in in_order for product in design.products(point)]
        columns = list("mnk")
        if design.direction == "backward":  # nothing is added to its products
            columns, products = [*columns, "bias"], [product | {"bias": "false"} for product in products]
        files.write_csv(root / shapes, columns, products)
        made["flop_reconciliation"] = {name: {"launches": folder, "shapes": shapes}}
        notes[shapes] = _PRODUCTS.format(folder)
    return Recorded(
        cases=made,
        about={"metrics": names, "metrics_missing": missing, **counted},
        notes=notes,
    )
