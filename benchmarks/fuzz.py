"""Damage small files of every format and read them: each parser returns or raises InputError, nothing else.

Bits flip and parts are lost anywhere; in texts, and in what binary files hold, values are also exchanged for others.

    python benchmarks/fuzz.py [RUNS] [SEED] [MINUTES] [TOTALS] [PATTERN]

`make fuzz` calls it. Each parser gets RUNS, from one or several files ("ncu, french.csv" is one of ncu's). Files take
turns of one CPU second, so that a call that ends after some minutes has spent the same on each; what also computes from
what is read ("analysis of ...") takes a tenth of that. Ctrl-C or SIGTERM ends a call like the last minute. A run may
take 2 CPU seconds and raise peak memory by 1 GiB. The first failure with a file is printed with the damaged file that
caused it, and the exit status is 1.

With the table TOTALS, runs are added to those of earlier calls, and calls with other seeds may add to it meanwhile.
With PATTERN, only files are damaged whose names it finds.
"""

import fcntl
import logging
import random
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from fuzz_corpus import corpus
from fuzz_tables import ANALYSIS

from gpuledger.errors import LONGEST_LINE, InputError
from gpuledger.files import ROOT

sys.path.insert(0, str(ROOT / "tests/support"))
from damage import changed, damaged

SLOWEST_S, MOST_BYTES, TURN_S = 2, 2**30, 1


class Reader:
    """One file to damage, how it is read, and how its runs went."""

    def __init__(self, scratch: Path, seed: int, name: str, source: Path, read: Callable):
        self.name, self.read, self.content = name, read, source.read_bytes()
        self.parser = name.partition(",")[0]
        self.turn_s = TURN_S / 10 if name.startswith(ANALYSIS) else TURN_S
        self.seed, self.chance = f"{seed} {name}", random.Random(f"{seed} {name}")
        self.folder = scratch / f"damaged-{re.sub(r'[^a-z0-9]+', '-', name.lower())}"
        self.folder.mkdir()
        try:
            self.text = bool(self.content.decode("utf-8"))
        except UnicodeDecodeError:
            self.text = False
        self.file = self.folder / source.name
        read(source)  # undamaged, it is read
        self.runs = self.refused = 0
        self.seconds, self.failed = 0.0, False

    def run(self, most: int) -> None:
        """Read damaged files for one turn, up to the first failure or so many."""
        end, last = self.seconds + self.turn_s, self.runs + most
        while self.seconds < end and self.runs < last and not self.failed:
            damage = changed if self.text and self.chance.random() < 0.7 else damaged
            self.file.write_bytes(damage(self.content, self.chance))
            started, before, problem = time.thread_time(), _peak(), ""
            try:
                signal.setitimer(signal.ITIMER_PROF, 2 * SLOWEST_S)
                self.read(self.file)
            except InputError as error:
                self.refused += 1
                if len(line := str(error)) > LONGEST_LINE or not line.isprintable():
                    problem = f"a line of {len(line)} characters, or one that is not printable"
            except BaseException as error:
                problem = f"{type(error).__name__}: {str(error)[:200]}"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            taken, grown = time.thread_time() - started, _peak() - before
            self.runs, self.seconds = self.runs + 1, self.seconds + taken
            if taken > SLOWEST_S:
                problem = problem or f"{taken:.1f} s"
            if grown > MOST_BYTES:
                problem = problem or f"{grown / 2**20:.0f} MiB"
            if problem:
                self.failed = True
                kept = self.file.rename(Path(tempfile.mkdtemp(prefix="gpuledger-fuzz-")) / self.file.name)
                print(f"{self.name}, run {self.runs}: {problem}; the file is {kept}", flush=True)


def share(readers: list[Reader], file: Path, own: pd.DataFrame | None = None) -> tuple[pd.DataFrame, pd.Series]:
    """Add to a table what was run since `own`; return what was run by now, and the runs of other calls."""
    counts = {reader.name: (reader.runs, reader.refused, reader.seconds) for reader in readers}
    now = pd.DataFrame.from_dict(counts, orient="index", columns=["runs", "refused", "cpu_s"])
    with file.open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        table = pd.read_csv(stream, index_col="reader") if file.stat().st_size else 0 * now
        table = table.add(now if own is None else now - own, fill_value=0)
        table = table.astype({"runs": int, "refused": int}).round({"cpu_s": 3})
        stream.truncate(0)
        table.to_csv(stream, index_label="reader")
    others = table["runs"].sub(now["runs"], fill_value=0)
    for reader in readers if own is None else ():  # other damage than the same seed's first call
        if earlier := int(others[reader.name]):
            reader.chance.seed(f"{reader.seed} {earlier}")
    return now, others


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"more than {SLOWEST_S} s")


def main(runs: str = "200", seed: str = "1", minutes: str = "inf", totals: str = "", pattern: str = "") -> int:
    """Return how many readers failed."""
    file, own, others = Path(totals) if totals else None, None, pd.Series(dtype=int)
    warnings.simplefilter("ignore")
    logging.disable()
    signal.signal(signal.SIGPROF, _too_slow)
    end, stopped = time.monotonic() + 60 * float(minutes), []
    for number in (signal.SIGINT, signal.SIGTERM):  # no exception: a reader's run would take it for its own
        signal.signal(number, lambda number, _: stopped.append(number))
    with tempfile.TemporaryDirectory() as scratch:
        readers = [Reader(Path(scratch), seed, *entry) for entry in list(corpus(Path(scratch)))]
        readers = [reader for reader in readers if re.search(pattern, reader.name)]
        # Far more than is allowed, so that a reader that takes it fails, and not the machine.
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 8 * MOST_BYTES, resource.RLIM_INFINITY))
        parsers = {reader.name: reader.parser for reader in readers}
        while not stopped and time.monotonic() < end:
            if file:
                own, others = share(readers, file, own)
            done = Counter(others.groupby(parsers).sum().astype(int).to_dict())
            for reader in readers:
                done[reader.parser] += reader.runs
            waiting = [reader for reader in readers if done[reader.parser] < int(runs) and not reader.failed]
            files = Counter(reader.parser for reader in waiting)
            for reader in waiting:
                if not stopped and time.monotonic() < end:
                    reader.run(-(-(int(runs) - done[reader.parser]) // files[reader.parser]))
            if not waiting:
                break
        if file:
            share(readers, file, own)
    for reader in readers:
        each = 1e3 * reader.seconds / max(reader.runs, 1)
        print(f"{reader.name}: {reader.runs:,} runs, {reader.refused:,} refused, {each:.2f} ms each")
    print(f"peak memory of the process {_peak() / 2**20:.0f} MiB")
    return sum(reader.failed for reader in readers)


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 1))
