"""Recording the normalization roofline, with NumPy in place of a GPU: what is run, checked, written and resumed."""

import ctypes
import json
import sys

import numpy as np
import pandas as pd
import pytest
import yaml
from fake_driver import FakeDriver

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Dataset
from gpuledger.record import cuda, driver, normalization, normalization_kernels, normalization_torch
from gpuledger.record.cuda_timing import Timing
from gpuledger.studies import normalization_roofline

SHAPES, SHAPES_16 = ((64, 128), (4096, 7), (300, 1024)), ((512, 256),)
#: Static shared memory of every kernel here.
STATIC = 768


class Machine:
    """A GPU on which NumPy computes what the kernels should; `wrong` names those that compute something else.

    `launched` has the grids of each kernel and `timed` counts timings.
    """

    def __init__(self):
        self.wrong, self.launched, self.timed, self.options, self.stops_at = set(), {}, 0, set(), None

    def run(self, image, name, grid, block, shared_bytes, arguments):
        self.options.add(tuple(image.split()[2:]))
        self.launched.setdefault(name, []).append(grid[0])
        if name in ("empty", "multiply_add"):
            return 10.0
        source, target, *sizes = (int.from_bytes(value, "little") for value in arguments)
        if name.startswith("copy"):
            assert len(arguments[2]) == 8
            view(target, 4 * sizes[0])[...] = view(source, 4 * sizes[0])
            return 10.0
        assert [len(value) for value in arguments[2:]] == [8, 4]
        rows, length = sizes
        element = list(normalization_kernels.ELEMENTS)[int(image[-1])]
        x, y = (view(address, rows * length, element).reshape(rows, length) for address in (source, target))
        made = normalization_kernels.reference(normalization_kernels.from_elements(x, element))
        if name in self.wrong:
            made[0, 0] += 0.01
        y[...] = normalization_kernels.to_elements(made.astype(np.float32), element)
        return 10.0


def view(address, count, element="fp32"):
    """Elements in the memory of the stand-in for the driver."""
    dtype = np.dtype(normalization_kernels.ELEMENTS[element][1])
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)


@pytest.fixture
def machine(monkeypatch):
    state = Machine()
    state.driver = FakeDriver(state.run, lambda image, name: STATIC).install(monkeypatch)

    def time_in_turn(launches, *, samples, capture=None, **_):
        state.timed += 1
        if state.timed == state.stops_at:
            raise KeyboardInterrupt
        for launch in launches[:2]:
            launch()
        return Timing(1000.04, 900.0, 1100.0, samples, samples * len(launches))

    monkeypatch.setattr(normalization, "time_in_turn", time_in_turn)
    monkeypatch.setattr(normalization_torch, "baselines", dict)
    monkeypatch.setattr(normalization, "rotation", lambda footprint, l2: 3)
    monkeypatch.setattr(normalization, "SHAPES", SHAPES)
    monkeypatch.setattr(normalization, "SHAPES_16", SHAPES_16)
    monkeypatch.setattr(normalization, "COPY_BYTES", (2**18, 2**20 + 8))
    # Enough of the hard rows: the kernels themselves have tests of their own.
    monkeypatch.setattr(normalization, "LONG_LENGTHS", (300, 301))
    monkeypatch.setattr(normalization_kernels, "CONFIGURATIONS", normalization_kernels.CONFIGURATIONS[:4])
    monkeypatch.setattr(normalization_kernels, "CLUSTERS", ())
    return state


