"""The operators of eager transformers in a training step: by hand, and as timelines of two GPUs have them."""

import dataclasses
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Repository
from gpuledger.ledger.parts import split_parts
from gpuledger.models.training import TrainingRun, training_memory
from gpuledger.models.training.eager import kept_bytes
from gpuledger.models.training.eager_tables import MEMORY_COPY
from gpuledger.models.training.kernels import training_kernels
from gpuledger.models.training.step import predict_kernels
from gpuledger.models.transformer import read_model
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_breakdown.timeline.case import reduce_timeline
from gpuledger.studies.kernel_breakdown.timeline.training import read_training

FOLDER = ROOT / "traces/nvidia-h100-training"
GPU, LLAMA = find_gpu("h100-sxm"), read_model(FOLDER / "models/Llama-3.2-1B.json")
TOKENS, WIDTH, VOCAB, LAYERS = 2 * 4096, 2048, 128256, 16
QWEN = read_model(ROOT / "traces/nvidia-h200-training/models/Qwen3-1.7B.json")
#: Recorded steps, by dataset and case, with the measured peak of memory (MiB).
H100, H200 = "nvidia-h100-training", "nvidia-h200-training"
RECORDED = {
    **{(H100, "autocast"): 44894, (H100, "bf16"): 32873, (H100, "recompute"): 27917},
    **{(H200, "qwen2_autocast"): 61057, (H200, "qwen2_bf16"): 45883, (H200, "qwen3_recompute"): 36928},
    **{(H200, "qwen3_bf16"): 48961, (H200, "llama3_bf16"): 59363},
}
#: What the tables name by its role is one of these operators.
RECORDED_AS = {
    **{**dict.fromkeys(("cast", MEMORY_COPY), "copy_"), "column_sum": "sum"},
    **dict.fromkeys(("histogram", "scan", "radix_sort", "segments"), "embedding_dense_backward"),
    **dict.fromkeys(("partial_sums", "sums"), "embedding_dense_backward"),
    **{"log_softmax_forward": "_log_softmax", "log_softmax_gradient": "_log_softmax_backward_data"},
    **{"nll_loss": "nll_loss_forward", "nll_loss_gradient": "nll_loss_backward"},
}


def a_run(model=LLAMA, **more):
    return TrainingRun(model, GPU, 4096, 2, gpus=1, implementation="transformers", **more)


def counted(rows, part, unit=0):
    """Return the elementwise kernels of one layer in a part of the step, by operator."""
    own = rows[(rows["part"] == part) & (rows["unit"] == unit) & (rows["purpose"] == "elementwise")]
    found = Counter()
    for operator, count in zip(own["kernel"], own["count"] / (LAYERS if unit >= 0 else 1), strict=True):
        found[operator] += count
    return found


def test_a_layer_under_autocast_has_the_kernels_counted_by_hand():
    rows = training_kernels(a_run(gathered="fp32"))
    norm = Counter({"pow": 1, "mean": 1, "add": 1, "rsqrt": 1, "mul": 2})
    rotation = Counter({"mul": 2, "neg": 1, "cat": 1, "add": 1, "cast": 1})
    both = norm + norm + rotation + rotation
    # Five projections read the stream; the gate's activation and product; two additions to the stream.
    assert counted(rows, "forward") == both + Counter({"cast": 5, "silu": 1, "mul": 1, "add": 2})
    assert sum(counted(rows, "forward").values()) == 33
    norm = Counter({"mul": 8, "sum": 1, "column_sum": 1, "pow": 1, "div": 1, "add_": 1, MEMORY_COPY: 1})
    rotation = Counter({"cast": 3, "mul": 2, "neg": 1, "fill_": 2, "copy_": 3, "add_": 2})
    # The stream forks twice and is rounded for two blocks; gradients of inputs are widened, and three are added.
    other = Counter({"add_": 2 + 3, "cast": 2 + 5, "mul": 2, "silu_backward": 1})
    assert counted(rows, "backward") == norm + norm + rotation + rotation + other


def test_without_autocast_norms_convert_and_nothing_else_does():
    rows = training_kernels(a_run())
    assert counted(rows, "forward")["cast"] == counted(rows, "backward")["cast"] == 2 * 2
    assert sum(counted(rows, "forward").values()) == 30
    assert set(rows[rows["purpose"] == "weights"]["kernel"]) == {"fill_", "add_"}, "of the matrix that is used twice"


