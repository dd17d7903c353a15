"""Damage small files of every format and read them: each reader returns or raises InputError, nothing else.

    python benchmarks/fuzz.py [RUNS] [SEED] [MINUTES]

`make fuzz` calls it. Readers take turns of one CPU second, so that a call that ends after some minutes has spent the
same on each. A run may take 2 CPU seconds and raise peak memory by 1 GiB. The first failure of a reader is printed with
the file that caused it, and the exit status is 1.
"""

import random
import re
import resource
import signal
import sqlite3
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger import schemas
from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Dataset, Repository
from gpuledger.ledger.study import read_studies
from gpuledger.models.transformer import read_model
from gpuledger.models.transformer.configuration import MODELS
from gpuledger.readers import ncu, neutrino
from gpuledger.readers.gpus import TABLE, find_gpu, read_gpus
from gpuledger.readers.kernel_names import classify, extend_patterns
from gpuledger.readers.neutrino import event_log, kernel_info, probe, process_log, tensor_trace
from gpuledger.readers.neutrino.block_trace import read_blocks
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.readers.timelines import read_timeline
from gpuledger.record.recording import MANIFEST, Recording
from gpuledger.studies.dmat import open_accesses
from gpuledger.studies.kernel_time.measurements import read_table, whole_numbers
from gpuledger.studies.serving_time.runs import read_runs
from gpuledger.studies.warp_scheduling import load_plain
from gpuledger.studies.warp_scheduling.progress import read_pickled_progress, read_progress

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests/data"
#: What damaged files often hold: signs with a meaning, long numbers, white space that is none everywhere.
PIECES = [
    *(b'"', b",", b"\n", b"\0", b"\x1c", b"[" * 200, b"{" * 200, b"9" * 400, b"-", b"(", b"\xff", b"1e999", b"nan"),
    *(b"\xe2\x80\xae", b"\xed\xa0\x80", b"\x1b[31m", b"&a ", b"*a", b"!!timestamp ", b"<<: ", b"null", b"true", b"-1"),
    *(b"=1+1", b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", b"18446744073709551616", b"%s{0}", b"../", b"<b>"),
]
SERVED = "title: t\nkind: published\nsource: s\nlicense: l\nstudies: {serving_time: {c: {runs: NAME, gpu: h100-sxm}}}\n"
SLOWEST_S, MOST_BYTES, TURN_S = 2, 2**30, 1


def corpus(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    """Yield the name of a reader, a file that it reads, and the reader."""
    yield from ((f"ncu {path.name}", path, ncu.read) for path in sorted((DATA / "ncu").glob("*.csv")))
    yield "ncu long_base.txt", DATA / "ncu/long_base.txt", ncu.read
    logs = DATA / "neutrino"
    yield "kernel.info", logs / "kernel.info", kernel_info.read_kernel_info
    yield "event.log", logs / "main_event.log", event_log.read_event_log
    yield "process.log", logs / "process.log", process_log.read_process_log
    yield "tensor.trace", logs / "tensor.trace", tensor_trace.read_tensor_trace
    yield "probe", logs / "written.toml", probe.read_probe
    # A few rows: a data sheet of all takes long to read, and damage is in few of them anyway.
    sheet = TABLE.read_text("utf-8").splitlines(keepends=True)
    yield "data sheets", _written(folder / "gpus.csv", "".join(sheet[:4])), read_gpus
    yield from _traces(folder)
    yield from _tables(folder)
    yield from _timelines(folder)
    # Plain, mixture of experts with latent attention, and with layers of two kinds.
    models = ("Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-20b")
    yield from ((f"config.json of {name}", MODELS / f"{name}.json", sizes_of) for name in models)
    yield "config.yaml", ROOT / "config/config.yaml", use_config
    state = '{"parts": {}, "left_out": {"x": "y"}, "points": {"a": {"key": "k", "sha256": "0", "about": {}}}}'
    yield "recording.json", _written(folder / MANIFEST, state), resume
    served = (ROOT / "traces/published/serving_time/llama_70b_h100.csv").read_bytes()
    (folder / "served").mkdir()
    yield "served runs", _written(folder / "served/runs.csv", served), read_served
    yield "inspected table", ROOT / "traces/published/kernel_overhead/table3.csv", recognise
    case = 'title: t\nkind: recorded\nsource: s\nlicense: l\nfiles: {"*.csv": {source: x}}\nstudies:\n'
    case += "  kernel_overhead: {a: {table: m.csv}}\n  dmat: {b: {trace: t.bin, tensors: [{name: q, pages: 2}]}}\n"
    yield "dataset.yaml", _written(folder / "dataset.yaml", case), open_dataset
    patterns = "- {name: mine, regex: '^my_(a|b)+kernel', class: gemm, family: x}\n"
    yield "kernel patterns", _written(folder / "patterns.yaml", patterns), use_patterns


def _traces(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    shape = {"version": "V3", "grid": (3, 1, 1), "block": (64, 1, 1)}
    blocks = np.ones((3, 2, 1), neutrino.records.BLOCK_SCHED)
    accesses = np.zeros((3, 64, 2), neutrino.DMAT_ACCESS)
    accesses["clock"], accesses["addr"] = np.arange(3 * 64 * 2).reshape(3, 64, 2), 0x7F0000000000
    clocks = np.zeros((3, 64, 4), neutrino.records.PROGRAM_PROGRESS)
    clocks["clock"] = 1 + np.arange(4)
    for name, level, records, read in (
        ("block trace", "warp", blocks, read_blocks),
        ("access trace", "thread", accesses, survey),
        ("branch trace", "thread", clocks, read_progress),
    ):
        path = folder / f"{name.replace(' ', '-')}.bin"
        neutrino.write_trace(path, sections=[(level, records)], **shape)
        yield name, path, read
    neutrino.write_dmat(folder / "a.dmat", [1, 1, 2], [65536, 131072, 65536], [3, 4, 5])
    yield ".dmat", folder / "a.dmat", neutrino.read_dmat


def _tables(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    yield "YAML", ROOT / "src/gpuledger/studies/kernel_overhead/study.yaml", schemas.load_yaml
    table = pd.DataFrame({"m": [1, 2, 3], "name": ["a", "b", "c"]})
    table.to_parquet(folder / "a.parquet")
    yield "Parquet", folder / "a.parquet", columns_of
    table.to_csv(folder / "m.csv", index=False)
    yield "CSV of numbers", folder / "m.csv", columns_of
    yield "CSV with a schema", folder / "m.csv", read_typed
    workbook = folder / "gpus.xlsx"
    pd.read_csv(folder / "gpus.csv").to_excel(workbook, index=False)
    yield "workbook", workbook, read_gpus
    # Damage inside of the archive, which a checksum would hide.
    with zipfile.ZipFile(workbook) as archive:
        sheet = _written(folder / "sheet.xml", archive.read("xl/worksheets/sheet1.xml"))
        rest = {name: archive.read(name) for name in archive.namelist() if not name.endswith("sheet1.xml")}
    yield "sheet of a workbook", sheet, lambda path: read_gpus(_zipped(folder, path, rest))
    pd.to_pickle({"a": table["m"].to_numpy(), "b": [1, 2], "c": {3}}, folder / "a.pkl")
    yield "pickle", folder / "a.pkl", load_plain
    pd.to_pickle({"a": [1, 2, 3], "b": np.arange(1, 5)}, folder / "clocks.pkl")
    yield "pickled clocks", folder / "clocks.pkl", read_pickled_progress


def _timelines(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"grid": [1, 1, 1]}}'
    yield "kineto", _written(folder / "a.json", f'{{"traceEvents": [{", ".join([event] * 3)}]}}'), read_timeline
    csv = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,Device,Strm,Name\n1,2,3,1,1,1,a,7,k\n5,2,4,1,1,1,a,7,k\n"
    yield "nsys table", _written(folder / "nsys.csv", csv), read_timeline
    with closing(sqlite3.connect(folder / "a.sqlite")) as database:
        database.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT); INSERT INTO StringIds VALUES (1, 'k');"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
            "correlationId INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER,"
            "gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 5, 0, 7, 1, 1, 1, 1, 1, 1, 32, 1, 1, 16);"
        )
    yield "nsys sqlite", folder / "a.sqlite", read_timeline
    frame = '{"frame": {"name": "k", "type": "function"}, "metrics": {"time (ns)": 5, "count": 1, "device_id": "0"}}'
    tree = f'[{{"frame": {{"name": "ROOT"}}, "metrics": {{}}, "children": [{frame}]}}, {{"CUDA": {{"0": {{}}}}}}]'
    yield "proton", _written(folder / "a.hatchet", tree), read_timeline


def _written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _zipped(folder: Path, sheet: Path, rest: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "zipped.xlsx", "w") as archive:
        for name, content in (rest | {"xl/worksheets/sheet1.xml": sheet.read_bytes()}).items():
            archive.writestr(name, content)
    return folder / "zipped.xlsx"


def columns_of(path: Path) -> object:
    return whole_numbers(path, read_table(path, ["m"])["m"])


def read_typed(path: Path) -> object:
    return read_csv(path, [Column("m", "integer", minimum=0), Column("name")], key=["m"])


def survey(path: Path) -> object:
    return open_accesses(path, threads=1).survey()


def open_dataset(path: Path) -> object:
    dataset = Dataset.load(path)
    return [dataset.case(*case).paths() for case in dataset.cases() if case[0] in read_studies()]


def sizes_of(path: Path) -> object:
    model = read_model(path)
    return model.parameters, model.active_parameters, model.weight_bytes(), model.kv_bytes(2**17)


def use_config(path: Path) -> object:
    config = schemas.load_yaml(path)
    schemas.check(config, schemas.load_yaml(ROOT / "workflow/schemas/config.schema.yaml"), path)
    repository = Repository(ROOT, config)
    repository.check_config()
    return [repository.case(*name.split("/")) for name in config.get("overrides", {})]


def resume(path: Path) -> object:
    recording = Recording(path.parent)
    return [recording.is_made(name, "k") for name in ("a", "b")], list(recording.left_out.items())


def read_served(path: Path) -> object:
    file = _written(path.with_name("dataset.yaml"), SERVED.replace("NAME", path.name))
    return read_runs(Dataset.load(file).case("serving_time", "c"), find_gpu("h100-sxm"))


def use_patterns(path: Path) -> object:
    content = schemas.load_yaml(path)
    schema = read_studies()["metric_sweep"].case["properties"]["kernel_patterns"]
    schemas.check(content, schema, path)
    return classify(["my_" + "a" * 30 + "x", "my_abkernel"], extend_patterns(content, file=path))


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
