"""What a recording would do: its parts, their planned time, and the command lines of ncu; nothing is run on a GPU."""

import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

from gpuledger.errors import InputError
from gpuledger.record import designs, device, metrics, plan, profiler
from gpuledger.record.parts import BUDGET_S, MEASURED_ON, PARTS
from gpuledger.record.probes import exposed
from gpuledger.record.profiler import BETWEEN_CALLS, WITH_RANGES, Control, Ncu


def describe(
    names: Sequence[str], control: Control, python: str | None = None, chip: str = "", seconds: float = BUDGET_S
) -> Iterator[str]:
    """Describe a recording line by line: comments, and command lines for a shell.

    Parameters
    ----------
    chip : str
        Plan for this chip, by ncu's name (``gh100``), instead of this machine's GPU.
    seconds : float
        What a call may take.

    Yields
    ------
    str
        Without a GPU or ncu, a comment takes the place of the command lines.
    """
    planned = [PARTS[name].seconds for name in names]
    for name, takes, until in zip(names, planned, accumulate(planned), strict=True):
        lack = plan.lacking(PARTS[name], python)
        why = f"; left out here: {lack[0]}" if lack else ""
        words = f"{takes / 60:4.1f} min ({PARTS[name].measured_s / 60:.1f} on {MEASURED_ON})"
        yield f"# {name:24} {words:31} {until / 60:4.1f} min in all: {PARTS[name].title}{why}"
    fits = "within" if sum(planned) <= seconds else "more than"
    yield f"# {sum(planned) / 60:.1f} min planned, {fits} {seconds / 60:g} min"
    if not any("ncu" in PARTS[name].needs for name in names):
        return
    try:
        ncu = profiler.find_ncu(chip)
        capability = metrics.capability_of(chip) if chip else device.find_device().compute_capability
    except InputError as error:
        yield f"# no command lines of ncu: {error}" + ("" if chip else "; without a GPU, name a chip: --chip gh100")
        return
    for name in names:
        for target, wanted, options in _counted(name, capability, ncu, python or sys.executable):
            yield shlex.join(profiler.command_line(ncu.program, wanted, target, control, f"{name}.csv", options))


def _counted(name: str, capability: str, ncu: Ncu, python: str) -> Iterator[tuple[Collection[str], ...]]:
    """Yield the target, the metrics, and the further options of every run of ncu."""
    if name == "counters":
        yield _points(designs.TOY_NETWORK, python), metrics.flop_metrics(capability, ncu.metrics)[0], WITH_RANGES
    elif name == "latency":
        for workload, size in exposed.SIZES.items():
            for names in exposed.METRICS.values():
                target = [python, "-m", exposed.__name__, workload, str(size), f"{name}.wait"]
                yield target, metrics.choose([(metric,) for metric in names], ncu.metrics)[0], BETWEEN_CALLS
    elif PARTS[name].module.endswith("sweeps"):
        (design,) = PARTS[name].arguments
        target = _points(designs.SWEEPS[design].counting(design), python)
        yield target, metrics.choose(metrics.SWEEP, ncu.metrics)[0], WITH_RANGES


def _points(what: designs.Counting, python: str) -> list[str]:
    return [*what.command(python), *(f"--point={point}" for point in what.tables.values())]
