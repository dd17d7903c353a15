"""What probes cost in time and registers: OSDI'25 Table 3 (Table 2 of the submission)."""


rule reduce_kernel_overhead:
    """Slowdown and extra registers of every operator and probe, and their means."""
    input:
        unpack(case_files("kernel_overhead")),
        code=code("reduce_kernel_overhead"),
    output:
        data="results/{dataset}/kernel_overhead/{case}/data.parquet",
        summary="results/{dataset}/kernel_overhead/{case}/summary.json",
        provenance="results/{dataset}/kernel_overhead/{case}/provenance.json",
    log:
        "results/logs/reduce_kernel_overhead/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_kernel_overhead.py"


rule table2:
    """Table 3 of the paper (Table 2 of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("kernel_overhead", "table2"),
