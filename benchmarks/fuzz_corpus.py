"""What `fuzz.py` damages: a small file of every format, and how it is read."""

import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
from fuzz_pairs import pairs

from gpuledger import schemas
from gpuledger.cli.recognise import recognise
from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Case, Dataset, Repository
from gpuledger.ledger.download.unpack import unpack_zip
from gpuledger.ledger.study import read_studies
from gpuledger.models.transformer import read_model
from gpuledger.models.transformer.configuration import MODELS
from gpuledger.readers import ncu, neutrino
from gpuledger.readers.gpus import TABLE, find_gpu, read_gpus
from gpuledger.readers.kernel_names import PATTERNS, classify, extend_patterns
from gpuledger.readers.kernel_tables.engines import read_attention, read_collectives, read_moe
from gpuledger.readers.kernel_tables.measured_table import MeasuredTable
from gpuledger.readers.kernel_tables.recurrent import read_recurrent
from gpuledger.readers.kernel_tables.small_kernels import read_products, read_quantise
from gpuledger.readers.kernel_tables.sparse import read_sparse
from gpuledger.readers.neutrino import event_log, kernel_info, probe, process_log, tensor_trace
from gpuledger.readers.neutrino.block_trace import read_blocks
from gpuledger.readers.served_results import read_served
from gpuledger.readers.tabular import Column, read_csv
from gpuledger.readers.timelines import read_timeline
from gpuledger.record.recording import MANIFEST, Recording
from gpuledger.studies.dmat import open_accesses
from gpuledger.studies.flop_reconciliation.launches import read_shapes
from gpuledger.studies.kernel_time.module_measurements import read_modules
from gpuledger.studies.metric_sweep.measurements import read_launches, read_observations
from gpuledger.studies.serving_time.results import read_results
from gpuledger.studies.serving_time.runs import read_runs
from gpuledger.studies.warp_scheduling import load_plain
from gpuledger.studies.warp_scheduling.progress import read_pickled_progress, read_progress

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests/data"
#: Times that a case of ceilings needs, undamaged.
BESIDE = "beside.csv"
ROWS = (
    "kernel,rows,length,cache,time_median_ns,time_p5_ns,time_p95_ns,launches\n"
    "one_pass,16384,1024,cold,33000,32500,34000,600\nlibrary,16384,1024,cold,33000,32500,34000,600\n"
)
LIGER = (
    "kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_value,y_value_50,"
    "extra_benchmark_config_str,gpu_name,liger_version\n"
)
#: Tables of the studies: the study, what its case says, and a few rows or a published table.
CASES = [
    ("kernel_overhead", "table: NAME", "kernel_overhead/table3.csv"),
    ("memory_usage", "table: NAME", "memory_usage/fig12.csv"),
    ("exposed_latency", "table: NAME", "exposed_latency/fig13.csv"),
    ("warp_scheduling", "cdf: NAME", "warp_scheduling/fig17a.csv"),
    ("kernel_time", "measurements: NAME, gpu: a100-sxm-80gb, unit: TFLOP/s", "kernel_time/cublas_fp16.csv"),
    (
        "training_time",
        "runs: NAME, gpu: h100-sxm",
        "model,gpu,gpus,sequence_tokens,micro_batch,accumulation,recompute,precision,tokens_per_s\n"
        "Llama-3.1-8B,h100-sxm,8,4096,1,4,false,bf16,60000\nLlama-3.1-8B,h100-sxm,8,8192,1,4,true,fp8,50000\n",
    ),
    (
        "kernel_power",
        "moe: NAME, gpu: b200, unit: ms",
        "kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,"
        "latency,power,power_limit\n"
        + "".join(
            f"fused,fp8,{tokens},{hidden},2048,8,64,1,1,balanced,{tokens / 512},{600 + tokens / 50},1000\n"
            for hidden in range(1024, 8192, 512)
            for tokens in (512, 640, 768, 896, 1024, 1152)
        ),
    ),
    (
        "engine_comparison",
        "measurements: {old: NAME, new: NAME}, baseline: old, gpu: h100-sxm, unit: ms",
        "gemm_dtype,m,n,k,latency\n" + "".join(f"bfloat16,{m},4096,4096,0.0{m}\n" for m in range(11, 19)),
    ),
    (
        "kernel_time",
        "layers: NAME, model: Llama-3.1-8B, gpu: h100-sxm, unit: ns",
        "layer_name,input,kv_cache,tp_size,latency(ns)\nq_proj,1,0,1,9000\no_proj,64,0,2,12000\nqkv_proj,1,0,1,9000\n",
    ),
    (
        "kernel_time",
        "operators: NAME, gpu: a100-sxm-80gb, unit: ms",
        "time_stats.attn_pre_proj.median,time_stats.add.median,n_head,n_kv_head,n_embd,n_expanded_embd,use_gated_mlp,"
        "num_tokens,num_tensor_parallel_workers\n1.2,0.02,32,8,4096,14336,True,64,1\n1.4,0.03,32,8,4096,14336,True,128,2\n",
    ),
    (
        "kernel_time",
        "throughput: {softmax: NAME}, gpu: a100-sxm-80gb",
        "4096, 32, 9.9\n4096, 64, 19.6\n4096, 128, 37.2\n",
    ),
    (
        "kernel_time",
        "throughput: {matmul: NAME}, gpu: a100-sxm-80gb",
        "64, 12288, 12288, 0.1900ms, 101.7124Tflops\n128, 12288, 12288, 0.2003ms, 193.0114Tflops\n"
        "256, 12288, 12288, 0.3185ms, 242.7090Tflops\n",
    ),
    ("normalization_roofline", "rows: NAME, gpu: a100-sxm-80gb", ROWS),
    (
        "normalization_roofline",
        "benchmark: NAME, kernel: layer_norm, device: g, version: '1', gpu: a100-sxm-80gb",
        LIGER
        + 'layer_norm,liger,forward,speed,ms,1024,0.03,"{""M"": 4096, ""dtype"": ""torch.float32"", ""eps"": 1}",g,1\n'
        'layer_norm,huggingface,forward,speed,ms,1024,0.05,"{""M"": 4096, ""dtype"": ""torch.float32""}",g,1\n',
    ),
    (
        "normalization_roofline",
        "benchmark: NAME, kernel: group_norm, device: g, version: '1', gpu: a100-sxm-80gb",
        LIGER + 'group_norm,liger,forward,speed,ms,64,0.03,"{""M"": 128, ""H"": 512, ""channels_per_group"": 4, '
        '""dtype"": ""torch.float32""}",g,1\n',
    ),
    (
        "normalization_roofline",
        f"rows: {BESIDE}, ceilings: NAME, gpu: h200-sxm",
        "ceiling,cache,moved_bytes,flops,time_median_ns\nlaunch,warm,0,0,1500.0\n"
        "multiply_add,warm,0,1099511627776,16943455.0\ncopy,cold,262144,0,1559.4\ncopy,warm,262144,0,1500.5\n",
    ),
]
#: Tables that take longer to reduce than to read: the study, what its case says, the reader, a few rows.
READ = [
    (
        "kernel_time",
        "attention: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_attention(case.path("attention"), case.inputs["unit"]),
        "op_name,kernel_source,attn_dtype,kv_cache_dtype,batch_size,isl,step,num_heads,num_key_value_heads,head_dim,"
        "latency\ncontext_attention,fa,bfloat16,bfloat16,1,128,0,32,8,128,0.05\n"
        "generation_attention,fa,bfloat16,fp8,4,1,512,32,8,128,0.02\n",
    ),
    (
        "kernel_time",
        "attention: NAME, gpu: b200, unit: ms",
        lambda case: read_attention(case.path("attention"), case.inputs["unit"]),
        "op_name,kernel_source,attn_dtype,batch_size,isl,num_heads,head_dim,latency\n"
        "encoder_attention,triton,bfloat16,1,128,16,64,0.05\nencoder_attention,triton,bfloat16,4,576,16,72,0.02\n",
    ),
    (
        "kernel_time",
        "quantise: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_quantise(case.path("quantise"), case.inputs["unit"]),
        "op_name,kernel_source,quant_dtype,m,k,latency\nscale_matrix,torch_ops,fp8,1,128,0.002\n"
        "scale_matrix,torch_ops,fp8,64,4096,0.003\n",
    ),
    (
        "kernel_time",
        "batched: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_products(case.path("batched"), case.inputs["unit"]),
        "op_name,kernel_source,bmm_dtype,num_tokens,num_heads,latency\nmla_gen_pre,torch_bmm,bfloat16,1,16,0.004\n"
        "mla_gen_post,bmm_fp8,fp8,64,128,0.008\n",
    ),
    (
        "kernel_time",
        "moe: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_moe(case.path("moe"), case.inputs["unit"]),
        "kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,"
        "latency\nmoe,bfloat16,16,1024,512,2,8,1,1,balanced,0.1\nmoe,fp8,64,1024,512,2,8,1,2,power_law_1.2,0.1\n",
    ),
    (
        "kernel_time",
        "collectives: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_collectives(case.path("collectives"), case.inputs["unit"]),
        "op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
        + "".join(f"all_reduce,NCCL,half,2,{1024 * n},0.01{n}\n" for n in range(1, 6)),
    ),
    (
        "kernel_time",
        "recurrent: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_recurrent(case.path("recurrent"), case.inputs["unit"]),
        "op_name,kernel_source,phase,batch_size,seq_len,d_conv,num_k_heads,head_k_dim,num_v_heads,head_v_dim,latency\n"
        "gdn,causal_conv1d_fn,context,2,128,4,4,128,8,128,0.01\ngdn,chunk,context,2,128,4,4,128,8,128,0.1\n"
        "gdn,update,generation,4,,4,4,128,8,128,0.02\n",
    ),
    (
        "kernel_time",
        "sparse: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_sparse(case.path("sparse"), case.inputs["unit"]),
        "op_name,kernel_source,num_heads,batch_size,isl,step,compress_ratio,score_mode,latency\n"
        "glm5_mqa_logits_module,mqa,64,1,128,0,1,,0.05\nglm5_topk_module,topk,64,4,1,4096,1,top_last,0.02\n"
        "glm5_topk_module,topk,64,4,1,512,1,flat,0\n",
    ),
    (
        "kernel_time",
        "modules: NAME, configs: ., gpu: h100-sxm, unit: ms",
        lambda case: read_modules(case, case.path("modules")),
        "framework,op_name,kernel_source,model,gemm_type,kv_cache_dtype,num_heads,batch_size,isl,step,latency\n"
        "SGLang,dsa_context_module,fa3,zai-org/GLM-5,bfloat16,fp8,64,1,128,0,0.5\n"
        "TRTLLM,dsa_generation_module_skip_indexer,mla,zai-org/GLM-5,fp8_block,bfloat16,8,4,1,512,0.2\n",
    ),
    (
        "metric_sweep",
        "measurements: NAME",
        lambda case: read_launches(case, PATTERNS),
        "kernel_class,metric,unit,n_layer,hidden_dim,seq_len,value\n"
        "gemm,dram__bytes_read.sum,Kbyte,1,8,16,1.5\ngemm,dram__bytes_read.sum,Kbyte,1,8,32,2.5\n"
        "gemm,dram__bytes_read.sum,Kbyte,1,8,64,5\ngemm,dram__sectors_read.sum,sector,1,8,16,47\n",
    ),
    (
        "metric_sweep",
        "measurements: NAME, observations: NAME",
        read_observations,
        "model,kernel_class,kernel_name,metric,observation\n"
        'gpt2,gemm,"k<float, 1>",sm__inst_executed_pipe_tensor.sum,nonzero\ngpt2,gemm,l,dram__bytes_read.sum,zero\n',
    ),
    (
        "serving_time",
        "runs: NAME, gpu: h100-sxm",
        lambda case: read_runs(case, find_gpu("h100-sxm")),
        (ROOT / "traces/published/serving_time/llama_70b_h100.csv").read_text("utf-8"),
    ),
    (
        "serving_time",
        "results: [{files: NAME, parallel: {tensor: 4}}], gpu: h100-sxm",
        lambda case: read_results(case, find_gpu("h100-sxm")),
        '{"backend": "sglang", "request_rate": 4.5, "max_concurrency": 8, "server_info": {"model_path": "Qwen3-8B",'
        ' "tp_size": 4, "dp_size": 2}, "duration": 9.5, "completed": 64, "total_input_tokens": 32768, '
        '"total_output_tokens": 4096, "output_throughput": 431.2, "median_ttft_ms": 80.5, "median_tpot_ms": 7.25}\n',
    ),
    (
        "serving_time",
        "results: [{files: NAME}], gpu: h100-sxm",
        lambda case: read_results(case, find_gpu("h100-sxm")),
        '[{"hw": "h100-nb", "conc": 8, "model": "openai/gpt-oss-120b", "framework": "vllm", "precision": "fp4",'
        ' "tp": 4, "ep": 1, "dp_attention": "false", "spec_decoding": "none", "disagg": false, "isl": 1024,'
        ' "osl": 1024, "tput_per_gpu": 410.5, "median_ttft": 0.09, "median_tpot": 0.0056, "mean_tpot": 0.0057}]',
    ),
]


