"""Notebooks: one run and one page for every case."""


rule run_notebook:
    """Run a study's notebook on a reduced case: figure, table and an offline page."""
    input:
        notebook="notebooks/{study}.ipynb",
        data="results/{dataset}/{study}/{case}/data.parquet",
        summary="results/{dataset}/{study}/{case}/summary.json",
        provenance="results/{dataset}/{study}/{case}/provenance.json",
        template="workflow/templates/page/index.html.j2",
        style="workflow/templates/page/style.css",
        settings=lambda wildcards: settings(wildcards.study),
        code=code("run_notebook"),
        modules=lambda wildcards: imported_modules(f"notebooks/{wildcards.study}.ipynb"),
    output:
        notebook="results/{dataset}/{study}/{case}/notebook.ipynb",
        page=report(
            "results/{dataset}/{study}/{case}/notebook.html",
            caption="../report/case.rst",
            category="{study}",
            subcategory="{dataset}",
            labels={"case": "{case}", "what": "page"},
        ),
        figure_pdf="results/{dataset}/{study}/{case}/figure.pdf",
        figure_svg=report(
            "results/{dataset}/{study}/{case}/figure.svg",
            caption="../report/case.rst",
            category="{study}",
            subcategory="{dataset}",
            labels={"case": "{case}", "what": "figure"},
        ),
        figure_png="results/{dataset}/{study}/{case}/figure.png",
        table_csv="results/{dataset}/{study}/{case}/table.csv",
        table_md="results/{dataset}/{study}/{case}/table.md",
        table_tex="results/{dataset}/{study}/{case}/table.tex",
    log:
        "results/logs/run_notebook/{dataset}.{study}.{case}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/run_notebook.py"
