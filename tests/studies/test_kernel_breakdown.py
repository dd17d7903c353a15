"""Kernel breakdown: the source notebook's known answers, properties of predictions, and invalid cases."""

import functools
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import openpyxl
import pandas as pd
import pytest
import yaml
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Annotation, Text
from own_cases import reduced, refused

from gpuledger.errors import InputError
from gpuledger.ledger import figures, tables, viewer
from gpuledger.ledger.claims import compare, load
from gpuledger.ledger.datasets import Dataset
from gpuledger.ledger.parts import split_parts
from gpuledger.ledger.provenance import caption
from gpuledger.models.deployment import Deployment, Speculation, passes
from gpuledger.models.deployment.memory import fits
from gpuledger.models.time_model import gemm_plan
from gpuledger.models.time_model.constants import choice
from gpuledger.models.time_model.step import predict, totals
from gpuledger.models.transformer import Parallel, Precision, chunk, decode, join, kernels, prefill, read_model
from gpuledger.readers.gpus import find_gpu, read_gpus
from gpuledger.studies import open_case
from gpuledger.studies.kernel_breakdown import formatting, source_model
from gpuledger.studies.kernel_breakdown.deployment_figures import keep_apart
from gpuledger.studies.kernel_breakdown.scenario import Scenario
from gpuledger.studies.kernel_breakdown.source_model import Chunk, SourceChip, SourceModel
from gpuledger.studies.kernel_breakdown.tables import describe_memory, kernel_table
from gpuledger.studies.kernel_breakdown.tiling import (
    batch_to_square,
    compare_tiles,
    longest_constants,
    theoretical_tile,
)
from gpuledger.studies.kernel_breakdown.timeline.export import export_passes
from notebooks import run_notebook

PUBLISHED = ROOT / "traces/published/dataset.yaml"
PHASES = {
    "prefill": {"batch": 1, "input": 8192},
    "decode": {"batch": 256, "context": 8448},
    "chunked_prefill": {"tokens": 256, "input": 8192, "output": 512},
}
LLAMA = SourceModel(4096, 14336, 32, 8, 32)
NVL_AX = SourceChip(32 * 2048 * 2.5e9, 342 * 2**30, 2.5e9, 36 * 2**20)


@pytest.fixture(scope="module")
def source_times():
    layers = pd.concat([source_model.layers_of(LLAMA, phase, **given) for phase, given in PHASES.items()])
    return source_model.source_times(layers.reset_index(drop=True), NVL_AX).set_index(["phase", "kernel"])


def reduce(file, name, **knobs):
    return reduced(Dataset.load(file).case("kernel_breakdown", name), **knobs)


@functools.cache
def published(name):
    return reduce(PUBLISHED, name)


@pytest.fixture(scope="module")
def llama():
    return published("llama-3.1-8b")


@pytest.fixture
def ask(tmp_path):
    """Reduce a case of a user's dataset."""

    def ask(**case):
        default = {"model": "gpt2", "hardware": ["h100-sxm"], "phases": {"decode": {"batch": 4, "context": 512}}}
        content = {"title": "Mine", "kind": "local", "source": "me", "license": "CC0-1.0"}
        content["studies"] = {"kernel_breakdown": {"mine": {**default, **case}}}
        (tmp_path / "mine").mkdir(exist_ok=True)
        file = tmp_path / "mine/dataset.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
        return reduce(file, "mine", largest_context=512, largest_batch=4)

    ask.folder = tmp_path / "mine"
    ask.folder.mkdir()
    return ask


@pytest.fixture
def drawn(monkeypatch):
    """Run the notebook on a result; return its figures by name."""

    def run(result):
        found = {}

        def save(figure, record, folder, name="figure"):
            found[name] = figure
            return original(figure, record, folder, name)

        original = figures.save
        monkeypatch.setattr(figures, "save", save)
        run_notebook("kernel_breakdown", result)
        return found

    return run


# The source notebook's model -----------------------------------------------------------------------------------------


def test_source_totals_are_those_printed(source_times):
    totals = source_times.groupby("phase", sort=False)[["macs", "weight_values", "kv_values"]].sum()
    assert totals.loc["prefill"].tolist() == [2336462209024, 218103808, 16777216]
    assert totals.loc["decode"].tolist() == [73551314944, 218103808, 4429185024]
    assert totals.loc["chunked_prefill"].tolist() == [65071669248, 218103808, 269467648]


def test_source_cycles(source_times):
    cycles = source_times["cycles"]
    prefill = {"qkv": 3145728, "attention_scores": 4194304, "attention_values": 4194304, "out": 2097152}
    prefill |= dict.fromkeys(["ffn_up", "ffn_gate", "ffn_down"], 7340032)
    for kernel, expected in prefill.items():
        assert cycles["prefill", kernel] == pytest.approx(expected, rel=1e-12)
    for kernel, expected in {"qkv": 364069.353, "out": 242712.902, "ffn_up": 849495.157}.items():
        assert round(cycles["decode", kernel], 3) == expected
    # Printed with seven digits as 6.030702e+07.
    assert float(f"{cycles['decode', 'kv_read']:.7g}") == 60307020
    bound = source_times.groupby(["phase", "bound"])["cycles"].sum()
    assert ("chunked_prefill", "compute") not in bound
    assert round(bound["chunked_prefill", "memory"]) == 7349613


