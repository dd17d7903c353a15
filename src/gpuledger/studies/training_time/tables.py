"""Errors of predicted training steps, by model and by sequence length."""

import pandas as pd

from gpuledger.models.time_model.accuracy import errors_percent

#: Predictions by column, and what the table calls them.
PREDICTIONS = {"kernels": "kernels_s", "roofline": "roofline_s", "rule": "rule_s"}


def of_one_length(data: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the length of sequence that was run on the most numbers of GPUs.

    The longest sequences were run on few GPUs only: runs of all lengths would tell these apart, not numbers of GPUs.
    """
    lengths = data.groupby("sequence_tokens")["gpus"].nunique()
    return data[data["sequence_tokens"] == lengths.idxmax()]


def error_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of all runs, of every precision, model, sequence length and (of one length) number of GPUs.

    Returns
    -------
    DataFrame
        ``by, value, runs``; of kernels alone ``kernels_median_percent`` and, signed, ``kernels_bias_percent``;
        ``roofline_median_percent, rule_median_percent`` (40 % MFU); of runs in bf16 that explained nothing
        ``held_back_runs, explained_median_percent``.
    """
    groups = {("all", "all"): data}
    for by in ("precision", "model", "sequence_tokens", "gpus", "recompute"):
        runs, words = data, by
        if by == "gpus":
            runs = of_one_length(data)
            words = f"gpus, {runs['sequence_tokens'].iloc[0]} tokens"
        groups |= {(words, str(value).lower()): part for value, part in runs.groupby(by, sort=True)}
    rows = []
    for (by, value), part in groups.items():
        errors = {name: errors_percent(part[column], part["measured_s"]) for name, column in PREDICTIONS.items()}
        back = part[part["held_back"] & (part["precision"] == "bf16")]
        explained = errors_percent(back["explained_s"], back["measured_s"])
        rows.append(
            {
                "by": by,
                "value": value,
                "runs": len(part),
                **{f"{name}_median_percent": error.abs().median() for name, error in errors.items()},
                "kernels_bias_percent": errors["kernels"].median(),
                "held_back_runs": len(back),
                "explained_median_percent": explained.abs().median(),
            }
        )
    return pd.DataFrame(rows)


def run_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return every run with its step, predicted and measured, and what it needs of the GPU's memory, for people."""
    names = {
        **{"model": "model", "precision": "precision", "gpus": "GPUs", "sequence_tokens": "tokens of a sequence"},
        **{"micro_batch": "sequences of a pass", "accumulation": "passes", "recompute": "recomputed"},
        **{"measured_s": "measured (s)", "kernels_s": "kernels alone (s)", "explained_s": "explained (s)"},
        **{"mfu_percent": "MFU (%)", "memory_gb": "memory (GB)", "fits": "fits"},
    }
    return data.assign(memory_gb=data["memory_bytes"] / 1e9)[list(names)].rename(columns=names)


def in_words(by: str) -> str:
    """Return in words by what :func:`error_table` groups runs."""
    words = {"sequence_tokens": "tokens of a sequence", "recompute": "recomputed"}
    return words.get(by, by.replace("gpus, ", "GPUs, at "))