def corpus(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    """Yield the name of a reader, a file that it reads, and the reader."""
    yield from ((f"ncu {path.name}", path, ncu.read) for path in sorted((DATA / "ncu").glob("*.csv")))
    yield "ncu long_base.txt", DATA / "ncu/long_base.txt", ncu.read
    yield "ncu in parts", DATA / "ncu/raw.csv", lambda path: list(ncu.read_parts(path, values=1))
    logs = DATA / "neutrino"
    yield "kernel.info", logs / "kernel.info", kernel_info.read_kernel_info
    yield "event.log", logs / "main_event.log", event_log.read_event_log
    yield "process.log", logs / "process.log", process_log.read_process_log
    yield "tensor.trace", logs / "tensor.trace", tensor_trace.read_tensor_trace
    yield "probe", logs / "written.toml", probe.read_probe
    # A few rows: a data sheet of all takes long to read, and damage is in few of them anyway.
    sheet = TABLE.read_text("utf-8").splitlines(keepends=True)
    yield "data sheets", _written(folder / "gpus.csv", "".join(sheet[:4])), read_gpus
    yield from _traces(folder)
    yield from _tables(folder)
    yield from _timelines(folder)
    # Plain, mixture of experts with latent attention, and with layers of two kinds.
    models = ("Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-20b")
    yield from ((f"config.json of {name}", MODELS / f"{name}.json", sizes_of) for name in models)
    yield "config.yaml", ROOT / "config/config.yaml", use_config
    state = '{"parts": {}, "left_out": {"x": "y"}, "points": {"a": {"key": "k", "sha256": "0", "about": {}}}}'
    yield "recording.json", _written(folder / MANIFEST, state), resume
    for number, (study, inputs, table) in enumerate(CASES):
        (own := folder / f"case{number}").mkdir()
        text = table if "\n" in table else (ROOT / "traces/published" / table).read_text("utf-8")
        yield f"{study} {{{inputs}}}", _written(own / "table.csv", text), reduced(study, inputs)
    for number, (study, inputs, read, text) in enumerate(READ):
        (own := folder / f"read{number}").mkdir()
        yield f"{study} {{{inputs}}}", _written(own / "table.csv", text), reading(study, inputs, read)
    shapes = '{"Input": [[256, 1, 512]], "Weight": [[1536, 512]], "Bias": [[1536]]}'
    yield "shapes", _written(folder / "shapes.json", f"[{shapes}, {shapes}]"), read_shapes
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.csv", "m,n\n" * 40)
        archive.writestr("c.csv", "m,n\n")
    yield "zip", folder / "a.zip", lambda path: unpack_zip(path, Path(tempfile.mkdtemp(dir=folder)))
    yield "inspected table", ROOT / "traces/published/kernel_overhead/table3.csv", recognise
    case = 'title: t\nkind: recorded\nsource: s\nlicense: l\nfiles: {"*.csv": {source: x}}\nstudies:\n'
    case += "  kernel_overhead: {a: {table: m.csv}}\n  dmat: {b: {trace: t.bin, tensors: [{name: q, pages: 2}]}}\n"
    yield "dataset.yaml", _written(folder / "dataset.yaml", case), open_dataset
    patterns = "- {name: mine, regex: '^my_(a|b)+kernel', class: gemm, family: x}\n"
    yield "kernel patterns", _written(folder / "patterns.yaml", patterns), use_patterns
    yield from pairs(folder)


def _traces(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    shape = {"version": "V3", "grid": (3, 1, 1), "block": (64, 1, 1)}
    blocks = np.ones((3, 2, 1), neutrino.records.BLOCK_SCHED)
    accesses = np.zeros((3, 64, 2), neutrino.DMAT_ACCESS)
    accesses["clock"], accesses["addr"] = np.arange(3 * 64 * 2).reshape(3, 64, 2), 0x7F0000000000
    clocks = np.zeros((3, 64, 4), neutrino.records.PROGRAM_PROGRESS)
    clocks["clock"] = 1 + np.arange(4)
    for name, level, records, read in (
        ("block trace", "warp", blocks, read_blocks),
        ("access trace", "thread", accesses, survey),
        ("branch trace", "thread", clocks, read_progress),
    ):
        path = folder / f"{name.replace(' ', '-')}.bin"
        neutrino.write_trace(path, sections=[(level, records)], **shape)
        yield name, path, read
    neutrino.write_dmat(folder / "a.dmat", [1, 1, 2], [65536, 131072, 65536], [3, 4, 5])
    yield ".dmat", folder / "a.dmat", neutrino.read_dmat


def _tables(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    yield "YAML", ROOT / "src/gpuledger/studies/kernel_overhead/study.yaml", schemas.load_yaml
    table = pd.DataFrame({"m": [1, 2, 3], "name": ["a", "b", "c"]})
    table.to_parquet(folder / "a.parquet")
    yield "Parquet", folder / "a.parquet", columns_of
    table.to_csv(folder / "m.csv", index=False)
    yield "CSV of numbers", folder / "m.csv", columns_of
    yield "CSV with a schema", folder / "m.csv", read_typed
    workbook = folder / "gpus.xlsx"
    pd.read_csv(folder / "gpus.csv").to_excel(workbook, index=False)
    yield "workbook", workbook, read_gpus
    # Damage inside of the archive, which a checksum would hide.
    with zipfile.ZipFile(workbook) as archive:
        sheet = _written(folder / "sheet.xml", archive.read("xl/worksheets/sheet1.xml"))
        rest = {name: archive.read(name) for name in archive.namelist() if not name.endswith("sheet1.xml")}
    yield "sheet of a workbook", sheet, lambda path: read_gpus(_zipped(folder, path, rest))
    pd.to_pickle({"a": table["m"].to_numpy(), "b": [1, 2], "c": {3}}, folder / "a.pkl")
    yield "pickle", folder / "a.pkl", load_plain
    pd.to_pickle({"a": [1, 2, 3], "b": np.arange(1, 5)}, folder / "clocks.pkl")
    yield "pickled clocks", folder / "clocks.pkl", read_pickled_progress


_XLA = """{"traceEvents": [
{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
{"ph": "M", "pid": 1, "tid": 15, "name": "thread_name", "args": {"name": "Stream #15(Kernel)"}},
{"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Modules"}},
{"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 9, "name": "jit_f(1)"},
{"ph": "X", "pid": 1, "tid": 15, "ts": 1.5, "dur": 2, "name": "loop_add_fusion_1",
 "args": {"kernel_details": "regs:16 grid:8,1,1 block:128,1,1", "hlo_op": "add.1", "correlation_id": "7"}},
{"ph": "X", "pid": 1, "tid": 15, "ts": 4, "dur": 2, "name": "MemcpyD2H", "args": {"memcpy_details": "size:4"}},
{"ph": "X", "pid": 9, "tid": 3, "ts": 0.5, "dur": 1, "name": "cuLaunchKernel", "args": {"correlation_id": "7"}}]}"""


#: What nvprof writes with --csv and prints, what torch.profiler prints, and what benchmarks of a server print.
_NVPROF_CSV = """==12== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Size","Device","Stream","Name"
ms,us,,,,,,,MB,,,
214.33,1.216,,,,,,,0.004,"Tesla V100-SXM2-16GB (0)","7","[CUDA memcpy HtoD]"
214.40,605.0,32,2,1,256,1,1,,"Tesla V100-SXM2-16GB (0)","7","sgemm(float*, int) [120]"
"""
_NVPROF_SUMS = """==12== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   67.08%  8.6348ms        14  616.77us     512ns  3.1952ms  [CUDA memcpy HtoD]
                    0.15%  1.00250s         1  1.00250s  1.00250s  1.00250s  void reduce<int, 2>(int*, unsigned int)
      API calls:   99.00%  286.81ms         1  286.81ms  286.81ms  286.81ms  cudaDeviceReset
"""
_NVPROF_TRACE = """==31== Profiling result:
   Start  Duration   Grid Size   Block Size   Regs*   SSMem*           Device  Context  Name
182.84ms  23.136us           -            -       -        -  Tesla P100-PCIE        1  [CUDA memcpy HtoD]
182.90ms  41.500us     (8 4 1)    (256 1 1)      32       0B  Tesla P100-PCIE        1  sgemm(float*, int)
"""
_TORCH_TABLE = """-------------------------  ------------  ------------  ------------  ------------  ------------
                     Name      Self CPU     CPU total     Self CUDA    CUDA total    # of Calls
-------------------------  ------------  ------------  ------------  ------------  ------------
                 aten::mm      20.000us      20.000us       5.000ms       5.000ms             2
      void cutlass::Ke...       0.000us       0.000us       5.000ms       5.000ms             2
   triton_poi_fused_add_0      30.000us      30.000us       2.500ms       2.500ms             4
   triton_poi_fused_add_0       0.000us       0.000us       2.500ms       2.500ms             4
-------------------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 1s
Self CUDA time total: 7.500ms
"""
_SERVED = """Namespace(num_prompts=400, max_concurrency=50, model='Qwen/Qwen3-8B', request_rate=inf)
============ Serving Benchmark Result ============
Successful requests:                     400
Benchmark duration (s):                  40.00
Total input tokens:                      409200
Total generated tokens:                  51200
Request throughput (req/s):              10.00
Median TTFT (ms):                        1000.00
Median TPOT (ms):                        20.00
==================================================
"""


def _timelines(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    yield "nvprof CSV", _written(folder / "nvprof.csv", _NVPROF_CSV), read_timeline
    yield "nvprof text", _written(folder / "nvprof-sums.txt", _NVPROF_SUMS), read_timeline
    yield "nvprof trace as text", _written(folder / "nvprof-trace.txt", _NVPROF_TRACE), read_timeline
    yield "torch.profiler's table", _written(folder / "torch.txt", _TORCH_TABLE), read_timeline
    yield "printed server benchmark", _written(folder / "served.txt", _SERVED), read_served
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"grid": [1, 1, 1]}}'
    yield "kineto", _written(folder / "a.json", f'{{"traceEvents": [{", ".join([event] * 3)}]}}'), read_timeline
    yield "xla", _written(folder / "host.trace.json", _XLA), read_timeline
    csv = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,Device,Strm,Name\n1,2,3,1,1,1,a,7,k\n5,2,4,1,1,1,a,7,k\n"
    yield "nsys table", _written(folder / "nsys.csv", csv), read_timeline
    with closing(sqlite3.connect(folder / "a.sqlite")) as database:
        database.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT); INSERT INTO StringIds VALUES (1, 'k');"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
            "correlationId INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER,"
            "gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 5, 0, 7, 1, 1, 1, 1, 1, 1, 32, 1, 1, 16);"
        )
    yield "nsys sqlite", folder / "a.sqlite", read_timeline
    csv = "Kind,Agent_Id,Stream_Id,Kernel_Name,Start_Timestamp,End_Timestamp,Workgroup_Size_X,Grid_Size_X\n"
    csv += 'KERNEL_DISPATCH,"Agent 4",1,"k<float, 1>",155187406124,155187406525,64,640\n' * 2
    yield "rocprof table", _written(folder / "rocprof.csv", csv), read_timeline
    csv = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"k(int) [clone .kd]",2,300,150,100.0\n'
    yield "rocprof statistics", _written(folder / "statistics.csv", csv), read_timeline
    with closing(sqlite3.connect(folder / "rocpd.db")) as database:
        database.executescript(
            "CREATE TABLE rocpd_info_kernel_symbol (id INTEGER, guid TEXT, kernel_name TEXT, display_name TEXT);"
            "INSERT INTO rocpd_info_kernel_symbol VALUES (7, 'a', 'k', NULL);"
            "CREATE TABLE rocpd_kernel_dispatch (id INTEGER, guid TEXT, agent_id INTEGER, kernel_id INTEGER, stream_id"
            " INTEGER, start BIGINT, end BIGINT, workgroup_size_x INTEGER, grid_size_x INTEGER, event_id INTEGER);"
            "INSERT INTO rocpd_kernel_dispatch VALUES (1, 'a', 4, 7, 2, 1000, 3500, 64, 640, NULL);"
        )
    yield "rocpd", folder / "rocpd.db", read_timeline
    frame = '{"frame": {"name": "k", "type": "function"}, "metrics": {"time (ns)": 5, "count": 1, "device_id": "0"}}'
    tree = f'[{{"frame": {{"name": "ROOT"}}, "metrics": {{}}, "children": [{frame}]}}, {{"CUDA": {{"0": {{}}}}}}]'
    yield "proton", _written(folder / "a.hatchet", tree), read_timeline


