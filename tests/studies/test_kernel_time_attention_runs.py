"""Attention of many GPUs, measured by others, beside what the constants of the checkout predict."""

import pandas as pd
import pytest
from own_cases import own_case, reduced
from support.notebooks import run_notebook

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_time.published_runs import OTHER_GPU, OTHER_KERNEL, OWN

HEADER = (
    "run,gpu,library,pass,precision,causal,requests,queries,keys,heads,kv_heads,key_dim,value_dim,time_ms,tflop_per_s"
)
LONG = "forward,bf16,true,2,8192,8192,32,8,128,128"
LOG = "### causal=False, headdim=128, batch_size=4, seqlen=8192 ###\nFlash2 fwd: 300.0 TFLOPs/s, bwd: 250.0 TFLOPs/s, "


@pytest.fixture
def reduce(tmp_path):
    def write_and_reduce(*rows, **inputs):
        case = own_case(tmp_path, "kernel_time", {"attention_runs": "runs.csv"} | inputs)
        (tmp_path / "runs.csv").write_text("\n".join((HEADER, *rows, "")), "utf-8")
        return reduced(case)

    return write_and_reduce


def test_a_planted_error_comes_out_with_whose_constants_they_are(reduce):
    plan = [
        ("h200-sxm,cuDNN", LONG, OWN),
        ("h20-sxm,FlashAttention-2", LONG, OTHER_GPU),
        ("a100-pcie-80gb,cuDNN", LONG, OTHER_KERNEL),
        ("h200-sxm,cuDNN", LONG.replace("forward", "backward"), OWN),
        ("b200,cuDNN", LONG.replace("forward", "backward").replace("true", "false"), OTHER_KERNEL),
        ("h200-sxm,cuDNN", LONG.replace("true", "false"), OWN),
        ("h100-sxm,FlashMLA", "forward,bf16,true,64,1,8192,128,1,576,512", OTHER_KERNEL),
        ("a100-sxm-80gb,unknown", "forward,fp16,true,64,1,8192,32,8,128,128", OTHER_KERNEL),
    ]
    rows = [f"r{place},{gpu},{shape}" for place, (gpu, shape, _) in enumerate(plan)]
    first = reduce(*(f"{row},1," for row in rows)).data
    times = 1 + first["error_percent"] / 100
    result = reduce(*(f"{row},{2 * time}," for row, time in zip(rows, times, strict=True)))
    assert result.data["error_percent"].tolist() == pytest.approx([-50] * len(plan))
    assert result.data["constants"].tolist() == [whose for *_, whose in plan]
    groups = ["causal", "causal", "causal", "backward", "backward", "full", "latent", "decode"]
    assert result.data["group"].tolist() == groups and result.data["judged"].all()
    assert result["run_mape_percent_causal_own"] == pytest.approx(50, abs=1e-3)
    assert result["finding"].startswith("Attention that others timed: half of 3 runs are predicted within 50.0")
    assert result.provenance["kind"] == "predicted"


def test_rates_count_half_under_a_mask_and_more_backward(reduce):
    sizes = "1,4096,4096,16,16,128,128"
    rows = [
        f"r,h100-sxm,cuDNN,{way},bf16,{mask},{sizes},,200"
        for way in ("forward", "backward")
        for mask in ("true", "false")
    ]
    data = reduce(*rows).data
    seconds = data["measured_tflop_per_s"] * 0 + 200
    assert data["measured_tflop_per_s"].tolist() == pytest.approx(seconds.tolist())
    slower = data["predicted_tflop_per_s"]
    assert slower.between(100, 800).all() and slower[1] > slower[0]


def test_a_mask_halves_the_work(reduce):
    rows = [
        f"r,h200-sxm,cuDNN,{way},bf16,{mask},1,32768,32768,64,8,128,128,1,"
        for way in ("forward", "backward")
        for mask in ("true", "false")
    ]
    time = 1 + reduce(*rows).data["error_percent"] / 100
    assert 1.7 < time[1] / time[0] < 2 and 1.8 < time[3] / time[2] < 2.05


def test_a_log_needs_its_gpu_and_a_table_has_it(reduce, tmp_path):
    (tmp_path / "my.log").write_text(LOG + "fwd + bwd: 263.0 TFLOPs/s\n", "utf-8")
    result = reduced(own_case(tmp_path, "kernel_time", {"attention_runs": "my.log", "gpu": "h200"}))
    assert result.data[["run", "gpu", "group"]].to_numpy().tolist() == [
        ["my", "h200-sxm", name] for name in ("backward", "full")
    ]
    with pytest.raises(InputError, match="does not say on which GPU it ran; give it as gpu"):
        reduced(own_case(tmp_path, "kernel_time", {"attention_runs": "my.log"}))
    with pytest.raises(InputError, match="gpu: a table has a column for it; leave it out"):
        reduce(f"r,h100-sxm,cuDNN,{LONG},1,", gpu="h100-sxm")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (f"r,h100-smx,cuDNN,{LONG},1,", r"runs\.csv, line 2, column gpu: unknown GPU 'h100-smx'"),
        (f"r,h100-sxm,cuDNN,{LONG},,", "line 2: it has neither time_ms nor tflop_per_s; give one of them"),
        (f"r,h100-sxm,cuDNN,{LONG.replace('forward', 'both')},1,", "column pass: 'both' is not one of"),
        ("r,h100-sxm,cuDNN,forward,bf16,true,1,128,64,4,4,64,64,1,", "line 2: it has more queries than keys"),
        ("r,h100-sxm,cuDNN,forward,bf16,true,1,64,64,6,4,64,64,1,", "line 2: heads is no multiple of kv_heads"),
        ("r,h100-sxm,cuDNN,forward,bf16,true,1,64,64,4,4,64,64,1,", "no kernel of 20 µs or more can be predicted"),
    ],
)
def test_bad_cells_are_one_line(reduce, row, said):
    with pytest.raises(InputError, match=said):
        reduce(row)


def test_sizes_beyond_any_memory(reduce):
    most = 2**31
    result = reduce(f"r,h100-sxm,cuDNN,forward,bf16,false,{most},{most},{most},{most},1,{most},{most},1,")
    assert result.data["predicted_tflop_per_s"].gt(0).all()


def test_the_page_draws_every_gpu(reduce, tmp_path):
    rows = [f"{gpu} run,{gpu},FlashAttention-2,{LONG},,{rate}" for gpu, rate in (("h100-sxm", 300), ("rtx-4090", 150))]
    result = reduce(*rows, "s,h100-sxm,FlashMLA,forward,bf16,true,64,1,8192,128,1,576,512,0.5,")
    run_notebook("kernel_time_published", result, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out/table.csv")
    assert table[["group", "gpu", "library", "shapes"]].to_numpy().tolist() == [
        ["causal", "h100-sxm", "FlashAttention-2", 1],
        ["causal", "rtx-4090", "FlashAttention-2", 1],
        ["latent", "h100-sxm", "FlashMLA", 1],
    ]


def test_the_published_table_has_no_shape_twice_and_no_speed_beyond_its_gpu():
    table = pd.read_csv(files.ROOT / "traces/published-attention/attention.csv")
    assert len(table) == 270 and table["gpu"].nunique() == 12
    assert not table.duplicated(list(table.columns[:13])).any()
    assert (table["time_ms"].isna() != table["tflop_per_s"].isna()).all()
    for row in table[table["tflop_per_s"].notna()].itertuples():
        assert row.tflop_per_s * 1e12 < 1.1 * find_gpu(row.gpu).peak_flop_per_s(
            "fp8" if row.precision == "fp8" else "bf16"
        )
