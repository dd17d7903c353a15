"""What is no table is refused with one line that says why; nothing but InputError leaves the reader."""

import gzip
import io
import random
import re
import tempfile
import time
import warnings
import zipfile
from pathlib import Path

import pytest
from damage import damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from ncu_values import wide
from test_ncu_reader import DATA, HEADER, row

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers import ncu
from gpuledger.readers.ncu import tables


def refusal(path, **options):
    with pytest.raises(InputError) as caught:
        ncu.read(path, **options)
    text = str(caught.value)
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


@pytest.fixture
def refused(tmp_path):
    def write_and_read(content: str | bytes, name: str = "x.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return refusal(path)

    return write_and_read


PROF = "==PROF== Connected to process 1 (/a.out)\n==PROF== Disconnected from process 1\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", ": the file is empty; profile again"),
        ("\ufeff\r\n\r\n", ": the file is empty; profile again"),
        (PROF, ": there are only ==PROF== messages and no metric table; give the file that the table went to"),
        (
            PROF + "==ERROR== The application returned an error code (1).\n",
            ": there is no metric table, because ncu failed: The application returned an error code (1); fix",
        ),
        (
            "==ERROR== The application returned an error code (9).\n==ERROR== ERR_NVGPUCTRPERM - no permission.\n",
            "ncu failed: ERR_NVGPUCTRPERM - no permission; The application returned an error code (9); fix",
        ),
        (
            PROF + "==WARNING== No kernels were profiled.\n",
            ": there is no metric table, because no kernels were profiled; check that the program launches",
        ),
        ('"Session","Value"\n"Device Attributes",""\n"display_name","A"\n', ": this is a session page (device and"),
        ('"#","Address","Source","# Samples"\n"1","0x0","MOV R1, R2","3"\n', ": this is a source page (one row per"),
        ('"Kernel Name","k"\n"#","Source","Warp Stall Sampling (All Samples)"\n', ": this is a source page"),
        ("  Section: Occupancy\n  ------- -------\n", ": this is text output of ncu, not CSV; run ncu with --csv"),
        (
            "Time (%),Total Time (ns),Instances,Name\n1,2,3,k\n",
            ": this is output of Nsight Systems, not Nsight Compute",
        ),
        (row("a", "1.5"), ", line 1: the rows have no header; keep the header line, which begins with ID"),
        ("hello\nworld\n", ": there is no metric table of Nsight Compute; give the output of ncu --csv"),
        (HEADER, ": the table has a header but no row with a metric; check"),
        (HEADER + row("", "", ""), ": the table has a header but no row with a metric; check"),
        (
            "\n" + HEADER.replace(',"Metric Value"', ""),
            ", line 2: the table has no column 'Metric Value' (it has ID, Process ID",
        ),
        (HEADER.replace('"Stream"', '"Context"'), ", line 1: the header has the column 'Context' twice; export"),
        ('"ID","Kernel Name","CC"\n"","",""\n', ", line 1: the table has no metric column; export"),
        (HEADER + row("a", "1.5") + row("b", "2.5")[:-60], ", line 3: the row is incomplete: "),
        (HEADER + row("a", "1.5") + row("b", "2.5")[:-3], ", line 3: the row is incomplete: a quote is open; the"),
        (HEADER + PROF + row("a", "1.5") + row("b", "2.5")[:5], ", line 5: the row is incomplete: a quote is open"),
        (HEADER + row("a", "1.5") + '"0","1","app","h"\n' + row("b", "2"), "incomplete: it has 4 fields, not 15"),
        (HEADER + row("a", "1.5") + '"ID","Kernel Name","m"\n0,"k",1\n', ": the file mixes long and wide pages; keep"),
        (
            b"NVR\0\0\0",
            ": reading a report needs ncu, and none is on the PATH; install Nsight Compute (reading needs no GPU)",
        ),
    ],
)
def test_no_table(refused, monkeypatch, content, reason):
    monkeypatch.setenv("PATH", "")
    assert reason in refused(content)


def test_a_row_cut_short_far_behind_the_first_block_is_located(refused):
    rows = [row("m", str(i), launch=i, kernel="k" * 3000) for i in range(800)]
    rows[700] = rows[700][:-20] + "\n"
    assert ", line 702: the row is incomplete" in refused(HEADER + "".join(rows))


