"""``gpuledger gemm`` and ``gpuledger attention``: the laws that kernel_time judges, measured shapes, bad input."""

import re
from functools import partial

import command_line
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from gpuledger.cli import __main__ as cli
from gpuledger.cli.terminal import three_digits
from gpuledger.errors import InputError
from gpuledger.models.time_model.constants.table import read_table
from gpuledger.models.time_model.gemms.law import gemm_time_s
from gpuledger.readers.gpus import find_gpu

SOURCE = r"(\S+)/(gemm_perf|\w+_attention_perf)\.parquet$"


run = partial(command_line.run, columns=200)
rows = partial(command_line.table, columns=200)


@pytest.fixture
def empty(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def measured(folder, kind, gpu, framework, table):
    """Write a measured table where the constants of a GPU's kernels say that it is; return one of these kernels."""
    entry = next(
        e
        for e in read_table(kind)
        if (e.gpu, e.framework, e.precision[:4]) == (gpu, framework, "bf16") and not e.kernel.startswith("MLA")
    )
    path = folder / re.search(SOURCE, entry.constants.source)[0]
    path.parent.mkdir(parents=True)
    table.assign(kernel_source=entry.kernel).to_parquet(path)
    return entry


def test_gemms_are_those_of_the_time_model(empty):
    found = rows(
        "gemm", "1,4096", 4096, 14336, "--gpu", "h100", "--engine", "vllm", "--same-operands", "--tables", empty
    )
    assert list(found["m"]) == [1, 4096] and set(found["kernel"]) == {"torch.nn.functional.linear"}
    gpu = find_gpu("h100")
    entry = next(e for e in read_table("gemm") if (e.gpu, e.framework, e.precision) == (gpu.name, "vllm", "bf16"))
    expected = gemm_time_s(gpu, entry.constants, np.array([1, 4096]), 4096, 14336, weights_in_turn=1)
    assert found["time_s"].to_numpy() == pytest.approx(expected)
    assert set(found["error_percent"]) == {entry.error_percent}
    assert found["flop"].iloc[1] == 2 * 4096 * 4096 * 14336
    assert found["bytes"].iloc[1] == 2 * (4096 * 14336 + 14336 * 4096 + 4096 * 4096)
    assert found["roofline_s"].iloc[1] == pytest.approx(found["flop"].iloc[1] / gpu.flops["bf16"], rel=1e-4)
    # Weights that L2 does not hold come from DRAM.
    cold = rows("gemm", 1, 4096, 4096, "--gpu", "h100", "--engine", "vllm", "--tables", empty)["time_s"][0]
    warm = rows("gemm", 1, 4096, 4096, "--gpu", "h100", "--engine", "vllm", "--same-operands", "--tables", empty)
    assert cold > 1.3 * warm["time_s"][0]


def test_without_a_gpu_the_fastest_kernel_of_each_measured_one(empty):
    each = rows("gemm", 64, 4096, 4096, "--precision", "fp8", "--tables", empty)
    gpus = {entry.gpu for entry in read_table("gemm") if entry.precision == "fp8"}
    assert set(each["gpu"]) == gpus and each["gpu"].is_unique
    for gpu, fastest in zip(each["gpu"], each["time_s"], strict=True):
        assert (
            fastest
            == rows("gemm", 64, 4096, 4096, "--precision", "fp8", "--gpu", gpu, "--tables", empty)["time_s"].min()
        )


def test_the_nearest_measured_shape_stands_beside(tmp_path):
    table = pd.DataFrame({"gemm_dtype": ["bfloat16"] * 4 + ["fp8"], "m": [64, 64, 128, 4096, 60], "n": 4096, "k": 4096})
    # In milliseconds; the median of equal shapes.
    table["latency"] = [0.014, 0.016, 0.02, 0.3, 0.001]
    far = pd.DataFrame({"gemm_dtype": "bfloat16", "m": 2 ** np.arange(20), "n": 64, "k": 64, "latency": 0.01})
    table = pd.concat([table, far])
    entry = measured(tmp_path, "gemm", "h100-sxm", "vllm", table)
    found = rows("gemm", "64,90", 4096, 4096, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", tmp_path)
    assert list(found["measured_m"]) == [64, 64] and found["measured_s"].to_numpy() == pytest.approx([15e-6] * 2)
    assert found["predicted_there_s"].to_numpy() == pytest.approx([found["time_s"][0]] * 2)
    text = run("gemm", "64,90", 4096, 4096, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", tmp_path)
    assert re.search(r"\b64 .*  15\.0  ", text) and "15.0 (m 64)" in text and f"{entry.error_percent:.1f}" in text
    assert "bf16, n 4,096, k 4,096, engine vllm, GPU h100-sxm, split-k 1" in text and "corrected" in text
    here = run("gemm", 64, 4096, 4096, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", tmp_path)
    assert "15.0" in here and "corrected" not in here.lower()
    # Corrected by what the model is off at the nearest shapes; what was measured is left as it is.
    factor = found["corrected_s"] / found["time_s"]
    assert found["corrected_s"][0] == pytest.approx(15e-6, rel=1e-6)
    assert sorted([1, 15e-6 / found["time_s"][0]])[0] < factor[1] < 2
    # Twice as large as all that was measured is near enough; beyond, the errors that are left are of other shapes.
    asked = ("gemm", 64, "8192,8193", 4096, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", tmp_path)
    assert rows(*asked)["corrected_error_percent"].notna().tolist() == [True, False]
    assert "corrected" not in run("gemm", 64, 8193, *asked[3:]).lower()
    # Of a loop over the same operands nothing was measured, but the shape is predicted as it was.
    warm = rows("gemm", 64, 4096, 4096, "--gpu", "h100", "--engine", "vllm", "--tables", tmp_path, "--same-operands")
    assert warm["predicted_there_s"][0] == found["time_s"][0] > warm["time_s"][0] and "corrected_s" not in warm


def test_without_a_gpu_only_the_tables_of_what_is_shown_are_read(tmp_path):
    """Reading a table and predicting all of its shapes takes most of the time."""
    table = pd.DataFrame({"gemm_dtype": "bfloat16", "m": [64], "n": 4096, "k": 4096, "latency": 0.02})
    asked = ("gemm", 64, 4096, 4096, "--tables", tmp_path)
    every = rows(*asked, "--gpu", "h100-sxm")
    first, last = (every["engine"].iloc[at] for at in (0, -1))
    assert first != last
    measured(tmp_path, "gemm", "h100-sxm", first, table)
    measured(tmp_path, "gemm", "h100-sxm", last, table.drop(columns="latency"))
    each = rows(*asked).set_index("gpu")
    assert each.loc["h100-sxm", "engine"] == first and each.loc["h100-sxm", "measured_s"] == pytest.approx(20e-6)
    with pytest.raises(InputError, match="latency"):
        run(*asked, "--gpu", "h100-sxm")


def test_formats_are_called_as_they_are_asked_for_and_one_kernel_a_gpu_is_said(empty):
    text = run("gemm", 64, 4096, 4096, "--precision", "nvfp4", "--tables", empty)
    assert text.startswith("nvfp4, m 64, ") and "predicted, of the fastest kernel on each GPU;" in text
    found = rows("gemm", 64, 4096, 4096, "--precision", "nvfp4", "--gpu", "b200", "--tables", empty)
    assert set(found["precision"]) == {"nvfp4"}
    assert "fastest" not in run("gemm", 64, 4096, 4096, "--gpu", "b200", "--tables", empty)


def test_a_measured_time_is_compared(empty):
    found = rows("gemm", 4096, 4096, 4096, "--gpu", "a100", "--measured", "0.6 ms", "--tables", empty)
    assert (found["yours_per_predicted"] * found["time_s"]).to_numpy() == pytest.approx([6e-4] * len(found))
    assert "yours/predicted" in run("gemm", 4096, 4096, 4096, "--gpu", "a100", "--measured", "600us", "--tables", empty)


def test_a_gpu_that_nobody_measured_says_whose_constants_it_takes(empty):
    text = run("gemm", 64, 4096, 4096, "--gpu", "h100-nvl", "--tables", empty)
    assert "unknown" in text and "Unknown errors: h100-nvl was not measured so; constants of h100-sxm." in text
    text = run("gemm", 64, 4096, 4096, "--gpu", "a100", "--precision", "fp16", "--tables", empty)
    assert "constants of the same GPU in another format." in text


def test_attention_is_that_of_the_time_model(tmp_path):
    decode = pd.DataFrame({"op_name": ["generation_attention"], "kv_cache_dtype": "bfloat16", "attn_dtype": "bfloat16"})
    decode = decode.assign(batch_size=32, isl=1, step=8191, num_heads=32, num_key_value_heads=8, head_dim=128)
    measured(tmp_path, "decode", "h100-sxm", "vllm", decode.assign(window_size=0, latency=0.36))
    found = rows("attention", "1,32", 1, 8192, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", tmp_path)
    assert list(found["requests"]) == [1, 32] and set(found["kernel"]) == {"vllm_flash_attn_fa3"}
    values = 2 * 8 * 128 * 8193
    assert found["bytes"].to_numpy() == pytest.approx(np.array([1, 32]) * 2 * (values + 2 * 32 * 128))
    assert found["flop"].to_numpy() == pytest.approx(np.array([1, 32]) * 4 * 32 * 128 * 8193)
    assert (found["time_s"] > found["roofline_s"]).iloc[1] and found["measured_s"].to_numpy() == pytest.approx(36e-5)
    assert found["measured_context"].tolist() == [8191] * 2
    text = run("attention", 32, 1, 8192, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", tmp_path)
    assert "360 (context 8,191)  " in text and "window" not in text
    # Causal: half of all pairs.
    prefill = rows("attention", 1, 4096, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", tmp_path)
    assert set(prefill["flop"]) == {4 * 32 * 128 * 4096 * 4097 / 2}


@pytest.mark.parametrize(("window", "kept"), [(8193, 0), (8192, 8192)])
def test_a_window_that_holds_all_tokens_is_none(empty, window, kept):
    asked = ("attention", 32, 1, 8192, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", empty)
    found = rows(*asked, "--window", window)
    assert set(found["window"]) == {kept}
    assert found["flop"][0] == 4 * 32 * 32 * 128 * min(window, 8193)


def test_attention_of_heads_that_an_engine_has_no_measured_kernel_for(empty):
    found = rows("attention", 1, 8192, "--head-dim", 512, "--gpu", "h100-sxm", "--tables", empty)
    known = found.set_index("engine")["error_percent"].notna()
    # PyTorch's have two rows.
    assert known.groupby(level=0).all().to_dict() == {"pytorch": False, "sglang": True, "trtllm": False, "vllm": True}
    # Those that were measured come first.
    assert set(found["kernel"].iloc[:2]) == {"vllm_flash_attn_fa4", "triton"}
    assert set(found["kernel"].iloc[2:]) == {"torch_flow", "torch_cudnn", "torch_flash"}
    assert "torch_flow_flashinfer" not in set(rows("attention", 1, 8192, "--gpu", "b200", "--tables", empty)["kernel"])
    text = run("attention", 1, 8192, "--head-dim", 96, "--gpu", "b200", "--tables", empty)
    assert "b200 was not measured so; constants of the same GPU with heads of other sizes." in text


def test_gradients_are_pytorchs(empty):
    found = rows("attention", "1,8", 4096, "--backward", "--gpu", "h100-sxm", "--tables", empty)
    assert set(found["engine"]) == {"pytorch"} and found["error_percent"].max() < 5
    forward = rows("attention", "1,8", 4096, "--gpu", "h100-sxm", "--engine", "pytorch", "--tables", empty)
    both = [part.set_index(["requests", "kernel"])["time_s"] for part in (found, forward)]
    assert (both[0] / both[1]).between(2.2, 4).all()
    transferred = run("attention", 1, 4096, "--backward", "--gpu", "gh200-144gb", "--tables", empty)
    assert "gh200-144gb was not measured so; constants of h100-sxm" in transferred


def test_a_kernel_of_decoding_predicts_no_prompt(empty):
    """Measured tables of prompts hold what vLLM's kernels of decoding take for those of one token."""
    fp8 = ("--cache", "fp8", "--engine", "vllm", "--tables", empty)
    for gpu in ("b200", "l40s", "rtx-4090"):
        prompt = set(rows("attention", 2, 1024, "--gpu", gpu, *fp8)["kernel"])
        assert prompt and not any(kernel.endswith("decode") for kernel in prompt)
    assert "vllm_flashinfer_trtllmdecode" in set(rows("attention", 2, 1, 1024, "--gpu", "b200", *fp8)["kernel"])


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_fits_the_terminal(empty, columns):
    command = ["gemm", "64", "4096", "14336", "--precision", "fp8", "--tables", str(empty)]
    text = CliRunner().invoke(cli.commands, command, env={"COLUMNS": str(columns)}).stdout
    assert max(map(len, text.splitlines())) <= columns and ("Left out" in text) == (columns == 80)


@pytest.mark.parametrize(
    ("arguments", "place", "problem"),
    [
        (("gemm", 0, 1, 1), "M", "'0' is out of range"),
        (("gemm", 1, "x", 1), "N", "'x' is not a whole number from 1 to 2,147,483,648"),
        (("gemm", 99999999999, 1, 1), "M", "'99999999999' is not a whole number from 1 to 2,147,483,648"),
        (("gemm", "1..400", "1..400", 1), "", "160,000 shapes"),
        (("gemm", "1..9999", "1..10", 1), "", "combinations"),
        (("gemm", "1,2", 1, 1, "--measured", "3us"), "--measured", "it is one time for 2 shapes"),
        *(
            (("gemm", 1, 1, 1, "--measured", text), "--measured", "is not a time")
            for text in ("3", "-1us", "1e9s", "us")
        ),
        (("gemm", 1, 1, 1, "--gpu", "a100", "--precision", "fp8"), "--precision", "has no matrix units for fp8"),
        (
            ("gemm", 1, 1, 1, "--gpu", "a100", "--engine", "vllm", "--precision", "int8"),
            "--engine",
            "no kernel of vllm",
        ),
        (("gemm", 1, 1, 1, "--precision", "tf32"), "--gpu", "no GPU was measured with such kernels"),
        (("gemm", 1, 1, 1, "--gpu", "h1000"), "--gpu", "unknown GPU 'h1000'"),
        (("attention", 1, 1), "CONTEXT", "decoding needs a context"),
        (("attention", 1, "1,2", 5), "TOKENS", "1 is decoding, more is prefill"),
        (("attention", 1, 8, "--heads", 9), "--heads", "no multiple of --kv-heads"),
        (("attention", 1, 8, 4, "--backward"), "--backward", "of whole sequences in bf16"),
        (
            ("attention", 1, 8, "--backward", "--gpu", "b200"),
            "--gpu",
            "no kernel for backward was measured on a GPU like",
        ),
        (("attention", 1, 8, "--precision", "fp8", "--cache", "bf16"), "--cache", "no kernel computes in fp8"),
        (
            ("attention", 1, 1, 8, "--precision", "fp8", "--gpu", "h100"),
            "--precision",
            "was measured in fp8/fp8 for decode",
        ),
        (("attention", 1, 8, "--head-dim", "0"), "--head-dim", "'0' is not a whole number"),
    ],
)
def test_bad_input_is_one_line(arguments, place, problem):
    with pytest.raises(InputError) as error:
        run(*arguments)
    assert error.value.place == place and problem in str(error.value)


def test_a_damaged_table_is_one_line(tmp_path):
    table = pd.DataFrame({"gemm_dtype": ["bfloat16"], "m": [0], "n": 1, "k": 1, "latency": 1.0})
    measured(tmp_path, "gemm", "h100-sxm", "vllm", table)
    with pytest.raises(InputError, match="row 1, column m: '0' is not a whole number"):
        run("gemm", 64, 4096, 4096, "--gpu", "h100-sxm", "--engine", "vllm", "--tables", tmp_path)


def test_numbers_have_three_digits():
    values = (1.6, 0.016, 16.04, 159.96, 1599.6, 0.0, 123456789.0, 9.996, 1e-7, float("nan"), float("inf"))
    expected = ["1.60", "0.0160", "16.0", "160", "1,600", "0", "123,000,000", "10.0", "1.00e-07", "", "–"]
    assert list(map(three_digits, values)) == expected
