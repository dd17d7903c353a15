from snakemake.utils import min_version

min_version("9.1")


configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/simulate.smk"
include: "workflow/rules/notebooks.smk"
include: "workflow/rules/report.smk"


# Without a GPU there is nothing to record.
if GPU.parts:

    include: "workflow/rules/record.smk"


# A study is in the house when the configuration has an entry for it.
for study in config["studies"]:

    include: f"workflow/rules/{study}.smk"


rule all:
    """Everything that the configured datasets can answer, the paper's tables, the scorecard and the gallery."""
    default_target: True
    input:
        datasets=every_dataset(),
        cases=every_case_page(),
        tables=expand("results/tables/{study}.csv", study=config["studies"]),
        gallery="results/index.html",
        scorecard="results/scorecard.html",
