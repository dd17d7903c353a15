"""Kernel times of engines' fused kernels: made-up kernels that come out again, spread, other GPUs, hostile tables."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from own_cases import own_case, reduced

from gpuledger.errors import InputError
from gpuledger.models.time_model.attention.decode_law import DecodeConstants
from gpuledger.models.time_model.attention.prefill_law import PrefillConstants
from gpuledger.models.time_model.collectives import CollectiveConstants, collective_terms
from gpuledger.models.time_model.constants.neighbours import Near
from gpuledger.models.time_model.moe import DTYPES, MoeConstants
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.engines import EXPERT_DTYPES, read_attention, read_collectives, read_moe
from gpuledger.studies import kernel_time
from gpuledger.studies.kernel_time import engine_prediction
from gpuledger.studies.kernel_time.baselines import fit_derate, look_up, noise_floor
from gpuledger.studies.kernel_time.engine_reduction import _prepared
from gpuledger.studies.kernel_time.judgement import add_baselines

H100 = find_gpu("h100-sxm")
RNG = np.random.default_rng(0)


def timed(folder, name, table, read, constants):
    """Write a table with the times (ms) that a law gives it, and return its case."""
    path = folder / f"{name}.csv"
    table.assign(latency=1.0).to_csv(path, index=False)
    case = own_case(folder, "kernel_time", {name: path.name, "gpu": "h100-sxm", "unit": "ms"})
    rows = _prepared(H100, read(path, "ms")[0])
    kind = engine_prediction.kind_of(rows["operator"].iloc[0])
    rows["measured_s"] = engine_prediction.terms(H100, kind, constants, rows)["time_s"]
    return case, rows


def attention(count=500, generation=False, **values):
    group = RNG.choice([1, 4, 64], count)
    kv_heads = RNG.choice([1, 2, 8], count)
    table = {"op_name": "generation_attention" if generation else "context_attention", "kernel_source": "made up"}
    table |= {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "batch_size": 2 ** RNG.integers(0, 8, count)}
    table |= {"isl": 1 if generation else 2 ** RNG.integers(0, 13, count), "num_heads": group * kv_heads}
    table |= {"step": 2 ** RNG.integers(0, 15, count) if generation else 0, "num_key_value_heads": kv_heads}
    table |= {"head_dim": RNG.choice([64, 128], count), "window_size": RNG.choice([0, 0, 512], count)}
    return pd.DataFrame(table | values).drop_duplicates()


def experts(count=500, **values):
    table = {"kernel_source": "made up", "moe_dtype": "bfloat16", "num_tokens": 2 ** RNG.integers(0, 13, count)}
    table |= {"hidden_size": RNG.choice([2048, 4096], count), "inter_size": RNG.choice([768, 1536], count), "topk": 8}
    table |= {"num_experts": 128, "moe_tp_size": 1, "moe_ep_size": RNG.choice([1, 4, 16], count)}
    table |= {"distribution": RNG.choice(["balanced", "power_law_1.2"], count)}
    return pd.DataFrame(table | values).drop_duplicates()


def messages(**values):
    sizes = [(gpus, 2**size) for gpus in (2, 4, 8) for size in range(6, 28)]
    table = {"op_name": "all_reduce", "kernel_source": "NCCL", "nccl_dtype": "half"}
    table |= dict(zip(("num_gpus", "message_size"), zip(*sizes, strict=True), strict=True))
    return pd.DataFrame(table | values)


MADE_UP = [
    ("attention", attention(), read_attention, PrefillConstants(9e-6, 8e-7, 0.65, 12.0, 0.7, "always", 64)),
    (
        "attention",
        attention(generation=True),
        read_attention,
        DecodeConstants(7e-6, 2e-6, 15.0, 0.8, 3e-6, 1e-6, 1e-7, "always"),
    ),
    ("moe", experts(), read_moe, MoeConstants(3e-5, 0.8, 0.6, 50.0, 9.0, 1.5)),
    ("collectives", messages(), read_collectives, CollectiveConstants(3e-6, 0.1, 9e-6, 0.4, 3e-5, 0.8, 1e-6)),
]


@pytest.mark.parametrize(
    ("name", "table", "read", "constants"), MADE_UP, ids=["prefill", "decode", "moe", "collectives"]
)
def test_a_made_up_kernel_comes_out_again(tmp_path, name, table, read, constants):
    _, rows = timed(tmp_path, name, table, read, constants)
    kind = engine_prediction.kind_of(rows["operator"].iloc[0])
    found = engine_prediction.fit(H100, kind, rows[~rows["held_back"]])
    for key in kind.choices:
        assert getattr(found, key) == getattr(constants, key), key
    back = rows[rows["held_back"]]
    predicted = engine_prediction.predict(H100, kind, found, back)
    assert (predicted["predicted_s"] / back["measured_s"] - 1).abs().mean() < 0.01
    assert set(predicted["bound"]) <= {"launch", "compute", "block", "dram", "l2", "moved", "link"}


@pytest.mark.parametrize(
    ("name", "table", "read", "constants"), MADE_UP, ids=["prefill", "decode", "moe", "collectives"]
)
def test_a_case_is_judged_beside_its_baselines(tmp_path, name, table, read, constants):
    case, rows = timed(tmp_path, name, table, read, constants)
    table = table.reset_index(drop=True)
    written = _rewritten(table, rows, name)
    written.to_csv(tmp_path / f"{name}.csv", index=False)
    result = reduced(case)
    assert result["shapes"] == len(rows)
    assert result["mape_held_back_percent"] < 1.5 < result["mape_derated_percent"]
    assert result["mape_held_back_percent"] < result["mape_lookup_percent"]
    assert result["host_bound"] == "none"
    # A percentile, and called so: a single time may be an outlier.
    percentiles = [1e6 * own.quantile(0.01) for _, own in result.data.groupby("kernel")["measured_s"]]
    said = [result[name] for name in result.summary if name.startswith("time_p1")]
    assert min(said) == pytest.approx(min(percentiles), rel=1e-3)
    errors = kernel_time.error_table(result.data)
    assert errors["shapes"].iloc[-1] == len(rows) and "mape_lookup_percent" in errors
    own, roofline = (f"{result[f'mape_{name}held_back_percent']:.1f}" for name in ("", "roofline_"))
    assert f"mean error of {own}" in result.finding and f"(roofline: {roofline}" in result.finding, "of one half"
    assert f"{result['shapes_held_back']:,} held-back" in result.finding and result["skipped_kernels"] == "none"


def _rewritten(table, rows, name):
    """The table with the measured times of `rows`, matched by shape."""
    shape = {
        "attention": {
            "batch_size": "requests",
            "isl": "tokens",
            "step": "context",
            "num_heads": "heads",
            "num_key_value_heads": "kv_heads",
            "head_dim": "head_dim",
            "window_size": "window",
        },
        "moe": {"num_tokens": "tokens", "hidden_size": "hidden", "inter_size": "inter", "moe_ep_size": "ranks"},
        "collectives": {"num_gpus": "devices", "message_size": "message_bytes"},
    }[name]
    left = table.rename(columns=shape).copy()
    if name == "collectives":
        left["message_bytes"] *= 2
    on = list(shape.values())
    if name == "moe":
        left["power"] = pd.to_numeric(left["distribution"].str.extract(r"power_law_([\d.]+)")[0]).fillna(0)
        rows = rows.assign(power=rows["power"].fillna(0))
        on.append("power")
    found = left.merge(rows[[*on, "measured_s"]], on=on, how="left")
    return table.assign(latency=found["measured_s"].to_numpy() * 1e3)


def test_frameworks_that_disagree_are_a_floor():
    shapes = pd.DataFrame({"m": [1, 2, 3]})
    fast, slow = shapes.assign(measured_s=[1.0, 1.0, 5.0]), shapes.iloc[:2].assign(measured_s=[2.0, 1.0])
    # Predicting 1 s is right for one and half off for the other; the third shape stands alone.
    assert noise_floor([fast, slow], ["m"]) == (pytest.approx(100 * (0.25 + 0) / 2), 2)
    assert noise_floor([fast], ["m"])[1] == 0


def test_look_up_and_derate_of_known_times():
    known = np.array([[1.0, 1], [3, 1], [1, 3], [3, 3], [1000, 1000]])
    times = np.array([1.0, 1, 4, 4, 100])
    assert look_up(Near(known, np.array([[3.0, 1.0]]), 4), times) == pytest.approx(1.0, rel=1e-6)
    middle = np.expm1((np.log1p(1) + np.log1p(3)) / 2)
    assert look_up(Near(known, np.array([[middle, middle]]), 4), times) == pytest.approx(2.0)
    compute, traffic = np.geomspace(1e-6, 1e-2, 60), np.geomspace(1e-3, 1e-7, 60)
    measured = np.maximum(compute / 0.6, traffic / 0.7) + 5e-6
    found = fit_derate(compute, traffic, measured)
    assert (found.launch_s, found.peak_share, found.dram_share) == pytest.approx((5e-6, 0.6, 0.7), rel=0.01)


def test_neighbours_correct_what_a_model_is_off_by_everywhere():
    """The model is 1.5 times too slow for few rows, twice too fast for many."""
    m = np.array([1, 2, 4, 8, 1024, 2048, 4096, 8192] * 4)
    rows = pd.DataFrame({"m": m, "n": np.repeat([1, 2, 3, 4], 8) * 64, "measured_s": 1e-6 * m})
    rows["held_back"] = rows["m"].isin([2, 2048])
    predicted_s = rows["measured_s"] * np.where(rows["m"] < 100, 1.5, 0.5)
    work = 0.5 * rows["measured_s"].to_numpy()
    found = add_baselines(rows, predicted_s, work, 0.1 * work, ["m", "n"])
    assert found["corrected_s"].notna().equals(rows["held_back"])
    back = rows["held_back"]
    assert found.loc[back, "corrected_s"].to_numpy() == pytest.approx(rows.loc[back, "measured_s"].to_numpy(), rel=1e-5)
    few = add_baselines(rows.head(8), predicted_s.head(8), work[:8], work[:8], ["m", "n"])
    assert few.isna().all(axis=None)


def test_look_up_depends_neither_on_the_order_of_shapes_nor_on_last_bits(monkeypatch):
    rng = np.random.default_rng(4)
    known = np.array([(2.0**i - 1, 2.0**j - 1, 2.0**k - 1) for i in range(6) for j in range(6) for k in range(6)])
    held = rng.random(len(known)) < 0.5
    times = np.exp(rng.normal(size=len(known)))
    expected = look_up(Near(known[~held], known[held], 4), times[~held])
    order = rng.permutation((~held).sum())
    monkeypatch.setattr(np, "log1p", lambda x: np.log(1 + x) * (1 + np.finfo(float).eps * rng.integers(-1, 2, x.shape)))
    found = look_up(Near(known[~held][order], known[held], 4), times[~held][order])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_latent_attention_and_types(tmp_path):
    table = attention(60, generation=True).drop(
        columns=["attn_dtype", "num_key_value_heads", "head_dim", "window_size"]
    )
    caches = np.resize(["fp8", "bfloat16"], len(table))
    table = table.assign(op_name="mla_generation", mla_dtype="bfloat16", kv_cache_dtype=caches, num_heads=128)
    table = pd.concat([table, table.iloc[:3].assign(mla_dtype="fp3")]).assign(latency=0.1)
    table.to_csv(tmp_path / "mla.csv", index=False)
    frame, skipped = read_attention(tmp_path / "mla.csv", "ms")
    assert skipped == ["fp3"] and set(frame["group"]) == {"16-bit", "bf16, fp8 cache"}
    assert (frame["cache_values"] == 576).all() and (frame["kv_heads"] == 1).all() and (frame["head_dim"] == 544).all()


def test_the_reader_keeps_the_types_of_experts_that_the_model_knows():
    assert set(EXPERT_DTYPES) == set(DTYPES)


def test_a_missing_gate_shows_in_the_weights_rate(tmp_path):
    tokens = {"num_tokens": range(32, 52), "moe_ep_size": 1}
    nemotron = experts(20, **tokens, hidden_size=8192, inter_size=5120, topk=22, num_experts=512)
    gated = experts(20, **tokens, hidden_size=6144, inter_size=5120)
    for latency, gates in ((60.0, 1), (90.0, 2)):
        # 90 ms for 425 experts of 84 MB are the same rate as 18 ms for 114 of 63 MB.
        table = pd.concat([nemotron.assign(latency=latency), gated.assign(latency=18.0)])
        table.to_csv(tmp_path / "moe.csv", index=False)
        frame, _ = read_moe(tmp_path / "moe.csv", "ms")
        assert set(frame["gates"][frame["experts"] == 512]) == {gates}, latency
        assert set(frame["gates"][frame["experts"] == 128]) == {2}


def test_layers_that_compute_other_ranks_choices_take_as_long_on_each_number_of_ranks(tmp_path):
    tokens = np.tile([4096, 8192, 16384], 3)
    table = experts(9, num_tokens=tokens, moe_ep_size=np.repeat([1, 4, 8], 3), distribution="balanced")
    table = table.assign(hidden_size=2048, inter_size=768)
    other = table.assign(hidden_size=4096)
    time = table["num_tokens"] / 1024
    written = pd.concat([table.assign(latency=time), other.assign(latency=time / table["moe_ep_size"] ** 0.6)])
    written.to_csv(tmp_path / "moe.csv", index=False)
    frame, _ = read_moe(tmp_path / "moe.csv", "ms")
    assert frame["foreign"].tolist() == (frame["hidden"] == 2048).tolist()


def read(folder, table):
    table.assign(latency=0.1).to_csv(folder / "table.csv", index=False)
    return read_attention(folder / "table.csv", "ms")[0]


def test_prefill_of_latent_attention_is_measured_on_the_latent_vector_by_sglang(tmp_path):
    table = attention(60).drop(columns=["attn_dtype", "num_key_value_heads", "head_dim", "window_size"])
    table = table.assign(op_name="mla_context", mla_dtype="bfloat16", num_heads=16)
    latent, expanded = (read(tmp_path, table.assign(kernel_source=name)) for name in ("triton", "trtllm_mla"))
    assert set(latent["kv_heads"]) == {1} and set(latent["head_dim"]) == {544}
    assert set(expanded["kv_heads"]) == {16} and set(expanded["head_dim"]) == {160}


def test_windows_that_were_not_passed_on_and_short_values(tmp_path):
    generation = attention(60, generation=True, num_heads=8, num_key_value_heads=8)
    for kernel, table, window, kept in (
        ("flashinfer", attention(60), 1024, 0),
        ("flashinfer", generation, 8192, 0),
        ("flashinfer", generation, 1024, 1024),
        ("trtllm_mha", generation, 8192, 0),
        ("fa3", generation, 8192, 8192),
    ):
        assert set(read(tmp_path, table.assign(kernel_source=kernel, window_size=window))["window"]) == {kept}
    for kernel, head_dim in (("triton", 160), ("fa3", 160), ("vllm_flash_attn_fa3", 192)):
        frame = read(tmp_path, generation.assign(kernel_source=kernel, head_dim=192))
        assert set(frame["head_dim"]) == {head_dim} and set(frame["cache_values"]) == {2 * head_dim * 8}


def test_caches_that_memory_cannot_read_so_fast_are_left_out(tmp_path):
    table = attention(60, generation=True, num_heads=8, num_key_value_heads=8, head_dim=128, window_size=0)
    # A GiB and more in 0.1 ms: of 60 rows those with a long context and many requests.
    large = table["batch_size"] * (table["step"] + 1) * 4096 > 0.1e-3 * 3.35e12
    assert 0 < large.sum() < len(table)
    for device, left in (("NVIDIA H100 80GB HBM3", (~large).sum()), ("unknown", len(table))):
        table.assign(latency=0.1, device=device).to_csv(tmp_path / "table.csv", index=False)
        frame, skipped = read_attention(tmp_path / "table.csv", "ms")
        assert len(frame) == left
        assert skipped == ([f"{large.sum()} caches read faster than memory can be"] if device != "unknown" else [])


def test_tables_of_host_calls_are_recognised(tmp_path):
    constants = CollectiveConstants(6e-5, 0.1, 9e-5, 0.4, 3e-4, 0.8, 1e-6)
    case, rows = timed(tmp_path, "collectives", messages(), read_collectives, constants)
    _rewritten(messages(), rows, "collectives").to_csv(tmp_path / "collectives.csv", index=False)
    result = reduced(case)
    assert result["host_bound"] == "NCCL (61 µs)"
    assert collective_terms(H100, constants, "all_reduce", np.array([4.0]), np.array([2.0]))["time_s"] > 6e-5


@pytest.mark.parametrize(
    ("name", "table", "changed", "message"),
    [
        ("attention", attention(40), {"num_heads": 3, "num_key_value_heads": 2}, "no multiple of num_key_value_heads"),
        ("attention", attention(40), {"batch_size": 0}, "not a whole number from 1"),
        ("attention", attention(40), {"latency": -1.0}, "not a positive number"),
        ("attention", attention(40), {"attn_dtype": "fp3"}, "no row of a known type"),
        ("attention", attention(40).drop(columns="head_dim"), {}, "'head_dim' is missing"),
        ("attention", attention(12), {}, "no kernel has 20 shapes"),
        ("moe", experts(24), {"latency": 5.0}, "no kernel has 20 shapes"),
        ("attention", attention(60), {"latency": 1e-9}, "shorter than the data sheet"),
        ("moe", experts(40), {"topk": 129}, "more than num_experts"),
        ("moe", experts(40), {"distribution": "skewed"}, "neither balanced nor power_law"),
        ("moe", experts(40), {"distribution": "power_law_1.2.0"}, "neither balanced nor power_law"),
        ("moe", experts(40), {"distribution": "power_law_1"}, "other than 1"),
        ("collectives", messages(), {"num_gpus": 1}, "communicate nothing"),
        ("collectives", messages().drop(columns="nccl_dtype"), {}, "'nccl_dtype' is missing"),
    ],
)
def test_hostile_tables_are_refused_in_one_line(tmp_path, name, table, changed, message):
    table = table.assign(**{"latency": 0.05} | changed)
    table.to_csv(tmp_path / "table.csv", index=False)
    case = own_case(tmp_path, "kernel_time", {name: "table.csv", "gpu": "h100-sxm", "unit": "ms"})
    with pytest.raises(InputError, match=message):
        reduced(case)


def test_a_table_beside_must_be_there_and_a_gpu_without_links_cannot_communicate(tmp_path):
    messages().assign(latency=0.05).to_csv(tmp_path / "table.csv", index=False)
    inputs = {"collectives": "table.csv", "gpu": "h100-sxm", "unit": "ms"}
    with pytest.raises(InputError, match=r"beside\[0\].*absent.csv does not exist"):
        reduced(own_case(tmp_path, "kernel_time", inputs | {"beside": ["absent.csv"]}))
    with pytest.raises(InputError, match="no known link"):
        reduced(own_case(tmp_path, "kernel_time", inputs | {"gpu": "nvl-ax"}))


def constants_tool():
    script = Path(__file__).parents[2] / "benchmarks" / "time_constants.py"
    spec = importlib.util.spec_from_file_location("time_constants", script)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_fitting_some_tables_keeps_the_rows_of_all_others(tmp_path, monkeypatch):
    tool = constants_tool()
    table = tmp_path / "h100_sxm" / "comm" / "nccl" / "1.0" / "nccl_perf.parquet"
    table.parent.mkdir(parents=True)
    messages().assign(latency=RNG.uniform(0.01, 0.02, 66)).to_parquet(table)
    before = tool.TABLE.read_text("utf-8").splitlines()
    (tmp_path / "constants.csv").write_text("\n".join(before) + "\n", "utf-8")
    monkeypatch.setattr(tool, "TABLE", tmp_path / "constants.csv")
    monkeypatch.setattr("sys.argv", ["time_constants.py", str(tmp_path), "--tables", "comm"])
    tool.main()
    after = (tmp_path / "constants.csv").read_text("utf-8").splitlines()
    row = "collective,h100-sxm,nccl,NCCL,all_reduce,"
    (old, new), *same = [(a, b) for a, b in zip(before, after, strict=True) if a.startswith(row) or a != b]
    assert not same and old != new and old.startswith(row) and new.startswith(row)


def test_constants_are_of_a_whole_table_though_a_newer_one_adds_a_model(tmp_path):
    tool = constants_tool()
    for version, rows in (("1.3.0rc9", 66), ("1.3.0rc20", 66), ("1.3.0rc23", 6)):
        table = tmp_path / "moe" / "trtllm" / version / "moe_perf.parquet"
        table.parent.mkdir(parents=True)
        messages()[:rows].to_parquet(table)
    (path,) = tool.newest(tmp_path, "moe/*/*/moe_perf.parquet").values()
    assert path.parent.name == "1.3.0rc20"


@pytest.mark.parametrize(
    ("device", "kernel", "across"),
    [
        ("NVIDIA GB300", "vLLM_custom_graph", True),
        ("NVIDIA B300 SXM6 AC", "vLLM_custom_graph", False),
        ("NVIDIA GB300", "TRTLLM", False),
        ("NVIDIA GB300", "NCCL", False),
    ],
)
def test_custom_all_reduces_end_at_a_tray_of_four(tmp_path, device, kernel, across):
    table = messages(device=device, kernel_source=kernel, latency=0.05)
    table.to_csv(tmp_path / "table.csv", index=False)
    frame, _ = read_collectives(tmp_path / "table.csv", "ms")
    names = {gpus: set(part["kernel"]) for gpus, part in frame.groupby("devices")}
    assert names == {2: {kernel}, 4: {kernel}, 8: {f"{kernel}, across nodes" if across else kernel}}


def test_a_fit_finds_links_far_from_the_usual_ones(tmp_path):
    # As TensorRT-LLM's all-reduce on an A100: from the usual start alone, its second protocol was never found.
    second = {"middle_s": 3.34e-6, "middle_share": 0.0288, "long_s": 4.34e-5, "long_share": 0.653}
    constants = CollectiveConstants(4.8e-6, 0.454, **second, hop_s=1.78e-7, doubling=1.05, pattern="one shot")
    _, rows = timed(tmp_path, "collectives", messages(), read_collectives, constants)
    kind = engine_prediction.kind_of("all_reduce")
    found = engine_prediction.fit(H100, kind, rows)
    error = engine_prediction.predict(H100, kind, found, rows)["predicted_s"] / rows["measured_s"] - 1
    assert error.abs().mean() < 0.01


def test_constants_are_of_the_dataclass_that_the_table_names():
    for kind in engine_prediction.KINDS.values():
        names = {field.name for field in dataclasses.fields(kind.start)}
        assert set(kind.bounds) <= names and set(kind.choices) <= names
