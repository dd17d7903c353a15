"""Recording the normalization roofline, with NumPy in place of a GPU: what is run, checked, written and resumed."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Dataset
from gpuledger.record import cuda, normalization, normalization_kernels, normalization_torch
from gpuledger.record.cuda_timing import Timing
from gpuledger.studies import normalization_roofline

DEVICE = cuda.CudaDevice(0, "NVIDIA H200", "9.0", 132, 50 * 2**20, 141 * 10**9, 1_980_000_000, 2048, 65536, 232_448)
SHAPES = ((64, 128), (4096, 7), (300, 1024))


class Array(np.ndarray):
    """What CuPy's arrays have beyond NumPy's."""

    @property
    def data(self):
        return SimpleNamespace(copy_from_device_async=lambda source, count: None)

    def get(self):
        return np.asarray(self)


def array(values):
    return np.asarray(values).view(Array)


class Kernel:
    registers, shared_bytes, allowed = 64, 768, 48 * 1024

    def __init__(self, name, wrong):
        self.name, self.wrong, self.launched = name, wrong, []

    def allow_shared(self, shared_bytes):
        self.allowed = shared_bytes

    def launch(self, grid, block, *arguments, shared_bytes=0):
        assert shared_bytes <= self.allowed and shared_bytes + self.shared_bytes <= DEVICE.shared_bytes
        self.launched.append((grid, block))
        if self.name.startswith("copy"):
            source, target, count = arguments
            assert (count.dtype, 4 * count, source.dtype) == (np.int64, source.size, np.float32)
            target[...] = source
        elif self.name not in ("empty", "multiply_add"):
            x, y, rows, length = arguments
            assert (rows.dtype, length.dtype, (rows, length)) == (np.int64, np.int32, x.shape)
            y[...] = normalization_kernels.reference(x)
            if self.name in self.wrong:
                y[0, 0] += 0.01


@pytest.fixture
def machine(monkeypatch):
    """A GPU of NumPy; ``wrong`` names kernels that compute nonsense, ``timed`` counts timings by kernel."""
    state = SimpleNamespace(wrong=set(), kernels={}, timed=0, options=set())
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    fake = SimpleNamespace(
        random=np.random, asarray=array, get_default_memory_pool=lambda: pool,
        empty=lambda *shape: array(np.empty(*shape)), zeros=lambda *shape: array(np.zeros(*shape)),
        empty_like=np.empty_like, full_like=np.full_like,
    )  # fmt: skip
    fake.random = SimpleNamespace(
        default_rng=lambda seed: SimpleNamespace(
            standard_normal=lambda shape, dtype: array(np.random.default_rng(seed).standard_normal(shape, dtype))
        )
    )

    def load(name, device, options):
        state.options.add(options)
        return SimpleNamespace(kernel=lambda kernel: state.kernels.setdefault(kernel, Kernel(kernel, state.wrong)))

    def time_in_turn(launches, *, samples, capture=None, **_):
        state.timed += 1
        for launch in launches[:2]:
            launch()
        return Timing(1000.04, 900.0, 1100.0, samples, samples * len(launches))

    monkeypatch.setattr(cuda, "cupy", lambda: fake)
    monkeypatch.setattr(cuda, "load_module", load)
    monkeypatch.setattr(normalization, "time_in_turn", time_in_turn)
    monkeypatch.setattr(normalization_torch, "available", lambda: False)
    # Enough of the hard rows: the kernels themselves have tests of their own.
    monkeypatch.setattr(normalization_kernels, "CONFIGURATIONS", normalization_kernels.CONFIGURATIONS[:5])
    return state


def record(folder, **how):
    return normalization.record_normalization(
        folder, shapes=SHAPES, copy_bytes=(2**18, 2**20 + 8), device=DEVICE, **how
    )


def test_a_recording_is_a_case_of_the_study(machine, tmp_path):
    seen = []
    cases = record(tmp_path, progress=lambda *about: seen.append(about))
    assert seen[0] == ("hostile", 1, 8) and seen[-1] == ("rows_300x1024", 8, 8)
    case = cases["normalization_roofline"]["measured"]
    assert case == {"rows": "rows.csv", "ceilings": "ceilings.csv", "gpu": "h200-sxm"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ceilings.csv", "rows.csv"]
    rows = pd.read_csv(tmp_path / "rows.csv")
    wanted = {(k, r, n, c) for k in ("copy", "two_pass", "one_pass") for r, n in SHAPES for c in ("cold", "warm")}
    assert set(rows[["kernel", "rows", "length", "cache"]].itertuples(index=False, name=None)) == wanted
    assert set(rows["time_median_ns"]) == {1000.0}
    assert machine.options == {("--std=c++17", "--fmad=false", f"-DSTREAMING={n}") for n in (0, 1)}
    content = {"title": "t", "kind": "local", "source": "s", "license": "CC0-1.0", "studies": cases}
    folder = tmp_path / "local-gpu"
    folder.mkdir()
    for name in ("rows.csv", "ceilings.csv"):
        (tmp_path / name).rename(folder / name)
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content))
    opened = Dataset.load(folder / "dataset.yaml").case("normalization_roofline", "measured")
    result = reduce_case(opened, normalization_roofline.reduce, {})
    assert result["shapes"] == 3 and result["launch_floor"] == 1000
    assert "normalization_roofline" in json.dumps(opened.provenance())


def test_an_interrupted_recording_goes_on_and_is_not_taken_for_a_whole_one(machine, tmp_path):
    def stop(name, number, _):
        if name == "rows_4096x7":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(tmp_path, progress=stop)
    assert not (tmp_path / "rows.csv").exists() and not (tmp_path / "ceilings.csv").exists()
    before = machine.timed
    (tmp_path / "parts/copy_262144.json").write_text("{")
    record(tmp_path)
    made = machine.timed - before
    fresh = tmp_path / "fresh"
    before = machine.timed
    record(fresh)
    assert made < (machine.timed - before) / 2, "only what was missing, and what was broken, is measured again"
    assert (tmp_path / "rows.csv").read_bytes() == (fresh / "rows.csv").read_bytes()
    assert (tmp_path / "ceilings.csv").read_bytes() == (fresh / "ceilings.csv").read_bytes()


def test_parts_made_in_another_way_are_made_again(machine, tmp_path):
    def stop(name, number, _):
        if name == "rows_300x1024":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(tmp_path, samples=5, progress=stop)
    record(tmp_path, samples=6)
    assert pd.read_csv(tmp_path / "ceilings.csv")["launches"].min() == 6


@pytest.mark.parametrize("wrong", ["two_pass", "one_pass_32x1_aligned", "streaming_1024x4"])
def test_a_wrong_result_is_never_timed(machine, tmp_path, wrong):
    machine.wrong.add(wrong)
    with pytest.raises(
        InputError, match=rf"normalization\.cu: {wrong}, .*differs from double precision by 0\.0"
    ) as error:
        record(tmp_path)
    assert "do not use its times" in str(error.value)
    assert not (tmp_path / "rows.csv").exists()


def test_every_configuration_that_suits_is_tried_with_both_grids(machine, tmp_path):
    record(tmp_path)
    assert {name for name in machine.kernels if name.startswith("one_pass")} >= {
        "one_pass_32x1_aligned",
        "one_pass_8x1",
    }
    # 4,096 rows of length 7 fit at once; 300 rows of a block each do not where an SM holds 4 blocks of 256 threads only
    # if there are more than 528.
    grids = {grid for grid, _ in machine.kernels["two_pass"].launched}
    assert {300, 528, 4096} <= grids


def test_an_unknown_gpu_has_no_data_sheet(machine, tmp_path, caplog):
    unknown = cuda.CudaDevice(**{**vars(DEVICE), "name": "NVIDIA X1"})
    cases = normalization.record_normalization(tmp_path, shapes=SHAPES[:1], copy_bytes=(2**18,), device=unknown)
    assert "gpu" not in cases["normalization_roofline"]["measured"]
    assert "NVIDIA X1 is not in resources/gpus.csv" in caplog.text
