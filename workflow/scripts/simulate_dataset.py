"""Simulate every trace that the dataset declares, and record the files."""

import fork_server

fork_server.hand_over("gpuledger.ledger.datasets", "gpuledger.models.simulate")


from gpuledger import files, logs
from gpuledger.ledger import download_record
from gpuledger.ledger.datasets import Dataset
from gpuledger.models.simulate import simulate_dataset

with logs.to(snakemake.log[0]) as log:
    dataset = Dataset.load(snakemake.input.dataset)
    written = simulate_dataset(dataset)
    log.info("simulated %d files", len(written))
    download_record.write(snakemake.output.record, dataset, written)
    files.write_text(snakemake.output.reason, snakemake.params.reason)
