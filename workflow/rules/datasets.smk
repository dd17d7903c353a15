"""Datasets: checked before anything is made of them."""


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
