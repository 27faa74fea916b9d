# Every target creates its own environment: only Python >= 3.11, make and git are needed.

PYTHON ?= python3
ARGS ?=

PIP_INSTALL := -m pip install --quiet --quiet --disable-pip-version-check
VENV := .venv
PEERS := .venv-peers
# TensorFlow and JAX have their own environment: they are large, and they pin shared dependencies.
STEP_PEERS := .venv-jax .venv-tensorflow .venv-torch
# One environment per framework: two frameworks in one environment may share thread libraries.

# Marker files: older than pyproject.toml means that the environment has to be updated.
CORE_READY := $(VENV)/core.stamp
DEV_READY := $(VENV)/dev.stamp
PEERS_READY := $(PEERS)/peers.stamp
STEP_READY := $(STEP_PEERS:%=%/step.stamp)

.DEFAULT_GOAL := help
# Two pips at once in one environment break it.
.NOTPARALLEL:
.PHONY: help demo test test-everywhere check bench bench-step bench-cluster bench-planning chaos conformance docs docs-pages docs-api docs-cli docs-numpy fuzz fuzz-groups fuzz-statements accuracy clean distclean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(CORE_READY)  ## plan, run and train a small language model here and on Ray, and write a report
	$(VENV)/bin/distgrad demo $(ARGS)

test: check  ## run the checks, then the tests (ARGS="-k name" for some)
	$(VENV)/bin/python -m pytest -n 2 $(ARGS)

# All tests four times, an hour: before a release, and after a change of shared test code.
test-everywhere: $(DEV_READY)  ## run the tests with different homes, rates, orders and processes
	$(VENV)/bin/python -m tests.everywhere $(ARGS)

# mypy and import-linter run inside a fresh normal install, where the three folders are one package; from the root they would
# find distgrad/ alone. build/ is removed first: setuptools would pack deleted modules from a stale build/lib. mypy runs without
# a cache: with one it reports errors that do not exist after files are reinstalled.
check: $(DEV_READY)  ## lint, check types and layers
	$(VENV)/bin/ruff check .
	rm -rf build
	$(VENV)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --no-compile --target build/check .
	cd build/check && ../../$(VENV)/bin/mypy --config-file ../../pyproject.toml --cache-dir /dev/null -p distgrad
	cd build/check && ../../$(VENV)/bin/lint-imports --config ../../pyproject.toml --cache-dir ../../.import_linter_cache --no-logo

bench: $(PEERS_READY)  ## time graph building next to TensorFlow and JAX
	$(PEERS)/bin/python benchmarks/graph_build.py $(ARGS)

# PyPI's torch brings gigabytes of CUDA on Linux. Existing environments can be timed without make:
# .venv/bin/python benchmarks/step.py --python torch=/path/to/python --frameworks distgrad,torch
bench-step: $(CORE_READY) $(STEP_READY)  ## time gradient steps next to TensorFlow, JAX and torch
	$(VENV)/bin/python benchmarks/step.py $(ARGS)

bench-cluster: $(CORE_READY) .venv-torch/step.stamp  ## time gradients on Ray next to torch's DistributedDataParallel
	$(VENV)/bin/python benchmarks/cluster.py $(ARGS)

bench-planning: $(CORE_READY)  ## time lowering and planning
	$(VENV)/bin/python benchmarks/planning.py $(ARGS)

chaos: $(DEV_READY)  ## train under 1,200 faults of nine kinds, and monitor memory (ARGS=--quick for 60)
	$(VENV)/bin/python -m tests.faults.chaos $(ARGS)

conformance: $(PEERS_READY)  ## compare the gradients with TensorFlow's
	$(PEERS)/bin/python tests/conformance/run.py $(ARGS)

fuzz: $(DEV_READY)  ## call public functions with junk: 20,000 times (ARGS="--seed 2")
	$(VENV)/bin/python -m tests.fuzz.run --calls 20000 $(ARGS)

fuzz-groups: $(DEV_READY)  ## run 10,000 random groups as native code (ARGS="--seed 2")
	$(VENV)/bin/python -m tests.fuzz.groups $(ARGS)

fuzz-statements: $(DEV_READY)  ## run 10,000 random programs of assignments with NumPy and distgrad (ARGS="--seed 2")
	$(VENV)/bin/python -W ignore -m tests.statements.random_programs --programs 10000 $(ARGS)

accuracy: $(DEV_READY)  ## measure the error of native functions on all float32 numbers, and on samples of float64
	$(VENV)/bin/python benchmarks/accuracy.py --exhaustive $(ARGS)

docs: $(DEV_READY)  ## build the site of docs/ into build/site, and fail on warnings
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet --site-dir build/site $(ARGS)

docs-pages: docs-api docs-cli docs-numpy  ## regenerate the pages of docs/ that are generated

docs-api: $(CORE_READY)  ## regenerate docs/api/ from docstrings
	$(VENV)/bin/python docs/make_api.py

docs-cli: $(CORE_READY)  ## regenerate docs/cli.md from the help of commands
	$(VENV)/bin/python docs/make_cli.py

docs-numpy: $(CORE_READY)  ## regenerate docs/numpy.md from the table of the tests
	$(VENV)/bin/python docs/make_numpy.py

clean:  ## remove build results and caches, keep the environments
	rm -rf build dist distgrad.egg-info .mypy_cache .import_linter_cache .ruff_cache .pytest_cache .hypothesis
	find distgrad scheduler workers tests examples benchmarks docs -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## remove the environments too
	rm -rf $(VENV) $(PEERS) $(STEP_PEERS)

$(CORE_READY): pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP_INSTALL) --editable .
	@touch $@

$(DEV_READY): pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP_INSTALL) --editable '.[test,check,docs,plots]'
	@touch $@

$(PEERS_READY): pyproject.toml | $(PEERS)/bin/python
	$(PEERS)/bin/python $(PIP_INSTALL) --editable '.[peers]'
	@touch $@

$(STEP_READY): .venv-%/step.stamp: pyproject.toml | .venv-%/bin/python
	.venv-$*/bin/python $(PIP_INSTALL) --editable '.[step-$*]'
	@touch $@

# An incomplete environment (for example without ensurepip) is removed, so that the next run starts from scratch.
%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "distgrad needs Python 3.11 or newer; '$(PYTHON) --version' says: $$($(PYTHON) --version 2>&1)" >&2; \
		echo "Choose another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear $* || { rm -rf $*; exit 1; }
