"""What ``make fuzz`` damages: every reader of its list reads the undamaged file, and takes damaged ones."""

import random
import sys
from contextlib import suppress

import pytest
from damage import changed, damaged

from gpuledger.errors import InputError
from gpuledger.files import ROOT


@pytest.mark.filterwarnings("ignore")
def test_every_reader_of_the_list_takes_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    from fuzz_corpus import corpus

    chance = random.Random(0)
    names = []
    for name, source, read in list(corpus(tmp_path)):
        read(source)
        (folder := tmp_path / f"damaged{len(names)}").mkdir()
        for damage in (damaged, changed, damaged, changed):
            (folder / source.name).write_bytes(damage(source.read_bytes(), chance))
            with suppress(InputError):
                read(folder / source.name)
        names.append(name)
    assert len(set(names)) == len(names) > 50
