"""Files of a package: from a package index of the test's own, from the mirror, put there by hand; and every fault."""

import hashlib
import http.server
import json
import logging
import os
import subprocess
import sys
import threading

import pytest
from conftest import PATIENCE_S, ROOT, fork_server, job_server
from hypothesis import given
from hypothesis import strategies as st
from package_server import serving, write_wheel

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.ledger.download import package, reach
from gpuledger.ledger.download.dataset import fetch_dataset
from gpuledger.ledger.download.entries import Wheel, at_hand, expected
from gpuledger.ledger.download.names import matches
from gpuledger.ledger.download.reach import out_of_reach

FILE = "some_tables-1.2.0-cp311-abi3-manylinux_2_28_x86_64.whl"
MEMBERS = {
    "tables/data/a100/gemm/1.0/gemm_perf.parquet": b"a" * 5000,
    "tables/data/h100/gemm/1.0/gemm_perf.parquet": b"h" * 6000,
    "tables/data/h100/moe/1.0/moe_perf.parquet": b"m",
    "tables/__init__.py": b"raise SystemExit('imported')\n",
}
GEMM = "tables/data/*/gemm/*/gemm_perf.parquet"


def wheel(folder, file=FILE, members=MEMBERS):
    folder.mkdir(parents=True, exist_ok=True)
    return write_wheel(folder / file, members, "Requires-Python: >=3.99\nRequires-Dist: nothing-there\n")


