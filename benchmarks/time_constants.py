"""Fit the constants of every kernel in AIConfigurator's tables and write resources/time_constants.csv.

    python benchmarks/time_constants.py FOLDER [--gpu ID ...] [--tables FOLDER]

FOLDER is .../aiconfigurator_core/systems/data, unpacked from the package that traces/aiconfigurator names. Of each GPU
and framework the newest whole version is taken. Constants are fitted to the half of the shapes that the study
kernel_time does not hold back, so that its judgement of another case says what they are worth.
"""

import argparse
import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow.parquet as pq

from gpuledger.ledger.case_result import settle
from gpuledger.models.time_model import held_back
from gpuledger.models.time_model.constants import KEYS, KINDS, TABLE
from gpuledger.models.time_model.moe import load_table
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_time import engine_prediction, module_prediction, prediction
from gpuledger.studies.kernel_time.engine_measurements import read_attention, read_collectives, read_moe
from gpuledger.studies.kernel_time.measurements import read_gemms
from gpuledger.studies.kernel_time.module_measurements import read_models, read_modules
from gpuledger.studies.kernel_time.recurrent_measurements import read_recurrent
from gpuledger.studies.kernel_time.small_measurements import read_products, read_quantise
from gpuledger.studies.kernel_time.sparse_measurements import read_sparse

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
}


def read_both(case, path: Path):
    """Read quantising kernels with a known scale and, from the table beside, those that find it."""
    return read_quantise(case, path, path.with_name("computescale_perf.parquet"))


TABLES = {
    "gemm/*/*/gemm_perf.parquet": read_gemms,
    "attention/*/*/*_attention_perf.parquet": read_attention,
    "mla/*/*/context_mla_perf.parquet": read_attention,
    "mla/*/*/generation_mla_perf.parquet": read_attention,
    "moe/*/*/moe_perf.parquet": read_moe,
    "comm/nccl/*/nccl_perf.parquet": read_collectives,
    "comm/*/*/custom_allreduce_perf.parquet": read_collectives,
    "linear_attention/*/*/gdn_perf.parquet": read_recurrent,
    "linear_attention/*/*/mamba2_perf.parquet": read_recurrent,
    "kda/*/*/kda_perf.parquet": read_recurrent,
    "encoder_attention/*/*/encoder_attention_perf.parquet": read_attention,
    "quantize/*/*/scale_matrix_perf.parquet": read_both,
    "mla_bmm/*/*/mla_bmm_perf.parquet": read_products,
    "sparse_attention/*/*/glm5_*_module_perf.parquet": read_sparse,
    "sparse_attention/*/*/dsv4_paged_mqa_logits_module_perf.parquet": read_sparse,
}
#: Whole attention blocks, of whose kernels only the attention is fitted.
BLOCKS = (
    "sparse_attention/*/*/dsa_*_module_perf.parquet",
    "sparse_attention/*/*/dsv4_[ch][sc]a_[cg]*_module_perf.parquet",
    # TensorRT-LLM's blocks of MiniMax-M3 take up to 100 times as long as the others': not what anyone would serve with.
    "msa/[sv]*/*/msa_*_module_perf.parquet",
)
#: Blocks of a kernel that are predicted at most.
MOST_BLOCKS = 3000


#: A newer table with less of the rows of an older one than this adds a model's shapes to it and does not replace it
#: (TensorRT-LLM 1.3.0rc23's experts: the package declares that all others are still those of 1.3.0rc20).
WHOLE = 0.1


def newest(folder: Path, pattern: str) -> dict[tuple[str, str], Path]:
    """Return the newest whole table of each framework and name."""
    found: dict[tuple[str, str], Path] = {}
    versions = {path: [int(part) for part in re.findall(r"\d+", path.parent.name)] for path in folder.glob(pattern)}
    rows = {path: pq.read_metadata(path).num_rows for path in versions}
    for path in sorted(versions, key=versions.__getitem__):
        key = path.parents[1].name, path.name
        if key not in found or rows[path] >= WHOLE * rows[found[key]]:
            found[key] = path
    return found


def fits(gpu, path: Path, read) -> list[dict]:
    """Fit every kernel and data type of one table."""
    frame, _ = read(SimpleNamespace(inputs={"unit": "ms"}), path)
    rows = []
    for (kernel, precision), part in frame.groupby(["kernel", "precision"], sort=True):
        kind = "gemm" if read is read_gemms else part["operator"].iloc[0]
        if kind == "gemm" and part["group"].nunique() > 1:
            # The same precision in other storage (int8_wo, int4_wo): kernels of their own.
            part = part[part["group"] == "16-bit"]
        spec = None if kind == "gemm" else engine_prediction.kind_of(kind)
        sizes = ("m", "n", "k") if kind == "gemm" else spec.sizes
        half = part[~held_back(*(part[name].to_numpy().astype("int64") for name in sizes))]
        if len(half) < prediction.LEAST_SHAPES:
            continue
        if kind == "gemm":
            constants, _ = prediction.gemm_constants(gpu, half, precision)
        else:
            half = pd.concat([half, load_table(half)], axis=1) if kind == "moe" else half
            constants = engine_prediction.fit(gpu, spec, half)
        where = "/".join(path.parts[-5:])
        source = f"{constants.source} of {len(part)} of AIConfigurator 0.12.0: {where}"
        names = (spec.name if spec else "gemm", gpu.name, path.parents[1].name, kernel, precision)
        rows.append(dict(zip(KEYS, names, strict=True)) | dataclasses.asdict(constants) | {"source": source})
        print(*names, flush=True)
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
    arguments = parser.parse_args()
    rows = []
    for name, gpu in FOLDERS.items():
        if arguments.gpu and gpu not in arguments.gpu:
            continue
        for pattern, read in TABLES.items():
            if not pattern.startswith(arguments.tables):
                continue
            for path in newest(arguments.folder / name, pattern).values():
                rows += fits(find_gpu(gpu), path, read)
        for pattern in BLOCKS:
            if not pattern.startswith(arguments.tables):
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
    columns = [*dict.fromkeys([*old.columns.drop("source", errors="ignore"), *names]), "source"]
    table = pd.DataFrame(rows, columns=columns)
    if arguments.gpu or arguments.tables:
        table = pd.concat([old, table], ignore_index=True).drop_duplicates(list(KEYS), keep="last")
    # Whole numbers look alike, whether all rows are made or some.
    table = table.map(lambda cell: settle(float(cell)) if isinstance(cell, int | float) and cell == cell else cell)
    ranks = {name: place for place, name in enumerate([*KINDS, *FOLDERS.values()])}
    order = pd.DataFrame({"kind": table["kind"].map(ranks), "gpu": table["gpu"].map(ranks)}).assign(
        **{name: table[name] for name in KEYS[2:]}
    )
    table = table.loc[order.sort_values(list(KEYS), kind="stable").index, columns]
    table.to_csv(TABLE, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
