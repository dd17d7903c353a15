"""Damage small files of every format and read them: each reader returns or raises InputError, nothing else.

    python benchmarks/fuzz.py [RUNS] [SEED] [MINUTES]

`make fuzz` calls it. Readers take turns of one CPU second, so that a call that ends after some minutes has spent the
same on each. A run may take 2 CPU seconds and raise peak memory by 1 GiB. The first failure of a reader is printed with
the file that caused it, and the exit status is 1.
"""

import logging
import random
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from fuzz_corpus import corpus

from gpuledger.errors import InputError

#: What damaged files often hold: signs with a meaning, long numbers, white space that is none everywhere.
PIECES = [
    *(b'"', b",", b"\n", b"\0", b"\x1c", b"[" * 200, b"{" * 200, b"9" * 400, b"-", b"(", b"\xff", b"1e999", b"nan"),
    *(b"\xe2\x80\xae", b"\xed\xa0\x80", b"\x1b[31m", b"&a ", b"*a", b"!!timestamp ", b"<<: ", b"null", b"true", b"-1"),
    *(b"=1+1", b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", b"18446744073709551616", b"%s{0}", b"../", b"<b>"),
]
SLOWEST_S, MOST_BYTES, TURN_S = 2, 2**30, 1


def damaged(content: bytes, chance: random.Random) -> bytes:
    result = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(result) + 1)
        action = chance.randrange(5)
        if action == 0 and at < len(result):
            result[at] ^= 1 << chance.randrange(8)
        elif action == 1:
            result[at:at] = chance.choice(PIECES)
        elif action == 2:
            del result[at : at + chance.randint(1, 40)]
        elif action == 3:
            piece = chance.choice(PIECES)
            result[at : at + len(piece)] = piece
        else:
            result[at:at] = result[at : at + 200] * chance.randint(1, 20)
    return bytes(result)


class Reader:
    """One reader, the file to damage, and how its runs went."""

    def __init__(self, scratch: Path, seed: int, name: str, source: Path, read: Callable):
        self.name, self.read, self.content = name, read, source.read_bytes()
        self.chance, self.folder = (
            random.Random(f"{seed} {name}"),
            scratch / f"damaged-{re.sub(r'[^a-z0-9]+', '-', name.lower())}",
        )
        self.folder.mkdir()
        self.file = self.folder / source.name
        read(source)  # undamaged, it is read
        self.runs = self.refused = 0
        self.seconds, self.failed = 0.0, False

    def run(self, most: int) -> None:
        """Read damaged files for one turn, up to the first failure or so many in all."""
        end = self.seconds + TURN_S
        while self.seconds < end and self.runs < most and not self.failed:
            self.file.write_bytes(damaged(self.content, self.chance))
            started, before, problem = time.process_time(), _peak(), ""
            try:
                signal.setitimer(signal.ITIMER_PROF, 2 * SLOWEST_S)
                self.read(self.file)
            except InputError as error:
                self.refused += 1
                if len(line := str(error)) > 1100 or not line.isprintable():
                    problem = f"a line of {len(line)} characters, or one that is not printable"
            except BaseException as error:
                problem = f"{type(error).__name__}: {str(error)[:200]}"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            taken, grown = time.process_time() - started, _peak() - before
            self.runs, self.seconds = self.runs + 1, self.seconds + taken
            if taken > SLOWEST_S:
                problem = problem or f"{taken:.1f} s"
            if grown > MOST_BYTES:
                problem = problem or f"{grown / 2**20:.0f} MiB"
            if problem:
                self.failed = True
                kept = self.file.rename(Path(tempfile.mkdtemp(prefix="gpuledger-fuzz-")) / self.file.name)
                print(f"{self.name}, run {self.runs}: {problem}; the file is {kept}", flush=True)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"more than {SLOWEST_S} s")


def main(runs: int = 200, seed: int = 1, minutes: float = float("inf")) -> int:
    """Return how many readers failed."""
    warnings.simplefilter("ignore")
    logging.disable()
    signal.signal(signal.SIGPROF, _too_slow)
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as scratch:
        readers = [Reader(Path(scratch), seed, *entry) for entry in list(corpus(Path(scratch)))]
        # Far more than is allowed, so that a reader that takes it fails, and not the machine.
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 8 * MOST_BYTES, resource.RLIM_INFINITY))
        while time.monotonic() < end and any(reader.runs < runs and not reader.failed for reader in readers):
            for reader in readers:
                reader.run(runs)
    for reader in readers:
        each = 1e3 * reader.seconds / max(reader.runs, 1)
        print(f"{reader.name}: {reader.runs:,} runs, {reader.refused:,} refused, {each:.2f} ms each")
    print(f"peak memory of the process {_peak() / 2**20:.0f} MiB")
    return sum(reader.failed for reader in readers)


if __name__ == "__main__":
    sys.exit(min(main(*(int(text) for text in sys.argv[1:])), 1))
