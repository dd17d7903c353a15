"""``gpuledger predict``: sums that kernel_breakdown gives too, objectives, GPUs of one's own, bad input."""

import json
import re
import shutil
import time
from functools import partial

import command_line
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from click.testing import CliRunner
from conftest import ROOT
from own_cases import own_case, reduced

from gpuledger.cli import __main__ as cli
from gpuledger.cli.predict_report import COLUMNS, _best
from gpuledger.cli.terminal import three_digits
from gpuledger.errors import InputError
from gpuledger.models.deployment import Deployment, passes, reserve_bytes
from gpuledger.models.transformer import Parallel, read_model
from gpuledger.models.transformer.routing import SERVED_LOAD
from gpuledger.readers.gpus import read_gpus

run, predict = (partial(call, "predict") for call in (command_line.run, command_line.table))


@pytest.fixture
def breakdown(tmp_path):
    """Reduce a case of kernel_breakdown."""

    def reduce(**case):
        return reduced(own_case(tmp_path, "kernel_breakdown", case), largest_context=512, largest_batch=4)

    return reduce


def test_a_pass_is_that_of_kernel_breakdown(breakdown):
    found = predict("Llama-3.1-8B", "--gpu", "h100-sxm", "--tp", 2, "--input", 1000, "--output", 100, "--batch", "3,7")
    assert tuple(found) == (*COLUMNS, "notes")
    assert list(zip(found["phase"], found["batch"], strict=True)) == [("prefill", 1), ("decode", 3), ("decode", 7)]
    phases = {"prefill": {"batch": 1, "input": 1000}, "decode": {"batch": 7, "context": 1050}}
    case = breakdown(model="Llama-3.1-8B", hardware=["h100-sxm"], phases=phases, parallel={"tensor": 2})
    for phase, row in (("prefill", found.iloc[0]), ("decode", found.iloc[2])):
        assert row["time_s"] == pytest.approx(case[f"{phase}_time"], rel=1e-9)
        assert row["tokens_per_s"] == pytest.approx(case[f"{phase}_tokens_per_s"], rel=1e-9)
        assert row["tokens_per_s_per_gpu"] == row["tokens_per_s"] / 2
        assert row["communication_percent"] == pytest.approx(case[f"{phase}_communication_percent"], rel=1e-9)
    assert found["memory_bytes"][0] == case["prefill_memory_bytes"]
    # Memory is that of the last step, which has 49 tokens more in each of 7 caches of 32 layers, 4 heads here.
    more = 49 * 7 * 32 * 2 * 4 * 128 * 2
    assert found["memory_bytes"][2] == case["decode_memory_bytes"] + more


def test_large_batches_and_memory_are_grouped_by_thousands():
    said = run("Llama-3.1-8B", "--gpu", "h100-sxm", "--batch", 16384)
    (row,) = (line.split() for line in said.splitlines() if line.startswith("decode"))
    assert row[1] == "16,384" and row[6] == "2,769.3"
    assert "2,748.8 GB  KV cache" in said


def test_the_cache_of_a_token_is_said_of_windows_that_are_full_too():
    # Half of the layers have windows of 128 tokens.
    said = run("gpt-oss-20b", "--gpu", "h100-sxm", "--batch", 1)
    assert "49,152 bytes of KV cache per token (24,576 once windows are full)" in said
    assert "windows are full" not in run("Llama-3.1-8B", "--gpu", "h100-sxm", "--batch", 1)


