"""Download what a dataset.yaml lists into its folder, verified, and record it."""

import fork_server

fork_server.hand_over("gpuledger.ledger.download.dataset", "gpuledger.ledger.download_record")

from pathlib import Path

from gpuledger import files, logs
from gpuledger.ledger import download_record
from gpuledger.ledger.datasets import Dataset
from gpuledger.ledger.download.dataset import fetch_dataset

with logs.to(snakemake.log[0]) as log:
    dataset = Dataset.load(snakemake.input.dataset)
    mirror = snakemake.config.get("mirror")
    # The progress bar shows on a terminal only; the log says what is fetched.
    done = fetch_dataset(
        dataset.content.get("download", []),
        dataset.folder,
        mirror=Path(mirror) if mirror else None,
        source_file=dataset.file,
    )
    origins = {}
    for file in done:
        if file.origin == "present":
            log.info("%s is there: %s bytes, sha256 %s", file.path.name, file.size_bytes, file.sha256)
        origins |= file.origins
    download_record.write(snakemake.output.record, dataset, origins)
    files.write_text(snakemake.output.reason, snakemake.params.reason)
