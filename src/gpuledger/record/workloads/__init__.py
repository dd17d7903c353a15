"""Programs whose kernels are recorded. They need only PyTorch, and can be tried on a CPU (``--device cpu``)."""
