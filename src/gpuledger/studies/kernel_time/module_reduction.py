"""From measured times of whole attention blocks to predictions, errors and constants."""

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.case_result import CaseResult
from gpuledger.ledger.datasets import Case
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_time.engine_reduction import in_words
from gpuledger.studies.kernel_time.judgement import add_baselines, add_errors, in_percent, suffix_of
from gpuledger.studies.kernel_time.measurements import check_plausible
from gpuledger.studies.kernel_time.module_measurements import add_regions, read_models, read_modules
from gpuledger.studies.kernel_time.module_prediction import (
    block_times,
    fit_blocks,
    fit_hosts,
    least_times,
    predict_blocks,
)
from gpuledger.studies.kernel_time.prediction import LEAST_SHAPES, hold_back, rounded

_SIZES = ("requests", "tokens", "context", "heads")


def reduce_modules(case: Case, gpu: Gpu) -> CaseResult:
    """Reduce measured attention blocks.

    Every block is the sum of its predicted kernels. With the constants that come with the checkout it is predicted as
    ``shipped_s``; as ``predicted_s`` with the attention's constants, what blocks take besides and what the host takes
    fitted to one half of the shapes, for each kernel of attention.

    Returns
    -------
    CaseResult
        Data: ``operator, group, kernel, precision, model``, the shapes, ``flop, bytes, held_back, region,
        region_order, bound, measured_s, predicted_s, shipped_s, roofline_s, derated_s, lookup_s, corrected_s``.
    """
    path = case.path("modules")
    frame, skipped = read_modules(case, path)
    models = read_models(case, path, frame)
    frame = add_regions(frame)
    frame["held_back"] = hold_back(frame, _SIZES)
    parts, words, launched, too_few = [], [], [], []
    for (_, kernel, precision), rows in frame.groupby(["operator", "kernel", "precision"], sort=True):
        held = rows["held_back"].to_numpy()
        if (~held).sum() < LEAST_SHAPES or not held.any():
            too_few.append(f"{kernel} {precision}")
            continue
        blocks, measured = predict_blocks(gpu, models, rows), rows["measured_s"].to_numpy()
        constants = fit_blocks(gpu, blocks.at(~held), measured[~held])
        kernels, attention = block_times(gpu, blocks, constants), blocks.attention_s
        hosts = fit_hosts(kernels[~held], measured[~held], blocks.launched[~held])
        least = least_times(blocks, hosts)
        bound = np.where(attention > blocks.rest_s, "attention", "other kernels")
        found = rows.assign(
            flop=blocks.flop,
            bytes=blocks.moved,
            bound=np.where(kernels <= least, "host", bound),
            predicted_s=rounded(np.maximum(kernels, least)),
            shipped_s=rounded(block_times(gpu, blocks)),
            roofline_s=rounded(blocks.roofline_s),
        )
        peak = gpu.peak_flop_per_s("bf16")
        work = blocks.flop / peak, blocks.moved / gpu.dram_bytes_per_s
        parts.append(
            pd.concat([found, add_baselines(found, found["predicted_s"], *work, [*_SIZES, "selects"])], axis=1)
        )
        words.append(f"{kernel}, {precision}: {in_words(constants)}")
        launched += [f"{kernel}, {precision}, {group} ({host_s * 1e6:.0f} µs)" for group, host_s in hosts.items()]
    if not parts:
        problem = f"no kernel has {LEAST_SHAPES} blocks in the half that constants are fitted to, and others to judge"
        raise InputError(path, "", problem, "add measurements")
    data = pd.concat(parts).sort_index().drop(columns=["block", "eager"]).reset_index(drop=True)
    check_plausible(case, path, gpu, data["roofline_s"].to_numpy(), data["measured_s"].to_numpy())
    result = CaseResult(data)
    result.add("gpu", gpu.name, "text")
    result.add("skipped_types", ", ".join(skipped) or "none", "text")
    result.add("skipped_kernels", ", ".join(too_few) or "none", "text")
    groups = sorted(data["group"].unique(), key=lambda name: ("eager" in name, name != "16-bit", name))
    for group in groups:
        add_errors(result, data[data["group"] == group], suffix=suffix_of(group))
    result.add("constants", "; ".join(words), "text")
    result.add("launched_by_host", ", ".join(launched) or "none", "text")
    main = suffix_of(groups[0])
    names = ("held_back", "shipped_held_back", "roofline_held_back", "lookup")
    model, shipped, roofline, table = (in_percent(result[f"mape_{name}_percent{main}"]) for name in names)
    finding = (
        f"Sums of kernels predict {result[f'shapes_held_back{main}']:,} held-back {groups[0]} attention blocks on "
        f"{gpu.title} with a mean error of {model} (with the constants as they come: {shipped}, roofline: {roofline}, "
        f"look-up in the fitting half: {table})"
    )
    result.add("finding", finding, "text")
    return result
