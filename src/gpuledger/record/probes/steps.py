"""Record steps one by one, each completely or not at all, and resume after an interruption."""

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.record import cuda
from gpuledger.record.probes.cases import RecordCases, Sizes
from gpuledger.record.probes.launch import Runner
from gpuledger.record.recording import ending_after, hash_sources, read_state

LOG = logging.getLogger("gpuledger")
#: Attempts after which a step is left out, and when one counts as hanging (s).
TRIES, STEP_S = 2, 180.0

Cases = dict[str, dict[str, dict]]


def record_steps(
    folder: Path, runner: Runner, steps: Mapping[str, tuple[str, RecordCases]], sizes: Sizes | None = None
) -> Cases:
    """Record the steps that are not recorded yet.

    A step's files are moved into the folder when all of them are written, and ``<folder>/parts/<step>.json`` keeps its
    cases until every step is done. A step that fails, or ends the process, is tried once more, after the others or by
    the next call, and is then left out with a line in the log.

    Parameters
    ----------
    steps : mapping
        By name, the study and the function that records its cases; see :data:`gpuledger.record.probes.cases.STEPS`.

    Returns
    -------
    dict
        Cases by study and name, in the order of the steps.

    Raises
    ------
    InputError
        No step can be recorded, or a failure made the GPU unusable for this process; another call then starts with the
        other steps.
    """
    sizes = sizes or Sizes()
    parts = folder / "parts"
    sources = hash_sources([*Path(__file__).parent.glob("*.py"), *cuda.SOURCES.glob("*.cu*")])
    stamp = json.loads(json.dumps({"device": asdict(runner.device), "sizes": asdict(sizes), "sources": sources}))
    # Of each step: number of starts, cases, failures.
    kept = {
        name: {"begun": 0, "cases": None, "failures": []} | read_state(parts / f"{name}.json", stamp) for name in steps
    }

    def keep(name: str) -> None:
        files.write_json(parts / f"{name}.json", {"stamp": stamp, **kept[name]})

    while waiting := [name for name in steps if kept[name]["cases"] is None and len(kept[name]["failures"]) < TRIES]:
        # Steps that were started before but not finished, perhaps because they crashed the process, come last.
        name = min(waiting, key=lambda name: kept[name]["begun"])
        step, scratch, (study, record_cases) = kept[name], parts / name, steps[name]
        crashed = step["begun"] - len(step["failures"])
        step["begun"] += 1
        keep(name)
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            if crashed >= TRIES:
                raise InputError("GPU", name, f"its process ended {crashed} times", "report it with the GPU's name")
            with ending_after(STEP_S):
                cases = record_cases(scratch, runner, sizes)
        except KeyboardInterrupt:
            step["begun"] -= 1
            keep(name)
            raise
        except InputError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            step["failures"].append([error.file, error.place, error.problem, error.remedy])
            keep(name)
            LOG.warning("%s: %s", name, error)
            if len(waiting) > 1 or len(step["failures"]) < TRIES:
                runner.check_alive()
            continue
        _take_over(scratch, folder)
        step["cases"] = {study: cases}
        keep(name)
        LOG.info("%s: recorded", name)
    found: Cases = {}
    for name, step in kept.items():
        for study, cases in (step["cases"] or {}).items():
            found.setdefault(study, {}).update(cases)
        if step["cases"] is None:
            LOG.error("%s is left out: %s", name, InputError(*step["failures"][-1]))
    shutil.rmtree(parts)
    if not found:
        raise InputError(*next(iter(kept.values()))["failures"][-1])
    return found


def _take_over(scratch: Path, folder: Path) -> None:
    """Move a step's folders ``<study>/<case>`` into the recording."""
    for case in scratch.glob("*/*"):
        target = folder / case.relative_to(scratch)
        if target.is_dir():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        case.replace(target)
    shutil.rmtree(scratch)
