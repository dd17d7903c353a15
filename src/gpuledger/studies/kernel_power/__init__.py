"""Kernel power: how much do kernels draw, what determines it, and how much of a reading is the kernel's?"""

from gpuledger.studies.kernel_power.figures import draw_clocks, draw_energies, draw_predictions, draw_settling, panels
from gpuledger.studies.kernel_power.reduction import reduce
from gpuledger.studies.kernel_power.tables import power_table, settling_table
