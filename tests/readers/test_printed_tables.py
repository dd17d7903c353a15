"""Tables of kernels that nsys, rocprofv3 and torch.profiler print in a terminal, as people keep them."""

import csv
import io
import re
import warnings

import pandas as pd
import pytest

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.timelines import read_timeline, timeline_format

HEADER = " Time (%)  Total Time (ns)  Instances  Avg (ns)    Name"
RULE = " --------  ---------------  ---------  --------  ---------"
CALLS = HEADER.replace("Instances", "Num Calls")
NSYS = f"""
 ** CUDA API Summary (cuda_api_sum):

{CALLS}
{RULE}
     90.0           90,000          3  30,000.0  cudaMalloc

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

{HEADER}
{RULE}
     75.0            6,000          3   2,000.0  void gemm<float, 2>(int *)
     25.0            2,000          1   2,000.0  add  of two

 ** CUDA GPU MemOps Summary (by Time) (cuda_gpu_mem_time_sum):

 Time (%)  Total Time (ns)  Count  Avg (ns)  Operation
"""


@pytest.fixture
def read(tmp_path):
    def write_and_read(text, name="a.txt"):
        (tmp_path / name).write_text(text, "utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kernels = read_timeline(tmp_path / name).kernels
        return kernels[["kernel", "launches"]].to_numpy().tolist(), kernels["duration_s"].tolist()

    return write_and_read


def test_what_nsys_stats_prints(read):
    expected = [["void gemm<float, 2>(int *)", 3], ["add  of two", 1]], pytest.approx([6e-6, 2e-6])
    assert read(NSYS) == expected
    assert read(NSYS.replace("\n", "\r\n")) == expected
    titles_alone = "".join(line for line in NSYS.splitlines(keepends=True) if line.strip())
    assert read(titles_alone) == expected
    old = NSYS.replace("Time (%)", "Time(%)").replace("** CUDA GPU Kernel Summary (cuda_gpu_kern_sum)", "CUDA Kernels")
    assert read(old.replace("(ns)", "(us)"))[1] == pytest.approx([6e-3, 2e-3])
    for sign in ("// ", "# ", "> ", "  //", " * ", "12: ", "[1,0]<stdout>:"):
        assert read("".join(f"{sign}{line}" for line in NSYS.splitlines(keepends=True))) == expected
    # Somebody cut rows out.
    assert read(NSYS.replace("     25.0", "  ...\n     25.0")) == expected


def test_a_log_may_begin_with_brackets(read, tmp_path):
    for first in ("[INFO] step 3", "[2026-01-31 10:00:00] step 3", "[1] 4711"):
        assert read(first + NSYS)[0][1] == ["add  of two", 1]
    (tmp_path / "list.json").write_text('[{"ph": "X"}]')
    assert timeline_format(tmp_path / "list.json") == "kineto"


def test_tables_with_bars(read):
    table = """
+----------+-----------------+-----------+------------+
| Time (%) | Total Time (ns) | Instances |    Name    |
+----------+-----------------+-----------+------------+
|     75.0 |            6000 |         3 | gemm(int)  |
|     25.0 |           2,000 |         1 | `add`      |
+----------+-----------------+-----------+------------+
| behind   | 1               | 1         | the table  |
"""
    assert read(table) == ([["gemm(int)", 3], ["add", 1]], pytest.approx([6e-6, 2e-6]))


def test_tables_with_tabs(read):
    rows = [
        "Time (%)\tTotal Time (ns)\tInstances\tStyle\tName",
        '75.0\t6000\t3\t\t"gemm(int, int)"',
        "25.0\t2000\t1\t\tadd",
    ]
    assert read("\r\n".join(rows)) == ([["gemm(int, int)", 3], ["add", 1]], pytest.approx([6e-6, 2e-6]))


def test_empty_cells_are_where_the_dashes_say(read, tmp_path):
    text = """
 Start (ns)  Duration (ns)  CorrId  GrdX  GrdY  GrdZ  BlkX  BlkY  BlkZ  Bytes (MB)  Strm  Name
 ----------  -------------  ------  ----  ----  ----  ----  ----  ----  ----------  ----  ----------------
       1000           2500       7                                          16.777     7  [CUDA memcpy HtoD]
       5000           1000       8     4     2     1   128     1     1                13  gemm(int)
"""
    assert read(text) == ([["[CUDA memcpy HtoD]", 1], ["gemm(int)", 1]], pytest.approx([2.5e-6, 1e-6]))
    kernels = read_timeline(tmp_path / "a.txt").kernels
    assert kernels[["kind", "grid", "stream"]].to_numpy().tolist() == [["copy", "", 7], ["kernel", "4x2x1", 13]]


def test_cells_with_blanks_are_where_the_dashes_say(read):
    text = """
  Time (%)  Total Time (ns)  Instances    GridXYZ        BlockXYZ      Name
  --------  ---------------  ---------  -------------  ------------  ---------
      75.0             6000          3  125    1    1  32    1    1  gemm(int)
"""
    assert read(text) == ([["gemm(int)", 3]], pytest.approx([6e-6]))
    # Where the header lost its indentation, and the dashes with it, blanks tell the columns.
    lines = "\n".join(line.strip() for line in NSYS.splitlines())
    assert read(lines)[0] == [["void gemm<float, 2>(int *)", 3], ["add  of two", 1]]


ROCPROF = """
    ROCPROFV3 {title}SUMMARY:

    |     NAME     |     DOMAIN      | CALLS | DURATION (nsec) | PERCENT (INC) |
    |--------------|-----------------|-------|-----------------|---------------|
"""
GEMM = "    | gemm(float*) | KERNEL_DISPATCH |     2 |       8,000,000 |     62.588122 |\n"
CALL = "    | hipMemcpy    | HIP_API         |     3 |     193,410,768 |     22.041107 |\n"


def test_summaries_of_rocprofv3(read):
    expected = [["gemm(float*)", 2]], pytest.approx([8e-3])
    assert read(f"n = 5{ROCPROF.format(title='')}{CALL}{GEMM}") == expected
    # By domain, and then all of them: one run.
    tables = ROCPROF.format(title="HIP_API ") + CALL + ROCPROF.format(title="KERNEL_DISPATCH ") + GEMM
    assert read(f"{tables}{ROCPROF.format(title='')}{GEMM}{CALL}") == expected


@pytest.mark.parametrize(
    "end", ["\n** CUDA API Summary (cuda_api_sum):\n", "\n", "\nProcessing [a.sqlite]...\n", "\n```\nThen, calls:\n"]
)
def test_csv_of_several_reports_without_an_empty_line(read, end):
    calls = '"Time (%)","Total Time (ns)","Num Calls","Name"\n"100.0","9000000","20","cudaGraphLaunch"\n'
    kernels = '"Time (%)","Total Time (ns)","Instances","Name"\n"100.0","2000","20","gemm"'
    assert read(f"{kernels}{end}{calls}") == ([["gemm", 20]], pytest.approx([2e-6]))


@pytest.mark.parametrize("between", ["\n\n", " \n \n", "\r\r\n"])
def test_every_second_line_may_be_empty(read, between):
    kernels = '"Time (%)","Total Time (ns)","Instances","Name"\n75.0,6000,3,gemm\n25.0,2000,1,add\n\nTime (%),Name\n'
    expected = [["gemm", 3], ["add", 1]], pytest.approx([6e-6, 2e-6])
    assert read(kernels.replace("\n", between)) == expected
    nvprof = " GPU activities:   75.00%  6.000us         3  2.000us  1.000us  3.000us  gemm\n"
    nvprof += "                   25.00%  2.000us         1  2.000us  2.000us  2.000us  add\n"
    nvprof += "      API calls:   25.00%  2.000us         1  2.000us  2.000us  2.000us  cudaMalloc\n"
    nvprof = f"            Type  Time(%)      Time     Calls       Avg       Min       Max  Name\n{nvprof}"
    assert read(nvprof.replace("\n", between)) == expected


def test_tables_of_other_runs_are_told_of(tmp_path):
    path = tmp_path / "sweep.log"
    path.write_text(NSYS + NSYS.replace("6,000", "7,000") + NSYS)
    with pytest.warns(InputWarning, match="1 more table of this kind follows; not read: keep the output of each run"):
        assert read_timeline(path).kernels["duration_s"].sum() == pytest.approx(8e-6)


BOX = """\
0.1 Top Kernels
╒════╤══════════════════════╤═════════╤═══════════╤════════════╤══════════════╤════════╕
│    │ Kernel_Name          │   Count │   Sum(ns) │   Mean(ns) │   Median(ns) │    Pct │
╞════╪══════════════════════╪═════════╪═══════════╪════════════╪══════════════╪════════╡
│  0 │ copy(double*, int,   │    2.00 │   6000.00 │    3000.00 │      3000.00 │  75.00 │
│    │ int) [clone .kd]     │         │           │            │              │        │
├────┼──────────────────────┼─────────┼───────────┼────────────┼──────────────┼────────┤
│  1 │ Cijk_Ailk_Bljk_MT64x │    1.00 │   2000.00 │    2000.00 │      2000.00 │  25.00 │
│    │ 32x16_SN.kd          │         │           │            │              │        │
╘════╧══════════════════════╧═════════╧═══════════╧════════════╧══════════════╧════════╛
0.2 Dispatch List
│  0 │             0 │ copy │
"""


def test_a_box_of_rocprof_compute(read, tmp_path):
    expected = [["copy(double*, int, int)", 2], ["Cijk_Ailk_Bljk_MT64x32x16_SN", 1]], pytest.approx([6e-6, 2e-6])
    assert read(BOX) == expected
    assert read(BOX[: BOX.index("╘")]) == expected, "cut off"
    text = (
        'Kernel_Name,Count,Sum(ns),Mean(ns),Median(ns),Percent\n"copy(double*, int) [clone .kd]",2,6000,3000,3000,100\n'
    )
    assert read(text) == ([["copy(double*, int)", 2]], pytest.approx([6e-6]))


def printed_by_torch(rows, device="CUDA", total=""):
    columns = ("Name", "Self CPU %", "Self CPU", "CPU total", f"Self {device}", f"Self {device} %", "# of Calls")
    cells = [(name, "1.00%", cpu, cpu, own, share, calls) for name, cpu, own, share, calls in rows]
    rule = "  ".join(["-" * 30] * len(columns))
    header, *lines = ["  ".join(f"{cell:>30}" for cell in row) for row in (columns, *cells)]
    totals = f"Self CPU time total: 1s\nSelf {device} time total: {total}\n" if total else ""
    return "\n".join([rule, header, rule, *lines, rule, totals])


@pytest.mark.parametrize("device", ["XPU", "HPU", "PrivateUse1"])
def test_torch_on_other_devices(read, device):
    rows = [
        ("aten::mm", "65.000ms", "800.000us", "97.00%", "1"),
        ("gemm_kernel", "0.000us", "800.000us", "97.00%", "1"),
        ("Memset (DEVICE)", "0.000us", "20.000us", "3.00%", "1"),
    ]
    expected = [["gemm_kernel", 1], ["Memset (DEVICE)", 1]], pytest.approx([800e-6, 20e-6])
    assert read(printed_by_torch(rows, device, "820.000us")) == expected


SIGNS = ["# ", "#", "// ", "/// ", "> ", "    ", " * ", "| "]
LOGGERS = ["2026-07-01T10:00:00.123Z ", "INFO 07-01 10:00:00 [gpu_worker.py:77] ", "[rank0]: "]
LABELS = ["(Worker_TP0 pid=2551) ", "(Worker pid=7, ip=10.0.0.1) ", "0: ", "[1,0]<stdout>:"]


#: As vLLM writes it into a file, too.
COLOURED = "\x1b[1;36m(Worker_TP0 pid=2551)\x1b[0;0m "


@pytest.mark.parametrize("sign", [*SIGNS, *LABELS, COLOURED, *LOGGERS, "vllm-1  | "])
def test_torch_in_comments(read, sign):
    rows = [
        ("aten::mm", "65.000ms", "800.000us", "97.00%", "1"),
        ("void gemm<float, 2>(int *)", "0.000us", "800.000us", "97.00%", "1"),
    ]
    table = "".join(f"{sign}{line}\n" for line in printed_by_torch(rows, total="800.000us").splitlines())
    expected = [["void gemm<float, 2>(int *)", 1]], pytest.approx([800e-6])
    assert read(f"import torch\n{table}x = 1\n{sign}Name  of  another  table  with  many  cells\n") == expected


@pytest.mark.parametrize("sign", [*LOGGERS, "app-1  | "])
def test_nsys_behind_what_a_logger_writes(read, sign):
    lines = [line.replace("00:00", f"00:{at:02}") for at, line in enumerate(sign + line for line in NSYS.splitlines())]
    other = "[rank1]: void other<float, 2>(int *)"
    assert read("\n".join([*lines[:6], other, *lines[6:]])) == read(NSYS)


def test_a_damaged_rule_is_no_label(read):
    """Found by the fuzzer: all that stands before its last dashes was cut off, with the header."""
    with pytest.raises(InputError, match="row 1 below the header, column Instances"):
        read(NSYS.replace(RULE, RULE.replace("  ---------  --------  ---------", "  ---------  name  ---------")))


@pytest.mark.parametrize("label", LABELS)
def test_lines_of_other_processes_are_left_out(read, label):
    rows = [("gemm_kernel", "0.000us", "800.000us", "100.00%", "1"), ("## Call x", "1s", "1s", "0.00%", "1")]
    table = printed_by_torch(rows, total="800.000us").splitlines()
    other = re.sub(r"[07](?=\b)|TP0", lambda digit: digit[0].replace("0", "9").replace("7", "8"), label)
    between = "".join(f"{one}{line}\n" for line in table for one in (label, other))
    assert read(between) == ([["gemm_kernel", 1]], pytest.approx([800e-6]))
    between = "".join(f"{one}{line}\n" for line in NSYS.splitlines() for one in (label, other))
    assert read(between)[0] == [["void gemm<float, 2>(int *)", 3], ["add  of two", 1]]


def test_torch_in_markdown(read):
    columns = ("Name", "Self CPU", "CPU total", "Self CUDA", "# of Calls")
    rows = [("aten::mm", "65.000ms", "65.000ms", "0.000us", "1"), ("`add`", "0.000us", "0.000us", "7.000us", "3")]
    lines = [columns, ("---", ":---", "---:", "---:", "---:"), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    other = "".join(f"| {' | '.join(line)} |\n" for line in (("a", "b", "c", "d", "e"), ("x", "0", "0", "1s", "2")))
    assert read(f"# Profile\n\n{table}\n{other}") == ([["add", 3]], pytest.approx([7e-6]))


@pytest.mark.parametrize("index", [True, False])
def test_a_data_frame_that_pandas_printed(read, index):
    names = ["Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Name"]
    frame = pd.DataFrame([(75.0, 6000, 3, 2000.0, "void gemm<float, 2>(int *)"), (25.0, 2000, 1, 2000.0, "add")])
    text = frame.set_axis(names, axis=1).to_string(index=index)
    assert read(f"kernels:\n{text}\n") == ([["void gemm<float, 2>(int *)", 3], ["add", 1]], pytest.approx([6e-6, 2e-6]))


@pytest.mark.parametrize("sign", [",", "\t"])
def test_torch_saved_as_a_table(read, sign):
    rows = [
        ("", "Name", "Self CPU", "CPU total", "Self CUDA", "# of Calls"),
        ("0", "aten::mm", "65.000ms", "65.000ms", "9.000us", "1"),
        ("1", f"gemm<a{sign}b>", "0.000us", "0.000us", "9.000us", "3"),
    ]
    file = io.StringIO()
    csv.writer(file, delimiter=sign).writerows(rows)
    assert read(file.getvalue()) == ([[f"gemm<a{sign}b>", 3]], pytest.approx([9e-6]))


def test_torch_saved_in_another_order(read):
    text = "Name,# of Calls,Self CPU,Self CUDA\ngemm,3,0.000us,9.000us\ncut,3,0.000us\n"
    assert read(text) == ([["gemm", 3]], pytest.approx([9e-6]))


def test_torch_without_rows_of_kernels(read):
    rows = [("aten::div", "4.095ms", "7.191ms", "49.95%", "1000")]
    with pytest.raises(InputError, match=r"no row is a kernel: operators alone have times .*row_limit=-1"):
        read(printed_by_torch(rows, total="14.395ms"))
    # Sorted by the host's time, and then by the GPU's.
    kernels = printed_by_torch([("div_kernel", "0.000us", "7.000ms", "100.00%", "1000")], total="7.000ms")
    assert read(printed_by_torch(rows) + kernels)[0] == [["div_kernel", 1000]]


def test_older_totals_count_ranges_too(read):
    rows = [
        ("loss", "0.500ms", "0.000us", "0.00%", "1"),
        ("loss", "0.000us", "9.500ms", "48.72%", "1"),
        ("void lstm<float>(float*)", "0.000us", "10.000ms", "51.28%", "4"),
    ]
    # Without a warning, which would be an error here.
    assert read(printed_by_torch(rows, total="19.500ms"))[0] == [["void lstm<float>(float*)", 4]]


@pytest.mark.parametrize("total", ["10.000ms", ""])
def test_a_marked_range_without_its_row_of_the_host(tmp_path, total):
    """Without a total below the table, shares tell it."""
    rows = [
        ("void lstm<float>(float*)", "0.000us", "7.000ms", "70.00%", "4"),
        ("inference", "0.000us", "9.500ms", "95.00%", "1"),
        ("volta_sgemm_32x128_tn", "0.000us", "3.000ms", "30.00%", "2"),
    ]
    (tmp_path / "a.txt").write_text(printed_by_torch(rows, total=total))
    with pytest.warns(InputWarning, match="inference must be a range that the program marked, and is left out"):
        kernels = read_timeline(tmp_path / "a.txt").kernels
    assert kernels["kernel"].tolist() == ["void lstm<float>(float*)", "volta_sgemm_32x128_tn"]
