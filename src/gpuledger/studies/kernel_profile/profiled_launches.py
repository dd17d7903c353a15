"""The launches of a file, each with its shares of the roofs and its matrix instructions, a part at a time."""

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.errors import InputError, warn
from gpuledger.ledger.stored_data import collect, parts
from gpuledger.models.flop_prediction import predict_half_reduction, predict_tensor
from gpuledger.readers import ncu
from gpuledger.readers.gpu_identity import another_gpu
from gpuledger.readers.gpus import Gpu
from gpuledger.readers.kernel_names import parse
from gpuledger.readers.ncu.quantities import launch_quantities, missing_options
from gpuledger.studies.kernel_profile.roofs import RESOURCES, common_roofs, find_roofs, gpu_of, shares

#: A share of a roof (percent) that only another GPU, or a wrong number, explains.
_IMPOSSIBLE_PERCENT = 120


class ProfiledLaunches:
    """The launches of a file.

    Parameters
    ----------
    path, decimal
        As for `gpuledger.readers.ncu.read`.
    gpu : Gpu, optional
        Data sheet for the roofs that the report does not hold; by default that of the device that it names.
    shapes, place
        As for `gpuledger.studies.kernel_profile.profile`.

    Attributes
    ----------
    launches : DataFrame or StoredData
        One row per launch: ``launch``, the columns of `launch_quantities` and those of `predict_tensor`.
    about : dict
        Quantities of the recording, with their units.
    """

    def __init__(
        self,
        path: str | Path,
        decimal: str | None,
        gpu: Gpu | None,
        shapes: Sequence[dict[str, int]] = (),
        place: tuple[str, str] = ("shapes", ""),
    ):
        self._path, self._shapes = path, shapes
        self._device: str | None = None
        self._unnumbered, self._units, self._scaled, self._capabilities = True, False, False, set()
        self.launches = collect(self._read(decimal))
        for shape in shapes:
            if not 0 <= shape["launch"] < len(self.launches):
                problem = f"the report has no launch {shape['launch']}"
                raise InputError(*place, problem, f"it has the launches 0 to {len(self.launches) - 1}")
        device, capabilities = [self._device] if self._device else [], sorted(self._capabilities)
        if gpu is not None and (other := another_gpu(gpu, device, capabilities)):
            warn(path, "", f"it was recorded on {other}, not on {gpu.title}", f"the roofs are those of {gpu.title}")
        self._gpu = gpu or gpu_of(None, self._device, place)
        self._common = common_roofs(self.launches)
        highest = self._highest_roofs()
        if self._report.page == "summary":
            problem = "this is a summary (--print-summary): values are averages over a kernel's launches"
            warn(path, "", problem, "they are multiplied by the number of launches")
        if self._report.page == "wide" and self._unnumbered and not self._units:
            problem = "a column per metric without ID and units: not ncu's own page"
            warn(path, "", problem, "base units are assumed (ns, byte)")
        elif self._scaled and not self._units:
            warn(path, "", "no metric has a unit", "base units are assumed (ns, byte)")
        if self._report.errors:
            warn(path, "", f"ncu reported: {self._report.errors[0][:200]}", "what it recorded is used")
        self.about: dict[str, tuple[Any, str]] = {"page": (self._report.page, "text")}
        for name, roof in highest.dropna().items():
            unit = ("bytes_per_s", "byte/s") if name in ("dram", "l2") else ("flop_per_s", "FLOP/s")
            self.about[f"roof_{name}_{unit[0]}"] = roof, unit[1]
        if self._gpu is not None:
            self.about["gpu"] = self._gpu.title, "text"
        missing = missing_options(self.launches)
        self.about |= {f"missing_{name}": (f"ncu {option}", "text") for name, option in missing.items()}

    def rows(self, recording: str, baseline_time_s: np.ndarray | None = None) -> Iterator[pd.DataFrame]:
        """Yield the rows of the result, with the name of the recording and the times of the baseline."""
        first = 0
        for launches in parts(self.launches):
            near = shares(launches, find_roofs(launches, self._gpu, self._common)).add_suffix("_share_percent")
            at = launches.columns.get_loc("tensor")
            rows = pd.concat([launches.iloc[:, :at], near, launches.iloc[:, at:]], axis=1)
            rows.insert(0, "recording", recording)
            last = first + len(rows)
            rows["baseline_time_s"] = np.nan if baseline_time_s is None else baseline_time_s[first:last]
            first = last
            yield rows

    def _read(self, decimal: str | None) -> Iterator[pd.DataFrame]:
        before: tuple[bool, Any] = False, pd.NA
        for report in ncu.read_parts(self._path, decimal):
            launches = launch_quantities(report)
            self._device = self._device or _device(report)
            self._capabilities |= set(report.launches["compute_capability"].dropna().astype(str))
            self._unnumbered = self._unnumbered and report.launches["id"].isna().all()
            self._units = self._units or any(report.metrics["unit"].cat.categories)
            self._scaled = self._scaled or bool(launches[["time_s", "dram_bytes", "l2_bytes"]].notna().any(axis=None))
            # What the last part says holds for all: its page, and the errors so far.
            self._report = report
            if (launches["kernel"].str.strip() == "").any():
                remedy = "profile again with --print-kernel-base demangled"
                raise InputError(self._path, "", "a launch has no kernel name", remedy)
            query = launches[["kernel", "grid_blocks", "tensor_instructions"]].copy()
            query["tensor_instructions"] = query["tensor_instructions"].fillna(_from_operations(launches))
            for column in ("m", "n", "k", "batch"):
                query[column] = pd.array([pd.NA] * len(query), dtype="Int64")
            for shape in self._shapes:
                if shape["launch"] in query.index:
                    for column in set(shape) - {"launch"}:
                        query.loc[shape["launch"], column] = shape[column]
            tensor = predict_tensor(query, file=self._path).rename(columns={"predicted": "predicted_instructions"})
            _explain_reductions(launches, tensor, *before)
            before = tensor["tensor"].iat[-1], launches["grid_blocks"].iat[-1]
            yield pd.concat([launches, tensor.drop(columns="recorded")], axis=1).reset_index(names="launch")

    def _highest_roofs(self) -> pd.Series:
        """Return the highest roof of each resource, and warn of shares that are impossible."""
        highest = []
        for launches in parts(self.launches):
            roofs = find_roofs(launches, self._gpu, self._common)
            highest.append((roofs.max(), shares(launches, roofs).max()))
        roofs, near = (pd.DataFrame(each).max() for each in zip(*highest, strict=True))
        if self._gpu is not None and (most := near.max()) > _IMPOSSIBLE_PERCENT:
            problem = f"a kernel reaches {most:.0f} % of the {RESOURCES[near.idxmax()]} roof of {self._gpu.title}"
            warn(self._path, "", problem, "the number is kept: check that this GPU was recorded")
        return roofs


