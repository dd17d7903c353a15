"""Fetch and unpack the files of downloaded datasets."""
