# make            what can be done
# make quickstart set up and run the main job on code search over installed packages
# make test       set up for tests; lint, format, types, and all tests that need no process of their own
# make test-slow  real commands in processes, Ray, kills, clusters, notebooks
# make test-noise the tests of one folder, in seconds

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev quickstart test test-slow lint chaos cluster rehearsal mutants bench gpu docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "raydr needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# A venv made only for the quickstart holds just what the quickstart needs.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[cpu,offline]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[cpu,offline,dev]'
	touch $@ $(VENV)/.installed

setup: $(VENV)/.installed ## a virtual environment with raydr

setup-dev: $(VENV)/.installed-dev ## the same with what tests need

quickstart: setup ## the main job on real input, start to end
	$(BIN)/raydr quickstart

PYTEST := $(BIN)/python -m pytest
FAST := -m "not slow and not chaos and not cloud"

test: setup-dev lint ## lint, types, and all tests that need no process of their own
	$(PYTEST) $(FAST) --numprocesses logical --maxprocesses 8 --dist worksteal

test-slow: setup-dev ## tests in processes of their own: commands, Ray, kills, clusters, notebooks
	$(PYTEST) -m "slow and not chaos and not cloud" --numprocesses 3 --dist worksteal tests

# make test-noise: tests/noise and the examples of raydr/noise.
test-%: setup-dev
	$(PYTEST) $(FAST) tests/$* $(wildcard raydr/$*)

lint: setup-dev ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

chaos: setup-dev ## kill a small refresh in every kind of step, and compare (half an hour)
	$(BIN)/python -m pytest -m chaos tests/chaos -s

cluster: setup-dev ## a refresh on a cluster that grows, is drained and loses nodes, its artefacts in a bucket (4 minutes)
	$(BIN)/python -m pytest -m cloud tests/cluster

# make rehearsal PASSAGES="200000 2000000" for smaller sizes.
PASSAGES ?= 2000000 20000000
rehearsal: setup-dev ## made passages through all stages, with kills: time and memory by stage (40 GB of disk, hours)
	$(BIN)/python -m benchmarks.scale --passages $(PASSAGES) --kill corpus=20 passages=20 imported/join=1

mutants: setup-dev ## plant a hundred mistakes, one at a time, and see which test finds each (an hour)
	$(BIN)/python -m tests.mutants

bench: setup-dev ## encoding, training step and search, side by side
	$(BIN)/python -m benchmarks.encode
	$(BIN)/python -m benchmarks.encode_ray
	$(BIN)/python -m benchmarks.train_step
	$(BIN)/python -m benchmarks.search

gpu: setup-dev ## run and time on one GPU all that runs on one (8 minutes)
	$(BIN)/python -m benchmarks.gpu --output gpu-figures

docs: $(BIN)/python ## the documentation as a site, in work/site; a broken link fails
	$(PIP) install --quiet --constraint constraints.txt --editable '.[cpu,offline,docs]'
	$(BIN)/python -m mkdocs build

clean: ## remove what the quickstart made
	rm -rf work/quickstart