def test_a_wide_row_cut_short(refused):
    text = (DATA / "raw.csv").read_text().removesuffix("==PROF== Disconnected\n")
    assert ", line 4: the row is incomplete: it has 17 fields, not 18" in refused(text.rpartition(',"')[0])


def test_paths(tmp_path):
    assert "No such file" in refusal(tmp_path / "none.csv")
    assert "Is a directory" in refusal(tmp_path)


def test_arguments():
    with pytest.raises(ValueError, match="decimal=';': give"):
        ncu.read(DATA / "raw.csv", decimal=";")


def test_of_several_values_in_one_launch_the_first_counts(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(HEADER + row("a", "1.5", section="s") + row("a", "2.5", section="t"))
    assert ncu.read(path).metrics["value"].tolist() == [1.5, 2.5]
    assert wide(ncu.read(path), ["a"]).to_numpy().tolist() == [[1.5]]


# Archives


def zipped(*members, compression=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zipped(), ": the archive holds 0 files, not one; compress the CSV again, alone"),
        (zipped(("a.csv", ""), ("b.csv", "")), ": the archive holds 2 files, not one; compress"),
        (zipped(("../a.csv", HEADER)), ", member '../a.csv': the name leaves the archive's folder; compress"),
        (zipped(("/a.csv", HEADER)), "the name leaves the archive's folder"),
        (zipped(("a.csv", HEADER * 9))[:-30], ": the archive is damaged ("),
        (gzip.compress(HEADER.encode())[:-9], ": the archive is damaged ("),
        (zipped(("a.ncu-rep", b"NVR\0")), ": the archive holds a report, not a CSV; unpack it and give"),
        (zipped(("a.csv", b"\0" * (40 << 20))), ": a line is longer than 32 MiB; give a CSV"),
    ],
)
def test_archives(refused, content, reason):
    assert reason in refused(content, "x.zip")


def test_a_bomb_of_lines_stops(refused, monkeypatch):
    monkeypatch.setattr("gpuledger.readers.ncu.sources.UNPACKED_BYTES", 4 << 20)
    reason = ": the archive unpacks to more than 4 MiB; decompress it by hand"
    assert reason in refused(zipped(("a.csv", b"\n" * (5 << 20))))
    assert reason in refused(gzip.compress(b"\n" * (5 << 20)))


# Reports, through a stand-in for ncu

FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo "Version 2024.1.1.0 (build 1)"; exit 0; fi
[ "$LC_ALL" = C ] || exit 3
printf '%s\\n' "$@" >> "{arguments}"
{action}
"""


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    def install(action: str):
        program = tmp_path / "bin" / "ncu"
        program.parent.mkdir()
        program.write_text(FAKE.format(action=action, arguments=tmp_path / "arguments"))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        report = tmp_path / "-a report; with odd name.ncu-rep"
        report.write_bytes(b"NVR\0binary")
        return report

    return install


def test_a_report_is_read_through_ncu(fake_ncu, tmp_path):
    path = fake_ncu(f'cat "{DATA / "raw.csv"}"')
    report = ncu.read(path)
    assert wide(report, ["dram__bytes.sum"]).iloc[:, 0].tolist() == [12_582_912, 290_000]
    arguments = (tmp_path / "arguments").read_text().splitlines()
    command = ["--import", str(path), "--csv", "--page", "raw", "--print-units"]
    assert arguments == [*command, "base", *command, "auto"]


def test_a_report_without_ncu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"NVR\0")
    text = refusal(path)
    assert "reading a report needs ncu, and none is on the PATH; install Nsight Compute" in text
    assert "LC_ALL=C ncu --import REPORT --csv --page raw --print-units base" in text


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (
            'echo "==ERROR== The report was created by a newer version." >&2; exit 1',
            "the installed ncu 2024.1.1.0 is older than the report (The report was created by a newer version.); "
            "install an Nsight Compute at least as new",
        ),
        (
            'echo "==ERROR== Failed to load report."; exit 0',
            "ncu 2024.1.1.0 could not read the report (Failed to load report.); check that the file is complete",
        ),
        ("exit 5", "ncu 2024.1.1.0 could not read the report (exit status 5); check"),
        ("exit 0", ": the file is empty"),
    ],
)
def test_a_report_that_ncu_refuses(fake_ncu, action, reason):
    assert reason in refusal(fake_ncu(action))


def test_an_ncu_that_does_not_start(fake_ncu, tmp_path):
    path = fake_ncu("exit 0")
    (tmp_path / "bin" / "ncu").write_bytes(b"\x7fELF")
    assert "does not start" in refusal(path)


# Fuzzing

SEEDS = sorted(path.read_bytes() for path in DATA.iterdir())
SEEDS += [zipped(("a.csv", SEEDS[0])), gzip.compress(SEEDS[1])]
TOKENS = [b'"', b",", b"\n", b'"\n', b"\r", b"\0", b"\xff", b"==ERROR== ", b'""', b"\xef\xbb\xbf", b"9" * 50, b"e99"]
TOKENS += [b'"ID","', b"Kernel Name", b'"Metric Name"', b"(1, 2)", b"-", b";", b"Gbyte", b"n/a", b"1.234,5"]


def read_or_refuse(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        path.write_bytes(content)
        try:
            report = ncu.read(path)
            assert len(report.metrics) and report.metrics["launch"].max() < len(report.launches)
            wide(report, list(report.metrics["metric"].cat.categories[:2]))
        except InputError as error:
            assert re.search(r": .+; .+", str(error))


@pytest.mark.filterwarnings("ignore::gpuledger.errors.InputWarning")
@pytest.mark.parametrize("seed", range(8))
def test_mutated_bytes_are_read_or_refused(seed):
    chance = random.Random(seed)
    for _ in range(60):
        read_or_refuse(damaged(chance.choice(SEEDS), chance, TOKENS))


LINES = st.lists(st.sampled_from([HEADER.encode(), row("a", "1.5").encode(), row("b", "2,5").encode(), *TOKENS]))


@settings(max_examples=60, deadline=None)
@given(LINES, st.binary(max_size=20))
def test_any_order_of_known_pieces_is_read_or_refused(pieces, junk):
    read_or_refuse(HEADER.encode() + b"".join(pieces) + junk)


def test_open_quotes_in_every_row_take_linear_time(tmp_path):
    header = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    header += '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    row = '"0","1","p","h","k","1","7","(1, 1, 1)","(1, 1, 1)","0","8.0","S","m","inst","1"\n'
    path = tmp_path / "a.csv"
    path.write_text(header + row + '"0","1","p","h","k\n' * 80_000)
    begin = time.process_time()
    with pytest.raises(InputError, match=r"line 2: the row is incomplete: a quote is open"):
        ncu.read(path)
    assert time.process_time() - begin < 4  # 13 s when each row was compared with all others


def test_a_share_that_no_hardware_reaches_is_warned_of(tmp_path):
    """Counters of several passes may give a few per cent too much; other percentages have no such bound."""
    shares = [row("dram__throughput.avg.pct_of_peak_sustained_elapsed", value, "%", launch=1) for value in (250, 104)]
    fine = row("lts__t_sector_hit_rate.pct", 130, "%") + row("Memory Throughput", "250", "byte/s") + shares[1]
    # As an H200 counted a launch of one block: its SM against the average of all.
    fine += row("sm__warps_active.max.pct_of_peak_sustained_active", "971.4", "%")
    (tmp_path / "x.csv").write_text(HEADER + fine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ncu.read(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text(HEADER + fine + shares[0] + row("SOL DRAM", "111", "%", launch=2))
    with pytest.warns(InputWarning) as caught:
        ncu.read(tmp_path / "x.csv")
    said = ", launch 2, dram__throughput.avg.pct_of_peak_sustained_elapsed: 250 % of the peak (and 1 more above 110 %)"
    assert len(caught) == 1 and str(caught[0].message).startswith(f"{tmp_path / 'x.csv'}{said}")


def test_a_line_that_repeats_a_name_of_headers_is_looked_at_once(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(tables, "parse_header", lambda path, line, *_: looked.append(line))
    (tmp_path / "a.csv").write_text("Kernel Name," * 1000 + "\nMetric Name\n")
    with pytest.raises(InputError, match="no metric table"):
        ncu.read(tmp_path / "a.csv")
    assert [len(line) for line in looked] == [12_000, 11]
