"""``gpuledger train``: the library's own steps and memory, and bad input in one line."""

import json
from functools import partial

import command_line
import pandas as pd
import pytest

from gpuledger.cli.train import COLUMNS
from gpuledger.errors import InputError
from gpuledger.models.training import TrainingRun, mfu_percent, predict_steps, training_memory
from gpuledger.models.training.memory import fits
from gpuledger.models.transformer import read_model
from gpuledger.readers.gpus import find_gpu

H100 = find_gpu("h100-sxm")


run = partial(command_line.run, "train")


def test_json_is_what_the_library_predicts():
    asked = ("gpt2", "--gpu", "h100-sxm", "--gpus", "8,16", "--sequence", 1024, "--micro-batch", "2,4")
    asked += ("--network", 3200)
    found = pd.DataFrame(json.loads(run(*asked, "--recompute", "--accumulation", 3, "--json")))
    assert tuple(found) == COLUMNS
    assert list(zip(found["gpus"], found["micro_batch"], strict=True)) == [(8, 2), (8, 4), (16, 2), (16, 4)]
    own = [TrainingRun(read_model("gpt2"), H100, 1024, batch, 3, 8, True) for batch in (2, 4)]
    steps, _ = predict_steps(own, H100)
    assert found["step_s"][:2].tolist() == pytest.approx(steps["step_s"].tolist())
    parts = found[["gemm_s", "attention_s", "other_s", "power_s", "exposed_s"]].sum(axis=1)
    assert parts.tolist() == pytest.approx(found["step_s"].tolist())
    assert (found["tokens_per_s"] == found["tokens_per_s_per_gpu"] * found["gpus"]).all()
    speed = 3 * 2 * 1024 / steps["step_s"][0]
    assert found["mfu_percent"][0] == pytest.approx(mfu_percent(own[0].model, 1024, speed, 989.4e12))
    assert found["memory_bytes"][0] == training_memory(own[0])["memory_bytes"]


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    (row,) = json.loads(run("Llama-3.1-8B", "--gpu", "h100-sxm", "--sequence", 4096, "--json"))
    most = row["largest_micro_batch"]
    model = read_model("Llama-3.1-8B")
    needed = [training_memory(TrainingRun(model, H100, 4096, most + more))["memory_bytes"] for more in (0, 1)]
    assert fits(needed, H100, 8).tolist() == [True, False]
    (row,) = json.loads(run("Llama-3.1-8B", "--gpu", "b300", "--sequence", 131072, "--recompute", "--json"))
    assert 0 < row["largest_micro_batch"] < 16, "a pass of more tokens than there may be is not tried"
    (row,) = json.loads(run("Llama-3.1-70B", "--gpu", "h100-sxm", "--sequence", 4096, "--json"))
    assert (row["fits"], row["largest_micro_batch"]) == (False, 0)


def test_people_read_that_it_is_predicted_and_what_fills_the_memory():
    said = run("gpt2", "--gpu", "a100", "--sequence", 512, "--gathered", "fp32")
    assert "predicted from kernels alone" in said and "floor" in said
    assert "parameters gathered in 32 bits" in said and "16 bytes a parameter" in said
    assert "bf16 copies of parameters" in said and "sequences of a pass fit" in said
    assert "Not even one sequence fits" in run("Llama-3.1-70B", "--gpu", "a100")
    alone = "The text model alone"
    assert alone in run("Qwen2.5-VL-7B-Instruct", "--gpu", "h100-sxm") and alone not in said


def test_the_implementation_is_said_and_is_the_library_s():
    asked = ("Llama-3.1-8B", "--gpu", "h100-sxm", "--sequence", 4096, "--implementation", "transformers")
    (row,) = json.loads(run(*asked, "--json"))
    own = TrainingRun(read_model("Llama-3.1-8B"), H100, 4096, 1, implementation="transformers")
    assert row["implementation"] == "transformers"
    assert row["step_s"] == pytest.approx(predict_steps([own], H100)[0]["step_s"][0])
    assert row["memory_bytes"] == training_memory(own)["memory_bytes"]
    said = run(*asked)
    assert "operators of transformers" in said and "what the loss makes of them" in said


def test_an_unknown_implementation_is_refused():
    run("gpt2", "--gpu", "h100", "--implementation", "by hand", status=2)


def test_whether_a_run_fits_a_gpu_of_unknown_memory_is_unknown():
    asked = ("gpt2", "--gpu", "jgs", "--gpus", 1, "--sequence", 64)
    (row,) = json.loads(run(*asked, "--json"))
    assert row["fits"] is row["largest_micro_batch"] is None
    said = run(*asked)
    assert "unknown" in said and "sequence fit" not in said and "sequences" not in said


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("gpt2",), "--gpu: no GPU is given"),
        (("gpt2", "--gpu", "a100", "--precision", "fp8", "--sequence", 64), "no peak of fp8"),
        (("gpt2", "--gpu", "h100", "--sequence", 4096), "a sequence of 4,096 tokens, but gpt2 supports 1,024"),
        (
            ("gpt2", "--gpu", "h100", "--gpus", 16, "--sequence", 64),
            "the network between nodes is not given; .*--network",
        ),
        (
            ("gpt2", "--gpu", "h100", "--sequence", 64, "--implementation", "transformers", "--precision", "fp8"),
            "no products in fp8",
        ),
        (("gpt2", "--gpu", "h100", "--network", -1), "--network"),
        (("gpt2", "--gpu", "h100", "--micro-batch", "0"), "--micro-batch"),
        (("gpt2", "--gpu", "h100", "--micro-batch", "1..2000"), "combinations"),
        (("Mixtral-8x7B-v0.1", "--gpu", "h100"), "attention and feed-forward layers only"),
    ],
)
def test_bad_input_is_one_line(arguments, match):
    with pytest.raises(InputError, match=match):
        run(*arguments)
