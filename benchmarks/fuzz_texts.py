"""What tools print and write, as `fuzz_corpus` damages it."""

XLA = """{"traceEvents": [
{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
{"ph": "M", "pid": 1, "tid": 15, "name": "thread_name", "args": {"name": "Stream #15(Kernel)"}},
{"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Modules"}},
{"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 9, "name": "jit_f(1)"},
{"ph": "X", "pid": 1, "tid": 15, "ts": 1.5, "dur": 2, "name": "loop_add_fusion_1",
 "args": {"kernel_details": "regs:16 grid:8,1,1 block:128,1,1", "hlo_op": "add.1", "correlation_id": "7"}},
{"ph": "X", "pid": 1, "tid": 15, "ts": 4, "dur": 2, "name": "MemcpyD2H", "args": {"memcpy_details": "size:4"}},
{"ph": "X", "pid": 9, "tid": 3, "ts": 0.5, "dur": 1, "name": "cuLaunchKernel", "args": {"correlation_id": "7"}}]}"""


AUTOGRAD = """[{"name": "mm", "ph": "X", "ts": 1.5, "dur": 9.25, "tid": 0, "pid": "CPU functions", "args": {}}, \
{"name": "mm", "ph": "f", "ts": 5, "tid": 0, "pid": "CUDA functions", "id": 0, "cat": "cpu_to_cuda", "args": {}}, \
{"name": "NAME", "ph": "X", "ts": 5, "dur": 4.5, "tid": 0, "pid": "CUDA functions", "args": {}}, \
{"name": "mm", "ph": "f", "ts": 6, "tid": 0, "pid": "CUDA functions", "id": 0, "cat": "cpu_to_cuda", "args": {}}, \
{"name": "NAME", "ph": "X", "ts": 6, "dur": 2.5, "tid": 0, "pid": "CUDA functions", "args": {}}]"""
NCU_PAGE = """  copy(float *, int) (16, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- ------------
    Metric Name               Metric Unit Metric Value
    ----------------------- ------------- ------------
    DRAM Frequency          cycle/nsecond         2.61
    Duration                      usecond        12.51
    ----------------------- ------------- ------------
"""
PADDLE = """{"schemaVersion": "1.0.2", "span_index": "0", "traceEvents": [
{"name": "relu dygraph[9.5 us]", "pid": 7, "tid": "7(C++)", "ts": 17, "dur": 9.5, "ph": "X", "cat": "Operator",
 "args": {"start_time": "0.5 us", "input_shapes": {"x": [[8, 64]]}, "input_dtypes": {"x": ["float"]}}},
{"name": "relu[2.25 us]", "pid": 0, "tid": 7, "ts": 20, "dur": 2.25, "ph": "X", "cat": "Kernel",
 "args": {"start_time": "3.5 us", "device": 0, "stream": 7, "correlation id": 3, "grid": [8, 1, 1]}}, {}]}"""
#: What nvprof writes with --csv and prints, what torch.profiler prints, and what benchmarks of a server print.
NVPROF_CSV = """==12== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Size","Device","Stream","Name"
ms,us,,,,,,,MB,,,
214.33,1.216,,,,,,,0.004,"Tesla V100-SXM2-16GB (0)","7","[CUDA memcpy HtoD]"
214.40,605.0,32,2,1,256,1,1,,"Tesla V100-SXM2-16GB (0)","7","sgemm(float*, int) [120]"
"""
NVPROF_SUMS = """==12== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   67.08%  8.6348ms        14  616.77us     512ns  3.1952ms  [CUDA memcpy HtoD]
                    0.15%  1.00250s         1  1.00250s  1.00250s  1.00250s  void reduce<int, 2>(int*, unsigned int)
      API calls:   99.00%  286.81ms         1  286.81ms  286.81ms  286.81ms  cudaDeviceReset
"""
NVPROF_TRACE = """==31== Profiling result:
   Start  Duration   Grid Size   Block Size   Regs*   SSMem*           Device  Context  Name
182.84ms  23.136us           -            -       -        -  Tesla P100-PCIE        1  [CUDA memcpy HtoD]
182.90ms  41.500us     (8 4 1)    (256 1 1)      32       0B  Tesla P100-PCIE        1  sgemm(float*, int)
"""
TORCH_TABLE = """-------------------------  ------------  ------------  ------------  ------------  ------------
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
NSYS_TEXT = """ ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)    Name
 --------  ---------------  ---------  --------  ---------
     75.0            6,000          3   2,000.0  void gemm<float, 2>(int *)
     25.0            2,000          1   2,000.0  add  of two