def test_a_recording_is_a_case_of_the_study(machine, tmp_path):
    cases = normalization.record_normalization(tmp_path).cases
    case = cases["normalization_roofline"]["measured"]
    # The driver names an L2 of 60 MiB, the data sheet of an H200 one of 50.
    assert case == {"rows": "rows.csv", "ceilings": "ceilings.csv", "gpu": "h200-sxm", "l2_bytes": 60 * 2**20}
    assert cases["normalization_roofline"]["measured_bf16"] == case | {"rows": "rows_bf16.csv", "element": "bf16"}
    tables = ["ceilings.csv", "rows.csv", "rows_bf16.csv", "rows_fp16.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == tables
    rows = pd.read_csv(tmp_path / "rows.csv")
    wanted = {(k, r, n, c) for k in ("copy", "two_pass", "one_pass") for r, n in SHAPES for c in ("cold", "warm")}
    assert set(rows[["kernel", "rows", "length", "cache"]].itertuples(index=False, name=None)) == wanted
    assert set(rows["time_median_ns"]) == {1000.0}
    options = ["-DSTREAMING=0", "-DSTREAMING=1", *(f"-DELEMENT={n}" for n in (0, 1, 2))]
    assert "--fmad=false" in normalization.OPTIONS
    assert machine.options == {(*normalization.OPTIONS, option) for option in options}
    content = {"title": "t", "kind": "local", "source": "s", "license": "CC0-1.0", "studies": cases}
    folder = tmp_path / "local-gpu"
    folder.mkdir()
    for name in tables:
        (tmp_path / name).rename(folder / name)
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content))
    opened = Dataset.load(folder / "dataset.yaml").case("normalization_roofline", "measured")
    result = reduce_case(opened, normalization_roofline.reduce, {})
    assert result["shapes"] == 3 and result["launch_floor"] == 1000
    opened_16 = Dataset.load(folder / "dataset.yaml").case("normalization_roofline", "measured_fp16")
    half = reduce_case(opened_16, normalization_roofline.reduce, {})
    assert half["512x256_moved"] == 2 * 2 * 512 * 256 and "optimised kernel in fp16" in half.finding
    assert half["512x256_arithmetic_intensity"] == pytest.approx((6 * 256 + 1) / (4 * 256))
    assert "normalization_roofline" in json.dumps(opened.provenance())


def test_copies_move_random_data_as_the_kernels_do(machine, monkeypatch):
    seen = []
    bench = normalization.Bench(cuda.open_device())
    monkeypatch.setattr(bench, "_fastest", lambda launches, cache, x: ("", seen.append(x.get())))
    bench._copy(2**21 + 1)
    for values in seen:
        assert values.size == 2**21 + 4 and 0.99 < values.std() < 1.01 and len(np.unique(values)) > 2**19
    assert len(seen) == 2


def test_an_interrupted_recording_goes_on_and_is_not_taken_for_a_whole_one(machine, tmp_path):
    for stops_at in (12, 12, 12):  # often: being interrupted is no crash
        machine.stops_at, machine.timed = stops_at, 0
        with pytest.raises(KeyboardInterrupt):
            normalization.record_normalization(tmp_path)
    assert not (tmp_path / "rows.csv").exists() and not (tmp_path / "ceilings.csv").exists()
    before, machine.stops_at = machine.timed, None
    (tmp_path / "parts/copy_262144.json").write_text("{")
    normalization.record_normalization(tmp_path)
    made = machine.timed - before
    fresh = tmp_path / "fresh"
    before = machine.timed
    normalization.record_normalization(fresh)
    assert made < machine.timed - before, "only what was missing, and what was broken, is measured again"
    assert (tmp_path / "rows.csv").read_bytes() == (fresh / "rows.csv").read_bytes()
    assert (tmp_path / "ceilings.csv").read_bytes() == (fresh / "ceilings.csv").read_bytes()


def test_parts_made_in_another_way_are_made_again(machine, monkeypatch, tmp_path):
    machine.stops_at = 20
    with pytest.raises(KeyboardInterrupt):
        normalization.record_normalization(tmp_path)
    machine.stops_at = None
    monkeypatch.setattr(normalization, "SAMPLES", 6)
    normalization.record_normalization(tmp_path)
    assert pd.read_csv(tmp_path / "ceilings.csv")["launches"].min() == 6


@pytest.mark.parametrize("wrong", ["one_pass_32x1_aligned", "streaming_1024x4", "clustered_1024x4_aligned"])
def test_a_wrong_result_is_never_timed(machine, tmp_path, caplog, wrong):
    machine.wrong.add(wrong)
    made = normalization.record_normalization(tmp_path)
    assert f",{wrong}," not in (tmp_path / "rows.csv").read_text()
    assert f"{wrong}, length " in caplog.text and "differs from double precision by 0.0" in caplog.text
    assert [line.partition(": length")[0] for line in made.about["wrong"]] == [wrong]
    assert "one_pass" in (tmp_path / "rows.csv").read_text(), "others are timed"


