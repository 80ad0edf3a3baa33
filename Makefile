# make demo          a virtual environment, an installation, and the main example
# make demo-cluster  the same on processes, with Dask and MPI
# make test          the same, and the tests
# make quick         a part of them in less than a minute: no processes, no files
# make newest        a part of them on the newest Python there is
# make docs          the site, into docs/_build; examples are run for its gallery
# make test-stale    the tests, with every hit of a compiled function traced again and compared
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo demo-cluster docs test test-stale quick newest check lint types wheel clean help

help:
	@sed -n 's/^# //p' Makefile

$(VENV)/made: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; got $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python has no venv: apt-get install python3-venv (1 MB)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) ..."
	@$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/made-dev: $(VENV)/made
	@echo "Installing what the tests need ..."
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

demo: $(VENV)/made
	@$(BIN)/python examples/demo.py

$(VENV)/made-cluster: $(VENV)/made
	@echo "Installing Dask and MPI ..."
	@$(BIN)/python -m pip install -q -e '.[cluster]'
	@touch $@

demo-cluster: $(VENV)/made-cluster
	@$(BIN)/python examples/cluster.py

# In the order of tests/conftest.py, on two cores: a third process computes while tests of the others wait.
WORKERS ?= 3
SHARED := --dist loadfile --no-loadscope-reorder --max-worker-restart=0
test test-stale quick: export OSTINATO_TEST_KERNELS ?= $(CURDIR)/$(VENV)/kernels

test: $(VENV)/made-dev
	$(BIN)/python -m pytest -n $(WORKERS) $(SHARED)

quick: $(VENV)/made-dev
	OSTINATO_TRUST=quick $(BIN)/python -m pytest -n 2 $(SHARED)

newest: $(VENV)/made-dev
	@.ci/newest $(BIN)/python

test-stale: $(VENV)/made-dev
	OSTINATO_CHECK_STALE=1 $(BIN)/python -m pytest -n $(WORKERS) $(SHARED)

docs: $(VENV)/made
	@$(BIN)/python -m pip install -q -e '.[docs,feed,io,cluster]'
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build
	@echo "docs/_build/index.html"

lint: $(VENV)/made-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/made-dev
	rm -rf .typecheck && mkdir -p .typecheck/ostinato
	for path in ostinato/*.py ostinato/*.pyi ostinato/onnx ostinato/optim ostinato/training ostinato/py.typed; do ln -s ../../$$path .typecheck/$$path; done
	for room in ops planner runtime io_pipeline; do ln -s ../../$$room .typecheck/ostinato/$$room; done
	$(BIN)/mypy .typecheck/ostinato benchmarks examples

wheel: $(VENV)/made-dev
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m build -q --wheel .
	rm -rf build/lib build/bdist.*

check: lint types test

clean:
	rm -rf $(VENV) build dist *.egg-info .typecheck out
