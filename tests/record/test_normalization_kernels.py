"""The normalization kernels' very source, run on a CPU thread by thread, against double precision."""

import ctypes
import re

import compiled
import numpy as np
import pytest
from conftest import ROOT

from gpuledger.record import normalization_kernels as kernels

SOURCES = ROOT / "src/gpuledger/record/cuda_sources"
NAMES = [
    "two_pass",
    *(f"one_pass_{lanes}x{slots}{suffix}" for lanes, slots, _ in kernels.CONFIGURATIONS for suffix in ("", "_aligned")),
    *(f"cluster{blocks}_512x8{suffix}" for blocks in kernels.CLUSTERS for suffix in ("", "_aligned")),
    *(f"{name}_1024x4{suffix}" for name in ("streaming", "clustered") for suffix in ("", "_aligned")),
]
HARNESS = """
#include "cuda_on_cpu.hpp"
#include "normalization.cu"
#include "ceilings.cu"

using Kernel = void (*)(const Element*, Element*, long long, int);
static const struct { const char* name; Kernel kernel; } KERNELS[] = {%s};

extern "C" const char* normalize(const char* name, const void* x, void* y, long long rows, int length, unsigned blocks,
                                 unsigned threads, unsigned shared_bytes, int backwards, unsigned cluster) {
    for (const auto& entry : KERNELS) {
        if (std::strcmp(entry.name, name)) continue;
        const size_t bytes = sizeof(Element) * rows * length;
        emulation::Guarded from(bytes), to(bytes);
        std::memcpy(from.data, x, bytes);
        emulation::dynamic.assign(shared_bytes / sizeof(float4), {});
        const auto source = reinterpret_cast<const Element*>(from.data);
        const char* failure = emulation::run({blocks}, threads, backwards, [&] {
            entry.kernel(source, reinterpret_cast<Element*>(to.data), rows, length);
        }, cluster);
        std::memcpy(y, to.data, bytes);
        if (!failure && !to.untouched_around()) failure = "something is written beside the result";
        return failure;
    }
    return "no such kernel";
}

extern "C" const char* copy(int unroll, const float* x, float* y, long long count, unsigned blocks) {
    emulation::Guarded from(16 * count), to(16 * count);
    std::memcpy(from.data, x, 16 * count);
    const auto kernel = unroll == 1 ? copy_1 : unroll == 4 ? copy_4 : copy_8;
    const char* failure = emulation::run({blocks}, 64, false, [&] {
        kernel(reinterpret_cast<const float4*>(from.data), reinterpret_cast<float4*>(to.data), count);
    });
    std::memcpy(y, to.data, 16 * count);
    return failure;
}

extern "C" const char* chains(float* out, int iterations, unsigned blocks, unsigned threads) {
    return emulation::run({blocks}, threads, false, [&] { multiply_add(out, iterations, 0.5f, 1.0f); });
}
"""


@pytest.fixture(scope="module")
def library():
    """The sources as a library for the CPU."""
    return build("fp32")


@pytest.fixture(scope="module", params=["fp16", "bf16"])
def library_16(request):
    """Likewise with elements of 16 bits; also their type."""
    return build(request.param), request.param


def build(element):
    if compiled.COMPILER is None:
        pytest.skip("g++ is not installed: the CUDA sources cannot be run on the CPU")
    entries = ", ".join(f'{{"{name}", {name}}}' for name in NAMES)
    code = f"#define ELEMENT {kernels.ELEMENTS[element][0]}\n{HARNESS % entries}"
    loaded = compiled.library(f"normalization-{element}", code)
    for function in (loaded.normalize, loaded.copy, loaded.chains):
        function.restype = ctypes.c_char_p
    return loaded


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def normalize(library, plan, x, blocks=None, backwards=False, shared=0, element="fp32"):
    x = kernels.to_elements(np.ascontiguousarray(x, np.float32), element)
    y = np.full_like(x, 12345)
    rows, length = x.shape
    shape = (ctypes.c_longlong(rows), length, plan.blocks(rows, blocks), plan.threads, shared, int(backwards))
    failure = library.normalize(plan.kernel.encode(), pointer(x), pointer(y), *shape, plan.cluster)
    assert failure is None, f"{plan.kernel}, {rows}×{length}: {failure.decode()}"
    return kernels.from_elements(y, element)


def check(library, plan, x, element="fp32", **how):
    x = kernels.from_elements(kernels.to_elements(np.asarray(x, np.float32), element), element)
    y = normalize(library, plan, x, element=element, **how)
    error = kernels.largest_error(y, kernels.reference(x))
    assert error <= kernels.tolerance(x.shape[1], element), f"{plan.kernel}, {x.shape}: {error}"
    return y


