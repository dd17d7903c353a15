"""A case's scenario: a model, the GPUs that run it, and the phases, as its ``dataset.yaml`` declares them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.models.deployment import Speculation, memory_bytes, speculate
from gpuledger.models.time_model.step import check_peaks, predict
from gpuledger.models.transformer import (
    Images,
    Model,
    Parallel,
    Precision,
    Workload,
    chunk,
    decode,
    kernels,
    mixed,
    prefill,
    read_model,
)
from gpuledger.readers.gpus import Gpu, find_gpu, read_gpus, with_built_in
from gpuledger.studies.kernel_breakdown.groups import group_of
from gpuledger.studies.kernel_breakdown.source_model import Chunk

#: File types that tell a table of GPUs in the dataset's folder from a GPU id.
TABLES = (".csv", ".xlsx", ".xlsm", ".xls", ".ods", ".numbers")


def read_hardware(case: Case) -> list[Gpu]:
    """Return the GPUs of a case, in the order of its ``hardware``.

    An entry is a GPU id, or a CSV or Excel file in the dataset's folder with the columns of ``resources/gpus.csv``.
    A file adds all of its GPUs, unless other entries name some of them.
    """
    entries = case.inputs["hardware"]
    place = f"{case.place}.hardware"
    tables: dict[str, dict[str, Gpu]] = {}
    for entry in entries:
        if entry.lower().endswith(TABLES):
            tables[entry] = read_gpus(case.present(entry, "hardware"))
    own = {name: gpu for table in tables.values() for name, gpu in table.items()}
    known = with_built_in(own)
    named = {entry: find_gpu(entry, known, case.dataset.file, place) for entry in entries if entry not in tables}
    chosen = {gpu.name for gpu in named.values()}
    found: list[Gpu] = []
    for entry in entries:
        if entry not in tables:
            found.append(named[entry])
        elif not chosen & set(tables[entry]):
            found += tables[entry].values()
    names = [gpu.name for gpu in found]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise case.error("hardware", f"'{name}' is listed twice", "list each GPU once")
    return found


@dataclass(frozen=True)
class Scenario:
    """A model on GPUs, and what it computes."""

    model: Model
    gpus: list[Gpu]  # the figures show the first one; the others are compared with it
    phases: Mapping[str, Any]  # by phase, as ``dataset.yaml`` declares them
    parallel: Parallel
    precision: Precision
    #: See :func:`gpuledger.models.transformer.kernels`.
    fused: bool | tuple[str, ...] = True
    expert_load: float | str | tuple[float, ...] = 0.0
    own_model: bool = False  # the model is a file in the dataset's folder
    speculation: Speculation | None = None  # of decode steps

    @property
    def new_tokens(self) -> int:
        """New tokens of a request in a decode step."""
        if self.speculation:
            return 1 + self.speculation.drafted
        return self.phases.get("decode", {}).get("new", 1)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decode step is expected to add to a request: all of them, unless it verifies drafts."""
        return self.speculation.tokens_per_step if self.speculation else self.new_tokens

    @property
    def draft(self) -> Self:
        """The same GPUs with the model that drafts, in one stage; another model in its own precision."""
        model, parallel = self.speculation.draft, replace(self.parallel, pipeline=1)
        precision = self.precision if model.drafts else model.precision
        return replace(self, model=model, parallel=parallel, precision=precision, speculation=None)

    def kernels(self, workload: Workload) -> pd.DataFrame:
        """Return the kernels of a workload; see :func:`gpuledger.models.transformer.kernels`."""
        return kernels(self.model, workload, self.parallel, self.precision, self.fused, self.expert_load)

    def predict(self, works: Sequence[Workload], gpu: Gpu) -> pd.DataFrame:
        """Return the predicted kernels of workloads, those of drafts included, with their ``group``."""
        rows = predict(pd.concat([self.kernels(work) for work in works], ignore_index=True), gpu)
        if own := self.speculation:
            rows = own.join(rows, self.draft.predict([own.passes(work) for work in works], gpu))
        return rows.assign(group=group_of(rows))

    def memory_bytes(self, workload: Workload) -> pd.DataFrame:
        """Return what each shape needs on a GPU, drafts included.

        See :func:`gpuledger.models.deployment.memory.memory_bytes`.
        """
        needed = memory_bytes(self.model, self.parallel, self.precision, workload, self.kernels(workload))
        if self.speculation:
            # Activations are not needed at the same time.
            needed = needed + self.draft.memory_bytes(workload).eval("activation_bytes = 0").eval(
                "memory_bytes = weight_bytes + cache_bytes"
            )
        return needed

    def shapes(self, phase: str, tokens: np.ndarray, requests: np.ndarray) -> Workload:
        """Return passes of many sizes: prefills, or decode steps after this many tokens of context."""
        return prefill(tokens, requests) if phase == "prefill" else decode(tokens, requests, self.new_tokens)

    def images(self, phase: str) -> Images | None:
        """Return the images of each prompt of a phase."""
        given = self.phases[phase].get("images") if phase == "prefill" else None
        return Images(given.get("number", 1), given["width"], given["height"]) if given else None

    def workload(self, phase: str) -> Workload:
        """Return one forward pass of a phase."""
        given = self.phases[phase]
        if phase == "prefill":
            images = self.images(phase)
            tokens = given["input"] + self.model.image_tokens(images)
            return prefill(tokens, given["batch"], given.get("cached", 0), images)
        if phase == "decode":
            return decode(given["context"], given["batch"], self.new_tokens)
        if phase == "chunked_prefill":
            part = Chunk(**given)
            # Attention is linear in the context, so the chunk in the middle of the prompt is the mean of all chunks.
            return chunk(part.prefill_tokens, part.middle_context, part.decode_tokens, part.decode_context)
        new, past, batch = ([row.get(key, default) for row in given] for key, default in _MIXED.items())
        return mixed([0] * len(given), new, past, batch)