"""
BOX = """╒════╤═════════════╤═════════╤═══════════╤════════════╤══════════════╕
│    │ Kernel_Name │   Count │   Sum(ns) │   Mean(ns) │   Median(ns) │
╞════╪═════════════╪═════════╪═══════════╪════════════╪══════════════╡
│  0 │ copy(double │    2.00 │   6000.00 │    3000.00 │      3000.00 │
│    │ *, int)     │         │           │            │              │
├────┼─────────────┼─────────┼───────────┼────────────┼──────────────┤
│  1 │ gemm        │    1.00 │   2000.00 │    2000.00 │      2000.00 │
╘════╧═════════════╧═════════╧═══════════╧════════════╧══════════════╛
"""
RPD = """CREATE TABLE rocpd_string (id INT, string TEXT);
INSERT INTO rocpd_string VALUES (0, 'KernelExecution'), (1, 'gemm.kd'), (2, 'CopyDeviceToHost'), (3, 'hipLaunchKernel');
CREATE TABLE rocpd_op (id INT, gpuId INT, queueId INT, start INT, end INT, description_id INT, opType_id INT);
INSERT INTO rocpd_op VALUES (1, 0, 2, 1000, 3500, 1, 0), (2, 0, 2, 5000, 6000, 4, 2);
CREATE TABLE rocpd_api (id INT, pid INT, tid INT, start INT, end INT, apiName_id INT, args_id INT);
INSERT INTO rocpd_api VALUES (1, 7, 9, 500, 600, 3, 4);
CREATE TABLE rocpd_api_ops (id INT, api_id INT, op_id INT);
INSERT INTO rocpd_api_ops VALUES (1, 1, 1);"""
REPORT = """{"engine": {"model": "Qwen/Qwen3-8B", "kv_cache_dtype": "FP8", "quantization": "NVFP4"},
"world_info": {"tp_size": 2, "pp_size": 1, "ep_size": -1, "max_batch_size": 64},
"request_info": {"num_requests": 512, "avg_num_concurrent_requests": 31.9, "avg_input_length": 1024.0,
 "avg_output_length": 511.5}, "performance": {"request_throughput_req_s": 8.5},
"streaming_metrics": {"avg_ttft_ms": 90.0, "tpot_percentiles": {"p50": 8.25}, "ttft_percentiles": {"p50": 80.0}}}"""
BATCH = """Prefill. latency: 0.50000 s, throughput:   8192.00 token/s
Decode 0. Batch size: 4, latency: 0.01300 s, throughput:    307.69 token/s
Decode.  median latency: 0.01250 s, median throughput:    320.00 token/s
Total. latency:  2.100 s, throughput:   2194.29 token/s
"""
PRINTED_REPORT = """= PYTORCH BACKEND
Model:\t\t\tQwen/Qwen3-8B
Quantization:\t\tFP8
TP Size:                2
Max Runtime Batch Size: 64
Number of requests:             512
Number of concurrent requests:  31.9000
Average Input Length (tokens):  1024.0000
Average Output Length (tokens): 511.5000
= PERFORMANCE OVERVIEW
Request Throughput (req/sec):                     8.5000
Average time-per-output-token [TPOT] (ms):        8.4000
[TPOT] P50    : 8.2500
"""
