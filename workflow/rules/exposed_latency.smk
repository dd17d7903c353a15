"""How long a user waits for a profile: OSDI'25 Fig. 13 (Fig. 12 of the submission)."""


rule reduce_exposed_latency:
    """Exposed latency of every workload and probe, and its parts, as multiples of the original time."""
    input:
        unpack(case_files("exposed_latency")),
        code=code("reduce_exposed_latency"),
    output:
        data="results/{dataset}/exposed_latency/{case}/data.parquet",
        summary="results/{dataset}/exposed_latency/{case}/summary.json",
        provenance="results/{dataset}/exposed_latency/{case}/provenance.json",
    log:
        "results/logs/reduce_exposed_latency/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_exposed_latency.py"


rule fig12:
    """Fig. 13 of the paper (Fig. 12 of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("exposed_latency", "fig12"),
