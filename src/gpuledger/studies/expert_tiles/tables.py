"""The table of rates by precision, kind of launch and tiles."""

import pandas as pd

from gpuledger.studies.expert_tiles.reduction import LAYER, SIDES, gain, precisions

#: Kinds of launches, in order.
KINDS = ("decode", "between", "prompt")


def tile_table(data: pd.DataFrame, dram_bandwidth: float) -> pd.DataFrame:
    """Return what launches reach, by precision, kind and tiles.

    Returns
    -------
    DataFrame
        ``precision, kind, tiles, layers, launches, flop_per_s`` (median)``, dram_percent`` (median share of the
        bandwidth at which weights are read)``, gain`` (see :func:`gpuledger.studies.expert_tiles.reduction.gain`) and
        ``pairs``, the comparisons that it is of.
    """
    rows = []
    for precision in precisions(data):
        own = data[(data["precision"] == precision) & (data["kind"] != "model")]
        kinds = pd.Categorical(own["kind"], KINDS)
        for (kind, tuned), part in own.groupby([kinds, "tuned"], observed=True):
            rows.append(
                {
                    "precision": precision,
                    "kind": kind,
                    "tiles": "tuned" if tuned else "default",
                    "layers": part.groupby([*LAYER, "inter"]).ngroups,
                    "launches": len(part),
                    "flop_per_s": part["flop_per_s"].median(),
                    "dram_percent": 100 * part["weights_per_s"].median() / dram_bandwidth,
                    "gain": gain(part),
                    "pairs": int(part[[*SIDES]].notna().sum().sum()),
                }
            )
    return pd.DataFrame(rows)