def test_source_tiles_and_ratios(source_times):
    tiles = source_times[["tile_m", "tile_k", "tile_n"]]
    ratio = source_times["memory_cycles"] / source_times["compute_cycles"]
    for kernel in ("qkv", "out", "ffn_up", "ffn_gate", "ffn_down"):
        assert tiles.loc["prefill", kernel].round(1).tolist() == [2508.3] * 3
        assert round(ratio["prefill", kernel], 6) == 0.711506
        assert tiles.loc["decode", kernel].round(1).tolist() == [256.0, 4096.0, 4096.0]
        assert round(ratio["decode", kernel], 6) == 3.703505


def test_every_claim_about_the_source_is_met():
    result = published("llama-3.1-8b-source")
    content = load(ROOT / "resources/claims/kernel_breakdown.yaml")
    mine = [claim for claim in content["claims"] if claim["case"] == "llama-3.1-8b-source"]
    assert len(mine) > 40
    for claim in mine:
        assert result.summary[claim["quantity"]]["unit"] == claim["unit"]
        expected = "within tolerance" if "why" in claim else "exact"
        assert compare(claim, result[claim["quantity"]])[0] == expected, claim["id"]
    assert result.provenance["kind"] == "predicted"
    assert result.provenance["label"] == "predicted by the source notebook's formulas, not measured"


def test_every_error_of_the_source_is_computed_and_right(llama):
    errors = load(ROOT / "resources/claims/kernel_breakdown.yaml")["source_errors"]
    table = split_parts(llama.data)["corrections"]
    computed = [error for error in errors if "quantity" in error]
    assert len(computed) == len(errors) - 1 == 6
    for error in computed:
        assert llama[error["quantity"]] == error["right"], error["id"]
        rows = table.to_dict("records")
        row = next(row for row in rows if error["quantity"] == f"right_{row['name']}_{row['phase']}")
        assert row["source_value"] == error["claimed"]
        assert row["ratio"] == pytest.approx(error["claimed"] / error["right"], rel=1e-9)


def test_size_of_the_sources_errors(llama):
    ratio = {key: llama[f"source_over_right_{key}"] for key in ("mask_prefill", "grouping_prefill", "bytes_prefill")}
    assert ratio["mask_prefill"] == pytest.approx(2 * 8192 / 8193)
    assert ratio["grouping_prefill"] == 4
    assert ratio["bytes_prefill"] == 0.5
    assert llama["source_over_right_chunk_attention_chunked_prefill"] == pytest.approx(1024 / 8448)


@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 20000),
    k=st.integers(1, 20000),
    cache=st.floats(100, 1e8),
    batch=st.integers(1, 512),
)
@settings(max_examples=60, deadline=None)
def test_theoretical_tile_fits_and_square_keeps_the_outputs(m, n, k, cache, batch):
    tile = theoretical_tile([m], [k], [n], cache)[0]
    assert (tile <= np.array([m, k, n]) * (1 + 1e-9)).all()
    if tile.min() > 0:
        a, b, c = tile[0] * tile[1], tile[1] * tile[2], tile[0] * tile[2]
        assert a + b + c <= cache * (1 + 1e-6)
    square = batch_to_square([m], [n], [batch])
    assert square[0][0] * square[1][0] == pytest.approx(batch * m * n)


def test_many_shapes_at_once_are_the_same_as_one_by_one():
    tokens, batches = np.array([100, 3000, 8192]), np.array([1, 7, 256])
    together = source_model.source_times(source_model.layers_of(LLAMA, "decode", batch=batches, context=tokens), NVL_AX)
    for shape, (batch, context) in enumerate(zip(batches, tokens, strict=True)):
        one = source_model.layers_of(LLAMA, "decode", batch=int(batch), context=int(context))
        alone = source_model.source_times(one, NVL_AX)
        own = together[together["shape"] == shape].drop(columns="shape").reset_index(drop=True)
        pd.testing.assert_frame_equal(own, alone.drop(columns="shape"))


# Predictions -----------------------------------------------------------------------------------------------------


def test_summary_and_table_hold_what_the_contract_says(llama):
    assert llama["parameters"] == 8030261248
    assert llama["kv_bytes_per_token"] == 131072
    table = kernel_table(llama)["frame"]
    contract = ["phase", "kernel", "count", "m", "n", "k", "batch", "macs", "dram_bytes", "time_s", "bound"]
    assert list(table) == [*contract, "hardware", "weights", "kv", "activations"]
    decode = table[(table["phase"] == "decode") & (table["hardware"] == "h200-sxm")].set_index("kernel")
    formats = decode[["weights", "kv", "activations"]]
    assert formats.loc["out_proj"].tolist() == ["bf16", "", "bf16"]
    assert formats.loc["decode_attention"].tolist() == formats.loc["kv_write"].tolist() == ["", "bf16", "bf16"]
    # People see every kernel of the first GPU.
    people = kernel_table(llama)["people"]
    assert (
        people.groupby("phase").size().to_dict()
        == table[table["hardware"] == "h200-sxm"].groupby("phase").size().to_dict()
    )
    assert all(table[column].dtype == "int64" for column in ("count", "m", "n", "k", "batch", "macs", "dram_bytes"))
    for suffix, gpu in {"": "h200-sxm", "_h100_sxm": "h100-sxm", "_a100_sxm_80gb": "a100-sxm-80gb"}.items():
        for phase in PHASES:
            rows = table[(table["hardware"] == gpu) & (table["phase"] == phase)]
            assert rows["time_s"].sum() == pytest.approx(llama[f"{phase}_time{suffix}"], rel=1e-8)
            assert rows["macs"].sum() == llama[f"{phase}_macs"]
    assert list(kernel_table(published("deepseek-v3"))["frame"]) == [*contract, "weights", "kv", "activations"]


