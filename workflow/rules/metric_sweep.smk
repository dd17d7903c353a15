"""By what law metrics grow with sequence length, hidden size and layers, and what in the measurements is wrong."""


rule reduce_metric_sweep:
    """Counters over sizes to the law of every series, and what in them is wrong."""
    input:
        unpack(case_files("metric_sweep")),
        code=code("reduce_metric_sweep"),
    output:
        data="results/{dataset}/metric_sweep/{case}/data.parquet",
        summary="results/{dataset}/metric_sweep/{case}/summary.json",
        provenance="results/{dataset}/metric_sweep/{case}/provenance.json",
    log:
        "results/logs/reduce_metric_sweep/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_metric_sweep.py"


use rule run_notebook as run_metric_sweep with:
    output:
        notebook="results/{dataset}/{study}/{case}/notebook.ipynb",
        page=report(
            "results/{dataset}/{study}/{case}/notebook.html",
            caption="../report/case.rst",
            category="{study}",
            subcategory="{dataset}",
            labels={"case": "{case}", "what": "page"},
        ),
        figure=multiext("results/{dataset}/{study}/{case}/figure", ".pdf", ".png"),
        figure_svg=report(
            "results/{dataset}/{study}/{case}/figure.svg",
            caption="../report/case.rst",
            category="{study}",
            subcategory="{dataset}",
            labels={"case": "{case}", "what": "figure"},
        ),
        table=multiext("results/{dataset}/{study}/{case}/table", ".csv", ".md", ".tex"),
        anomalies=multiext("results/{dataset}/{study}/{case}/anomalies", ".csv", ".md", ".tex"),
    wildcard_constraints:
        study="metric_sweep",


ruleorder: run_metric_sweep > run_notebook


rule draw_metric:
    """One page for one metric, on demand: every class and variable, with law, band and anomalies."""
    input:
        data="results/{dataset}/metric_sweep/{case}/data.parquet",
        summary="results/{dataset}/metric_sweep/{case}/summary.json",
        provenance="results/{dataset}/metric_sweep/{case}/provenance.json",
        code=code("draw_metric"),
    output:
        figure_pdf="results/{dataset}/metric_sweep/{case}/figure_{metric}.pdf",
        figure_svg="results/{dataset}/metric_sweep/{case}/figure_{metric}.svg",
        figure_png="results/{dataset}/metric_sweep/{case}/figure_{metric}.png",
    log:
        "results/logs/draw_metric/{dataset}.{case}.{metric}.log",
    wildcard_constraints:
        metric=r"\w+",
    conda:
        "../../environment.yml"
    script:
        "../scripts/draw_metric.py"


rule metric_sweep:
    """Every case of metric sweeps in the configured datasets."""
    input:
        every_case_page("metric_sweep"),
