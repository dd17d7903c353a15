"""Measured times of a model's layers, of which the GEMMs are judged."""

from pathlib import Path

import numpy as np
import pandas as pd

from gpuledger.errors import InputError
from gpuledger.ledger.datasets import Case
from gpuledger.models.transformer import read_model
from gpuledger.models.transformer.parallel import share
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable, median_of_equal

#: Names of layers, where they are not those of :mod:`gpuledger.models.transformer`.
_NAMES = {"o_proj": "out_proj"}


def read_layers(case: Case, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read the times of a model's layers as LLMServingSim's profiler writes them.

    Parameters
    ----------
    case : Case
        Its ``model`` is a name in ``resources/models``, ``unit`` that of the times.
    path : path
        A CSV of ``layer_name``, ``input`` (tokens), ``tp_size`` and ``latency(<unit>)``. Values are BF16.

    Returns
    -------
    frame, skipped
        As :func:`gpuledger.readers.kernel_tables.gemms.read_gemms`; skipped are layers that are no single GEMM:
        PyTorch's norms, RoPE and activation functions are chains of kernels.
    """
    time = f"latency({case.inputs['unit']})"
    table = MeasuredTable(path, ["layer_name", "input", "tp_size", time], unit=case.inputs["unit"])
    model = read_model(case.inputs["model"], paths=False)
    linears = {linear.part: linear for linear in (*model.layers[0].linears(model.hidden), model.lm_head)}
    names = table.texts("layer_name")
    part = names.replace(_NAMES)
    known = part.isin(linears)
    skipped = sorted(set(names[~known]))
    if not known.any():
        problem = f"no layer is a GEMM of {model.name} (found {', '.join(skipped)})"
        raise InputError(path, "column layer_name", problem, f"known are: {', '.join(linears)}")
    tokens, devices = (table.whole_numbers(name) for name in ("input", "tp_size"))
    times = table.seconds(time)
    kinds = pd.MultiIndex.from_arrays([part[known], devices[known]])
    codes, shared = pd.factorize(kinds)
    sizes = np.array([share(linears[name], int(count)) for name, count in shared], dtype=np.int64)[codes]
    frame = pd.DataFrame({"group": "16-bit", "kernel": "", "precision": "bf16", "m": tokens[known]})
    frame["n"], frame["k"], frame["measured_s"] = sizes[:, 0], sizes[:, 1], times[known]
    return median_of_equal(frame), skipped
