"""Datasets that are downloaded, as a user runs them: fetched once, verified, left out when they cannot be had."""

import functools
import hashlib
import http.server
import json
import os
import zipfile

import pytest
import yaml
from conftest import snakemake
from linear_recording import write_launches, write_shapes
from package_server import serving, write_wheel

from gpuledger.ledger import download_record
from gpuledger.ledger.datasets import Dataset


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def site(tmp_path):
    """A web server with a recording, its shapes in an archive, and the list of what it was asked for."""
    folder = tmp_path / "site"
    folder.mkdir()
    write_launches(folder / "recording.csv")
    with zipfile.ZipFile(folder / "shapes.zip", "w") as archive:
        archive.write(write_shapes(tmp_path / "shapes.json"), "inner/shapes.json")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    server.asked, server.folder = [], folder
    with serving(server):
        yield server


def declare(checkout, name, site, files, cases):
    folder = checkout / "traces" / name
    folder.mkdir()
    host = f"127.0.0.1:{site.server_port}"
    download = [{"url": f"http://{host}/{file}", **pins} for file, pins in files.items()]
    content = {"title": "t", "kind": "downloaded", "source": "a site", "license": "CC0-1.0", "download": download}
    (folder / "dataset.yaml").write_text(yaml.safe_dump({**content, "studies": {"flop_reconciliation": cases}}))
    return folder


def pins(path):
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}


