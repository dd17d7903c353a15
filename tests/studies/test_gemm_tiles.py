"""Gemm tiles: known answers, and bad input in one line."""

import pytest
import yaml

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Dataset
from gpuledger.studies.gemm_tiles import reduce


def a_case(tmp_path, table):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/times.csv").write_text(table)
    content = {"title": "t", "kind": "recorded", "source": "s", "license": "CC0-1.0"}
    content["studies"] = {"gemm_tiles": {"first": {"table": "times.csv"}}}
    (tmp_path / "mine/dataset.yaml").write_text(yaml.safe_dump(content))
    return Dataset.load(tmp_path / "mine/dataset.yaml").case("gemm_tiles", "first")


def test_known_answer(tmp_path):
    result = reduce_case(a_case(tmp_path, "time_us\n2.4\n2.5\n2.6\n9.0\n"), reduce)
    assert result["times"] == 4
    assert result["time_median"] == 2.55


def test_a_wrong_unit_is_one_line(tmp_path):
    with pytest.raises(InputError, match="wrong unit: column 'time_ms' where 'time_us' is needed"):
        reduce_case(a_case(tmp_path, "time_ms\n2.4\n"), reduce)
