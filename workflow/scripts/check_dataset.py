"""Check a dataset.yaml as a whole and say what it can answer."""

import fork_server

fork_server.hand_over("gpuledger.ledger.datasets")


from gpuledger import files, logs
from gpuledger.ledger.datasets import Dataset

with logs.to(snakemake.log[0]):
    dataset = Dataset.load(snakemake.input.dataset)
    cases = [dataset.case(study, case) for study, case in dataset.cases()]
    description = {**dataset.content, "label": dataset.label, "cases": [f"{case.study}/{case.name}" for case in cases]}
    files.write_json(snakemake.output.description, description)