def _device(report: ncu.Report) -> str | None:
    """Return the name of the GPU, if the report holds it."""
    rows = report.metrics[report.metrics["metric"] == "device__attribute_display_name"]
    names = [*rows["text"].dropna().astype(str).unique(), *report.launches["device"].dropna().unique()]
    return next((name for name in names if not name.isdecimal()), None)


def _from_operations(launches: pd.DataFrame) -> pd.Series:
    """Return matrix instructions from operations of the tensor path, where the name states the instruction."""
    codes, names = pd.factorize(launches["kernel"])
    sizes = np.array([2 * prod(parse(name).mma or (0,)) for name in names], np.int64)
    size = pd.Series(sizes[codes], launches.index, dtype="Int64")
    operations = launches["tensor_flops"].where((launches["tensor_flops"] > 0) & (size > 0))
    whole = operations % size.where(size > 0) == 0
    return (operations // size.where(size > 0)).where(whole)


def _explain_reductions(launches: pd.DataFrame, tensor: pd.DataFrame, tensor_before: bool, blocks_before: Any) -> None:
    """Say how split-K reductions after tensor-core GEMMs come by their counts, given the launch before the first."""
    reductions = [name for name in launches["kernel"].unique() if parse(name).kernel_class == "split_k_reduce"]
    is_reduction = launches["kernel"].isin(reductions).to_numpy()
    after = tensor["tensor"].shift(1, fill_value=tensor_before).to_numpy()
    blocks = launches["grid_blocks"].shift(1)
    blocks.iloc[:1] = blocks_before
    known = blocks.notna() & launches["fmul_instructions"].notna() & launches["fadd_instructions"].notna()
    counts = [blocks, launches["fmul_instructions"], launches["fadd_instructions"]]
    texts = tensor["explanation"].to_numpy(dtype=object, copy=True)
    for at in np.flatnonzero(is_reduction & after & known.to_numpy()):
        found = predict_half_reduction(*(int(count.iat[at]) for count in counts))
        texts[at] = "split-K reduction: its counts match no split of the GEMM before it"
        if found:
            bias = " and a bias" if found[1] else ""
            texts[at] = f"split-K reduction: each output is the sum of {found[0]} parts{bias}"
    tensor["explanation"] = texts.astype(str)
