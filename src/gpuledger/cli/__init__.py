"""The command line: what a file holds, what its kernels did, what probes cost, drafts of datasets and studies.

It computes by the same library as the workflow. Modules import what takes long only when a command needs it.
"""
