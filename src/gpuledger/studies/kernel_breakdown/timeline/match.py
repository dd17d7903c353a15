"""Match the launches of a recorded step with the kernels of a model, and give each its predicted time."""

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import Model
from gpuledger.readers.gpus import Gpu
from gpuledger.studies.kernel_breakdown.timeline.shapes import kernels_of_shapes, product_sizes

#: Kernel classes that a model's pass fixes the order of, and the kinds of the model's kernels that they can be.
_ANCHORS = {
    "gemm": ("gemm", "grouped_gemm"),
    "gemv": ("gemm", "grouped_gemm"),
    "attention": ("attention",),
    "communication": ("collective",),
}
#: What a launch between two of those may be, by class and name: patterns of the model's kernels.
_ROLES = (
    ("norm", "", r"norm$"),
    ("rope", "", r"^rope$"),
    ("cache", "", r"^kv_write$"),
    ("moe|sort|softmax|index", r"(?i)finalize|combine|moe_sum|unpermute", r"^expert_combine$"),
    ("moe|sort|softmax|index", "", r"^(router_topk|expert_permute)$"),
    ("elementwise", r"(?i)silu|gelu|swiglu|relu|act_and_mul|activation", r"_act$"),
    ("embedding|index", "", r"^embedding$"),
    ("softmax", "", r"softmax$"),
)
#: Kinds of kernels that are no such anchors.
_BETWEEN = ("elementwise", "recurrent")
#: Kernels that join the partial results of an attention split over its keys.
_PARTIAL = re.compile(r"(?i)(?:attention|attn|flash|decode|mla|fmha)\w{0,80}(?:reduce|combine|merge)")
#: The most pairs of a launch and a kernel that are compared, for memory's sake.
MOST_CELLS = 50_000_000
#: By how much the tokens of a product may be padded.
_PADDING = 1.25


def match_launches(rows: pd.DataFrame, kernels: pd.DataFrame, model: Model, gpu: Gpu, default: str) -> pd.DataFrame:
    """Match launches with a model's kernels, in order, and predict their times.

    Matrix products, attention and collectives are aligned with those of the model: in the same order and, where the
    operators' shapes are recorded, of the same sizes. What runs between two of them is matched by what its name says.
    Launches that the model does not have, but whose operator says what they read and write, get the time of that.
    Several launches that do one kernel's work share its time as their own times are.

    Parameters
    ----------
    rows : DataFrame
        Kernels of the step by start, with ``kernel_class``; copies are left out by the caller.
    kernels : DataFrame
        From :func:`gpuledger.models.time_model.step.predict`: the model's kernels of this pass.
    default : str
        Number format of activations, where none is recorded.

    Returns
    -------
    DataFrame
        Indexed as `rows`: ``role`` (the model's kernel, or empty), ``matched_by`` (``model``, ``shapes`` or empty)
        and ``predicted_s`` (NaN where unmatched).
    """
    expected = list(_expand(kernels, model))
    place = np.full(len(rows), -1, np.int64)
    anchors, targets = _align(rows, kernels, expected)
    place[anchors] = targets
    _match_between(rows, kernels, expected, place)
    found = pd.DataFrame({"role": "", "matched_by": "", "predicted_s": np.nan}, index=rows.index)
    names, times = kernels["kernel"].astype(str).to_numpy(), kernels["time_s"].to_numpy(float)
    known = place >= 0
    target = np.array(expected, np.int64)[place[known]]
    time = rows["duration_s"].to_numpy(float)[known]
    together = pd.Series(time).groupby(place[known])
    share = time / np.maximum(together.transform("sum").to_numpy(), 1e-30)
    found.loc[known, "role"] = names[target]
    found.loc[known, "matched_by"] = "model"
    found.loc[known, "predicted_s"] = times[target] * share
    own = kernels_of_shapes(rows[~known], default)
    if len(own):
        found.loc[own.index, "predicted_s"] = predict(own, gpu)["time_s"].to_numpy(float)
        found.loc[own.index, "matched_by"] = "shapes"
    return found


