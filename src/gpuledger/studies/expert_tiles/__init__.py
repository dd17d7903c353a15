"""Expert tiles: what do tuned tiles gain for MoE kernels, and which layers have none?"""

from gpuledger.studies.expert_tiles.figures import draw_rates
from gpuledger.studies.expert_tiles.models import model_table
from gpuledger.studies.expert_tiles.reduction import precisions, reduce
from gpuledger.studies.expert_tiles.tables import tile_table
