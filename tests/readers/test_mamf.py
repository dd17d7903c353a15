"""Logs of mamf-finder.py: both versions, which differ in what their second size is."""

import pytest
from command_line import run

from gpuledger.errors import InputError
from gpuledger.readers.kernel_tables.gemms import read_gemms

HEAD = (
    "\nBenchmark started on 2026-01-02 03:04:05\n\n** Dtype: torch.{dtype}\n\n** Additional notes:\n{version}\n\n----\n"
)
SECOND = HEAD.format(dtype="bfloat16", version="benchmark version: 2") + (
    "     1 |  200.0(mean)  201.0(median)  202.0(max) @ 1024x2048x4096       | best:  200.0(mean) TFLOPS\n"
    "     2 |  400.0(mean)  401.0(median)  402.0(max) @ 1024x2048x8192       | best:  400.0(mean) TFLOPS"
    "     3 |  100.0(mean)  101.0(median)  102.0(max) @ 1024x2048x4096       | best:  400.0(mean) TFLOPS\n"
)


@pytest.fixture
def log(tmp_path):
    def write(text):
        (tmp_path / "log.txt").write_text(text, "utf-8")
        return tmp_path / "log.txt"

    return write


def test_the_second_version_has_the_inner_length_last(log):
    frame, skipped = read_gemms(log(SECOND), "TFLOP/s")
    assert frame[["m", "n", "k"]].to_numpy().tolist() == [[1024, 2048, 4096], [1024, 2048, 8192]]
    flop = 2.0 * 1024 * 2048 * frame["k"]
    # Equal shapes of a log that was resumed: the median of their times.
    assert (flop / frame["measured_s"] / 1e12).tolist() == pytest.approx([2 / (1 / 200 + 1 / 100), 400])
    assert set(frame["group"]) == {"16-bit"} and skipped == []


def test_the_first_version_has_it_second(log):
    text = (
        HEAD.format(dtype="float8_e4m3fn", version="")
        + "Trial 7 | 821.0 TFLOPS @ 11264x19712x1536 | best: 821.0 TFLOPS\n"
    )
    frame, _ = read_gemms(log(text), "TFLOP/s")
    assert frame[["precision", "m", "n", "k"]].to_numpy().tolist() == [["fp8", 11264, 1536, 19712]]


@pytest.mark.parametrize(
    ("text", "unit", "said"),
    [
        (SECOND, "ms", r"log\.txt: mamf-finder\.py prints TFLOP/s, not ms; give unit: TFLOP/s"),
        (SECOND.replace("bfloat16", "complex64"), "TFLOP/s", r"no row of a known type \(found complex64\)"),
        (SECOND.replace(" 1024x", " 0x"), "TFLOP/s", "no product in it has a speed"),
    ],
)
def test_what_cannot_be_read_is_one_line(log, text, unit, said):
    with pytest.raises(InputError, match=said):
        read_gemms(log(text), unit)


def test_inspect_names_the_study(log):
    done = run("inspect", log(SECOND))
    assert "log of mamf-finder.py" in done and "kernel_time" in done and "TFLOP/s" in done
