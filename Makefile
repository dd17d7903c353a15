# A thin front: everything is in the Snakefile and in tests/.
PYTHON ?= python3
CORES ?= 4
BIN := .venv/bin
# A folder that `make mirror` filled: packages and data come from it, and no network is needed.
MIRROR ?=
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(MIRROR),--no-index --find-links $(MIRROR)/packages)
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) $(if $(MIRROR),--config mirror=$(MIRROR) --)
# Every job, and every command that a test tries, is a new process: none should compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: results check mirror env test test-slurm test-air-gapped test-faults lint bench fuzz record gpu-kit study requirements help
.DEFAULT_GOAL := results

results: env ## make everything that the configured datasets can answer (the default)
	$(SNAKEMAKE)
	@echo "results: $(CURDIR)/results/index.html"

check: env ## the same, but fail if one of `datasets` cannot be downloaded or a result differs from what is tracked
	$(SNAKEMAKE) all downloads
	$(BIN)/python -m gpuledger.ledger.changes

# Packages that come as source are built with setuptools and wheel.
mirror: env ## collect packages and data in a folder: make mirror FOLDER=/path; elsewhere, make MIRROR=/path
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest $(FOLDER)/packages --require-hashes -r requirements.txt \
	    -r requirements-slurm.txt
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest $(FOLDER)/packages setuptools wheel
	$(BIN)/python -m gpuledger.ledger.download.mirror $(FOLDER)

test: env ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Tests of a whole machine. Some take long, and the first two skip with a line where the machine cannot do it.
test-slurm: env ## run the workflow on a Slurm cluster of this one machine, started for it (docs/CLUSTER.md)
	tests/machine/one_node_slurm $(BIN)/python -m pytest -rs tests/machine/slurm.py

test-air-gapped: env ## make everything with the network cut, in a fresh clone: make test-air-gapped FOLDER=/mirror
	tests/machine/air_gapped $(FOLDER)

KILLS ?= 20
test-faults: env ## kill runs, fill the disk, take rights away: make test-faults KILLS=5 SEED=2
	KILLS=$(KILLS) SEED=$(SEED) $(BIN)/python -m pytest tests/machine/faults.py

lint: env ## check the form of code, workflow and notebooks
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/nbstripout --verify notebooks/*.ipynb
	$(BIN)/snakemake --lint

bench: env ## time the workflow, the readers and the models; write results/benchmarks/index.html
	$(BIN)/python benchmarks/workflow.py
	$(BIN)/python benchmarks/inputs.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/scaling_laws.py --draws 100 --extrap install
	$(BIN)/python benchmarks/page.py

RUNS ?= 2000
SEED ?= 1
MINUTES ?= 600
fuzz: env ## damage files of every format and read them: make fuzz RUNS=1000000 SEED=2 MINUTES=60
	$(BIN)/python benchmarks/fuzz.py $(RUNS) $(SEED) $(MINUTES) $(TOTALS)

# RECORD_PYTHON names a Python with PyTorch, RECORD_PART one of the parts, RECORD_MINUTES limits the time of a call (the
# next one resumes), COMMAND is a program to record instead of the parts.
RECORD_PYTHON ?= $(BIN)/python
record: $(if $(filter $(BIN)/python,$(RECORD_PYTHON)),env) ## record this machine's GPU (docs/GPU.md)
	PYTHONPATH="$(CURDIR)/src:$$PYTHONPATH" $(RECORD_PYTHON) -m gpuledger.record $(RECORD_PART) \
	    $(if $(RECORD_MINUTES),--minutes $(RECORD_MINUTES)) $(if $(COMMAND),-- $(COMMAND))

# FOLDER (default: gpu-kit) is made; WHEELS=1 adds NumPy, for images without it.
gpu-kit: env ## make a folder to carry to a machine with a GPU and without network (docs/GPU.md)
	$(BIN)/python -m gpuledger.record.kit $(or $(FOLDER),gpu-kit) $(if $(WHEELS),--wheels)

study: env ## make the files of a new study: make study NAME=launch_latency
	$(BIN)/python -m gpuledger.cli new-study $(NAME)

env: .venv/ready ## set up .venv

# Made anew when a pin changes: packages that are no longer wanted would stay otherwise.
.venv/ready: requirements.txt pyproject.toml
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(INSTALL) --require-hashes -r requirements.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	touch $@

# For every Python from 3.11 on and every platform, without the address of an index.
COMPILE := uv pip compile --universal --fork-strategy fewest --no-strip-extras --python-version 3.11 --generate-hashes \
    --no-header --no-annotate --no-emit-index-url
requirements: ## pin the dependencies of pyproject.toml
	$(PYTHON) -m pip install --quiet uv
	$(COMPILE) --extra dev pyproject.toml --output-file requirements.txt
	$(COMPILE) --no-deps --group slurm --constraint requirements.txt --output-file requirements-slurm.txt

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 17
