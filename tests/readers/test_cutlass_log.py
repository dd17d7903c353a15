"""What cutlass_profiler prints, whole and damaged: the GEMMs in its blocks, or in the table at its end."""

import pytest

from gpuledger.cli.recognise import recognise
from gpuledger.errors import InputError
from gpuledger.readers.kernel_tables.gemms import read_gemms

BLOCK = """
=============================
  Problem ID: {number}

        Provider: CUTLASS
   OperationKind: gemm
       Operation: cutlass_tensorop_s1688gemm_f16_256x128_32x2_nt_align8

          Status: Success
    Verification: ON
     Disposition: {disposition}

reference_device: Passed

       Arguments: --gemm_kind=universal --m={m} --n=4096 --k=512 --A=f16:column --B=f16:row --C=f32:column --alpha=1  \\
                  --beta=0 --split_k_slices=1 --batch_count=1 --op_class=tensorop --accum=f32 --cta_m=256

           FLOPs: 115992428544  flops

         Runtime: {runtime}  ms
          Memory: 70.7616 GiB/s
"""
TABLE = """
=============================

CSV Results:

Problem,Provider,OperationKind,Operation,Disposition,Status,m,n,k,A,B,batch_count,op_class,accum,Runtime,GFLOPs
1,CUTLASS,gemm,cutlass_tensorop_gemm,passed,success,256,4096,512,bf16:row,bf16:column,1,tensorop,f32,{runtime},1
"""


def block(m, runtime, disposition="Passed", number=1):
    return BLOCK.format(number=number, m=m, runtime=runtime, disposition=disposition)


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        (tmp_path / "log.txt").write_text(text)
        found, skipped = read_gemms(tmp_path / "log.txt", "ms")
        return found[["m", "n", "k", "precision", "measured_s"]].to_numpy().tolist(), skipped

    return write_and_read


def test_blocks_of_kernels(read, tmp_path):
    text = block(256, 1.5) + block(256, 1.25, "Not verified") + block(256, 0.1, "Incorrect") + block(512, 3, number=2)
    found, skipped = read(f"$ ./cutlass_profiler\n{text}")
    assert found == [[256, 4096, 512, "fp16", pytest.approx(1.25e-3)], [512, 4096, 512, "fp16", pytest.approx(3e-3)]]
    assert skipped == ["Disposition incorrect"]
    assert recognise(tmp_path / "log.txt")[0].cases["kernel_time"]["measurements"] == "log.txt"
    # Of version 2.0, which names no kind of operation.
    assert read(block(256, 1.5).replace("   OperationKind: gemm\n", ""))[0][0][4] == pytest.approx(1.5e-3)
    convolution = block(256, 9).replace("OperationKind: gemm", "OperationKind: conv2d")
    assert read(convolution + block(256, 1.5))[1] == ["OperationKind conv2d"]


def test_the_table_at_the_end(read, tmp_path):
    expected = [[256, 4096, 512, "bf16", pytest.approx(0.5e-3)]], []
    assert read(block(256, 1.5) + TABLE.format(runtime=0.5)) == expected
    assert read(TABLE.format(runtime=0.5) + "\nDone.\n") == expected
    # Columns that old versions lack.
    assert read(TABLE.format(runtime=0.5).replace("Disposition,Status,", "").replace("passed,success,", "")) == expected
    assert "kernel_time" in recognise(tmp_path / "log.txt")[0].cases


def test_what_is_wrong_is_named_with_its_line(read):
    with pytest.raises(InputError, match=r"log.txt, line 24, column Runtime: '-1' is not a positive number"):
        read(block(256, 1.5) + block(256, -1))
    with pytest.raises(InputError, match=r"line 7, column Runtime: '-1' is not a positive number"):
        read(TABLE.format(runtime=-1))
    with pytest.raises(InputError, match=r"a runtime is in us, not in ms"):
        read(block(256, "1.5").replace("1.5  ms", "1.5  us"))
    with pytest.raises(InputError, match=r"the column 'Runtime' is missing"):
        read(block(256, 1.5).partition("         Runtime")[0])
