"""Timelines of AMD's profilers: rocprofv3's CSV and database, and the CSV of the older rocprof."""

import gzip
import sqlite3
import tracemalloc
import warnings
from contextlib import suppress

import pytest

from gpuledger.errors import InputError, InputWarning
from gpuledger.readers.timelines import read_timeline, timeline_format

SIZES = ",".join(f'"{what}_Size_{axis}"' for what in ("Workgroup", "Grid") for axis in "XYZ")
TRACE = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    f'"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size",{SIZES}\n'
)
COPY = '"KERNEL_DISPATCH","Agent 4",1,0,9,1,2,"__amd_rocclr_copyBuffer",1,1551874061244694,1551874061255734,0,0'
GEMM = '"KERNEL_DISPATCH","Agent 5",1,3,9,2,3,"void gemm<float>(float*, int)",2,1551874061259214,1551874061270254,0,0'
STATISTICS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'


@pytest.fixture
def read(tmp_path):
    def write_and_read(text, name="1_kernel_trace.csv"):
        (tmp_path / name).write_text(text, "utf-8")
        return read_timeline(tmp_path / name)

    return write_and_read


def test_kernel_trace(read):
    timeline = read(f"{TRACE}{COPY},64,1,1,1000,16,1\n{GEMM},256,1,1,65536,4,1\n")
    kernels = timeline.kernels
    assert timeline.format == "rocprofv3 kernel trace"
    assert kernels["kernel"].tolist() == ["__amd_rocclr_copyBuffer", "void gemm<float>(float*, int)"]
    assert kernels["start_s"].to_numpy() == pytest.approx([0, 14.52e-6])
    assert kernels["duration_s"].tolist() == pytest.approx([11040e-9, 11040e-9])
    assert kernels["grid"].tolist() == ["16x16x1", "256x4x1"]  # recorded as work-items: 1000 need 16 blocks of 64
    assert kernels["block"].tolist() == ["64x1x1", "256x1x1"]
    assert kernels["stream"].tolist() == [0, 3] and kernels["device"].tolist() == [0, 1]


def test_columns_of_any_case_and_order_and_earlier_versions(read):
    """The converter of rocpd writes Lds_Block_Size and a Guid; versions before 1.1 had no streams."""
    header = TRACE.replace('"Kind"', '"Guid","Kind"').replace("LDS", "Lds")
    assert read(f'{header}"0000-ab",{GEMM},256,1,1,65536,4,1\n').kernels["grid"].tolist() == ["256x4x1"]
    old = "Kind,Agent_Id,Queue_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    kernels = read(old + "KERNEL_DISPATCH,1,139690710949888,15,transpose,0,671599758568,671599825328\n").kernels
    assert kernels["duration_s"].tolist() == [66760e-9]
    assert kernels.loc[0, ["grid", "block", "stream"]].tolist() == ["", "", -1]


def test_a_header_that_was_wrapped_is_told_of(read):
    wrapped = TRACE.replace('"LDS_', '"LDS\n_')
    told = "no row has as many cells as the header; give the file as it was written"
    with pytest.warns(InputWarning, match="2 of 2 rows have"), pytest.raises(InputError, match=told):
        read(f"{wrapped}{GEMM},256,1,1,65536,4,1\n")


def test_a_dispatch_with_a_row_per_counter_counts_once(read):
    header = TRACE.replace('"Scratch_Size"', '"Scratch_Size","Counter_Name","Counter_Value"')
    rows = [f'{GEMM},"{name}",{value},256,1,1,65536,4,1\n' for name, value in (("SQ_WAVES", 16), ("GRBM_COUNT", 9.5))]
    kernels = read(header + "".join(rows) + rows[0].replace(",9,2,", ",9,3,")).kernels
    assert len(kernels) == 2 and kernels["duration_s"].tolist() == pytest.approx([11040e-9] * 2)


def test_rows_of_something_else_and_backwards(read):
    header = "Kind,Kernel_Name,Start_Timestamp,End_Timestamp\n"
    rows = "KERNEL_DISPATCH,k,100,1100\nMEMORY_COPY,memcpy,0,9999999\nKERNEL_DISPATCH,backwards,500,100\n"
    with pytest.warns(InputWarning, match="1 event has no valid time or duration; left out"):
        kernels = read(header + rows).kernels
    assert kernels["kernel"].tolist() == ["k"] and kernels["duration_s"].tolist() == pytest.approx([1e-6])


