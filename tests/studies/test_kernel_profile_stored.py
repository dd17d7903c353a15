"""Reports with more launches than belong into memory: the same results from a file as from a data frame."""

import errno
import tempfile

import pandas as pd
import pytest
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.ledger import stored_data
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.stored_data import StoredData
from gpuledger.readers import ncu
from gpuledger.studies.kernel_profile import kernel_table, profile, tensor_table
from gpuledger.studies.kernel_profile.tables import baseline_table, instruction_table
from gpuledger.studies.kernel_profile.view import view

GEMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
REDUCTION = "void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>, float *)"
COUNTERS = {op: f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")}


def report(launches, slower=1):
    """A raw page of GEMMs, each with its split-K reduction, and of other kernels, one of them without a limiter."""
    metrics = {"gpu__time_duration.sum": "ns", "dram__bytes.sum": "byte", "lts__t_bytes.sum": "byte"}
    metrics |= dict.fromkeys(COUNTERS.values(), "inst") | {"sm__inst_executed_pipe_tensor.sum": "inst"}
    metrics |= {"launch__occupancy_limit_registers": "block", "launch__occupancy_limit_warps": "block"}
    header = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", *metrics]
    lines = [header, [""] * 5 + list(metrics.values())]
    for number in range(launches):
        kind = number % 4
        name = (GEMM, REDUCTION, f"void own_{number % 3}\u202e(float *)", "relu(float *)")[kind]
        counters = [(0, 0, 0), (512, 256, 0), (9 + number, 8, 7), ("", "", "")][kind]
        tensor = 128 * 128 * 32 // (16 * 8 * 16) * 8 * (1 + number % 2) if kind == 0 else 0
        limits = ("", "") if number < 40 else (4, 2 + number % 5)
        values = [slower * (1000 + 7 * number), 64 * number, 32 * number, *counters, tensor, *limits]
        lines.append([number, 1, name, "(32, 1, 1)", f"({8 if kind == 0 else number % 5 + 1}, 1, 1)", *values])
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines) + "\n"


@pytest.fixture
def stored(monkeypatch):
    """Make tables of more than 8 rows ones that are stored in parts of 7, of reports in parts of 5 launches."""

    def switch():
        monkeypatch.setattr(stored_data, "MOST_ROWS", 8)
        monkeypatch.setattr(stored_data, "PART_ROWS", 7)
        parts = ncu.read_parts
        monkeypatch.setattr(ncu, "read_parts", lambda path, decimal: parts(path, decimal, 200))

    return switch


@pytest.mark.parametrize("with_baseline", [False, True])
def test_results_are_the_same_from_a_file(stored, folder, tmp_path, with_baseline):
    (folder / "r.csv").write_text(report(61), "utf-8")
    (folder / "b.csv").write_text(report(46, slower=2), "utf-8")
    inputs = {"report": "r.csv", "gpu": "a100-sxm4-80gb"} | ({"baseline": "b.csv"} if with_baseline else {})
    inputs["shapes"] = [{"launch": 56, "m": 128, "n": 128, "k": 256}]
    case = own_case(folder, "kernel_profile", inputs, "one")
    whole = reduced(case)
    stored()
    again = reduced(case)
    assert isinstance(again.data, StoredData) and not isinstance(whole.data, StoredData)
    assert len(again.data) == len(whole.data) == 61 + 46 * with_baseline
    whole.write(tmp_path / "whole")
    again.write(tmp_path / "again")
    read, frame = CaseResult.read(tmp_path / "again"), CaseResult.read(tmp_path / "whole").data
    frame["stalls"] = frame["stalls"].astype("str")  # none was recorded: a frame has no type for them
    assert (again.summary, again.warnings) == (whole.summary, whole.warnings)
    assert (read.summary, read.provenance) == (whole.summary, whole.provenance)
    assert (
        whole.data["explanation"].str.contains("split-K reduction: each output is the sum of 2 parts").sum()
        == 15 + 12 * with_baseline
    )
    for result in (again, read):
        parts = list(result.data.parts())
        assert [len(part) for part in parts[:-1]] == [7] * (len(parts) - 1)
        pd.testing.assert_frame_equal(pd.concat(parts), frame, check_dtype=False)
        for table in (kernel_table, instruction_table, tensor_table, baseline_table):
            expected = table(whole.data)
            if expected is not None:
                pd.testing.assert_frame_equal(table(result.data), expected, check_dtype=False, check_exact=True)
        assert view(result) is not None
    assert whole.data["kernel"].str.contains(r"\\u202e").sum() == 15 + 11 * with_baseline


def test_written_twice_the_bytes_are_the_same(stored, folder, tmp_path):
    (folder / "r.csv").write_text(report(30), "utf-8")
    stored()
    for name in ("one", "two"):
        profile(folder / "r.csv").write(tmp_path / name)
    assert (tmp_path / "one/data.parquet").read_bytes() == (tmp_path / "two/data.parquet").read_bytes()
    read = CaseResult.read(tmp_path / "one")
    read.write(tmp_path / "three")
    assert (tmp_path / "three/data.parquet").read_bytes() == (tmp_path / "one/data.parquet").read_bytes()


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "set TMPDIR to a folder with more"), (errno.EACCES, "correct the permissions")],
)
def test_no_room_for_temporary_files_is_one_line(stored, folder, monkeypatch, number, said):
    (folder / "r.csv").write_text(report(30), "utf-8")
    stored()

    def full(**options):
        raise OSError(number, "no")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(InputError, match=f"no room for temporary files.*{said}"):
        profile(folder / "r.csv")


def test_a_launch_that_a_long_report_lacks(stored, folder):
    (folder / "r.csv").write_text(report(30), "utf-8")
    stored()
    with pytest.raises(InputError, match=r"the report has no launch 30; it has the launches 0 to 29"):
        profile(folder / "r.csv", shapes=[{"launch": 30, "m": 1, "n": 1, "k": 1}])
