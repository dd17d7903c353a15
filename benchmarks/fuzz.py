"""Damage small files of every format and read them: each reader returns or raises InputError, nothing else.

``python benchmarks/fuzz.py [RUNS] [SEED]``; `make fuzz` calls it. The first failure of a reader is printed with the
file that caused it, and the exit status is 1.
"""

import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from gpuledger import schemas
from gpuledger.errors import InputError
from gpuledger.readers import ncu
from gpuledger.readers.gpus import TABLE, read_gpus
from gpuledger.readers.neutrino import event_log, kernel_info, probe, process_log, tensor_trace
from gpuledger.readers.timelines import read_timeline
from gpuledger.studies.kernel_time.measurements import read_table, whole_numbers
from gpuledger.studies.warp_scheduling import load_plain

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests/data"
#: What damaged files often hold: signs with a meaning, long numbers, white space that is none everywhere.
PIECES = [
    b'"',
    b",",
    b"\n",
    b"\0",
    b"\x1c",
    b"[" * 200,
    b"9" * 400,
    b"-",
    b"(",
    b"\xff",
    b"1e999",
    b"\xe2\x80\xae",
    b"nan",
]
SLOWEST_S = 2


def columns_of(path: Path) -> object:
    return whole_numbers(path, read_table(path, ["m"])["m"])


def corpus(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    """Yield the name of a reader, a file that it reads, and the reader."""
    yield from ((f"ncu {path.name}", path, ncu.read) for path in sorted((DATA / "ncu").glob("*.csv")))
    neutrino = DATA / "neutrino"
    yield "kernel.info", neutrino / "kernel.info", kernel_info.read_kernel_info
    yield "event.log", neutrino / "main_event.log", event_log.read_event_log
    yield "process.log", neutrino / "process.log", process_log.read_process_log
    yield "tensor.trace", neutrino / "tensor.trace", tensor_trace.read_tensor_trace
    yield "probe", neutrino / "written.toml", probe.read_probe
    yield "data sheets", TABLE, read_gpus
    yield "YAML", ROOT / "traces/published/dataset.yaml", schemas.load_yaml
    table = pd.DataFrame({"m": [1, 2, 3], "name": ["a", "b", "c"]})
    table.to_parquet(folder / "a.parquet")
    yield "Parquet", folder / "a.parquet", columns_of
    table.to_csv(folder / "m.csv", index=False)
    yield "CSV", folder / "m.csv", columns_of
    table.to_excel(folder / "a.xlsx", index=False)
    yield "workbook", folder / "a.xlsx", read_gpus
    pd.to_pickle({"a": table["m"].to_numpy(), "b": [1, 2], "c": {3}}, folder / "a.pkl")
    yield "pickle", folder / "a.pkl", load_plain
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"grid": [1, 1, 1]}}'
    (folder / "a.json").write_text(f'{{"traceEvents": [{", ".join([event] * 3)}]}}')
    yield "timeline", folder / "a.json", read_timeline


def damaged(content: bytes, chance: random.Random) -> bytes:
    result = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(result) + 1)
        action = chance.randrange(4)
        if action == 0 and at < len(result):
            result[at] ^= 1 << chance.randrange(8)
        elif action == 1:
            result[at:at] = chance.choice(PIECES)
        elif action == 2:
            del result[at : at + chance.randint(1, 40)]
        else:
            result[at:at] = result[at : at + 200] * chance.randint(1, 20)
    return bytes(result)


def main(runs: int, seed: int) -> int:
    """Return how many readers failed."""
    warnings.simplefilter("ignore")
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, source, read in corpus(Path(scratch)):
            chance, content = random.Random(f"{seed} {name}"), source.read_bytes()
            file, refused, begin = Path(scratch, f"damaged{source.suffix}"), 0, time.perf_counter()
            if source.name in ("kernel.info", "process.log", "tensor.trace"):
                file = Path(scratch, source.name)
            for run in range(runs):
                file.write_bytes(damaged(content, chance))
                started, problem = time.process_time(), ""
                try:
                    read(file)
                except InputError:
                    refused += 1
                except Exception as error:
                    problem = f"{type(error).__name__}: {str(error)[:200]}"
                if time.process_time() - started > SLOWEST_S:
                    problem = problem or f"more than {SLOWEST_S} s"
                if problem:
                    kept = file.rename(Path(tempfile.gettempdir(), f"gpuledger-fuzz-{name.replace(' ', '-')}"))
                    print(f"{name}, run {run}: {problem}; the file is {kept}")
                    failed += 1
                    break
            print(f"{name}: {run + 1} runs, {refused} refused, {time.perf_counter() - begin:.1f} s")
    return failed


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    sys.exit(min(main(*(numbers + [200, 1][len(numbers) :])), 1))
