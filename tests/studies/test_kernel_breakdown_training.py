"""Recorded training steps: what kernels are for, by name, operator and shapes, beside the model of training."""

import gzip
import json

import matplotlib.pyplot as plt
import pytest
from conftest import ROOT
from own_cases import own_case, reduced, refused
from recordings import Recording

from gpuledger.ledger.datasets import Repository
from gpuledger.ledger.parts import split_parts
from gpuledger.models.training import TrainingRun, predict_steps
from gpuledger.models.training.kernels import training_kernels
from gpuledger.models.transformer import read_model
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_breakdown.formatting import format_time
from gpuledger.studies.kernel_breakdown.timeline.figures import draw_purposes
from gpuledger.studies.kernel_breakdown.timeline.tables import attention_table, describe_step, purpose_table
from notebooks import run_notebook

MS = 1e-3
GPU = find_gpu("h100-sxm")
#: A model whose matrices have shapes of their own: 8 heads of 32 with 2 for keys.
MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
BATCH = {"sequence": 128, "micro_batch": 2}
STREAM, GATE, LOGITS = [2, 128, 256], [704, 256], [256, 1000]
#: Kernels of a step: name, operator, shapes, and what it is for.
STEP = (
    ("nvjet_sm90_tst", "aten::mm", [[256, 256], [256, 704]], "GEMM"),
    ("cudnn_generated_fort_native_sdpa_sm90", "aten::_cudnn_attention_forward", [[2, 8, 128, 32]] * 3, "attention"),
    ("vectorized_elementwise_kernel", "aten::mul", [STREAM, STREAM], "elementwise"),
    # Casts and gradients of matrices, either way round, are of weights; what also has activations is not.
    ("direct_copy_kernel_cuda", "aten::copy_", [GATE, GATE, []], "weights"),
    ("triton_poi_fused__to_copy_t_1", "triton_poi_fused__to_copy_t_1", [GATE, GATE[::-1], []], "weights"),
    ("triton_poi_fused__to_copy_view_2", "triton_poi_fused__to_copy_view_2", [STREAM, [256, 256], []], "elementwise"),
    ("reduce_kernel", "aten::sum", [[64, 256], [], [], []], "elementwise"),
    ("reduce_kernel", "aten::sum", [GATE, [], [], []], "elementwise"),
    # Logits of fewer tokens than a step has are not the loss's, nor is the embedding.
    ("softmax_warp_forward", "aten::_log_softmax", [LOGITS, [], []], "loss"),
    ("direct_copy_kernel_cuda", "aten::copy_", [[2, 128, 1000], [2, 128, 1000], []], "loss"),
    ("vectorized_elementwise_kernel", "aten::mul", [[2, 1, 1000], [2, 1, 1000]], "elementwise"),
    ("vectorized_elementwise_kernel", "aten::add_", [[1000, 256], [1000, 256], []], "weights"),
    ("embedding_backward_kernel", "aten::embedding_dense_backward", [STREAM, [2, 128]], "elementwise"),
    ("multi_tensor_apply_kernel", "aten::_foreach_mul_", [[], []], "update"),
    ("reduce_kernel", "aten::linalg_vector_norm", [[19], [], [], [], []], "update"),
)


def a_case(folder, kernels=STEP, **changed):
    recording = Recording()
    begin = recording.now
    for name, operator, shapes, _ in kernels:
        recording.kernel(name, 1000, operator=operator, shapes=shapes)
    recording.host("user_annotation", "training step", begin, recording.now - begin)
    recording.write(folder)
    (folder / "tiny.json").write_text(json.dumps(MODEL), "utf-8")
    inputs = {"timeline": "trace.json", "model": "tiny.json", "hardware": ["h100-sxm"], "training": BATCH} | changed
    return own_case(folder, "kernel_breakdown", {name: value for name, value in inputs.items() if value is not None})


def test_kernels_are_for_what_their_operators_and_shapes_say(tmp_path):
    launches = split_parts(reduced(a_case(tmp_path)).data)["launches"]
    said = list(zip(launches["operator"], launches["shapes"], launches["purpose"], strict=True))
    assert said == [(operator, str(shapes), purpose) for _, operator, shapes, purpose in STEP]


def test_what_is_predicted_is_what_the_model_of_training_says(tmp_path):
    training = {**BATCH, "recompute": True, "gathered": "fp32"}
    result = reduced(a_case(tmp_path, training=training))
    run = TrainingRun(read_model(tmp_path / "tiny.json"), GPU, 128, 2, 1, 1, True, "bf16", "fp32")
    (step,) = predict_steps([run], GPU)[0].to_dict("records")
    for name in ("gemm", "attention", "elementwise", "weights", "loss", "update"):
        assert result[f"{name}_predicted_time"] == pytest.approx(step[f"{name}_s"], rel=1e-6), name
    assert result["model_kernel_time"] == pytest.approx(step["step_s"], rel=1e-6), "one GPU has nobody to talk to"
    counts = {name: sum(purpose == name for *_, purpose in STEP) for name in ("GEMM", "elementwise", "update")}
    assert all(result[f"{name.lower()}_time"] == pytest.approx(count * MS) for name, count in counts.items())
    assert result["predicted_clock"] == pytest.approx(step["clock_hz"] / 1e6)
    assert result.provenance["inputs"][-1]["file"].endswith("power_constants.csv")
    assert "computed again" in describe_step(result) and "256 sequences" not in describe_step(result)
    assert "; the model of training predicts" in result.finding, "nothing is copied"


