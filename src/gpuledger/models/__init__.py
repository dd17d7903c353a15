"""Theory: transformers as kernels, kernel times, executed FLOPs, scaling laws, deployments, simulated traces."""