def test_every_kernel_of_the_source_is_offered_and_the_other_way_round():
    source = (SOURCES / "normalization.cu").read_text("utf-8")
    listed = re.findall(r"^KERNEL\(([\w() ]+), \w+, (\d+), (\d+), (\d+)(?:, \d)?\)", source, re.MULTILINE)
    offered = [("one_pass", *configuration) for configuration in kernels.CONFIGURATIONS]
    offered += [("streaming", *kernels.STREAMING)]
    offered += [(f"CLUSTERS({blocks}) cluster{blocks}", *kernels.CLUSTERED) for blocks in kernels.CLUSTERS]
    offered += [(f"CLUSTERS({kernels.CLUSTER}) clustered", *kernels.STREAMING)]
    assert [(name, *map(int, numbers)) for name, *numbers in listed] == offered


@pytest.mark.parametrize(
    "length", [1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1000]
)
def test_hard_rows_of_every_length(library, length):
    x = kernels.hostile_rows(length)
    for plan in [kernels.TWO_PASS, *kernels.configurations(length)]:
        check(library, plan, x)


@pytest.mark.parametrize("configuration", [*kernels.CONFIGURATIONS, kernels.STREAMING], ids=str)
def test_every_configuration_full_and_not(library, configuration):
    lanes, slots, threads = configuration
    rows_of_block = threads // lanes
    name = "streaming" if configuration == kernels.STREAMING else "one_pass"
    held = 4 * lanes * slots * (2 if name == "streaming" else 1)
    for length, suffix in ((held, "_aligned"), (held - 4, "_aligned"), (held - 1, ""), (held // 2 + 1, "")):
        plan = kernels.Configuration(f"{name}_{lanes}x{slots}{suffix}", threads, rows_of_block)
        rows = kernels.hostile_rows(max(length, 1))
        check(library, plan, rows[[0, 3, 5, 9, 12]] if length > 2000 else rows)


@pytest.mark.parametrize("length", [5, 100, 129, 1023, 1024])
def test_blocks_that_take_turns_and_threads_in_any_order_give_the_same_bits(library, length):
    x = kernels.hostile_rows(length)
    for plan in [kernels.TWO_PASS, *kernels.configurations(length)]:
        once = normalize(library, plan, x)
        assert normalize(library, plan, x, blocks=2).tobytes() == once.tobytes()
        assert normalize(library, plan, x, backwards=True).tobytes() == once.tobytes()


@pytest.mark.parametrize("rounds", [1, 2, 3, 9])
def test_what_shared_memory_keeps_changes_no_bit(library, rounds):
    for length in (40000, 40001):
        (plan,) = kernels.configurations(length)
        x = kernels.hostile_rows(length)[[0, 2, 12]]
        once = normalize(library, plan, x)
        assert normalize(library, plan, x, shared=rounds * kernels.KEPT_BYTES).tobytes() == once.tobytes()


@pytest.mark.parametrize("length", [16384 + 4, 40001])
def test_a_cluster_keeps_a_row_together(library, length):
    """Two blocks here, for speed: of three rounds at most, one has one more than the other."""
    suffix = "" if length % 4 else "_aligned"
    plan = kernels.Configuration(f"clustered_1024x4{suffix}", 1024, 1, cluster=2)
    x = kernels.hostile_rows(length)[[0, 2]]  # normal, and huge: the scale is found together as well
    shared = plan.kept_bytes(length, 10**6)
    assert shared == (1 if length < 32000 else 2) * kernels.KEPT_BYTES
    once = check(library, plan, x, shared=shared)
    assert normalize(library, plan, x, blocks=2).tobytes() == once.tobytes(), "in turns, and nothing kept"
    assert normalize(library, plan, x[:1], shared=shared, backwards=True).tobytes() == once[:1].tobytes()


def test_clusters_are_whole_and_keep_what_they_need():
    (streaming, clustered) = kernels.configurations(131076, clusters=True)
    assert [streaming] == kernels.configurations(131076) and clustered.kernel == "clustered_1024x4_aligned"
    assert clustered.blocks(1024) == 8 * 1024 and clustered.blocks(1024, 132) == 8 * 16 and clustered.blocks(1, 3) == 8
    room = 227 * 1024
    assert clustered.kept_bytes(131072, room) == kernels.KEPT_BYTES, "one round of each block"
    assert clustered.kept_bytes(131076, room) == 2 * kernels.KEPT_BYTES
    assert clustered.kept_bytes(131076, room, "bf16") == kernels.KEPT_BYTES
    (eight,) = kernels.configurations(131071, True)
    assert eight == kernels.Configuration("cluster8_512x8", 512, 1, 8) and eight.kept_bytes(131071, room) == 0
    (four,) = kernels.configurations(131072, True, "bf16")
    assert four == kernels.Configuration("cluster4_512x8_aligned", 512, 1, 4)
    assert clustered.kept_bytes(10**7, room) == streaming.kept_bytes(10**6, room) == 3 * kernels.KEPT_BYTES
    assert kernels.configurations(1024)[0].kept_bytes(1024, room) == 0


@pytest.mark.parametrize(
    ("blocks", "length", "element"),
    [(2, 16384 + 4, "fp32"), (2, 32767, "fp32"), (4, 40001, "fp32"), (8, 131072, "bf16"), (2, 40001, "fp16")],
)
def test_registers_of_a_cluster_hold_a_row(blocks, length, element):
    aligned = length % kernels.values_of_slot(element) == 0
    plan = kernels.Configuration(f"cluster{blocks}_512x8{'_aligned' if aligned else ''}", 512, 1, blocks)
    x = kernels.hostile_rows(length)[[0, 2] if element != "fp16" else [0, 12]]
    once = check(build(element), plan, x, element=element)
    assert normalize(build(element), plan, x, element=element, blocks=blocks).tobytes() == once.tobytes(), "in turns"


@pytest.mark.parametrize("length", [1, 3, 64, 65, 127, 260, 1024, 1999])
def test_elements_of_16_bits(library_16, length):
    library, element = library_16
    x = kernels.hostile_rows(length)
    if element == "fp16":  # the rest is infinite or zero in it
        x = x[[0, 7, 8, 9, 11, 12, 13, 14]]
        x[1, 0] = x[2, -1] = 6e4
    for plan in [kernels.TWO_PASS, *kernels.configurations(length, element=element)]:
        check(library, plan, x, element=element)


def test_long_rows_of_16_bits(library_16):
    library, element = library_16
    x = np.random.default_rng(5).standard_normal((2, 20000)).astype(np.float32)
    streaming = kernels.Configuration("streaming_1024x4_aligned", 1024, 1)
    check(library, streaming, x, element=element, shared=kernels.KEPT_BYTES)


def test_elements_are_rounded_to_nearest_even():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-7), np.inf, np.nan, 3e38], np.float32)
    bits = kernels.to_elements(values, "bf16")
    assert bits.view(np.uint16).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xBF81, 0x7F80, 0x7FC0, 0x7F62]
    back = kernels.from_elements(bits, "bf16")
    assert back[:4].tolist() == [1, 1, 1 + 2**-6, -(1 + 2**-7)] and np.isnan(back[5])
    assert kernels.from_elements(kernels.to_elements(values[:2], "fp16"), "fp16").tolist() == [1, 1 + 2**-8]


