"""When warps finish: OSDI'25 Fig. 14A and B (Fig. 13a and b of the submission), Fig. 17A and B."""


rule reduce_warp_scheduling:
    """Percentiles of the warps' elapsed times, and how long the tail is."""
    input:
        unpack(case_files("warp_scheduling")),
        code=code("reduce_warp_scheduling"),
    output:
        data="results/{dataset}/warp_scheduling/{case}/data.parquet",
        summary="results/{dataset}/warp_scheduling/{case}/summary.json",
        provenance="results/{dataset}/warp_scheduling/{case}/provenance.json",
    log:
        "results/logs/reduce_warp_scheduling/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_warp_scheduling.py"


rule fig13a:
    """Fig. 14A of the paper (Fig. 13a of the submission), from every configured dataset that has it."""
    input:
        every_case_page("warp_scheduling", "fig13a"),


rule fig13b:
    """Fig. 14B of the paper (Fig. 13b of the submission), from every configured dataset that has it."""
    input:
        every_case_page("warp_scheduling", "fig13b"),


rule fig17a:
    """Fig. 17A of the paper, from every configured dataset that has it."""
    input:
        every_case_page("warp_scheduling", "fig17a"),


rule fig17b:
    """Fig. 17B of the paper, from every configured dataset that has it."""
    input:
        every_case_page("warp_scheduling", "fig17b"),
