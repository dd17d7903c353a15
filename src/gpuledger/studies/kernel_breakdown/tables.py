"""Tables of the kernel breakdown, and sentences that depend on the case."""

import re
from typing import Any

import numpy as np
import pandas as pd

from gpuledger.ledger.case_result import CaseResult, brief, settle, slug, text
from gpuledger.ledger.parts import one_part
from gpuledger.models.time_model.step import BOUNDS, MEMORY
from gpuledger.studies.kernel_breakdown.formatting import format_binary


def kernel_table(result: CaseResult) -> dict[str, Any]:
    """Return the kernels as arguments of :func:`gpuledger.ledger.tables.write`.

    One row per kernel and phase: ``phase, kernel, count, m, n, k, batch, macs, dram_bytes, time_s, bound``, where
    ``m, n, k, batch`` are per launch and ``macs, dram_bytes, time_s`` are for all ``count`` launches of a pass. If the
    case has several GPUs, ``hardware`` follows; then the number formats of ``weights``, ``kv`` (of the cache, where a
    kernel reads or writes it) and ``activations``; for the source notebook's model, its ``tile`` and cycles per layer.
    """
    rows = one_part(result.data, "kernels")
    several = rows["hardware"].nunique() > 1
    names = ["phase", "kernel", "m", "n", "k", "batch"]
    one = ["macs", "dram_bytes", "time_s", "bound"]
    formats = []
    if "cache_precision" in rows:
        attends = rows["kind"] == "attention"
        rows = rows.assign(
            weights=rows["weight_precision"].where((rows["weight_bytes"] > 0) & ~attends, ""),
            kv=rows["cache_precision"],
            activations=rows["precision"],
        )
        formats = ["weights", "kv", "activations"]
    keys = [*names, *one, *formats, "hardware"]
    # Pipeline stages and kinds of layers that launch the same kernel share a row.
    table = rows.groupby(keys, sort=False, dropna=False, observed=True)["count"].sum().reset_index()
    for column in ("macs", "dram_bytes"):
        table[column] = [int(settle(value)) * count for value, count in zip(table[column], table["count"], strict=True)]
    table["time_s"] = table["time_s"] * table["count"]
    order = ["phase", "kernel", "count", "m", "n", "k", "batch", *one]
    frame = table[[*order, *(["hardware"] if several else []), *formats]]
    if "tile_m" in rows:
        # Here the rows are those of `rows`, in the same order.
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
        "caption": f"{result.finding}. All kernels of each pass: m, n, k and batch per launch, other columns for all "
        "launches; number formats of weights or KV cache, and of activations.",
        "headers": {
            "shape": "m×n×k",
            "macs_g": "GMAC",
            "dram_mb": "DRAM (MB)",
            "time_us": "time (µs)",
            "percent": "share (%)",
            "count": "launches",
            "compute_cycles": "compute (cycles per layer)",
            "memory_cycles": "memory (cycles per layer)",
            "tile": "tile m × k × n",
            "kv": "KV cache",
            "stored": "weights, KV",
        },
        "formats": {"percent": "{:.1f}"},
        # A page has no room for them.
        "csv_only": ("tile", *(("stored", "activations") if several else ())),
    }


def _for_people(frame: pd.DataFrame, several: bool) -> pd.DataFrame:
    """Return the first GPU's kernels for people, with the times on the other GPUs beside them."""
    first = frame[frame["hardware"] == frame["hardware"].iloc[0]] if several else frame
    percent = 100 * first["time_s"] / first.groupby("phase")["time_s"].transform("sum")
    shape = ["×".join(map(str, sizes)) for sizes in first[["m", "n", "k"]].to_numpy()]
    # No kernel has both.
    stored = {"stored": first["weights"].where(first["weights"] != "", first["kv"])} if "kv" in first else {}
    batched = [f"{batch:,} of {size}" if batch > 1 else size for batch, size in zip(first["batch"], shape, strict=True)]
    last = ("activations", "tile", "compute_cycles", "memory_cycles")
    beside = _beside(frame, first).items() if several else ()
    times = {f"{name.replace('-', ' ').upper()} (µs)": values for name, values in beside}
    shown = pd.DataFrame(
        {
            **first[["phase", "kernel"]],
            "percent": percent,
            **(times or {"time_us": 1e6 * first["time_s"]}),
            **first[["bound", "count"]],
            "shape": batched,
            "macs_g": first["macs"] / 1e9,
            "dram_mb": first["dram_bytes"] / 1e6,
            **stored,
            **{name: first[name] for name in last if name in first},
        }
    )
    return shown.reset_index(drop=True)


