"""Encoders' attention, quantisation kernels and latent products: made-up kernels come out again; hostile tables."""

import numpy as np
import pandas as pd
import pytest
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.models.time_model.attention.encoder_law import EncoderConstants
from gpuledger.models.time_model.attention.latent_products import START as PRODUCTS
from gpuledger.models.time_model.quantise import QuantiseConstants
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.engines import read_attention
from gpuledger.readers.kernel_tables.small_kernels import read_products, read_quantise
from gpuledger.studies import kernel_time
from gpuledger.studies.kernel_time import engine_prediction
from gpuledger.studies.kernel_time.benchmark_loops import TICK_S, ticked
from gpuledger.studies.kernel_time.engine_reduction import LAYOUTS, _prepared

H100, B200 = find_gpu("h100-sxm"), find_gpu("b200")
RNG = np.random.default_rng(0)


def opened(folder, inputs):
    return own_case(folder, "kernel_time", {"gpu": "h100-sxm", "unit": "ms"} | inputs)


def encoder(count=400, **values):
    table = {"op_name": "encoder_attention", "kernel_source": "made_up", "attn_dtype": "bfloat16"}
    table |= {"batch_size": 2 ** RNG.integers(0, 7, count), "isl": RNG.integers(1, 8192, count)}
    table |= {"num_heads": 2 ** RNG.integers(0, 6, count), "head_dim": 64, "latency": 1.0}
    return pd.DataFrame(table | values)


def rows_of_values(count=300, **values):
    table = {"op_name": "scale_matrix", "kernel_source": "torch_ops", "quant_dtype": "fp8", "latency": 1.0}
    return pd.DataFrame(table | {"m": RNG.integers(1, 65536, count), "k": 8 * RNG.integers(4, 4096, count)} | values)


def products(count=300, **values):
    table = {"op_name": RNG.choice(["mla_gen_pre", "mla_gen_post"], count), "kernel_source": "bmm", "latency": 1.0}
    table |= {"bmm_dtype": "bfloat16", "num_tokens": RNG.integers(1, 8192, count)}
    return pd.DataFrame(table | {"num_heads": 2 ** RNG.integers(0, 8, count)} | values)


