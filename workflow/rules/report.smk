"""Across cases: the paper's tables, the scorecard and the gallery."""

# What the templates of both pages include.
PARTS = expand("workflow/templates/{part}", part=["counts.html.j2", "choices.html.j2", "filter.js", "page/style.css"])

# The files that are pages of the documentation, and their names.
DOCUMENTATION = schemas.load_yaml(ROOT / "resources/documentation.yaml")


rule collect_summaries:
    """One table per study: as CSV every quantity of every case, for people the finding of each."""
    input:
        datasets=every_dataset(),
        summaries=every_case_file("summary.json"),
    output:
        csv=report(
            "results/tables/{study}.csv",
            caption="../report/quantities.rst",
            category="Across cases",
            subcategory="Quantities",
            labels={"study": "{study}", "what": "every quantity of every case"},
        ),
        md="results/tables/{study}.md",
        tex="results/tables/{study}.tex",
    log:
        "results/logs/collect_summaries/{study}.log",
    conda:
        "../../environment.yml"
    params:
        summaries=every_summary,
        code=digest_of("studies"),
    message:
        "collect the quantities of {wildcards.study}"
    script:
        "../scripts/collect_summaries.py"


rule compare_claims:
    """Every published claim beside what each dataset reproduces of it."""
    input:
        claims=expand("resources/claims/{study}.yaml", study=STUDIES),
        summaries=every_case_file("summary.json"),
        provenance=every_case_file("provenance.json"),
        datasets=every_dataset(),
        template="workflow/templates/scorecard.html.j2",
        parts=PARTS,
    output:
        csv="results/tables/scorecard.csv",
        md="results/tables/scorecard.md",
        tex="results/tables/scorecard.tex",
        tables=expand("results/tables/scorecard/{study}.{suffix}", study=STUDIES, suffix=["md", "tex"]),
        tables_csv=[
            report(
                f"results/tables/scorecard/{study}.csv",
                caption="../report/scorecard.rst",
                category="Across cases",
                subcategory="Claims",
                labels={"study": study, "what": "every claim"},
            )
            for study in STUDIES
        ],
        page=report(
            "results/scorecard.html",
            caption="../report/scorecard.rst",
            category="Across cases",
            subcategory="Claims",
            labels={"study": "all", "what": "scorecard"},
        ),
    log:
        "results/logs/compare_claims.log",
    conda:
        "../../environment.yml"
    params:
        summaries=every_summary,
        downloads=cases_to_download(),
        code=digest_of("studies"),
    message:
        "compare claims"
    script:
        "../scripts/compare_claims.py"


rule build_gallery:
    """One page with every figure, what its numbers are, and links to all that was made of them."""
    input:
        datasets=every_dataset(),
        pages=every_case_file("notebook.html"),
        figures=every_case_file("figure.png"),
        summaries=every_case_file("summary.json"),
        provenance=every_case_file("provenance.json"),
        tables=expand("results/tables/{study}.csv", study=STUDIES),
        scorecard="results/tables/scorecard.csv",
        docs="results/docs/index.html",
        topics="resources/topics.yaml",
        paper="resources/paper.yaml",
        template="workflow/templates/gallery.html.j2",
        parts=PARTS,
    output:
        page=report(
            "results/index.html",
            caption="../report/gallery.rst",
            category="Across cases",
            subcategory="Gallery",
            labels={"study": "all", "what": "gallery"},
        ),
    log:
        "results/logs/build_gallery.log",
    conda:
        "../../environment.yml"
    params:
        code=digest_of("studies"),
    message:
        "build the gallery"
    script:
        "../scripts/build_gallery.py"


rule build_docs:
    """The documentation as offline pages: how to read figures, models, formats, glossary, artifact appendix, GPUs."""
    input:
        pages=list(DOCUMENTATION),
        names="resources/documentation.yaml",
        summaries=every_case_file("summary.json"),
        provenance=every_case_file("provenance.json"),
        figures=every_case_file("figure.png"),
        template="workflow/templates/docs.html.j2",
        style="workflow/templates/page/style.css",
    output:
        index="results/docs/index.html",
        pages=[
            report(
                f"results/docs/{page}.html",
                caption="../report/documentation.rst",
                category="Documentation",
                labels={"page": page},
            )
            for page in DOCUMENTATION.values()
        ],
    log:
        "results/logs/build_docs.log",
    conda:
        "../../environment.yml"
    params:
        code=digest_of("studies"),
    message:
        "build the documentation"
    script:
        "../scripts/build_docs.py"


rule write_paper:
    """On demand, a LaTeX document of two columns with every figure and table."""
    input:
        summaries=every_case_file("summary.json"),
        figures=every_file_of_paper("figures"),
        tables=every_file_of_paper("tables"),
    output:
        document="results/paper/paper.tex",
    log:
        "results/logs/write_paper.log",
    conda:
        "../../environment.yml"
    params:
        code=digest_of("studies"),
    message:
        "write a document with every figure and table"
    script:
        "../scripts/write_paper.py"


rule draw_across:
    """On demand, the cases of a study side by side: published, simulated, downloaded and recorded."""
    input:
        summaries=every_case_file("summary.json"),
        data=every_case_file("data.parquet"),
        provenance=every_case_file("provenance.json"),
        claims="resources/claims/{study}.yaml",
    output:
        figure_pdf=report(
            "results/across/{study}/figure.pdf",
            caption="../report/across.rst",
            category="Across cases",
            subcategory="Side by side",
            labels={"study": "{study}", "what": "figure across datasets"},
        ),
        figure_svg="results/across/{study}/figure.svg",
        figure_png="results/across/{study}/figure.png",
    log:
        "results/logs/draw_across/{study}.log",
    wildcard_constraints:
        study="|".join(ACROSS),
    conda:
        "../../environment.yml"
    params:
        code=lambda wildcards: code_of(wildcards.study),
    message:
        "draw {wildcards.study} across datasets"
    script:
        "../scripts/draw_across.py"
