"""Downloads: every fault a server, a mirror, a disk or a zip file can have, and what is left on the disk after it."""

import hashlib
import http.server
import logging
import os
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import types
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests
from conftest import PATIENCE_S
from hypothesis import given, settings
from hypothesis import strategies as st
from package_server import serving

from gpuledger.errors import InputError
from gpuledger.ledger.download import session, transfer, unpack
from gpuledger.ledger.download.dataset import fetch_dataset
from gpuledger.ledger.download.reach import out_of_reach
from gpuledger.ledger.download.transfer import Fetched, fetch
from gpuledger.ledger.download.unpack import unpack_zip

BODY = random.Random(7).randbytes(700_000)  # more than two chunks


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@dataclass
class Resource:
    """What the server has at one address; each request takes the next fault of the list, if any is left."""

    body: bytes
    headers: dict = field(default_factory=dict)
    ranges: bool = True
    if_range: bool = True
    faults: list = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def head(self, status, headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, str(value))
        self.end_headers()

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers)))
        thing = self.server.things.get(self.path.partition("?")[0])
        if thing is None:
            return self.head(404, {"Content-Length": 0})
        fault = thing.faults.pop(0) if thing.faults else {}
        if "slow_head" in fault:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            with suppress(OSError):
                while not fault["slow_head"].wait(0.02):
                    self.wfile.write(b"x")
            self.close_connection = True
            return None
        if "before" in fault:
            fault["before"].wait(PATIENCE_S)
        if "status" in fault:
            self.head(fault["status"], {"Content-Length": 0} | fault.get("headers", {}))
            with suppress(OSError):
                while "trickle" in fault and not fault["trickle"].wait(0.02):
                    self.wfile.write(b"x")
            return None
        headers, body, status = dict(thing.headers), thing.body, 200
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        current = self.headers.get("If-Range") in (None, headers.get("ETag"), headers.get("Last-Modified"))
        if asked and thing.ranges and (current or not thing.if_range):
            begin = int(asked[1])
            if begin >= len(body):
                return self.head(416, {"Content-Length": 0, "Content-Range": f"bytes */{len(body)}"})
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
            body = body[begin:]
        body = fault.get("body", body)
        headers |= {"Content-Length": len(body)} | fault.get("headers", {})
        if fault.get("endless") or fault.get("unsized"):
            del headers["Content-Length"]
            headers["Connection"] = "close"
        self.head(status, headers)
        try:
            for _ in range(60 if fault.get("endless") else 0):  # 42 MB: endless, but no danger to the disk
                self.wfile.write(body)
            self.wfile.write(body[: fault.get("drop", len(body))])
            self.wfile.flush()
            while "trickle" in fault and not fault["trickle"].wait(0.02):
                self.wfile.write(b"x")
            if "hang" in fault:
                fault["hang"].wait(PATIENCE_S)
        except OSError:
            pass
        if {"drop", "endless", "unsized", "hang", "trickle"} & fault.keys():
            self.close_connection = True


