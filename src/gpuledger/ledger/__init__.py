"""What a ledger is, whatever it holds: datasets, results, provenance, claims and reports."""
