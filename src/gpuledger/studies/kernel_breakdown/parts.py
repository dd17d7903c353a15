"""The tables that make up a case's ``data.parquet``."""

import pandas as pd

from gpuledger.ledger.case_result import CaseResult, settle


def settle_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Round floats to the digits that are the same on every machine; turn categories into text."""
    floats = frame.select_dtypes("floating").columns
    categories = frame.select_dtypes("category").columns
    rounded = {name: [value if pd.isna(value) else float(settle(value)) for value in frame[name]] for name in floats}
    return frame.assign(**rounded, **{name: frame[name].astype(str) for name in categories})


def join_parts(**tables: pd.DataFrame) -> pd.DataFrame:
    """Concatenate tables, with the name of each in the column ``part``; integers stay integers."""
    frames = [
        frame.astype(dict.fromkeys(frame.select_dtypes("integer"), "Int64")).assign(part=name)
        for name, frame in tables.items()
        if len(frame)
    ]
    return pd.concat(frames, ignore_index=True)


def split_parts(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Undo :func:`join_parts`.

    Returns
    -------
    dict of str to DataFrame
        ``kernels``: every kernel on every GPU (see :func:`gpuledger.models.transformer.kernels`) with ``hardware,
        group`` and, per launch, ``time_s, dram_bytes, l2_bytes, bound``. For the source notebook's model: the columns
        of :func:`gpuledger.studies.kernel_breakdown.source_model.source_times`, per layer.
        ``stack``: see :func:`gpuledger.studies.kernel_breakdown.shapes.stack_times`.
        ``map``: see :func:`gpuledger.studies.kernel_breakdown.shapes.map_bounds`.
        ``tiles``: see :func:`gpuledger.studies.kernel_breakdown.tiling.compare_tiles`.
        ``throughput``, ``memory``: see :func:`gpuledger.studies.kernel_breakdown.shapes.throughput` and
        :func:`gpuledger.studies.kernel_breakdown.shapes.memory_over_context`.
        ``memory_parts``: ``phase, held_by, bytes, formula``.
        ``structure``: see :func:`gpuledger.studies.kernel_breakdown.structure.structure_rows`.
        ``corrections``: see :func:`gpuledger.studies.kernel_breakdown.corrections.corrections`.
        ``components``, ``compared``, ``spans``: see :func:`gpuledger.studies.kernel_breakdown.comparison.compare`.
    """
    return {str(name): one_part(data, str(name)) for name in data["part"].unique()}


def one_part(data: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return one of the tables of :func:`split_parts`; an empty one if there is none of that name."""
    own = data[data["part"] == name].drop(columns="part").dropna(axis="columns", how="all").reset_index(drop=True)
    whole = [column for column in own.select_dtypes("Int64") if own[column].notna().all()]
    return own.astype(dict.fromkeys(whole, "int64"))


def made(result: CaseResult) -> str:
    """Return what the times of a step are: ``recorded``, or ``simulated``, which never passes for it."""
    return "simulated" if result.provenance.get("kind") == "simulated" else "recorded"


def name_parts(rows: pd.DataFrame) -> pd.Series:
    """Name the part of a recorded step that each kernel belongs to: the model's kernel, else class and operator."""
    operator = rows["operator"].str.rpartition("::")[2].str.rpartition("/")[2]
    other = rows["kernel_class"] + (" (" + operator + ")").where(operator != "", "")
    return rows["role"].str.replace("_", " ").where(rows["role"] != "", other)
