"""How much memory probes need: OSDI'25 Fig. 12 (Fig. 11 of the submission)."""


rule reduce_memory_usage:
    """Memory of every model and probe, in bytes and as a share of the original use."""
    input:
        unpack(case_files("memory_usage")),
        code=code("reduce_memory_usage"),
    output:
        data="results/{dataset}/memory_usage/{case}/data.parquet",
        summary="results/{dataset}/memory_usage/{case}/summary.json",
        provenance="results/{dataset}/memory_usage/{case}/provenance.json",
    log:
        "results/logs/reduce_memory_usage/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_memory_usage.py"


rule fig11:
    """Fig. 12 of the paper (Fig. 11 of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("memory_usage", "fig11"),
