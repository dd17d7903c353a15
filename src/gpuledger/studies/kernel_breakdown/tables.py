"""Tables and words of the kernel breakdown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, settle, slug, text
from gpuledger.studies.kernel_breakdown.reduction import parts

#: Of a phase's time, what a kernel takes at least to stand in a table for people.
LEAST_PERCENT = 0.5

PHASE_FORMATS = {
    "time (ms)": "{:,.2f}",
    "FLOP/byte": "{:,.1f}",
    "of peak (%)": "{:.1f}",
    "of DRAM (%)": "{:.1f}",
}
ACTIVITY_FORMATS = {
    "MAC (10⁹)": "{:,.1f}",
    "L2 to SMs (GB)": "{:,.1f}",
    "DRAM (GB)": "{:,.1f}",
    "links (GB)": "{:,.3f}",
}
TILE_FORMATS = {
    "theory (µs)": "{:,.1f}",
    "padding (%)": "{:.1f}",
    "SMs idle (%)": "{:.1f}",
    "launch (%)": "{:.1f}",
    "predicted (µs)": "{:,.1f}",
    "× theory": "{:.2f}",
}
TILES = """
## Tiles in theory and in a kernel

In theory the tiles fill the L2 to the last byte, of any width, at the data sheet's peak and bandwidth. A kernel has
tiles that its registers and shared memory hold, pays for whole tiles (padding) and whole waves of them over the SMs
(idle in the last one), splits k where there are too few, and starts with a launch. First GPU of the case:
"""
CORRECTIONS = """
## The source notebook's errors, and their size

