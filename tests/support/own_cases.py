"""Cases of datasets that tests declare, and input that is refused."""

from contextlib import contextmanager
from importlib import import_module

import pytest
import yaml

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Dataset


def own_case(folder, study, inputs, name="mine", **about):
    """Declare a dataset of one case in a folder, and open the case; `about` goes into the dataset's own keys."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"title": "t", "kind": "recorded", "source": "s", "license": "CC0-1.0"} | about
    content["studies"] = {study: {name: inputs}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content), "utf-8")
    return Dataset.load(folder / "dataset.yaml").case(study, name)


def reduced(case, **knobs):
    """Reduce a case as its study does."""
    return reduce_case(case, import_module(f"gpuledger.studies.{case.study}").reduce, knobs)


@contextmanager
def refused(*words):
    """Expect bad input to be refused with these words."""
    with pytest.raises(InputError) as caught:
        yield caught
    line = str(caught.value)
    assert all(word in line for word in words), line
