"""When warps finish and how fast blocks are: OSDI'25 Fig. 14 (Fig. 13 of the submission), Fig. 17A and B."""


rule reduce_warp_scheduling:
    """Percentiles of the warps' elapsed times, how long the tail is, and where the speed of blocks rises."""
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
        pages_of_target("warp_scheduling", "fig13a"),


rule fig13b:
    """Fig. 14B of the paper (Fig. 13b of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("warp_scheduling", "fig13b"),


rule fig13c:
    """Fig. 14C of the paper (Fig. 13c of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("warp_scheduling", "fig13c"),


rule fig13d:
    """Fig. 14D of the paper (Fig. 13d of the submission), from every configured dataset that has it."""
    input:
        pages_of_target("warp_scheduling", "fig13d"),


rule fig17a:
    """Fig. 17A of the paper, from every configured dataset that has it."""
    input:
        pages_of_target("warp_scheduling", "fig17a"),


rule fig17b:
    """Fig. 17B of the paper, from every configured dataset that has it."""
    input:
        pages_of_target("warp_scheduling", "fig17b"),
