"""A mirror that was filled on a connected machine serves one that has no network."""

import pytest
from test_download import sha, site  # noqa: F401
from test_package import GEMM, entry_of, index, no_pip, wheel  # noqa: F401

from gpuledger.errors import InputError
from gpuledger.ledger.download import mirror
from gpuledger.ledger.download.dataset import fetch_dataset

BODY = b"clock,address\n1,2\n"


def test_what_a_mirror_was_filled_with_needs_no_network(site, index, no_pip, tmp_path):  # noqa: F811
    entries = [
        {"url": site.put("/v1/my%20trace.csv", BODY), "sha256": sha(BODY), "bytes": len(BODY)},
        {"url": site.put("/v1/get", b"two") + "?version=2#top", "to": "two.csv"},
        entry_of(wheel(index), members=[GEMM]),
    ]
    folder, source = tmp_path / "mirror", tmp_path / "dataset.yaml"
    done = mirror.fill(folder, entries, source)
    assert [path.is_relative_to(folder) and path.is_file() for path in done] == [True] * 3
    assert sorted(path.name for path in folder.iterdir()) == ["127.0.0.1", "packages"]
    assert [path.name for path in (folder / "packages").iterdir()] == [done[2].name]
    # Once more: everything is there.
    no_pip()
    assert mirror.fill(folder, entries[:1] + entries[2:], source) == [done[0], done[2]]
    site.shutdown()
    site.server_close()
    fetched = fetch_dataset(entries, tmp_path / "data", mirror=folder, source_file=source)
    assert [one.origin for one in fetched] == ["mirror"] * 3
    assert (tmp_path / "data/my trace.csv").read_bytes() == BODY
    assert (tmp_path / "data/two.csv").read_bytes() == b"two"


@pytest.mark.parametrize(
    "url", ["https://data.example/a/../../../etc/x", "ftp://data.example/a", "https://data.example/"]
)
def test_an_address_that_no_mirror_can_hold_is_refused(tmp_path, url):
    with pytest.raises(InputError, match=r"download\[0\]|address"):
        mirror.fill(tmp_path / "mirror", [{"url": url}], tmp_path / "dataset.yaml")
    assert not list(tmp_path.rglob("x"))


def test_the_command_names_an_unknown_dataset(tmp_path, capsys):
    assert mirror.main([str(tmp_path / "mirror"), "no-such-dataset"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_says_what_it_collected(tmp_path, capsys):
    assert mirror.main([str(tmp_path / "mirror"), "published"]) == 0
    assert capsys.readouterr().out == "published: 0 files, 0.0 MB\n"
