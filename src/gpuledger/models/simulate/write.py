"""Write simulated launches as trace directories in the format of recorded ones."""

import logging
from importlib import import_module
from pathlib import Path

import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Dataset
from gpuledger.models.simulate.cases import CASES, SimulatedLaunch, simulate_launch
from gpuledger.models.simulate.normalization import write_case
from gpuledger.readers import neutrino
from gpuledger.readers.neutrino.records import DMAT_ACCESS

LOG = logging.getLogger("gpuledger")
#: Origin of the files, also recorded in event.log as the command of the process.
ORIGIN = "simulated by gpuledger, not measured"
#: The trace layout that states the level of a section.
VERSION = "V3"
#: Of a trace with one section.
HEADER_BYTES = 48
#: Time of all launches (ns since 1970): the start of 2025.
TIME_NS = 1_735_689_600_000_000_000


def write_launch(
    launch: SimulatedLaunch,
    trace: str | Path,
    event_log: str | Path | None = None,
    tensor_trace: str | Path | None = None,
) -> list[Path]:
    """Write a launch's trace, its event.log and, if it has tensors, its tensor.trace.

    Parameters
    ----------
    trace : path
        ``<directory>/result/<seconds>.bin``; of accesses by clock and page, ``.dmat``.
    event_log, tensor_trace : path, optional
        Default: ``event.log`` and ``tensor.trace`` in the directory.
    """
    trace = Path(trace)
    directory = trace.parent.parent
    event_log = Path(event_log or directory / "event.log")
    kernel = launch.kernel
    if isinstance(launch.records, pd.DataFrame):
        neutrino.write_dmat(trace, *(launch.records[name] for name in ("clock", "page", "count")))
    else:
        neutrino.write_trace(
            trace,
            version=VERSION,
            grid=kernel.grid,
            block=kernel.block,
            shared_bytes=kernel.shared_bytes,
            sections=[("warp", launch.records)],
        )
    if counted := isinstance(launch.records, pd.DataFrame):
        # The .dmat was made of a trace with a record for each access of each thread.
        level, units = "thread", kernel.threads
        unit_bytes = DMAT_ACCESS.itemsize * -(-int(launch.records["count"].sum()) // (kernel.blocks * units))
    else:
        level, (_, units, slots) = "warp", launch.records.shape
        unit_bytes = slots * launch.records.dtype.itemsize
    about = {"time_ns": TIME_NS, "function": launch.function, "location": "simulated.py:1"}
    tensors = [
        {"tensor": tensor.name, "address": tensor.address, "bytes": tensor.size_bytes, "shape": tensor.shape, **about}
        for tensor in launch.tensors
    ]
    # Prologue and epilogue are not simulated and take no time.
    log = neutrino.log_of_launch(
        *(kernel, level, units, unit_bytes, tensors, f"{ORIGIN} "),
        time_ns=TIME_NS,
        kernel=kernel.name,
        shared_bytes=kernel.shared_bytes,
        counted_bytes=unit_bytes if counted else None,
        file=f"result/{trace.with_suffix('.bin').name}",
        file_bytes=HEADER_BYTES + kernel.blocks * units * unit_bytes,
        prologue_ms=0.0,
        kernel_ms=1e3 * launch.cycles / launch.machine.clock_hz,
        epilogue_ms=0.0,
    )
    neutrino.write_event_log(event_log, log, VERSION)
    if not launch.tensors:
        return [trace, event_log]
    tensor_trace = Path(tensor_trace or directory / "tensor.trace")
    neutrino.write_tensor_trace(tensor_trace, tensors)
    return [trace, event_log, tensor_trace]


def simulate_dataset(dataset: Dataset) -> dict[Path, str]:
    """Simulate the cases of a dataset and write the files that they name.

    Cases that the model does not include, or that name no trace, are skipped.

    Parameters
    ----------
    dataset : Dataset
        Cases have a ``trace``, or a ``progress`` and optionally the ``trace`` of the same launch, and optionally an
        ``event_log`` and a ``tensor_trace``; cases of ``normalization_roofline`` have ``rows`` and ``ceilings``,
        those of ``kernel_breakdown`` a ``timeline`` and perhaps a ``baseline``.

    Returns
    -------
    dict
        Origin of each file, by path.
    """
    written: dict[Path, str] = {}
    for study, name in dataset.cases():
        try:
            case = dataset.case(study, name)
        except InputError:
            continue  # reported by the job that reduces the case
        if study == "normalization_roofline":
            written |= dict.fromkeys(write_case(case), ORIGIN)
            continue
        if study == "kernel_breakdown":
            # Imported here: only this simulation needs the transformer model.
            timelines = import_module("gpuledger.models.simulate.timeline")
            for path in (dataset.folder / case.inputs[key] for key in ("timeline", "baseline") if key in case.inputs):
                if path.stem in timelines.WEIGHTS:
                    written[timelines.write_timeline(path)] = ORIGIN
            continue
        if (study, name) not in CASES:
            LOG.warning("%s: no case '%s' of %s is simulated", dataset.file, name, study)
            continue
        launch, inputs = simulate_launch(study, name), case.inputs
        wanted = [(inputs.get("trace"), launch)]
        if "progress" in inputs:
            wanted = [(inputs["progress"], launch), (inputs.get("trace"), launch.beside)]
        logs = ((key, inputs.get(key)) for key in ("event_log", "tensor_trace"))
        paths = {key: dataset.folder / path for key, path in logs if path}
        for trace, made in wanted:
            if trace and made and dataset.folder / trace not in written:
                written |= dict.fromkeys(write_launch(made, dataset.folder / trace, **paths), ORIGIN)
    return written
