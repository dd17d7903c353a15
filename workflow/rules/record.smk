"""This machine's GPU: what it can answer is recorded, as the dataset local-gpu."""


checkpoint record_gpu:
    """Record what this machine's GPU can answer; what is recorded already stays."""
    input:
        settings=setting_file("record", {"plan": GPU.parts, **config.get("record", {})}),
        code=code("record_gpu"),
        # Workloads and kernels are run, not imported.
        programs=[path.as_posix() for path in sorted(Path("src/gpuledger/record").rglob("*.[pc][yu]*"))],
    output:
        dataset="traces/local-gpu/dataset.yaml",
    log:
        "results/logs/record_gpu/local-gpu.log",
    localrule: True
    conda:
        "../../environment.yml"
    # Times are only worth something on a machine that does nothing else.
    threads: workflow.cores or 1
    script:
        "../scripts/record_gpu.py"