def test_trace_of_the_older_rocprof(read):
    text = '"Index","KernelName","gpu-id","queue-id","grd","wgr","DispatchNs","BeginNs","EndNs","CompleteNs","Ns"\n'
    kernels = read(text + '0,"bodyForce(Body*, float, int) [clone .kd]",0,2,65536,256,100,200,950,990,750\n').kernels
    assert kernels.loc[0, ["kernel", "duration_s", "stream"]].tolist() == ["bodyForce(Body*, float, int)", 750e-9, 2]


def test_calls_of_the_host_that_name_kernels_are_none(read):
    header = "Domain,Function,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID\n\n"
    with pytest.raises(InputError, match="neither a timeline nor a report"):
        read(f"{header}HIP_API_DOMAIN,hipLaunchKernel,gemm,100,900,1\n")


def test_statistics_are_sums(read):
    timeline = read(STATISTICS + '"gemm<int, 2>",1000,517647434,517647.4,42.56\n"add",1001,412893767,1,33.9\n')
    assert timeline.format == "rocprof statistics (sums)" and not timeline.has_times
    assert timeline.kernels["launches"].tolist() == [1000, 1001]
    assert timeline.kernels["duration_s"].tolist() == pytest.approx([0.517647434, 0.412893767])


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_memory_is_asked_for_as_the_file_is_large(tmp_path, pack):
    (file := tmp_path / "statistics.csv").write_bytes(pack((STATISTICS + '"add",1001,412893767,1,33.9\n').encode()))
    tracemalloc.start()
    try:
        read_timeline(file)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["hipMemcpy", "__hipPushCallConfiguration", "hsa_queue_create", "KERNEL_DISPATCH"])
def test_statistics_of_something_else_are_refused(read, name):
    with pytest.raises(InputError, match=r"statistics of calls or domains, not of kernels; give kernel_stats\.csv"):
        read(f"{STATISTICS}{name},1,2,2,100\n")