def entry_of(path, members=(GEMM,), **changed):
    body = path.read_bytes()
    pins = {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
    entry = {"package": "Some.Tables", "version": "1.2.0", "file": path.name, **pins, "members": list(members)}
    return entry | changed


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of packages that is all that pip knows."""
    for key in [key for key in os.environ if key.upper().startswith("PIP_") or key.lower().endswith("_proxy")]:
        monkeypatch.delenv(key)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def forked(monkeypatch):
    """pip is a fork of a process that has imported it; the other tests run it as users do."""
    own, script = package._pip, str(ROOT / "tests/support/forked_pip.py")
    monkeypatch.setattr(package, "_pip", lambda command: [sys.executable, script, *own(command)[3:]])
    monkeypatch.setenv(fork_server.VARIABLE, job_server())


@pytest.fixture
def web_index(index, monkeypatch):
    """The same behind a web server, with what it was asked for and the faults that it still has to show."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.server.asked.append(self.path)
            name = self.path.rpartition("/")[2]
            files = "".join(f'<a href="/files/{path.name}">{path.name}</a>' for path in index.glob("*.whl"))
            body = (index / name).read_bytes() if name else f"<html><body>{files}</body></html>".encode()
            known = name or self.path == "/simple/some-tables/"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/octet-stream" if name else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: self.server.drop] if name else body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.drop = [], None
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    with serving(server):
        yield server


@pytest.fixture
def no_pip(monkeypatch):
    """Whoever asks the index fails the test."""

    def asked(*_, **__):
        raise AssertionError("the index was asked")

    return lambda: monkeypatch.setattr(subprocess, "Popen", asked)


def fetch(source, entry, **how):
    return fetch_dataset([entry], source.parent, source_file=source, **how)[0]


def left(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "://" not in message
    for word in words:
        assert word in message, message
    return message


def wanted(pattern=GEMM):
    return [name for name in MEMBERS if matches(name, pattern)]


def test_the_wanted_members_are_unpacked_and_the_rest_is_gone(index, source, no_pip, caplog):
    caplog.set_level(logging.INFO, "gpuledger")
    entry = entry_of(wheel(index))
    got = fetch(source, entry)
    folder = source.parent
    assert got.origin == "package index" and list(got.members) == [folder / name for name in wanted()]
    assert all((folder / name).read_bytes() == MEMBERS[name] for name in wanted())
    assert left(folder) == sorted([*wanted(), "dataset.yaml", f"{FILE}.json"])
    assert got.origins == {path: f"Some.Tables 1.2.0, {FILE} (member)" for path in got.members}
    assert "unpacked 2 files (11000 bytes)" in caplog.text
    no_pip()
    again = fetch(source, entry)
    assert again.origin == "present" and again.members == got.members


def test_a_web_index_is_asked_for_one_file(web_index, index, source):
    entry = entry_of(wheel(index))
    wheel(index, "some_tables-1.2.0-cp311-abi3-macosx_11_0_arm64.whl")
    wheel(index, "some_tables-1.3.0-cp311-abi3-manylinux_2_28_x86_64.whl")
    assert fetch(source, entry).origin == "package index"
    assert [path for path in web_index.asked if "/files/" in path] == [f"/files/{FILE}"]


@pytest.mark.parametrize(
    "tags",
    [
        "py3-none-any",
        "py2.py3-none-any",
        "cp39-cp39-win_amd64",
        "cp313-cp313-macosx_11_0_arm64",
        "cp311-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64",
        "7-cp312-cp312-musllinux_1_2_aarch64",
    ],
)
def test_the_same_file_comes_on_every_system_and_python(forked, index, source, tags):
    path = wheel(index, f"some_tables-1.2.0-{tags}.whl")
    assert fetch(source, entry_of(path)).origin == "package index"


def test_what_is_gone_or_damaged_or_newly_wanted_is_fetched_again(tmp_path, source):
    mirror = tmp_path / "mirror"
    entry = entry_of(wheel(mirror / "packages"))
    first, second = fetch(source, entry, mirror=mirror).members
    assert fetch(source, entry).origin == "present"
    first.unlink()
    assert fetch(source, entry, mirror=mirror).origin == "mirror" and first.is_file()
    second.write_bytes(b"x" * 6000)
    assert fetch(source, entry, mirror=mirror).origin == "mirror" and second.read_bytes() == b"h" * 6000
    more = {**entry, "members": [GEMM, "tables/data/h100/moe/1.0/moe_perf.parquet"]}
    assert len(fetch(source, more, mirror=mirror).members) == 3
    for damage in (b"", b"[]", b'{"files": 1}', b"\xff", json.dumps({"sha256": entry["sha256"]}).encode()):
        (source.parent / f"{FILE}.json").write_bytes(damage)
        assert fetch(source, more, mirror=mirror).origin == "mirror"


def test_a_listing_cannot_name_files_outside_of_the_folder(forked, index, source, tmp_path):
    entry = entry_of(wheel(index))
    (tmp_path / "secret").write_text("x")
    digest = hashlib.sha256(b"x").hexdigest()
    listing = {"sha256": entry["sha256"], "members": entry["members"], "files": {"../secret": [1, digest]}}
    (source.parent / f"{FILE}.json").write_text(json.dumps(listing))
    assert fetch(source, entry).origin == "package index"


def test_a_file_put_there_by_hand_serves_and_stays(index, source, no_pip):
    entry = entry_of(wheel(source.parent))
    no_pip()
    assert fetch(source, entry).origin == "folder"
    assert FILE in left(source.parent)


def test_a_wrong_file_put_there_by_hand_gives_way_to_the_right_one(forked, index, source, caplog):
    entry = entry_of(wheel(index))
    (source.parent / FILE).write_bytes(b"an error page")
    assert fetch(source, entry).origin == "package index"
    assert "has 13 bytes, pinned are" in caplog.text


def test_the_mirror_comes_before_the_index_and_must_be_right(index, source, tmp_path, no_pip):
    path = wheel(tmp_path / "mirror" / "packages")
    entry = entry_of(path)
    no_pip()
    assert fetch(source, entry, mirror=tmp_path / "mirror").origin == "mirror"
    assert left(source.parent) == sorted([*wanted(), "dataset.yaml", f"{FILE}.json"])
    wrong = {**entry, "sha256": "0" * 64}
    refused(lambda: fetch(source, wrong, mirror=tmp_path / "mirror"), str(path), "pinned is 000", "from the mirror")


FAULTS = {
    "no such version": ({"version": "9.9", "file": FILE.replace("1.2.0", "9.9")}, ["no such file", "1.2.0"]),
    "no such package": (
        {"package": "other", "file": FILE.replace("some_tables", "other")},
        ["no package index that"],
    ),
    "another file": ({"file": FILE.replace("x86_64", "aarch64")}, ["package index"]),
    "wrong hash": ({"sha256": "0" * 64}, ["has a file with sha256", "pinned is 000"]),
    "wrong size": ({"bytes": 7}, ["bytes, pinned are 7"]),
    "missing member": ({"members": ["tables/data/*/gem/*/gemm_perf.parquet"]}, ["no such member", "did you mean"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_one_line_and_leave_nothing(forked, index, source, fault):
    changed, words = FAULTS[fault]
    entry = entry_of(wheel(index), **changed)
    refused(lambda: fetch(source, entry), f"{source}, download[0]", *words)
    assert left(source.parent) == ["dataset.yaml"] and not list(source.parent.glob("*/"))


@pytest.mark.parametrize(
    ("retries", "why"),
    [("1", "the package index cannot be reached"), ("0", "no package index that answers knows the package")],
)
def test_an_index_that_cannot_be_reached_is_one_line(index, source, monkeypatch, tmp_path, retries, why):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RETRIES", retries)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    entry = entry_of(wheel(tmp_path / "else"))
    words = [f"no mirror is set; {why}", "`mirror:` (traces/README.md)", "by hand at"]
    refused(lambda: fetch(source, entry), *words)
    refused(lambda: fetch(source, entry, mirror=tmp_path), f"the mirror '{tmp_path}' does not have it")
    assert left(source.parent) == ["dataset.yaml"]


def test_a_transfer_that_breaks_off_leaves_nothing(web_index, index, source):
    body = {f"{number}.bin": os.urandom(100_000) for number in range(9)}
    entry = entry_of(wheel(index, members=MEMBERS | body))
    web_index.drop = 400_000
    refused(lambda: fetch(source, entry))
    assert left(source.parent) == ["dataset.yaml"]
    web_index.drop = None
    assert fetch(source, entry).origin == "package index"


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../up", "c:x", "tables/DATA/h100/moe/1.0/x"])
def test_a_hostile_package_is_refused_even_in_members_that_nobody_wants(tmp_path, source, name):
    entry = entry_of(wheel(tmp_path / "packages", members=MEMBERS | {name: b"x"}))
    refused(lambda: fetch(source, entry, mirror=tmp_path), "member ")
    assert left(source.parent) == ["dataset.yaml"]


def test_a_package_may_not_replace_what_is_not_its_own(tmp_path, source):
    entry = entry_of(wheel(tmp_path / "packages", members={"dataset.yaml": b""}), members=["dataset.yaml"])
    refused(lambda: fetch(source, entry, mirror=tmp_path), "not its own")
    assert source.read_text() == "kind: downloaded\n"


ENTRY = {
    **{"package": "p", "version": "1", "file": "p-1-py3-none-any.whl"},
    **{"sha256": "0" * 64, "bytes": 1, "members": ["a"]},
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sha256": None}, "needs `sha256`"),
        ({"bytes": None}, "needs `bytes`"),
        ({"version": "1\n"}, "not one of p 1"),
        ({"file": "p-1.tar.gz"}, "not the name of a wheel"),
        ({"file": "../p-1-py3-none-any.whl"}, "not the name of a wheel"),
        ({"file": "p-2-py3-none-any.whl"}, "not one of p 1"),
        ({"file": "q-1-py3-none-any.whl"}, "not one of p 1"),
        ({"members": ["../a"]}, "members is not"),
    ],
)
def test_a_wrong_entry_is_named_before_anything_is_asked(source, no_pip, changed, words):
    no_pip()
    refused(lambda: fetch(source, ENTRY | changed), f"{source}, download[0]: ", words)
    assert left(source.parent) == ["dataset.yaml"]


@pytest.mark.parametrize(
    "entry",
    [
        *({**ENTRY, "sha256": value} for value in ("0" * 63 + "\n", "abc", 7)),
        *({**ENTRY, "bytes": value} for value in (True, -1)),
        *({**ENTRY, "package": value} for value in ("--pre", "p @ file:x")),
        *({**ENTRY, "version": value} for value in ("1 --pre", "1\n-r x", 1.0)),
        {**ENTRY, "members": []},
        {"sha256": None},
        "http://h/x",
        {"url": "http://h/x", "sha": "0"},
        {"url": "http://h/x", "unpack": "tar"},
        {"url": "http://h/x", "to": 7},
        {"url": "file:///etc/hosts"},
        {key: value for key, value in ENTRY.items() if key != "sha256"},
    ],
)
def test_the_schema_refuses_other_entries(entry):
    schema = schemas.packaged("gpuledger.ledger", "dataset")
    with pytest.raises(InputError, match=r"dataset\.yaml, key download\.0"):
        schemas.check({"download": [entry]}, {"properties": schema["properties"]}, "dataset.yaml")


def test_two_entries_cannot_share_their_file(source):
    with pytest.raises(InputError, match="is taken by another entry"):
        fetch_dataset([ENTRY, ENTRY], source.parent, source_file=source)


def test_without_pip_it_is_said(index, source, monkeypatch, tmp_path):
    monkeypatch.setattr(
        package, "_pip", lambda command: [sys.executable, "-c", "raise SystemExit('No module named pip')"]
    )
    entry = entry_of(wheel(tmp_path / "else"))
    refused(lambda: fetch(source, entry), "No module named pip")


def test_an_interrupt_ends_pip_and_leaves_nothing(index, source, monkeypatch):
    started = []

    def interrupted(process, *_):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(source, entry_of(wheel(index)))
    assert started[0].poll() is not None and left(source.parent) == ["dataset.yaml"]


def test_what_a_killed_process_left_is_removed(forked, index, source):
    stale = source.parent / f"{FILE}.pip" / "wheel"
    stale.mkdir(parents=True)
    (stale / FILE).write_bytes(b"half")
    assert fetch(source, entry_of(wheel(index))).origin == "package index"
    assert left(source.parent) == sorted([*wanted(), "dataset.yaml", f"{FILE}.json"])


def test_many_at_once_fetch_once(forked, index, source):
    entry, origins = entry_of(wheel(index)), []
    threads = [threading.Thread(target=lambda: origins.append(fetch(source, entry).origin)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(origins) == ["package index", "present", "present", "present"]


def test_progress_shows_on_a_terminal_only(forked, index, source, monkeypatch, capsys):
    entry = entry_of(wheel(index))
    fetch(source, entry)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fetch(source, {**entry, "members": ["tables/__init__.py"]})
    assert FILE[:20] in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- what could be fetched


def test_what_is_at_hand_is_seen_by_names_and_sizes(forked, index, source, tmp_path):
    folder, mirror, path = source.parent, tmp_path / "mirror", wheel(index)
    entry = entry_of(path)
    assert not at_hand([entry], folder) and not at_hand([entry], folder, mirror)
    (mirror / "packages").mkdir(parents=True)
    (mirror / "packages" / FILE).write_bytes(path.read_bytes())
    assert at_hand([entry], folder, mirror) and not at_hand([entry], folder)
    fetch(source, entry)
    assert at_hand([entry], folder)
    (folder / wanted()[0]).write_bytes(b"")
    assert not at_hand([entry], folder)
    web = {"url": "https://data.example/a/t.bin", "sha256": "0" * 64, "bytes": 3}
    assert not at_hand([web], folder, mirror)
    (mirror / "data.example/a").mkdir(parents=True)
    (mirror / "data.example/a/t.bin").write_bytes(b"123")
    assert at_hand([web], folder, mirror) and not at_hand([{**web, "bytes": 4}], folder, mirror)
    (folder / "t.bin").write_bytes(b"1234")
    assert at_hand([{**web, "bytes": 4}, {**web, "bytes": None}], folder)
    assert not at_hand([web, entry], folder)
    assert at_hand([{"url": "http://x/", "sha": 1}], folder), "fetching it says what is wrong"


def test_who_does_not_answer_is_named(web_index, index, monkeypatch):
    entry = entry_of(wheel(index))
    here = f"http://127.0.0.1:{web_index.server_port}/simple/some-tables/"
    with_silence = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    silent = f"127.0.0.1:{with_silence.server_port}"  # takes connections, and nobody is there to answer
    found = out_of_reach({"silent": [{"url": f"http://{silent}/x"}, {"url": "http://127.0.0.1:9/x"}]})
    assert found == {"silent": f"no answer from {', '.join(sorted(['127.0.0.1:9', silent]))}"}
    with_silence.server_close()
    # A busy machine may take longer than a second to answer.
    monkeypatch.setattr(reach, "HOST_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(reach, "INDEX_TIMEOUT_S", PATIENCE_S)
    refuses = [{"url": here}, {"url": "http://127.0.0.1:9/x"}]
    found = out_of_reach({"here": [{"url": here}, {"url": here}], "refuses": refuses})
    assert found == {"refuses": "no answer from 127.0.0.1:9"}
    assert out_of_reach({"tables": [entry]}) == {}
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    assert out_of_reach({"tables": [entry]}) == {"tables": "no answer from the package index (asked for Some.Tables)"}


def test_what_an_entry_brings_is_known_beforehand(tmp_path):
    assert list(expected(ENTRY | {"members": ["a/*", "b"]}, tmp_path)) == ["a/*", "b"]
    (tmp_path / "t.zip").write_bytes(b"damaged")
    assert list(expected({"url": "http://h/t.zip?x", "unpack": "zip"}, tmp_path)) == ["t.zip"]
    assert list(expected({"url": "http://h/"}, tmp_path)) == []


PARTS = st.lists(st.text("ab.*?[", min_size=1, max_size=4), min_size=1, max_size=4)


@given(PARTS, PARTS)
def test_a_star_stays_within_one_name(parts, others):
    name, pattern = "/".join(parts).replace("[", "x"), "/".join(others).replace("[", "x")
    if matches(name, pattern):
        assert len(parts) == len(others)
        assert all(matches(part, one) for part, one in zip(name.split("/"), pattern.split("/"), strict=True))
    assert matches(name, name.replace("a", "?")) and matches(name, "/".join("*" for _ in parts))
    assert not matches(name, f"{pattern}/*") or len(parts) == len(others) + 1


def test_a_wheel_says_for_whom_it_is_made():
    options = Wheel.of(ENTRY | {"package": "some-tables", "version": "1.2.0", "file": FILE}).options
    assert " ".join(options) == (
        "--implementation cp --python-version 3.11 --abi abi3 --platform manylinux_2_28_x86_64"
    )
