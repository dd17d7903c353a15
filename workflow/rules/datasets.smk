"""Datasets: checked before anything is made of them."""


rule check_dataset:
    """Check a dataset.yaml as a whole and say what it can answer."""
    input:
        dataset="traces/{dataset}/dataset.yaml",
        code=code("check_dataset"),
    output:
        description="results/{dataset}/dataset.json",
    log:
        "results/logs/check_dataset/{dataset}.log",
    conda:
        "../../environment.yml"
    params:
        studies=config["studies"],
    script:
        "../scripts/check_dataset.py"