def unmatched_kernels(kernels: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return the model's kernels without any launch: fused into others, or not run at all.

    Returns
    -------
    DataFrame
        ``kernel, count, predicted_s`` (of all of them).
    """
    seen = set(found["role"])
    rest = kernels[~kernels["kernel"].astype(str).isin(seen)]
    rest = rest.assign(kernel=rest["kernel"].astype(str), predicted_s=rest["time_s"] * rest["count"])
    return rest.groupby("kernel", sort=False)[["count", "predicted_s"]].sum().reset_index()


def _expand(kernels: pd.DataFrame, model: Model) -> Iterator[int]:
    """Yield the row of every launch of a pass, in order: layer by layer, the sums over devices in their places."""
    layers, names = kernels["layers"].to_numpy(), kernels["kernel"].astype(str).to_numpy()
    index, left = kernels.index.to_numpy(), dict(zip(kernels.index, kernels["count"], strict=True))
    inside = np.flatnonzero(layers >= 0)
    first, last = (inside[0], inside[-1] + 1) if len(inside) else (0, 0)
    yield from index[:first]
    order = sorted((number, i) for i, group in enumerate(model.layers) for number in group.numbers)
    for _, kind in order:
        own = np.flatnonzero(layers == kind)
        own_names = list(dict.fromkeys(names[own]))
        sums = index[own[names[own] == "all_reduce"]]
        each = round(kernels.loc[sums, "count"].sum() / len(model.layers[kind].numbers)) if len(sums) else 0
        for name in own_names:
            if name == "all_reduce":
                continue
            row = next((r for r in index[own[names[own] == name]] if left[r] > 0), None)
            if row is None:
                continue
            left[row] -= 1
            yield row
            if name == "out_proj" and each > 1:
                yield sums[0]
        if each:
            yield sums[0]
    yield from index[last:]


def _align(rows: pd.DataFrame, kernels: pd.DataFrame, expected: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Align launches with expected kernels: positions in `rows` and in `expected` that belong together."""
    classes = rows["kernel_class"].to_numpy(object)
    parts = rows["kernel"].str.contains(_PARTIAL).to_numpy(bool)
    recorded = np.flatnonzero([name in _ANCHORS and not part for name, part in zip(classes, parts, strict=True)])
    kinds = kernels["kind"].astype(str).to_dict()
    wanted = np.array([at for at, row in enumerate(expected) if kinds[row] not in _BETWEEN], np.int64)
    sizes = {row: tuple(kernels.loc[row, ["batch", "m", "n", "k"]]) for row in set(expected)}
    target = [expected[at] for at in wanted]
    recorded = recorded[: MOST_CELLS // max(len(wanted), 1)]
    tokens: dict[tuple, np.ndarray] = {}
    # The best total score of the first launches and the first expected ones, row after row.
    score = np.zeros((len(recorded) + 1, len(wanted) + 1), np.int32)
    gains = []
    for number, at in enumerate(recorded):
        operator, shapes = rows["operator"].iat[at], rows["shapes"].iat[at]
        key = (classes[at], operator, shapes)
        if key not in tokens:
            product = product_sizes(operator, shapes)
            tokens[key] = np.array([_gain(classes[at], product, kinds[row], sizes[row]) for row in target], np.int32)
        gain = tokens[key]
        gains.append(gain)
        step = np.maximum(score[number, 1:], np.where(gain > 0, score[number, :-1] + gain, 0))
        score[number + 1, 1:] = np.maximum.accumulate(step)
    pairs, i, j = [], len(recorded), len(wanted)
    while i and j:
        if score[i, j] == score[i, j - 1]:
            j -= 1
        elif score[i, j] == score[i - 1, j]:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((recorded[i], wanted[j]))
    found = np.array(pairs[::-1], np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _gain(own: str, product: tuple | None, kind: str, sizes: tuple) -> int:
    """Score of a launch of a class as a kernel of a kind: 0 if it cannot be, more for the same sizes."""
    if kind not in _ANCHORS[own]:
        return 0
    if product is None or kind != "gemm":
        # A product of recorded sizes is not a grouped GEMM.
        return 1 if product is None else 0
    if product == sizes:
        return 4
    same = product[2:] == sizes[2:] and product[0] == sizes[0]
    return 3 if same and sizes[1] <= product[1] <= sizes[1] * _PADDING + 16 else 0


def _match_between(rows: pd.DataFrame, kernels: pd.DataFrame, expected: list[int], place: np.ndarray) -> None:
    """Match what runs between aligned launches, in `place`: the positions in `expected`, -1 where there is none."""
    names = kernels["kernel"].astype(str).to_dict()
    kinds = kernels["kind"].astype(str).to_dict()
    classes, full = rows["kernel_class"].to_numpy(object), rows["kernel"].to_numpy(object)
    aligned = np.flatnonzero(place >= 0)
    edges = [(-1, -1), *((at, place[at]) for at in aligned), (len(rows), len(expected))]
    for (begin, before), (end, after) in pairwise(edges):
        between = [at for at in range(before + 1, after) if kinds[expected[at]] in _BETWEEN]
        for at in range(begin + 1, end):
            if begin >= 0 and _continues(classes[at], classes[begin], full[at]):
                place[at] = before
                continue
            for own, word, role in _ROLES:
                if not re.fullmatch(own, classes[at]) or (word and not re.search(word, full[at])):
                    continue
                options = [place_ for place_ in between if re.search(role, names[expected[place_]])]
                if options:
                    # In order: the second norm between two products is the second of the model, if it has two.
                    used = max((place[k] for k in range(begin + 1, at) if place[k] in options), default=-1)
                    later = [option for option in options if option > used]
                    place[at] = later[0] if later else options[-1]
                    break


def _continues(own: str, before: str, name: str) -> bool:
    """Whether a launch finishes what the one before it began: partial results of split attention and split-K."""
    if own == "split_k_reduce":
        return before in ("gemm", "gemv")
    return own == before == "attention" and _PARTIAL.search(name) is not None