def _written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _zipped(folder: Path, sheet: Path, rest: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "zipped.xlsx", "w") as archive:
        for name, content in (rest | {"xl/worksheets/sheet1.xml": sheet.read_bytes()}).items():
            archive.writestr(name, content)
    return folder / "zipped.xlsx"


def columns_of(path: Path) -> object:
    return MeasuredTable(path, ["m"]).whole_numbers("m")


def read_typed(path: Path) -> object:
    return read_csv(path, [Column("m", "integer", minimum=0), Column("name")], key=["m"])


def survey(path: Path) -> object:
    return open_accesses(path, threads=1).survey()


def open_dataset(path: Path) -> object:
    dataset = Dataset.load(path)
    return [dataset.case(*case).paths() for case in dataset.cases() if case[0] in read_studies()]


def sizes_of(path: Path) -> object:
    model = read_model(path)
    return model.parameters, model.active_parameters, model.weight_bytes(), model.kv_bytes(2**17)


def use_config(path: Path) -> object:
    config = schemas.load_yaml(path)
    schemas.check(config, schemas.load_yaml(ROOT / "workflow/schemas/config.schema.yaml"), path)
    repository = Repository(ROOT, config)
    repository.check_config()
    return [repository.case(*name.split("/")) for name in config.get("overrides", {})]