def test_fetched_once_kept_and_healed_from_the_mirror(checkout, site, tmp_path):
    files = {"recording.csv": pins(site.folder / "recording.csv"), "shapes.zip": {"unpack": "zip"}}
    cases = {
        "linear": {"launches": "recording.csv", "shapes": "inner/shapes.json"},
        "alone": {"launches": "recording.csv"},
        "mixed": {"launches": "recording.csv", "shapes": "own.json"},
    }
    folder = declare(checkout, "web", site, files, cases)
    write_shapes(folder / "own.json")
    results = checkout / "results/web/flop_reconciliation"
    targets = [f"results/web/flop_reconciliation/{case}/summary.json" for case in cases]
    done = snakemake(checkout, *targets)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(site.asked) == ["/recording.csv", "/shapes.zip"]
    assert json.loads((results / "linear/summary.json").read_text())["tiled_exact"]["value"] == 3
    assert json.loads((results / "linear/provenance.json").read_text())["label"] == "downloaded"
    record = {entry["file"]: entry for entry in json.loads((checkout / "results/web/files.json").read_text())}
    assert list(record) == ["inner/shapes.json", "recording.csv", "shapes.zip"]
    assert record["recording.csv"]["sha256"] == files["recording.csv"]["sha256"]
    assert record["recording.csv"]["origin"].endswith("/recording.csv")

    site.shutdown()
    site.server_close()
    done = snakemake(checkout, "-n", *targets)
    assert "Nothing to be done" in done.stdout + done.stderr

    # A file that changed is put right, from the mirror.
    right = (folder / "recording.csv").read_bytes()
    (folder / "recording.csv").write_bytes(right[:-9])
    place = tmp_path / "mirror/127.0.0.1"
    place.mkdir(parents=True)
    (place / "recording.csv").write_bytes(right)
    done = snakemake(checkout, *targets, "--config", f"mirror={tmp_path / 'mirror'}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "recording.csv").read_bytes() == right
    assert sorted(site.asked) == ["/recording.csv", "/shapes.zip"]


def test_a_failed_download_is_one_line_and_the_rest_is_made(checkout, site):
    site.folder.joinpath("other.csv").write_text("other content")
    cases = {"linear": {"launches": "gone.csv"}}
    declare(checkout, "gone", site, {"gone.csv": {"sha256": "0" * 64}}, cases)
    cases = {"linear": {"launches": "other.csv"}}
    folder = declare(checkout, "wrong", site, {"other.csv": {"sha256": "1" * 64}}, cases)
    targets = [f"results/{name}/flop_reconciliation/linear/summary.json" for name in ("gone", "wrong")]
    other = "results/published/kernel_overhead/table2/summary.json"
    done = snakemake(checkout, "--keep-going", *targets, other)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert (checkout / other).is_file()
    assert not any((checkout / target).exists() for target in targets)
    lines = [line.strip() for line in said.splitlines() if "could not be fetched" in line]
    assert lines
    address = f"http://127.0.0.1:{site.server_port}"
    for name, file, why in (("gone", "gone.csv", "the server answered 404"), ("wrong", "other.csv", "sha256")):
        line = next(line for line in lines if line.startswith(f"traces/{name}/dataset.yaml, download[0]: "))
        assert f"{address}/{file}: could not be fetched: no mirror is set; network: " in line
        assert why in line and "set `mirror:` (traces/README.md), or put the file there by hand" in line
    assert "Traceback" not in said
    assert [path.name for path in folder.iterdir() if not path.name.startswith("other.csv.part")] == ["dataset.yaml"]


def test_a_plan_asks_no_network_and_writes_nothing(checkout, site):
    declare(checkout, "web", site, {"recording.csv": {}}, {"linear": {"launches": "recording.csv"}})
    before = sorted(checkout.rglob("*"))
    done = snakemake(
        checkout, "-n", "flop_reconciliation", "--config", "datasets=[linear-a100]", "datasets_online=[web]"
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert "download linear-a100" in said, "what is configured is planned"
    assert said.count("web is left out: a dry run does not ask the network; its tracked results stay") == 1
    assert "download web" not in said and site.asked == []
    made = {path for path in checkout.rglob("*") if not {".snakemake", "__pycache__"} & set(path.parts)} - set(before)
    assert made == set()


def test_an_online_dataset_joins_when_it_answers_and_its_results_stay_when_it_does_not(checkout, site, tmp_path):
    files = {"recording.csv": pins(site.folder / "recording.csv")}
    folder = declare(checkout, "web", site, files, {"linear": {"launches": "recording.csv"}})
    command = ["results/tables/flop_reconciliation.csv", "--config", "datasets=[]", "datasets_online=[web,linear-a100]"]
    done = snakemake(checkout, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "linear-a100 is left out: no answer from raw.githubusercontent.com;" in done.stdout + done.stderr
    assert "web is left out" not in done.stdout + done.stderr
    table = checkout / command[0]
    whole = table.read_bytes()
    assert b"web,linear,tiled_exact,3" in whole
    done = snakemake(checkout, "-n", *command)
    assert "Nothing to be done" in done.stdout + done.stderr, "what is here joins without being asked for"

    # A fresh clone without a network: of the results only what git tracks, and none of the files.
    (folder / "recording.csv").unlink()
    table.unlink()
    results = checkout / "results/web"
    for path in results.rglob("*"):
        if path.is_file() and path.name not in ("summary.json", "provenance.json"):
            path.unlink()
    site.shutdown()
    site.server_close()
    done = snakemake(checkout, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"web is left out: no answer from 127.0.0.1:{site.server_port}; its tracked" in done.stdout + done.stderr
    assert table.read_bytes() == whole
    # Asked for by name, it fails instead.
    done = snakemake(checkout, "results/web/flop_reconciliation/linear/data.parquet")
    assert done.returncode == 1 and "could not be fetched" in done.stdout + done.stderr

    place = tmp_path / "mirror/127.0.0.1"
    place.mkdir(parents=True)
    (place / "recording.csv").write_bytes((site.folder / "recording.csv").read_bytes())
    done = snakemake(checkout, "-n", "flop_reconciliation", *command[1:], f"mirror={tmp_path / 'mirror'}")
    assert "download web" in done.stdout + done.stderr


def test_a_package_joins_when_the_index_has_it_and_only_its_absence_is_forgiven(checkout, site, tmp_path):
    index = tmp_path / "index"
    index.mkdir()
    name = "tables-1.0-py3-none-any.whl"
    write_wheel(index / name, {"tables/one/recording.csv": (site.folder / "recording.csv").read_bytes()})
    folder = declare(checkout, "packed", site, {}, {"linear": {"launches": "tables/one/recording.csv"}})
    content = yaml.safe_load((folder / "dataset.yaml").read_text())
    package = {"package": "tables", "version": "1.0", "file": name, "members": ["tables/*/recording.csv"]}
    content["download"] = [package | pins(index / name)]
    content["files"] = {"tables/one/*": {"device": "NVIDIA L4", "source": "the tables"}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content))
    command = ["results/tables/flop_reconciliation.csv", "--config", "datasets=[packed]", "datasets_online=[]"]

    done = snakemake(checkout, "-n", *command)
    assert "download packed" in done.stdout + done.stderr
    done = snakemake(checkout, *command)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert said.count("packed is left out: no answer from the package index (asked for tables); its tracked") == 1
    assert not (checkout / "results/packed/files.json").exists()
    # A job on another node of a cluster plans by itself, and does without the same datasets.
    job = ["--mode", "remote", "--target-jobs", "collect_summaries:study=flop_reconciliation", "--force", "--nolock"]
    done = snakemake(checkout, *job, *command[1:])
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    # As `make check` and CI do it.
    done = snakemake(checkout, "downloads", *command[1:])
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "could not be fetched" in line]
    assert done.returncode == 1 and lines
    assert lines[0].strip().startswith("traces/packed/dataset.yaml, download[0]: tables 1.0: could not be fetched:")

    done = snakemake(checkout, *command, PIP_FIND_LINKS=str(index))
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert sorted(path.name for path in folder.iterdir()) == ["dataset.yaml", "tables", f"{name}.json"]
    record = json.loads((checkout / "results/packed/files.json").read_text())
    assert [(entry["file"], entry["origin"]) for entry in record] == [
        ("tables/one/recording.csv", f"tables 1.0, {name} (member)")
    ]
    about = json.loads((checkout / "results/packed/flop_reconciliation/linear/provenance.json").read_text())
    assert about["label"] == "downloaded, recorded on NVIDIA L4" and about["inputs"][0]["source"] == "the tables"
    # Without the index, and with the results gone, what is unpacked is used again.
    (checkout / "results/packed/files.json").unlink()
    done = snakemake(checkout, *command)
    assert done.returncode == 0 and "left out" not in done.stdout + done.stderr


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.csv").write_text(name)
    content = {"title": "t", "kind": "downloaded", "source": "s", "license": "CC0-1.0", "studies": {}}
    content["download"] = [{"url": "https://x/y/%61.csv?z"}, {"url": "https://x/y", "to": "b.csv"}]
    (folder / "dataset.yaml").write_text(yaml.safe_dump(content))
    return Dataset.load(folder / "dataset.yaml")


def test_a_record_holds_until_a_file_changes(dataset, tmp_path):
    record, folder = tmp_path / "files.json", dataset.folder
    origins = {folder / "b.csv": "https://b", folder / "a.csv": "https://a"}
    download_record.write(record, dataset, origins)
    entries = json.loads(record.read_text())
    assert [(entry["file"], entry["bytes"], entry["origin"]) for entry in entries] == [
        ("a.csv", 1, "https://a"),
        ("b.csv", 1, "https://b"),
    ]
    assert download_record.holds(record, dataset)
    (folder / "b.csv").write_text("longer")
    assert not download_record.holds(record, dataset)
    download_record.write(record, dataset, origins)
    assert download_record.holds(record, dataset)
    later = record.stat().st_mtime_ns + 10**9
    os.utime(folder / "a.csv", ns=(later, later))
    assert not download_record.holds(record, dataset)
    (folder / "a.csv").unlink()
    assert not download_record.holds(record, dataset)
    record.write_text("[{}]")
    assert not download_record.holds(record, dataset)


def test_which_files_are_fetched_with_and_without_a_record(dataset, tmp_path):
    record, paths = tmp_path / "files.json", [dataset.folder / f"{name}.csv" for name in "abc"]
    assert download_record.others(record, dataset, paths) == paths[2:]
    download_record.write(record, dataset, {paths[2]: "https://archive (member)"})
    assert download_record.others(record, dataset, paths) == paths[:2]
    record.write_text('[{"file": "c.csv", ')
    assert download_record.others(record, dataset, paths) == paths[2:]
    dataset.content["download"][0]["unpack"] = "zip"
    assert download_record.others(record, dataset, paths) == paths[2:]
    with zipfile.ZipFile(paths[0], "w") as archive:
        archive.write(paths[2], "c.csv")
    assert download_record.others(record, dataset, paths) == []
    dataset.content["download"][0] = {"package": "p", "members": ["[ab]?csv", "*/c.csv"]}
    assert download_record.others(record, dataset, paths) == paths[2:]
