# Everything a fresh machine needs is Python 3.11+, Debian's kcat for one test file, and PyPI.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test check format bench bench-partitions property conformance codecs reference clean

help: ## List what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv/ with the package, its commands and what the tests need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: install ## Broker, topic, produce, consume with a stock client, where the bytes lie; ends by itself
	$(BIN)/python -m demo

test: install ## The whole test suite
	$(BIN)/python -m pytest

check: install ## Lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## Penstock beside Apache Kafka, interleaved (needs Maven and Java 17; without Maven: Penstock alone)
	$(BIN)/python -m bench --docs

bench-partitions: install ## 4,000 partitions: create, write, stop, restart, crash (needs Maven and Java 17)
	$(BIN)/python -m bench partitions --docs

property: install ## The log's property test for as long as EXAMPLES says (default 20000)
	PENSTOCK_PROPERTY_EXAMPLES=$(or $(EXAMPLES),20000) $(BIN)/python -m pytest tests/property --timeout=0 -q

codecs: install ## Generate the wire messages anew from Kafka's schemas
	$(BIN)/python tools/generate_messages.py

reference: install ## Generate the settings pages anew
	$(BIN)/python tools/generate_reference.py

clean: ## Remove .venv/ and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build src/*.egg-info
