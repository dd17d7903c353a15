"""Datasets: checked before anything is made of them; their files downloaded or simulated, and recorded."""


rule check_dataset:
    """Check a dataset.yaml as a whole and say what it can answer."""
    input:
        dataset="traces/{dataset}/dataset.yaml",
    output:
        description="results/{dataset}/dataset.json",
    log:
        "results/logs/check_dataset/{dataset}.log",
    conda:
        "../../environment.yml"
    params:
        code=digest_of("studies"),
    message:
        "check {wildcards.dataset}"
    script:
        "../scripts/check_dataset.py"


rule fetch_dataset:
    """Download what a dataset.yaml lists into its folder, verified, and record it."""
    input:
        dataset=ancient("traces/{dataset}/dataset.yaml"),
    output:
        record="results/{dataset}/files.json",
        reason="results/{dataset}/files.reason",
    log:
        "results/logs/fetch_dataset/{dataset}.log",
    # Nodes of a cluster may have no network.
    localrule: True
    conda:
        "../../environment.yml"
    params:
        reason=why_again,
        download=to_download,
    message:
        "download {wildcards.dataset}"
    script:
        "../scripts/fetch_dataset.py"


rule simulate_dataset:
    """Simulate every trace that the dataset declares, and record the files."""
    input:
        dataset="traces/{dataset}/dataset.yaml",
    output:
        record="results/{dataset}/files.json",
        reason="results/{dataset}/files.reason",
    log:
        "results/logs/simulate_dataset/{dataset}.log",
    wildcard_constraints:
        dataset="|".join(simulated_datasets()) or "(?!)",
    conda:
        "../../environment.yml"
    params:
        reason=why_again,
        code=digest_of(
            "models/simulate",
            "models/time_model",
            "models/transformer",
            "readers/gpus",
            "readers/neutrino",
            "readers/tabular",
            "readers/workbooks",
        ),
    message:
        "simulate {wildcards.dataset}"
    script:
        "../scripts/simulate_dataset.py"


# The files of a simulated dataset are made, not fetched.
ruleorder: simulate_dataset > fetch_dataset