def test_what_was_measured_is_said_with_its_error(breakdown):
    said = run("Llama-3.1-8B", "--gpu", "h100-sxm", "--batch", 8)
    found = predict("Llama-3.1-8B", "--gpu", "h100-sxm", "--batch", 8)
    assert found["judged_percent"].between(80, 100, inclusive="neither").all()
    assert found["kernel_error_percent"].between(3, 15).all()
    low, high = (f"{found['judged_percent'].agg(which):.0f}" for which in ("min", "max"))
    assert f"{low} to {high} % of the time is in kernels that were measured on this GPU, with a mean error of" in said
    assert said.splitlines()[7].endswith("; constants of the others are from data sheets.")
    phases = {"prefill": {"batch": 1, "input": 1024}}
    case = breakdown(model="Llama-3.1-8B", hardware=["h100-sxm"], phases=phases)
    assert case["prefill_judged_percent"] == pytest.approx(found["judged_percent"][0], abs=1e-6)
    assert case["prefill_kernel_error_percent"] == pytest.approx(found["kernel_error_percent"][0], abs=1e-6)
    # Constants from another GPU have no error that is known.
    foreign = predict("Llama-3.1-8B", "--gpu", "a100-pcie-40gb", "--batch", 8)
    assert foreign["judged_percent"].eq(0).all()
    assert foreign["kernel_error_percent"].isna().all()
    words = (
        "0 % of the time is in kernels that were measured on this GPU; constants of the others are from a100-sxm-80gb"
    )
    assert words in run("Llama-3.1-8B", "--gpu", "a100-pcie-40gb", "--batch", 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--gpu a100 --precision fp8", ["No units for fp8: weights are widened to bf16"]),
        ("--gpu h200 --precision nvfp4", ["No units for fp4: weights are widened to bf16"]),
        ("--gpu v100", ["No units for bf16: fp16 takes its place."]),
        ("--gpu mi300x", ["A rough guess: no kernels of AMD's GPUs were measured"]),
        ("--gpu jgs", ["A rough guess: this GPU is hypothetical"]),
        ("--gpu gb200 --tp 8", ["Links are taken to join all 8 GPUs as they join 4"]),
        ("--gpu h100-nvl --tp 2", []),
        ("--gpu h100-nvl --tp 4", ["Bridges join two of these GPUs"]),
        ("--gpu l40s --tp 8", ["Collectives are those of the server that was measured"]),
        ("--gpu rtx-4090 --tp 2", ["The GPUs are taken to share PCIe"]),
        ("--gpu h100 --tp 16", ["Links are taken to join all 16 GPUs as they join 8"]),
        ("--gpu h100 --precision fp8 --tp 8", []),
        # Of another maker, but measured.
        ("--gpu b60", []),
    ],
)
def test_what_a_prediction_assumes_is_said(options, words):
    options = [*options.split(), "--batch", "1"]
    (found,) = {tuple(notes) for notes in predict("Llama-3.1-70B", *options)["notes"]}
    assert len(found) == len(words)
    said = run("Llama-3.1-70B", *options)
    for sentence, begin in zip(found, words, strict=True):
        assert sentence.startswith(begin) and f"\n{sentence}\n" in said


def test_experts_for_which_sglang_ships_no_tiles_are_named():
    """Mixtral's on one H100; SGLang has files for a half, for all on an H200, and vLLM's defaults are as good."""
    said = {
        (gpu, tensor, engine): [
            note
            for note in predict("Mixtral-8x7B-v0.1", "--gpu", gpu, "--tp", tensor, "--engine", engine)["notes"][0]
            if "ships no tiles" in note
        ]
        for gpu, tensor, engine in (
            *(("h100-sxm", tensor, "sglang") for tensor in "12"),
            ("h200-sxm", "1", "sglang"),
            ("h100-sxm", "1", "vllm"),
        )
    }
    (note,) = said.pop(("h100-sxm", "1", "sglang"))
    assert note.startswith("SGLang ships no tiles for 8 experts of 14,336 columns in 16 bits on this GPU")
    assert not any(said.values())


@pytest.mark.parametrize(
    ("architecture", "words"), [("", "names no architecture"), ("Rubin", "the architecture rubin"), ("Hopper", None)]
)
def test_a_gpu_of_ones_own_is_a_guess_unless_its_architecture_is_known(tmp_path, architecture, words):
    columns = "name,sms,clock_mhz,dram_gb_per_s,l2_mib,bf16_tflop_per_s,architecture"
    (tmp_path / "own.csv").write_text(f"{columns}\nown,100,1500,1000,40,200,{architecture}\n")
    options = ["--gpu-file", tmp_path / "own.csv", "--batch", 1]
    (said,) = predict("Llama-3.1-8B", *options)["notes"].map(tuple).unique()
    assert [words in sentence for sentence in said] == [True] * (words is not None) and "AMD" not in "".join(said)
    # Nor is it known what fits.
    words = run("Llama-3.1-8B", *options)
    assert " unknown " in words and " yes " not in words and "At most" not in words