def test_structure_and_memory_are_those_of_the_model(llama):
    parts = split_parts(llama.data)
    rows = parts["structure"].set_index("component")
    assert rows["parameters"].sum() == llama["parameters"] and rows["weight_bytes"].sum() == llama["weight_bytes"]
    assert rows["cache_bytes"].sum() == llama["kv_bytes_per_token"]
    attention = "grouped-query: 32 query and 8 key/value heads of 128, RoPE over 128"
    assert rows.loc["attention", "description"] == attention
    held = parts["memory_parts"]
    held = held[held["phase"] == "decode"].set_index("held_by")["bytes"]
    assert held["weights"] + held["KV cache"] + held["activations"] == llama["decode_memory_bytes"]
    # One more request or token would not fit beside the reserve of a tenth.
    usable = 0.9 * llama["dram_capacity"]
    for requests, tokens, fit in (
        (llama["decode_largest_batch"], 8193, True),
        (llama["decode_largest_batch"] + 1, 8193, False),
        (32, llama["decode_largest_context"], True),
        (32, llama["decode_largest_context"] + 1, False),
    ):
        activations = requests * (128256 + 4096 + 4096) * 2  # the LM head's output and input, the residual stream
        assert (llama["weight_bytes"] + requests * tokens * 131072 + activations <= usable) == fit


