"""Small tables of every kind that a study reads, and how: a list beside `fuzz_corpus`.

A parser is named after the study and the key of a case that names the table.
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from gpuledger.ledger.case_result import reduce_case
from gpuledger.ledger.datasets import Case, Dataset
from gpuledger.readers.gpus import find_gpu
from gpuledger.readers.kernel_names import PATTERNS
from gpuledger.readers.kernel_tables.attention_log import read_attention_log
from gpuledger.readers.kernel_tables.engines import read_attention, read_collectives, read_moe
from gpuledger.readers.kernel_tables.gemms import read_gemms
from gpuledger.readers.kernel_tables.recurrent import read_recurrent
from gpuledger.readers.kernel_tables.small_kernels import read_products, read_quantise
from gpuledger.readers.kernel_tables.sparse import read_sparse
from gpuledger.readers.tabular import read_csv
from gpuledger.studies.engine_comparison.shapes import read_shapes
from gpuledger.studies.kernel_power.readings import read_readings
from gpuledger.studies.kernel_time.attention_runs import COLUMNS as ATTENTION_COLUMNS
from gpuledger.studies.kernel_time.layer_measurements import read_layers
from gpuledger.studies.kernel_time.measurements import read_llmcompass, read_vidur
from gpuledger.studies.kernel_time.module_measurements import read_modules
from gpuledger.studies.kernel_time.products import COLUMNS as PRODUCT_COLUMNS
from gpuledger.studies.metric_sweep.measurements import read_launches, read_observations
from gpuledger.studies.normalization_roofline.liger import read_benchmark
from gpuledger.studies.normalization_roofline.reduction import read_times
from gpuledger.studies.serving_time.results import read_results
from gpuledger.studies.serving_time.runs import read_runs
from gpuledger.studies.training_time.runs import read_runs as read_training_runs

ROOT = Path(__file__).resolve().parents[1]
#: How the name of a reader begins that also computes from what is read.
ANALYSIS = "analysis of"
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
#: Tables that are reduced, too: the study, what the table is, what its case says, the reader, a few rows or a published
#: table. Without a reader, the reduction does little but read.
CASES = [
    ("kernel_overhead", "Table 3", "table: NAME", None, "kernel_overhead/table3.csv"),
    ("memory_usage", "Figure 12", "table: NAME", None, "memory_usage/fig12.csv"),
    ("exposed_latency", "Figure 13", "table: NAME", None, "exposed_latency/fig13.csv"),
    ("warp_scheduling", "Figure 17a", "cdf: NAME", None, "warp_scheduling/fig17a.csv"),
    (
        "kernel_time",
        "a table of speeds",
        "measurements: NAME, gpu: a100-sxm-80gb, unit: TFLOP/s",
        lambda case: read_gemms(case.path("measurements"), case.inputs["unit"]),
        "kernel_time/cublas_fp16.csv",
    ),
    (
        "training_time",
        "runs",
        "runs: NAME, gpu: h100-sxm",
        lambda case: read_training_runs(case, find_gpu("h100-sxm")),
        "model,gpu,gpus,sequence_tokens,micro_batch,accumulation,recompute,precision,tokens_per_s\n"
        "Llama-3.1-8B,h100-sxm,8,4096,1,4,false,bf16,60000\nLlama-3.1-8B,h100-sxm,8,8192,1,4,true,fp8,50000\n",
    ),
    (
        "kernel_power",
        "a benchmark",
        "moe: NAME, gpu: b200, unit: ms",
        lambda case: read_readings(case, 3.0),
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
        "GEMMs",
        "measurements: {old: NAME, new: NAME}, baseline: old, gpu: h100-sxm, unit: ms",
        read_shapes,
        "gemm_dtype,m,n,k,latency\n" + "".join(f"bfloat16,{m},4096,4096,0.0{m}\n" for m in range(11, 19)),
    ),
    (
        "kernel_time",
        "LLMServingSim",
        "layers: NAME, model: Llama-3.1-8B, gpu: h100-sxm, unit: ns",
        lambda case: read_layers(case, case.path("layers")),
        "layer_name,input,kv_cache,tp_size,latency(ns)\nq_proj,1,0,1,9000\no_proj,64,0,2,12000\nqkv_proj,1,0,1,9000\n",
    ),
    (
        "kernel_time",
        "Vidur",
        "operators: NAME, gpu: a100-sxm-80gb, unit: ms",
        read_vidur,
        "time_stats.attn_pre_proj.median,time_stats.add.median,n_head,n_kv_head,n_embd,n_expanded_embd,use_gated_mlp,"
        "num_tokens,num_tensor_parallel_workers\n1.2,0.02,32,8,4096,14336,True,64,1\n1.4,0.03,32,8,4096,14336,True,128,2\n",
    ),
    (
        "kernel_time",
        "softmax",
        "throughput: {softmax: NAME}, gpu: a100-sxm-80gb",
        read_llmcompass,
        "4096, 32, 9.9\n4096, 64, 19.6\n4096, 128, 37.2\n",
    ),
    (
        "kernel_time",
        "matmul",
        "throughput: {matmul: NAME}, gpu: a100-sxm-80gb",
        read_llmcompass,
        "64, 12288, 12288, 0.1900ms, 101.7124Tflops\n128, 12288, 12288, 0.2003ms, 193.0114Tflops\n"
        "256, 12288, 12288, 0.3185ms, 242.7090Tflops\n",
    ),
    (
        "normalization_roofline",
        "times",
        "rows: NAME, gpu: a100-sxm-80gb",
        lambda case: read_times(case, "rows"),
        ROWS,
    ),
    (
        "normalization_roofline",
        "of layers",
        "benchmark: NAME, kernel: layer_norm, device: g, version: '1', gpu: a100-sxm-80gb",
        read_benchmark,
        LIGER
        + 'layer_norm,liger,forward,speed,ms,1024,0.03,"{""M"": 4096, ""dtype"": ""torch.float32"", ""eps"": 1}",g,1\n'
        'layer_norm,huggingface,forward,speed,ms,1024,0.05,"{""M"": 4096, ""dtype"": ""torch.float32""}",g,1\n',
    ),
    (
        "normalization_roofline",
        "of groups",
        "benchmark: NAME, kernel: group_norm, device: g, version: '1', gpu: a100-sxm-80gb",
        read_benchmark,
        LIGER + 'group_norm,liger,forward,speed,ms,64,0.03,"{""M"": 128, ""H"": 512, ""channels_per_group"": 4, '
        '""dtype"": ""torch.float32""}",g,1\n',
    ),
    (
        "normalization_roofline",
        "ceilings",
        f"ceilings: NAME, rows: {BESIDE}, gpu: h200-sxm",
        lambda case: read_times(case, "ceilings"),
        "ceiling,cache,moved_bytes,flops,time_median_ns\nlaunch,warm,0,0,1500.0\n"
        "multiply_add,warm,0,1099511627776,16943455.0\ncopy,cold,262144,0,1559.4\ncopy,warm,262144,0,1500.5\n",
    ),
]
CUTLASS_LOG = """=============================
  Problem ID: 1

        Provider: CUTLASS
   OperationKind: gemm
       Operation: cutlass_tensorop_s1688gemm_f16

          Status: Success
     Disposition: Passed

       Arguments: --m=256 --n=4096 --k=512 --A=f16:column --B=f16:row --batch_count=1 --op_class=tensorop \\
                  --accum=f32

         Runtime: 1.55948  ms

