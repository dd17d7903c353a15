"""Kernel times of linear attention and SSMs: what the reader makes of a table, made-up kernels, hostile tables."""

import itertools

import numpy as np
import pandas as pd
import pytest
from own_cases import own_case, reduced

from gpuledger.cli.tables import find_table
from gpuledger.errors import InputError
from gpuledger.models.time_model.recurrent_law import ChunkedConstants, ConvolutionConstants, UpdateConstants
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_tables.recurrent import read_recurrent
from gpuledger.studies import kernel_time
from gpuledger.studies.kernel_time import engine_prediction
from gpuledger.studies.kernel_time.engine_reduction import _prepared

H100 = find_gpu("h100-sxm")
DELTA = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 64, "head_v_dim": 128}
MAMBA = {"n_groups": 8, "d_state": 128, "nheads": 64, "head_dim": 64}
CONSTANTS = {
    "convolution": ConvolutionConstants(2e-6, 0.7, 15.0, 1.4, 2e-7, 3e-8),
    "convolution update": ConvolutionConstants(1.6e-6, 0.6, 16.0, 0.5, 1e-7, 1e-9),
    "chunked rule": ChunkedConstants(9e-6, 0.6, 11.0, 0.2, 3e-7, 9e-6, 1.5e-6, 1.2e-5, 5.5, 2),
    "state update": UpdateConstants(4e-6, 0.9, 22.0, 0.5),
}


def delta(name="gdn", **values):
    """A table of four kernels, of prompts and of decode steps."""
    batches, lengths, heads = [2**i for i in range(11)], [2**i for i in range(0, 15, 2)], [2, 4, 8, 16, 32, 64]
    columns = ["batch_size", "seq_len", "num_v_heads"]
    parts = []
    for kernel, phase, tokens in (
        ("causal_conv1d_fn", "context", lengths),
        ("chunk_rule", "context", lengths),
        ("causal_conv1d_update", "generation", [1]),
        ("recurrent_rule", "generation", [1]),
    ):
        table = pd.DataFrame(itertools.product(batches, tokens, heads), columns=columns)
        table["num_k_heads"] = table["num_v_heads"] // (1 if name == "kda" else 2)
        parts.append(table.assign(kernel_source=kernel, phase=phase))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(op_name=name, d_conv=4, head_k_dim=128, head_v_dim=128, latency=0.1, **values)


def opened(folder, table):
    table.to_csv(folder / "table.csv", index=False)
    return own_case(folder, "kernel_time", {"recurrent": "table.csv", "gpu": "h100-sxm", "unit": "ms"})


def read(folder, table):
    opened(folder, table)
    return read_recurrent(folder / "table.csv", "ms")


def rows(**values):
    row = {"op_name": "gdn", "kernel_source": "chunk", "phase": "context", "batch_size": 2, "seq_len": 100, "d_conv": 4}
    return pd.DataFrame([row | DELTA | {"latency": 0.25} | values])


def test_a_row_says_what_a_kernel_moves(tmp_path):
    table = pd.concat([rows(), rows(kernel_source="causal_conv1d_fn"), rows(latency=0.75)])
    frame, skipped = read(tmp_path, table)
    assert skipped == [] and frame["operator"].tolist() == ["chunked rule", "convolution"]
    rule, convolution = (frame.iloc[place] for place in (0, 1))
    assert rule["measured_s"] == pytest.approx(5e-4), "the median of equal rows"
    assert (rule["requests"], rule["tokens"], rule["new_tokens"]) == (2, 100, 200)
    assert (rule["key_heads"], rule["heads"], rule["decays"]) == (16, 64, 64)
    assert (convolution["channels"], convolution["span"]) == (2 * 16 * 128 + 64 * 128, 4)
    assert (convolution["read_state_bytes"], convolution["written_state_bytes"]) == (4, 4)


def test_generation_has_one_token_whatever_the_table_says(tmp_path):
    for seq_len in (np.nan, 0, 77):
        frame, _ = read(tmp_path, rows(phase="generation", seq_len=seq_len))
        assert frame["tokens"].tolist() == [1] and frame["operator"].tolist() == ["state update"]
    frame, _ = read(tmp_path, rows(phase="verify", seq_len=4, kernel_source="causal_conv1d_update"))
    assert frame["tokens"].tolist() == [4] and frame["operator"].tolist() == ["convolution update"]


def test_operations_have_their_own_kernels_and_sizes(tmp_path):
    kimi, _ = read(tmp_path, rows(op_name="kda", num_k_heads=64))
    assert kimi["kernel"].tolist() == ["KDA chunk"] and kimi["decays"].tolist() == [64 * 128]
    mamba = rows(op_name="mamba2", kernel_source="causal_conv1d_fn").drop(columns=list(DELTA)).assign(**MAMBA)
    frame, _ = read(tmp_path, mamba)
    assert frame["kernel"].tolist() == ["Mamba-2 causal_conv1d_fn"]
    assert frame["channels"].tolist() == [64 * 64 + 2 * 8 * 128]


