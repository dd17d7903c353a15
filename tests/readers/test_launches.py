"""Recorded launches of cuBLAS: tiles, clusters, splits and waves from names and grids."""

import pandas as pd
import pytest
from own_cases import refused

from gpuledger.readers.kernel_tables.launches import read_launches

#: Names and grids of an H200: m, n, k, name, grid and, worked out by hand, tile, cluster (m × n), tiles, split, waves.
SEEN = [
    (33, 768, 768, "nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN", (4, 24), (64, 8), (1, 4), 96, 1, 1),
    (113, 12288, 512, "nvjet_sm90_tst_96x128_64x7_2x1_v_bz_TNN", (2, 64), (128, 96), (1, 2), 128, 1, 1),
    # 43 tiles across and 6 down, which 132 blocks take one after the other.
    (768, 8192, 51200, "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT", (2, 66), (128, 192), (2, 1), 258, 1, 2),
    # 40 tiles in 4 × 30 blocks: three parts, if no place is left out.
    (16, 2560, 8192, "nvjet_sm90_tst_64x16_64x16_4x1_v_bz_splitK_TNT", (4, 30), (16, 64), (1, 4), 40, None, None),
    (16, 2048, 8192, "nvjet_sm90_tst_64x16_64x16_4x1_v_bz_splitK_TNT", (4, 24), (16, 64), (1, 4), 32, 3, 1),
    # The grid is full, so that it does not tell the number of parts.
    (12, 7168, 5120, "nvjet_sm90_tst_64x16_64x16_2x1_v_bz_splitK_TNT", (2, 66), (16, 64), (1, 2), 112, None, None),
    (1, 64, 64, "ampere_bf16_s16816gemm_bf16_64x128_ldg8_f2f_stages_32x6_tn", (1, 1), (128, 64), (1, 1), 1, 1, 1),
]


def table(rows=SEEN, **values):
    columns = ["m", "n", "k", "kernel", "grid"]
    frame = pd.DataFrame([row[:5] for row in rows], columns=columns).assign(gemm_dtype="bfloat16")
    frame["grid_x"], frame["grid_y"] = zip(*frame.pop("grid"), strict=True)
    return frame.assign(**values)


@pytest.fixture
def read(tmp_path):
    def of(frame, name="gemm.csv"):
        path = tmp_path / name
        frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path, index=False)
        return read_launches(path)

    return of


def test_names_and_grids_tell_tiles_and_waves(read):
    found, unnamed = read(table())
    assert unnamed == 0 and len(found) == len(SEEN)
    for (*_, tile, cluster, tiles, split, waves), row in zip(SEEN, found.itertuples(), strict=True):
        assert (row.tile_m, row.tile_n) == tile and (row.cluster_m, row.cluster_n) == cluster, row.kernel
        assert row.tiles == tiles and row.blocks <= row.most_blocks
        assert row.split == ("splitK" in row.kernel)
        assert (None if pd.isna(row.split_k) else row.split_k, None if pd.isna(row.waves) else row.waves) == (
            split,
            waves,
        )


def test_a_parquet_file_says_the_same(read):
    pd.testing.assert_frame_equal(read(table())[0], read(table(), "gemm.parquet")[0])


def test_names_without_a_tile_are_counted(read):
    rows = table()
    rows.loc[1, "kernel"] = "gemv2T_kernel_val"
    found, unnamed = read(rows)
    assert unnamed == 1 and len(found) == len(SEEN) - 1
    with refused("gemm.csv, column kernel: no name has a tile"):
        read(table(kernel="gemv2T_kernel_val"))


def test_what_is_no_table_of_launches_is_one_line(read):
    with refused("line 1: the column 'grid_x' is missing"):
        read(table().drop(columns="grid_x"))
    with refused("line 2, column gemm_dtype: 'int3' is no known type"):
        read(table(gemm_dtype="int3"))
    with refused("line 2, column m: '0' is not a whole number from 1"):
        read(table(m=0))
    with refused("line 9, column m: '33' is of a shape that is in the table before"):
        read(table([*SEEN, SEEN[0]]))
    # The same shape in another type is another one.
    both = pd.concat([table(), table(gemm_dtype="fp8_static")])
    assert len(read(both)[0]) == 2 * len(SEEN)