Each error alone, for the model and phases of this case: what the source notebook computes, and what it would with this
one thing put right. `all` is the whole of it: its time on the same GPU (peak, bandwidth and L2 of the data sheet)
against the prediction. Ideal tiles and kernels left out make it too fast, the missing mask too slow, and they partly
cancel: that a total comes near says little about its parts.
"""


def kernel_table(result: CaseResult) -> dict[str, Any]:
    """Return the kernels as arguments of :func:`gpuledger.ledger.tables.write`.

    Every row is one kernel of a phase: ``phase, kernel, count, m, n, k, batch, macs, dram_bytes, time_s, bound``;
    ``m, n, k, batch`` of one launch, ``macs, dram_bytes, time_s`` of all ``count`` launches of a pass. Behind them come
    ``hardware`` with several GPUs, and as the source notebook has it the ``tile`` and its cycles, of one layer.
    """
    rows = parts(result.data)["kernels"]
    several = rows["hardware"].nunique() > 1
    names = ["phase", "kernel", "m", "n", "k", "batch"]
    one = ["macs", "dram_bytes", "time_s", "bound"]
    keys = [*names, *one, "hardware"]
    # Stages and kinds of layers that launch the same kernel are one row.
    table = rows.groupby(keys, sort=False, dropna=False, observed=True)["count"].sum().reset_index()
    for column in ("macs", "dram_bytes"):
        table[column] = [int(settle(value)) * count for value, count in zip(table[column], table["count"], strict=True)]
    table["time_s"] = table["time_s"] * table["count"]
    order = ["phase", "kernel", "count", "m", "n", "k", "batch", *one]
    frame = table[[*order, "hardware"] if several else order]
    if "tile_m" in rows:
        # Here a row is a kernel, in the same order.
        frame = frame.assign(
            tile=[
                "" if np.isnan(m) else f"{m:.1f} × {k:.1f} × {n:.1f}"
                for m, k, n in rows[["tile_m", "tile_k", "tile_n"]].to_numpy()
            ],
            compute_cycles=rows["compute_cycles"],
            memory_cycles=rows["memory_cycles"],
        )
    return {
        "frame": frame,
        "people": _for_people(frame, several),
        "caption": f"{result.finding}. Every kernel of a pass that takes {LEAST_PERCENT} % of its time or more: "
        "m, n, k and batch of one launch, the rest of all launches together.",
        "headers": {
            "shape": "m × n × k",
            "macs_g": "GMAC",
            "dram_mb": "DRAM (MB)",
            "time_us": "time (µs)",
            "percent": "share (%)",
            "count": "launches",
            "compute_cycles": "compute (cycles a layer)",
            "memory_cycles": "memory (cycles a layer)",
            "tile": "tile m × k × n",
        },
        "formats": {
            "macs_g": "{:,.1f}",
            "dram_mb": "{:,.1f}",
            "percent": "{:.1f}",
            "compute_cycles": "{:,.0f}",
            "memory_cycles": "{:,.0f}",
            **dict.fromkeys(["time_us", *(f"{name} (µs)" for name in set(rows["hardware"]))], "{:,.1f}"),
        },
    }


def _for_people(frame: pd.DataFrame, several: bool) -> pd.DataFrame:
    """Lay the kernels out for people: those of the first GPU, with the times of the others beside them."""
    first = frame[frame["hardware"] == frame["hardware"].iloc[0]] if several else frame
    percent = 100 * first["time_s"] / first.groupby("phase")["time_s"].transform("sum")
    shape = [" × ".join(f"{size:,}" for size in sizes) for sizes in first[["m", "n", "k"]].to_numpy()]
    batched = [f"{batch:,} of {size}" if batch > 1 else size for batch, size in zip(first["batch"], shape, strict=True)]
    times = {f"{name} (µs)": values for name, values in _beside(frame, first).items()} if several else {}
    shown = pd.DataFrame(
        {
            **first[["phase", "kernel"]],
            "percent": percent,
            **(times or {"time_us": 1e6 * first["time_s"]}),
            **first[["bound", "count"]],
            "shape": batched,
            "macs_g": first["macs"] / 1e9,
            "dram_mb": first["dram_bytes"] / 1e6,
            **{name: first[name] for name in ("tile", "compute_cycles", "memory_cycles") if name in first},
        }
    )
    return shown[percent >= LEAST_PERCENT].reset_index(drop=True)


def _beside(frame: pd.DataFrame, first: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the times (µs) of the first GPU's kernels on every GPU."""
    keys = ["phase", "kernel", "count", "m", "n", "k", "batch", "macs"]
    # Rows that are alike but for their traffic are told apart by their order.
    numbered = frame.assign(row=frame.groupby([*keys, "hardware"]).cumcount())
    times = numbered.pivot(index=[*keys, "row"], columns="hardware", values="time_s")
    own = times.reindex(numbered.loc[first.index].set_index([*keys, "row"]).index)
    return {name: 1e6 * own[name].to_numpy() for name in dict.fromkeys(frame["hardware"])}


def phase_table(result: CaseResult) -> pd.DataFrame:
    """Return a row a GPU and phase: time, rate, and how near it comes to the roofs."""
    rows = parts(result.data)["kernels"]
    hardware = list(dict.fromkeys(rows["hardware"]))
    found = []
    for name in hardware:
        suffix = "" if name == hardware[0] else f"_{slug(name)}"
        for phase in dict.fromkeys(rows["phase"]):
            found.append(
                {
                    "GPU": name,
                    "phase": phase.replace("_", " "),
                    "time (ms)": 1e3 * float(result[f"{phase}_time{suffix}"]),
                    "tokens/s": round(float(result[f"{phase}_tokens_per_s{suffix}"])),
                    "FLOP/byte": float(result[f"{phase}_arithmetic_intensity{suffix}"]),
                    "of peak (%)": float(result[f"{phase}_compute_roof_percent{suffix}"]),
                    "of DRAM (%)": float(result[f"{phase}_dram_roof_percent{suffix}"]),
                    "longest kernel": f"{result[f'{phase}_longest_kernel{suffix}']}, "
                    f"{float(result[f'{phase}_longest_kernel_percent{suffix}']):.0f} %",
                }
            )
    return pd.DataFrame(found)


