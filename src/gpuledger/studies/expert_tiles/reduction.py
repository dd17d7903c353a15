"""From measured MoE layers to the rates that they reach with shipped tiles and with default tiles."""

import numpy as np
import pandas as pd

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.ledger.provenance import describe_data_sheets, describe_file
from gpuledger.models.time_model.moe import DTYPES, load_table
from gpuledger.models.time_model.triton_tiles import KERNELS, TABLE, triton_tiles
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.engines import read_moe
from gpuledger.studies.expert_tiles.models import model_rows

#: What a layer is but for its columns, which engines split among GPUs.
LAYER = ["kernel", "precision", "experts", "hidden", "chosen", "gates"]
#: Widths that are compared differ by no more doublings than this; columns of the comparisons, and on which side.
_NEAR = 1.0
SIDES = {"over_narrower": -1, "over_wider": 1}
#: Columns of the narrowest experts that count in prompts: below, the kernels around the GEMMs take the time.
LEAST_COLUMNS = 256


def reduce(case: Case, prompt_rows: int = 256, decode_tokens: int = 64) -> CaseResult:
    """Tell rates with and without tuned tiles.

    Parameters
    ----------
    prompt_rows : int
        Rows of each expert from which on a launch counts as a prompt's.
    decode_tokens : int
        Tokens up to which a launch counts as a decode step's.

    Returns
    -------
    CaseResult
        Data: a row per launch on one rank with an even load: `LAYER`, ``inter`` (columns of an expert), ``tokens,
        expert_rows`` (mean), ``flop_per_s, weights_per_s`` (bytes of the experts with a row), ``tuned, tile_rows,
        tile_columns, tile_depth``, ``kind`` (prompt, decode or between), and of a prompt's launch with tuned tiles
        ``over_narrower, over_wider``: its rate over that of the next width on either side without, of the same layer
        and tokens (NaN: none within a factor of two). Then the rows of
        :func:`gpuledger.studies.expert_tiles.models.model_rows`, of kind ``model``.
    """
    gpu = find_gpu(case.inputs["gpu"], file=case.dataset.file, place=f"{case.place}.gpu")
    frame, _ = read_moe(case.path("moe"), case.inputs["unit"])
    frame = frame[frame["kernel"].str.contains(KERNELS) & (frame["ranks"] == 1) & frame["power"].isna()]
    if frame.empty:
        problem, remedy = "no kernel of Triton's on a single rank with an even load", "give another table"
        raise InputError(case.path("moe"), "column kernel_source", problem, remedy)
    frame = frame.reset_index(drop=True).join(load_table(frame.reset_index(drop=True))[["active"]])
    frame["expert_rows"] = frame["tokens"] * frame["chosen"] / frame["experts"]
    matrix = frame["hidden"] * frame["inter"] * (1 + frame["gates"])
    frame["flop_per_s"] = 2.0 * frame["tokens"] * frame["chosen"] * matrix / frame["measured_s"]
    width = frame["precision"].map({name: sizes[0] for name, sizes in DTYPES.items()})
    frame["weights_per_s"] = frame["active"] * matrix * width / frame["measured_s"]
    for precision, rows in frame.groupby("precision").groups.items():
        name = "bf16" if precision == "mxfp4_as_bf16" else precision
        sizes = (frame.loc[rows, size].to_numpy(dtype=float) for size in ("experts", "inter", "tokens"))
        tile = triton_tiles(f"triton {case.inputs['engine']}", gpu, name, *sizes)
        frame.loc[rows, ["tile_rows", "tile_columns", "tile_depth"]] = np.column_stack(tile[:3])
        frame.loc[rows, "tuned"] = tile.tuned
    frame["tuned"] = frame["tuned"].astype(bool)
    wide = frame["inter"] >= LEAST_COLUMNS
    few, many = frame["tokens"] <= decode_tokens, (frame["expert_rows"] >= prompt_rows) & wide
    frame["kind"] = np.select([few, many], ["decode", "prompt"], "between")
    for name, side in SIDES.items():
        frame[name] = _gains(frame, side)
    whole = ["tile_rows", "tile_columns", "tile_depth"]
    columns = [*LAYER, "inter", "tokens", "expert_rows", "measured_s", "flop_per_s", "weights_per_s", "tuned", *whole]
    frame = frame.astype(dict.fromkeys(whole, np.int64))[[*columns, "kind", *SIDES]]
    for name in ("flop_per_s", "weights_per_s", *SIDES):
        frame[name] = frame[name].map(lambda value: float(f"{value:.6g}"))
    engine = case.inputs["engine"].partition(" ")[0]
    listed = model_rows(engine, gpu.name, case.path("configs") if "configs" in case.inputs else None)
    result = CaseResult(_joined(frame, listed))
    result.add("gpu", gpu.title, "text")
    result.add("dram_bandwidth", gpu.dram_bytes_per_s, "byte/s")
    for precision in precisions(frame):
        _add(result, gpu.flops.get(DTYPES[precision][2], np.nan), precision)
    result.add("finding", _finding(result, case.inputs["engine"]), "text")
    result.provenance = {
        "inputs": [
            *describe_data_sheets([gpu], case.dataset.folder),
            describe_file(TABLE, files.ROOT, {"source": "tiles that vLLM 0.24.0 and SGLang 0.5.14 ship (Apache-2.0)"}),
        ]
    }
    return result


