"""Simulated accesses to memory: every kernel touches what it must, when the paper says it does."""

import numpy as np
import pytest

from gpuledger.models import simulate
from gpuledger.models.simulate import cases
from gpuledger.models.simulate.attention import AttentionKernel, access_records
from gpuledger.models.simulate.machine import MachineModel

KERNELS = {
    "fig1": cases.FLASH2_EXCLUSIVE_ACCESSES,
    "fig10a": cases.FLASH2_SHARED_ACCESSES,
    "fig10b": cases.FLASH1_ACCESSES,
    "fig10c": cases.EFFICIENT_ACCESSES,
}


@pytest.fixture(scope="module", params=KERNELS)
def traced(request):
    attention = KERNELS[request.param]
    records = simulate.simulate_launch("dmat", request.param).records
    made = records["addr"] > 0
    tensor = np.full(records.shape, "", "U18")
    for name, found in attention.tensors.items():
        inside = (records["addr"] >= found.address) & (records["addr"] < found.address + found.size_bytes)
        tensor[inside] = name
    return request.param, attention, records, made, tensor


def test_every_access_is_to_a_tensor_and_in_order(traced):
    _, _, records, made, tensor = traced
    assert (tensor[made] != "").all()
    # What a thread does not use is cleared, and at its end; its clocks do not go back.
    assert not records["clock"][~made].any()
    assert (made[:, :, :-1] | ~made[:, :, 1:]).all()
    steps = np.diff(records["clock"].astype(np.int64), axis=2)
    assert (steps[made[:, :, 1:]] >= 0).all()
    assert records["clock"].max() < 5_000_000


def test_every_block_reads_and_writes_what_it_must(traced):
    _, attention, records, _, tensor = traced
    head_bytes = attention.tokens * attention.head_dim * 2
    tiles = attention.tokens // attention.tile_queries
    loads = attention.tokens // attention.tile_keys if attention.reload_query else 1
    times = {"key": 1, "value": 1, "query": loads / tiles, "output": 1 / tiles}
    for block in (0, 7, len(records) - 1):
        head = block // tiles
        for name, passes in times.items():
            touched = records["addr"][block][tensor[block] == name]
            first = attention.tensors[name].address + head * head_bytes
            assert touched.min() >= first
            assert touched.max() < first + head_bytes
            assert len(touched) * 16 == passes * head_bytes
            assert len(np.unique(touched)) * 16 == (head_bytes if passes == 1 else head_bytes // tiles)
    # Together the blocks write the output once.
    written = records["addr"][tensor == "output"]
    assert len(np.unique(written)) == len(written) == attention.tensors["output"].size_bytes // 16


def test_queries_are_read_at_the_start_or_all_the_time(traced):
    name, attention, records, _, tensor = traced
    clock = records["clock"]
    end = np.median(clock.max(axis=(1, 2)))
    latest = clock[tensor == "query"].max()
    assert (latest > 0.8 * end) if name == "fig10c" else (latest < 0.1 * end)
    assert clock[tensor == "output"].min() > 0.6 * end
    if attention.saves_statistics:
        assert clock[tensor == "softmax_statistics"].min() > 0.6 * end
        assert np.count_nonzero(tensor == "softmax_statistics") == 49 * 512
    else:
        assert "softmax_statistics" not in attention.tensors


def test_keys_come_in_stripes_where_the_paper_shows_them(traced):
    name, attention, records, _, tensor = traced
    clock = records["clock"][tensor == "key"]
    period = attention.kernel.compute_cycles + attention.kernel.wait_cycles
    # How far the accesses in the middle of the kernel follow the iterations: 0 not at all, 1 all at one instant of it.
    middle = clock[(clock > 0.4 * clock.max()) & (clock < 0.8 * clock.max())]
    rhythm = max(abs(np.exp(2j * np.pi * middle / (period * stretch)).mean()) for stretch in np.linspace(0.95, 1.3, 30))
    assert (rhythm > 0.4) if name in ("fig1", "fig10b") else (rhythm < 0.3)


def test_shape_of_the_published_maps():
    pages = {name: sum(-(-t.size_bytes // 65536) for t in a.tensors.values()) for name, a in KERNELS.items()}
    # Neutrino's picture has rows of pages // 99 pages and 101 rows.
    assert all(99 <= count <= 101 * (count // 99) for count in pages.values())
    assert all(tensor.address % 65536 == 0 for a in KERNELS.values() for tensor in a.tensors.values())


def test_a_block_of_one_warp_and_odd_tiles():
    attention = AttentionKernel(
        "k", "f", batch=1, heads=2, tokens=64, head_dim=16, tile_queries=32, tile_keys=16, warps=1, slots=1
    )
    records, cycles = access_records(MachineModel(sms=2), attention, np.random.default_rng(0))
    assert records.shape[:2] == (4, 32)
    # 64 vectors of query and output each, 128 of keys and values each, 32 statistics, over 32 threads.
    assert np.count_nonzero(records["addr"]) == 4 * (2 * 64 + 2 * 128 + 32)
    assert cycles > 0
