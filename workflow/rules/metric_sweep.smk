"""Metric sweeps: a figure of a single metric, beside what every study has."""


rule draw_metric:
    """On demand, a figure of one metric: every class and variable, with law, band and anomalies."""
    input:
        data="results/{dataset}/metric_sweep/{case}/data.parquet",
        summary="results/{dataset}/metric_sweep/{case}/summary.json",
        provenance="results/{dataset}/metric_sweep/{case}/provenance.json",
    output:
        figure_pdf="results/{dataset}/metric_sweep/{case}/figure_{metric}.pdf",
        figure_svg="results/{dataset}/metric_sweep/{case}/figure_{metric}.svg",
        figure_png="results/{dataset}/metric_sweep/{case}/figure_{metric}.png",
    log:
        "results/logs/draw_metric/{dataset}.{case}.{metric}.log",
    wildcard_constraints:
        metric=r"(?!column\.)\w+",
    conda:
        "../../environment.yml"
    params:
        code=code_of("metric_sweep"),
    message:
        "draw {wildcards.dataset}/metric_sweep/{wildcards.case}, {wildcards.metric}"
    script:
        "../scripts/draw_metric.py"
