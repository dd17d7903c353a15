"""Datasets: what is accepted, and one line for everything that is not."""

import pytest
from own_cases import refused

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.ledger import datasets
from gpuledger.ledger.datasets import Dataset, Repository
from gpuledger.ledger.study import Study
from gpuledger.readers.gpus import read_gpus

STUDY = Study(
    "kernel_overhead",
    title="t",
    question="q",
    case={
        "required": ["table"],
        "properties": {
            "table": {"type": "string", "format": "file", "description": "a CSV"},
            "parts": {"type": "array", "items": {"type": "string", "format": "file"}},
            "more": {"type": "object", "additionalProperties": {"type": "string", "format": "file"}},
            "layers": {"type": "integer", "minimum": 1},
        },
    },
)
GOOD = """\
title: Mine
kind: recorded
device: {name: NVIDIA L4, compute_capability: "8.9"}
source: measured by me
license: CC0-1.0
files:
  a.csv: {source: my notebook, note: one run}
studies:
  kernel_overhead:
    one: {table: a.csv, parts: [b.csv, c.csv], more: {x: d.csv}, layers: 2}
"""


@pytest.fixture
def one_study(monkeypatch):
    """Make the study of these tests the only one."""
    monkeypatch.setattr(datasets, "read_studies", lambda: {STUDY.name: STUDY})


def write(folder, text, name="mine"):
    file = folder / name / "dataset.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")
    return file


@pytest.mark.usefixtures("one_study")
def test_case_lists_every_file_and_its_provenance(tmp_path):
    file = write(tmp_path, GOOD)
    (file.parent / "a.csv").write_bytes(b"abc")
    case = Dataset.load(file).case("kernel_overhead", "one")
    assert [path.name for path in case.paths()] == ["a.csv", "b.csv", "c.csv", "d.csv"]
    record = case.provenance()
    assert record["label"] == "recorded on NVIDIA L4"
    assert record["inputs"] == [
        {
            "file": "a.csv",
            "bytes": 3,
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "source": "my notebook",
            "note": "one run",
        }
    ]
    assert str(tmp_path) not in str(record)


@pytest.mark.usefixtures("one_study")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: Mine", "titel: Mine", "unknown key 'titel'; did you mean 'title'?"),
        ("title: Mine\n", "", "the key 'title' is missing; add it: a line that says what the numbers are"),
        ("kind: recorded", "kind: record", "key kind: 'record' is not one of"),
        ("kind: recorded", "kind: x", "simulated, downloaded, local; use one of these"),
        ("kernel_overhead:", "kernel_overhed:", "key studies: unknown key 'kernel_overhed'; did you mean 'kernel_ove"),
        ("one: {", "one/two: {", "the name 'one/two' is not allowed; use letters, digits"),
        ("title: Mine", "title: [Mine", "line 2, column 5: not valid YAML"),
        ("title: Mine", "title: Mine\ntitle: Yours", "line 2, column 1: not valid YAML: duplicate key 'title'"),
        ("title: Mine", "title: 3", "key title: expected string, found 3"),
        ("name: NVIDIA L4", "nmae: NVIDIA L4", "key device: unknown key 'nmae'; did you mean 'name'?"),
    ],
)
def test_wrong_dataset_is_one_line(tmp_path, old, new, message):
    assert old in GOOD
    file = write(tmp_path, GOOD.replace(old, new, 1))
    with refused(str(file), message):
        Dataset.load(file)


@pytest.mark.usefixtures("one_study")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("table: a.csv", "tabel: a.csv", "key studies.kernel_overhead.one: unknown key 'tabel'; did you mean 'table'?"),
        ("table: a.csv, ", "", "the key 'table' is missing; add it: a CSV"),
        ("table: a.csv", "table: /etc/passwd", "'/etc/passwd' leaves the folder"),
        ("table: a.csv", "table: ../a.csv", "'../a.csv' leaves the folder"),
        ("x: d.csv", "x: ../../d.csv", "more.x: '../../d.csv' leaves the folder"),
        ("layers: 2", "layers: 0", "key studies.kernel_overhead.one.layers"),
        ("layers: 2", "layers: two", "expected integer, found 'two'"),
    ],
)
def test_wrong_case_is_one_line_and_stops_that_case_only(tmp_path, old, new, message):
    assert old in GOOD
    file = write(tmp_path, GOOD.replace(old, new, 1) + "    two: {table: a.csv}\n")
    dataset = Dataset.load(file)
    with refused(message):
        dataset.case("kernel_overhead", "one")
    assert dataset.case("kernel_overhead", "two").inputs == {"table": "a.csv"}


@pytest.mark.usefixtures("one_study")
def test_missing_file_and_case_name_what_to_do(tmp_path):
    dataset = Dataset.load(write(tmp_path, GOOD))
    with pytest.raises(InputError, match=r"a\.csv does not exist; put it there"):
        dataset.case("kernel_overhead", "one").path("table")
    with pytest.raises(InputError, match="no case 'won' is declared; did you mean 'one'"):
        dataset.case("kernel_overhead", "won")


@pytest.mark.parametrize("name", ["tables", "logs", "index.html", "a b", ".hidden"])
def test_names_that_results_could_not_hold_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="a dataset cannot be called"):
        Dataset.load(write(tmp_path, GOOD, name))


def test_not_utf8_and_not_there(tmp_path):
    file = write(tmp_path, "")
    file.write_bytes(b"title: \xff")
    with pytest.raises(InputError, match="cannot be read"):
        Dataset.load(file)
    with pytest.raises(InputError, match="does not exist"):
        Dataset.load(tmp_path / "other" / "dataset.yaml")


def test_every_committed_dataset_is_valid(root):
    repository = Repository.find(root)
    # Models and GPUs are files of the dataset, or names of what comes with the checkout.
    known = {file.stem for file in (root / "resources/models").iterdir()} | set(read_gpus())
    for name in repository.dataset_names():
        dataset = repository.dataset(name)
        made = dataset.content["kind"] in ("downloaded", "simulated")
        for study, case in dataset.cases():
            opened = dataset.case(study, case)
            assert made or all(path.exists() or path.name in known for path in opened.paths())
        for file in dataset.content.get("files", {}):
            assert made or (dataset.folder / file).exists(), f"{name} describes {file}, which is not there"


def test_every_published_file_has_its_source(root):
    dataset = Repository.find(root).dataset("published")
    about = dataset.content["files"]
    for path in dataset.folder.rglob("*.csv"):
        assert about[path.relative_to(dataset.folder).as_posix()]["source"]


def test_repository_names_the_nearest_dataset(root):
    with pytest.raises(InputError, match="no dataset 'publisht'; did you mean 'published'"):
        Repository.find(root).dataset("publisht")


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"pattern": "("}, r"is wrong \(missing \), unterminated subpattern"),
        ({"$ref": "#/nowhere"}, r"is wrong \(PointerToNowhere"),
        ({"type": "strin"}, r"is wrong at 'properties\.a\.type' \('strin' is not valid"),
        ({"allOf": [{"$ref": "#/properties/a"}]}, r"is wrong \(maximum recursion depth"),
        (5, r"is wrong at 'properties\.a' \(5 is not of type"),
    ],
)
def test_a_wrong_schema_of_a_study_is_one_line(wrong, message):
    with pytest.raises(
        InputError, match=f"^d.yaml, key studies.s.c: its schema {message}.*; correct the schema in stu"
    ):
        schemas.check({"a": "x"}, {"type": "object", "properties": {"a": wrong}}, "d.yaml", "studies.s.c")
