"""Where the time of an LLM goes on given hardware, kernel by kernel."""


rule reduce_kernel_breakdown:
    """Every kernel of every phase with its traffic and predicted time, and how they change with context and batch."""
    input:
        unpack(case_files("kernel_breakdown")),
        gpus="resources/gpus.csv",
        constants="resources/time_constants.csv",
        models=sorted(f"resources/models/{file.name}" for file in ROOT.glob("resources/models/*.json")),
        code=code("reduce_kernel_breakdown"),
    output:
        data="results/{dataset}/kernel_breakdown/{case}/data.parquet",
        summary="results/{dataset}/kernel_breakdown/{case}/summary.json",
        provenance="results/{dataset}/kernel_breakdown/{case}/provenance.json",
    log:
        "results/logs/reduce_kernel_breakdown/{dataset}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/reduce_kernel_breakdown.py"


use rule run_notebook as run_kernel_breakdown with:
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
            figure=["figure", "figure_time", "figure_bound"],
            suffix=["pdf", "png"],
        ),
        figures_svg=report(
            expand(
                "results/{{dataset}}/{{study}}/{{case}}/{figure}.svg",
                figure=["figure", "figure_time", "figure_bound"],
            ),
            caption="../report/case.rst",
            category="{study}",
            subcategory="{dataset}",
            labels={"case": "{case}", "what": "figure"},
        ),
        tables=multiext("results/{dataset}/{study}/{case}/table", ".csv", ".md", ".tex"),
    wildcard_constraints:
        study="kernel_breakdown",


ruleorder: run_kernel_breakdown > run_notebook


rule kernel_breakdown:
    """Every case of the kernel breakdown in the configured datasets."""
    input:
        every_case_page("kernel_breakdown"),