def test_what_is_assumed_of_listed_gpus_is_said_below_them():
    options = ["--gpu", "a100,l40s,h100", "--tp", "2,8", "--precision", "fp8", "--batch", 8, "--slo", "ttft=9s,tpot=1s"]
    said = run("Llama-3.1-8B", *options).splitlines()
    assert said[-2].startswith("a100-sxm-80gb: No units for fp8: ")
    assert said[-1].startswith("l40s: Collectives are those of the server that was measured")
    # More devices in a pipeline, but a smaller group that exchanges all results.
    stages = ["--gpu", "l40s", "--tp", "1,4", "--pp", "1,8", "--batch", 8, "--slo", "ttft=9s,tpot=1s"]
    assert run("Llama-3.1-8B", *stages).splitlines()[-1].startswith("l40s: Collectives are those")


def test_a_model_that_does_not_fit_says_so():
    options = ("--tp", 8, "--ep", 8, "--input", 1024, "--output", 128, "--batch", "1..3")
    found = predict("DeepSeek-V3", "--gpu", "h100-sxm", "--gpu", "h200-sxm", *options)
    assert found.groupby("gpu")["fits"].agg(["any", "all"]).to_numpy().tolist() == [[False, False], [True, True]]
    assert set(found["bound"]) <= {"compute", "dram", "l2", "launch", "link"}


def test_stages_that_are_all_busy_cache_a_batch_each():
    one = predict("Llama-3.1-8B", "--gpu", "h200-sxm", "--batch", 16, "--input", 4096, "--output", 1)
    two = predict("Llama-3.1-8B", "--gpu", "h200-sxm", "--batch", 16, "--input", 4096, "--output", 1, "--pp", 2)
    assert two["memory_bytes"][1] < 0.75 * one["memory_bytes"][1]
    cache = 16 * 4097 * 131072  # half the layers, twice the batches
    assert two["memory_bytes"][1] > 8.03e9 + cache
    assert two["tokens_per_s"][1] > 1.8 * one["tokens_per_s"][1]


def test_the_reserve_is_a_tenth_of_the_memory():
    gpu = read_gpus()["h100-sxm"]
    for parallel, communication in ((Parallel(), 0), (Parallel(2), 342), (Parallel(8), 392)):
        parts = reserve_bytes(gpu, parallel)
        assert parts["communication"] == communication * 2**20
        assert sum(parts.values()) == pytest.approx(0.1 * gpu.dram_bytes)


def test_objectives_and_prices():
    base = ("Llama-3.1-8B", "--gpu", "h100-sxm", "--gpu", "h200-sxm", "--tp", "1,2", "--batch", "1..64")
    base += ("--input", 1024, "--output", 256)
    found = predict(*base, "--slo", "ttft=1s,tpot=8ms", "--price", 2, "--price", "h200-sxm=3")
    assert len(found) == 4
    assert found["usd_per_million_output_tokens"].is_monotonic_increasing
    assert (found["tpot_s"] <= 0.008).all()
    assert (found["ttft_s"] <= 1).all()
    price = found["gpu"].map({"h100-sxm": 2, "h200-sxm": 3}) / 3600
    cost = price / found["output_tokens_per_s_per_gpu"] * 1e6
    assert found["usd_per_million_output_tokens"].to_list() == pytest.approx(cost.to_list())
    # Every step up to the next batch would break the objective.
    first = found.iloc[0]
    options = ("--gpu", first["gpu"], "--tp", first["tensor"], "--batch", first["batch"] + 1)
    step = predict("Llama-3.1-8B", *options, "--input", 1024, "--output", 256).iloc[1]
    assert first["batch"] == 64 or step["served_tpot_s"] > 0.008
    assert run(*base, "--slo", "ttft=1us", "--json", status=1) == "[]\n"
    # Costs are of output tokens, and there are none without prices.
    free, paid = (run(*base, "--slo", "ttft=1s,tpot=8ms", *price) for price in ((), ("--price", 2)))
    assert "USD" not in free and "USD per 10⁶ output tokens" in paid and "J per output token, at most" in free
    rough = predict("Llama-3.1-8B", "--gpu", "v100-sxm2,h100-sxm", "--tp", "1,2", "--slo", "ttft=60s,tpot=1s")
    assert ["fp16 takes its place" in " ".join(said) for said in rough["notes"]] == (
        rough["gpu"] == "v100-sxm2"
    ).tolist()
    assert rough["gpu"].nunique() == 2


