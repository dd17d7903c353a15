"""A recording of four Linear layers, worked out by hand, as Nsight Compute prints it."""

import csv
import json

COPY = "void at::native::unrolled_elementwise_kernel<at::native::copy_device_to_device(int)::{lambda()#3}>(int)"
ADD = "void at::native::unrolled_elementwise_kernel<at::native::AddFunctor<float>>(int)"
REDUCE = "void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams<float>, float const*)"
GEMV = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(int)"

#: M, N, K of the layers.
SHAPES = [(10, 20, 100), (64, 128, 64), (128, 32, 16), (1, 5, 7)]
#: kernel, blocks of the grid, fadd, fmul, ffma, bytes of DRAM.
LAUNCHES = [
    (COPY, 1, 0, 0, 0, 800),
    # One tile of 32 × 32; two blocks share K = 50 + 50, each in steps of 4 slices · 8: 64 + 64.
    ("ampere_sgemm_32x32_sliced1x4_tn", 2, 2 * 1024 * 3, 2 * 1024 * 4, 1024 * 128, 12_000),
    (REDUCE, 1, 3 * 200, 200, 200, 1_600),
    (COPY, 1, 0, 0, 0, 32_768),
    # One tile without padding that reads the bias from C.
    ("ampere_sgemm_128x64_tn", 1, 0, 8192, 8192 * 65, 81_920),
    # One tile, two blocks without a reduction: the second adds to C.
    ("ampere_sgemm_32x128_tn", 2, 0, 2 * 4096, 4096 * 17, 10_240),
    (ADD, 4, 0, 0, 4096, 32_768),
    (GEMV, 1, 0, 5, 40, 168),
]
COUNTERS = [f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum" for name in ("fadd", "fmul", "ffma")]


def write_launches(path, launches=LAUNCHES, grid=True, leave_out=()):
    """Write the recording; `leave_out` are metrics that were not collected."""
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
        columns = ["ID", "Kernel Name", *(["Block Size", "Grid Size"] if grid else [])]
        writer.writerow([*columns, "Section Name", "Metric Name", "Metric Unit", "Metric Value"])
        for number, (kernel, blocks, *values) in enumerate(launches):
            start = [number, kernel, *(["(128, 1, 1)", f"({blocks}, 1, 1)"] if grid else [])]
            for name, value in zip([*COUNTERS, "dram__bytes.sum"], values, strict=True):
                if name not in leave_out:
                    unit = "byte" if name.startswith("dram") else "inst"
                    writer.writerow([*start, "Command line profiler metrics", name, unit, value])
    return path


def write_shapes(path, shapes=SHAPES):
    entries = [{"Input": [[m, k]], "Weight": [[n, k]], "Bias": [[n]]} for m, n, k in shapes]
    path.write_text(json.dumps(entries), "utf-8")
    return path
