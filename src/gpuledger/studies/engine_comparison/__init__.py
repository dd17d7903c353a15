"""Engine comparison: which engine's kernel is fastest for which shape, and what did a new version change?"""

from gpuledger.studies.engine_comparison.comparison import largest, names_of, remarks_of, statistics
from gpuledger.studies.engine_comparison.figures import (
    draw_changes,
    draw_profile,
    draw_ratios,
    draw_winners,
    handles,
    panels,
)
from gpuledger.studies.engine_comparison.real_shapes import model_table, time_headers
from gpuledger.studies.engine_comparison.reduction import reduce