@pytest.mark.parametrize(("gathered", "forward", "backward"), [("bf16", 46, 92), ("fp32", 49, 99)])
def test_norms_of_queries_and_keys_are_operators_too(gathered, forward, backward):
    """Of Qwen3: eight forward and 16 backward each, under autocast one more for the gradient's format."""
    rows = training_kernels(a_run(QWEN, gathered=gathered))
    layers = len(QWEN.layers[0].numbers)
    attention = dataclasses.replace(QWEN.layers[0].attention, qk_norm="")
    without = dataclasses.replace(QWEN, layers=(dataclasses.replace(QWEN.layers[0], attention=attention),))
    plain = training_kernels(a_run(without, gathered=gathered))
    for part, expected, each in (("forward", forward, 8), ("backward", backward, 16 + (gathered == "fp32"))):
        counts = [
            one[(one["part"] == part) & (one["unit"] == 0) & (one["purpose"] == "elementwise")]["count"].sum() / layers
            for one in (rows, plain)
        ]
        # What is rotated has another format under autocast, so that its gradients are not rounded on the way, twice.
        rounded = 2 * 2 * (gathered == "fp32" and part == "backward")
        assert counts == [expected, expected - 2 * each + rounded]


def test_what_norms_of_heads_keep_is_what_their_gradients_read():
    """Of each value of queries and keys 4 bytes and 2, and of each head 4."""
    attention = QWEN.layers[0].attention
    without = dataclasses.replace(QWEN.layers[0], attention=dataclasses.replace(attention, qk_norm=""))
    heads = TOKENS * (attention.heads + attention.kv_heads)
    for gathered in ("bf16", "fp32"):
        run = a_run(QWEN, gathered=gathered)
        more = kept_bytes(run, QWEN.layers[0]) - kept_bytes(run, without)
        assert more == heads * (128 * (4 + 2) + 4)


def test_a_sum_over_tokens_and_heads_ends_in_one_block():
    """131,072 rows of 128 values: 2,048 blocks of four rows, 16 values a thread; the last one reads all their sums."""
    rows = training_kernels(a_run(QWEN))
    sums = rows[rows["kernel"] == "column_sum"].drop_duplicates(["read_bytes", "n"]).set_index("m")["n"]
    assert set(sums[128]) == {2048 / 4 + 4, 1024 / 4 + 4} and sums[2048] == 128 / 4 + 4
    times = predict_kernels([a_run(QWEN)], find_gpu("h200-sxm")).query("kernel == 'column_sum'")
    # 130, 64 and 26 µs were recorded; memory alone takes 8, 4 and 8.
    slow = times[times["m"] == 128].groupby("n")["full_s"].first().to_numpy() * 1e6
    assert slow == pytest.approx([64, 130], rel=0.06)


def test_a_bias_is_rounded_and_its_gradient_is_a_sum_over_tokens():
    qwen2 = read_model(ROOT / "traces/nvidia-h200-training/models/Qwen2.5-1.5B.json")
    for gathered, casts in (("bf16", 0), ("fp32", 3)):
        rows = training_kernels(a_run(qwen2, gathered=gathered))
        rows = rows[(rows["unit"] == 0) & (rows["purpose"] == "elementwise")]
        for part in ("forward", "backward"):
            moved = rows[(rows["part"] == part) & rows["kernel"].eq("cast") & rows["m"].isin((1536, 256))]
            assert len(moved) == casts
        assert rows["kernel"].eq("column_sum").sum() == 2 + 3
    fused = training_kernels(TrainingRun(qwen2, GPU, 4096, 2))
    assert fused["kernel"].eq("bias_gradient").sum() == 1


@pytest.mark.parametrize(
    ("gathered", "per_value", "written"),
    [
        # pow 4 + 4, mean 4, product 4 + 4, product with the weight 4 + 4 bytes for each value.
        ("fp32", 28, 12),
        # In and out of 32 bits 2 + 4 and 4 + 2, pow 8, mean 4, product 8, product with the weight 2 + 2.
        ("bf16", 36, 16),
    ],
)
def test_a_norm_moves_the_bytes_counted_by_hand(gathered, per_value, written):
    model = dataclasses.replace(LLAMA, layers=(dataclasses.replace(LLAMA.layers[0], numbers=(0,)),))
    rows = training_kernels(a_run(model, gathered=gathered))
    head = rows[(rows["unit"] == -2) & (rows["part"] == "forward") & (rows["purpose"] == "elementwise")]
    names = head["kernel"].tolist()
    own = head.iloc[: names.index("fill_")]
    if gathered == "fp32":  # the LM head's own cast
        own = own.iloc[:-1]
    # For each token: mean writes 4 bytes, ε is added and the root taken (4 + 4 each), the product reads 4. The weight.
    weight = WIDTH * (4 if gathered == "fp32" else 2)
    assert own[["read_bytes", "write_bytes"]].sum().sum() == TOKENS * (WIDTH * per_value + 24) + weight
    assert own["write_bytes"].sum() == TOKENS * (WIDTH * written + 12)


