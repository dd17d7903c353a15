"""Fit the constants of every kernel in AIConfigurator's tables and write resources/time_constants.csv.

    python benchmarks/time_constants.py FOLDER [--gpu ID ...] [--tables FOLDER] [--judge]

FOLDER is .../aiconfigurator_core/systems/data, unpacked from the package that traces/aiconfigurator names. Of each GPU
and framework the newest whole version is taken. Constants are fitted to the half of the shapes that the study
kernel_time does not hold back; the other half says what they are worth, their mean absolute percentage error.
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from gpuledger import files
from gpuledger.ledger.case_result import settle
from gpuledger.models.time_model import held_back
from gpuledger.models.time_model.constants.table import (
    JUDGED,
    KEYS,
    KINDS,
    PYTORCH,
    SHAPES,
    TABLE,
    AnyConstants,
    read_table,
)
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_time import engine_prediction, module_prediction, prediction
from gpuledger.studies.kernel_time.every_table import TABLES, kernels_of, newest, predict
from gpuledger.studies.kernel_time.module_measurements import read_models, read_modules

FOLDERS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200",
    "gb200": "gb200",
    "b300_sxm": "b300",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
    "b60": "b60",
}
#: What gpuledger recorded of PyTorch's attention, by GPU.
RECORDED = {f"{gpu}-sxm": files.ROOT / f"traces/nvidia-{gpu}/kernel_time/attention.csv" for gpu in ("h100", "h200")}
#: Whole attention blocks, of whose kernels only the attention is fitted.
BLOCKS = (
    "sparse_attention/*/*/dsa_*_module_perf.parquet",
    "sparse_attention/*/*/dsv4_[ch][sc]a_[cg]*_module_perf.parquet",
    # TensorRT-LLM's blocks of MiniMax-M3 take up to 100 times as long as the others': not what anyone would serve with.
    "msa/[sv]*/*/msa_*_module_perf.parquet",
)
#: Columns of a kernel's shapes, as :attr:`gpuledger.models.time_model.constants.table.Entry.shapes` has them.
_SHAPES = {
    "prefill": ["head_dim"],
    "decode": ["head_dim"],
    "backward": ["head_dim"],
    "moe": ["experts", "hidden", "chosen"],
}
#: Blocks of a kernel that are predicted at most.
MOST_BLOCKS = 3000


def fits(gpu, path: Path, pattern: str, known: Mapping[tuple, AnyConstants], framework: str, where: str) -> list[dict]:
    """Fit and judge every kernel and data type of one table; judge those that are known already."""
    rows = []
    for measured in kernels_of(SimpleNamespace(inputs={"unit": "ms"}), path, pattern):
        part = measured.rows
        if measured.kind == "gemm" and part["group"].nunique() > 1:
            # The same precision in other storage (int8_wo, int4_wo): kernels of their own.
            part = part[part["group"] == "16-bit"]
        half, back = part[~part["held_back"]], part[part["held_back"]]
        names = (measured.kind, gpu.name, framework, measured.kernel, measured.precision)
        constants = known.get(names)
        if constants is None:
            if known or len(half) < prediction.LEAST_SHAPES:
                continue
            if measured.spec is None:
                constants, _ = prediction.gemm_constants(gpu, half, measured.precision)
            else:
                constants = engine_prediction.fit(gpu, measured.spec, half)
            source = f"{constants.source} of {len(part)} of {where}"
            constants = dataclasses.replace(constants, source=source)
        error = 100 * np.abs(predict(gpu, constants, measured, back) / back["measured_s"].to_numpy() - 1).mean()
        worth = {"held_back_shapes": len(back), "held_back_percent": round(float(error), 2)}
        if sizes := _SHAPES.get(measured.kind):
            shapes = part[sizes].drop_duplicates().sort_values(sizes)
            worth[SHAPES] = " ".join("x".join(f"{size:g}" for size in shape) for shape in shapes.to_numpy())
        row = dict(zip(KEYS, names, strict=True)) | dataclasses.asdict(constants) | worth
        # Of known constants, counts are read with separators.
        rows.append(row | {"source": re.sub(r"(?<=\d),(?=\d{3})", "", row["source"])})
        print(*names, worth["held_back_percent"], flush=True)
    return rows


def block_fits(gpu, paths: list[Path], configs: Path) -> list[dict]:
    """Fit the attention of every kernel of one phase's tables of blocks, unless its own times were measured too."""
    case = SimpleNamespace(inputs={"unit": "ms"}, path=lambda _: configs)
    frames = [read_modules(case, path)[0] for path in paths]
    frame, framework, rows = pd.concat(frames, ignore_index=True), paths[0].parents[1].name, []
    frame = frame[frame["selects"]]
    models = read_models(case, paths[0], frame)
    for (kernel, precision), part in frame.groupby(["kernel", "precision"], sort=True):
        half = part[~held_back(*(part[name].to_numpy() for name in ("requests", "tokens", "context", "heads")))]
        few = half.iloc[:: max(1, len(half) // MOST_BLOCKS)]
        blocks = module_prediction.predict_blocks(gpu, models, few)
        constants = module_prediction.fit_blocks(gpu, blocks, few["measured_s"].to_numpy())
        if not constants.tensor_share or (framework, precision) == ("sglang", "attention"):
            continue
        own = module_prediction.attention_constants(constants)
        where = ", ".join("/".join(path.parts[-5:]) for path in paths)
        source = f"fitted to {len(few)} measured attention blocks of {len(part)} of AIConfigurator 0.12.0: {where}"
        names = ("sparse", gpu.name, framework, kernel, precision)
        rows.append(dict(zip(KEYS, names, strict=True)) | dataclasses.asdict(own) | {"source": source})
        print(*names, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", action="append", choices=FOLDERS.values(), help="only this one; all other rows stay")
    parser.add_argument(
        "--tables", default="", help="only tables below this folder, such as gemm or moe; all other rows stay"
    )
    parser.add_argument("--judge", action="store_true", help="fit nothing: write anew how well all constants predict")
    arguments = parser.parse_args()
    known = {(kind, *entry[:4]): entry.constants for kind in KINDS for entry in read_table(kind)}
    known = known if arguments.judge else {}
    rows = []
    for name, gpu in FOLDERS.items():
        if arguments.gpu and gpu not in arguments.gpu:
            continue
        for pattern in TABLES:
            if not pattern.startswith(arguments.tables):
                continue
            for path in newest(arguments.folder / name, pattern).values():
                where = f"AIConfigurator 0.12.0: {'/'.join(path.parts[-5:])}"
                rows += fits(find_gpu(gpu), path, pattern, known, path.parents[1].name, where)
        if gpu in RECORDED and "attention".startswith(arguments.tables):
            path = RECORDED[gpu]
            where = f"gpuledger's recordings: {'/'.join(path.parts[-3:])}"
            rows += fits(find_gpu(gpu), path, "attention/*/*/*_attention_perf.parquet", known, PYTORCH, where)
        for pattern in BLOCKS:
            if known or not pattern.startswith(arguments.tables):
                continue
            # One kernel attends in the blocks of all layers of a model.
            phases: dict[tuple[str, str], list[Path]] = {}
            for (framework, table), path in newest(arguments.folder / name, pattern).items():
                phases.setdefault((framework, table.split("_")[-3]), []).append(path)
            for paths in phases.values():
                rows += block_fits(find_gpu(gpu), paths, arguments.folder.parents[1] / "model_configs")
    names = [f.name for of in KINDS.values() for f in dataclasses.fields(of) if f.name != "source"]
    # A table that exists keeps the order of its columns.
    old = pd.read_csv(TABLE, dtype=str, keep_default_na=False) if TABLE.exists() else pd.DataFrame(columns=KEYS)
    last = [SHAPES, *JUDGED, "source"]
    columns = [*dict.fromkeys([*old.columns.drop(last, errors="ignore"), *names]), *last]
    table = pd.DataFrame(rows, columns=columns)
    if arguments.gpu or arguments.tables or known:
        table = pd.concat([old, table], ignore_index=True).drop_duplicates(list(KEYS), keep="last")
    # Whole numbers look alike, whether all rows are made or some.
    table = table.map(lambda cell: settle(float(cell)) if isinstance(cell, int | float) and cell == cell else cell)
    table[JUDGED[0]] = pd.to_numeric(table[JUDGED[0]]).astype("Int64")
    ranks = {name: place for place, name in enumerate([*KINDS, *FOLDERS.values()])}
    order = pd.DataFrame({"kind": table["kind"].map(ranks), "gpu": table["gpu"].map(ranks)}).assign(
        **{name: table[name] for name in KEYS[2:]}
    )
    table = table.loc[order.sort_values(list(KEYS), kind="stable").index, columns]
    table.to_csv(TABLE, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
