"""GEMM tiles: known answers of what agrees, the tracked recording's grids, figures, and bad input in one line."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from own_cases import own_case, reduced, refused
from support.notebooks import run_notebook

from gpuledger.models.time_model import gemm_plan
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.launches import read_launches
from gpuledger.studies.gemm_tiles.figures import draw_agreement, draw_map
from gpuledger.studies.gemm_tiles.reduction import _constants
from gpuledger.studies.gemm_tiles.tables import row_table, tile_table

SHAPES = [(m, n, k) for m in (1, 16, 128, 2048) for n in (256, 4096) for k in (512, 4096)]


def predicted():
    """Make up a recording in which every launch is what the model predicts, without clusters."""
    gpu = find_gpu("h200-sxm")
    sizes = np.array(SHAPES).T
    rows = []
    plan = gemm_plan(gpu, _constants(gpu, "bf16"), *sizes).itertuples()
    for (m, n, k), row in zip(SHAPES, plan, strict=True):
        split = "_splitK" if row.split_k > 1 else ""
        name = f"nvjet_sm90_tst_{row.tile_n}x{row.tile_m}_64x4_1x1_v_bz{split}_TNT"
        rows.append((m, n, k, name, min(row.blocks, gpu.sms), 1))
    return pd.DataFrame(rows, columns=["m", "n", "k", "kernel", "grid_x", "grid_y"]).assign(gemm_dtype="bfloat16")


@pytest.fixture
def case(tmp_path):
    def of(table, **more):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        table.to_parquet(folder / "gemm.parquet")
        return own_case(folder, "gemm_tiles", {"launches": "gemm.parquet", "gpu": "h200-sxm"} | more)

    return of


def test_what_the_model_predicts_agrees_with_itself(case):
    result = reduced(case(predicted()))
    for name in ("same_tile", "same_waves", "same_choice", "same_split", "same_tile_m", "same_tile_n"):
        assert result[f"{name}_percent"] == 100, name
    assert result["grids_explained_percent"] == 100 and result["most_blocks"] <= 132
    assert result["split_percent"] == result["predicted_split_percent"] > 0
    assert result.finding.startswith("cuBLAS launches 6 tiles for 16 16-bit shapes")
    assert "the same tile for 100 % of the shapes, as many waves for 100 %" in result.finding


def test_another_tile_disagrees_in_that_alone(case):
    table = predicted()
    at = table.index[table["m"] == 2048][0]
    table.loc[at, ["kernel", "grid_x"]] = ["nvjet_sm90_tst_8x8_64x4_1x1_v_bz_TNT", 132]
    result = reduced(case(table))
    assert result["same_tile_percent"] == pytest.approx(100 * 15 / 16)
    assert result["same_waves_percent"] < 100 == result["same_choice_percent"]
    lines = tile_table(result.data).set_index("tile")
    assert lines.loc["8×8", ["shapes", "same_tile_percent", "instead_percent"]].tolist() == [1, 0, 100]


def test_a_split_that_the_grid_does_not_tell_is_not_compared(case):
    table = predicted()
    split = table["kernel"].str.contains("splitK")
    table.loc[split, "grid_x"] = 132
    result = reduced(case(table))
    assert result["splits_told"] == 0 and result["same_split_percent"] == "unknown"
    assert result["same_choice_percent"] == 100


def test_grids_of_the_tracked_recording_are_tiles_in_whole_clusters():
    """Of 43,872 launches without a split every grid is what its name says, so that it is no guess which tile is n's."""
    found, unnamed = read_launches(ROOT / "traces/nvidia-h200-gemm/gemm.parquet")
    assert (len(found), unnamed) == (54169, 0)
    whole = found[~found["split"]]
    assert (whole["blocks"] == whole[["tiles", "most_blocks"]].min(axis=1)).all() and len(whole) == 43872
    # 132 SMs; whole clusters of four and eight blocks fit 120 of them.
    most = found.groupby(found["cluster_m"] * found["cluster_n"])["most_blocks"].max()
    assert most.to_dict() == {1: 132, 2: 132, 4: 120, 8: 120}
    told = found[found["split"] & found["split_k"].notna()]
    # Steps along k are 128 bytes; no part has fewer than 20 of them.
    assert (told["k"] / told["split_k"] / told["tile_k"]).min() > 20


def test_most_launches_have_the_tile_that_their_m_and_n_mostly_have():
    """What docs/MODELS.md says of launches with a whole k, in percent."""
    found, _ = read_launches(ROOT / "traces/nvidia-h200-gemm/gemm.parquet")
    text = (ROOT / "docs/MODELS.md").read_text("utf-8")
    tiles = found[~found["split"]].assign(tile=lambda rows: list(zip(rows["tile_m"], rows["tile_n"], strict=True)))
    said = []
    for _, rows in tiles.groupby("group", sort=False):
        counts = rows.groupby(["m", "n", "tile"]).size().groupby(["m", "n"])
        one, long = ((table.groupby(["m", "n"])["tile"].nunique() == 1) for table in (rows, rows[rows["k"] >= 1024]))
        said.append([100 * counts.max().sum() / len(rows), 100 * one.mean(), 100 * long.mean()])
    most, single, above = ([round(value) for value in pair] for pair in zip(*said, strict=True))
    assert f"{most[0]} % in bf16 and {most[1]} % in fp8 have the tile that is most frequent" in text
    assert f"{single[0]} and {single[1]} % of the pairs, {above[0]} and {above[1]} % from $k$ of 1,024 on" in text


def test_tables_and_panels_hold_what_was_launched(case):
    both = pd.concat([predicted(), predicted().assign(gemm_dtype="fp8_static")])
    data = reduced(case(both)).data
    lines = row_table(data)
    assert lines["type"].unique().tolist() == ["16-bit", "fp8_static"]
    assert lines[lines["rows"] == "all"]["shapes"].tolist() == [16, 16]
    assert lines[lines["rows"] == "1 to 8"]["shapes"].tolist() == [4, 4]
    figure, (left, right) = plt.subplots(1, 2)
    rows = data[data["group"] == "16-bit"]
    mesh = draw_map(left, rows)
    assert len(left.texts) == 8 and np.nanmax(mesh.get_array()) == 100
    draw_agreement(right, rows)
    assert len(right.lines) == 4
    plt.close(figure)


def test_the_notebook_draws_it(case, tmp_path):
    run_notebook("gemm_tiles", reduced(case(predicted())), tmp_path / "out")
    assert (tmp_path / "out/figure.pdf").exists() and (tmp_path / "out/tiles.csv").exists()


def test_a_grid_of_another_kind_of_kernel_is_one_line(case):
    with refused("column grid_x: a grid of 4,096 blocks is none of a kernel that takes one tile after the other"):
        reduced(case(predicted().assign(grid_x=4096)))