class Site(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.things, self.seen = {}, []

    def handle_error(self, *_):
        """Say nothing: a client that gives up resets its connection."""

    def put(self, path, body, **how):
        self.things[path] = Resource(body, **how)
        return f"http://127.0.0.1:{self.server_port}{path}"

    def ranges(self):
        return [headers.get("Range") for _, headers in self.seen]


@pytest.fixture
def site(monkeypatch):
    for key in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(key, raising=False)
    with serving(Site()) as server:
        yield server


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Nobody waits; how long anybody would have is kept."""
    kept = []
    monkeypatch.setattr(time, "sleep", kept.append)
    return kept


@pytest.fixture
def target(tmp_path):
    return tmp_path / "data" / "trace.bin"


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def refused(call, *words) -> InputError:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert word in message, message
    return caught.value


# ------------------------------------------------------------------------------------------------ the network


@pytest.mark.parametrize("pinned", [True, False])
def test_a_whole_file_arrives_with_its_checksum_and_nothing_else_is_left(site, target, pinned, caplog):
    caplog.set_level(logging.INFO, "gpuledger")
    url = site.put("/a/trace.bin", BODY)
    pins = {"sha256": sha(BODY).upper(), "size_bytes": len(BODY)} if pinned else {}
    got = fetch(url, target, **pins)
    assert got == Fetched(target, url, sha(BODY), len(BODY), "network")
    assert target.read_bytes() == BODY and left(target.parent) == ["trace.bin"]
    assert site.seen[0][1]["Accept-Encoding"] == "identity"  # sizes and checksums are of the file itself
    assert stat.S_IMODE(target.stat().st_mode) & 0o444 == 0o444 & ~_umask()
    assert len(caplog.records) == 1 and sha(BODY) in caplog.text


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_progress_bar_is_silent_unless_on_a_terminal(site, target, capsys, monkeypatch):
    url = site.put("/t", BODY)
    fetch(url, target)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fetch(url, target.with_name("shown"))
    assert "shown" in capsys.readouterr().err


def test_a_verified_file_is_not_fetched_again_and_a_wrong_one_is_replaced_by_a_right_one_only(site, target):
    url = site.put("/t", BODY)
    fetch(url, target, sha256=sha(BODY))
    assert fetch(url, target, sha256=sha(BODY)).origin == "present"
    assert fetch(url, target).origin == "present"
    assert len(site.seen) == 1
    refused(lambda: fetch(url, target, sha256=sha(b"other")), "pinned is " + sha(b"other"))
    assert target.read_bytes() == BODY
    target.write_bytes(b"wrong")
    assert fetch(url, target, sha256=sha(BODY)).origin == "network"
    assert target.read_bytes() == BODY


@pytest.mark.parametrize(
    "headers", [{"ETag": '"v1"'}, {"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}, {"ETag": 'W/"v1"'}, {}]
)
@pytest.mark.parametrize("pinned", [True, False])
def test_a_broken_connection_is_resumed_where_that_is_safe(site, target, headers, pinned, pauses):
    url = site.put("/t", BODY, headers=headers, faults=[{"drop": 300_000}, {"drop": 100_000}])
    got = fetch(url, target, sha256=sha(BODY) if pinned else None)
    assert got.sha256 == sha(BODY) and left(target.parent) == ["trace.bin"]
    safe = pinned or any(not value.startswith("W/") for value in headers.values())
    second, third = ("bytes=300000-", "bytes=400000-") if safe else (None, None)
    assert site.ranges() == [None, second, third]
    assert len(pauses) == 2 and pauses[1] > 0


def test_a_later_process_resumes_what_an_earlier_one_left(site, target):
    url = site.put("/t", BODY, headers={"ETag": '"v1"'}, faults=[{"drop": 300_000}])
    refused(lambda: fetch(url, target, retries=0), "IncompleteRead", "1 attempts")
    assert left(target.parent) == ["trace.bin.part", "trace.bin.part.json"]
    assert fetch(url, target).sha256 == sha(BODY)
    assert site.seen[1][1]["Range"] == "bytes=300000-" and site.seen[1][1]["If-Range"] == '"v1"'
    assert left(target.parent) == ["trace.bin"]


@pytest.mark.parametrize("note", [None, b"", b"[]", b'{"url": 1}', b"\xff\x00", b'{"url": "http://else/"}'])
def test_a_part_of_unknown_origin_is_not_trusted_without_a_checksum(site, target, note):
    url = site.put("/t", BODY)
    target.parent.mkdir()
    target.with_name("trace.bin.part").write_bytes(b"x" * 1000)
    if note is not None:
        target.with_name("trace.bin.part.json").write_bytes(note)
    assert fetch(url, target).sha256 == sha(BODY)
    assert site.ranges() == [None] and left(target.parent) == ["trace.bin"]


def test_a_part_that_the_checksum_exposes_is_fetched_from_the_beginning(site, target):
    url = site.put("/t", BODY)
    target.parent.mkdir()
    target.with_name("trace.bin.part").write_bytes(b"x" * 1000)
    assert fetch(url, target, sha256=sha(BODY), retries=0).sha256 == sha(BODY)
    assert site.ranges() == ["bytes=1000-", None]


@pytest.mark.parametrize("size", [None, len(BODY)])
def test_a_complete_part_is_taken_without_the_network(target, size):
    target.parent.mkdir()
    target.with_name("trace.bin.part").write_bytes(BODY)
    got = fetch("http://127.0.0.1:9/t", target, sha256=sha(BODY), size_bytes=size, retries=0)
    assert got.sha256 == sha(BODY) and left(target.parent) == ["trace.bin"]


@pytest.mark.parametrize("surplus", [0, 5])
def test_a_part_as_long_as_the_file_or_longer_begins_again(site, target, surplus):
    url = site.put("/t", BODY)
    target.parent.mkdir()
    target.with_name("trace.bin.part").write_bytes(b"x" * (len(BODY) + surplus))
    assert fetch(url, target, sha256=sha(BODY), retries=0).sha256 == sha(BODY)  # by way of a 416
    target.unlink()
    target.with_name("trace.bin.part").write_bytes(b"x" * (len(BODY) + surplus))
    site.seen.clear()
    fetch(url, target, sha256=sha(BODY), size_bytes=len(BODY), retries=0)
    assert site.ranges() == [None]


@pytest.mark.parametrize("if_range", [True, False])  # False: the server sends a range of the new file
def test_a_file_that_has_changed_begins_again(site, target, if_range):
    url = site.put("/t", b"o" * 500_000, headers={"ETag": '"old"'}, faults=[{"drop": 300_000}])
    refused(lambda: fetch(url, target, retries=0))
    site.put("/t", BODY, headers={"ETag": '"new"'}, if_range=if_range)
    assert fetch(url, target, retries=0).sha256 == sha(BODY)
    assert target.read_bytes() == BODY


def test_a_server_without_ranges_sends_all_again(site, target):
    url = site.put("/t", BODY, headers={"ETag": '"v1"'}, ranges=False, faults=[{"drop": 300_000}])
    assert fetch(url, target).sha256 == sha(BODY)


@pytest.mark.parametrize("sent", ["bytes 7-9/10", "bytes */700000", "items 1-2/3", "", "bytes 0-399999/700000"])
def test_another_range_than_the_one_asked_for_is_not_appended(site, target, sent):
    faults = [{"drop": 300_000}, {"headers": {"Content-Range": sent}, "body": BODY[:400_000]}]
    url = site.put("/t", BODY, headers={"ETag": '"v1"'}, faults=faults)
    assert fetch(url, target).sha256 == sha(BODY)


def test_a_range_longer_than_it_says_is_refused(site, target):
    url = site.put("/t", BODY, headers={"ETag": '"v1"'}, faults=[{"drop": 300_000}, {"body": BODY}])
    refused(lambda: fetch(url, target), "more than 700000 bytes")
    assert left(target.parent) == []


def test_busy_servers_are_tried_again_and_others_are_not(site, target, pauses):
    busy = [{"status": 500}, {"status": 429, "headers": {"Retry-After": "3"}}, {"status": 503}]
    busy[2]["headers"] = {"Retry-After": "99999999"}
    url = site.put("/t", BODY, faults=list(busy))
    assert fetch(url, target).sha256 == sha(BODY)
    assert pauses == [0, 3, transfer.MAX_PAUSE_S]
    url = site.put("/busy", BODY, faults=[{"status": 500}] * 9)
    refused(lambda: fetch(url, target.with_name("b"), retries=2), "answered 500 (3 attempts)")
    site.seen.clear()
    gone = url.replace("busy", "gone")
    refused(lambda: fetch(gone, target.with_name("g")), "answered 404", gone, "by hand", "mirror")
    assert len(site.seen) == 1 and left(target.parent) == ["trace.bin"]
    for status in (204, 206, 401, 416):
        url = site.put("/odd", BODY, faults=[{"status": status}])
        refused(lambda url=url: fetch(url, target.with_name("o")), f"answered {status}")


def test_a_body_of_another_length_than_said_or_pinned_is_refused(site, target):
    long = {"headers": {"Content-Length": len(BODY) + 10}, "drop": len(BODY)}
    url = site.put("/t", BODY, faults=[long] * 3)
    refused(lambda: fetch(url, target, retries=2), "(3 attempts)")
    url = site.put("/u", BODY)
    refused(lambda: fetch(url, target, size_bytes=9), "offers 700000 bytes, pinned are 9")
    url = site.put("/v", BODY, faults=[{"unsized": True}] * 2)
    pins = {"sha256": sha(BODY), "size_bytes": len(BODY) + 1}
    refused(lambda: fetch(url, target, retries=0, **pins), "ended after 700000 of 700001 bytes")
    url = site.put("/w", BODY, faults=[{"endless": True}])
    refused(lambda: fetch(url, target.with_name("w"), size_bytes=10**6), "more than 1000000 bytes")
    assert not target.exists() and "w" not in "".join(left(target.parent))


def test_an_endless_body_stops_without_a_pin_too(site, target, monkeypatch):
    for bound in ("MAX_FILE_BYTES", "MAX_STREAM_BYTES"):
        monkeypatch.setattr(f"{transfer.__name__}.{bound}", 10**6)
    url = site.put("/w", BODY, faults=[{"endless": True}])
    refused(lambda: fetch(url, target), "more than 1000000 bytes")
    url = site.put("/x", BODY * 2)
    refused(lambda: fetch(url, target), "offers 1400000 bytes", "size pinned")
    assert left(target.parent) == []


def test_a_length_nobody_knows_is_said(site, target, caplog):
    url = site.put("/t", BODY, faults=[{"unsized": True}])
    assert fetch(url, target).sha256 == sha(BODY)
    assert "may be incomplete" in caplog.text


def test_a_wrong_checksum_leaves_nothing(site, target):
    url = site.put("/t", BODY)
    refused(lambda: fetch(url, target, sha256="0" * 64), sha(BODY), "pinned is " + "0" * 64, url)
    assert left(target.parent) == [] and len(site.seen) == 1


def test_a_silent_server_is_given_up(site, target):
    hang = threading.Event()
    url = site.put("/t", BODY, faults=[{"drop": 1000, "hang": hang}] * 2)
    refused(lambda: fetch(url, target, timeout_s=0.2, retries=1), "2 attempts")
    hang.set()


def test_without_network_and_mirror_the_message_says_what_to_do(tmp_path, target):
    url = "http://127.0.0.1:9/path/trace.bin"
    words = [url, "no mirror is set", "refused", "2 attempts", "by hand", str(target)]
    refused(lambda: fetch(url, target, retries=1), *words)
    words = ["is not a folder", "`mirror:`"]
    refused(lambda: fetch(url, target, retries=0, mirror=tmp_path / "none"), *words)
    refused(lambda: fetch(url, target, retries=0, mirror=tmp_path), "does not have it")
    assert left(target.parent) == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hosts",
        "ftp://host/x",
        "trace.bin",
        "",
        "http://",
        "http:///x",
        "http://../x",
        "http://a b/x",
        "http://host/x\nSet-Cookie: a",
        "http://[::1/x",
        "http://host:99999/x",
        "http://user:secret@host/x",
        "http://bücher.example/x",
        None,
        7,
    ],
)
def test_other_addresses_are_refused(target, url):
    error = refused(lambda: fetch(url, target), "give a plain http or https address")
    assert "secret" not in str(error) and not target.parent.exists()


def test_a_redirect_may_not_lead_out_of_http(site, target):
    for place, word in (("file:///etc/hosts", "InvalidSchema"), ("/t", "TooManyRedirects")):
        url = site.put("/t", BODY, faults=[{"status": 302, "headers": {"Location": place}}] * 20)
        refused(lambda url=url: fetch(url, target), word)
    site.put("/new", BODY)
    url = site.put("/t", b"", faults=[{"status": 302, "headers": {"Location": "/new"}}])
    assert fetch(url, target).sha256 == sha(BODY)


def test_https_is_not_left_for_http_without_a_checksum(site, target, monkeypatch):
    get = requests.Session.get

    def redirected(session, url, **how):
        response = get(session, url.replace("https:", "http:"), **how)
        response.history = [types.SimpleNamespace(url=url)]
        return response

    monkeypatch.setattr(requests.Session, "get", redirected)
    url = site.put("/t", BODY).replace("http:", "https:")
    refused(lambda: fetch(url, target), "redirects to http;")
    assert fetch(url, target, sha256=sha(BODY)).origin == "network"


def test_a_full_disk_and_a_folder_in_the_way_are_input_errors(site, target, monkeypatch):
    url = site.put("/t", BODY)
    usage = shutil.disk_usage(target.parent.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    refused(lambda: fetch(url, target), "more bytes are needed", "free disk space")
    monkeypatch.undo()
    target.mkdir(parents=True)
    refused(lambda: fetch(url, target), "something other than a file")
    refused(lambda: fetch(url, target.with_name("x" * 300)), "cannot be read or written")
    target.with_name("file").write_text("")
    refused(lambda: fetch(url, target.with_name("file") / "t"), "cannot be read or written")


def test_many_at_once_fetch_once(site, target):
    url = site.put("/t", BODY)
    got, threads = [], []
    for _ in range(8):
        call = threading.Thread(target=lambda: got.append(fetch(url, target, sha256=sha(BODY))))
        threads.append(call)
        call.start()
    for call in threads:
        call.join()
    assert sorted(one.origin for one in got) == ["network"] + ["present"] * 7
    assert len(site.seen) == 1 and left(target.parent) == ["trace.bin"] and target.read_bytes() == BODY


def test_who_waited_for_a_fetch_that_failed_fetches_itself(site, target):
    answer, results, wait = threading.Event(), [], threading.Event().wait

    def call():
        try:
            results.append(fetch(url, target).origin)
        except InputError as error:
            results.append(str(error))

    url = site.put("/t", BODY, faults=[{"before": answer, "status": 404}])
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait(0.1)
    answer.set()
    for thread in threads:
        thread.join()
    assert len(site.seen) == 2 and left(target.parent) == ["trace.bin"]
    assert sorted(results)[1:] == ["network", "present"] and "404" in sorted(results)[0]


def test_the_bytes_are_on_disk_before_the_file_has_its_name(site, target, monkeypatch):
    order, fsync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: order.append("fsync") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda old, new: order.append("replace") or rename(old, new))
    fetch(site.put("/t", BODY), target)
    assert order == ["fsync", "replace"]


def test_a_killed_process_leaves_a_part_that_the_next_one_resumes(site, target):
    hang = threading.Event()
    url = site.put("/t", BODY, headers={"ETag": '"v1"'}, faults=[{"drop": 600_000, "hang": hang}])
    code = "import sys; from gpuledger.ledger.download.transfer import fetch; fetch(sys.argv[1], sys.argv[2])"
    process = subprocess.Popen([sys.executable, "-c", code, url, str(target)])
    part, wait = target.with_name("trace.bin.part"), threading.Event().wait
    while process.poll() is None and not (part.exists() and part.stat().st_size >= 1 << 18):
        wait(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hang.set()
    assert not target.exists() and part.stat().st_size >= 1 << 18
    assert fetch(url, target).sha256 == sha(BODY)
    assert site.ranges()[-1] is not None and left(target.parent) == ["trace.bin"]


def test_a_file_system_without_locks_still_works(site, target, monkeypatch):
    def broken(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", broken)
    url = site.put("/t", BODY, faults=[{"drop": 300_000}])
    assert fetch(url, target, sha256=sha(BODY)).origin == "network"
    refused(lambda: fetch(url + "no", target.with_name("u")))
    assert left(target.parent) == ["trace.bin"]


# ------------------------------------------------------------------------------------------------- the mirror


def mirrored(tmp_path, name, body):
    path = tmp_path / "mirror" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return tmp_path / "mirror"


def test_the_mirror_comes_before_the_network(tmp_path, target):
    mirror = mirrored(tmp_path, "data.example/a b/t.bin", BODY)
    got = fetch("https://data.example:8443/a%20b/t.bin", target, mirror=mirror, sha256=sha(BODY))
    assert (got.origin, got.sha256, left(target.parent)) == ("mirror", sha(BODY), ["trace.bin"])
    mirror = mirrored(tmp_path, "data.example/a%20c/t.bin", b"raw name")
    got = fetch("https://DATA.example/a%20c/t.bin", target.with_name("u"), mirror=mirror)
    assert got.sha256 == sha(b"raw name")
    stale = target.with_name("v.part")
    stale.write_bytes(b"left from the network")
    assert fetch("https://data.example/a%20c/t.bin", target.with_name("v"), mirror=mirror).size_bytes == 8
    assert left(target.parent) == ["trace.bin", "u", "v"]


def test_a_mirror_that_differs_is_an_error_and_is_not_passed_by(site, tmp_path, target):
    url = site.put("/t", BODY)
    mirror = mirrored(tmp_path, "127.0.0.1/t", BODY + b"x")
    words = [str(mirror / "127.0.0.1" / "t"), "pinned", "remove it from the mirror"]
    refused(lambda: fetch(url, target, sha256=sha(BODY), mirror=mirror), *words)
    refused(lambda: fetch(url, target, size_bytes=5, mirror=mirror), *words)
    assert site.seen == [] and left(target.parent) == []


def test_without_the_file_in_the_mirror_the_network_is_asked(site, tmp_path, target):
    url = site.put("/t", BODY)
    mirror = mirrored(tmp_path, "127.0.0.1/t/within", b"")
    assert fetch(url, target, mirror=mirror).origin == "network"


def test_a_query_needs_its_own_file_or_a_checksum(site, tmp_path, target):
    url = site.put("/t", BODY) + "?id=2"
    mirror = mirrored(tmp_path, "127.0.0.1/t", b"of another query")
    assert fetch(url, target, mirror=mirror).origin == "network"
    pins = {"sha256": sha(b"of another query")}
    assert fetch(url, target.with_name("u"), mirror=mirror, **pins).origin == "mirror"
    mirrored(tmp_path, "127.0.0.1/t?id=2", b"its own")
    assert fetch(url, target.with_name("v"), mirror=mirror).sha256 == sha(b"its own")


@pytest.mark.parametrize(
    "path", ["/../secret", "/a/..%2F..%2Fsecret", "/%2e%2e/secret", "//secret", "/a%5c..%5csecret"]
)
def test_an_address_cannot_leave_the_mirror(tmp_path, target, path):
    mirror = mirrored(tmp_path, "127.0.0.1/x", b"")
    (tmp_path / "secret").write_text("secret")
    (mirror / "secret").write_text("secret")
    refused(lambda: fetch(f"http://127.0.0.1:9{path}", target, mirror=mirror, retries=0), "does not have it")


# ---------------------------------------------------------------------------------------------------- archives


def zipped(path: Path, members: dict | list, method=zipfile.ZIP_DEFLATED) -> Path:
    """A zip file with exactly these names, which `zipfile` would tidy otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for index, (name, body) in enumerate(members.items() if isinstance(members, dict) else members):
            info = name if isinstance(name, zipfile.ZipInfo) else zipfile.ZipInfo(f"m{index}")
            if info is not name:
                info.filename = info.orig_filename = name
            info.compress_type = method
            archive.writestr(info, body)
    return path


GOOD = {"a.csv": b"1,2\n" * 999, "sub/": b"", "sub/deep/ü.bin": BODY, "empty": b"", "12:30.log": b"x"}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_is_unpacked_into_a_new_folder_or_one_in_use(tmp_path, method):
    archive, files = zipped(tmp_path / "t.zip", GOOD, method), [name for name in GOOD if name[-1] != "/"]
    for place in ("new", "used"):
        folder = tmp_path / "out" / place
        if place == "used":
            (folder / "sub").mkdir(parents=True)
            (folder / "sub" / "mine").write_text("mine")
            (folder / "a.csv").write_text("old")
        assert unpack_zip(archive, folder) == [folder / name for name in files]
        assert {name: (folder / name).read_bytes() for name in files} == {name: GOOD[name] for name in files}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~_umask()
        unpack_zip(archive, folder)
    assert (tmp_path / "out/used/sub/mine").read_text() == "mine"
    assert not [name for name in left(tmp_path) if "unpacking" in name]


def test_a_new_folder_appears_at_once_or_is_shared_with_who_made_it_first(tmp_path, monkeypatch):
    archive, folder = zipped(tmp_path / "t.zip", GOOD), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", None)
        unpack_zip(archive, folder)
    shutil.rmtree(folder)

    def lost_race(*_):
        folder.mkdir()
        raise FileExistsError

    monkeypatch.setattr(os, "rename", lost_race)
    assert all(place.is_file() for place in unpack_zip(archive, folder))


BAD_NAMES = {
    "/etc/passwd": "absolute",
    "//host/share": "absolute",
    "../up": "'..'",
    "a/../../up": "'..'",
    "a/..": "'..'",
    "..": "'..'",
    "a//b": "empty part",
    "./a": "'.'",
    "C:/windows": "drive",
    "c:x": "drive",
    "a/D:/x": "drive",
    "..\\up": "backslash",
    "a\\b": "backslash",
    "good\0.csv": "control",
    "a\x1b[2Jb": "control",
    "a\nb": "control",
    "": "empty",
    "/": "empty",
    "x" * 300: "too long",
    "d/" * 40 + "f": "too deep",
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_member_that_would_leave_its_folder_is_refused_with_all_others(tmp_path, name):
    archive = zipped(tmp_path / "t.zip", {"first": b"1", name: b"2"})
    for folder in (tmp_path / "out", tmp_path / "used"):
        (tmp_path / "used").mkdir(exist_ok=True)
        refused(lambda folder=folder: unpack_zip(archive, folder), "t.zip, member", BAD_NAMES[name])
    assert left(tmp_path) == ["t.zip", "used"]


@pytest.mark.parametrize(
    "names",
    [
        ["a", "a"],
        ["a", "A"],
        ["d/a", "D/b"],
        ["straße", "STRASSE"],
        ["é", "e\u0301"],
        ["a", "a/b"],
        ["a/b", "a"],
        ["a", "a/"],
        ["a/", "A/"],
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_collide_are_refused(tmp_path, names):
    archive = zipped(tmp_path / "t.zip", [(name, b"" if name[-1] == "/" else b"x") for name in names])
    refused(lambda: unpack_zip(archive, tmp_path / "out"), "collides with")
    assert left(tmp_path) == ["t.zip"]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
@pytest.mark.parametrize("system", [0, 3])
def test_links_and_devices_are_refused(tmp_path, kind, system):
    info = zipfile.ZipInfo("link")
    info.external_attr, info.create_system = (kind | 0o777) << 16, system
    archive = zipped(tmp_path / "t.zip", [(info, b"/etc")])
    refused(lambda: unpack_zip(archive, tmp_path / "out"), "member 'link'")
    assert left(tmp_path) == ["t.zip"]


def test_a_folder_with_content_is_refused(tmp_path):
    archive = zipped(tmp_path / "t.zip", {"folder!": b"content"})
    archive.write_bytes(archive.read_bytes().replace(b"folder!", b"folder/"))
    refused(lambda: unpack_zip(archive, tmp_path / "out"), "a file and a folder at once")


def patched(archive: Path, offset: int, pattern: str, value: int, local: int | None = None) -> Path:
    """Change a field of the last central header, and of the first local header too."""
    raw = bytearray(archive.read_bytes())
    struct.pack_into(pattern, raw, raw.rindex(b"PK\1\2") + offset, value)
    if local is not None:
        struct.pack_into(pattern, raw, local, value)
    archive.write_bytes(raw)
    return archive


def test_encrypted_members_and_other_methods_are_refused(tmp_path):
    archive = patched(zipped(tmp_path / "t.zip", {"a": b"x"}), 8, "<H", 1, local=6)
    refused(lambda: unpack_zip(archive, tmp_path / "out"), "encrypted")
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        archive = zipped(tmp_path / "t.zip", {"a": b"x" * 999}, method)
        refused(lambda archive=archive: unpack_zip(archive, tmp_path / "out"), "another method")
    archive = patched(zipped(tmp_path / "t.zip", {"a": b"x"}), 10, "<H", 9, local=8)
    refused(lambda: unpack_zip(archive, tmp_path / "out"), "another method")


def test_bombs_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    bomb = zipped(tmp_path / "t.zip", {"a": bytes(20_000_000), "b": bytes(20_000_000)})
    assert bomb.stat().st_size < 50_000
    many = zipped(tmp_path / "many.zip", {f"m{index}": b"" for index in range(50)})
    heavy = zipped(tmp_path / "heavy.zip", {f"{index}" + "n" * 200: b"" for index in range(500)})
    with monkeypatch.context() as bounds:
        bounds.setattr(unpack, "MAX_UNPACKED_BYTES", 10**7)
        refused(lambda: unpack_zip(bomb, tmp_path / "out"), "40000000 bytes in all")
        bounds.setattr(unpack, "MAX_MEMBERS", 49)
        refused(lambda: unpack_zip(many, tmp_path / "out"), "50 members")
        bounds.setattr(unpack, "MAX_MEMBERS", 50)
        assert len(unpack_zip(many, tmp_path / "ok")) == 50
        bounds.setattr(unpack, "MAX_MEMBERS", 1)
        refused(lambda: unpack_zip(heavy, tmp_path / "out"), "list of members is too long")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=39_999_999))
    refused(lambda: unpack_zip(bomb, tmp_path / "out"), "39999999 are free")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("said", [0, 100, 10**6 - 1, 10**6 + 1, 2**32 - 2])
def test_a_header_that_lies_about_its_size_is_found_out(tmp_path, said):
    archive = patched(zipped(tmp_path / "t.zip", {"a": bytes(10**6)}), 24, "<L", said, local=22)
    word = "unpack to 4,294,967,294" if said > 2**31 else "cannot be unpacked"
    refused(lambda: unpack_zip(archive, tmp_path / "out"), word)
    assert left(tmp_path) == ["t.zip"]


def test_damaged_archives_are_input_errors(tmp_path):
    whole = zipped(tmp_path / "t.zip", GOOD).read_bytes()
    page = b"<html>Please log in</html>"
    for body in (b"", page, whole[:-30], whole[: len(whole) // 2], whole[10:], whole[:4] + page + whole[30:]):
        (tmp_path / "t.zip").write_bytes(body)
        refused(lambda: unpack_zip(tmp_path / "t.zip", tmp_path / "out"), "cannot be unpacked", "remove")
        assert left(tmp_path) == ["t.zip"]
    refused(lambda: unpack_zip(tmp_path / "none.zip", tmp_path / "out"), "none.zip")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_anywhere_gives_the_same_files_or_an_input_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    archive = zipped(folder / "t.zip", {"a/b": b"some text " * 20, "c": b"more"})
    raw = bytearray(archive.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    archive.write_bytes(raw)
    try:
        places = unpack_zip(archive, folder / "out")
    except InputError as error:
        assert str(error).isprintable()
        assert left(folder) == ["t.zip"]
    else:
        assert all(place.is_file() for place in places)
        assert {name.split("/")[0] for name in left(folder)} <= {"out", "t.zip"}


NAMES = st.text(st.sampled_from("aA.é/\\:\0\n~-ß \u202e"), max_size=12) | st.text(max_size=20)


@settings(max_examples=200, deadline=None)
@given(names=st.lists(NAMES, min_size=1, max_size=4))
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_no_name_leaves_the_folder(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("names")
    try:
        archive = zipped(folder / "t.zip", [(name, b"x") for name in names])
    except (UnicodeEncodeError, IndexError):
        return  # not a name that a zip file can hold
    try:
        places = unpack_zip(archive, folder / "in" / "out")
    except InputError as error:
        assert str(error).isprintable()
        assert left(folder) in (["t.zip"], ["in", "t.zip"])
    else:
        assert len(places) == len(names)
        assert all(place.resolve().is_relative_to(folder / "in" / "out") for place in places)
        assert os.listdir(folder / "in") == ["out"] and sorted(os.listdir(folder)) == ["in", "t.zip"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("used", [True, False])
def test_an_interrupted_unpack_leaves_nothing(tmp_path, monkeypatch, error, used):
    archive, folder, calls = zipped(tmp_path / "t.zip", GOOD), tmp_path / "out", []
    if used:
        folder.mkdir()
        (folder / "mine").write_text("")
    before = left(tmp_path)

    def fsync(_):
        calls.append(1)
        if len(calls) == 3:
            raise error

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InputError if isinstance(error, OSError) else error):
        unpack_zip(archive, folder)
    assert left(tmp_path) == before


def test_what_stands_in_the_folder_is_no_way_out(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    folder.mkdir()
    (folder / "sub").symlink_to(outside)
    archive = zipped(tmp_path / "t.zip", {"sub/x": b"1"})
    refused(lambda: unpack_zip(archive, folder), "through a link")
    (folder / "sub").unlink()
    (folder / "sub").write_text("a file")
    refused(lambda: unpack_zip(archive, folder), "in the place")
    (folder / "sub").unlink()
    (folder / "sub" / "x").mkdir(parents=True)
    refused(lambda: unpack_zip(archive, folder), "in the place")
    archive = zipped(folder / "self.zip", {"Self.ZIP": b"1"})
    refused(lambda: unpack_zip(archive, folder), "not its own")
    archive = zipped(tmp_path / "link.zip", {"l": b"new"})
    (outside / "kept").write_text("kept")
    (folder / "l").symlink_to(outside / "kept")
    unpack_zip(archive, folder)
    assert (outside / "kept").read_text() == "kept" and (folder / "l").read_bytes() == b"new"


# ---------------------------------------------------------------------------------------------------- datasets


def test_a_dataset_is_fetched_unpacked_and_then_present(site, tmp_path, source):
    archive = zipped(tmp_path / "made.zip", {"trace/a.bin": b"a", "b.csv": b"b"}).read_bytes()
    entries = [
        {"url": site.put("/v1/trace.zip", archive), "sha256": sha(archive), "bytes": len(archive), "unpack": "zip"},
        {"url": site.put("/v1/my%20shapes.json", b"{}") + "?download=1#x", "sha256": None, "unpack": None},
        {"url": site.put("/v1/get", b"p"), "to": "points.csv"},
    ]
    got = fetch_dataset(entries, source.parent, source_file=source)
    assert [one.path.name for one in got] == ["trace.zip", "my shapes.json", "points.csv"]
    assert got[0].members == (source.parent / "trace/a.bin", source.parent / "b.csv")
    assert (source.parent / "trace/a.bin").read_bytes() == b"a" and got[1].sha256 == sha(b"{}")
    again = fetch_dataset(entries, source.parent, source_file=source)
    assert {one.origin for one in again} == {"present"} and again[0].members == got[0].members
    other = fetch_dataset(entries[2:], tmp_path / "elsewhere", source_file=source)
    assert left(tmp_path / "elsewhere") == ["points.csv"] and other[0].members == ()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([{"url": "http://h/"}], ["is empty"]),
        ([{"url": "http://h/x", "to": "../x"}], ["is not a file name"]),
        ([{"url": "http://h/x", "to": ".."}], ["'..'"]),
        ([{"url": "http://h/..%2Fx"}], ["is not a file name"]),
        ([{"url": "http://h/a%00b"}], ["control"]),
        ([{"url": "http://h/x", "to": "Dataset.YAML"}], ["is taken"]),
        ([{"url": "http://h/x"}, {"url": "http://h/y/X"}], ["download[1]", "is taken"]),
        ([{"url": "http://h/x"}, {"url": "http://h/x.part"}], ["download[1]", "is taken"]),
        ([{"url": "file:///etc/hosts"}], ["download[0]", "scheme 'file'"]),
    ],
)
def test_a_bad_entry_is_named(source, entries, words):
    error = refused(lambda: fetch_dataset(entries, source.parent, source_file=source), *words)
    assert error.file == str(source) and left(source.parent) == ["dataset.yaml"]


def test_a_zip_may_not_replace_the_dataset_or_what_another_entry_brought(site, tmp_path, source):
    hostile = [{"dataset.yaml": b""}, {"second": b""}, {"second.part.json": b""}]
    for members in hostile:
        body = zipped(tmp_path / "made.zip", members).read_bytes()
        entries = [{"url": site.put("/a.zip", body), "unpack": "zip"}, {"url": site.put("/second", b"2")}]
        call = lambda entries=entries: fetch_dataset(entries, source.parent, source_file=source)  # noqa: E731
        refused(call, f"{source}, download[0]", "a.zip, member", "not its own")
        (source.parent / "a.zip").unlink()
    one, two = (zipped(tmp_path / f"{n}.zip", {"same": b"%d" % n}).read_bytes() for n in (1, 2))
    entries = [{"url": site.put(f"/{n}.zip", body), "unpack": "zip"} for n, body in ((1, one), (2, two))]
    refused(lambda: fetch_dataset(entries, source.parent, source_file=source), "download[1]", "not its own")
    assert (source.parent / "same").read_bytes() == b"1" and source.read_text() == "kind: downloaded\n"


def test_a_dataset_from_the_mirror_needs_no_network(tmp_path, source):
    mirror = mirrored(tmp_path, "data.example/t.bin", BODY)
    entries = [{"url": "https://data.example/t.bin", "sha256": sha(BODY)}]
    assert fetch_dataset(entries, source.parent, mirror=mirror, source_file=source)[0].origin == "mirror"
    words = [f"{source}, download[0]", "the mirror's file of https://data.example/t.bin"]
    entries[0] |= {"sha256": "0" * 64, "to": "u"}
    refused(lambda: fetch_dataset(entries, source.parent, mirror=mirror, source_file=source), *words)


@pytest.mark.parametrize(("fault", "more"), [("trickle", {"drop": 10}), ("slow_head", {})])
def test_a_server_that_sends_single_bytes_is_given_up(site, target, monkeypatch, fault, more):
    """Of the file, or of the head of its answer, which it never ends."""
    end = threading.Event()
    url = site.put("/t", BODY, faults=[{fault: end, **more}] * 2)
    with monkeypatch.context() as patch:
        patch.setattr(session, "BLOCK_S", 0.2)
        refused(lambda: fetch(url, target, retries=1), "2 attempts")
    end.set()
    assert fetch(url, target).size_bytes == len(BODY)


def test_what_a_redirect_says_beside_its_address_is_not_read(site, target):
    end = threading.Event()
    site.put("/new", BODY)
    headers = {"Location": "/new", "Content-Length": 10**9}
    url = site.put("/t", b"", faults=[{"status": 302, "headers": headers, "trickle": end}])
    assert fetch(url, target).size_bytes == len(BODY)
    end.set()


def test_credentials_of_netrc_are_not_sent(site, target, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    site.put("/new", BODY)
    fetch(site.put("/t", b"", faults=[{"status": 302, "headers": {"Location": "/new"}}]), target)
    assert out_of_reach({"a": [{"url": site.put("/t", b"")}]}) == {}
    assert len(site.seen) == 3 and not any("Authorization" in headers for _, headers in site.seen)


@pytest.mark.parametrize("place", ["http://10.0.0.1/", "http://[::1]/", "http://169.254.169.254/latest/meta-data"])
def test_a_public_host_does_not_redirect_to_a_private_address(site, target, monkeypatch, place):
    monkeypatch.setattr(
        session, "_is_private", lambda host, real=session._is_private: host != "127.0.0.1" and real(host)
    )
    url = site.put("/t", BODY, faults=[{"status": 302, "headers": {"Location": place}}])
    refused(lambda: fetch(url, target), "redirects to the private address")
    assert len(site.seen) == 1


def test_a_length_that_is_no_number_is_refused(site, target):
    for length in ("x", "-1", "5, 5", "9" * 30):
        url = site.put("/t", BODY, faults=[{"unsized": True, "headers": {"content-length": length}}])
        refused(lambda url=url: fetch(url, target), "for the number of bytes")


@pytest.mark.parametrize("name", ["NUL", "a/con.txt", "COM1.csv", "lpt9", "a\u202ecsv.exe", "a\u200f"])
def test_names_that_mean_something_else_elsewhere_are_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, "x")
    refused(lambda: unpack_zip(tmp_path / "a.zip", tmp_path / "out"), "not safe to unpack")


def test_an_archive_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(unpack, "ALWAYS_BYTES", 2**20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(2**21))
    refused(lambda: unpack_zip(tmp_path / "a.zip", tmp_path / "out"), "more than 200 times as many")
    assert not (tmp_path / "out").exists()
