"""Simulate every trace that the dataset declares, and record the files."""

from gpuledger import fetched, logs
from gpuledger.datasets import Dataset
from gpuledger.simulate import simulate_dataset

with logs.to(snakemake.log[0]) as log:
    dataset = Dataset.load(snakemake.input.dataset, snakemake.config["studies"])
    written = simulate_dataset(dataset)
    log.info("simulated %d files", len(written))
    fetched.write(snakemake.output.record, dataset, written)