@pytest.mark.parametrize("value", ["", "x", "nan", "-5", "1e999", "9" * 400, "\u0663", '"'])
def test_hostile_times(read, value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        with suppress(InputError):
            assert len(read(TRACE + GEMM.replace("1551874061259214", value) + ",256,1,1,65536,4,1\n").kernels) == 1


def test_a_header_alone_is_no_timeline(read):
    with pytest.raises(InputError, match="there is no GPU kernel in it"):
        read(TRACE)


# ----------------------------------------------------------------------------------------------------------- rocpd


def database(path, suffix="", kernels=((1000, 3500), (9000, 9500)), guid="a"):
    """A database as rocprofv3 writes it; with a suffix, without the views that join the tables of its processes."""
    with sqlite3.connect(path) as base:
        make = [
            "rocpd_string (id INT, guid TEXT, string TEXT)",
            "rocpd_info_agent (id INT, guid TEXT, type TEXT, model_name TEXT, product_name TEXT)",
            "rocpd_info_kernel_symbol (id INT, guid TEXT, kernel_name TEXT, display_name TEXT)",
            "rocpd_event (id INT, guid TEXT, category_id INT, stack_id INT)",
            "rocpd_region (id INT, guid TEXT, tid INT, start INT, end INT, name_id INT, event_id INT)",
            "rocpd_kernel_dispatch (id INT, guid TEXT, agent_id INT, kernel_id INT, stream_id INT, start INT, end INT,"
            " workgroup_size_x INT, workgroup_size_y INT, workgroup_size_z INT, grid_size_x INT, grid_size_y INT,"
            " grid_size_z INT, event_id INT)",
            "rocpd_memory_copy (id INT, guid TEXT, dst_agent_id INT, stream_id INT, start INT, end INT, name_id INT)",
        ]
        for table in make:
            name, _, columns = table.partition(" ")
            base.execute(f'CREATE TABLE "{name}{suffix}" {columns}')

        def add(table, *rows):
            for row in rows:
                base.execute(f'INSERT INTO "{table}{suffix}" VALUES ({",".join("?" * len(row))})', row)

        texts = ["hipLaunchKernel", "MEMORY_COPY_HOST_TO_DEVICE", "HIP_RUNTIME_API", "MARKER_CORE_API", "step 1"]
        add("rocpd_string", *((at, guid, text) for at, text in enumerate(texts, 1)))
        add("rocpd_info_agent", (0, guid, "CPU", "EPYC", "EPYC"), (4, guid, "GPU", "gfx942", "AMD Instinct MI300X"))
        add("rocpd_info_kernel_symbol", (7, guid, "_Z4gemmPf.kd", f"gemm_{guid}(float*)"))
        add("rocpd_event", (1, guid, 3, 50), (2, guid, 3, 50), (3, guid, 4, 51))
        add("rocpd_region", (1, guid, 11, 500, 700, 1, 1), (2, guid, 11, 100, 9900, 5, 3))
        for start, end in kernels:
            add("rocpd_kernel_dispatch", (1, guid, 4, 7, 2, start, end, 64, 1, 1, 640, 2, 1, 2))
        add("rocpd_memory_copy", (1, guid, 4, 2, 5000, 6000, 2))
    base.close()
    return path


def test_database(tmp_path):
    path = database(tmp_path / "1_results.db")
    timeline = read_timeline(path)
    assert timeline_format(path) == "sqlite" and timeline.devices == ["AMD Instinct MI300X"]
    kernels = timeline.kernels
    assert kernels["kernel"].tolist() == ["gemm_a(float*)", "MEMORY_COPY_HOST_TO_DEVICE", "gemm_a(float*)"]
    assert kernels["kind"].tolist() == ["kernel", "copy", "kernel"]
    assert kernels["start_s"].to_numpy() == pytest.approx([0, 4e-6, 8e-6])
    assert kernels["duration_s"].tolist() == pytest.approx([2.5e-6, 1e-6, 0.5e-6])
    assert kernels.loc[0, ["grid", "block", "stream", "device"]].tolist() == ["10x2x1", "64x1x1", 2, 4]
    assert kernels.loc[0, ["launched_by", "thread"]].tolist() == ["hipLaunchKernel", "11"]
    assert kernels.loc[0, "launch_s"] == pytest.approx(-0.5e-6)
    assert timeline.host[["name", "kind"]].to_numpy().tolist() == [
        ["hipLaunchKernel", "call"],
        ["step 1", "annotation"],
    ]


def test_tables_of_several_processes(tmp_path):
    """The same ids stand for different kernels in each."""
    path = database(tmp_path / "results.db", "_0a", guid="a")
    kernels = read_timeline(database(path, "_0b", guid="b")).kernels
    named = kernels.loc[kernels["kind"] == "kernel", "kernel"]
    assert named.value_counts().to_dict() == {"gemm_a(float*)": 2, "gemm_b(float*)": 2}


@pytest.mark.parametrize("table", ["memory_copy", "region", "event", "info_kernel_symbol", "string", "info_agent"])
def test_an_empty_table_is_as_one_that_is_not_there(tmp_path, table):
    for name, statement in (("empty", "DELETE FROM"), ("without", "DROP TABLE")):
        with sqlite3.connect(database(tmp_path / f"{name}.db")) as base:
            base.execute(f"{statement} rocpd_{table}")
        base.close()
    empty, without = (read_timeline(tmp_path / f"{name}.db").kernels for name in ("empty", "without"))
    assert empty.equals(without)
    assert set(empty.loc[empty["kind"] == "kernel", "kernel"]) == {"" if "symbol" in table else "gemm_a(float*)"}


@pytest.mark.parametrize("table", ["memory_copy", "region", "kernel_dispatch"])
def test_a_process_without_rows_in_a_table_changes_no_other(tmp_path, table):
    path = database(tmp_path / "results.db", "_0b", guid="b")
    alone = read_timeline(path)
    database(path, "_0a", guid="a")
    with sqlite3.connect(path) as base:
        for name in {table, "memory_copy", "kernel_dispatch"}:
            base.execute(f'DELETE FROM "rocpd_{name}_0a"')
    base.close()
    assert read_timeline(path).kernels.equals(alone.kernels)


@pytest.mark.parametrize("column", ["agent_id", "kernel_id", "stream_id", "event_id", "grid_size_x"])
def test_null_in_a_column_of_whole_numbers_is_of_its_row_alone(tmp_path, column):
    path = database(tmp_path / "r.db")
    whole = read_timeline(path).kernels
    with sqlite3.connect(path) as base:
        base.execute(f"UPDATE rocpd_kernel_dispatch SET {column} = NULL WHERE start = 9000")
    base.close()
    kernels = read_timeline(path).kernels
    assert kernels.iloc[:2].equals(whole.iloc[:2]) and not kernels.iloc[2:].equals(whole.iloc[2:])


@pytest.mark.parametrize("value", [None, "x", -5, 2**62, 1.5, b"\0"])
def test_database_with_hostile_times(tmp_path, value):
    path = database(tmp_path / "r.db", kernels=[(1000, 3500), (9000, value), (value, 9500)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        kernels = read_timeline(path).kernels
    assert (kernels["duration_s"] >= 0).all()


def test_damaged_database(tmp_path):
    data = database(tmp_path / "whole.db").read_bytes()
    for at in range(100, len(data), 1531):
        (tmp_path / "r.db").write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)
            with suppress(InputError):
                read_timeline(tmp_path / "r.db")


# ------------------------------------------------------------------------------------------------- rocmProfileData


def rpd(path, drop=()):
    texts = ["KernelExecution", "gemm.kd", "CopyDeviceToHost", "BarrierPacket", "", "hipLaunchKernel", "UserMarker"]
    texts.append("step 1")
    tables = {
        "rocpd_string": ("id INT, string TEXT", list(enumerate(texts))),
        "rocpd_op": (
            "id INT, gpuId INT, queueId INT, start INT, end INT, description_id INT, opType_id INT",
            [(1, 0, 2, 1000, 3500, 1, 0), (2, 0, 2, 5000, 6000, 4, 2), (3, 0, 2, 100, 9000, 4, 3)],
        ),
        "rocpd_api": (
            "id INT, pid INT, tid INT, start INT, end INT, apiName_id INT, args_id INT",
            [(1, 7, 9, 500, 600, 5, 4), (2, 7, 9, 400, 900, 6, 7)],
        ),
        "rocpd_api_ops": ("id INT, api_id INT, op_id INT", [(1, 1, 1)]),
    }
    with sqlite3.connect(path) as base:
        for name, (columns, rows) in tables.items():
            if name not in drop:
                base.execute(f"CREATE TABLE {name} ({columns})")
                base.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * len(rows[0]))})", rows)
    base.close()
    return path


