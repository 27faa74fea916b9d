# Every target makes its own environment: Python >= 3.11, make and git are all of the set-up.

PYTHON ?= python3
ARGS ?=

PIP_INSTALL := -m pip install --quiet --quiet --disable-pip-version-check
VENV := .venv
PEERS := .venv-peers
# TensorFlow and JAX have their own environment: they are large, and they pin what they share with us.
STEP_PEERS := .venv-jax .venv-tensorflow .venv-torch
# Whole steps are timed beside each framework by itself: two in one environment may share libraries of threads.

# Stamps: what is installed is as new as pyproject.toml.
CORE_READY := $(VENV)/core.stamp
DEV_READY := $(VENV)/dev.stamp
PEERS_READY := $(PEERS)/peers.stamp
STEP_READY := $(STEP_PEERS:%=%/step.stamp)

.DEFAULT_GOAL := help
# Two pips at once in one environment break it.
.NOTPARALLEL:
.PHONY: help demo test test-everywhere check bench bench-step bench-cluster bench-planning chaos conformance docs docs-pages docs-api docs-cli docs-numpy fuzz clean distclean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(CORE_READY)  ## plan, run and train a small language model here and on Ray, and draw what happened
	$(VENV)/bin/distgrad demo $(ARGS)

test: check  ## run the checks, then the tests (ARGS="-k name" for some)
	$(VENV)/bin/python -m pytest -n 2 $(ARGS)

# Four times all tests, an hour: before a release, and after a change of what tests share.
test-everywhere: $(DEV_READY)  ## run the tests as on machines that differ: homes, rates, orders, processes
	$(VENV)/bin/python -m tests.everywhere $(ARGS)

# mypy and import-linter run inside a fresh normal install, where the three folders are one package; from the root they would
# find distgrad/ alone. All of build/ goes first: setuptools would pack deleted modules again from a stale build/lib. mypy keeps no
# cache: it takes a file that was installed anew for another one, and then reports errors that are not there.
check: $(DEV_READY)  ## lint, check types and layers
	$(VENV)/bin/ruff check .
	rm -rf build
	$(VENV)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --no-compile --target build/check .
	cd build/check && ../../$(VENV)/bin/mypy --config-file ../../pyproject.toml --cache-dir /dev/null -p distgrad
	cd build/check && ../../$(VENV)/bin/lint-imports --config ../../pyproject.toml --cache-dir ../../.import_linter_cache --no-logo

bench: $(PEERS_READY)  ## time graph building beside TensorFlow and JAX
	$(PEERS)/bin/python benchmarks/graph_build.py $(ARGS)

# PyPI's torch brings gigabytes of CUDA on Linux. Environments that are there already can be timed without make:
# .venv/bin/python benchmarks/step.py --python torch=/path/to/python --frameworks distgrad,torch
bench-step: $(CORE_READY) $(STEP_READY)  ## time gradient steps beside TensorFlow, JAX and torch
	$(VENV)/bin/python benchmarks/step.py $(ARGS)

bench-cluster: $(CORE_READY) .venv-torch/step.stamp  ## time gradients on Ray beside torch's DistributedDataParallel
	$(VENV)/bin/python benchmarks/cluster.py $(ARGS)

bench-planning: $(CORE_READY)  ## time lowering and planning
	$(VENV)/bin/python benchmarks/planning.py $(ARGS)

chaos: $(DEV_READY)  ## train under 1,200 faults of nine kinds, and watch memory (ARGS=--quick for 60)
	$(VENV)/bin/python -m tests.faults.chaos $(ARGS)

conformance: $(PEERS_READY)  ## compare the gradients with TensorFlow's
	$(PEERS)/bin/python tests/conformance/run.py $(ARGS)

fuzz: $(DEV_READY)  ## call public functions with junk: 20,000 times (ARGS="--seed 2")
	$(VENV)/bin/python -m tests.fuzz.run --calls 20000 $(ARGS)

docs: $(DEV_READY)  ## build the site of docs/ into build/site, strictly
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet --site-dir build/site $(ARGS)

docs-pages: docs-api docs-cli docs-numpy  ## regenerate the pages of docs/ that are generated

docs-api: $(CORE_READY)  ## regenerate docs/api/ from docstrings
	$(VENV)/bin/python docs/make_api.py

docs-cli: $(CORE_READY)  ## regenerate docs/cli.md from the help of commands
	$(VENV)/bin/python docs/make_cli.py

docs-numpy: $(CORE_READY)  ## regenerate docs/numpy.md from the table of the tests
	$(VENV)/bin/python docs/make_numpy.py

clean:  ## remove what was built and cached, keep the environments
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

# A half-made environment (no ensurepip, say) is removed, so that the next run starts afresh.
%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "distgrad needs Python 3.11 or newer; '$(PYTHON) --version' says: $$($(PYTHON) --version 2>&1)" >&2; \
		echo "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear $* || { rm -rf $*; exit 1; }
