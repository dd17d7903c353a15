"""How many cycles go into replacing blocks on an SM: OSDI'25 Sec. 4.6 (Sec. 4.5 of the submission)."""


rule reduce_block_scheduling:
    """Cycles spent on running blocks and on replacing them, and how long slots wait."""
    input:
        unpack(case_files("block_scheduling")),
        code=code("reduce_block_scheduling"),
    output:
        data="results/{dataset}/block_scheduling/{case}/data.parquet",
        summary="results/{dataset}/block_scheduling/{case}/summary.json",
        provenance="results/{dataset}/block_scheduling/{case}/provenance.json",
    log:
        "results/logs/reduce_block_scheduling/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_block_scheduling.py"


rule sec45:
    """Sec. 4.6 of the paper (Sec. 4.5 of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("block_scheduling", "zeros_4096"),