def test_a_prefix_cache_and_drafts_in_phases(ask):
    phases = {"prefill": {"batch": 2, "input": 900, "cached": 600}, "decode": {"batch": 3, "context": 800, "new": 2}}
    result = ask(model="Llama-3.1-8B", phases=phases)
    assert (result["prefill_new_tokens"], result["decode_new_tokens"]) == (600, 6)
    rows = split_parts(result.data)["kernels"].set_index(["phase", "kernel"])
    # Pairs of a new token and a key: 300 new tokens behind 600, two behind 800; 32 heads of 128 + 128.
    assert rows.loc[("prefill", "attention"), "macs"].item() == 2 * (300 * 600 + 300 * 301 // 2) * 32 * 256
    assert rows.loc[("decode", "decode_attention"), "macs"].item() == 3 * (2 * 800 + 3) * 32 * 256
    assert rows.loc[("decode", "lm_head"), "m"].item() == 6 and rows.loc[("prefill", "lm_head"), "m"].item() == 2
    with pytest.raises(InputError, match=r"phases\.prefill: cached_tokens: 900 tokens of a prompt of 900 are cached"):
        ask(phases={"prefill": {"batch": 2, "input": 900, "cached": 900}})


def test_drafts_before_each_decode_step(ask):
    """A case with speculative decoding is what `gpuledger predict` says of the same deployment."""
    phases = {"prefill": {"batch": 1, "input": 1024}, "decode": {"batch": 4, "context": 1025}}
    given = {"draft": "Llama-3.1-8B", "tokens": 3, "acceptance": 0.7}
    result = ask(model="Llama-3.1-70B", phases=phases, speculation=given, parallel={"tensor": 8})
    large, small = read_model("Llama-3.1-70B"), read_model("Llama-3.1-8B")
    speculation = Speculation(small, 3, 0.7)
    deployment = Deployment(large, find_gpu("h100-sxm"), 1024, 2, Parallel(8), speculation=speculation)
    prompt, step = passes(deployment, [4]).to_dict("records")
    assert result["prefill_time"] == pytest.approx(prompt["time_s"]) and result["decode_new_tokens"] == 16
    assert result["decode_time"] == pytest.approx(step["time_s"])
    assert result["decode_tokens_per_step"] == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert result["decode_tpot"] == pytest.approx(step["tpot_s"])
    assert result["decode_tokens_per_s"] == pytest.approx(step["tokens_per_s"])
    parts = split_parts(result.data)
    rows = parts["kernels"]
    drafts = rows[rows["group"] == "drafts"].set_index(["phase", "kernel"])
    assert (
        drafts.loc[("decode", "draft_lm_head"), "count"] == 3 and drafts.loc[("prefill", "draft_lm_head"), "count"] == 1
    )
    four = parts["throughput"].query("requests == 4").iloc[0]
    assert four["user_tokens_per_s"] == pytest.approx(1 / result["decode_tpot"])
    held = parts["memory_parts"].query("phase == 'decode'").set_index("held_by")["bytes"]
    assert small.weight_bytes() / 8 < held["weights for drafts"] < small.weight_bytes() / 7.99
    assert held["KV cache for drafts"] == 4 * 1029 * small.kv_bytes_per_token() / 8
    assert result["drafts"] == "3 by Llama-3.1-8B, each accepted with probability 0.7"
    for wrong, message in (
        (
            {"phases": {**phases, "decode": {"batch": 1, "context": 9, "new": 2}}},
            r"speculation: beside phases\.decode\.new",
        ),
        ({"phases": {"mixed": [{"new": 1}]}}, r"speculation: beside phases\.mixed"),
        ({"speculation": {"draft": "Qwen3-8B"}}, r"speculation: Qwen3-8B has 151,936 tokens in its vocabulary"),
    ):
        with pytest.raises(InputError, match=message):
            ask(**{"model": "Llama-3.1-70B", "phases": phases, "speculation": given, **wrong})


def test_work_of_a_prefill_is_that_of_the_formula(llama):
    layers, hidden, tokens = 32, 4096, 8192
    weights = tokens * (hidden * 6144 + hidden * hidden + 3 * hidden * 14336)
    attention = 2 * hidden * tokens * (tokens + 1) // 2
    assert llama["prefill_macs"] == layers * (weights + attention) + 128256 * hidden


def test_predictions_never_pass_for_published_or_measured(llama):
    record = llama.provenance
    assert (record["kind"], record["label"]) == ("predicted", "predicted by a time model, not measured")
    assert record["title"] == "Kernels of Llama-3.1-8B and their predicted times"
    assert record["source"].startswith("gpuledger's time model, applied to")
    constants = next(entry for entry in record["inputs"] if entry["file"] == "resources/time_constants.csv")
    assert "h200-sxm, gemm: vllm torch.nn.functional.linear bf16, fitted to " in constants["note"]
    assert "h200-sxm, attention: " in constants["note"]
    assert not any(word in caption(record) for word in ("ublished", "Neutrino"))
    files = [entry["file"] for entry in llama.provenance["inputs"]]
    assert files == ["resources/gpus.csv", "resources/time_constants.csv", "resources/models/Llama-3.1-8B.json"]
    assert all("sha256" in entry for entry in llama.provenance["inputs"])
    assert str(ROOT) not in json.dumps(llama.provenance)


def times_s(model, gpu, work):
    rows = kernels(model, work)
    return totals(predict(rows, gpu), rows["shape"].to_numpy(), work.shapes)["time_s"]


def test_time_grows_with_batch_and_context_and_shrinks_with_hardware():
    model, gpus = read_model("Llama-3.1-8B"), read_gpus()
    batches = 2 ** np.arange(9)
    work = join([decode(4096, batches), decode(2 ** np.arange(8, 17), 8), prefill(2 ** np.arange(4, 14))])
    found = times_s(model, gpus["h200-sxm"], work)
    for own in (found[:9], found[9:18], found[18:]):
        assert (np.diff(own) > 0).all()
    whole = gpus["h200-sxm"]
    half = replace(
        whole,
        dram_bytes_per_s=whole.dram_bytes_per_s / 2,
        l2_bytes=whole.l2_bytes / 2,
        flops={name: peak and peak / 2 for name, peak in whole.flops.items()},
    )
    assert (times_s(model, half, work) >= found).all()


def test_the_chunk_in_the_middle_stands_for_all_of_a_prompt():
    model, gpu = read_model("Llama-3.1-8B"), read_gpus()["h200-sxm"]
    part = Chunk(256, 8192, 512)
    assert (part.prefill_tokens, part.decode_tokens, part.decode_context) == (241, 15, 8448)
    past = np.arange(0, 8192, part.prefill_tokens)
    new = np.minimum(part.prefill_tokens, 8192 - past)
    every = chunk(new, past, part.decode_tokens, part.decode_context)
    middle = reduce(PUBLISHED, "llama-3.1-8b")["chunked_prefill_time"]
    assert times_s(model, gpu, every).mean() == pytest.approx(middle, rel=0.01)


def test_parallel_devices_share_the_work_and_talk(ask):
    phases = {"prefill": {"batch": 2, "input": 256}, "mixed": [{"batch": 3, "new": 1, "past": 100}, {"new": 64}]}
    alone = ask(model="Qwen3-8B", phases=phases)
    shared = ask(model="Qwen3-8B", phases=phases, parallel={"tensor": 4, "pipeline": 2}, precision={"weights": "fp8"})
    assert shared["devices"] == 8
    assert alone["prefill_comm_bytes"] == 0 < shared["prefill_comm_bytes"]
    assert shared["prefill_macs"] == pytest.approx(alone["prefill_macs"] / 4, rel=0.01)
    assert shared["weight_bytes"] < 0.7 * alone["weight_bytes"]
    assert alone["mixed_new_tokens"] == 3 + 64
    assert "communication" in set(split_parts(shared.data)["kernels"]["group"])


def scenario(model, precision=None, **parallel):
    model = read_model(model)
    return Scenario(model, [read_gpus()["h100-sxm"]], {}, Parallel(**parallel), precision or model.precision)


def test_a_gpu_keeps_a_reserve():
    gpus = read_gpus()
    deepseek = scenario("DeepSeek-V3", tensor=8, expert=8)
    needed = deepseek.memory_bytes(decode([1024, 8192], [1, 128]))
    # Weights and a short cache would fill all but 0.8 % of an H100: serving frameworks run out of memory there.
    assert 0.98 * gpus["h100-sxm"].dram_bytes < needed["memory_bytes"][0] < gpus["h100-sxm"].dram_bytes
    assert not fits(needed["memory_bytes"][0], gpus["h100-sxm"])
    assert fits(needed["memory_bytes"][0], gpus["h200-sxm"])
    assert needed["memory_bytes"].equals(needed[["weight_bytes", "cache_bytes", "activation_bytes"]].sum(axis=1))
    # MLA's compressed cache is on every GPU of a tensor-parallel group.
    assert needed["cache_bytes"][1] == deepseek.model.kv_bytes(8193) * 128


def test_one_gpu_holds_the_whole_model_and_several_share_it():
    work = join([prefill([64, 1000], [1, 3]), decode(500, 7)])
    for name in sorted(path.stem for path in (ROOT / "resources/models").glob("*.json")):
        alone = scenario(name)
        needed = alone.memory_bytes(work)
        tower = alone.model.vision.weight_bytes(alone.precision) if alone.model.vision else 0
        assert set(needed["weight_bytes"]) == {alone.model.weight_bytes() + tower}
        cache = alone.model.kv_bytes([64, 1000, 501]) * [1, 3, 7]
        assert needed["cache_bytes"].tolist() == cache.tolist()
    whole = scenario("Llama-3.1-70B").memory_bytes(work)
    shared = scenario("Llama-3.1-70B", tensor=8).memory_bytes(work)
    assert (8 * shared["weight_bytes"] / whole["weight_bytes"]).between(1, 1.001).all()
    assert (8 * shared["cache_bytes"]).equals(whole["cache_bytes"])
    # Eight key/value heads cannot be split over sixteen GPUs.
    assert scenario("Llama-3.1-70B", tensor=16).memory_bytes(work)["cache_bytes"].equals(shared["cache_bytes"])
    piped = scenario("Llama-3.1-70B", pipeline=2).memory_bytes(work)
    assert (2 * piped["memory_bytes"] / whole["memory_bytes"]).between(1, 1.02).all()


def test_a_prefill_of_many_tokens_needs_room_for_their_activations():
    needed = scenario("Llama-3.1-8B").memory_bytes(prefill([8192, 16384]))
    # ffn_act reads 2 · 14,336 values per token and writes 14,336; 4,096 more are the residual stream; in bf16.
    assert needed["activation_bytes"].tolist() == [2 * n * (3 * 14336 + 4096) for n in (8192, 16384)]


def test_shares_are_of_the_step_in_the_table_and_in_the_figure(ask, drawn):
    phases = {"prefill": {"batch": 1, "input": 1024}, "decode": {"batch": 8, "context": 2048}}
    result = ask(model="Llama-3.1-8B", hardware=["h100-sxm"], phases=phases, parallel={"tensor": 8})
    frame = kernel_table(result)["frame"]
    time = frame.groupby(["phase", "kernel"])["time_s"].sum()
    table = 100 * time / time.groupby("phase").transform("sum")
    figure = drawn(result)["figure"]
    *panels, bars = figure.axes
    rooflines, keys = panels[::2], panels[1::2]
    for place, (phase, axes, key) in enumerate(zip(phases, rooflines, keys, strict=True)):
        assert table[phase, "all_reduce"] > 10
        lines = [line.split(" ", 1) for line in key.texts[0].get_text().split("\n")]
        for number, line in lines:
            name, percent, _ = line.rsplit(" ", 2)
            assert int(percent) == round(table[phase, name.replace(" ", "_")]) >= 5, (number, line)
        names = {name.rsplit(" ", 2)[0].replace(" ", "_") for _, name in lines}
        assert {name for name in table[phase].index[table[phase] > 5.001] if name != "all_reduce"} == names
        labels = [text.get_text() for text in axes.texts if isinstance(text, Annotation)]
        assert sorted(", ".join(labels).split(", "), key=int) == [number for number, _ in lines]
        own = [patch for patch in bars.patches if abs(patch.get_y() + patch.get_height() / 2 - place) < 0.1]
        assert sum(patch.get_width() for patch in own) == pytest.approx(100)
        written = " ".join(text.get_text() for text in bars.texts).replace("\n", " ")
        assert f"communication {result[f'{phase}_communication_percent']:.0f} %" in written
        assert f"launches {result[f'{phase}_launch_percent']:.0f} %" in written


def test_people_read_four_digits_and_programs_all(llama, tmp_path):
    written = kernel_table(llama)
    tables.write(record=llama.provenance, folder=tmp_path, **written)
    first = written["frame"].iloc[0]
    assert f"{first['time_s']:.10g}" in (tmp_path / "table.csv").read_text("utf-8").splitlines()[1]
    rows = [line.split("|") for line in (tmp_path / "table.md").read_text("utf-8").splitlines()]
    times = [position for position, header in enumerate(rows[0]) if "µs" in header or "DRAM" in header]
    assert len(times) == 4
    for row in rows[2:]:
        for position in times:
            digits = row[position].strip().replace(",", "").replace(".", "").strip("0")
            assert len(digits) <= 4, row[position]


def test_launches_are_a_part_of_a_step(llama):
    rows = split_parts(llama.data)["kernels"]
    assert (rows["launch_s"] > 0).all() and (rows["launch_s"] <= rows["time_s"]).all()
    assert 0 < llama["prefill_launch_percent"] < llama["decode_launch_percent"] < 20
    assert llama["decode_communication_percent"] == 0


def test_no_memory_is_said(ask):
    result = ask(model="Llama-3.1-405B", hardware=["l4", "b200"], phases={"decode": {"batch": 1, "context": 100}})
    assert result["decode_fits"] == "none"
    assert result["decode_memory_bytes"] == pytest.approx(2 * 405.85e9, rel=1e-3)
    assert result["memory_reserve_percent"] == 10
    assert "fits on none" in describe_memory(result)
    assert " runs decode (too large for its DRAM) at " in result.finding
    assert not split_parts(result.data)["map"]["fits"].any()


# Users' models and GPUs, and invalid cases ---------------------------------------------------------------------------


def own_card(path, **changed):
    row = {"name": "my-card", "sms": 100, "lanes_per_sm": 128, "clock_ghz": 2.0, "dram_tb_per_s": 4.0}
    row |= {"l2_mb": 60, "fp32_tflop_per_s": 51.2, "bf16_pflop_per_s": 1.0, **changed}
    book = openpyxl.Workbook()
    book.active.append(list(row))
    book.active.append(list(row.values()))
    book.save(path)


def test_own_model_and_own_hardware_in_excel(ask):
    own_card(ask.folder / "cards.xlsx")
    (ask.folder / "configs").mkdir()
    shutil.copyfile(ROOT / "resources/models/Qwen3-8B.json", ask.folder / "configs/mine.json")
    result = ask(model="configs/mine.json", hardware=["cards.xlsx", "l4"])
    assert result["model"] == "mine"
    assert result["peak_bf16"] == 1e15
    assert {"decode_time", "decode_time_l4"} <= set(result.summary)
    assert result["decode_time"] < result["decode_time_l4"]
    files = [entry["file"] for entry in result.provenance["inputs"]]
    assert files == ["configs/mine.json", "cards.xlsx", "resources/gpus.csv", "resources/time_constants.csv"]
    assert "data sheets of my-card (cards.xlsx); data sheets of NVIDIA L4" in caption(result.provenance)
    assert kernel_table(result)["people"]["L4 (µs)"].notna().all()
    again = ask(model="configs/mine.json", hardware=["my-card", "cards.xlsx"])
    assert again["decode_time"] == result["decode_time"]
    assert "decode_time_l4" not in again.summary
    assert "resources/gpus.csv" not in caption(again.provenance)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            {"hardware": ["h1000-sxm"]},
            "key studies.kernel_breakdown.mine.hardware: unknown GPU 'h1000-sxm'; did you mean",
        ),
        ({"hardware": ["l4", "l4-24gb"]}, "'l4' is listed twice"),
        ({"hardware": ["cards.csv"]}, "mine/cards.csv does not exist"),
        ({"hardware": ["cards.xls"]}, "mine/cards.xls does not exist"),
        ({"hardware": []}, "key studies.kernel_breakdown.mine.hardware"),
        ({"phases": {"prefil": {"batch": 1, "input": 8}}}, "unknown key 'prefil'; did you mean 'prefill'?"),
        ({"phases": {"prefill": {"batch": 1, "length": 8}}}, "'length'"),
        (
            {"phases": {"decode": {"batch": -4, "context": 8}}},
            "mine.phases.decode.batch: -4 is less than the minimum of 1",
        ),
        ({"phases": {"decode": {"batch": 1.5, "context": 8}}}, "expected integer, found 1.5"),
        ({"phases": {"decode": {"batch": 1}}}, "the key 'context' is missing"),
        ({"phases": {}}, "mine.phases"),
        (
            {"phases": {"decode": {"batch": 1, "context": 1024}}},
            "mine.phases.decode: a context of 1,025 tokens, but gpt2 supports 1,024; shorten it",
        ),
        (
            {"phases": {"chunked_prefill": {"tokens": 4096, "input": 64, "output": 64}}},
            "a chunk of 4,096 tokens does not fit requests of 64 + 64 tokens",
        ),
        ({"phases": {"mixed": [{"new": 0}]}}, "mine.phases.mixed.0.new"),
        ({"model": "configs/none.json"}, "mine/configs/none.json does not exist; put it there"),
        ({"model": "Llama-3.2-8B"}, "did you mean Llama-3.1-8B?"),
        ({"model": "../secret.json"}, "leaves the folder"),
        ({"precision": {"weights": "fp9"}}, "mine.precision: there is no number format 'fp9'"),
        ({"parallel": {"tensor": 5}}, "mine.parallel"),
        ({"parallel": {"tensr": 5}}, "did you mean 'tensor'?"),
        ({"seed_compatible": True, "model": "Mixtral-8x7B-v0.1"}, "the source notebook cannot read Mixtral-8x7B-v0.1"),
        ({"seed_compatible": True, "phases": {"mixed": [{"new": 1}]}}, "the source notebook has no phase 'mixed'"),
    ],
)
def test_invalid_cases_are_one_line_with_their_place(ask, case, message):
    with refused(message) as caught:
        ask(**case)
    assert "dataset.yaml" in str(caught.value) or "resources/models" in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_errors_about_a_users_gpu_name_the_users_table(ask, kind):
    cards = ask.folder / f"cards.{kind}"

    def write(**changed):
        own_card(ask.folder / "cards.xlsx", **changed)
        if kind == "csv":
            pd.read_excel(ask.folder / "cards.xlsx").to_csv(cards, index=False)

    write()
    with pytest.raises(InputError) as caught:
        ask(model="Qwen3-8B", hardware=[cards.name], parallel={"tensor": 2})
    assert str(caught.value).startswith(f"{cards}, GPU my-card: it has no link to other GPUs; add link_gb_per_s")
    assert "per direction" in str(caught.value)
    write(bf16_pflop_per_s=None, fp32_tflop_per_s=None, int8_top_per_s=500, identity_exception="an example")
    with pytest.raises(InputError) as caught:
        ask(hardware=[cards.name])
    assert str(caught.value).startswith(f"{cards}, GPU my-card: the peak of ")
    assert "gpus.csv" not in str(caught.value)


