"""Public files, where a mirror of them is at hand."""

from pathlib import Path

import numpy as np
import pytest
from conftest import MIRROR
from ncu_values import wide

from gpuledger.readers import ncu


def public(pattern: str) -> list[Path]:
    paths = sorted((MIRROR / "raw.githubusercontent.com").glob(pattern))
    if not paths:
        pytest.skip(f"{pattern} is not in the mirror; set GPULEDGER_MIRROR to a folder that has it")
    return paths


@pytest.fixture(scope="module")
def linear():
    return ncu.read(public("leleucas/*/*/linear/nsight1381.csv.zip")[0])


def test_a100_linear_set(linear):
    assert len(linear.launches) == 2933 and len(linear.metrics) == 2933 * 21
    assert (linear.page, linear.errors) == ("long", ())
    assert (linear.launches["id"] == np.arange(2933)).all()
    assert linear.metrics["text"].isna().all()


def test_a100_counters_are_whole_and_agree(linear):
    """FMUL of the first launch: padded outputs times slices times partial sums; pipe_tensor is hfma/32."""
    counters = wide(
        linear,
        [
            "sm__sass_thread_inst_executed_op_fmul_pred_on.sum",
            "sm__sass_thread_inst_executed_op_hfma_pred_on.sum",
            "sm__inst_executed_pipe_tensor.sum",
            "dram__bytes.sum",
            "gpu__time_duration.sum",
        ],
    )
    assert (counters == np.floor(counters)).all(axis=None)
    assert counters.iloc[0].tolist() == [1_572_864, 0, 0, 3_670_272, 45_920]
    assert (counters.iloc[:, 1] == 32 * counters.iloc[:, 2]).all()
    clock = wide(linear, ["sm__cycles_elapsed.avg.per_second"])
    assert clock.iloc[0, 0] == 1_120_178_006.84


def test_sample_run_amid_program_output():
    for path in public("Olajide-Badejo/*/*/results/sample_run/ncu/*.csv"):
        report = ncu.read(path)
        assert len(report.launches) >= 1
    report = ncu.read(public("Olajide-Badejo/*/*/results/sample_run/ncu/saxpy.csv")[0])
    assert wide(report, ["dram__bytes_op_read.sum"]).iloc[0, 0] == 134_221_568
    assert report.launches.loc[0, ["grid", "block", "compute_capability"]].tolist() == [
        "(65536, 1, 1)",
        "(256, 1, 1)",
        "12.0",
    ]


def test_details_page_with_rules_and_scaled_units():
    report = ncu.read(public("CodeGandee/*/*/reports/*/ncu-v2/*/ncu.details.csv")[0])
    assert len(report.launches) == 1 and report.launches["grid_blocks"].item() == 224
    assert wide(report, ["dram__bytes_read.sum", "gpu__time_duration.sum"]).to_numpy().tolist() == [[2_330_000, 6750]]
    assert not report.metrics["unit"].isin(["Mbyte", "us", "Ghz", "Gbyte/s"]).any()


def test_section_with_body_item_labels():
    report = ncu.read(public("CodeGandee/*/*/reports/*/ncu-v2/*/ncu.section_*.csv")[0])
    assert wide(report, ["SM Frequency"]).iloc[0, 0] == 2.15e9
