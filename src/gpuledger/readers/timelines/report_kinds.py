"""Which reports of kernels there are, and their columns.

Columns of Nsight Systems: "Report Scripts" of its user guide, and the scripts themselves (``reports/*.py``):
cuda_gpu_trace, cuda_kern_exec_trace; the sums cuda_gpu_kern_sum, cuda_gpu_kern_gb_sum, cuda_gpu_sum, cuda_kern_exec_sum
and nvtx_kern_sum.
Columns of rocprof: "Using rocprofv3" of ROCprofiler-SDK's documentation, "Using rocprof" of the older ROCProfiler's.
Columns of rocprof-compute (omniperf): its printed tables, and pmc_kernel_top.csv.
Columns of nvprof, whose units are in a row of their own: "CSV" of the CUDA profiler's user guide.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportKind:
    """What a report is, and its columns, in lower case and without units."""

    title: str
    name: str
    start: str = ""
    end: str = ""
    duration: str = ""  # of one launch, or of all where there is no start
    mean: bool = False  # whether it is that of one launch although there is no start
    launches: str = ""
    stream: str = ""
    device: str = ""
    grid: tuple[str, ...] = ()  # a column for each dimension, or one with all
    block: tuple[str, ...] = ()
    in_blocks: bool = True  # the grid; AMD's are in work-items
    needs: tuple[str, ...] = ()  # what tells it from other reports
    lacks: tuple[str, ...] = ()  # what others have beside these
    only: tuple[str, str] = ("", "")  # a column, and its value in the rows of kernels and copies
    range: str = ""  # NVTX ranges: a kernel is in a row for each one around it

    def columns(self) -> set[str]:
        """Return the columns that a file of this kind has at least."""
        names = (self.name, self.start, self.end or self.duration, self.launches, self.range, *self.needs)
        return {name for name in names if name}


REPORTS = (
    ReportKind(
        "nvprof trace",
        "name",
        "start",
        duration="duration",
        stream="stream",
        device="device",
        grid=("grid x", "grid y", "grid z"),
        block=("block x", "block y", "block z"),
        needs=("grid x",),
    ),
    ReportKind(
        "nvprof sums",
        "name",
        duration="time",
        launches="calls",
        needs=("avg", "min", "max"),
        only=("type", "GPU activities"),  # before CUDA 9 nvprof wrote no types, and the host's calls into a table below
    ),
    ReportKind(
        "Nsight Systems report",
        "name",
        "start",
        duration="duration",
        stream="strm",
        device="device",
        grid=("grdx", "grdy", "grdz"),
        block=("blkx", "blky", "blkz"),
        needs=("strm",),  # calls of the host and NVTX ranges have a start and a duration, too
    ),
    ReportKind(
        "Nsight Systems report",
        "kernel name",
        "kernel start",
        duration="kernel dur",
        device="devid",
        grid=("gridxyz",),
        block=("blockxyz",),
    ),
    ReportKind(
        "Nsight Systems report (sums)",
        "kernel name",
        duration="kavg",
        mean=True,
        launches="count",
        device="devid",
        needs=("tavg", "qcount"),
    ),
    ReportKind(
        "Nsight Systems report (sums)",
        "kernel name",
        duration="total time",
        launches="kern inst",
        range="nvtx range",
    ),
    ReportKind(
        "Nsight Systems report (sums)",
        "name",
        duration="total time",
        launches="instances",
        grid=("gridxyz",),
        block=("blockxyz",),
    ),
    ReportKind(
        "Nsight Systems report (sums)",
        "operation",
        duration="total time",
        launches="instances",
        needs=("category",),
        only=("category", "CUDA_KERNEL"),
    ),
    ReportKind(
        "rocprofv3 kernel trace",
        "kernel_name",
        "start_timestamp",
        "end_timestamp",
        stream="stream_id",
        device="agent_id",
        grid=tuple(f"grid_size_{axis}" for axis in "xyz"),
        block=tuple(f"workgroup_size_{axis}" for axis in "xyz"),
        in_blocks=False,
        lacks=("function",),  # calls of the host may name the kernel that they launch
        only=("kind", "KERNEL_DISPATCH"),
    ),
    ReportKind(
        "rocprofv3's printed summary (sums)",
        "name",
        duration="duration",
        launches="calls",
        needs=("domain",),
        only=("domain", "KERNEL_DISPATCH"),
    ),
    ReportKind(
        "rocprof-compute's top kernels (sums)",
        "kernel_name",
        duration="sum",
        launches="count",
        needs=("mean", "median"),
    ),
    ReportKind("rocprof kernel trace", "kernelname", "beginns", "endns", stream="queue-id", device="gpu-id"),
    ReportKind("torch.profiler's printed table (sums)", "name", duration="self cuda", launches="# of calls"),
    ReportKind("rocprof statistics (sums)", "name", duration="totaldurationns", launches="calls"),
)