MADE_UP = {
    "encoder": ("attention", encoder, read_attention, EncoderConstants(9e-6, 2e-6, 0.55, 30.0, 0.7, 0.8, 128, 64)),
    "flash": (
        "attention",
        lambda: encoder(kernel_source="flash_attention_v3"),
        read_attention,
        EncoderConstants(6e-6, 3e-6, 0.6, 20.0, 0.6, 0.9, pattern="flash 3", merge_s=5e-6, merge_row_s=3e-9),
    ),
    "quantise": ("quantise", rows_of_values, read_quantise, QuantiseConstants(2e-6, 8e-8, 2e-8, 3e-7, 25.0, 3.4)),
    "products": ("batched", products, read_products, PRODUCTS),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_a_made_up_kernel_comes_out_again_and_is_judged(tmp_path, name):
    key, made, read, constants = MADE_UP[name]
    path, case = tmp_path / "table.csv", opened(tmp_path, {key: "table.csv"})
    table = made()
    sizes = [name for name in table if name not in ("latency", "kernel_source")]
    table = table.drop_duplicates(sizes).sort_values(sizes, ignore_index=True)
    table.assign(latency=1 + np.arange(len(table))).to_csv(path, index=False)
    rows = _prepared(H100, read(path, "ms")[0])
    kind = engine_prediction.kind_of(rows["operator"].iloc[0])
    time_s = engine_prediction.terms(H100, kind, constants, rows)["time_s"]
    # The made-up latency says which row it was.
    table["latency"] = pd.Series(1e3 * time_s, index=np.rint(rows["measured_s"] * 1e3).astype(int) - 1)
    table.to_csv(path, index=False)
    result = reduced(case)
    suffix = "_fp8" if name == "quantise" else ""
    assert result[f"shapes{suffix}"] == len(rows)
    assert result[f"mape_held_back_percent{suffix}"] < 1.0
    assert result[f"mape_held_back_percent{suffix}"] < result[f"mape_lookup_percent{suffix}"]
    assert set(result.data["bound"]) <= {"launch", "compute", "l2", "dram", "row", "step"}
    assert (result.data["operator"] == kind.name).all()


def test_all_pairs_of_an_encoder_count(tmp_path):
    encoder(1, batch_size=[2], isl=1000, num_heads=16).to_csv(tmp_path / "table.csv", index=False)
    frame, skipped = read_attention(tmp_path / "table.csv", "ms")
    row = _prepared(H100, frame).iloc[0]
    assert row["flop"] == 4 * 2 * 16 * 1000**2 * 64 and not skipped
    assert row["bytes"] == 4 * 2 * 16 * 1000 * 64 * 2 and row["kernel"] == "made_up 64"


def test_a_difference_of_kernels_is_added_to_what_it_is_of(tmp_path):
    static = rows_of_values(3, m=[1, 2, 3], k=64, latency=[0.002, 0.003, 0.004])
    longer = static.assign(op_name="compute_scale", kernel_source="slow_minus_fast", latency=[0.001, 0.0, -0.001])
    for name, table in (("static", static), ("longer", longer)):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    case = opened(tmp_path, {"quantise": "static.csv", "difference": "longer.csv"})
    frame, skipped = read_quantise(case.path("quantise"), "ms", case.path("difference"))
    assert skipped == ["2 differences of 0 or less"]
    (row,) = frame[frame["kernel"] == "slow"].itertuples()
    assert row.tokens == 1 and row.measured_s == pytest.approx(3e-6)
    assert len(frame[frame["kernel"] == "torch_ops"]) == 3
    longer.assign(kernel_source="torch_ops").to_csv(tmp_path / "longer.csv", index=False)
    frame, _ = read_quantise(case.path("quantise"), "ms", case.path("difference"))
    assert set(frame["kernel"]) == {"torch_ops", "torch_ops dynamic"}


def test_products_know_their_matrices(tmp_path):
    table = products(2, op_name=["mla_gen_pre", "mla_gen_post"], num_tokens=4, num_heads=2, bmm_dtype="fp8")
    table["kernel_source"] = ["bmm_fp8", "bmm_dequant_bf16"]
    table.to_csv(tmp_path / "table.csv", index=False)
    frame, _ = read_products(tmp_path / "table.csv", "ms")
    sizes = {row.kernel: (row.columns, row.depth, row.precision, row.group) for row in frame.itertuples()}
    assert sizes == {"bmm_fp8": (512, 128, "fp8", "fp8"), "bmm_dequant_bf16": (128, 512, "bf16", "fp8")}


HOSTILE = [
    ("attention", encoder(3, op_name=["encoder_attention", "context_attention", "encoder_attention"]), "split"),
    ("attention", encoder(3, isl=[1, 0, 2]), "isl"),
    ("attention", encoder(3, isl=[1, 2.5, 2]), "isl"),
    ("attention", encoder(3, head_dim=[64, -1, 64]), "head_dim"),
    ("attention", encoder(3, latency=[1.0, 0.0, 1.0]), "positive"),
    ("attention", encoder(3, attn_dtype="fp3"), "known type"),
    ("attention", encoder(3).drop(columns="num_heads"), "num_heads"),
    ("quantise", rows_of_values(3, op_name="compute_scale"), "its own key"),
    ("quantise", rows_of_values(3, latency=[1.0, -1.0, 1.0]), "positive"),
    ("quantise", rows_of_values(3, latency=["1", "much", "1"]), "positive"),
    ("quantise", rows_of_values(3, latency=["9" * 400] * 3), "positive"),
    ("quantise", rows_of_values(3, latency=[1.0, 1e305, 1.0]), r"line 3, column latency: '1e\+305' ms are more than"),
    ("quantise", rows_of_values(3, quant_dtype="int8"), "known type"),
    ("quantise", rows_of_values(3, m=[1, 2**40, 1]), "m"),
    ("batched", products(3, op_name="mla"), "none of"),
    ("batched", products(3, bmm_dtype="int1"), "known type"),
    ("batched", products(3, num_heads=[1, "x", 2]), "num_heads"),
]


@pytest.mark.parametrize(("key", "table", "words"), HOSTILE)
def test_hostile_tables_are_refused_with_their_place(tmp_path, key, table, words):
    table.to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(InputError, match=rf"table\.csv.*{words}"):
        kernel_time.reduce(opened(tmp_path, {key: "table.csv"}))


def test_blackwell_shows_ticks_of_single_kernels():
    times = np.linspace(2e-6, 1e-4, 200)
    assert (ticked(H100, times) == times).all()
    shown = ticked(B200, times)
    assert (np.diff(shown) >= 0).all() and (np.abs(shown - times) < TICK_S / 2).all()
    short = shown[times < 1e-5]
    assert len(np.unique(np.round(short, 8))) < len(short) * 0.7


def test_a_difference_that_is_no_time_is_one_line(tmp_path):
    static = rows_of_values(3, m=[1, 2, 3], k=64)
    static.to_csv(tmp_path / "static.csv", index=False)
    case = opened(tmp_path, {"quantise": "static.csv", "difference": "longer.csv"})
    for word in ("much", "nan", "-1e305", "9" * 400):
        longer = static.assign(op_name="compute_scale", latency=["1", word, "1"])
        longer.to_csv(tmp_path / "longer.csv", index=False)
        with pytest.raises(InputError, match=r"longer\.csv, line 3, column latency: .* is no number, or more than"):
            read_quantise(case.path("quantise"), "ms", case.path("difference"))


@pytest.mark.parametrize("key", [*LAYOUTS, "modules", "layers", "operators"])
def test_a_rate_is_for_gemms(tmp_path, key):
    others = {"modules": {"configs": "."}, "layers": {"model": "Llama-3.1-8B"}}.get(key, {})
    case = opened(tmp_path, {key: "table.csv", "unit": "TFLOP/s", **others})
    with pytest.raises(InputError, match=r"kernel_time\.mine\.unit: TFLOP/s is for measurements of GEMMs"):
        kernel_time.reduce(case)
