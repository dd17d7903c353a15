"""Plain tables of measured GEMMs."""

from gpuledger.readers.kernel_tables.gemms import read_gemms


def test_a_type_may_be_written_as_pytorch_prints_it(tmp_path):
    table = tmp_path / "gemms.csv"
    table.write_text("M,N,K,gemm_dtype,latency\n16,32,64,torch.bfloat16,2.5\n16,32,64,torch.float8_e4m3fn,1.5\n")
    frame, skipped = read_gemms(table, "us")
    assert (list(frame["precision"]), skipped) == (["bf16", "fp8"], [])