def test_every_split_over_some_gpus_is_tried():
    """A given split is one of them, and none takes more GPUs; a dense model has no experts to split."""
    asked = ("--gpu", "h200-sxm", "--slo", "tpot=30ms")
    found = predict("gpt-oss-120b", *asked, "--gpus", 4)
    splits = set(zip(found["tensor"], found["replicas"], found["expert"], strict=True))
    groups = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]
    assert splits == {(tensor, dp, expert) for tensor, dp in groups for expert in (1, 2, 4) if expert <= tensor * dp}
    assert found["gpus"].max() == 4 and found["output_tokens_per_s_per_gpu"].is_monotonic_decreasing
    given = predict("gpt-oss-120b", *asked, "--tp", 1, "--ep", 4).iloc[0]
    same = found[(found["tensor"] == 1) & (found["expert"] == 4)]
    assert len(same) == 1
    same = same.iloc[0]
    assert same["output_tokens_per_s"] == given["output_tokens_per_s"] and same["batch"] == given["batch"]
    dense = predict("Llama-3.1-70B", *asked, "--gpus", 7)
    assert set(dense["tensor"]) <= {1, 2, 4} and set(dense["expert"]) == {1}
    # Batches between the powers of two are tried, too.
    assert not set(found["batch"]) <= {2**exponent for exponent in range(9)}


def test_workers_of_their_own_are_planned_beside_deployments_that_do_both():
    asked = ("Llama-3.1-70B", "--gpu", "h200-sxm", "--gpus", 16, "--input", 4096, "--slo", "ttft=1s,tpot=20ms")
    together, apart = predict(*asked), predict(*asked, "--disaggregate")
    assert (apart["together_output_tokens_per_s_per_gpu"] == together["output_tokens_per_s_per_gpu"].max()).all()
    assert (apart["tpot_s"] <= 0.02).all() and (apart["ttft_s"] <= 1).all() and (apart["gpus"] <= 16).all()
    first, shown = apart.iloc[0], run(*asked, "--disaggregate")
    workers = (f"{first[f'{kind}_workers']} × TP{first[f'{kind}_tensor']}" for kind in ("prefill", "decode"))
    line = shown.splitlines()[1]
    assert all(words in line for words in workers) and first["limited_by"] in line
    assert "TTFT: a prompt alone and its cache's way" in shown and "TTFT: a prompt alone;" in run(*asked)
    rate = together["output_tokens_per_s_per_gpu"].max()
    assert f"process prompts and decode serve at most {rate:.0f} output tokens/s/GPU" in shown
    slow = predict(*asked, "--disaggregate", "--network", 5)
    assert (slow["transfer_s"] > 10 * apart["transfer_s"].max()).all()
    # 4,096 tokens' cache takes too long to travel within the objective.
    said = CliRunner().invoke(cli.commands, [*map(str, ("predict", *asked)), "--disaggregate", "--network", "0.1"])
    assert said.exit_code == 1 and "none of these deployments has TTFT ≤ 1000 ms and TPOT ≤ 20 ms" in said.stderr
    assert run(*asked, "--disaggregate", "--network", 0.1, "--json", status=1) == "[]\n"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--disaggregate", "--slo", "tpot=1s"), "--disaggregate: one deployment does both; add --gpus 16"),
        (("--network", 50, "--gpus", 8, "--slo", "tpot=1s"), "--network: one deployment does both; add --disaggregate"),
        (("--network", 0, "--disaggregate", "--gpus", 8, "--slo", "tpot=1s"), "--network: 0.0 is out of range"),
        (("--network", "nan", "--disaggregate", "--gpus", 8, "--slo", "tpot=1s"), "--network: nan is out of range"),
        (("--gpus", 8), "--gpus: no cost is asked for; add --slo"),
        (("--gpus", 8, "--slo", "tpot=1s", "--tp", 2), "--gpus: splits are given; leave out --tp"),
        (("--gpus", "some", "--slo", "tpot=1s"), "--gpus: 'some' is not a whole number"),
    ],
)
def test_splits_are_tried_or_given(more, words):
    said = CliRunner().invoke(cli.commands, [*map(str, ("predict", "Llama-3.1-8B", "--gpu", "h200-sxm", *more))])
    assert isinstance(said.exception, InputError) and words in str(said.exception)


