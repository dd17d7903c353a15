"""Programs whose kernels are recorded. They need PyTorch and nothing else, and run on a CPU too (``--device cpu``)."""
