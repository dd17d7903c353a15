"""From recorded launches of cuBLAS to what the time model would have launched."""

import dataclasses

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult, slug
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets
from gpuledger.models.time_model import Constants, constants_of, gemm_plan, held_back
from gpuledger.models.time_model.constants.table import describe_constants, read_table
from gpuledger.models.time_model.gemms.dispatch import ANY, FREE
from gpuledger.models.time_model.gemms.launched_tile import launched_tile
from gpuledger.models.time_model.gemms.law import OPERAND_BYTES
from gpuledger.readers.gpus import Gpu, find_gpu, known_gpus
from gpuledger.readers.kernel_tables.launches import read_launches

#: What is compared, in words; each is a column of the data: 1 where it agrees, 0 where not, NaN where it is not known.
COMPARED = {
    "same_tile": "tile",
    "same_waves": "waves",
    "same_choice": "whether k is split",
    "same_split": "split of k",
    "ruled_tile": "tile, by a rule",
    "ruled_waves": "waves, by a rule",
}

#: The tiles that NVIDIA's guide names as cuBLAS's, in either order (Matrix Multiplication Background, 2.3).
LISTED = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64))
#: Blocks of kernels that take one tile after the other that an SM holds at once, at most.
_RESIDENT = 2


def reduce(case: Case) -> CaseResult:
    """Tell how often the model's tile, split of k and waves are those that were launched.

    Nothing is fitted. The model's constants are the table's for kernels of that GPU and precision that choose freely;
    the tile of a shape is the one with which the model's time is shortest. The rule is that of
    :mod:`gpuledger.models.time_model.gemms.launched_tile`, for Hopper and where k was left whole.

    Returns
    -------
    CaseResult
        Data: those of :func:`gpuledger.readers.kernel_tables.launches.read_launches`, ``predicted_tile_m,
        predicted_tile_n, predicted_split_k, predicted_waves, predicted_s, held_back`` (of the model's fits), and the
        keys of `COMPARED`; ``ruled_tile_m, ruled_tile_n``, the rule's tile.
    """
    known = known_gpus(case.path("hardware") if "hardware" in case.inputs else None)
    gpu = find_gpu(case.inputs["gpu"], known, case.dataset.file, f"{case.place}.gpu")
    path = case.path("launches")
    frame, unnamed = read_launches(path)
    if (large := frame["most_blocks"].max()) > gpu.sms * _RESIDENT:
        problem = f"a grid of {large:,} blocks is none of a kernel that takes one tile after the other on {gpu.title}"
        raise InputError(path, "column grid_x", problem, "correct the gpu, or record cuBLAS's kernels for it")
    parts, sources = [], []
    for precision, rows in frame.groupby("precision", sort=False):
        constants = _constants(gpu, str(precision))
        plan = gemm_plan(gpu, constants, *(rows[size].to_numpy() for size in "mnk"), precision=str(precision))
        names = ["tile_m", "tile_n", "split_k", "waves"]
        plan = plan[names].add_prefix("predicted_").assign(predicted_s=plan["time_s"].map(lambda s: float(f"{s:.6g}")))
        plan[["ruled_tile_m", "ruled_tile_n"]] = _ruled(gpu, rows, str(precision))
        parts.append(rows.join(plan.set_index(rows.index)))
        sources.append(constants.source)
    frame = pd.concat(parts).sort_index()
    frame["held_back"] = held_back(*(frame[size].to_numpy() for size in "mnk"))
    frame = frame.assign(**_compared(frame.assign(sms=gpu.sms)))
    result = CaseResult(frame)
    result.add("gpu", gpu.title, "text")
    result.add("unnamed", unnamed, "launch")
    for group in groups_of(frame):
        _add(result, frame[frame["group"] == group], suffix(group))
    result.add("finding", _finding(result, groups_of(frame)[0]), "text")
    result.provenance = {
        "label": f"{case.label}; the model's tiles are predicted",
        "inputs": [*describe_data_sheets([gpu], case.dataset.folder), describe_constants(dict.fromkeys(sources))],
    }
    return result


def groups_of(frame: pd.DataFrame) -> list[str]:
    """Return the types of number, 16 bits first."""
    return sorted(frame["group"].unique(), key=lambda group: (group != "16-bit", group))


def suffix(group: str) -> str:
    """Return what the names of a group's quantities end with: nothing for 16-bit ones."""
    return "" if group == "16-bit" else f"_{slug(group)}"


def _constants(gpu: Gpu, precision: str) -> Constants:
    """Return the constants of kernels that choose freely, of those the ones with the shortest launch."""
    free = [
        entry.constants
        for entry in read_table("gemm")
        if (entry.gpu, entry.precision) == (gpu.name, precision) and entry.constants.dispatch in FREE
    ]
    if free:
        return min(free, key=lambda constants: (constants.host_s, constants.launch_s))
    return dataclasses.replace(constants_of(gpu, precision), dispatch=ANY)


