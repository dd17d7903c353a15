"""Which measured GPU lends its constants to one that was not measured."""

import dataclasses
import math

import numpy as np
import pytest

from gpuledger.models.power import chip_constants
from gpuledger.models.time_model.collectives import TRAYS, collective_terms, sent_bytes
from gpuledger.models.time_model.constants import choice
from gpuledger.models.time_model.constants.donors import known, nearest_gpu, sm_rate
from gpuledger.models.time_model.constants.table import read_table, transferred, unseen_constants
from gpuledger.models.time_model.gemms.tiles import WARP, WARP_GROUP, generation_of, stacked
from gpuledger.readers.gpus import find_gpu, read_gpus


def donor(name, kind, precisions=("bf16",), **options):
    sources = {entry.constants.source for entry in choice.candidates(kind, find_gpu(name), precisions, **options)}
    (found,) = {source.split(":")[0].removeprefix("transferred from ") for source in sources}
    return found


@pytest.mark.parametrize(
    ("name", "gemm", "prefill", "all_reduce"),
    [
        # HBM, matrix units that read registers, NVLink: an A100 has all three.
        ("v100-sxm2", "a100-sxm-80gb", "a100-sxm-80gb", "a100-sxm-80gb"),
        ("mi300x", "a100-sxm-80gb", "a100-sxm-80gb", "h100-sxm"),
        # On PCIe no GPU has the bandwidth of NVLink's switches, whatever its kernels.
        ("a100-pcie-80gb", "a100-sxm-80gb", "a100-sxm-80gb", "rtx-pro-6000"),
        ("h100-pcie", "h100-sxm", "h100-sxm", "rtx-pro-6000"),
        ("gh200-144gb", "h200-sxm", "h200-sxm", "h200-sxm"),
        # GDDR. The L40S's collectives are of a server that says little about others.
        ("rtx-3090", "l40s", "l40s", "rtx-pro-6000"),
        ("rtx-4090", "l40s", "l40s", "rtx-pro-6000"),
        ("rtx-5070", "rtx-pro-6000", "rtx-pro-6000", "rtx-pro-6000"),
    ],
)
def test_donors_share_memory_matrix_units_and_links(name, gemm, prefill, all_reduce):
    near = {"h200-sxm": "h100-sxm"}  # which differ in nothing but bandwidth and capacity
    found = donor(name, "gemm"), donor(name, "prefill", ("bf16/bf16",)), donor(name, "collective", ("all_reduce",))
    assert [near.get(of, of) for of in found] == [near.get(of, of) for of in (gemm, prefill, all_reduce)]


def test_matrix_units_count_before_memory_where_kernels_were_written_for_them():
    measured = [find_gpu(name) for name in sorted({entry.gpu for entry in read_table("gemm")} - {"a100-sxm-80gb"})]
    ampere = find_gpu("a100-sxm-80gb")
    kinds = {"gemm": "h100-sxm", "decode": "h100-sxm", "moe": "l40s", "prefill": "l40s", "collective": "h100-sxm"}
    assert {kind: nearest_gpu(ampere, measured, kind).name for kind in kinds} == kinds
    assert nearest_gpu(ampere, measured, "decode", latent=True).name == "l40s"


def test_a_kernel_of_another_generation_does_not_stand_in_for_ones_own():
    """Experts with activations in mxfp8 run on Blackwell only; a Hopper widens their weights, measured or not."""
    wanted = ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4")
    for name in ("h100-sxm", "h100-pcie", "h20"):
        assert {entry.precision for entry in choice.candidates("moe", find_gpu(name), wanted)} == {"w4a16_mxfp4"}
    assert donor("h100-pcie", "moe", wanted) == "h100-sxm"
    assert donor("a100-pcie-80gb", "gemm", ("fp8", "bf16")) == "a100-sxm-80gb"


def test_the_kind_of_memory_is_guessed_by_the_sm_where_a_table_does_not_say():
    """By what NVIDIA's GPUs since 2020 have; the guess is wrong for older ones and other makers'."""
    for gpu in read_gpus().values():
        if gpu.memory and not gpu.architecture.startswith(("volta", "cdna", "xe")):
            assert stacked(dataclasses.replace(gpu, memory="")) == stacked(gpu), gpu.name
    assert not stacked(dataclasses.replace(find_gpu("a100"), memory="gddr6"))
    assert stacked(dataclasses.replace(find_gpu("a100"), memory="", shared_memory_bytes_per_sm=math.nan))


def test_sms_of_the_same_architecture_take_in_as_much_whatever_their_matrix_units_compute():
    def rates(name):
        return {entry.constants.l2_bytes_per_clock for entry in choice.candidates("gemm", find_gpu(name), ("bf16",))}

    assert rates("h20") == rates("h100-sxm")
    assert max(rates("rtx-4090")) == max(rates("l40s")) > max(rates("rtx-3090"))


