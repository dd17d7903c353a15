"""Simulated accesses to memory: every kernel touches what it must, when the paper says it does."""

from dataclasses import replace

import numpy as np
import pytest

from gpuledger.models import simulate
from gpuledger.models.simulate import cases
from gpuledger.models.simulate.attention import AttentionKernel, count_accesses
from gpuledger.models.simulate.machine import MachineModel
from gpuledger.readers.neutrino import PAGE_BYTES

KERNELS = {
    "fig1": cases.FLASH2_EXCLUSIVE_ACCESSES,
    "fig10a": cases.FLASH2_SHARED_ACCESSES,
    "fig10b": cases.FLASH1_ACCESSES,
    "fig10c": cases.EFFICIENT_ACCESSES,
}


def by_tensor(attention, accesses):
    """Name the tensor of every entry."""
    tensor = np.full(len(accesses), "", "U18")
    for name, found in attention.tensors.items():
        inside = (accesses["page"] >= found.address) & (accesses["page"] < found.address + found.size_bytes)
        tensor[inside.to_numpy()] = name
    return accesses.assign(tensor=tensor)


@pytest.fixture(scope="module", params=KERNELS)
def traced(request):
    attention = KERNELS[request.param]
    return request.param, attention, by_tensor(attention, simulate.simulate_launch("dmat", request.param).records)


def test_the_maps_are_of_the_published_size(traced):
    """4,112 pages in the documentation's picture: four tensors of 1,024 pages, and 16 of softmax statistics."""
    name, _, accesses = traced
    pages = accesses.groupby("tensor")["page"].nunique().to_dict()
    statistics = {} if name == "fig10c" else {"softmax_statistics": 16}
    assert pages == dict.fromkeys(("output", "value", "key", "query"), 1024) | statistics
    # Nothing lies between tensors.
    span = int(accesses["page"].max() - accesses["page"].min()) // PAGE_BYTES + 1
    assert span == sum(pages.values()) == accesses["page"].nunique()


def test_every_access_is_made_once(traced):
    _, attention, accesses = traced
    assert not accesses.duplicated(["clock", "page"]).any()
    tiles = attention.tokens // attention.tile_queries
    loads = attention.tokens // attention.tile_keys if attention.reload_query else 1
    found = accesses.groupby("tensor")["count"].sum()
    each = attention.tensors["key"].size_bytes // 16
    assert found["key"] == found["value"] == tiles * each
    assert (found["query"], found["output"]) == (loads * each, each)
    if attention.saves_statistics:
        assert found["softmax_statistics"] == attention.tensors["softmax_statistics"].size_bytes // 4
    # Every page of a tensor is accessed equally often.
    assert accesses.groupby(["tensor", "page"])["count"].sum().groupby("tensor").nunique().eq(1).all()


def test_queries_are_read_at_the_start_or_all_the_time(traced):
    name, _, accesses = traced
    clock = accesses.groupby("tensor")["clock"]
    end = accesses["clock"].max()
    assert (clock.max()["query"] > 0.8 * end) if name == "fig10c" else (clock.max()["query"] < 0.1 * end)
    assert clock.min()["output"] > 0.6 * end
    assert end < 5_000_000


def test_keys_come_in_stripes_where_the_paper_shows_them(traced):
    name, attention, accesses = traced
    kernel = attention.kernel
    period = kernel.compute_cycles + kernel.wait_cycles
    keys = accesses[accesses["tensor"] == "key"]
    clock = keys["clock"].to_numpy(float)
    # How far the accesses in the middle of the kernel follow the iterations: 0 not at all, 1 all at one instant of it.
    middle = clock[(clock > 0.4 * clock.max()) & (clock < 0.8 * clock.max())]
    stretched = period * np.linspace(0.95, 1.3, 50)
    rhythm = max(abs(np.exp(2j * np.pi * middle / length).mean()) for length in stretched)
    assert (rhythm > 0.3) if name in ("fig1", "fig10b") else (rhythm < 0.1)


def test_favoured_blocks_are_not_slowed():
    shared = cases.FLASH2_SHARED_ACCESSES
    first = {}
    for share in (0, 0.12, 1):
        attention = replace(shared, contention=replace(shared.contention, favoured=share))
        accesses, _ = count_accesses(cases.RTX_3080, attention, np.random.default_rng(3))
        output = by_tensor(attention, accesses).query("tensor == 'output'")
        order = output.sort_values("clock")
        early = np.searchsorted(order["count"].cumsum(), 0.05 * order["count"].sum())
        first[share] = int(order["clock"].iloc[early])
    # Of an eighth that are not slowed, the first twentieth of the output is written as early as if none were.
    assert first[0.12] == pytest.approx(first[1], rel=0.05)
    assert first[0] > 1.05 * first[1]


def test_a_block_of_one_warp_and_odd_tiles():
    attention = AttentionKernel(
        "k", "f", batch=1, heads=2, tokens=64, head_dim=16, tile_queries=32, tile_keys=16, warps=1, slots=1
    )
    accesses, cycles = count_accesses(MachineModel(sms=2), attention, np.random.default_rng(0))
    # 64 vectors of query and output each, 128 of keys and values each, 32 statistics, of 4 blocks.
    assert accesses["count"].sum() == 4 * (2 * 64 + 2 * 128 + 32)
    assert cycles > 0
    with pytest.raises(ValueError, match="a tile of query lies in more than one page"):
        count_accesses(MachineModel(sms=2), replace(attention, head_dim=4096), np.random.default_rng(0))
