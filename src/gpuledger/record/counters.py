"""FLOP counters of every launch of the toy network: set-up, forward pass, forward and backward pass."""

from __future__ import annotations

import logging

from gpuledger.record import metrics
from gpuledger.record.parts import Recorded
from gpuledger.record.session import Session

LOG = logging.getLogger("gpuledger")
#: The network of the source notebook: 10 × [Linear(1024, 1024) without bias + Sigmoid] on 128 rows in fp32.
NETWORK = {"layers": 10, "hidden_dim": 1024, "tokens": 128, "activation": "sigmoid", "bias": False}
PASSES = ("setup", "forward", "forward_backward")
_NOTE = "All launches between start and stop of profiling, in fp32 without TF32."


def record_counters(session: Session) -> Recorded:
    """Record the three runs, each of which starts with the set-up.

    Raises
    ------
    InputError
        See :meth:`Session.count`.
    """
    names, missing = metrics.flop_metrics(session.device.compute_capability, session.ncu.metrics)
    shape = [f"--{name.replace('_', '-')}={NETWORK[name]}" for name in ("layers", "hidden_dim", "tokens")]
    paths = {passes: f"flop_reconciliation/toy_network_{passes}.csv" for passes in PASSES}
    absent = set()
    for passes in PASSES:
        LOG.info("toy network: %s", passes)
        absent |= {*session.count(paths[passes], "toy_network", [f"--passes={passes}", *shape], names)}
    return Recorded(
        cases={"flop_reconciliation": {"toy_network": {**paths, "network": NETWORK}}},
        about={"metrics": names, "metrics_missing": missing, "metrics_without_value": sorted(absent)},
        notes=dict.fromkeys(paths.values(), _NOTE),
    )