def test_what_pytorch_does_not_vectorise_loads_values_one_by_one():
    apart = {}
    for gathered in ("bf16", "fp32"):
        rows = training_kernels(a_run(gathered=gathered))
        rows = rows[(rows["unit"] == 0) & (rows["purpose"] == "elementwise") & (rows["part"] == "forward")]
        slow = rows[rows["law"] != ""]
        apart[gathered] = slow.groupby(["kernel", "law"])["count"].sum() / len(LLAMA.layers[0].numbers)
    plain, slow = "by_value", "by_value_slowly"
    # Norms are broadcast over rows and columns; rotations join halves of rows of transposed heads.
    assert apart["bf16"].to_dict() == {
        **{("add", plain): 2, ("cast", plain): 2, ("mul", plain): 2 * 2 + 2 * 2, ("neg", plain): 2, ("cat", slow): 2}
    }
    # Under autocast, sums of the stream and of a block differ in type, as do heads and the angles that turn them;
    # nothing is widened, but narrowed, which is fast.
    assert apart["fp32"].to_dict() == {
        **{("add", plain): 2 + 2, ("mul", plain): 2 * 2, ("neg", plain): 2, ("mul", slow): 2 * 2, ("cat", slow): 2}
    }
    default = training_kernels(dataclasses.replace(a_run(), implementation="fused"))
    assert (default[default["purpose"] != "update"]["law"] == "").all()


def test_the_loss_moves_the_bytes_counted_by_hand():
    rows = training_kernels(a_run())
    own = rows[rows["purpose"] == "loss"]
    moved = ((own["read_bytes"] + own["write_bytes"]) * own["count"]).groupby(own["part"]).sum()
    # To 32 bits 2 + 4; log-softmax reads a row three times and writes it; labels, and their losses' weights.
    assert moved["forward"] == TOKENS * (VOCAB * (6 + 16) + 12)
    # Zeros 4; log-softmax's gradient reads one of its two inputs twice and writes 4; to 16 bits 4 + 2.
    assert moved["backward"] == TOKENS * (VOCAB * (4 + 16 + 6) + 12)
    small = training_kernels(a_run(dataclasses.replace(LLAMA, vocab=32000)))
    own = small[(small["purpose"] == "loss") & (small["part"] == "forward")]
    moved = ((own["read_bytes"] + own["write_bytes"]) * own["count"]).sum()
    assert moved == TOKENS * (32000 * (6 + 8) + 12), "a row that an SM's shared memory holds is read once"


def test_an_operator_over_more_than_two_gigabytes_is_split():
    rows = training_kernels(a_run())
    counts = rows[rows["purpose"] == "loss"].groupby("kernel")["count"].sum()
    assert counts.to_dict() == {
        **{"cast": 4, "fill_": 2, "nll_loss": 1, "nll_loss_gradient": 1},
        **{"log_softmax_forward": 1, "log_softmax_gradient": 1},
    }
    # Each of them has its share of the values, which decides where a kernel loads them one by one.
    casts = rows[(rows["purpose"] == "loss") & (rows["kernel"] == "cast") & (rows["part"] == "forward")]
    assert casts[["m", "law"]].to_numpy().tolist() == [[TOKENS * VOCAB / 2, "by_value"]]
    few = training_kernels(dataclasses.replace(a_run(), micro_batch=1))
    assert few[(few["purpose"] == "loss") & (few["kernel"] == "cast")]["count"].sum() == 2


def test_recomputation_runs_a_layer_again_up_to_what_it_keeps_last():
    plain, again = (training_kernels(a_run(gathered="fp32", recompute=recompute)) for recompute in (False, True))
    assert len(plain[plain["part"] == "recompute"]) == 0
    assert counted(again, "recompute") == counted(again, "forward") - Counter({"add": 1})
    products = again[(again["purpose"] == "GEMM") & (again["unit"] == 0)].groupby("part")["kernel"].agg(list)
    assert products["forward"] == [*products["recompute"], "down_proj"]
    rest = again[again["part"] != "recompute"].reset_index(drop=True)
    pd.testing.assert_frame_equal(rest, plain.reset_index(drop=True))