def test_kernels_without_dram_traffic_do_not_stretch_the_viewer_s_axis(ask):
    """What L2 keeps of a shared expert's gate left 3·10⁻¹² bytes to DRAM."""
    result = ask()
    gemms = result.data.index[(result.data["part"] == "kernels") & (result.data["macs"] > 0)]
    result.data.loc[gemms[0], "dram_bytes"] = 3e-12
    found = viewer.of_case("kernel_breakdown", result)
    assert found.marks["x"].max() < 1e6 and len(found.marks) > 2


def test_a_gpu_of_unknown_capacity_is_not_said_to_hold_anything(ask):
    own_card(ask.folder / "cards.xlsx")
    result = ask(hardware=["cards.xlsx"])
    assert result["decode_fits"] == "my-card (if its DRAM holds that: its capacity is unknown)"
    run_notebook("kernel_breakdown", result)


def test_wrong_units_in_excel_are_refused(ask):
    own_card(ask.folder / "cards.xlsx", dram_gallons_per_s=4.0)
    with pytest.raises(InputError, match="gallons"):
        ask(hardware=["cards.xlsx"])


def test_a_model_that_is_no_json_is_refused(ask):
    (ask.folder / "mine.json").write_text("{", "utf-8")
    with pytest.raises(InputError, match=r"mine\.json"):
        ask(model="mine.json")


