"""One launch of a kernel without a probe, loaded as PTX: ``python -m gpuledger.record.probes.plain <workload> <size>``.

Under ``neutrino -p <probe>``, which stands between the program and the driver, the launch carries Neutrino's own probe.
"""

import sys

from gpuledger.record import cuda
from gpuledger.record.probes.launch import Runner
from gpuledger.record.probes.workloads import WORKLOADS


def main(name: str, size: str) -> None:
    """Launch a workload once and check its result."""
    Runner(cuda.open_device(), as_ptx=True).launch_once(WORKLOADS[name](int(size)))


if __name__ == "__main__":
    main(*sys.argv[1:])
