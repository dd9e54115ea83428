# The commands of the house. `make` alone lists them.

VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
STAMP  := $(VENV)/.installed
UV     := $(shell command -v uv 2>/dev/null)
ifdef UV
MAKE_VENV := uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL   := uv pip install --python $(BIN)/python
else
MAKE_VENV := $(PYTHON) -m venv $(VENV)
INSTALL   := $(BIN)/python -m pip install --disable-pip-version-check
endif
# Half of the tests wait for other processes, so two cores have work for three.
WORKERS = $(shell $(BIN)/python -c 'import os; print(max(2, (os.cpu_count() or 1) * 3 // 2))')
SOURCES := --editable clients/python --editable
# Otherwise, where PYTHONDONTWRITEBYTECODE is set, each process compiles all that it imports: half of a hub's start.
COMPILE  = $(BIN)/python -m compileall -q fabric clients/python/fabric_protocol clients/python/fabric_client spark

.DEFAULT_GOAL := help
.PHONY: help venv demo test cluster crash simulate lint format bench generated clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

venv: $(STAMP)  ## an environment in .venv with everything in it, brought up to date when pyproject.toml changes
	@$(COMPILE)

$(CORE): pyproject.toml clients/python/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'error: fabric needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)' >&2; exit 1; }
	@echo 'installing the hub, the client and the command line into $(VENV) ...'
	@$(MAKE_VENV)
	@$(INSTALL) $(SOURCES) .
	@touch $@

$(STAMP): $(CORE)
	@echo 'installing Spark and the tools for tests into $(VENV); this takes a minute ...'
	@$(INSTALL) --quiet $(SOURCES) '.[dev,spark]'
	@touch $@

demo: $(CORE)  ## a hub in a temporary folder with sample traffic
	@$(COMPILE)
	$(BIN)/fabric demo

test: $(STAMP)  ## all tests, in parallel
	@$(COMPILE)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

cluster: $(STAMP)  ## the tests of Spark, with a cluster of a master and two workers
	FABRIC_CLUSTER=1 $(BIN)/python -m pytest tests/spark

crash: $(STAMP)  ## kill hub, producers and consumers for N minutes (default 5), then check every promise
	$(BIN)/python -m tests.crash --minutes $(or $(N),5)
	$(BIN)/python -m tests.crash.numbered

simulate: $(STAMP)  ## live N simulated lives of a hub (default 20000) on all cores, with new seeds
	$(BIN)/python -m tests.simulation --lives $(or $(N),20000)

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## how fast it is on this machine
	@$(COMPILE)
	$(BIN)/fabric bench

generated: $(STAMP)  ## write anew what is made from the code: golden vectors, dumps and lifecycle in PROTOCOL.md, docs/cli.md
	$(BIN)/python clients/vectors/make.py
	$(BIN)/python clients/dumps.py
	$(BIN)/python docs/lifecycle.py
	$(BIN)/python docs/reference.py

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .simulation build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
