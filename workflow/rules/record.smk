"""This machine's GPU: what it can answer is recorded, as the dataset local-gpu."""


checkpoint record_gpu:
    """Record what this machine's GPU can answer; what is recorded already stays."""
    output:
        dataset="traces/local-gpu/dataset.yaml",
    log:
        "results/logs/record_gpu/local-gpu.log",
    localrule: True
    conda:
        "../../environment.yml"
    # Times are only worth something on a machine that does nothing else.
    threads: workflow.cores or 1
    params:
        code=digest_of("record", "readers"),
        parts=RECORDING.parts,
        settings=config.get("record", {}),
    message:
        "record this machine's GPU"
    script:
        "../scripts/record_gpu.py"
