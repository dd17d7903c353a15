"""Datasets: fetched where they are to be downloaded, checked before anything is made of them."""


rule check_dataset:
    """Check a dataset.yaml as a whole and say what it can answer."""
    input:
        dataset="traces/{dataset}/dataset.yaml",
        settings=[settings(study) for study in config["studies"]],
        code=code("check_dataset"),
    output:
        description="results/{dataset}/dataset.json",
    log:
        "results/logs/check_dataset/{dataset}.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/check_dataset.py"


rule fetch_dataset:
    """Download what a dataset.yaml lists into its folder, verified, and record it."""
    input:
        dataset="traces/{dataset}/dataset.yaml",
        code=code("fetch_dataset"),
    output:
        record="results/{dataset}/files.json",
    log:
        "results/logs/fetch_dataset/{dataset}.log",
    # Nodes of a cluster may have no network.
    localrule: True
    conda:
        "../../environment.yml"
    script:
        "../scripts/fetch_dataset.py"
