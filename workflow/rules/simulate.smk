"""The dataset simulated: its traces are made here, never committed."""


# The record of its files is made by simulation, not by fetching.
ruleorder: simulate_dataset > fetch_dataset


rule simulate_dataset:
    """Simulate every trace that the dataset declares, and record the files."""
    input:
        dataset="traces/simulated/dataset.yaml",
        code=code("simulate_dataset"),
    output:
        record="results/simulated/files.json",
    log:
        "results/logs/simulate_dataset/simulated.log",
    conda:
        "../../environment.yml"
    script:
        "../scripts/simulate_dataset.py"
