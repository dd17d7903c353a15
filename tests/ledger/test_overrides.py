"""Overrides in the configuration: they change one case, and a wrong one is refused in one line."""

import pytest
from conftest import ROOT
from own_cases import reduced, refused

from gpuledger.ledger.datasets import Repository

LLAMA = "published/kernel_breakdown/llama-3.1-8b"


def test_an_override_changes_its_case_and_no_other():
    # Numbers in a mapping come as text from snakemake --config.
    changed = {"model": "gpt2", "hardware": ["l4"], "phases": {"decode": {"batch": "2", "context": 100}}}
    repository = Repository(ROOT, {"overrides": {LLAMA: changed}})
    repository.check_config()
    knobs = {"largest_context": 512, "largest_batch": 4}
    result = reduced(repository.case(*LLAMA.split("/")), **knobs)
    assert (result["model"], result["hardware"]) == ("gpt2", "NVIDIA L4")
    assert {key for key in result.summary if key.endswith("_time")} == {"decode_time"}
    assert result["decode_batch"] == 2
    other = repository.case("published", "kernel_breakdown", "llama-3.1-8b-source")
    assert other == Repository(ROOT, {}).case("published", "kernel_breakdown", "llama-3.1-8b-source")


def test_values_of_the_command_line_have_the_type_that_they_look_like():
    # In a mapping they come as text from snakemake --config.
    changed = {"speculation": {"draft": "mtp", "tokens": "2", "acceptance": "0.7"}, "seed_compatible": "false"}
    repository = Repository(ROOT, {"overrides": {LLAMA: changed}, "knobs": {"dmat": {"rows": "50"}}})
    inputs = repository.case(*LLAMA.split("/")).inputs
    assert inputs["speculation"] == {"draft": "mtp", "tokens": 2, "acceptance": 0.7}
    assert inputs["seed_compatible"] is False
    assert repository.knobs("dmat") == {"rows": 50}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({f"{LLAMA}b": {}}, f"there is no case '{LLAMA}b'; did you mean '{LLAMA}'?"),
        ({LLAMA: {"hardwear": []}}, "unknown key 'hardwear'; did you mean 'hardware'?"),
        ({LLAMA: {"model": "../x.json"}}, "'../x.json' leaves the folder"),
        ({LLAMA: {"phases": {"decode": {"batch": 0, "context": 1}}}}, "0 is less than the minimum of 1"),
    ],
)
def test_a_wrong_override_is_one_line(overrides, message):
    repository = Repository(ROOT, {"overrides": overrides})
    with refused("config/config.yaml, key overrides", message):
        repository.check_config()
        repository.case(*LLAMA.split("/"))
