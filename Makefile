SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SERVER_READY := $(VENV)/.server
DEV_READY := $(VENV)/.dev
BENCH_READY := .bench/tools/.ready

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed 's/:.*## /\t/' | expand -t 16

.PHONY: run
run: $(SERVER_READY) ## Serve on 127.0.0.1:8080, on an embedded Postgres or on DATABASE_URL
	@exec $(BIN)/leasebeat-server serve --migrate

.PHONY: test
test: $(DEV_READY) ## Run every test, on a real Postgres that it starts itself
	$(BIN)/python -m pytest $(ARGS)

.PHONY: check
check: $(DEV_READY) ## Format, lint, strict types, import rules, migration safety and drift
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file pyproject.toml sdk/src
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.migrations.check

.PHONY: format
format: $(DEV_READY) ## Format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: demo
demo: $(DEV_READY) ## Three workers, one killed, one stopped: every message completed once
	$(BIN)/python examples/demo.py

.PHONY: bench
bench: $(DEV_READY) $(BENCH_READY) ## How fast it is, beside its references and its peers (15 minutes)
	$(BIN)/python -m bench full

.PHONY: bench-quick
bench-quick: $(DEV_READY) $(BENCH_READY) ## The same in one short round each (2 minutes)
	$(BIN)/python -m bench quick

.PHONY: bench-long
bench-long: $(DEV_READY) $(BENCH_READY) ## How it stays as it grows (60 minutes)
	$(BIN)/python -m bench long

.PHONY: profile
profile: $(DEV_READY) $(BENCH_READY) ## A flame graph of the server under beats
	$(BIN)/python -m bench.profile

.PHONY: requirements
requirements: $(DEV_READY) ## Compile the pinned requirements anew
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --upgrade --quiet -o requirements/server.txt requirements/server.in
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --upgrade --quiet -c requirements/server.txt -o requirements/dev.txt requirements/dev.in
	$(BIN)/uv pip compile --universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --upgrade --quiet -o tests/sdk/wink/requirements.txt tests/sdk/wink/requirements.in

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(SERVER_READY): $(BIN)/python requirements/server.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/server.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_READY): $(SERVER_READY) requirements/dev.txt sdk/pyproject.toml
	$(INSTALL) --require-hashes -r requirements/dev.txt
	$(INSTALL) --no-deps --no-build-isolation -e sdk
	@touch $@

$(BENCH_READY): $(BIN)/python bench/requirements.txt
	$(BIN)/python -m venv .bench/tools
	.bench/tools/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
	@touch $@