def _beside(frame: pd.DataFrame, first: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the times (µs) of the first GPU's kernels on every GPU."""
    keys = ["phase", "kernel", "count", "m", "n", "k", "batch", "macs"]
    # Rows that differ in their traffic only are matched by their order.
    numbered = frame.assign(row=frame.groupby([*keys, "hardware"]).cumcount())
    times = numbered.pivot(index=[*keys, "row"], columns="hardware", values="time_s")
    own = times.reindex(numbered.loc[first.index].set_index([*keys, "row"]).index)
    return {name: 1e6 * own[name].to_numpy() for name in dict.fromkeys(frame["hardware"])}


def phase_table(result: CaseResult) -> dict[str, Any]:
    """Return one row per GPU and phase, time, throughput and shares of the roofs, for :func:`tables.show`."""
    rows = one_part(result.data, "kernels")
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
                    "tokens/s": float(result[f"{phase}_tokens_per_s{suffix}"]),
                    "FLOP/byte": float(result[f"{phase}_arithmetic_intensity{suffix}"]),
                    "of peak (%)": float(result[f"{phase}_compute_roof_percent{suffix}"]),
                    "of DRAM (%)": float(result[f"{phase}_dram_roof_percent{suffix}"]),
                    "judged (%)": float(result[f"{phase}_judged_percent{suffix}"]),
                    "kernels' error (%)": pd.to_numeric(
                        result[f"{phase}_kernel_error_percent{suffix}"], errors="coerce"
                    ),
                    "longest kernel": f"{result[f'{phase}_longest_kernel{suffix}']}, "
                    f"{float(result[f'{phase}_longest_kernel_percent{suffix}']):.0f} %",
                }
            )
    percent = ("of peak (%)", "of DRAM (%)", "judged (%)", "kernels' error (%)")
    return {"frame": pd.DataFrame(found), "formats": dict.fromkeys(percent, "{:.1f}")}


