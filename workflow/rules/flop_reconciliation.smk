"""Why counters and theory differ, kernel by kernel."""


rule reduce_flop_reconciliation:
    """Theory, prediction and measurement of every kernel of the passes."""
    input:
        unpack(case_files("flop_reconciliation")),
        code=code("reduce_flop_reconciliation"),
    output:
        data="results/{dataset}/flop_reconciliation/{case}/data.parquet",
        summary="results/{dataset}/flop_reconciliation/{case}/summary.json",
        provenance="results/{dataset}/flop_reconciliation/{case}/provenance.json",
    log:
        "results/logs/reduce_flop_reconciliation/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_flop_reconciliation.py"


rule flop_reconciliation:
    """Every case of FLOP reconciliation in the configured datasets."""
    input:
        every_case_page("flop_reconciliation"),
