"""``gpuledger predict --images``, and the same in kernel_breakdown: tokens, the tower's time and memory, refusals."""

import json
from functools import partial

import command_line
import pytest
from own_cases import own_case, reduced, refused

from gpuledger.cli.predict_report import COLUMNS
from gpuledger.ledger.parts import split_parts

run, predict = (partial(call, "predict") for call in (command_line.run, command_line.table))

# Qwen/Qwen2.5-VL-3B-Instruct, without what changes no kernel.
QWEN = {
    **{"model_type": "qwen2_5_vl", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36},
    **{"num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "max_position_embeddings": 128000,
    "vision_config": {
        **{"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        **{"out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112},
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}
#: Parameters of its tower: of the whole checkpoint 3,754,622,976 (hub) without the text model's.
TOWER = 3_754_622_976 - 3_085_938_688
BASE = ("--gpu", "h100-sxm", "--batch", "1,8", "--input", "500", "--output", "100")
IMAGES = ("--images", "2", "--image-size", "1024x768")
TOKENS = 2 * 27 * 37


@pytest.fixture
def qwen(tmp_path):
    folder = tmp_path / "Qwen2.5-VL-3B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN), "utf-8")
    return folder


def test_images_add_their_tokens_and_the_towers_time(qwen):
    seen, longer = predict(qwen, *BASE, *IMAGES), predict(qwen, *BASE[:-4], "--input", 500 + TOKENS, "--output", 100)
    assert tuple(seen) == (*COLUMNS, "image_tokens", "vision_time_s", "notes") and tuple(longer) == (*COLUMNS, "notes")
    assert seen["image_tokens"].eq(TOKENS).all()
    # Steps are those behind as long a prompt of text, and so is the prompt but for the tower.
    assert seen["time_s"][1:].tolist() == longer["time_s"][1:].tolist()
    assert seen["vision_time_s"].tolist()[1:] == [0, 0] and seen["vision_time_s"][0] > 0.005
    assert seen["time_s"][0] - seen["vision_time_s"][0] == pytest.approx(longer["time_s"][0], rel=1e-9)
    # New requests bring images, too: steps of others wait for their tower.
    assert seen["served_tpot_s"][2] > longer["served_tpot_s"][2] + 7 * seen["vision_time_s"][0] / 100 * 0.99


def test_a_tower_is_loaded_with_or_without_images(qwen):
    loaded, text = predict(qwen, *BASE), predict(qwen, *BASE, "--images", 0)
    assert (loaded["memory_bytes"] - text["memory_bytes"]).eq(2 * TOWER).all()
    assert loaded.drop(columns=["memory_bytes", "notes"]).equals(text.drop(columns=["memory_bytes", "notes"]))
    said, without = run(qwen, *BASE), run(qwen, *BASE, "--images", 0)
    assert "3.09 billion parameters, 0.67 more in its vision tower, 6.2 GB" in said
    assert "1.3 GB  vision tower: 0.67·10⁹ parameters × 16 bits / 8" in said
    assert "3.09 billion parameters without the vision tower" in without and "vision tower: " not in without
    shared = run(qwen, *BASE, "--tp", 2)
    assert "0.7 GB  vision tower: 0.67·10⁹ parameters × 16 bits / 8, its layers divided among 2 GPUs" in shared
    # The first of two stages has the tower, and holds most.
    assert "1.3 GB  vision tower" in run(qwen, *BASE, "--pp", 2)


def test_a_table_says_what_the_images_take(qwen):
    said = run(qwen, *BASE, *IMAGES)
    assert "2,498 tokens in (1,998 of them from 2 images of 1024 × 768)" in said
    (header,) = (line for line in said.splitlines() if line.startswith("phase"))
    assert header.split("  ")[3].strip() == "of it vision (ms)" or "of it vision (ms)" in header
    assert "The vision tower's kernels follow each other without a gap" in said
    assert "vision (ms)" not in run(qwen, *BASE)
    (notes,) = {tuple(notes) for notes in predict(qwen, *BASE, *IMAGES, "--tp", 2, "--precision", "fp8")["notes"]}
    assert "The vision tower is taken to be unquantised, as checkpoints leave it." in notes


def test_images_go_with_everything_else(qwen, tmp_path):
    more = ("--images", 1, "--tp", 2, "--pp", 2, "--draft", "mtp", "--cached", 500, "--host-us", 5)
    found = predict(qwen, *BASE, *more, "--gpu", "a100,v100,mi300x,l40s")
    assert found["vision_time_s"].gt(0).sum() == 5 and found["image_tokens"].eq(37 * 37).all()
    rows = json.loads(run(qwen, *BASE, *IMAGES, "--slo", "ttft=10s", "--json"))
    assert rows[0]["ttft_s"] == predict(qwen, *BASE, *IMAGES)["time_s"][0]
    run(qwen, *BASE, *IMAGES, "--save", tmp_path / "saved")
    assert "vision tower" in (tmp_path / "saved/memory.csv").read_text("utf-8")
    assert "vision_time_s" in (tmp_path / "saved/passes.csv").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--images", "x"), "--images"),
        (("--images", "-1"), "--images"),
        (("--images", "99999"), "--images: 99999 is out of range"),
        (("--images", "1", "--image-size", "huge"), "--image-size: 'huge' is not a size"),
        (("--images", "1", "--image-size", "0x5"), "--image-size: 0 is out of range"),
        (("--images", "1", "--image-size", "10x9000"), "--image-size: 10x9000 is narrower than 1 : 200"),
        (("--image-size", "640x480"), "--images: it is missing: there are no images"),
        (("--images", "500"), "input + output: a context of"),
        ((*IMAGES, "--cached", "501"), "--cached: 501 tokens are cached, but only 500 of --input are no image's"),
    ],
)
def test_bad_images_are_one_line(qwen, options, said):
    with refused(said):
        run(qwen, *BASE, *options)


