"""Which constants predict a library's attention, and the laws without a mask."""

import numpy as np
import pytest

from gpuledger.models.time_model.attention.backward_law import START as BACKWARD_START
from gpuledger.models.time_model.attention.backward_law import backward_terms
from gpuledger.models.time_model.attention.decode_law import DecodeConstants, decode_terms
from gpuledger.models.time_model.attention.library_kernels import FLASH_2, library_entries
from gpuledger.models.time_model.attention.prefill_law import PrefillConstants, prefill_terms
from gpuledger.models.time_model.constants.donors import sm_rate
from gpuledger.models.time_model.constants.table import read_table, transferred
from gpuledger.readers.gpus import find_gpu

H100, A100 = find_gpu("h100-sxm"), find_gpu("a100-sxm-80gb")
PREFILL = PrefillConstants(1e-6, 1e-8, 0.7, 256.0, 1.0, overlap=4.0, late_share=0.5)


def shapes(gpu=H100, **sizes):
    """Return what the laws of attention take of one launch, of heads of 128 by default."""
    usual = {"requests": 1, "tokens": 4096, "context": 0, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
    s = usual | sizes
    rest = {"copied_values": 0, "value_bytes": 2, "cache_bytes": 2, "peak": gpu.peak_flop_per_s("bf16")}
    s = {"cache_values": 2 * s["head_dim"] * s["kv_heads"], "masked": 1} | rest | s
    return {name: np.array([float(value)]) for name, value in s.items()}


def prefill_s(gpu=H100, **sizes):
    return prefill_terms(gpu, PREFILL, shapes(gpu, **sizes))["time_s"][0]


def test_without_a_mask_every_query_sees_every_key():
    assert prefill_s(tokens=32768, masked=0) / prefill_s(tokens=32768) == pytest.approx(2, rel=0.1)
    # As much as the last tile under a mask, behind so many keys.
    assert prefill_s(tokens=128, context=65408, masked=0) == pytest.approx(
        prefill_s(tokens=128, context=65408), rel=0.01
    )


def test_the_sm_with_most_equal_blocks_decides():
    one, two, full = (prefill_s(A100, tokens=128, context=65408, heads=count, kv_heads=4) for count in (108, 112, 216))
    assert two / one > 1.6 and full / two < 1.2
    # Those of a whole prompt under a mask differ: a block more is no round more.
    assert prefill_s(A100, tokens=16384, heads=108, kv_heads=4) < 1.05 * prefill_s(
        A100, tokens=16384, heads=104, kv_heads=4
    )


def test_a_mask_is_usual_where_nothing_is_said():
    of = shapes()
    masked = {name: values for name, values in of.items() if name != "masked"}
    for law, constants in ((prefill_terms, PREFILL), (backward_terms, BACKWARD_START)):
        assert law(H100, constants, of)["time_s"] == law(H100, constants, masked)["time_s"]


def test_gradients_without_a_mask_take_twice_as_long():
    with_it, without = (
        backward_terms(H100, BACKWARD_START, shapes(tokens=16384, masked=masked))["time_s"][0] for masked in (1, 0)
    )
    assert without / with_it == pytest.approx(2, rel=0.05)


def latent_s(gpu, heads, tokens):
    constants = DecodeConstants(1e-6, 1e-8, 100.0, 1.0, 1e-8, 1e-9, 1e-10)
    sizes = {"requests": 128, "tokens": tokens, "context": 8192, "heads": heads, "kv_heads": 1, "head_dim": 544}
    return decode_terms(gpu, constants, shapes(gpu, cache_values=576, **sizes))["time_s"][0]


def test_warp_groups_multiply_64_rows_of_latent_attention_at_a_time():
    """On an H20, whose units are slow, 16 heads of one new token take as long as those of four."""
    slow = find_gpu("h20")
    assert latent_s(slow, 16, 1) == pytest.approx(latent_s(slow, 16, 4), rel=0.02)
    assert latent_s(slow, 16, 8) > 1.8 * latent_s(slow, 16, 4)
    assert latent_s(H100, 16, 4) < 1.05 * latent_s(H100, 16, 1)


@pytest.mark.parametrize(
    ("name", "kind", "library", "own", "here", "donor"),
    [
        ("h200-sxm", "prefill", "cuDNN", True, True, "h200-sxm"),
        ("h20", "prefill", "cuDNN", True, False, "h100-sxm"),
        # Blackwell's cuDNN is other code, and so is SGLang's Triton kernel.
        ("b200", "prefill", "cuDNN", False, False, "b200"),
        ("rtx-3090", "prefill", "Triton", False, False, "l40s"),
        ("b200", "prefill", FLASH_2, True, False, "h100-sxm"),
        ("b200", "backward", FLASH_2, True, False, "h100-sxm"),
        ("rtx-4090", "encoder", FLASH_2, True, False, "l40s"),
        ("rtx-pro-6000", "encoder", FLASH_2, True, True, "rtx-pro-6000"),
    ],
)
def test_kernels_come_from_the_nearest_gpu_that_runs_their_code(name, kind, library, own, here, donor):
    found = library_entries(kind, find_gpu(name), ("bf16/bf16",), library, False, 64)
    assert (found.own, found.here) == (own, here)
    assert {entry.gpu for entry in found.entries} == {donor}


def test_widths_that_no_encoder_was_measured_with_have_none():
    assert library_entries("encoder", H100, ("bf16",), "cuDNN", False, 128).entries == ()
    assert library_entries("backward", A100, ("bf16/bf16",), "cuDNN", False, 128).entries == ()


def test_a_warps_instructions_keep_what_an_sm_computes_in_a_cycle():
    of_h100 = next(e.constants for e in read_table("prefill") if (e.gpu, e.kernel) == (H100.name, "torch_flash"))

    def share(name):
        found = library_entries("prefill", find_gpu(name), ("bf16/bf16",), FLASH_2, False, 128)
        return found.entries[0].constants.tensor_share

    b200 = find_gpu("b200")
    assert share("b200") * sm_rate(b200) == pytest.approx(of_h100.tensor_share * sm_rate(H100), rel=1e-3)
    # Otherwise an H20's slow units would wait for nothing else, and be used up.
    assert transferred(of_h100, H100, find_gpu("h20")).tensor_share == 1.0 and share("h20") == 0.629
    assert share("h200-sxm") < 0.4


def test_slower_units_wait_less_on_desktops_of_another_generation():
    of_l40s = next(e.constants for e in read_table("prefill") if (e.gpu, e.kernel) == ("l40s", "vllm_flash_attn_fa2"))
    l40s, ampere, turing = (find_gpu(name) for name in ("l40s", "rtx-3090", "t4"))
    expected = of_l40s.tensor_share * sm_rate(l40s) / sm_rate(ampere)
    assert transferred(of_l40s, l40s, ampere).tensor_share == pytest.approx(min(1, expected), rel=1e-3)
    assert transferred(of_l40s, l40s, turing).tensor_share == of_l40s.tensor_share
