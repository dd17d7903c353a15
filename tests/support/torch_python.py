"""A Python with PyTorch, for tests that run programs in it."""

import importlib.util
import os
import sys

import pytest


@pytest.fixture(scope="module")
def python():
    """A Python with PyTorch: of GPULEDGER_TORCH_PYTHON, or the one in use."""
    given = os.environ.get("GPULEDGER_TORCH_PYTHON")
    if not given and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not here: set GPULEDGER_TORCH_PYTHON to a Python that has it")
    return given or sys.executable
