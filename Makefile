# Two commands need nothing but Python 3.11 and make: `make reproduce` and `make test`.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PRESET ?= quick
ARGS   ?=
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
# The first interpreter here that is new enough; PYTHON=/path/to/python says another.
PYTHON ?= $(shell for python in python3.11 python3; do \
	"$$python" $(IS_NEW_ENOUGH) 2>/dev/null && echo "$$python" && break; done)
PYTEST := $(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --durations=5 --durations-min=10
NOTEBOOKS = $(sort $(wildcard notebooks/*.ipynb))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup reproduce report bench bench-kernels aot test test-all notebooks lint format lock clean
.DELETE_ON_ERROR:

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

reproduce: setup  ## train, evaluate, report: minutes on 2 cores (PRESET=full for every variant)
	@$(BIN)/python -m scripts.reproduce --preset=$(PRESET) $(ARGS)

report: setup  ## the report again from stored results; trains nothing
	@$(BIN)/python -m scripts.report $(ARGS)

bench: setup  ## time a training step, its parts, and what they could cost at best
	@$(BIN)/python -m scripts.bench_train $(ARGS)

bench-kernels: setup  ## time and memory of the kernels' plain paths beside what they replace
	@$(BIN)/python -m scripts.bench_kernels $(ARGS)

aot: setup  ## compile every TPU kernel for real chips, without one (installs 0.7 GB)
	@$(BIN)/python -m pip install -qq --no-build-isolation -c requirements.lock -e '.[aot]'
	@$(BIN)/python -m scripts.aot_compile --json=docs/results/aot_tpu.json \
		--table=docs/results/aot_tpu.md $(ARGS)

test: lint  ## lint, types and the fast tests
	@$(PYTEST) -m 'not slow' $(ARGS)

test-all: lint  ## the slow tests too, and every notebook
	@$(PYTEST) $(ARGS)
	@$(MAKE) --no-print-directory notebooks

notebooks: setup  ## execute every notebook; outputs are not stored
	@for notebook in $(NOTEBOOKS); do \
		echo "$$notebook"; $(BIN)/jupyter execute --timeout=900 "$$notebook" || exit 1; done

lint: setup  ## formatting, lint, types
	@$(BIN)/ruff format --check --quiet --output-format=concise . || { echo 'run `make format`'; exit 1; }
	@$(BIN)/ruff check --quiet --output-format=concise .
	@$(BIN)/pyrefly check --preset=default --ignore=untyped-import --min-severity=error \
		--summary=none --extend-project-excludes='tests/**' --python-interpreter-path=$(BIN)/python

format: setup  ## format the code and repair what can be repaired
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

setup: $(STAMP)  ## the virtual environment, redone when setup.cfg or the lock changes

$(STAMP): setup.cfg pyproject.toml requirements.lock
	@{ test -n "$(PYTHON)" && $(PYTHON) $(IS_NEW_ENOUGH); } || { \
		echo 'phasejax needs Python 3.11 or newer, unlike $(or $(PYTHON),what is installed here):' \
		'install it, or say where it is with PYTHON=/path/to/python.'; exit 1; }
	@echo "[1/3] $(VENV): $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo '[2/3] build tools'
	@$(BIN)/python -m pip install -qq -c requirements.lock setuptools wheel
	@echo '[3/3] phasejax, jax and what else requirements.lock pins (a minute or two)'
	@$(BIN)/python -m pip install -qq --no-build-isolation -c requirements.lock -e '.[test,notebooks]'
	@touch $@

lock:  ## the newest releases that setup.cfg allows, into requirements.lock
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install -qq -U setuptools wheel
	@build/lock/bin/python -m pip install -qq --no-build-isolation -e '.[test,notebooks,aot]'
	@grep '^#' requirements.lock > build/header
	@build/lock/bin/python -m pip freeze --all --exclude-editable --exclude pip \
		| cat build/header - > build/requirements.lock
	@mv build/requirements.lock requirements.lock && rm -rf build/lock build/header

clean:  ## everything that can be made again, the virtual environment too; runs and reports stay
	@rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis .jax_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