def test_what_no_deployment_meets_names_what_they_take():
    """The least time of a prompt and of a step among the deployments that fit."""
    base = ("Llama-3.1-8B", "--gpu", "h200-sxm", "--tp", "1,2", "--batch", "1,8", "--input", 1024, "--output", 256)
    said = CliRunner().invoke(cli.commands, [*map(str, ("predict", *base)), "--slo", "ttft=1us"]).stderr
    found = predict(*base)
    least = [1e3 * found[found["phase"] == phase]["time_s"].min() for phase in ("prefill", "decode")]
    assert "none of these deployments has TTFT ≤ 0.001 ms; " in said, "and no word of what was not asked for"
    assert f"have at least a TTFT of {least[0]:.3g} ms and a TPOT of {least[1]:.3g} ms" in said
    large = ("DeepSeek-V3", "--gpu", "h200-sxm", "--batch", "1", "--slo", "tpot=1s")
    said = CliRunner().invoke(cli.commands, ["predict", *large]).stderr
    assert said.endswith("none fits into memory\n")


def test_a_gpu_of_ones_own(tmp_path):
    table = pd.read_csv(ROOT / "resources/gpus.csv", dtype=str)
    own = table[table["name"] == "h100-sxm"].assign(name="mine", title="Mine", aliases="", dram_gb_per_s="6700")
    own.to_csv(tmp_path / "own.csv", index=False)
    options = ("gpt2", "--gpu-file", tmp_path / "own.csv", "--batch", 1, "--input", 64, "--output", 8)
    assert set(predict(*options)["gpu"]) == {"mine"}
    assert set(predict(*options, "--gpu", "mine", "--gpu", "a100")["gpu"]) == {"mine", "a100-sxm-80gb"}
    assert set(predict(*options, "--gpu", "mine,a100")["gpu"]) == {"mine", "a100-sxm-80gb"}


@pytest.mark.parametrize("memory", ["", "HBM3", "GDDR6"])
@pytest.mark.parametrize("engine", ["trtllm", "vllm", "sglang"])
def test_the_columns_that_are_needed_are_enough(tmp_path, memory, engine):
    columns = "name,sms,clock_mhz,dram_gb_per_s,l2_mib,bf16_tflop_per_s,architecture,memory"
    (tmp_path / "own.csv").write_text(f"{columns}\nown,100,1500,1000,40,200,ada,{memory}\n")
    for model in ("Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V3"):
        found = predict(model, "--gpu-file", tmp_path / "own.csv", "--batch", 1, "--engine", engine)
        assert (found["time_s"] > 0).all() and (found["communication_percent"] == 0).all()


