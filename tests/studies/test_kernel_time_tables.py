"""All tables of a package: planted errors that come out, which version counts, what is not known."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from own_cases import own_case, reduced
from support.notebooks import run_notebook

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.ledger import figures
from gpuledger.models.time_model.constants.table import JUDGED, TABLE, read_table
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.engines import read_collectives
from gpuledger.studies import kernel_time
from gpuledger.studies.kernel_time import engine_prediction, prediction
from gpuledger.studies.kernel_time.every_table import WHOLE, newest

RNG = np.random.default_rng(0)
GPUS = {"h100_sxm": "h100-sxm", "l40s": "l40s"}


def opened(folder, gpus=None):
    (folder / "data").mkdir(exist_ok=True)
    return own_case(folder, "kernel_time", {"tables": "data", "gpus": gpus or GPUS, "unit": "s"})


def constants(kind, gpu, framework, precision):
    entries = read_table(kind)
    return next(one for one in entries if (one.gpu, one.framework, one.precision) == (gpu, framework, precision))


def table_path(folder, gpu, table):
    path = folder / "data" / gpu / table
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_gemms(folder, gpu, framework, slower, version="1.0", count=200):
    """Write GEMMs that take so many times as long as they are predicted to."""
    entry = constants("gemm", GPUS[gpu], framework, "bf16")
    sizes = {
        "m": RNG.integers(1, 4096, count),
        "n": 64 * RNG.integers(1, 99, count),
        "k": 64 * RNG.integers(1, 99, count),
    }
    rows = pd.DataFrame(sizes | {"group": "16-bit", "framework": framework, "precision": "bf16"}).drop_duplicates(
        ["m", "n", "k"]
    )
    predicted = prediction.predict_gemms(find_gpu(GPUS[gpu]), entry.constants, rows, "bf16")["predicted_s"]
    table = rows[["m", "n", "k"]].assign(gemm_dtype="bfloat16", framework=framework, kernel_source=entry.kernel)
    path = table_path(folder, gpu, f"gemm/{framework}/{version}/gemm_perf.parquet")
    table.assign(latency=slower * predicted).to_parquet(path)
    return entry.kernel, rows


def write_all_reduce(folder, slower):
    opened(folder)
    entry = constants("collective", "l40s", "vllm", "all_reduce")
    table = {"op_name": "all_reduce", "kernel_source": entry.kernel, "allreduce_dtype": "bfloat16", "latency": 1.0}
    table = pd.DataFrame(table | {"num_gpus": RNG.choice([2, 4, 8], 90), "message_size": 2 * np.arange(1, 91)})
    path = table_path(folder, "l40s", "comm/vllm/1.0/custom_allreduce_perf.parquet")
    table.to_parquet(path)
    rows, kind = read_collectives(path, "s")[0], engine_prediction.kind_of("all_reduce")
    found = engine_prediction.predict(find_gpu("l40s"), kind, entry.constants, rows)
    rows = rows.assign(latency=slower * found["predicted_s"], message_size=rows["message_bytes"] // 2)
    rows = rows.rename(columns={"devices": "num_gpus", "operator": "op_name", "kernel": "kernel_source"})
    rows.assign(allreduce_dtype="bfloat16").to_parquet(path)


@pytest.fixture
def judged(tmp_path):
    write_gemms(tmp_path, "h100_sxm", "vllm", 1.25)
    write_gemms(tmp_path, "h100_sxm", "sglang", 0.8, count=400)
    write_gemms(tmp_path, "l40s", "vllm", 1.0)
    write_all_reduce(tmp_path, 2.0)
    return reduced(opened(tmp_path))


def test_planted_errors_come_out(judged):
    data = judged.data.set_index(["gpu", "framework", "kind"]).sort_index()
    for name, (bias, mape) in {
        ("h100-sxm", "vllm", "gemm"): (-20, 20),
        ("h100-sxm", "sglang", "gemm"): (25, 25),
        ("l40s", "vllm", "gemm"): (0, 0),
        ("l40s", "vllm", "all-reduce"): (-50, 50),
    }.items():
        assert data.loc[name, "bias_percent"] == pytest.approx(bias, abs=1e-3)
        assert data.loc[name, "mape_percent"] == pytest.approx(mape, abs=1e-3)
    assert judged["kernels"] == 4
    assert judged["mape_percent"] == pytest.approx(22.5, abs=1e-3)
    assert (data["unseen_percent"] > 0).all()
    assert (data["held_back"] < data["shapes"]).all()
    assert judged.provenance["kind"] == "predicted"


def test_classes_weigh_shapes_alike(judged):
    more = judged.data.iloc[[0]].assign(mape_percent=80.0, unseen_percent=np.nan, held_back=10**9, kernel="another")
    table = kernel_time.class_table(pd.concat([judged.data, more], ignore_index=True))
    first = table[(table["gpu"] == more["gpu"].iloc[0]) & (table["framework"] == more["framework"].iloc[0])].iloc[0]
    assert first["kernels"] == 2
    assert first["mape_percent"] == pytest.approx(80, abs=0.01)
    # An error that is not known has no weight.
    assert first["unseen_percent"] == pytest.approx(judged.data["unseen_percent"].iloc[0], abs=1e-3)
    assert table["kind"].tolist() == ["GEMM", "GEMM", "GEMM", "all-reduce in engines"]


def test_the_notebook_draws_every_cell(judged, tmp_path):
    variables, _ = run_notebook("kernel_time_tables", judged, tmp_path / "out")
    numbers = [text.get_text() for text in variables["axes"].texts]
    assert {"H100", "L40S"} < set(numbers)
    assert {file.name for file in (tmp_path / "out").glob("*.pdf")} == {"figure.pdf", "figure_map.pdf"}
    table = pd.read_csv(tmp_path / "out/table.csv")
    assert len(table) == 4


def test_the_newest_whole_table_counts(tmp_path):
    for version, count in (("0.9.0", 300), ("0.10.0", 200), ("0.11.0", int(200 * WHOLE) - 1)):
        path = table_path(tmp_path, "h100_sxm", f"gemm/vllm/{version}/gemm_perf.parquet")
        pd.DataFrame({"m": range(count)}).to_parquet(path)
    (found,) = newest(tmp_path / "data/h100_sxm", "gemm/*/*/gemm_perf.parquet").values()
    assert found.parent.name == "0.10.0"


def test_what_cannot_be_judged_is_one_line(tmp_path):
    case = opened(tmp_path)
    with pytest.raises(InputError, match="there is no folder 'h100_sxm' of tables"):
        reduced(case)
    for gpu in GPUS:
        (tmp_path / "data" / gpu).mkdir()
    with pytest.raises(InputError, match="no kernel of its tables has constants"):
        reduced(case)
    with pytest.raises(InputError, match=r"gpus\.h100_sxm"):
        reduced(opened(tmp_path, {"h100_sxm": "h1000"}))
    table_path(tmp_path, "l40s", "gemm/vllm/1.0/gemm_perf.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(InputError, match="not a Parquet file, or a damaged one"):
        reduced(case)


def test_a_framework_of_ones_own_has_a_column_of_its_own(judged):
    import matplotlib.pyplot as plt

    table = kernel_time.class_table(judged.data)
    table = pd.concat([table, table.iloc[[0]].assign(framework="mine", mape_percent=77.0)], ignore_index=True)
    _, axes = plt.subplots()
    kernel_time.draw_error_map(axes, table, "mape_percent")
    mesh = axes.collections[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["mine", "SGLang", "vLLM"] * 2
    assert (mesh.get_array() == 77).sum() == 1
    plt.close()


def test_a_column_names_rows_and_engines_once(judged, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(figures, "for_columns", True)
    _, axes = plt.subplots()
    kernel_time.draw_error_map(axes, kernel_time.class_table(judged.data), "mape_percent")
    figures.save(axes.figure, judged.provenance, tmp_path)
    said = [text.get_text() for text in axes.texts]
    assert "GEMM, 16-bit" in said and not any(text.isdigit() for text in said), "no numbers in cells this small"
    assert "columns of a GPU: SGLang, vLLM" in axes.child_axes[0].get_xlabel()
    boxes = [text.get_window_extent() for text in axes.texts if ", " in text.get_text()]
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))


def test_shipped_errors_are_those_of_the_tracked_case():
    tracked = pd.read_csv(files.ROOT / "results/aiconfigurator/kernel_time/every_table/table.csv")
    tracked = tracked[(tracked["kind"] == "GEMM") & (tracked["kernels"] == 1)]
    shipped = pd.read_csv(TABLE, keep_default_na=False)
    shipped = shipped[shipped["kind"] == "gemm"]
    types = {"16-bit": "bf16", "fp8": "fp8", "fp8_block": "fp8_block"}
    compared = 0
    for row in tracked[tracked["type"].isin(list(types))].itertuples():
        own = shipped[(shipped["gpu"] == row.gpu) & (shipped["framework"] == row.framework)]
        own = own[own["precision"] == types[row.type]]
        if len(own) == 1:
            assert own[JUDGED[0]].astype(int).item() == row.held_back
            assert float(own[JUDGED[1]].item()) == pytest.approx(row.mape_percent, abs=0.006)
            compared += 1
    assert compared > 30