def _joined(frame: pd.DataFrame, listed: pd.DataFrame) -> pd.DataFrame:
    """Return measured launches and, below, models; what either does not have is missing."""
    sizes = ["experts", "hidden", "chosen", "gates", "inter", "tokens", "tile_rows", "tile_columns", "tile_depth"]
    frame = pd.concat([frame.astype({"kernel": "string"}), listed.astype({"model": "string"})], ignore_index=True)
    return frame.astype(dict.fromkeys([*sizes, "gpus"], "Int64"))


def precisions(data: pd.DataFrame) -> list[str]:
    """Return the measured precisions, first those whose prompts have most launches of the rarer kind of tiles."""
    data = data[data["kind"] != "model"]
    prompts = data[data["kind"] == "prompt"]
    counts = prompts.groupby("precision")["tuned"].agg(lambda tuned: min(tuned.sum(), (~tuned).sum()))
    return [*counts.reindex(data["precision"].unique(), fill_value=0).sort_values(ascending=False, kind="stable").index]


def gain(data: pd.DataFrame) -> float:
    """Return how many times the rate of layers without tuned tiles those with reach, in prompts.

    Wider experts reach more by themselves. So it is the geometric mean of the medians over the next narrower and the
    next wider layers; NaN unless there are both.
    """
    return float(np.sqrt(data["over_narrower"].median() * data["over_wider"].median()))


def _gains(frame: pd.DataFrame, side: int) -> np.ndarray:
    """Return the rate of tuned prompts' launches over that of the next width on one side without tuned tiles."""
    gains = np.full(len(frame), np.nan)
    for _, rows in frame[frame["kind"] == "prompt"].groupby([*LAYER, "tokens"]):
        usual, tuned = rows[~rows["tuned"]], rows[rows["tuned"]]
        if usual.empty or tuned.empty:
            continue
        apart = side * np.log2(usual["inter"].to_numpy() / tuned["inter"].to_numpy()[:, None])
        apart = np.where((apart > 0) & (apart <= _NEAR), apart, np.inf)
        ratio = tuned["flop_per_s"].to_numpy() / usual["flop_per_s"].to_numpy()[apart.argmin(axis=1)]
        gains[tuned.index] = np.where(np.isfinite(apart.min(axis=1)), ratio, np.nan)
    return gains


def _add(result: CaseResult, peak: float, precision: str) -> None:
    data = result.data[(result.data["precision"] == precision) & (result.data["kind"] != "model")]
    result.add(f"{precision}_peak", peak, "FLOP/s")
    for tuned, name in ((True, "tuned"), (False, "default")):
        part = data[data["tuned"] == tuned]
        layers = part.groupby([*LAYER, "inter"]).ngroups
        result.add(f"{precision}_{name}_layers", layers, "layer")
        for kind, value, unit in (("prompt", "flop_per_s", "FLOP/s"), ("decode", "weights_per_s", "byte/s")):
            if (part["kind"] == kind).any():
                result.add(f"{precision}_{name}_{kind}", part.loc[part["kind"] == kind, value].median(), unit)
    result.add(f"{precision}_pairs", int(data[[*SIDES]].notna().sum().sum()), "pair")
    if np.isfinite(times := gain(data)):
        result.add(f"{precision}_gain", times, "ratio")


def _finding(result: CaseResult, engine: str) -> str:
    found = [
        (precision, *(result.get(f"{precision}_{name}_prompt") for name in ("tuned", "default")))
        for precision in precisions(result.data)
    ]
    names = {"sglang": "SGLang", "vllm": "vLLM", "vllm before 0.16": "vLLM"}
    both = [one for one in found if None not in one]
    if not both:
        tuned = result.data.loc[result.data["kind"] != "model", "tuned"].any()
        what = "ships tiles for all" if tuned else "ships no tiles for any"
        return f"{names[engine]} {what} of these experts on {result['gpu']}"
    precision, tuned, usual = both[0]
    rates = f"{tuned / 1e12:.0f} TFLOP/s with the tiles that {names[engine]} ships for them, {usual / 1e12:.0f} without"
    return f"Experts in {precision} on {result['gpu']} reach {rates} (median of launches with long prompts)"
