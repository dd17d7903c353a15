"""Across cases: the paper's tables, the scorecard and the gallery."""

# What the templates of both pages include.
PARTS = expand("workflow/templates/{part}", part=["counts.html.j2", "choices.html.j2", "filter.js", "page/style.css"])


rule collect_summaries:
    """One table a study: every quantity of every case."""
    input:
        datasets=every_dataset(),
        summaries=every_case_file("summary.json"),
    output:
        csv="results/tables/{study}.csv",
        md="results/tables/{study}.md",
        tex="results/tables/{study}.tex",
    log:
        "results/logs/collect_summaries/{study}.log",
    group:
        "across"
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
        tables=expand("results/tables/scorecard/{study}.{suffix}", study=STUDIES, suffix=["csv", "md", "tex"]),
        page=report(
            "results/scorecard.html",
            caption="../report/scorecard.rst",
            category="Scorecard",
            labels={"what": "every claim"},
        ),
    log:
        "results/logs/compare_claims.log",
    group:
        "across"
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
        figures=every_case_file("figure.svg"),
        summaries=every_case_file("summary.json"),
        provenance=every_case_file("provenance.json"),
        tables=expand("results/tables/{study}.csv", study=STUDIES),
        scorecard="results/tables/scorecard.csv",
        paper="resources/paper.yaml",
        template="workflow/templates/gallery.html.j2",
        parts=PARTS,
    output:
        page="results/index.html",
    log:
        "results/logs/build_gallery.log",
    group:
        "across"
    conda:
        "../../environment.yml"
    params:
        code=digest_of("studies"),
    message:
        "build the gallery"
    script:
        "../scripts/build_gallery.py"


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