def test_a_case_says_whose_implementation_is_predicted(tmp_path):
    result = reduced(a_case(tmp_path, training={**BATCH, "implementation": "transformers"}))
    run = TrainingRun(read_model(tmp_path / "tiny.json"), GPU, 128, 2, gpus=1, implementation="transformers")
    (step,) = predict_steps([run], GPU)[0].to_dict("records")
    assert result["elementwise_predicted_time"] == pytest.approx(step["elementwise_s"], rel=1e-6)
    assert "as transformers runs them eagerly" in describe_step(result)
    table = split_parts(result.data)["purposes"].set_index("purpose")
    kernels = training_kernels(run)
    counts = kernels[kernels["kernel"] != "memory_copy"].groupby("purpose")["count"].sum()
    assert table["predicted_kernels"].to_dict() == counts.reindex(table.index).to_dict(), "without copies of memory"


def test_fills_count_with_what_they_are_filled_for_and_are_no_kernels(tmp_path):
    case = a_case(tmp_path, (("Memset (Device)", "aten::mm", [[256, 256], [256, 704]], ""), *STEP))
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    for event in events:
        if event["name"].startswith("Memset"):
            event["cat"] = "gpu_memset"
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}), "utf-8")
    result = reduced(case)
    table = split_parts(result.data)["purposes"].set_index("purpose")
    assert table.loc["GEMM", "recorded_s"] == pytest.approx(2 * MS) and table.loc["GEMM", "kernels"] == 1
    both = format_time((len(STEP) + 1) * MS)
    assert f"with copies they take {both}, and the model of training predicts" in result.finding


def test_a_step_without_some_purposes_has_rows_of_nothing(tmp_path):
    result = reduced(a_case(tmp_path, STEP[2:3]))
    table = purpose_table(result).set_index("purpose")
    assert table.loc[["GEMM", "loss", "update"], "recorded_ms"].tolist() == [0, 0, 0]
    assert table.loc["all", "kernels"] == 1 and attention_table(result).empty
    figure, axes = plt.subplots()
    draw_purposes(axes, split_parts(result.data)["purposes"])
    assert [label.get_text() for label in axes.get_yticklabels()] == list(table.index[:-1])
    plt.close(figure)


def test_the_page_of_a_training_step_is_made(tmp_path):
    result = reduced(a_case(tmp_path))
    run_notebook("kernel_breakdown_timeline", result, tmp_path / "out")
    assert {"figure.pdf", "figure_bound.pdf", "table.csv"} <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": None}, ["model"]),
        ({"hardware": None}, ["hardware"]),
        ({"phases": {"decode": {"batch": 1, "context": 8}}}, ["phases", "beside training"]),
        ({"precision": {"weights": "fp8"}}, ["precision", "beside training"]),
        ({"hardware": ["h100-sxm", "h200-sxm"]}, ["2 GPUs beside training"]),
        ({"training": {"sequence": 128}}, ["micro_batch"]),
        ({"training": {**BATCH, "gathered": "fp8"}}, ["gathered"]),
        ({"training": {**BATCH, "implementation": "eager"}}, ["implementation", "fused", "transformers"]),
        ({"training": {**BATCH, "implementation": ["transformers"]}}, ["implementation"]),
        ({"training": {"sequence": 16777216, "micro_batch": 65536}}, ["tokens in a pass"]),
        ({"model": "Mixtral-8x7B-v0.1"}, ["attention and feed-forward layers only"]),
    ],
)
def test_bad_input_is_one_line(tmp_path, changed, words):
    with refused(*words):
        reduced(a_case(tmp_path, **changed))


# ---------------------------------------------------------------------------------------- what was recorded on an H100


@pytest.fixture(scope="module")
def recorded():
    repository = Repository.find(ROOT)
    return lambda name: reduced(repository.case("nvidia-h100-training", "kernel_breakdown", name))


def test_the_compiled_attention_is_given_a_mask_and_all_heads(recorded):
    """What docs/RECORDED.md says of attention: the same kernels, but is_causal is false and a mask is given."""
    tables = {}
    for name, causal, mask, heads in (("autocast", "True", [], 8), ("compile", "False", [2, 1, 4096, 4096], 32)):
        with gzip.open(ROOT / f"traces/nvidia-h100-training/kernel_breakdown/{name}.json.gz") as file:
            events = json.load(file)["traceEvents"]
        called = [e["args"] for e in events if e["name"] == "aten::_scaled_dot_product_cudnn_attention"]
        assert len(called) == 2 * 16
        for inputs in called:
            _, keys, values, bias, *_ = inputs["Input Dims"]
            assert keys == values == [2, heads, 4096, 64] and bias == mask
            # compute_log_sumexp, dropout_p, is_causal, return_debug_mask, scale
            assert inputs["Concrete Inputs"][4:] == ["True", "0.", causal, "False", "0.125"]
        table = attention_table(recorded(name))
        tables[name] = table[table["name"].str.contains("sdpa")].set_index("name")["time_ms"]
    eager, compiled = tables["autocast"], tables["compile"]
    assert set(eager.index) == set(compiled.index) and len(eager) == 2, "the same kernels, forward and backward"
    assert (compiled / eager).between(3.0, 3.4).all()


def test_recorded_purposes_add_up_to_the_time_on_the_gpu(recorded):
    result = recorded("autocast")
    table = purpose_table(result).set_index("purpose")
    assert table.loc["all", "recorded_ms"] == pytest.approx(1e3 * (result["kernel_time"] + result["copy_time"]))
    assert table.loc["all", "kernels"] == result["kernels"]