def test_a_model_without_a_tower_is_refused_in_one_line(qwen):
    with refused("Llama-3.1-8B, --images: it has no vision tower; leave images out"):
        run("Llama-3.1-8B", *BASE, *IMAGES)
    broken = QWEN | {"vision_config": QWEN["vision_config"] | {"depth": "many"}}
    (qwen / "config.json").write_text(json.dumps(broken), "utf-8")
    with refused("its vision tower was not read: key vision_config.depth: 'many' is not a whole number"):
        run(qwen, *BASE, *IMAGES)
    said = run(qwen, *BASE)
    assert "3.09 billion parameters without the vision tower" in said
    assert "The vision tower takes memory that is not counted: key vision_config.depth" in said


def test_kernel_breakdown_takes_images_likewise(qwen, tmp_path):
    phases = {
        "prefill": {"batch": 1, "input": 500, "images": {"number": 2, "width": 1024, "height": 768}},
        "decode": {"batch": 8, "context": 550 + TOKENS},
    }
    case = own_case(tmp_path, "kernel_breakdown", {"model": "qwen.json", "hardware": ["h100-sxm"], "phases": phases})
    (case.dataset.folder / "qwen.json").write_text(json.dumps(QWEN), "utf-8")
    found = reduced(case, largest_context=512, largest_batch=4)
    alike = predict(qwen, *BASE, *IMAGES)
    assert found["prefill_time"] == pytest.approx(alike["time_s"][0], rel=1e-9)
    assert found["prefill_vision_time"] == pytest.approx(alike["vision_time_s"][0], rel=1e-9)
    assert found["decode_time"] == pytest.approx(alike["time_s"][2], rel=1e-9)
    assert found["prefill_memory_bytes"] == alike["memory_bytes"][0]
    assert found["prefill_image_tokens"] == TOKENS and found["prefill_new_tokens"] == 500 + TOKENS
    assert found["vision_parameters"] == TOWER
    parts = split_parts(found.data)
    tower = parts["kernels"][parts["kernels"]["group"] == "vision tower"]
    assert (tower["time_s"] * tower["count"]).sum() == pytest.approx(found["prefill_vision_time"], rel=1e-6)
    assert "vision tower" in set(parts["memory_parts"]["held_by"]) & set(parts["structure"]["component"])


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ({"width": 10}, "height"),
        ({"width": 0, "height": 10}, "images.width"),
        ({"width": 5, "height": 5000}, "phases.prefill: size: 5x5000 is narrower than 1 : 200"),
        ({"width": 500, "height": 500, "number": 400}, "phases.prefill: a context of"),
    ],
)
def test_bad_images_of_a_case_are_refused(tmp_path, images, said):
    phases = {"prefill": {"batch": 1, "input": 500, "images": images}}
    inputs = {"model": "qwen.json", "hardware": ["h100-sxm"], "phases": phases}
    (tmp_path / "qwen.json").write_text(json.dumps(QWEN), "utf-8")
    with refused("dataset.yaml", said):
        reduced(own_case(tmp_path, "kernel_breakdown", inputs))


def test_images_of_a_text_model_are_refused(tmp_path):
    phases = {"prefill": {"batch": 1, "input": 500, "images": {"width": 640, "height": 480}}}
    inputs = {"model": "Llama-3.1-8B", "hardware": ["h100-sxm"], "phases": phases}
    with refused("phases.prefill", "it has no vision tower"):
        reduced(own_case(tmp_path, "kernel_breakdown", inputs))
