"""Fuzz readers guided by coverage, with atheris (pip install atheris): slower than `fuzz.py`, and looks deeper.

    python benchmarks/fuzz_guided.py [SECONDS] [SEED] [PATTERN]

Each reader of the corpus whose name the pattern finds (default: each) gets that many seconds in a process of its own.
A file that ends in anything but success or one line is kept, and its name printed; the exit status is then 1.
"""

import logging
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import atheris

# Only the process of one reader runs it.
with atheris.instrument_imports(include=["gpuledger"]) if len(sys.argv) == 6 else nullcontext():
    from fuzz_corpus import corpus

    from gpuledger.errors import LONGEST_LINE, InputError
    from gpuledger.files import ROOT

sys.path.insert(0, str(ROOT / "tests/support"))
from damage import changed, damaged

SLOWEST_S, MOST_MIB = 5, 3000


def fuzz(source: Path, read: Callable, seconds: str, seed: str, kept: Path) -> None:
    """Read damaged copies of a file; ends the process, at the first failure with a traceback and the file in `kept`."""
    (seeds := kept / "reached").mkdir()
    (seeds / "first").write_bytes(source.read_bytes())
    chance = random.Random()

    def run(content: bytes) -> None:
        source.write_bytes(content)
        try:
            read(source)
        except InputError as error:
            assert len(line := str(error)) <= LONGEST_LINE, f"a line of {len(line)} characters"
            assert line.isprintable(), "a line that is not printable"

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        chance.seed(seed)
        own = chance.choice([None, None, damaged, changed, changed]) if content else None
        return own(content, chance)[:most] if own else atheris.Mutate(content, most)

    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-timeout={SLOWEST_S}", f"-rss_limit_mb={MOST_MIB}"]
    options += [f"-artifact_prefix={kept}/", "-max_len=30000", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([source.name, str(seeds), *options], run, custom_mutator=mutate)
    atheris.Fuzz()


def main(seconds: str = "60", seed: str = "1", pattern: str = "", name: str = "", kept: str = "") -> int:
    """Fuzz the reader of a name in this process, or each whose name the pattern finds in a process of its own."""
    warnings.simplefilter("ignore")
    logging.disable()
    with tempfile.TemporaryDirectory() as scratch:
        entries = {entry[0]: entry[1:] for entry in corpus(Path(scratch))}
        if name:
            source, read = entries[name]
            if ROOT in source.parents:  # those of the checkout stay as they are
                source = Path(scratch, "own", source.name)
                source.parent.mkdir()
                source.write_bytes(entries[name][0].read_bytes())
            fuzz(source, read, seconds, seed, Path(kept))
        failed = 0
        for name in filter(re.compile(pattern).search, entries):
            kept = tempfile.mkdtemp(prefix="gpuledger-fuzz-")
            command = [sys.executable, __file__, seconds, seed, "", name, kept]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            counts = dict(re.findall(r"stat::(number_of_executed_units|new_units_added): +(\d+)", done.stderr))
            runs, new = map(int, counts.values()) if counts else (0, 0)
            print(f"{name}: {runs:,} runs, {new:,} reached more", flush=True)
            if done.returncode:
                failed += 1
                print(f"{done.stderr[done.stderr.find('===') :][-3000:]}\nthe files are in {kept}", flush=True)
            else:
                shutil.rmtree(kept)
        return failed


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 1))