def test_kernels_that_are_all_wrong_end_the_part(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(normalization_kernels, "tolerance", lambda length, element="fp32": -1.0)
    with pytest.raises(InputError, match="no kernel is right: two_pass: length 1: differs from double"):
        normalization.record_normalization(tmp_path)
    assert not (tmp_path / "ceilings.csv").exists()


def test_a_baseline_that_fails_at_a_shape_costs_no_more_than_its_rows(machine, monkeypatch, tmp_path, caplog):
    def limited(element):
        def launch(x, y):
            if x.shape[1] > 1000:
                raise RuntimeError(f"Cannot launch Triton kernel since n = {x.shape[1]} is too long")

        return launch

    monkeypatch.setattr(normalization_torch, "baselines", lambda: {"liger_layer": limited})
    monkeypatch.setattr(normalization_torch, "versions", lambda: {"liger_kernel": "0.6.0"})
    made = normalization.record_normalization(tmp_path)
    rows = pd.read_csv(tmp_path / "rows.csv").query("kernel == 'liger_layer'")
    assert set(zip(rows["rows"], rows["length"], strict=True)) == {(64, 128), (4096, 7)}
    assert "liger_layer is not timed at 300×1024, fp32: Cannot launch" in caplog.text
    assert "not installed here, and left out: torch, torch_nn" in caplog.text
    assert made.about["baselines"] == {"liger_kernel": "0.6.0"}


def test_a_step_that_fails_costs_no_other(machine, monkeypatch, tmp_path, caplog):
    copy, dead = normalization.Bench.copy, []

    def full(bench, moved_bytes):
        if moved_bytes > 2**18:
            raise InputError("GPU", "copy", "CUDA_ERROR_OUT_OF_MEMORY: out of memory", "free memory")
        return copy(bench, moved_bytes)

    def synchronize():
        if dead:
            raise driver.CudaError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")

    monkeypatch.setattr(normalization.Bench, "copy", full)
    monkeypatch.setattr(machine.driver, "synchronize", synchronize)
    made = normalization.record_normalization(tmp_path / "made")
    assert made.about["failed"] == {"copy_1048584": "copy: CUDA_ERROR_OUT_OF_MEMORY: out of memory"}
    assert "copy_1048584 is left out" in caplog.text
    assert set(pd.read_csv(tmp_path / "made/ceilings.csv")["moved_bytes"]) == {0, 2**18}
    # After some failures nothing runs in this process any more; the next one goes on behind that step.
    monkeypatch.setattr(normalization.Bench, "multiply_add", lambda bench: dead.append(1) or full(bench, 2**20))
    with pytest.raises(InputError, match="ILLEGAL_ADDRESS"):
        normalization.record_normalization(tmp_path / "again")
    dead.clear()
    made = normalization.record_normalization(tmp_path / "again")
    assert set(made.about["failed"]) == {"multiply_add", "copy_1048584"}
    assert (tmp_path / "again/rows.csv").read_bytes() == (tmp_path / "made/rows.csv").read_bytes()


def test_a_kernel_that_makes_the_gpu_unusable_is_not_launched_again(machine, monkeypatch, tmp_path):
    """It was checked together with all others: none was, and each shape that it suits ended another process."""
    run, dead = machine.run, []

    def fatal(image, name, *launch):
        dead.extend([name] if name.startswith("clustered") else [])
        return run(image, name, *launch)

    def synchronize():
        if dead:
            raise driver.CudaError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")

    monkeypatch.setattr(machine, "run", fatal)
    monkeypatch.setattr(machine.driver, "run", fatal)
    monkeypatch.setattr(machine.driver, "synchronize", synchronize)
    ended = []
    while len(ended) < 5:
        try:
            made = normalization.record_normalization(tmp_path)
            break
        except InputError:
            ended.append(set(dead))
            dead.clear()
    assert ended == [{"clustered_1024x4"}, {"clustered_1024x4_aligned"}]
    assert set(made.about["failed"]) == {"hostile_clustered_1024x4", "hostile_clustered_1024x4_aligned"}
    assert set(pd.read_csv(tmp_path / "rows.csv")["kernel"]) == {"copy", "two_pass", "one_pass"}


def test_a_step_in_which_the_process_crashes_is_left_out_after_two_tries(machine, monkeypatch, tmp_path):
    def crash(bench):
        raise SystemError("stands in for a signal")

    monkeypatch.setattr(normalization.Bench, "multiply_add", crash)
    for _ in range(normalization.TRIES):
        with pytest.raises(SystemError):
            normalization.record_normalization(tmp_path)
    made = normalization.record_normalization(tmp_path)
    assert made.about["failed"] == {"multiply_add": "its process crashed 2 times"}
    assert set(pd.read_csv(tmp_path / "ceilings.csv")["ceiling"]) == {"launch", "copy"}


def test_a_kernel_whose_occupancy_is_unknown_is_timed_with_one_grid(machine, monkeypatch, tmp_path):
    resident = machine.driver.resident_blocks

    def unknown(function, threads, shared_bytes):
        if threads == 1024:
            raise driver.CudaError("CUDA_ERROR_INVALID_CLUSTER_SIZE: invalid cluster size")
        return resident(function, threads, shared_bytes)

    monkeypatch.setattr(machine.driver, "resident_blocks", unknown)
    normalization.record_normalization(tmp_path)
    assert 264 in machine.launched["two_pass"] and 264 not in machine.launched["clustered_1024x4_aligned"]


def test_a_value_that_is_not_written_is_found_wherever_it_is(monkeypatch):
    monkeypatch.setattr(normalization, "CHECKED_VALUES", 40)
    x = np.random.default_rng(0).standard_normal((100, 10), np.float32)
    expected, y = normalization.Expected(x), normalization_kernels.reference(x).astype(np.float32)
    assert expected.largest_error(y) < normalization_kernels.tolerance(10)
    y[99, 3] += 0.5
    assert expected.largest_error(y) > 0.1, "the last row is always compared"
    y[99, 3] -= 0.5
    y.view(np.uint8)[51, 8:12] = normalization.POISON_BYTE
    assert expected.largest_error(y) == np.inf, "also in a row that is not compared"


def test_every_configuration_that_suits_is_tried_with_both_grids(machine, tmp_path):
    normalization.record_normalization(tmp_path)
    assert {name for name in machine.launched if name.startswith("one_pass")} >= {
        "one_pass_32x1_aligned",
        "one_pass_8x1",
    }
    # 132 SMs run 264 of its blocks at once.
    assert {300, 264, 4096} <= set(machine.launched["two_pass"])
    streaming = machine.driver.attributes("streaming_1024x4")
    assert {found[driver.SHARED_CARVEOUT_PERCENT] for found in streaming} == {100}


def test_an_unknown_gpu_has_no_data_sheet(machine, monkeypatch, tmp_path, caplog):
    machine.driver.device_name = "NVIDIA X1"
    monkeypatch.setattr(normalization, "SHAPES", SHAPES[:1])
    cases = normalization.record_normalization(tmp_path).cases
    assert "gpu" not in cases["normalization_roofline"]["measured"]
    assert "NVIDIA X1 is not in resources/gpus.csv" in caplog.text


def test_a_python_that_cannot_read_data_sheets_records_all_the_same(machine, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(normalization, "SHAPES", SHAPES[:1])
    from gpuledger import readers

    # As if neither had been imported.
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.delitem(sys.modules, "gpuledger.readers.gpus", raising=False)
    monkeypatch.delattr(readers, "gpus", raising=False)
    cases = normalization.record_normalization(tmp_path).cases
    assert "gpu" not in cases["normalization_roofline"]["measured"]
    assert "pandas" in caplog.text and (tmp_path / "rows.csv").is_file()