def test_what_the_result_is_where_the_formula_says_nothing(library):
    for length in (1, 6, 130):
        for plan in [kernels.TWO_PASS, *kernels.configurations(length)]:
            y = normalize(library, plan, np.full((3, length), 3.7))
            assert not y.any(), "equal values become zeros"
            spoilt = np.ones((2, length), np.float32)
            spoilt[1, -1] = np.inf
            y = normalize(library, plan, spoilt)
            assert not y[0].any() and np.isnan(y[1]).all(), "a row with an infinity is NaN, its neighbour is not"


def test_scaling_a_row_by_a_power_of_two_changes_no_bit(library):
    x = np.random.default_rng(1).standard_normal((4, 333)).astype(np.float32)
    for plan in [kernels.TWO_PASS, *kernels.configurations(333)]:
        expected = normalize(library, plan, x)
        for power in (-120, -50, 70, 120):
            assert normalize(library, plan, x * np.float32(2.0) ** power).tobytes() == expected.tobytes()


def test_no_plan_offers_less_room_than_the_row_needs():
    for length in [*range(1, 600), 1023, 1024, 1025, 4093, 4094, 32765, 32766, 32768, 32769, 10**6]:
        for plan in kernels.configurations(length):
            if plan.kernel.startswith("streaming"):
                assert length > 32768
                continue
            lanes, slots = map(int, re.findall(r"\d+", plan.kernel))
            room = 4 * lanes * slots
            assert length <= room
            assert plan.kernel.endswith("_aligned") == (length % 4 == 0)
            assert plan.block_rows * lanes == plan.threads


def test_reference_and_error_find_what_is_wrong():
    x = kernels.hostile_rows(40)[:1]
    y = kernels.reference(x)
    assert y.mean() == pytest.approx(0, abs=1e-15) and y.std() == pytest.approx(1)
    wrong = y.copy()
    wrong[0, 3] += 1e-3
    assert kernels.largest_error(y, y) == 0
    assert kernels.largest_error(wrong, y) > kernels.tolerance(40)
    wrong[0, 3] = np.nan
    assert kernels.largest_error(wrong, y) == np.inf
    sample = x.std(ddof=1) / x.std(ddof=0)
    assert kernels.largest_error(y / sample, y) > kernels.tolerance(40), "the sample's std is another result"


@pytest.mark.parametrize("unroll", [1, 4, 8])
def test_copies_copy(library, unroll):
    for count in (1, 63, 64, 65, 1000):
        x = np.random.default_rng(count).standard_normal(4 * count).astype(np.float32)
        y = np.zeros_like(x)
        assert library.copy(unroll, pointer(x), pointer(y), ctypes.c_longlong(count), 2) is None
        assert y.tobytes() == x.tobytes()


def test_chains_of_multiply_adds_end_where_they_must(library):
    out = np.zeros(128, np.float32)
    assert library.chains(pointer(out), 4, 2, 64) is None
    # x ← x/2 + 1 tends to 2, in each of eight chains.
    assert (out == 16).all()
