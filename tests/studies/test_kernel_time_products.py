"""Matrix products of many GPUs, measured by others, beside what the constants of the checkout predict."""

import pandas as pd
import pytest
from own_cases import own_case, reduced
from support.notebooks import run_notebook

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.readers.gpus import find_gpu
from gpuledger.studies.kernel_time.published_runs import FITTED, OTHER_FORMAT, OTHER_GPU, OWN
from gpuledger.studies.kernel_time.single_kernels import single_gemms

HEADER = "run,gpu,precision,m,n,k,tflop_per_s,same_operands"


@pytest.fixture
def reduce(tmp_path):
    def write_and_reduce(*rows):
        case = own_case(tmp_path, "kernel_time", {"products": "gemms.csv"})
        (tmp_path / "gemms.csv").write_text("\n".join((HEADER, *rows, "")), "utf-8")
        return reduced(case)

    return write_and_reduce


def predicted(gpu, precision, size, repeated):
    shape = pd.DataFrame({"m": [size], "n": [size], "k": [size]})
    times = single_gemms(find_gpu(gpu), shape, precision, repeated=repeated, alone=True)["time_s"]
    return 2 * size**3 / times.min() / 1e12


def test_planted_errors_come_out(reduce):
    plan = [
        ("h100-sxm", "bf16", 0.8, OWN),
        ("h100-sxm", "tf32", 1.0, OTHER_FORMAT),
        ("rtx-4090", "fp16", 1.25, OTHER_GPU),
    ]
    speeds = [predicted(gpu, precision, 4096, True) * factor for gpu, precision, factor, _ in plan]
    rows = [
        f"r,{gpu},{precision},4096,4096,4096,{v},true" for (gpu, precision, *_), v in zip(plan, speeds, strict=True)
    ]
    result = reduce(*rows)
    assert result.data["error_percent"].tolist() == pytest.approx([-20, 0, 25], abs=1e-6)
    assert result.data["constants"].tolist() == [constants for *_, constants in plan]
    assert result["run_mape_percent_16_bit_own"] == pytest.approx(20, abs=1e-3)
    assert result["run_mape_percent_16_bit_other_gpu"] == pytest.approx(25, abs=1e-3)
    assert result["finding"].startswith("16-bit products that others timed: 1 run is predicted within 20.0")
    assert result.provenance["kind"] == "predicted"


def test_fp32_has_a_share_of_its_own_and_says_where_it_was_fitted(reduce):
    rows = [f"r,{gpu},fp32,8192,8192,8192,50,true" for gpu in ("h100-sxm", "rtx-4090", "v100-sxm2", "a40", "h20-sxm")]
    data = reduce(*rows).data
    share = data["predicted_tflop_per_s"] / data["peak_tflop_per_s"]
    assert share.tolist() == pytest.approx([0.77, 0.655, 0.92, 0.655, 0.77], abs=0.025)
    assert data["constants"].tolist() == [FITTED] * 3 + [OTHER_GPU] * 2


def test_fp8_is_predicted_without_the_conversion_of_activations(reduce):
    data = reduce("r,h100-sxm,fp8,8192,8192,8192,1300,false", "r,h100-sxm,bf16,8192,8192,8192,700,false").data
    with_it = single_gemms(find_gpu("h100-sxm"), pd.DataFrame({"m": [8192], "n": [8192], "k": [8192]}), "fp8")
    assert data["predicted_tflop_per_s"].iloc[0] > 2 * 8192**3 / with_it["time_s"].min() / 1e12


def test_small_products_and_missing_units_are_kept_but_not_judged(reduce):
    small = "a,h100-sxm,bf16,512,512,512,100,true"
    result = reduce(small, "a,v100-sxm2,fp8,4096,4096,4096,50,true", "a,h100-sxm,bf16,4096,4096,4096,700,true")
    assert result["products"] == 3 and result["large_products"] == 1
    assert result.data["predicted_tflop_per_s"].isna().tolist() == [False, True, False]
    assert result.data["judged"].sum() == 1
    with pytest.raises(InputError, match="no product of 10 GFLOP or more can be predicted"):
        reduce(small)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("r,h100-smx,bf16,4096,4096,4096,700,true", r"gemms\.csv, line 2, column gpu: unknown GPU 'h100-smx'"),
        ("r,h100-sxm,bf17,4096,4096,4096,700,true", "line 2, column precision: 'bf17' is not one of"),
        ("r,h100-sxm,bf16,0,4096,4096,700,true", "line 2, column m: '0' is not within 1 to"),
        ("r,h100-sxm,bf16,4096,4096,4096,inf,true", "line 2, column tflop_per_s: 'inf' is not a number"),
        ("r,h100-sxm,bf16,4096,4096,4096,700,maybe", "line 2, column same_operands: 'maybe' is not true or false"),
    ],
)
def test_bad_cells_are_one_line(reduce, row, said):
    with pytest.raises(InputError, match=said):
        reduce(row)


def test_sizes_beyond_any_memory(reduce):
    result = reduce(
        "r,h100-sxm,bf16,2147483648,2147483648,2147483648,700,true", "r,h100-sxm,bf16,1,2147483648,9,1e-6,false"
    )
    assert result.data["predicted_tflop_per_s"].gt(0).all()


def test_the_page_draws_every_gpu(reduce, tmp_path):
    rows = [
        f"r,{gpu},bf16,8192,{n},8192,{speed},true"
        for gpu, speed in (("h100-sxm", 700), ("l4", 60))
        for n in (4096, 8192)
    ]
    result = reduce(*rows, "s,h100-sxm,fp32,8192,8192,8192,50,true")
    run_notebook("kernel_time_published", result, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").glob("*.pdf")} == {"figure.pdf", "figure_map.pdf"}
    table = pd.read_csv(tmp_path / "out/table.csv")
    assert table[["group", "gpu", "shapes"]].to_numpy().tolist() == [
        ["16-bit", "h100-sxm", 2],
        ["16-bit", "l4", 2],
        ["fp32", "h100-sxm", 1],
    ]


def test_the_published_table_has_no_shape_twice_in_a_run():
    table = pd.read_csv(files.ROOT / "traces/published-gemms/gemms.csv")
    swept = table[~table["run"].str.startswith("search")]
    assert not swept.duplicated(["run", "gpu", "precision", "m", "n", "k"]).any()
    peaks = {name: find_gpu(name).flops for name in table["gpu"].unique()}
    share = [
        row.tflop_per_s * 1e12 / peaks[row.gpu][row.precision]
        for row in table.itertuples()
        if peaks[row.gpu].get(row.precision)
    ]
    assert min(share) > 0 and max(share) < 1.2  # a boost clock above the data sheet's
