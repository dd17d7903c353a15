"""What DeepGEMM's tests print, of the first release and of later ones, and damaged."""

import pytest

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputError
from gpuledger.readers.kernel_tables.gemms import read_gemms

FIRST = """\
Testing GEMM:
 > Performance (m=   64, n= 2112, k= 7168):   10 us | throughput:  194 TFLOPS, 1586 GB/s
 > Performance (m= 4096, n= 7168, k=16384): 6333 us | throughput:  152 TFLOPS, 1009 GB/s

Testing grouped contiguous GEMM:
 > Performance (num_groups=4, m_per_group=8192, n=4096, k=7168): 1233 us | throughput: 1560 TFLOPS,  343 GB/s

Testing weight gradient GEMM:
 > Performance (m= 7168, n= 2112, k= 4096):  123 us | throughput:  900 TFLOPS,  343 GB/s
"""
LATER = """\
Testing GEMM:
 > Perf (m=   128, n=  2112, k=  7168, 1D2D, layout=NT, BF16, acc=0):   11.5 us |  337 TFLOPS | 1443 GB/s | 1.02x cuBLAS
 > Perf (m=   128, n=  2112, k=  7168, 1D1D, layout=NT, FP32, acc=1):   15.0 us |  258 TFLOPS | 1443 GB/s | 1.02x cuBLAS
 > Perf (m=   128, n=  2112, k=  7168, layout=NT, BF16, acc=0):    20.0 us |  194 TFLOPS | 1443 GB/s | 0.98x cuBLAS
 > Perf (m=   128, n=  2112, k=  7168, layout=TN, BF16, acc=0):    21.0 us |  185 TFLOPS | 1443 GB/s | 0.98x cuBLAS
"""


@pytest.fixture
def read(tmp_path):
    def write_and_read(text, unit="us"):
        (tmp_path / "log.txt").write_text(text)
        found, skipped = read_gemms(tmp_path / "log.txt", unit)
        return found[["m", "n", "k", "precision", "kernel", "measured_s"]].to_numpy().tolist(), skipped

    return write_and_read


def test_the_first_release_prints_whole_microseconds(read, tmp_path):
    found, skipped = read(FIRST)
    # 2 · 64 · 2112 · 7168 FLOP at 194 TFLOP/s: three digits, where the time has two.
    small = [64, 2112, 7168, "fp8_block", "", pytest.approx(2 * 64 * 2112 * 7168 / 194e12)]
    assert found == [small, [4096, 7168, 16384, "fp8_block", "", pytest.approx(6333e-6)]]
    assert skipped == ["weight gradient GEMM"]
    (seen,) = recognise(tmp_path / "log.txt")
    assert seen.cases == {"kernel_time": {"measurements": "log.txt", "gpu": None, "unit": "us"}}


def test_later_ones_say_types_and_layouts(read):
    found, skipped = read(LATER)
    shape = [128, 2112, 7168]
    expected = [[*shape, "bf16", "", pytest.approx(20e-6)], [*shape, "fp8_block", "1D2D", pytest.approx(11.5e-6)]]
    assert found == expected
    assert skipped == ["FP32", "layout=TN"]


def test_the_time_of_a_launch_is_not_the_products(read):
    found, skipped = read(
        "Testing FP8 GEMM NT:\n"
        " > Perf (m=  128, n= 2112, k= 7168, 1D2D, BF16, acc=0): launch   31 us | 4000 us |  431 TFLOPS | 1816 GB/s\n"
        "Testing GEMM skip head mid:\n"
        " > Perf (m=  128, n= 2112, k= 7168, 1D2D):   9 us |  431 TFLOPS | 1816 GB/s\n"
    )
    assert found == [[128, 2112, 7168, "fp8_block", "1D2D", pytest.approx(4e-3)]]
    assert skipped == ["GEMM skip head mid"]


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        (FIRST, "ms", "times are in us, not in ms"),
        (FIRST[FIRST.index("Testing w") :], "us", "no GEMM that is read .found weight gradient GEMM."),
        (LATER.replace("11.5 us |  337", "0.0 us |  0"), "us", "a size or a time that no GEMM has"),
    ],
)
def test_what_is_refused(read, text, unit, words):
    with pytest.raises(InputError, match=words):
        read(text, unit)