def test_fused_is_the_default_with_the_kernels_that_it_had():
    rows = training_kernels(TrainingRun(LLAMA, GPU, 4096, 2, 1, 1, True, "bf16", "fp32"))
    purposes = rows.groupby("purpose")
    assert purposes["count"].sum().to_dict() == {
        **{"GEMM": 259, "attention": 48, "elementwise": 438, "loss": 2, "update": 590, "weights": 50}
    }
    moved = ((rows["read_bytes"] + rows["write_bytes"]) * rows["count"]).groupby(rows["purpose"]).sum()
    # Of the version before there was another implementation.
    assert moved.astype(int).to_dict() == {
        **{"GEMM": 51076136960, "attention": 10737418240, "elementwise": 70693027840, "loss": 6304038912},
        **{"update": 113694924800, "weights": 37970038784},
    }


def test_the_update_takes_lists_of_tensors_a_launch_at_a_time():
    for gpus, launches in ((1, 59), (8, 8)):  # of 20,971,520 of 1,235,814,400 parameters
        update = training_kernels(TrainingRun(LLAMA, GPU, 4096, 2, gpus=gpus))
        update = update[update["purpose"] == "update"].set_index("kernel")
        assert update.groupby("kernel")["count"].sum().to_dict() == {
            **{f"_foreach_{name}_": launches for name in ("add", "addcdiv", "addcmul", "div", "lerp")},
            **{"_foreach_mul_": 3 * launches, "_foreach_norm": launches, "_foreach_sqrt": launches},
        }
        # Blocks of 65,536 values go over them in steps; a norm writes one value a block.
        blocks = LLAMA.parameters / gpus / launches / 65536
        assert update["m"].to_numpy() == pytest.approx(blocks) and (update["n"] == 65536).all()
        assert (update["law"] == np.where(update.index == "_foreach_norm", "list_read", "list")).all()
        shard = 4 * LLAMA.parameters / gpus
        assert update.loc["_foreach_addcdiv_", "read_bytes"] * launches == 3 * shard
        assert update.loc["_foreach_addcdiv_", "write_bytes"] * launches == shard


def test_a_layer_norm_is_a_kernel_of_its_own():
    run = TrainingRun(read_model("gpt2"), GPU, 1024, 2, implementation="transformers")
    rows = training_kernels(run)
    layers = rows[rows["unit"] == 0]
    assert layers["kernel"].value_counts()["native_layer_norm"] == 2
    assert not layers["kernel"].isin(("pow", "rsqrt", "neg", "cat")).any() and (layers["kernel"] == "gelu").any()
    assert training_memory(run)["memory_bytes"] > 0


def test_passes_add_their_gradients_and_devices_copy_theirs():
    rows = training_kernels(a_run(accumulation=3))
    added = rows[(rows["purpose"] == "weights") & (rows["kernel"] == "add_") & (rows["unit"] == 0)]
    assert added["count"].tolist() == [2 * LAYERS]
    assert added["write_bytes"].tolist() == [2 * a_run().layer_parameters(LLAMA.layers[0])]
    several = dataclasses.replace(a_run(), gpus=8)
    assert "copy_gradients" in set(training_kernels(several)["kernel"])
    assert (a_run().state_value_bytes, several.state_value_bytes) == (2, 4), "shares of the state are in 32 bits"


def test_what_is_not_modelled_is_refused_in_one_line():
    with pytest.raises(InputError, match="transformers has no products in fp8"):
        a_run(precision="fp8")


# ----------------------------------------------------------------------------- what was recorded on an H100 and an H200


@pytest.fixture(scope="module")
def recorded():
    repository, found = Repository.find(ROOT), {}
    for dataset, name in RECORDED:
        source = repository.case(dataset, "kernel_breakdown", name)
        result, _, predicted = reduce_timeline(source)
        found[dataset, name] = split_parts(result.data) | {"run": read_training(source)[1], "predicted": predicted}
    return found