def activity_table(result: CaseResult) -> dict[str, Any]:
    """Return one row per phase, a device's work and traffic per pass, for :func:`tables.show`."""
    phases = dict.fromkeys(one_part(result.data, "kernels")["phase"])
    frame = pd.DataFrame(
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
    return {"frame": frame}


def tile_table(result: CaseResult) -> dict[str, Any]:
    """Return theoretical and real tiles, for :func:`tables.show`."""
    tiles = one_part(result.data, "tiles")
    if tiles.empty:
        return {"frame": tiles}
    sizes = [" × ".join(f"{size:,}" for size in row) for row in tiles[["m", "n", "k"]].to_numpy()]
    theory = ["theory_tile_m", "theory_tile_n", "theory_tile_k"]
    frame = pd.DataFrame(
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
    one_digit = ["padding (%)", "SMs idle (%)", "launch (%)"]
    return {"frame": frame, "formats": dict.fromkeys(one_digit, "{:.1f}") | {"× theory": "{:.2f}"}}


def correction_table(result: CaseResult) -> pd.DataFrame:
    """Return the source notebook's errors and their corrections, for people."""
    rows = one_part(result.data, "corrections")
    if rows.empty:
        return rows
    return pd.DataFrame(
        {
            "error": ["all" if number == 0 else str(number) for number in rows["error"]],
            "what": rows["phase"].str.replace("_", " ") + ": " + rows["quantity"],
            "source ÷ right": [f"{ratio:.3f}" for ratio in rows["ratio"]],
            "source notebook": [brief(value) for value in rows["source_value"]],
            "right": [brief(value) for value in rows["right_value"]],
            "unit": rows["unit"],
            "why": rows["why"],
        }
    )


def describe_scenario(result: CaseResult) -> str:
    """Describe the model and the hardware."""
    parameters = f"{int(result['parameters']) / 1e9:.3f} billion parameters"
    if result["active_parameters"] != result["parameters"]:
        parameters += f" ({int(result['active_parameters']) / 1e9:.3f} billion active)"
    if "vision_parameters" in result.summary:
        parameters += f", {int(result['vision_parameters']) / 1e9:.3f} billion more in its vision tower"
    weights = int(result["weight_bytes"]) / 1e9
    paragraphs = [
        f"**{result['model']}**: {parameters}, {weights:.2f} GB of weights, "
        f"{text(result['kv_bytes_per_token'])} bytes of KV cache per token.",
        f"**Hardware**: {result['hardware']}.",
        f"All times are {result.provenance['label']}.",
    ]
    if "drafts" in result.summary:
        paragraphs.insert(2, f"**Tokens drafted before each decode step**: {result['drafts']}.")
    if "prefill_images" in result.summary:
        words = f"{result['prefill_images']}, which add {text(result['prefill_image_tokens'])} tokens to it"
        paragraphs.insert(2, f"**Images**: {words}.")
    if "time_constants" in result.summary:
        constants = f"Constants of GEMMs on the first GPU: {result['time_constants']}"
        constants = re.sub(r"\b\d{4,}(?= measured| of )", lambda count: f"{int(count[0]):,}", constants)
        paragraphs.append(f"{constants}; those of all other kernels and GPUs are in `provenance.json`.")
    return "\n\n".join(paragraphs)


def structure_table(result: CaseResult) -> dict[str, Any]:
    """Return the model's structure, for :func:`tables.show`."""
    rows = one_part(result.data, "structure")
    frame = pd.DataFrame(
        {
            **rows[["component", "layers", "description"]],
            "weights (10⁶)": rows["parameters"] / 1e6,
            "GB": rows["weight_bytes"] / 1e9,
            "KV (B/token)": rows["cache_bytes"],
        }
    )
    return {"frame": frame, "formats": {"GB": "{:.3f}"}}


def memory_table(result: CaseResult) -> dict[str, Any]:
    """Return what fills a GPU in each phase, each part with its formula in decoding, for :func:`tables.show`."""
    rows = one_part(result.data, "memory_parts")
    own = {str(phase): part.set_index("held_by") for phase, part in rows.groupby("phase", sort=False)}
    sizes = {f"{phase.replace('_', ' ')} (GB)": part["bytes"] / 1e9 for phase, part in own.items()}
    phase = "decode" if "decode" in own else next(iter(own))
    formula = {f"formula, in {phase.replace('_', ' ')}": own[phase]["formula"].fillna("")}
    frame = pd.DataFrame(sizes | formula).rename_axis("part").reset_index()
    return {"frame": frame, "formats": dict.fromkeys(sizes, "{:.2f}")}


def describe_memory(result: CaseResult) -> str:
    """Say which GPUs have room for each phase, and what is the most that fits."""
    lines = []
    for phase in (name.removesuffix("_memory_bytes") for name in result.summary if name.endswith("_memory_bytes")):
        line = f"* {phase.replace('_', ' ')}: fits on {result[f'{phase}_fits']}"
        if f"{phase}_largest_batch" in result.summary:
            most, longest = (int(result[f"decode_largest_{what}"]) for what in ("batch", "context"))
            line += f"; on the first GPU at most {most:,} requests of this context, or at most {longest:,} tokens each"
        lines.append(line)
    devices = int(result["devices"])
    each = f"on each of {devices} GPUs (the one that holds most)" if devices > 1 else "on the GPU"
    return (
        f"Memory {each}. A pass fits if {float(result['memory_reserve_percent']):.0f} % of the DRAM remain for what is "
        "not counted, as vLLM (`gpu_memory_utilization` 0.9) and TensorRT-LLM (`free_gpu_memory_fraction` 0.9) leave "
        "by default:\n\n" + "\n".join(lines)
    )


def context_finding(result: CaseResult) -> str:
    """Say how the time of a decode step changes with its context."""
    rows = one_part(result.data, "stack")
    own = rows[(rows["axis"] == "decode context") & rows["fits"].astype(bool)]
    if own.empty:
        return f"{result['model']} does not fit into the memory of {result['hardware']} with this batch"
    total = own.groupby("tokens")["time_s"].sum()
    attention = own[own["group"] == "attention"].set_index("tokens")["time_s"]
    share = 100 * attention.reindex(total.index, fill_value=0.0) / total
    first, last = total.index[0], total.index[-1]
    return (
        f"From {format_binary(first)} to {format_binary(last)} tokens of context, attention goes from "
        f"{share[first]:.0f} % to {share[last]:.0f} % of a decode step, "
        f"and the step takes {total[last] / total[first]:.3g} times as long"
    )


def bound_finding(result: CaseResult) -> str:
    """Say at how many contexts and batches decode is memory-bound and prefill compute-bound."""
    rows = one_part(result.data, "map")
    rows = rows[rows["fits"].astype(bool)]
    if rows.empty:
        return f"{result['model']} does not fit into the memory of {result['hardware']}"
    largest = rows[[f"{name}_percent" for name in BOUNDS]].idxmax(axis=1).str.removesuffix("_percent")
    compute = 100 * (largest == "compute").groupby(rows["phase"]).mean()
    memory = 100 * largest.isin(MEMORY).groupby(rows["phase"]).mean()
    decode = [f"decode is memory-bound in {share:.0f} % of the map" for share in memory.filter(["decode"])]
    prefill = [f"prefill is compute-bound in {share:.0f} %" for share in compute.filter(["prefill"])]
    return f"Where requests fit into DRAM, {', '.join(decode + prefill)}" + " of the map" * (not decode)
