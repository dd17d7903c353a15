"""What kernels of zeros draw beside those of random values, and what an idle GPU does: python power_of_zeros.py TABLE.csv

With gpuledger's recorder (src/gpuledger/record/power.py) on the path.
"""
import csv
import sys
import time

import torch
from gpuledger.record.nvml import Nvml
from gpuledger.record.power import PowerBench, PowerKernel


class Zeros(PowerBench):
    def _random(self, *shape):
        return torch.zeros(*shape, device="cuda", dtype=torch.bfloat16)


nvml = Nvml(str(torch.cuda.get_device_properties(0).uuid))
torch.zeros(1, device="cuda")
time.sleep(2.5)
begin, before = time.perf_counter(), nvml.energy_mj()
time.sleep(2)
print("idle:", 1e-3 * (nvml.energy_mj() - before) / (time.perf_counter() - begin), "W at", nvml.clock_mhz(), "MHz")
kernels = (
    PowerKernel("gemm", "bf16", (4096, 28672, 4096)),
    PowerKernel("gemm", "bf16", (256, 2048, 2048)),
    PowerKernel("gemm", "fp8", (4096, 28672, 4096)),
    PowerKernel("copy", "bf16", (2**29,)),
    PowerKernel("gemm", "bf16", (16, 6144, 4096)),
)
rows = [
    {"values": name} | bench(torch, nvml).read(kernel)
    for kernel in kernels
    for name, bench in (("random", PowerBench), ("zeros", Zeros))
]
with open(sys.argv[1], "w", newline="") as file:
    table = csv.DictWriter(file, rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
