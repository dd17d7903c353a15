"""Text that ncu prints in a terminal, and real reports of NVIDIA in every printing of an installed ncu."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuledger.errors import InputError
from gpuledger.readers import ncu
from gpuledger.readers.ncu.labels import NAMES
from gpuledger.readers.ncu.quantities import launch_quantities
from gpuledger.readers.ncu.text_pages import csv_of_text
from gpuledger.studies import kernel_profile

DETAILS = """\
==PROF== Connected to process 77 (/usr/bin/python3)
  1.5 ----- ----- ----- printed by the program
[77] python3@127.0.0.1
  void add<float, (int)4>(T1 *, int) (1024, 2, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Elapsed Cycles                cycle      129,977
    Duration                         us        12.50
    DRAM Throughput                   %        91.75
    ----------------------- ----------- ------------

    OPT   The kernel is utilizing greater than 80.0% of the available memory performance.
          Registers Per Thread                 99      99

    Section: Launch Statistics
    ----------------------- --------------- ------------
    Metric Name                 Metric Unit Metric Value
    ----------------------- --------------- ------------
    Registers Per Thread    register/thread           32
    ----------------------- --------------- ------------

  void add<float, (int)4>(T1 *, int) (8, 1, 1)x(64, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Duration                         ns          900
    ----------------------- ----------- ------------
"""
RAW = """\
[5] a.out@host
  copy(double *), 2022-May-10 20:02:12, Context 1, Stream 7
  Metric Name                                Metric Unit          Metric Value
  ---------------------------------------- ------------- ---------------------
  device__attribute_display_name                              NVIDIA RTX A2000
  dram__bytes_read.sum                             Mbyte                 25.17
  gpu__time_duration.sum                         usecond                239.01
"""
SUMMARY = """\
[5] a.out@host
  copy(double *), Block Size 256, Grid Size 12288, Device 0, 3 invocations
    Section: GPU Speed Of Light Throughput
    Metric Name            Metric Unit Minimum    Maximum    Average
    ---------------------- ----------- ---------- ---------- ----------
    gpu__time_duration.sum usecond     100.000000 140.000000 120.000000
"""
SAMPLES = Path("/usr/share/doc/nsight-compute/examples/uncoalescedGlobalAccesses")
SECTIONS = Path("/usr/lib/x86_64-linux-gnu/nsight-compute/sections")


def read(tmp_path, text):
    path = tmp_path / "printed.txt"
    path.write_text(text, "utf-8")
    return ncu.read(path)


def test_details_of_the_terminal(tmp_path):
    report = read(tmp_path, DETAILS)
    frame = launch_quantities(report)
    assert frame["time_s"].tolist() == pytest.approx([12.5e-6, 0.9e-6])
    assert frame["grid"].tolist() == ["(1024, 2, 1)", "(8, 1, 1)"]
    assert frame["grid_blocks"].tolist() == [2048, 8]
    assert frame["registers"].tolist()[0] == 32
    assert frame["dram_percent"].tolist()[0] == 91.75
    assert set(frame["kernel"]) == {"void add<float, (int)4>(T1 *, int)"}
    assert report.launches["process_id"].tolist() == [77, 77]
    assert report.launches["compute_capability"].tolist() == ["9.0", "9.0"]
    assert len(report.metrics) == 5


def test_raw_page_of_an_older_version(tmp_path):
    frame = launch_quantities(read(tmp_path, RAW))
    assert frame.loc[0, "time_s"] == pytest.approx(239.01e-6)
    texts = read(tmp_path, RAW).metrics.set_index("metric")["text"]
    assert texts["device__attribute_display_name"] == "NVIDIA RTX A2000"


def test_summary_of_the_terminal(tmp_path):
    report = read(tmp_path, SUMMARY)
    frame = launch_quantities(report)
    assert report.page == "summary"
    assert (frame.loc[0, "launches"], frame.loc[0, "time_s"]) == (3, pytest.approx(120e-6))


def test_windows_line_ends_and_a_cut(tmp_path):
    whole = read(tmp_path, DETAILS.replace("\n", "\r\n"))
    assert len(whole.metrics) == 5
    assert len(read(tmp_path, DETAILS[: DETAILS.index("DRAM Throughput")]).metrics) == 2


@pytest.mark.parametrize(
    "sign", ["0: ", " 12: ", "[1,0]<stdout>:", "// ", " * ", "#", "> ", "app-1  | ", "\x1b[36mapp-1  |\x1b[0m "]
)
def test_what_launchers_and_comments_put_in_front_of_every_line(tmp_path, sign):
    whole = read(tmp_path, DETAILS)
    found = read(tmp_path, "".join(f"{sign}{line}\n" for line in DETAILS.splitlines()))
    assert found.metrics.equals(whole.metrics) and found.launches.equals(whole.launches)


def test_a_logger_may_put_a_time_in_front_of_every_line(tmp_path):
    whole = launch_quantities(read(tmp_path, DETAILS))
    lines = DETAILS.splitlines()
    timed = "".join(f"2026-07-01T10:00:{at:02}.5Z [rank0]: {line}\n" for at, line in enumerate(lines))
    assert launch_quantities(read(tmp_path, timed)).equals(whole)
    with pytest.raises(InputError, match="no metric table"):
        read(tmp_path, "".join(f"[rank{rank}]: {line}\n" for line in lines for rank in (0, 1)))


def test_a_comment_in_a_program(tmp_path):
    page = "".join(f"// {line}\n" for line in DETAILS.splitlines())
    frame = launch_quantities(read(tmp_path, f"#include <cstdio>\nint main() {{ return 0; }}\n{page}"))
    assert frame["time_s"].tolist() == pytest.approx([12.5e-6, 0.9e-6])


def test_pages_of_processes_between_each_other_are_not_one(tmp_path):
    with pytest.raises(InputError, match="no metric table"):
        read(tmp_path, "".join(f"{rank}: {line}\n" for line in DETAILS.splitlines() for rank in (0, 1)))


def test_what_somebody_pasted_into_a_page(tmp_path):
    start = DETAILS.index("\n", DETAILS.index("[77]")) + 1
    whole = launch_quantities(read(tmp_path, DETAILS))
    for text in (DETAILS[start:], "".join(f"      {line}\n" for line in DETAILS.splitlines())):
        frame = launch_quantities(read(tmp_path, text))
        assert frame["time_s"].tolist() == whole["time_s"].tolist()
        assert frame["kernel"].tolist() == whole["kernel"].tolist()


WIDE = f"""\
[5] a.exe@127.0.0.1
  copy(double *), 2022-May-10 20:02:12, Context 1, Stream 7
    Section: Command line profiler metrics
    {"-" * 70} {"-" * 15} {"-" * 30}
    gpu__time_duration.sum{"usecond":>64}{"12.58":>31}
    smsp__warps.sum{"0":>102}
    {"-" * 70} {"-" * 15} {"-" * 30}
"""


def divided(text, width):
    """Return what a terminal of some width shows."""
    pieces = ([line[at : at + width] for at in range(0, len(line), width)] or [""] for line in text.split("\n"))
    return "\n".join(piece for line in pieces for piece in line)


@pytest.mark.parametrize("text", [DETAILS, WIDE])
def test_lines_that_a_terminal_divided_are_whole_again(tmp_path, text):
    whole = read(tmp_path, text)
    for width in range(24, 121):
        found = read(tmp_path, divided(text, width))
        assert found.metrics["value"].tolist() == whole.metrics["value"].tolist(), width
        assert found.launches["kernel"].tolist() == whole.launches["kernel"].tolist(), width


def test_blanks_at_the_ends_of_divided_lines_may_be_gone(tmp_path):
    text = "".join(f"{line.rstrip()}\n" for line in divided(WIDE, 120).split("\n"))
    assert read(tmp_path, text).metrics["value"].tolist() == pytest.approx([12580, 0])


def test_a_divided_name_needs_no_indentation(tmp_path):
    text = divided("".join(f"{line.strip()}\n" for line in DETAILS.splitlines()), 78)
    assert set(read(tmp_path, text).launches["kernel"]) == {"void add<float, (int)4>(T1 *, int)"}


def test_labels_of_2019(tmp_path):
    text = DETAILS.replace("DRAM Throughput", "SOL FB         ")
    assert launch_quantities(read(tmp_path, text))["dram_percent"].tolist()[0] == 91.75


def test_lines_keep_their_numbers():
    lines = b"".join(csv_of_text([DETAILS.encode()])).decode().split("\n")
    assert len(lines) == len(DETAILS.split("\n"))
    at = next(number for number, line in enumerate(DETAILS.split("\n")) if "Registers" in line and "thread" in line)
    assert lines[at].endswith('"Launch Statistics","Registers Per Thread","register/thread","32"')


# NVIDIA's samples, where Debian's nsight-compute is installed


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    if not SAMPLES.is_dir() or shutil.which("ncu") is None:
        pytest.skip("NVIDIA's sample reports are not here: install Debian's nsight-compute")
    return SAMPLES


@pytest.mark.parametrize(
    "name, blocks, time_ns, read_write, sectors",
    [
        ("addConstDouble", 12288, 239_008, 25_170_048 + 23_673_216, 1_576_816),
        ("addConstDouble3", 4096, 294_336, None, None),
    ],
)
def test_samples_in_every_printing(samples, tmp_path, name, blocks, time_ns, read_write, sectors):
    """Of 3 × 1024² doubles each is added to once, whatever the page, the units and the decimals."""
    report = samples / f"{name}.ncu-rep"
    frame = launch_quantities(ncu.read(report)).iloc[0]
    assert (frame["flops"], frame["fp64_flops"], frame["grid_blocks"]) == (3 << 20, 3 << 20, blocks)
    assert frame["time_s"] * 1e9 == pytest.approx(time_ns)
    if read_write:
        assert (frame["dram_bytes"], frame["l2_bytes"]) == (read_write, 32 * sectors)
    for options in (
        "--page raw --csv",
        "--page raw --csv --print-fp",
        "--page raw --csv --print-units base",
        "--page raw",
        "--page details --csv",
        "--page details",
        "--page details --csv --print-summary per-kernel",
        "--page details --print-summary per-kernel",
    ):
        path = tmp_path / "printed"
        with path.open("wb") as file:
            subprocess.run(
                ["ncu", "--import", report, *options.split()], env=os.environ | {"LC_ALL": "C"}, check=True, stdout=file
            )
        again = launch_quantities(ncu.read(path)).iloc[0]
        assert again["kernel"] == frame["kernel"]
        assert again["grid_blocks"] == blocks
        assert again["registers"] == 16
        assert again["time_s"] == pytest.approx(frame["time_s"], rel=2e-5)
        assert again["dram_bytes"] == pytest.approx(frame["dram_bytes"], rel=5e-4)
        for share in ("sm_percent", "dram_percent", "l1_percent", "l2_percent", "occupancy_percent"):
            assert again[share] == pytest.approx(frame[share], abs=0.006), options
        if "raw" in options:
            assert again["flops"] == pytest.approx(3 << 20, rel=2e-4)


def test_samples_before_and_after(samples):
    """What NVIDIA's document shows: fewer L2 sectors and 1.23 times the speed once accesses coalesce."""
    profile = kernel_profile.profile
    result = profile(samples / "addConstDouble.ncu-rep", baseline=samples / "addConstDouble3.ncu-rep")
    assert (result["time"], result["baseline_time"]) == (pytest.approx(239_008e-9), pytest.approx(294_336e-9))
    assert "1.23× as fast as the baseline" in result["finding"]
    before, after = (launch_quantities(ncu.read(samples / f"addConstDouble{which}.ncu-rep")) for which in ("3", ""))
    assert before.loc[0, "l2_bytes"] > 1.5 * after.loc[0, "l2_bytes"]


def test_labels_are_those_of_the_installed_sections():
    if not SECTIONS.is_dir():
        pytest.skip("Debian's nsight-compute is not installed")
    printed = {}
    for path in SECTIONS.glob("*.section"):
        for block in re.findall(r"Metrics\s*\{(.*?)\}", path.read_text("utf-8"), re.DOTALL):
            found = dict(re.findall(r'(Label|Name):\s*"(.*?)"', block))
            if len(found) == 2:
                printed.setdefault(found["Label"], set()).add(found["Name"])
    ours = {}
    for (label, _), name in NAMES.items():
        ours.setdefault(label, set()).add(name)
    known = printed.keys() & ours.keys()
    assert len(known) > 20
    assert not {label: ours[label] for label in known if not ours[label] & printed[label]}