@pytest.mark.parametrize(("kind", "precision"), [("moe", "int4_wo"), ("prefill", "bf16/bf16"), ("gemm", "bf16")])
def test_slower_matrix_units_of_the_same_sm_wait_less(kind, precision):
    """What else an SM does takes the same cycles: no kernel is slower on an H20 for it than on an H100."""
    slow, fast = (find_gpu(name) for name in ("h20", "h100-sxm"))
    fitted = {entry[1:4]: entry.constants for entry in read_table(kind) if entry.gpu == fast.name}
    for entry in choice.candidates(kind, slow, (precision,)):
        share, own = entry.constants.tensor_share, fitted[entry[1:4]].tensor_share
        assert own < share <= 1.0
        assert share == pytest.approx(min(1.0, own * sm_rate(fast) / sm_rate(slow)), rel=1e-3)


def test_links_of_a_rack_are_no_faster_behind_a_tray():
    """Trays of four were measured; each doubling from two to four made one law 2.8 times as fast."""
    for name in ("gb200", "gb300"):
        gpu = find_gpu(name)
        for entry in choice.candidates("collective", gpu, ("all_reduce",)):
            message, devices = np.full(2, 2.0**30), np.array([4.0, 8.0])
            link = collective_terms(gpu, entry.constants, "all_reduce", message, devices, TRAYS[name])["link_s"]
            assert link[1] > link[0]
            assert (sent_bytes("all_reduce", message, devices) / link < 1.1 * gpu.link_bytes_per_s).all()


def test_few_gpus_with_a_link_for_each_of_the_others_use_few_links():
    mesh = find_gpu("mi300x")
    switched = dataclasses.replace(mesh, peer_bytes_per_s=math.nan)
    (entry, *_) = choice.candidates("collective", mesh, ("all_reduce",), "nccl")
    shapes = "all_reduce", np.full(4, 2.0**28), np.array([2.0, 4.0, 8.0, 16.0])
    links = [collective_terms(gpu, entry.constants, *shapes)["link_s"] for gpu in (mesh, switched)]
    assert links[0] / links[1] == pytest.approx([7, 7 / 3, 1, 1])


def test_architectures_without_measurements_are_known():
    assert {gpu.name for gpu in read_gpus().values() if not known(gpu)} == {
        "b60",
        "mi300x",
        "mi325x",
        "mi355x",
        "nvl-ax",
        "jgs",
    }


def test_an_intel_gpus_constants_are_its_own_and_those_of_its_architecture():
    """It was measured with one engine, and without graphs: it says nothing about kernels of other makers."""
    measured = [find_gpu(name) for name in sorted({entry.gpu for entry in read_table("gemm")})]
    own = find_gpu("b60")
    assert own in measured
    for gpu in read_gpus().values():
        for kind in ("gemm", "prefill", "decode", "moe", "collective"):
            assert (nearest_gpu(gpu, measured, kind) == own) == (gpu == own)
    sibling = dataclasses.replace(own, name="b50", sms=16, dram_bytes_per_s=224e9)
    assert nearest_gpu(sibling, measured, "gemm") == own
    # SGLang and TensorRT-LLM do not have vLLM's kernel; a GEMM then takes what all have, but not from Intel's.
    for kind, precision in (("gemm", "bf16"), ("prefill", "bf16/bf16"), ("decode", "bf16/bf16")):
        for entry in read_table(kind):
            if entry.precision == precision and entry.gpu != own.name:
                found = unseen_constants(kind, find_gpu(entry.gpu), entry.kernel, precision)
                assert found is None or "from b60" not in found.source


def test_matrix_units_are_guessed_by_the_memory_where_a_table_does_not_say_what_an_sm_holds():
    """A table of one's own may name a desktop's architecture and memory, and nothing of its SMs."""
    for name, units in (("rtx-5070", WARP), ("b200", WARP_GROUP)):
        assert generation_of(dataclasses.replace(find_gpu(name), shared_memory_bytes_per_sm=math.nan)) is units


@pytest.mark.parametrize(
    ("name", "power"),
    [
        ("h100-pcie", (350 / 756.5) / (700 / 989.4)),
        ("h100-nvl", (400 / 835.5) / (700 / 989.4)),
        ("gh200-96gb", 1),  # its board's power is not known
        ("h20-sxm", None),  # more watts per FLOP: what its SMs leave to slower matrix units
    ],
)
def test_boards_with_hbm_and_less_power_lose_clock(name, power):
    """As the clock of an H200 followed its power."""
    gpu, donor_gpu = find_gpu(name), find_gpu("h100-sxm")
    own = next(entry.constants for entry in read_table("gemm") if entry.gpu == "h100-sxm" and entry.precision == "bf16")
    found = transferred(own, donor_gpu, gpu).tensor_share
    law, _ = chip_constants(find_gpu("h200-sxm"))
    expected = (
        own.tensor_share * power ** (1 / (1 + law.clock_exponent))
        if power
        else min(1, own.tensor_share * sm_rate(donor_gpu) / sm_rate(gpu))
    )
    assert found == pytest.approx(expected, rel=1e-3)
    unknown = dataclasses.replace(gpu, board_power_w=math.nan)
    assert transferred(own, donor_gpu, unknown).tensor_share >= found
