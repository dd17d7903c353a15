"""Architectures by ``model_type``: how the keys of each one's config.json become layers."""
