"""Fetch and unpack the files of a downloaded dataset."""

from gpuledger.ledger.download.dataset import fetch_dataset
from gpuledger.ledger.download.transfer import MAX_PAUSE_S, Fetched, fetch
from gpuledger.ledger.download.unpack import unpack_zip

__all__ = ["MAX_PAUSE_S", "Fetched", "fetch", "fetch_dataset", "unpack_zip"]
