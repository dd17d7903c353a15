"""Cases: reduced by their study's library, drawn and explained by its notebook. No study has a rule of its own here."""


rule reduce_case:
    """A case's input to tidy data, a summary and a record of where the numbers come from."""
    input:
        unpack(case_files),
    output:
        data="results/{dataset}/{study}/{case}/data.parquet",
        summary="results/{dataset}/{study}/{case}/summary.json",
        provenance="results/{dataset}/{study}/{case}/provenance.json",
    log:
        "results/logs/reduce_case/{dataset}.{study}.{case}.log",
    group:
        "case"
    conda:
        "../../environment.yml"
    threads: lambda wildcards: STUDIES[wildcards.study].threads
    params:
        code=lambda wildcards: code_of(wildcards.study),
        knobs=lambda wildcards: dict(REPOSITORY.knobs(wildcards.study)),
        declaration=lambda wildcards: declaration(wildcards.study, wildcards),
    message:
        "reduce {wildcards.dataset}/{wildcards.study}/{wildcards.case}"
    script:
        "../scripts/reduce_case.py"


rule reduce_part:
    """Of a trace too large for one process, a part of one pass over it; the reduction puts the parts together."""
    input:
        unpack(files_of_part),
    output:
        part=temp("results/{dataset}/{study}/{case}/parts/{step}-{part}-of-{parts}.bin"),
    log:
        "results/logs/reduce_part/{dataset}.{study}.{case}.{step}-{part}-of-{parts}.log",
    wildcard_constraints:
        study="|".join(study.name for study in STUDIES.values() if study.scatter),
        step="[a-z]+",
        part="[0-9]+",
        parts="[0-9]+",
    conda:
        "../../environment.yml"
    params:
        code=lambda wildcards: code_of(wildcards.study),
        knobs=lambda wildcards: dict(REPOSITORY.knobs(wildcards.study)),
        declaration=lambda wildcards: declaration(wildcards.study, wildcards),
    message:
        "{wildcards.step} of {wildcards.dataset}/{wildcards.study}/{wildcards.case}, part {wildcards.part} of {wildcards.parts}"
    script:
        "../scripts/reduce_part.py"


# Studies differ in the figures and tables that their notebooks write.
for study in STUDIES.values():

    folder = f"results/{{dataset}}/{study.name}/{{case}}"

    rule:
        name:
            f"run_{study.name}"
        input:
            notebook=partial(notebook_of, study),
            data=f"{folder}/data.parquet",
            summary=f"{folder}/summary.json",
            provenance=f"{folder}/provenance.json",
            claims=f"resources/claims/{study.name}.yaml",
            template="workflow/templates/page/index.html.j2",
            scripts=expand("workflow/templates/page/{script}.js", script=["page", "viewer"]),
            style="workflow/templates/page/style.css",
        output:
            notebook=f"{folder}/notebook.ipynb",
            page=f"{folder}/notebook.html",
            figures=expand(
                f"{folder}/{{figure}}.{{suffix}}", figure=study.figures, suffix=["svg", "png"], allow_missing=True
            ),
            # Snakemake's report, a single file, has the smallest form of each.
            figures_pdf=[
                report(
                    f"{folder}/{figure}.pdf",
                    caption="../report/case.rst",
                    category=study.title,
                    subcategory="{dataset}",
                    labels={"case": "{case}", "what": figure.replace("_", " ")},
                )
                for figure in study.figures
            ],
            tables=expand(
                f"{folder}/{{table}}.{{suffix}}", table=study.tables, suffix=["md", "tex"], allow_missing=True
            ),
            exports=expand(f"{folder}/{{name}}", name=study.exports, allow_missing=True),
            tables_csv=[
                report(
                    f"{folder}/{table}.csv",
                    caption="../report/case.rst",
                    category=study.title,
                    subcategory="{dataset}",
                    labels={"case": "{case}", "what": "table" if table == "table" else f"table {table}"},
                )
                for table in study.tables
            ],
        log:
            f"results/logs/run_notebook/{{dataset}}.{study.name}.{{case}}.log",
        group:
            "case"
        conda:
            "../../environment.yml"
        params:
            code=code_of(study.name),
            # Without it, a page would stay after a reduction with another declaration has failed.
            declaration=partial(declaration, study.name),
            title=study.title,
            neighbours=partial(neighbours, study.name),
        message:
            f"draw {{wildcards.dataset}}/{study.name}/{{wildcards.case}}"
        script:
            "../scripts/run_notebook.py"


rule draw_column:
    """On demand, a case's first figure at 3.33 inches, for one column of a paper."""
    input:
        notebook=lambda wildcards: notebook_of(STUDIES[wildcards.study], wildcards),
        data="results/{dataset}/{study}/{case}/data.parquet",
        summary="results/{dataset}/{study}/{case}/summary.json",
        provenance="results/{dataset}/{study}/{case}/provenance.json",
    output:
        pdf="results/{dataset}/{study}/{case}/figure_column.pdf",
        svg="results/{dataset}/{study}/{case}/figure_column.svg",
    log:
        "results/logs/draw_column/{dataset}.{study}.{case}.log",
    conda:
        "../../environment.yml"
    params:
        code=lambda wildcards: code_of(wildcards.study),
    message:
        "draw {wildcards.dataset}/{wildcards.study}/{wildcards.case} for one column"
    script:
        "../scripts/draw_column.py"