def activity_table(result: CaseResult) -> pd.DataFrame:
    """Return a row a phase: what a device does and moves in a pass on the first GPU, for models of power and energy."""
    phases = dict.fromkeys(parts(result.data)["kernels"]["phase"])
    return pd.DataFrame(
        {
            "phase": phase.replace("_", " "),
            "launches": int(result[f"{phase}_launches"]),
            "MAC (10⁹)": int(result[f"{phase}_macs"]) / 1e9,
            "L2 to SMs (GB)": float(result[f"{phase}_l2_bytes"]) / 1e9,
            "DRAM (GB)": float(result[f"{phase}_dram_bytes"]) / 1e9,
            "links (GB)": int(result[f"{phase}_comm_bytes"]) / 1e9,
        }
        for phase in phases
    )


def tile_table(result: CaseResult) -> pd.DataFrame:
    """Return the tiles in theory and of a real kernel beside each other, for people."""
    tiles = parts(result.data).get("tiles", pd.DataFrame())
    if tiles.empty:
        return tiles
    sizes = [" × ".join(f"{size:,}" for size in row) for row in tiles[["m", "n", "k"]].to_numpy()]
    theory = ["theory_tile_m", "theory_tile_n", "theory_tile_k"]
    return pd.DataFrame(
        {
            "phase": tiles["phase"].str.replace("_", " "),
            "kernel": tiles["kernel"],
            "m × n × k": sizes,
            "theory (µs)": 1e6 * tiles["theory_time_s"],
            "predicted (µs)": 1e6 * tiles["time_s"],
            "× theory": tiles["time_ratio"],
            "tile": [f"{m} × {n}" for m, n in tiles[["tile_m", "tile_n"]].to_numpy()],
            "split-K": tiles["split_k"],
            "waves": tiles["waves"],
            "padding (%)": tiles["padding_percent"],
            "SMs idle (%)": tiles["idle_percent"],
            "launch (%)": tiles["launch_percent"],
            "tile in theory": [" × ".join(f"{side:,.0f}" for side in row) for row in tiles[theory].to_numpy()],
        }
    )


def correction_table(result: CaseResult) -> pd.DataFrame:
    """Return the source notebook's errors beside their corrections, for people."""
    rows = parts(result.data).get("corrections", pd.DataFrame())
    if rows.empty:
        return rows
    return pd.DataFrame(
        {
            "error": ["all" if number == 0 else str(number) for number in rows["error"]],
            "what": rows["phase"].str.replace("_", " ") + ": " + rows["quantity"],
            "source ÷ right": [f"{ratio:.3f}" for ratio in rows["ratio"]],
            "source notebook": [_number(value) for value in rows["source_value"]],
            "right": [_number(value) for value in rows["right_value"]],
            "unit": rows["unit"],
            "why": rows["why"],
        }
    )


def _number(value: float) -> str:
    """Write whole numbers in full, others with five digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.5g}"


def asked(result: CaseResult) -> str:
    """Say what was computed, on what."""
    parameters = f"{int(result['parameters']) / 1e9:.3f} billion parameters"
    if result["active_parameters"] != result["parameters"]:
        parameters += f" ({int(result['active_parameters']) / 1e9:.3f} billion active)"
    weights = int(result["weight_bytes"]) / 1e9
    words = [
        f"**{result['model']}**: {parameters}, {weights:.2f} GB of weights, "
        f"{text(result['kv_bytes_per_token'])} bytes of cache a token.",
        f"**Hardware**: {result['hardware']}.",
        f"All times are {result.provenance['label']}.",
    ]
    if "time_constants" in result.summary:
        words.append(f"Constants of the time model: {result['time_constants']}.")
    return "\n\n".join(words)


def memory(result: CaseResult) -> str:
    """Say which GPUs hold weights and cache of each phase."""
    phases = [name.removesuffix("_memory_bytes") for name in result.summary if name.endswith("_memory_bytes")]
    lines = [
        f"* {phase.replace('_', ' ')}: {int(result[f'{phase}_memory_bytes']) / 1e9:.1f} GB of weights and cache, "
        f"held by {result[f'{phase}_fits']}"
        for phase in phases
    ]
    devices = int(result["devices"])
    times = f", {devices} of them together" if devices > 1 else ""
    return f"What the GPUs must hold{times}:\n\n" + "\n".join(lines)