=============================
"""
DEEPGEMM_LOG = """Testing GEMM:
 > Performance (m=   64, n= 2112, k= 7168):   10 us | throughput:  194 TFLOPS, 1586 GB/s
 > Perf (m=   128, n=  2112, k=  7168, 1D2D, layout=NT, BF16, acc=0):   11.5 us |  337 TFLOPS | 1443 GB/s | 1.02x cuBLAS
"""
#: One log of each way to print times of attention.
ATTENTION_LOGS = {
    "log of FlashAttention-2": "### causal=False, headdim=64, batch_size=4, seqlen=1024 ###\n"
    "Flash2 fwd: 100.00 TFLOPs/s, bwd: 80.00 TFLOPs/s, fwd + bwd: 84.85 TFLOPs/s\n"
    "Pytorch fwd: 20.00 TFLOPs/s, bwd: 30.00 TFLOPs/s, fwd + bwd: 26.25 TFLOPs/s\n",
    "log of FlashAttention-3": "### headdim = 128, causal = True, seqlen = 4096 ###\nFav2 fwd: 0.400ms, 343.6 TFLOPS\n"
    "CuDNN bwd: 1.000ms, 343.6 TFLOPS\n[1CTA] FA Python bwd: 2.000ms, 171.8 TFLOPS\n",
    "log of FlashAttention-4": "Benchmarking FA4 fwd, hdim=192, seqlen_q=2048, seqlen_kv=2048, causal=True, "
    "nheads=24, nheads_kv=8\n\n=====\n"
    "  FWD (ms / TFLOPS / MFU%)\n=====\n     hdim causal batch seqlen   cuDNN              FA4\n-----\n"
    "  192-128   True     2   2048       —    0.30/859/38.2%\n",
    "log of FlashMLA": "b=8, s_q=2, mean_sk=4096, h_q=16, h_kv=1, d=576, dv=512, causal=True, varlen=False\n"
    "0.050 ms, 46 TFLOPS, 800 GB/s\n",
}
CUTLASS_TABLE = (
    "CSV Results:\n\nProblem,Provider,OperationKind,m,n,k,A,B,Runtime\n"
    "1,CUTLASS,gemm,8,16,32,f16:row,f16:row,0.5\n2,CUTLASS,gemm,8,16,64,f16:row,f16:row,0.5\n"
)
#: Tables that are only read, as they take long to reduce.
READ = [
    (
        "kernel_time",
        "of engines",
        "attention: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_attention(case.path("attention"), case.inputs["unit"]),
        "op_name,kernel_source,attn_dtype,kv_cache_dtype,batch_size,isl,step,num_heads,num_key_value_heads,head_dim,"
        "latency\ncontext_attention,fa,bfloat16,bfloat16,1,128,0,32,8,128,0.05\n"
        "generation_attention,fa,bfloat16,fp8,4,1,512,32,8,128,0.02\n",
    ),
    (
        "kernel_time",
        "of encoders",
        "attention: NAME, gpu: b200, unit: ms",
        lambda case: read_attention(case.path("attention"), case.inputs["unit"]),
        "op_name,kernel_source,attn_dtype,batch_size,isl,num_heads,head_dim,latency\n"
        "encoder_attention,triton,bfloat16,1,128,16,64,0.05\nencoder_attention,triton,bfloat16,4,576,16,72,0.02\n",
    ),
    *(
        (
            "kernel_time",
            name,
            f"measurements: NAME, gpu: h100-sxm, unit: {unit}",
            lambda case: read_gemms(case.path("measurements"), case.inputs["unit"]),
            text,
        )
        for name, unit, text in (
            ("log of CUTLASS", "ms", CUTLASS_LOG),
            ("table of CUTLASS", "ms", CUTLASS_TABLE),
            ("log of DeepGEMM", "us", DEEPGEMM_LOG),
        )
    ),
    (
        "kernel_time",
        "of engines",
        "quantise: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_quantise(case.path("quantise"), case.inputs["unit"]),
        "op_name,kernel_source,quant_dtype,m,k,latency\nscale_matrix,torch_ops,fp8,1,128,0.002\n"
        "scale_matrix,torch_ops,fp8,64,4096,0.003\n",
    ),
    (
        "kernel_time",
        "mamf-finder",
        "measurements: NAME, gpu: b200, unit: TFLOP/s",
        lambda case: read_gemms(case.path("measurements"), case.inputs["unit"]),
        "** Dtype: torch.bfloat16\n- benchmark version: 2\n"
        " 1 |  134.8(mean)  134.9(median)  140.1(max) @ 1024x1024x1024       | best:  134.8(mean) TFLOPS\n"
        " 2 |  204.9(mean)  205.4(median)  210.4(max) @ 1024x1024x2048       | best:  204.9(mean) TFLOPS\n",
    ),
    (
        "kernel_time",
        "published",
        "products: NAME",
        lambda case: read_csv(case.path("products"), PRODUCT_COLUMNS),
        "run,gpu,precision,m,n,k,tflop_per_s,same_operands\na,h100-sxm,bf16,4096,4096,4096,700.5,true\n"
        "b,rtx-4090,fp16,8192,8192,1024,150,false\n",
    ),
    (
        "kernel_time",
        "published",
        "attention_runs: NAME",
        lambda case: read_csv(case.path("attention_runs"), ATTENTION_COLUMNS),
        "run,gpu,library,pass,precision,causal,requests,queries,keys,heads,kv_heads,key_dim,value_dim,time_ms,tflop_per_s\n"
        "a,h20,cuDNN,forward,bf16,true,2,2048,2048,16,16,128,128,0.3,\n"
        "b,b200,FlashMLA,backward,fp8,false,1,1,8192,16,1,576,512,,30\n",
    ),
    *(
        (
            "kernel_time",
            name,
            "attention_runs: NAME, gpu: h100-sxm",
            lambda case: read_attention_log(case.path("attention_runs")),
            text,
        )
        for name, text in ATTENTION_LOGS.items()
    ),
    (
        "kernel_time",
        "of engines",
        "batched: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_products(case.path("batched"), case.inputs["unit"]),
        "op_name,kernel_source,bmm_dtype,num_tokens,num_heads,latency\nmla_gen_pre,torch_bmm,bfloat16,1,16,0.004\n"
        "mla_gen_post,bmm_fp8,fp8,64,128,0.008\n",
    ),
    (
        "kernel_time",
        "of engines",
        "moe: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_moe(case.path("moe"), case.inputs["unit"]),
        "kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,"
        "latency\nmoe,bfloat16,16,1024,512,2,8,1,1,balanced,0.1\nmoe,fp8,64,1024,512,2,8,1,2,power_law_1.2,0.1\n",
    ),
    (
        "kernel_time",
        "of engines",
        "collectives: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_collectives(case.path("collectives"), case.inputs["unit"]),
        "op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
        + "".join(f"all_reduce,NCCL,half,2,{1024 * n},0.01{n}\n" for n in range(1, 6)),
    ),
    (
        "kernel_time",
        "of engines",
        "recurrent: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_recurrent(case.path("recurrent"), case.inputs["unit"]),
        "op_name,kernel_source,phase,batch_size,seq_len,d_conv,num_k_heads,head_k_dim,num_v_heads,head_v_dim,latency\n"
        "gdn,causal_conv1d_fn,context,2,128,4,4,128,8,128,0.01\ngdn,chunk,context,2,128,4,4,128,8,128,0.1\n"
        "gdn,update,generation,4,,4,4,128,8,128,0.02\n",
    ),
    (
        "kernel_time",
        "of engines",
        "sparse: NAME, gpu: h100-sxm, unit: ms",
        lambda case: read_sparse(case.path("sparse"), case.inputs["unit"]),
        "op_name,kernel_source,num_heads,batch_size,isl,step,compress_ratio,score_mode,latency\n"
        "glm5_mqa_logits_module,mqa,64,1,128,0,1,,0.05\nglm5_topk_module,topk,64,4,1,4096,1,top_last,0.02\n"
        "glm5_topk_module,topk,64,4,1,512,1,flat,0\n",
    ),
    (
        "kernel_time",
        "of engines",
        "modules: NAME, configs: ., gpu: h100-sxm, unit: ms",
        lambda case: read_modules(case, case.path("modules")),
        "framework,op_name,kernel_source,model,gemm_type,kv_cache_dtype,num_heads,batch_size,isl,step,latency\n"
        "SGLang,dsa_context_module,fa3,zai-org/GLM-5,bfloat16,fp8,64,1,128,0,0.5\n"
        "TRTLLM,dsa_generation_module_skip_indexer,mla,zai-org/GLM-5,fp8_block,bfloat16,8,4,1,512,0.2\n",
    ),
    (
        "metric_sweep",
        "laws",
        "measurements: NAME",
        lambda case: read_launches(case, PATTERNS),
        "kernel_class,metric,unit,n_layer,hidden_dim,seq_len,value\n"
        "gemm,dram__bytes_read.sum,Kbyte,1,8,16,1.5\ngemm,dram__bytes_read.sum,Kbyte,1,8,32,2.5\n"
        "gemm,dram__bytes_read.sum,Kbyte,1,8,64,5\ngemm,dram__sectors_read.sum,sector,1,8,16,47\n",
    ),
    (
        "metric_sweep",
        "observed",
        "observations: NAME, measurements: NAME",
        read_observations,
        "model,kernel_class,kernel_name,metric,observation\n"
        'gpt2,gemm,"k<float, 1>",sm__inst_executed_pipe_tensor.sum,nonzero\ngpt2,gemm,l,dram__bytes_read.sum,zero\n',
    ),
    (
        "serving_time",
        "published",
        "runs: NAME, gpu: h100-sxm",
        lambda case: read_runs(case, find_gpu("h100-sxm")),
        (ROOT / "traces/published/serving_time/llama_70b_h100.csv").read_text("utf-8"),
    ),
    (
        "serving_time",
        "SGLang",
        "results: [{files: NAME, parallel: {tensor: 4}}], gpu: h100-sxm",
        lambda case: read_results(case, find_gpu("h100-sxm")),
        '{"backend": "sglang", "request_rate": 4.5, "max_concurrency": 8, "server_info": {"model_path": "Qwen3-8B",'
        ' "tp_size": 4, "dp_size": 2}, "duration": 9.5, "completed": 64, "total_input_tokens": 32768, '
        '"total_output_tokens": 4096, "output_throughput": 431.2, "median_ttft_ms": 80.5, "median_tpot_ms": 7.25}\n',
    ),
    (
        "serving_time",
        "InferenceX",
        "results: [{files: NAME}], gpu: h100-sxm",
        lambda case: read_results(case, find_gpu("h100-sxm")),
        '[{"hw": "h100-nb", "conc": 8, "model": "openai/gpt-oss-120b", "framework": "vllm", "precision": "fp4",'
        ' "tp": 4, "ep": 1, "dp_attention": "false", "spec_decoding": "none", "disagg": false, "isl": 1024,'
        ' "osl": 1024, "tput_per_gpu": 410.5, "median_ttft": 0.09, "median_tpot": 0.0056, "mean_tpot": 0.0057}]',
    ),
]


def tables(folder: Path) -> Iterator[tuple[str, Path, Callable]]:
    """Yield the name of a reader, a table that it reads, and the reader."""
    for number, (study, title, inputs, read, table) in enumerate([*CASES, *READ]):
        (own := folder / f"case{number}").mkdir()
        text = (ROOT / "traces/published" / table).read_text("utf-8") if table.endswith(".csv") else table
        path, name = written(own / "table.csv", text), f"{study}.{inputs.partition(':')[0]}, {title}"
        yield name, path, reading(study, inputs, read) if read else reduced(study, inputs)
        if read and number < len(CASES):
            yield f"{ANALYSIS} {name}", path, reduced(study, inputs)


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@cache
def one_case(study: str, inputs: str, folder: Path) -> Case:
    """Return a case whose table NAME is ``table.csv``; that file may change, its declaration is read once."""
    head = "title: t\nkind: published\nsource: s\nlicense: l\n"
    declared = f"studies: {{{study}: {{c: {{{inputs.replace('NAME', 'table.csv')}}}}}}}\n"
    return Dataset.load(written(folder / "dataset.yaml", head + declared)).case(study, "c")


def reduced(study: str, inputs: str) -> Callable:
    reduce = import_module(f"gpuledger.studies.{study}").reduce

    def read(path: Path) -> object:
        if not (beside := path.with_name(BESIDE)).exists():
            beside.write_text(ROWS, "utf-8")
        return reduce_case(one_case(study, inputs, path.parent), reduce)

    return read


def reading(study: str, inputs: str, read: Callable) -> Callable:
    return lambda path: read(one_case(study, inputs, path.parent))
