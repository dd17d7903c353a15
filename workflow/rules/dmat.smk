"""When which memory is touched: OSDI'25 Fig. 1 and 11 (Fig. 1 and 10 of the submission)."""


rule reduce_dmat:
    """Accesses to global memory by page and clock, and when each tensor is touched."""
    input:
        unpack(case_files("dmat")),
        code=code("reduce_dmat"),
    output:
        data="results/{dataset}/dmat/{case}/data.parquet",
        summary="results/{dataset}/dmat/{case}/summary.json",
        provenance="results/{dataset}/dmat/{case}/provenance.json",
    log:
        "results/logs/reduce_dmat/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    threads: 2
    script:
        "../scripts/reduce_dmat.py"


rule fig1:
    """Fig. 1 of the paper, from every configured dataset that has it."""
    input:
        pages_of_target("dmat", "fig1"),


rule fig10a:
    """Fig. 11a of the paper (Fig. 10A of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("dmat", "fig10a"),


rule fig10b:
    """Fig. 11b of the paper (Fig. 10B of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("dmat", "fig10b"),


rule fig10c:
    """Fig. 11c of the paper (Fig. 10C of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("dmat", "fig10c"),