def _ruled(gpu: Gpu, rows: pd.DataFrame, precision: str) -> np.ndarray:
    """Return the tiles of the rule; NaN where there is none, or k is split."""
    if gpu.architecture != "hopper" or OPERAND_BYTES[precision] not in (1, 2):
        return np.full((len(rows), 2), np.nan)
    tiles = launched_tile(rows["m"].to_numpy(), rows["n"].to_numpy(), float(OPERAND_BYTES[precision]), gpu.sms)
    return np.where(rows["split"].to_numpy()[:, None], np.nan, tiles)


def _compared(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    known, ruled = frame["split_k"].notna(), frame["ruled_tile_m"].notna()
    tiles = [-(-frame[size] // frame[f"ruled_tile_{size}"].fillna(1)) for size in ("m", "n")]
    same = {
        "same_tile": (frame["tile_m"] == frame["predicted_tile_m"]) & (frame["tile_n"] == frame["predicted_tile_n"]),
        "same_waves": frame["waves"] == frame["predicted_waves"],
        "same_choice": frame["split"] == (frame["predicted_split_k"] > 1),
        "same_split": frame["split_k"] == frame["predicted_split_k"],
        "ruled_tile": (frame["tile_m"] == frame["ruled_tile_m"]) & (frame["tile_n"] == frame["ruled_tile_n"]),
        "ruled_waves": frame["waves"] == np.ceil(tiles[0] * tiles[1] / frame["sms"]),
    }
    told = {"same_tile": True, "same_waves": known, "same_choice": True, "same_split": known & frame["split"]}
    told |= {"ruled_tile": ruled, "ruled_waves": ruled}
    return {name: np.where(told[name], values.astype(float), np.nan) for name, values in same.items()}


def _add(result: CaseResult, rows: pd.DataFrame, end: str) -> None:
    result.add(f"shapes{end}", len(rows), "shape")
    result.add(f"kernels{end}", rows["kernel"].nunique(), "kernel")
    result.add(f"tiles{end}", rows.groupby(["tile_m", "tile_n"]).ngroups, "tile")
    sides = np.sort(rows[["tile_n", "tile_m"]].to_numpy(), axis=1)[:, ::-1]
    listed = (sides[:, None] == np.array(LISTED)).all(axis=2).any(axis=1)
    result.add(f"listed_tiles_percent{end}", 100 * float(listed.mean()), "%")
    result.add(f"most_blocks{end}", int(rows["most_blocks"].max()), "block")
    whole = rows[~rows["split"]]
    fits = whole["blocks"] == whole[["tiles", "most_blocks"]].min(axis=1)
    result.add(f"grids_explained_percent{end}", 100 * float(fits.mean()) if len(whole) else np.nan, "%")
    result.add(f"split_percent{end}", 100 * float(rows["split"].mean()), "%")
    predicted = 100 * float((rows["predicted_split_k"] > 1).mean())
    result.add(f"predicted_split_percent{end}", predicted, "%")
    for name in COMPARED:
        result.add(f"{name}_percent{end}", 100 * rows[name].mean(), "%")
    back = rows[rows["held_back"]]
    for name in ("ruled_tile", "ruled_waves"):
        result.add(f"{name}_held_back_percent{end}", 100 * back[name].mean(), "%")
    for size in ("m", "n"):
        same = rows[f"tile_{size}"] == rows[f"predicted_tile_{size}"]
        result.add(f"same_tile_{size}_percent{end}", 100 * float(same.mean()), "%")
    told = rows[rows["split"] & rows["split_k"].notna()]
    result.add(f"splits_told{end}", len(told), "shape")
    result.add(f"shortest_part{end}", (told["k"] / told["split_k"]).min(), "element")


def _finding(result: CaseResult, group: str) -> str:
    end = suffix(group)
    ruled = result.get(f"ruled_tile_held_back_percent{end}", np.nan)
    known = not (isinstance(ruled, str) or np.isnan(ruled))
    rule = f"; for whole k, a rule of two numbers gives {ruled:.0f} % of the tiles" if known else ""
    shares = (result[f"same_{name}_percent{end}"] for name in ("tile", "waves", "choice"))
    tile, waves, choice = ("an unknown share" if isinstance(share, str) else f"{share:.0f} %" for share in shares)
    return (
        f"cuBLAS launches {result[f'tiles{end}']} tiles for {result[f'shapes{end}']:,} {group} shapes on "
        f"{result['gpu']}; the time model has the same tile for {tile} of the shapes, as many waves for "
        f"{waves}, and knows for {choice} whether k is split{rule}"
    )