def test_reducing_twice_gives_the_same(ask, tmp_path):
    phases = {"prefill": {"batch": 1, "input": 100}, "decode": {"batch": 2, "context": 50}}
    for name in ("first", "second"):
        ask(phases=phases, parallel={"tensor": 2}).write(tmp_path / name)
    for file in ("data.parquet", "summary.json", "provenance.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    summary = json.loads((tmp_path / "first/summary.json").read_text("utf-8"))
    assert not [
        key for key, entry in summary.items() if isinstance(entry["value"], float) and not math.isfinite(entry["value"])
    ]


def test_twelve_models_answer():
    names = sorted(path.stem for path in (ROOT / "resources/models").glob("*.json"))
    found = [times_s(read_model(name), read_gpus()["h100-sxm"], join([prefill(64), decode(64)])) for name in names]
    assert np.shape(found) == (len(names), 2) and len(names) >= 12
    assert np.min(found) > 0


def test_eight_bits_are_quantised_once_and_pay(ask):
    phases = {"prefill": {"batch": 1, "input": 8192}, "decode": {"batch": 8, "context": 1024}}
    given = {"model": "Llama-3.1-8B", "hardware": ["h100-sxm"], "phases": phases}
    wide = ask(**given)
    narrow = ask(**given, precision={"weights": "fp8", "operands": "fp8", "cache": "fp8"})
    # Weights of 7.0 GB instead of 14 GB at 3.35 TB/s, and twice the peak: public measurements are 1.3 to 1.8 times.
    for phase in phases:
        assert 1.2 < wide[f"{phase}_time"] / narrow[f"{phase}_time"] < 2, phase
    rows = split_parts(narrow.data)["kernels"].set_index("kernel")
    for name in ("qkv_proj", "down_proj"):
        product = rows.loc[name]
        product = product[product["phase"] == "prefill"].iloc[0] if product.ndim > 1 else product
        assert product["dram_bytes"] < 1.5 * (product["read_bytes"] + product["write_bytes"] + product["weight_bytes"])
        assert 2 * product["macs"] / product["time_s"] > 0.7e15, f"{name}: no conversion that is charged twice"


def test_kernels_without_products_are_not_bound_by_compute(llama):
    rows = split_parts(llama.data)["kernels"]
    assert set(rows.loc[rows["bound"] == "compute", "kind"]) <= {"gemm", "grouped_gemm", "attention"}
    assert set(rows.loc[rows["kind"] == "elementwise", "bound"]) == {"dram", "l2", "launch"}
    shares = split_parts(llama.data)["map"].filter(like="_percent")
    assert np.allclose(shares.sum(axis=1), 100)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-8b-source", "deepseek-v3"])
def test_labels_stay_in_their_panels_and_apart(name, drawn):
    figure = drawn(published(name))["figure"]
    figure.draw_without_rendering()  # puts annotations where their points are
    boxes = [text.get_window_extent() for text in figure.axes[-1].texts]
    assert len(boxes) > 8 and not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    rooflines = [axes for axes in figure.axes if axes.get_xscale() == "log"]
    assert len(rooflines) == 3
    for axes in rooflines:
        frame = axes.get_window_extent()
        boxes = [Text.get_window_extent(text) for text in axes.texts if isinstance(text, Annotation)]
        assert boxes and all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
        assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_weights_of_experts_that_do_not_fit_the_model_are_named_where_they_stand(ask):
    with pytest.raises(InputError, match=r"dataset\.yaml, key .*expert_load: .*2 weights for 8 experts"):
        ask(model="Mixtral-8x7B-v0.1", expert_load=[1, 2])


def test_four_phases_have_room_for_their_titles(ask, drawn):
    mixed = [{"batch": 16, "new": 1, "past": 512}, {"new": 256}]
    result = ask(model="Llama-3.1-8B", hardware=["h100-sxm"], phases={**PHASES, "mixed": mixed})
    figure = drawn(result)["figure"]
    titles = [
        child.get_window_extent()
        for axes in figure.axes
        for child in axes.get_children()
        if isinstance(child, Text) and child.get_text() in ("prefill", "decode", "chunked prefill", "mixed")
    ]
    assert len(titles) == 4
    titles += [axes.xaxis.label.get_window_extent() for axes in figure.axes if axes.get_xlabel()]
    assert len(titles) >= 6 and not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i])