@pytest.mark.parametrize("variant", RECORDED)
def test_every_operator_runs_as_often_as_it_was_recorded(recorded, variant):
    """Of all kernels that are no matrix product, no attention and no update."""
    launches, run = recorded[variant]["launches"], recorded[variant]["run"]
    purposes, rows = ("elementwise", "weights", "loss"), training_kernels(run)
    copied = (launches["kind"] == "kernel") | launches["operator"].eq("aten::copy_")
    own = launches[copied & launches["purpose"].isin(purposes)]
    expected = Counter(own["operator"].str.removeprefix("aten::"))
    rows = rows[rows["purpose"].isin(purposes)]
    found = Counter()
    for operator, count in zip(rows["kernel"], rows["count"], strict=True):
        found[RECORDED_AS.get(operator, operator)] += count
    # Gradients are added out of place where their sum does not have the inputs' format of before.
    for counts in (expected, found):
        counts["add"] += counts.pop("add_", 0)
    joined = expected["cat"] - found["cat"]
    found.subtract(expected)
    # Of positions the product is a GEMM; clipping has kernels of its own, one to join each norm's list.
    clipping = {"cat": joined, "add": 1, "reciprocal": 1, "mul": 1, "clamp": 1, "fill_": 1}
    # Of one sequence the positions' sums are made and compared otherwise.
    alone = {"all": -1, "cumsum": 1} if run.micro_batch == 1 else {}
    assert {name: -count for name, count in found.items() if count} == clipping | alone | {"bmm": -1}
    assert 2 <= joined <= 3


#: Errors (%) of elementwise kernels, of the loss, of the update and of all.
ERRORS = {
    **{(H100, "autocast"): (1.8, 2.6, -2.5, -0.9), (H100, "bf16"): (1.7, 3.1, -2.8, -0.6)},
    **{(H100, "recompute"): (2.1, 2.5, -2.6, -0.6), (H200, "qwen2_autocast"): (1.7, 0.4, -2.0, 0.2)},
    **{(H200, "qwen2_bf16"): (0.7, 0.9, -2.2, -0.7), (H200, "qwen3_recompute"): (2.6, -0.1, -2.0, 0.7)},
    **{(H200, "qwen3_bf16"): (1.4, 0.5, -2.6, 0.3), (H200, "llama3_bf16"): (3.0, 0.4, -1.8, -1.9)},
}


@pytest.mark.parametrize("variant", RECORDED)
def test_times_are_off_by_what_is_said(recorded, variant):
    table = recorded[variant]["purposes"].set_index("purpose")
    errors = 100 * (table["predicted_s"] / table["recorded_s"] - 1)
    whole = 100 * (table["predicted_s"].sum() / table["recorded_s"].sum() - 1)
    assert [*errors[["elementwise", "loss", "update"]], whole] == pytest.approx(ERRORS[variant], abs=0.5)
    assert np.abs(errors["GEMM"]) < 5 and np.abs(errors["attention"]) < 6


@pytest.mark.parametrize(("variant", "measured_mib"), RECORDED.items())
def test_memory_is_the_measured_peak(recorded, variant, measured_mib):
    memory = training_memory(recorded[variant]["run"])
    assert memory["memory_bytes"] / 2**20 == pytest.approx(measured_mib, rel=0.004)
    assert memory["gathered_bytes"] == 0


def test_a_layer_that_is_computed_again_may_need_more_than_few_logits():
    few = dataclasses.replace(LLAMA, vocab=1000)
    runs = (dataclasses.replace(a_run(few, gathered="fp32"), micro_batch=16, recompute=also) for also in (False, True))
    plain, again = map(training_memory, runs)
    assert plain["largest_bytes"] < again["largest_bytes"]
    # Of each token, in bytes: norms 8 a value and 2 for each projection, queries, keys, values and results, 4 in 16
    # bits of the feed-forward block, one value in 32 bits for each norm and head.
    tokens = 16 * 4096
    kept = tokens * (WIDTH * (2 * 8 + 5 * 2) + 2 * (2 * WIDTH + 2 * 512) + 4 * 2 * 8192 + 4 * (2 + 32))
    parameters = a_run(few).layer_parameters(few.layers[0])
    assert again["largest_bytes"] == kept + 4 * (parameters + 1000 * WIDTH)
    assert plain["activation_bytes"] == LAYERS * kept + tokens * (WIDTH * (8 + 2) + 4)


def test_memory_of_a_short_pass_is_that_of_the_update():
    memory = training_memory(dataclasses.replace(a_run(gathered="fp32"), sequence=16, micro_batch=1))
    # Parameters, two moments, gradients, and a denominator for each.
    assert memory["memory_bytes"] == pytest.approx(5 * 4 * LLAMA.parameters)
    assert np.isfinite(list(memory.values())).all()