def test_benchmarks_of_the_unpacked_update_convolve_keys_only(tmp_path):
    unpacked = rows(kernel_source="fused_recurrent_gated_delta_rule", phase="generation")
    frame, _ = read(tmp_path, pd.concat([unpacked, rows(kernel_source="causal_conv1d_fn")]))
    assert set(frame["channels"]) == {16 * 128}
    update = frame[frame["operator"] == "state update"].iloc[0]
    assert (update["read_state_bytes"], update["written_state_bytes"]) == (2, 4)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """A case whose times are a law's."""
    folder = tmp_path_factory.mktemp("made_up")
    table = delta()
    frame = _prepared(H100, read(folder, table)[0])
    for operator, part in frame.groupby("operator"):
        kind = engine_prediction.kind_of(operator)
        times = engine_prediction.terms(H100, kind, CONSTANTS[operator], part)["time_s"]
        frame.loc[part.index, "measured_s"] = times
    names = {"kernel_source": "kernel", "batch_size": "requests", "seq_len": "tokens", "num_v_heads": "heads"}
    found = table.rename(columns=names).merge(frame[[*names.values(), "measured_s"]], how="left")
    return opened(folder, table.assign(latency=1e3 * found["measured_s"].to_numpy())), frame


def test_made_up_kernels_come_out_again(made_up):
    _, frame = made_up
    for operator, part in frame.groupby("operator"):
        kind = engine_prediction.kind_of(operator)
        assert type(kind.start) is type(CONSTANTS[operator])
        # Few shapes leave some constants open; times do not.
        found = engine_prediction.fit(H100, kind, part[~part["held_back"]])
        back = part[part["held_back"]]
        predicted = engine_prediction.predict(H100, kind, found, back)
        assert (predicted["predicted_s"] / back["measured_s"] - 1).abs().mean() < 0.05, operator
        assert set(predicted["bound"]) <= {"launch", "chain", "compute", "dram", "l2"}


def test_a_case_is_judged_beside_its_baselines(made_up):
    case, frame = made_up
    result = reduced(case)
    judged = result.data
    assert set(judged["operator"]) == set(CONSTANTS) and result["skipped_kernels"] == "none"
    assert (
        result["shapes"] == len(judged) == len(frame)
        and result["mape_held_back_percent"] < 5 < result["mape_lookup_percent"]
    )
    assert result["host_bound"] == "none" and "kernels of linear attention and SSMs" in result.finding
    regions = kernel_time.error_table(judged)["region"]
    assert "up to 64 tokens" in set(regions) and "16,385 tokens and more" in set(regions)


def test_eager_kernels_are_recognised(tmp_path):
    table = delta().assign(latency=lambda rows: 0.4 + 1e-6 * rows["batch_size"] * rows["seq_len"])
    result = reduced(opened(tmp_path, table))
    assert "causal_conv1d_fn (400 µs)" in result["host_bound"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"op_name": "rwkv"}, "is no known operation"),
        ({"phase": "training"}, "is no known phase"),
        ({"num_v_heads": 24}, "no multiple of num_k_heads"),
        ({"batch_size": 0}, "not a whole number from 1"),
        ({"seq_len": 1.5}, "not a whole number from 1"),
        ({"latency": -1.0}, "not a positive number"),
        ({"latency": 1e-9}, "shorter than the data sheet"),
        ({"kernel_source": None}, "is no name"),
    ],
)
def test_hostile_tables_are_refused_in_one_line(tmp_path, changed, message):
    table = delta() if changed == {"latency": 1e-9} else rows()
    with pytest.raises(InputError, match=message):
        reduced(opened(tmp_path, table.assign(**changed)))


def test_tables_without_a_column_or_of_several_operations_are_refused(tmp_path):
    for column in ("head_k_dim", "phase", "d_conv"):
        with pytest.raises(InputError, match=f"'{column}' is missing"):
            read(tmp_path, rows().drop(columns=column))
    with pytest.raises(InputError, match="several operations"):
        read(tmp_path, pd.concat([rows(), rows(op_name="kda", num_k_heads=64)]))
    with pytest.raises(InputError, match="no kernel has 20 shapes"):
        reduced(opened(tmp_path, rows()))


def test_such_tables_are_recognised():
    title, cases = find_table(delta().columns, "gdn.csv")
    assert title == "table of times of linear attention or SSMs"
    assert cases == {"kernel_time": {"recurrent": "gdn.csv", "gpu": None, "unit": "ms"}}
