"""FLOP counters of every launch of the toy network: set-up, forward pass, forward and backward pass."""

import logging

from gpuledger.record import metrics
from gpuledger.record.designs import NETWORK, NETWORK_LAUNCHES, TOY_NETWORK
from gpuledger.record.parts import Recorded
from gpuledger.record.session import RecordingSession

LOG = logging.getLogger("gpuledger")
_NOTE = "All launches between start and stop of profiling, in fp32 without TF32."


def record_counters(session: RecordingSession) -> Recorded:
    """Record the three runs, each of which starts with the set-up, in one process."""
    names, missing = metrics.flop_metrics(session.device.compute_capability, session.ncu.metrics)
    paths = {passes: path for path, passes in TOY_NETWORK.tables.items()}
    LOG.info("toy network: %s", ", ".join(paths))
    counted = session.count(TOY_NETWORK, names)
    for passes, path in paths.items():
        found, expected = counted["launches"][path], NETWORK_LAUNCHES[passes]
        if found != expected:
            LOG.warning("toy network, %s: %d launches; on an A100 they were %d", passes, found, expected)
    return Recorded(
        cases={"flop_reconciliation": {"toy_network": {**paths, "network": NETWORK}}},
        about={"metrics": names, "metrics_missing": missing, "launches_on_a100": NETWORK_LAUNCHES, **counted},
        notes=dict.fromkeys(paths.values(), _NOTE),
    )
