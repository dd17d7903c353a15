"""How close kernels that normalize rows come to what the GPU can do at most."""


rule reduce_normalization_roofline:
    """Times of normalization kernels as bandwidths, shares of a copy, roofs and speedups."""
    input:
        unpack(case_files("normalization_roofline")),
        gpus="resources/gpus.csv",
        code=code("reduce_normalization_roofline"),
    output:
        data="results/{dataset}/normalization_roofline/{case}/data.parquet",
        summary="results/{dataset}/normalization_roofline/{case}/summary.json",
        provenance="results/{dataset}/normalization_roofline/{case}/provenance.json",
    log:
        "results/logs/reduce_normalization_roofline/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_normalization_roofline.py"


rule normalization_roofline:
    """Every case of the normalization roofline in the configured datasets."""
    input:
        every_case_page("normalization_roofline"),
