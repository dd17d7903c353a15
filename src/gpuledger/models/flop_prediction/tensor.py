"""The closed form on tensor cores: warp-level matrix instructions of one launch, from its name and its grid.

A GEMM or convolution block computes a tile of C, in steps of the tile's K; each step is a fixed number of matrix
instructions, padding included. Attention blocks compute pairs of query and key tiles. What name and grid leave open is
one integer: the steps (or pairs). It follows from the shape where that is known. Otherwise it is read off the counter,
and the check is that the counter is a whole number of steps: with 3,072 instructions in a step of the whole grid, a
wrong tile would pass once in 3,072 times.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path

import pandas as pd

from gpuledger.models.flop_prediction.gemm import integer_column
from gpuledger.readers.kernel_names import KernelName, parse, template_arguments

_WARPGROUP = re.compile(r"^sm(?:9|1\d)\d_|^nvjet_|^cutlass3x_|gmma|Sm(?:9|1\d)\d")
_TRAITS = re.compile(r"(FMHA_kernel_traits|Flash_fwd_kernel_traits)(<.*)")


@dataclass(frozen=True)
class _Step:
    """What one step of a kernel executes."""

    instructions: int  # warp-level matrix instructions
    every_block: bool  # whether every block of the grid makes the same number of steps
    words: str
    tile: tuple[int, int, int]  # (m, n, k) of a GEMM; queries, keys and head size of attention


def _numbers(arguments: list[str]) -> list[int | None]:
    """Return the integers among template arguments: ``128``, ``(int)128``."""
    found = [re.fullmatch(r"(?:\([a-z ]+\))?(\d{1,5})", argument) for argument in arguments]
    return [int(match[1]) if match else None for match in found]


def _step(fact: KernelName) -> _Step | str:
    """Return a kernel's step, or the reason why its name does not give one."""
    if _WARPGROUP.search(fact.base[:512]):
        return "warpgroup instructions (Hopper and later): how ncu counts them is not checked"
    if fact.kernel_class == "attention":
        return _attention_step(fact)
    if fact.mma is None:
        return "the name does not state the matrix instruction"
    if None in (fact.tile_m, fact.tile_n, fact.tile_k):
        return "the name does not state the tile and its depth"
    tile = (fact.tile_m, fact.tile_n, fact.tile_k)
    if not all(size and size % part == 0 for size, part in zip(tile, fact.mma, strict=True)):
        return f"the tile {tile[0]}×{tile[1]}×{tile[2]} is not made of whole instructions"
    words = f"tile {tile[0]}×{tile[1]}, K in steps of {tile[2]}, instructions of {'×'.join(map(str, fact.mma))}"
    return _Step(prod(tile) // prod(fact.mma), True, words, tile)


def _attention_step(fact: KernelName) -> _Step | str:
    found = _TRAITS.search(fact.name[:4096])
    if not found or fact.mma is None:
        return "the name does not state tiles and head size"
    numbers = _numbers(template_arguments(found[2]))[:3]
    if len(numbers) < 3 or None in numbers or not all(numbers):
        return "the name does not state tiles and head size"
    # FlashAttention 1: keys, head size, queries; FlashAttention 2: head size, queries, keys.
    keys, head, queries = numbers if found[1] == "FMHA_kernel_traits" else (numbers[2], numbers[0], numbers[1])
    instructions, rest = divmod(2 * queries * keys * head, prod(fact.mma))
    if rest:
        return f"tiles of {queries} queries × {keys} keys × {head} are not made of whole instructions"
    words = f"pairs of {queries} queries and {keys} keys, head size {head}: Q·K and P·V"
    return _Step(instructions, False, words, (queries, keys, head))


def predict_tensor(launches: pd.DataFrame, *, file: str | Path = "launches") -> pd.DataFrame:
    """Predict the matrix instructions of tensor-core launches.

    For a tile Tm×Tn×Tk and instructions of mma = m·n·k on a grid of B blocks::

        step   = B·Tm·Tn·Tk / mma                one step of the whole grid
        GEMM   = tiles·Tm·Tn·Tk/mma·Σᵢ ⌈kᵢ/Tk⌉     tiles = batch·⌈N/Tm⌉·⌈M/Tn⌉, split-K factor s = B/tiles, kᵢ of ⌈K/s⌉
        pair   = 2·queries·keys·head / mma       attention: a tile of queries with a tile of keys, Q·K and P·V

    Parameters
    ----------
    launches : pandas.DataFrame
        One row per launch: ``kernel``; optional ``grid_blocks``, ``tensor_instructions`` (recorded, without HFMA2), and
        the shape ``m, n, k, batch`` where it is known.

    Returns
    -------
    pandas.DataFrame
        Same index: ``tensor`` (the name or the counter says that tensor cores multiply), ``step_instructions`` (of the
        whole grid; of one pair for attention), ``steps`` (of a tile by its shape, of a block by the counter),
        ``steps_source`` (shape, counter, unknown), ``predicted`` and ``recorded`` (instructions), ``exact`` (boolean;
        ``<NA>`` if nothing was recorded or predicted) and ``explanation``. ``predicted`` is ``<NA>`` where the steps
        are unknown, or the counter is not a whole number of them.
    """
    columns = ("grid_blocks", "m", "n", "k", "batch", "tensor_instructions")
    given = {name: integer_column(launches, name, file, int(name != "tensor_instructions")) for name in columns}
    facts = {name: parse(name) for name in launches["kernel"].unique()}
    steps = {name: _step(fact) for name, fact in facts.items()}
    # Launches that are alike are predicted once.
    every = pd.DataFrame({"kernel": launches["kernel"]} | given).reset_index(drop=True)
    alike = every.groupby([*every.columns], sort=False, dropna=False).ngroup()
    rows = []
    distinct = every[~alike.duplicated()]
    lists = [distinct[name].to_numpy(object, na_value=None).tolist() for name in distinct]
    for name, *numbers in zip(*lists, strict=True):
        known = dict(zip(columns, numbers, strict=True))
        on_tensor_cores = facts[name].tensor_core
        tensor = bool(known["tensor_instructions"]) if on_tensor_cores is None else on_tensor_cores
        rows.append({"tensor": tensor} | (_predict_one(steps[name], known) if tensor else {}))
    found = ("tensor", "step_instructions", "steps", "steps_source", "predicted", "recorded", "exact", "explanation")
    out = pd.DataFrame(rows, columns=found)
    for column in ("step_instructions", "steps", "predicted", "recorded"):
        out[column] = out[column].astype("Int64")
    out["tensor"], out["exact"] = out["tensor"].astype(bool), out["exact"].astype("boolean")
    for column in ("steps_source", "explanation"):
        out[column] = out[column].astype("str").fillna("")
    return out.take(alike).set_axis(launches.index)


def _predict_one(step: _Step | str, given: dict[str, int | None]) -> dict[str, object]:
    recorded = given["tensor_instructions"]
    row: dict[str, object] = {"recorded": recorded, "steps_source": "unknown"}
    if isinstance(step, str):
        return row | {"explanation": step}
    blocks = given["grid_blocks"]
    if step.every_block and blocks is None:
        return row | {"explanation": f"{step.words}; the grid is not recorded (ncu --section LaunchStats)"}
    quantum = step.instructions * (blocks if step.every_block else 1)
    row["step_instructions"] = quantum
    whole = "steps" if step.every_block else "pairs"
    if step.every_block and None not in (given["m"], given["n"], given["k"]):
        tile_m, tile_n, tile_k = step.tile
        tiles = (given["batch"] or 1) * -(-given["n"] // tile_m) * -(-given["m"] // tile_n)
        split, rest = divmod(blocks, tiles)
        if rest or not split:
            return row | {"explanation": f"{step.words}; the grid of {blocks:,} blocks is not made of {tiles:,} tiles"}
        chunk = -(-given["k"] // split)
        parts = [max(min(chunk, given["k"] - begin), 0) for begin in range(0, split * chunk, chunk)]
        depth = sum(-(-part // tile_k) for part in parts)
        predicted = tiles * step.instructions * depth
        words = f"{step.words}; {tiles:,} tiles" + (f", K split by {split}" if split > 1 else "")
        row |= {"steps": depth, "steps_source": "shape", "predicted": predicted, "explanation": words}
        return row | {"exact": None if recorded is None else recorded == predicted}
    if recorded is None:
        return row | {"explanation": f"{step.words}; {quantum:,} instructions per step, whose number nothing says"}
    count, rest = divmod(recorded, quantum)
    if rest or not count:
        words = f"the counter is {recorded / quantum:.3f} {whole}, not a whole number"
        if recorded and not recorded % step.instructions:
            words += f" (but {recorded // step.instructions:,} of single blocks: some blocks make fewer)"
        return row | {"exact": False, "explanation": f"{step.words}; {words}"}
    words = f"{step.words}; {count:,} × {quantum:,} instructions"
    return row | {"steps": count, "steps_source": "counter", "predicted": recorded, "exact": True, "explanation": words}


def predict_half_reduction(gemm_blocks: int, fmul: int, fadd: int) -> tuple[int, bool] | None:
    """Explain a split-K reduction by its counters and the grid of the GEMM before it.

    ``splitKreduce_kernel`` multiplies each output by alpha once (FMUL) and adds up s parts (FADD), and one more if it
    adds the bias; whatever the type of the outputs, the sums are in fp32. s divides the blocks of the GEMM.

    Returns
    -------
    tuple of (int, bool) or None
        s, and whether the bias is added; None if no such s exists.
    """
    if fmul < 1 or fadd % fmul:
        return None
    for bias in (False, True):
        split = fadd // fmul - bias
        if split > 1 and gemm_blocks % split == 0:
            return split, bias
    return None