def test_rocm_profile_data(tmp_path):
    timeline = read_timeline(rpd(tmp_path / "trace.rpd"))
    kernels = timeline.kernels
    assert kernels[["kernel", "kind"]].to_numpy().tolist() == [["gemm", "kernel"], ["CopyDeviceToHost", "copy"]]
    assert kernels["duration_s"].tolist() == pytest.approx([2.5e-6, 1e-6])
    assert kernels.loc[0, ["stream", "device", "thread", "launched_by"]].tolist() == [2, 0, "7/9", "hipLaunchKernel"]
    assert kernels.loc[0, "launch_s"] == pytest.approx(-0.5e-6)
    assert timeline.host[["name", "kind"]].to_numpy().tolist() == [
        ["hipLaunchKernel", "call"],
        ["step 1", "annotation"],
    ]


@pytest.mark.parametrize("table", ["rocpd_api", "rocpd_api_ops"])
def test_rocm_profile_data_without_calls(tmp_path, table):
    assert read_timeline(rpd(tmp_path / "trace.rpd", drop=[table])).kernels["launched_by"].tolist() == ["", ""]


@pytest.mark.parametrize("value", [None, "x", -5, 2**62, 1.5, b"\0"])
def test_rocm_profile_data_with_hostile_values(tmp_path, value):
    for table, column in (
        ("rocpd_op", "start"),
        ("rocpd_op", "opType_id"),
        ("rocpd_api", "id"),
        ("rocpd_string", "string"),
    ):
        path = rpd(tmp_path / f"{table}-{column}.rpd")
        with sqlite3.connect(path) as base:
            base.execute(f"UPDATE {table} SET {column} = ?", [value])
        base.close()
        with warnings.catch_warnings(), suppress(InputError):
            warnings.simplefilter("ignore", InputWarning)
            read_timeline(path)