def test_predicted_passes_for_perfetto(tmp_path):
    rows = [("a", "gemm", 2, 3e-6, "h"), ("b", "norm", 1, 1e-6, "h"), ("a", "gemm", 2, 2e-6, "g")]
    kernels = pd.DataFrame(rows, columns=["kernel", "group", "count", "time_s", "hardware"])
    kernels = kernels.assign(phase="decode", bound="dram", macs=1, dram_bytes=2.0)
    export_passes(kernels).write({"case": "c"}, tmp_path)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in slices] == [("a", 0, 3), ("b", 3, 1), ("a", 0, 2)]
    assert [event["args"]["launches"] for event in slices] == [2, 1, 2]
    assert len({event["pid"] for event in slices}) == 2


def test_a_folder_without_a_case_is_one_line(tmp_path):
    with pytest.raises(InputError, match="there is no reduced case here"):
        open_case("kernel_breakdown", "published", "llama-3.1-8b", tmp_path)


def test_tiles_and_constants_are_those_that_predict_the_time():
    """On an H100 SGLang's kernel is the fastest for a single row in fp8 by blocks, TensorRT-LLM's for this chunk."""
    gpu, precision = find_gpu("h100-sxm"), Precision("fp8_block", operands="fp8")
    rows = predict(
        kernels(read_model("Llama-3.1-8B"), chunk(1024, 0), precision=precision).assign(phase="prefill"), gpu
    )
    one = predict(kernels(read_model("Llama-3.1-8B"), decode(64, 1), precision=precision).assign(phase="decode"), gpu)
    rows = pd.concat([rows, one], ignore_index=True)
    rows = rows[(rows["kind"] == "gemm") & (rows["weight_precision"] == "fp8_block")]
    assert len({words.split()[0] for words in rows["constants"].astype(str)}) == 2
    by_name = {choice.described(entry): entry.constants for entry in choice.gemm_entries(gpu, "fp8_block")}
    tiles = compare_tiles(rows, gpu).set_index(["phase", "kernel"])
    for row in rows.itertuples():
        plan = gemm_plan(gpu, by_name[row.constants], row.m, row.n, row.k, row.batch, "fp8_block", 32).iloc[0]
        assert plan["time_s"] == pytest.approx(row.time_s, rel=1e-12)
        assert tiles.loc[(row.phase, row.kernel), "tile_n"] == plan["tile_n"]
    longest = rows.loc[(rows["time_s"] * rows["count"]).idxmax(), "constants"]
    assert longest_constants(rows[rows["constants"] == longest], gpu) == by_name[longest]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1, 12)), min_size=1, max_size=4))
def test_labels_of_narrow_parts_do_not_overlap(labels):
    middles, halves = np.array(sorted(labels)).T
    centres = keep_apart(middles, halves)
    assert (np.diff(centres) >= (halves[:-1] + halves[1:]) - 1e-9).all()
    assert centres[0] >= halves[0] - 1e-9 and centres[-1] <= 116 - halves[-1] + 1e-9


def test_labels_that_meet_move_to_both_sides():
    assert keep_apart(np.array([10.0, 50.0, 52.0]), np.array([4.0, 5.0, 5.0])).tolist() == [10, 46, 56]


def test_times_have_three_digits_everywhere():
    times = {0: "0 s", 0.01304: "13.0 ms", 0.01314: "13.1 ms", 0.9996e-3: "1.00 ms", 0.464: "464 ms", 1234: "1,230 s"}
    assert {seconds: formatting.format_time(seconds) for seconds in times} == times