def resume(path: Path) -> object:
    recording = Recording(path.parent)
    return [recording.is_made(name, "k") for name in ("a", "b")], list(recording.left_out.items())


@cache
def one_case(study: str, inputs: str, folder: Path) -> Case:
    """Return a case whose table NAME is ``table.csv``; that file may change, its declaration is read once."""
    head = "title: t\nkind: published\nsource: s\nlicense: l\n"
    declared = f"studies: {{{study}: {{c: {{{inputs.replace('NAME', 'table.csv')}}}}}}}\n"
    return Dataset.load(_written(folder / "dataset.yaml", head + declared)).case(study, "c")


def reduced(study: str, inputs: str) -> Callable:
    reduce = import_module(f"gpuledger.studies.{study}").reduce

    def read(path: Path) -> object:
        if not (beside := path.with_name(BESIDE)).exists():
            beside.write_text(ROWS, "utf-8")
        return reduce_case(one_case(study, inputs, path.parent), reduce)

    return read


def reading(study: str, inputs: str, read: Callable) -> Callable:
    return lambda path: read(one_case(study, inputs, path.parent))


def use_patterns(path: Path) -> object:
    content = schemas.load_yaml(path)
    schema = read_studies()["metric_sweep"].case["properties"]["kernel_patterns"]
    schemas.check(content, schema, path)
    return classify(["my_" + "a" * 30 + "x", "my_abkernel"], extend_patterns(content, file=path))