def test_the_documented_row_of_an_l40s_is_predicted_as_the_built_in_one(tmp_path):
    (table,) = re.findall(
        r"^```\n(name,.+?)^```", (ROOT / "traces/README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "own.csv").write_text(table)
    options = ("Llama-3.1-8B", "--tp", 2, "--batch", "1,64")
    own, l40s = (predict(*options, *gpu)["time_s"] for gpu in (("--gpu-file", tmp_path / "own.csv"), ("--gpu", "l40s")))
    assert own.to_numpy() == pytest.approx(l40s.to_numpy(), rel=0.03)


def test_what_is_left_out_or_counts_twice_is_said(tmp_path):
    base = ("--gpu", "h100-sxm", "--batch", 1)
    done = CliRunner().invoke(cli.commands, ["predict", "Llama-3.1-8B", *map(str, base), "--tp", "1,3,5", "--json"])
    assert [row["phase"] for row in json.loads(done.stdout)] == ["prefill", "decode"]
    assert "2 of 3 deployments left out: Llama-3.1-8B, --tp: " in done.stderr
    assert "8 replicas of all but the experts, each with a batch of its own" in run("DeepSeek-V3", *base, "--ep", 8)
    sliced = run("gpt-oss-120b", *base, "--tp", 2, "--dp", 4)
    assert "(tensor 2, replicas 4 parallel): 4 replicas of all but the experts, each with a batch of its own" in sliced
    config = json.loads((ROOT / "resources/models/Qwen3-8B.json").read_text("utf-8"))
    seeing = {"model_type": "qwen3_vl", "text_config": config | {"model_type": "qwen3_vl_text"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(seeing))
    said = run(tmp_path, *base)
    assert "8.19 billion parameters without the vision tower" in said and "at the last token of 1 request:" in said


def test_a_table_for_people(tmp_path):
    shutil.copy(ROOT / "resources/models/Qwen3-8B.json", tmp_path / "config.json")
    options = ("--gpu", "h200-sxm", "--batch", "1..2", "--precision", "fp8")
    text = run(tmp_path, *options)
    assert "8.19 billion parameters" in text
    assert "communication buffers" in text
    # Title; GPUs; header and three passes; what is served; what was measured; whose law of power; seven parts of the
    # memory and their sum below a title; what fits.
    assert len(text.strip().splitlines()) == 2 + 1 + 4 + 1 + 1 + 1 + 8 + 1
    parts = [line.split(" GB ")[0] for line in text.splitlines() if " GB  " in line]
    assert sum(map(float, parts[:-1])) == pytest.approx(float(parts[-1]), abs=0.4)
    narrow = predict(tmp_path, *options)
    wide = predict(tmp_path, *options[:-2])
    assert narrow["memory_bytes"][1] < 0.65 * wide["memory_bytes"][1]


def test_drafts_pipelines_and_the_host_are_reported():
    base = ("Llama-3.1-8B", "--gpu", "h200-sxm", "--batch", "4", "--input", 512, "--output", 64)
    drafts = predict(*base, "--draft", "mtp", "--draft-tokens", 2, "--acceptance", 0.5)
    assert [*COLUMNS, "tokens_per_step", "tpot_s", "power_w", "notes"] == list(drafts)
    assert drafts["tokens_per_step"].tolist() == [1, 1.75]
    assert drafts["tpot_s"][1] == pytest.approx(drafts["time_s"][1] / 1.75)
    assert "bubble_percent" in predict(*base, "--pp", 2)
    assert set(predict(*base, "--host-us", 500)["bound"]) == {"host"}
    assert predict(*base, "--cached", 384)["time_s"][0] < 0.6 * predict(*base)["time_s"][0]
    text = run(*base, "--draft", "mtp", "--pp", 2)
    assert "1 drafted, 1.8 tokens per step" in text and "bubble (%)" in text and "weights for drafts" in text
    # Of 64 requests a rank reads the weights of its one expert, however many rows it gets; of 512 it computes.
    uneven = ("Mixtral-8x7B-v0.1", "--gpu", "h200-sxm", "--tp", 8, "--ep", 8, "--batch", 512)
    even, served, worse = (
        predict(*uneven, *load)["time_s"][1] for load in (("--expert-load", 0), (), ("--expert-load", 1))
    )
    assert even < served < worse and served == predict(*uneven, "--expert-load", SERVED_LOAD)["time_s"][1]
    assert f"Zipf exponent {SERVED_LOAD}" in run(*uneven) and "Zipf" not in run(*base)
    assert f"[default: {SERVED_LOAD}," in " ".join(run("--help").split())


def test_ten_thousand_batches_in_one_evaluation():
    started = time.process_time()
    found = predict("Llama-3.1-8B", "--gpu", "h200-sxm", "--batch", "1..10000")
    # 1.2 s, and what other programs on the machine make of it.
    assert len(found) == 10_001 and time.process_time() - started < 10
    one = predict("Llama-3.1-8B", "--gpu", "h200-sxm", "--batch", 777)
    assert one.iloc[1].drop("batch").tolist() == found.iloc[777].drop("batch").tolist()


def test_figures_and_tables_are_saved(tmp_path):
    options = ("--batch", "1..4", "--tp", "1,2", "--slo", "tpot=30ms", "--save", tmp_path / "out")
    run("gpt2", "--gpu", "h100-sxm", "--gpu", "a100", "--input", 512, "--output", 64, *options)
    figures = {f"figure.{suffix}" for suffix in ("pdf", "svg", "png")}
    tables = {f"{name}.{suffix}" for name in ("passes", "memory") for suffix in ("csv", "md", "tex")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == figures | tables
    passes = pd.read_csv(tmp_path / "out/passes.csv")
    assert list(passes) == [*COLUMNS, "tensor", "provenance"] and len(passes) == 4 * 5
    assert passes["provenance"].str.startswith("predicted").all()
    assert set(pd.read_csv(tmp_path / "out/memory.csv")["part"]) >= {"weights", "KV cache", "activations", "sum"}


def test_a_headline_names_the_batch_of_its_throughput():
    options = ("Llama-3.1-8B", "--gpu", "h100-sxm", "--batch", "1,64")
    model = read_model("Llama-3.1-8B")
    deployment = Deployment(model, read_gpus()["h100-sxm"], 1024, 256)
    step = predict(*options).iloc[2]
    expected = f": up to {three_digits(step['served_tokens_per_s'])} output tokens/s per GPU at batch 64 ("
    assert _best([deployment], [passes(deployment, [1, 64])]).startswith(expected)
    assert "16.1 GB (in bf16), " in run(*options)
    assert "DRAM" in run(*options) and set(predict(*options)["bound"]) <= {"dram", "compute", "launch", "l2"}


def test_an_objective_of_the_first_token_alone_draws_no_line(tmp_path):
    run("gpt2", "--gpu", "a100", "--input", 512, "--output", 64, "--slo", "ttft=1s", "--save", tmp_path)
    assert max(plt.imread(tmp_path / "figure.png").shape) < 2000


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ((), "no GPU is given"),
        (("--gpu", "h900"), "unknown GPU"),
        (("--gpu", "a100", "--batch", "0"), "out of range"),
        (("--gpu", "a100", "--batch", "9..3"), "out of range"),
        (("--gpu", "a100", "--batch", "-1"), "not a whole number from 1 to"),
        (("--gpu", "a100", "--input", "1,2"), "'1,2' is not a whole number"),
        (("--gpu", "a100", "--batch", "1..200001"), "200,001 numbers; ask for at most 100,000"),
        (("--gpu", "a100", "--ep", "2"), "no experts"),
        (("--gpu", "a100", "--dp", "2"), "--dp: replicas of a model without experts share nothing"),
        (("--gpu", "a100", "--expert-load", "1.2"), "--expert-load: this model has no experts"),
        (("--gpu", "a100", "--tp", "7"), "--tp: "),
        (("--gpu", "a100", "--acceptance", "0.7"), "add --draft"),
        (("--gpu", "a100", "--price", "3.5"), "add --slo"),
        (("--gpu", "a100", "--tp", "5"), "cannot be split evenly"),
        (("--gpu", "a100", "--input", "4096"), "supports 1,024"),
        (("--gpu", "a100", "--slo", "ttft=1"), "not an objective"),
        (("--gpu", "a100", "--price", "free"), "not a price"),
        (("--gpu", "a100", "--precision", "fp9"), "no number format"),
        (("--gpu", "a100", "--precision", "values=fp8"), "unknown part"),
        (("--gpu", "nvl-ax", "--precision", "weights=fp32,activations=fp32"), "the peak of fp32 is missing"),
        (("--gpu", "jgs", "--tp", "2"), "no link to other GPUs"),
        (("--gpu-file", "missing.csv"), "missing.csv"),
        (("--gpu", "a100", "--cached", "64"), r"--cached: 64 of the 64 tokens of --input .*leave at least one token"),
        (("--gpu", "a100", "--draft", "Llama-3.1-8B"), "of the same vocabulary"),
        (("--gpu", "a100", "--draft", "mtp", "--draft-tokens", "65"), "is out of range"),
        (("--gpu", "a100", "--draft", "mtp", "--acceptance", "1.5"), "is no probability"),
        (("--gpu", "a100", "--host-us", "-1"), "is out of range"),
    ],
)
def test_bad_input_is_one_line(options, fragment):
    with pytest.raises(InputError, match=fragment):
        run("gpt2", "--output", "8", "--input", "64", *options)


def test_power_is_given_where_it_was_measured():
    found = predict("Llama-3.1-8B", "--gpu", "b200", "--batch", "1,64")
    assert found["power_w"].between(506, 984).all()
    for gpu, readings in (
        ("b200", "6,395 steady power readings of experts"),
        ("h200-sxm", "52 steady readings of PyTorch"),
    ):
        said = run("Llama-3.1-8B", "--gpu", gpu)
        assert "power (W/GPU)" in said and f"Power while kernels run, by a law fitted to {readings}" in said
    assert "power_w" not in predict("Llama-3.1-8B", "--gpu", "h100-sxm")
