# Every target sets up what it needs: python3 (3.11 to 3.13), make and git are enough to begin with.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Twice quiet: errors only.
PIP_FLAGS := --quiet --quiet --disable-pip-version-check

# The tests start hundreds of processes: what one of them has compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE

# What the uv of `make lock` is told for every lock; `make lock UPGRADE=--upgrade` takes newer releases.
COMPILE = pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 $(UPGRADE)

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench chaos soak lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## watch the audited host at work (KEEP=1 leaves it running; MEMORY=postgres|sqlite)
	@$(BIN)/python -m demo

test: $(STAMP) ## run all tests (ARGS="-k name" is handed to pytest)
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP) ## check style, types, import rules and the Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/unit/test_imports.py
	@if [ ! -f Dockerfile ]; then :; \
	elif [ -x $(BIN)/hadolint ]; then echo "$(BIN)/hadolint Dockerfile"; $(BIN)/hadolint Dockerfile; \
	else echo "hadolint left out: it comes with Linux only"; fi

bench: $(STAMP) ## measure what the audit costs (ARGS="--only throughput")
	@$(BIN)/python -m bench $(ARGS)

chaos: $(STAMP) ## kill, freeze and cut off, and judge what is on record (ARGS="--seed 7" repeats)
	@$(BIN)/python -m chaos --invocations 20000 --faults 300 $(ARGS)

soak: $(STAMP) ## see whether memory, handles and spool stay flat over 200,000 invocations (25 minutes on 2 cores)
	@$(BIN)/python -m soak --invocations 200000 $(ARGS)

lock: $(BIN)/python ## write requirements/*.lock anew from pyproject.toml
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(BIN)/python -m venv "$$tmp"; \
	"$$tmp/bin/python" -m pip $(PIP_FLAGS) install 'uv>=0.9,<1'; \
	"$$tmp/bin/uv" $(COMPILE) pyproject.toml --group dev --extra embedded --extra gevent --extra gateway --extra redbeat --extra postgres --extra sqlite -o requirements/dev.lock; \
	"$$tmp/bin/uv" $(COMPILE) pyproject.toml --extra gateway -c requirements/dev.lock -o requirements/runtime.lock; \
	"$$tmp/bin/uv" $(COMPILE) --group pyproject.toml:build -c requirements/dev.lock -o requirements/build.lock; \
	for peer in django dbos procrastinate; do \
	  "$$tmp/bin/uv" $(COMPILE) bench/peers/$$peer.in -c requirements/dev.lock -o bench/peers/$$peer.lock; \
	done

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is as new as the last complete install; a broken one leaves none and is done again.
$(STAMP): requirements/dev.lock pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) (only now, and when requirements/dev.lock or pyproject.toml changes)"
	@rm -f $@
	@$(BIN)/python -m pip $(PIP_FLAGS) install --require-hashes -r requirements/dev.lock
	@$(BIN)/python -m pip $(PIP_FLAGS) install --no-deps --no-build-isolation -e .
	@touch $@

# $(PYTHON) if its version fits, else the newest fitting one on PATH. A name on PATH proves nothing
# (version managers leave stand-ins there), so each candidate is run.
$(BIN)/python:
	@python=; for candidate in "$(PYTHON)" python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; \
	  then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is $$("$(PYTHON)" --version 2>&1 | head -n 1)," >&2; \
	  echo "and no python3.13, python3.12 or python3.11 was found. Install one, or name it: make PYTHON=... test" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "error: $$python cannot make a virtual environment: its venv or ensurepip module is missing." >&2; \
	  "$$python" -c 'import sys; print("On Debian and Ubuntu: apt-get install python%d.%d-venv" % sys.version_info[:2])' >&2; \
	  exit 1; \
	fi; \
	[ "$$python" = "$(PYTHON)" ] || echo "$(PYTHON) is not Python 3.11 to 3.13: taking $$python"; \
	"$$python" -m venv --clear $(VENV)