_MIXED = {"new": 1, "past": 0, "batch": 1}


def read_case_model(case: Case, mirror: str | Path | None = None) -> tuple[Model, bool]:
    """Read the model of a case; return also whether it is a file in the dataset's folder."""
    name = case.inputs["model"]
    path = case.dataset.folder / name
    with name_key(case, "model"):
        if path.suffix == ".json":
            case.present(name, "model")
        own = os.path.isfile(path)
        return read_model(path if own else name, mirror, case.inputs.get("treat_as"), own), own


def read_scenario(case: Case, mirror: str | Path | None = None) -> Scenario:
    """Read the model and the GPUs of a case, and check its phases against the model.

    Parameters
    ----------
    mirror : path, optional
        A folder that is searched before the hub.
    """
    inputs = case.inputs
    model, own = read_case_model(case, mirror)
    with name_key(case, "precision"):
        precision = replace(model.precision, **inputs.get("precision", {}))
    with name_key(case, "parallel"):
        parallel = Parallel(**inputs.get("parallel", {}))
        parallel.check(model)
    fused, load = inputs.get("fused", True), inputs.get("expert_load", 0.0)
    scenario = Scenario(model, read_hardware(case), inputs["phases"], parallel, precision, fused, load, own)
    with name_key(case, "expert_load"):
        rows = scenario.kernels(prefill(1))
    if given := inputs.get("speculation"):
        scenario = replace(scenario, speculation=_read_speculation(case, model, given, mirror))
    for gpu in scenario.gpus:
        check_peaks(rows, gpu)
    given = scenario.phases.get("chunked_prefill")
    if given and not 0 < Chunk(**given).prefill_tokens <= given["input"]:
        requests = f"{given['input']:,} + {given['output']:,} tokens"
        problem = f"a chunk of {given['tokens']:,} tokens does not fit requests of {requests}"
        raise case.error("phases.chunked_prefill", problem, "use a smaller chunk or longer requests")
    for phase in scenario.phases:
        with name_key(case, f"phases.{phase}"):
            work = scenario.workload(phase)
        if scenario.images(phase) and scenario.phases[phase].get("cached", 0) > scenario.phases[phase]["input"]:
            problem = "more tokens are cached than input has, and none of the images'"
            raise case.error(f"phases.{phase}.cached", problem, "cache fewer")
        longest = int((work.new_tokens + work.past_tokens).max())
        if model.max_positions and longest > model.max_positions:
            problem = f"a context of {longest:,} tokens, but {model.name} supports {model.max_positions:,}"
            remedy = "shorten it, or use a config.json with a larger max_position_embeddings"
            raise case.error(f"phases.{phase}", problem, remedy)
    return scenario


def _read_speculation(case: Case, model: Model, given: Mapping[str, Any], mirror: str | Path | None) -> Speculation:
    phases = case.inputs["phases"]
    if strange := set(phases) - {"prefill", "decode"} or ("new" in phases.get("decode", {}) and {"decode.new"}):
        remedy = "it applies to the phases prefill and decode, whose new tokens are the drafted ones and one more"
        raise case.error("speculation", f"beside phases.{min(strange)}", remedy)
    with name_key(case, "speculation"):
        name, path = given["draft"], case.dataset.folder / given["draft"]
        draft = (
            name if name == "mtp" else read_model(path if (own := os.path.isfile(path)) else name, mirror, paths=own)
        )
        numbers = given.get("tokens", 1), given.get("acceptance", 0.8)
        return speculate(model, draft, *numbers, (str(case.dataset.file), f"{case.place}.speculation"))


@contextmanager
def name_key(case: Case, key: str) -> Iterator[None]:
    """Re-raise errors with the ``dataset.yaml`` key that they concern."""
    try:
        yield
    except InputError as error:
        if Path(error.file).suffix in (".json", ".yaml"):
            raise
        problem = f"{error.place}: {error.problem}" if error.place else error.problem
        raise case.error(key, problem, error.remedy) from None
