# A thin front: everything is in the Snakefile and in tests/.
PYTHON ?= python3
CORES ?= 4
BIN := .venv/bin

.PHONY: results env test lint bench record requirements
.DEFAULT_GOAL := results

results: env
	$(BIN)/snakemake --cores $(CORES)
	@echo "results: $(CURDIR)/results/index.html"

env: .venv/ready

# Made anew when a pin changes: packages that are no longer wanted would stay otherwise.
.venv/ready: requirements.txt pyproject.toml
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

test: env
	$(BIN)/python -m pytest

lint: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/nbstripout --verify notebooks/*.ipynb
	$(BIN)/snakemake --lint

bench: env
	$(BIN)/python benchmarks/workflow.py
	$(BIN)/python benchmarks/block_scheduling.py
	$(BIN)/python benchmarks/dmat.py
	$(BIN)/python benchmarks/scaling_laws.py --extrap install
	$(BIN)/python benchmarks/transformer.py
	$(BIN)/python benchmarks/gemm_time.py
	$(BIN)/python benchmarks/kernel_breakdown.py

# Needs a GPU, see docs/GPU.md. RECORD_PYTHON names a Python that has what it takes, RECORD_PART one part of all,
# RECORD_MINUTES how long a call may be; the next one goes on.
RECORD_PYTHON ?= $(BIN)/python
record: $(if $(filter $(BIN)/python,$(RECORD_PYTHON)),env)
	PYTHONPATH=$(CURDIR)/src:$$PYTHONPATH $(RECORD_PYTHON) -m gpuledger.record $(RECORD_PART) \
	    $(if $(RECORD_MINUTES),--minutes $(RECORD_MINUTES))

# Pins for every Python from 3.11 on and every platform, without the address of an index.
requirements:
	$(PYTHON) -m pip install --quiet uv
	uv pip compile --universal --fork-strategy fewest --no-strip-extras --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --no-emit-index-url --extra dev pyproject.toml --output-file requirements.txt
