"""How well the time model predicts kernels that others measured."""


rule reduce_kernel_time:
    """Measured times of kernels beside predicted ones, with fitted constants and errors on the held-back half."""
    input:
        unpack(case_files("kernel_time")),
        gpus="resources/gpus.csv",
        constants="resources/time_constants.csv",
        code=code("reduce_kernel_time"),
    output:
        data="results/{dataset}/kernel_time/{case}/data.parquet",
        summary="results/{dataset}/kernel_time/{case}/summary.json",
        provenance="results/{dataset}/kernel_time/{case}/provenance.json",
    log:
        "results/logs/reduce_kernel_time/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    threads: 2
    script:
        "../scripts/reduce_kernel_time.py"


use rule run_notebook as run_kernel_time with:
    output:
        notebook="results/{dataset}/{study}/{case}/notebook.ipynb",
        page=report(
            "results/{dataset}/{study}/{case}/notebook.html",
            caption="../report/case.rst",
            category="{study}",
            subcategory="{dataset}",
            labels={"case": "{case}", "what": "page"},
        ),
        figures=expand(
            "results/{{dataset}}/{{study}}/{{case}}/{figure}.{suffix}",
            figure=["figure", "figure_map"],
            suffix=["pdf", "png"],
        ),
        figures_svg=report(
            expand("results/{{dataset}}/{{study}}/{{case}}/{figure}.svg", figure=["figure", "figure_map"]),
            caption="../report/case.rst",
            category="{study}",
            subcategory="{dataset}",
            labels={"case": "{case}", "what": "figure"},
        ),
        tables=multiext("results/{dataset}/{study}/{case}/table", ".csv", ".md", ".tex"),
    wildcard_constraints:
        study="kernel_time",


ruleorder: run_kernel_time > run_notebook


rule kernel_time:
    """Every case of the kernel times in the configured datasets."""
    input:
        every_case_page("kernel_time"),
