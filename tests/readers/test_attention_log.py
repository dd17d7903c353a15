"""Logs of benchmarks of attention: the shapes that they print, and those that they leave to be known."""

import pytest
from command_line import run

from gpuledger.errors import InputError
from gpuledger.readers.kernel_tables.attention_log import is_attention_log, read_attention_log
from gpuledger.readers.kernel_tables.engines import read_attention

RATES = """### causal=False, headdim=64, batch_size=4, seqlen=1024 ###
Flash2 fwd: 100.00 TFLOPs/s, bwd: 80.00 TFLOPs/s, fwd + bwd: 84.85 TFLOPs/s
Pytorch fwd: 20.00 TFLOPs/s, bwd: 30.00 TFLOPs/s, fwd + bwd: 26.25 TFLOPs/s
xformers.c fwd: 0.00 TFLOPs/s, bwd: 0.00 TFLOPs/s, fwd + bwd: 0.00 TFLOPs/s
"""
TIMES = """
### headdim = 128, causal = True, seqlen = 4096 ###
Fav2 fwd: 0.400ms, 343.6 TFLOPS
Fav3 fwd: torch.Size([2, 4096, 16, 128])
CuDNN fwd: 0.250ms, 549.8 TFLOPS
Fav3 bwd: 1.000ms, 343.6 TFLOPS
CuDNN varlen: 0.300ms, 458.1 TFLOPS
[deterministic, 1CTA] FA Python bwd: 2.000ms, 171.8 TFLOPS
"""
TABLE = """Benchmarking FA4 fwd, hdim=192, seqlen_q=2048, seqlen_kv=2048, causal=True, nheads=24, nheads_kv=8

==========
  FWD (ms / TFLOPS / MFU%)
==========
     hdim causal batch seqlen            cuDNN              FA4
----------
  192-128   True     2   2048                —    0.30/859/38.2%
      128  False     4   1024   0.05/700/31.1%    0.04/800.5/35.6%
"""
MLA = """b=8, s_q=2, mean_sk=4096, h_q=16, h_kv=1, d=576, dv=512, causal=True, varlen=False
0.050 ms, 46 TFLOPS, 800 GB/s
b=8, s_q=2, mean_sk=4096, h_q=16, h_kv=1, d=576, dv=512, causal=True, varlen=True
0.055 ms, 42 TFLOPS, 780 GB/s
"""
#: Two variants of a kernel, the faster of which ran three times (ms).
VARIANTS = [("1CTA", 0.5), ("2CTA", 0.43), ("2CTA", 0.41), ("2CTA", 0.48)]
SHAPE = ["requests", "queries", "keys", "heads", "kv_heads", "key_dim", "value_dim"]


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        (tmp_path / "log.txt").write_text(text, "utf-8")
        frame, skipped = read_attention_log(tmp_path / "log.txt")
        return frame.set_index(["library", "pass"]).sort_index(), skipped

    return write_and_read


def test_rates_tell_the_times_of_both_passes(read):
    frame, skipped = read(RATES)
    assert frame.index.tolist() == [("FlashAttention-2", "backward"), ("FlashAttention-2", "forward")]
    assert frame[SHAPE].to_numpy().tolist() == [[4, 1024, 1024, 32, 32, 64, 64]] * 2
    flop = 4 * 4 * 1024**2 * 32 * 64
    assert frame["measured_s"].tolist() == pytest.approx([2.5 * flop / 80e12, flop / 100e12])
    assert not frame["causal"].any() and skipped == ["Pytorch"]


def test_time_and_rate_tell_how_many_requests_there_were(read):
    frame, skipped = read(TIMES)
    assert frame.index.tolist() == [
        ("FlashAttention-2", "forward"),
        ("FlashAttention-3", "backward"),
        ("cuDNN", "forward"),
    ]
    assert frame[SHAPE].to_numpy().tolist() == [[2, 4096, 4096, 16, 16, 128, 128]] * 3
    assert frame["causal"].all() and frame["measured_s"].iloc[0] == pytest.approx(0.4e-3, rel=1e-3)
    assert skipped == ["CuDNN varlen", "[deterministic, 1CTA] FA Python"]


def test_of_variants_the_fastest_counts_and_of_repetitions_the_median(read):
    shape = "### headdim = 128, causal = True, seqlen = 4096 ###\n"
    lines = [f"[{variant}] FA Python fwd: {ms:.3f}ms, {137.44 / ms:.1f} TFLOPS\n" for variant, ms in VARIANTS]
    frame, skipped = read(shape + "".join(lines))
    assert frame["measured_s"].tolist() == pytest.approx([0.43e-3], rel=1e-3) and not skipped
    assert "variant" not in frame


def test_a_table_without_heads_and_requests_says_so(read):
    """Found by the fuzzer: requests were divided by no head."""
    with pytest.raises(InputError, match="does not tell requests, heads, key_dim, kv_heads"):
        read(TABLE.replace("causal batch", "causal other").replace("  192-128", "  x192-128"))


def test_tables_have_the_script_s_heads_unless_it_announced_others(read):
    frame, _ = read(TABLE)
    assert frame.loc[("FlashAttention-4", "forward"), SHAPE].to_numpy().tolist() == [
        [4, 1024, 1024, 16, 16, 128, 128],
        [2, 2048, 2048, 24, 8, 192, 128],
    ]
    # These rates have more digits than the times.
    times = frame.loc[("FlashAttention-4", "forward"), "measured_s"].tolist()
    assert times == pytest.approx([4 * 4 * 16 * 1024**2 * 128 / 800.5e12, 2 * 2 * 24 * 2048**2 / 2 * 320 / 859e12])


def test_latent_decoding_counts_every_key(read):
    frame, skipped = read(MLA)
    assert frame[[*SHAPE, "measured_s"]].to_numpy().tolist() == [[8, 2, 4096, 16, 1, 576, 512, 50e-6]]
    assert skipped == ["lengths that differ"]


def test_formats_in_fp8_are_told_by_the_name(read):
    frame, _ = read(RATES.replace("Flash2", "cudnn_fp8"))
    assert set(frame["precision"]) == {"fp8"} and frame.index[0][0] == "cuDNN"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            RATES.replace(", seqlen=1024", ""),
            r"log\.txt, line 2: the line with the shape above does not tell queries, keys",
        ),
        (RATES.replace("Flash2", "Pytorch"), r"no attention kernel in it has a speed \(left out: Pytorch\)"),
        (TIMES.replace("seqlen = 4096", "seqlen = 9999999999"), "does not tell"),
        (TIMES.replace("4096", "9" * 40), "does not tell requests, queries, keys"),
    ],
)
def test_what_cannot_be_read_is_one_line(read, text, said):
    with pytest.raises(InputError, match=said):
        read(text)


def test_other_texts_are_no_such_logs():
    assert all(map(is_attention_log, (RATES, TIMES, TABLE, MLA)))
    assert not any(map(is_attention_log, ("### Notes ###\nx: 1.0 ms\n", "op_name,latency\ncontext,1\n", "")))


def test_a_table_of_engines_is_not_a_log(tmp_path):
    (tmp_path / "log.txt").write_text(RATES, "utf-8")
    with pytest.raises(InputError, match="nothing is fitted to; give it as attention_runs"):
        read_attention(tmp_path / "log.txt", "ms")


def test_inspect_names_the_key(tmp_path):
    (tmp_path / "log.txt").write_text(RATES, "utf-8")
    done = run("inspect", tmp_path / "log.txt")
    assert "log of a benchmark of attention" in done and "attention_runs: log.txt" in done and "gpu: null" in done
