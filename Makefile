# Two commands set everything up on a bare machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# with PySpark and a Java for it, half a gigabyte: what demo and lint do not wait for
SPARK_STAMP := $(VENV)/.installed-spark

.PHONY: demo test test-long lint types docs site crash drills simulate interop interop-full bench-first bench-apache bench-latency bench-replicas bench-services bench-failover bench-elections bench-takeover bench-spark bench-lake soak audit clean

$(STAMP): pyproject.toml $(wildcard plugins/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,compression,metrics,report,secure]" $(foreach p,$(wildcard plugins/*/pyproject.toml),-e $(dir $(p)))
	touch $@

$(SPARK_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[spark,iceberg]"
	touch $@

# the documentation site's generator
SITE_STAMP := $(VENV)/.installed-site

$(SITE_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# One worker per processor (tests/helpers/workers.py).
PYTEST := $(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

test: $(SPARK_STAMP)
	$(PYTEST)

# what `make test` leaves out because it takes seconds per test: the tests marked `long`
test-long: $(SPARK_STAMP)
	$(PYTEST) -m long

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.measure
	if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint Containerfile; fi

types: $(SPARK_STAMP)
	$(BIN)/mypy

# every generated page and table of docs/ (tools/docs.py lists them)
docs: $(STAMP)
	$(BIN)/python -m tools.docs

# the documentation as a site in site/; a broken link or a page that no menu shows fails it
site: $(SITE_STAMP)
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --quiet --strict

# every disk image a power loss can leave (`make test` looks at a sample), then kill -9 in a loop under load, 20 rounds a flush mode
crash: $(STAMP)
	RMQKIT_CRASH_SHARE=1 $(BIN)/python -m pytest -q -s tests/store/test_crash_images.py tests/store/test_crash_defects.py
	RMQKIT_CRASH_ROUNDS=20 $(BIN)/python -m pytest -q -m "" tests/whole/test_crash.py

# the real drills of docs/drills.md (faults of one group, takeovers, services, elections), about 55 minutes; ARGS="--list takeovers" for a part
drills: $(STAMP)
	$(BIN)/python -m tools.drills.series $(ARGS)

# 2,000 drills on simulated clusters of each kind (100 of 3 x 3), about an hour on two idle processors; ARGS="--family acting --from 4711 --seeds 1" for some
simulate: $(STAMP)
	$(BIN)/python -m tools.drills.simulate --seeds 2000 $(ARGS)

# Apache's Java client and servers, pinned; needs Java 17 and Maven
interop: $(SPARK_STAMP)
	RMQKIT_INTEROP=1 $(PYTEST) --durations=40 tests/interop

# the rows marked interop_full too: variants of others that wait long; `make interop` leaves them out
interop-full: $(SPARK_STAMP)
	RMQKIT_INTEROP=full $(PYTEST) tests/interop

# the pipeline with 2 million messages of 1 KiB: drivers killed, fail-master, AvailableNow, --follow; every offset exactly once; 25 minutes.
# ARGS="--messages 100000 --only follow" for less, ARGS=--write keeps the findings in docs/performance/soak.json
soak: $(SPARK_STAMP)
	$(BIN)/python -m tests.soak $(ARGS)

# the audit of drills on Spark against the checkers: 500 histories with planted defects and lies; a drill of 10^6 sends
# with what is wrong with it found exactly. ARGS="--histories 100 --sends 0" for less
audit: $(SPARK_STAMP)
	$(BIN)/python -m tests.soak.audit $(ARGS)

# Apache's benchmark producer against this broker and against a bare loop
bench-first: $(STAMP)
	$(BIN)/python -m tests.bench.first_figures $(ARGS)

# docs/performance.md: this broker against Apache's in pairs, about 25 minutes; ARGS="--rows batch --pairs 3" for a part
bench-apache: $(STAMP)
	$(BIN)/python -m tests.bench.against_apache $(ARGS)

# its section on latency against rate, with a plot, about 9 minutes; prints alone without ARGS="--write"
bench-latency: $(STAMP)
	$(BIN)/python -m tests.bench.open_loop $(ARGS)

# its section on masters that wait for a slave, in the first minute and warm, about 20 minutes; prints alone without ARGS="--write"
bench-replicas: $(STAMP)
	$(BIN)/python -m tests.bench.sync_master $(ARGS)

# its section on transactions, pop and timers, about 13 minutes; prints alone without ARGS="--write"
bench-services: $(STAMP)
	$(BIN)/python -m tests.bench.services $(ARGS)

# docs/failover/timings.md: takeovers in the first minute and warm, about 12 minutes a pair; prints alone without ARGS="--write"
bench-failover: $(STAMP)
	$(BIN)/python -m tests.bench.failover $(ARGS)

# docs/failover/elections.md: elections in controller mode, ours and Apache's; about 80 s a pair, ARGS="--timers upstream" for
# Apache's default timers, ARGS=--write keeps the figures and the page
bench-elections: $(STAMP)
	$(BIN)/python -m tests.bench.elections $(ARGS)

# docs/comparison.md: takeovers with pending timers, half messages and popped messages, ours and Apache's; about 4 minutes a pair
# and fault; ARGS="--fault kill --pairs 1" for some, ARGS=--write keeps the figures and the page
bench-takeover: $(STAMP)
	$(BIN)/python -m tests.bench.takeover $(ARGS)

# its section on Spark: a topic read as record batches, as tuples, by a consumer, and Parquet; about 8 minutes, ARGS="--write" to keep it
bench-spark: $(SPARK_STAMP)
	$(BIN)/python -m tests.bench.spark_read $(ARGS)

# its section on ingests: Delta table and Parquet sink; with ARGS="--old CHECKOUT" also the lake of another checkout
bench-lake: $(SPARK_STAMP)
	$(BIN)/python -m tests.bench.lake_write $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
