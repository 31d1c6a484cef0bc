# Every target does its own set-up (.ci/setup.sh): git, make and Python 3.11 or later are enough to start with.
# Pass more arguments with ARGS, for example: make test ARGS="-k lease -x"

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
with := @bash .ci/setup.sh
ARGS ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Servers and sessions of tests live for minutes: the JVM's optimizing compiler would cost them more time than it saves.
test test-all integration mutants: export JDK_JAVA_OPTIONS := -XX:TieredStopAtLevel=1

# Tests make thousands of small tables and delete them: in memory, where programs may run from there and 4 GB are free.
in_memory := $(shell [ -w /dev/shm ] && ! grep -q '^[^ ]* /dev/shm [^ ]* [^ ]*noexec' /proc/mounts && \
	[ "$$(df --output=avail /dev/shm | tail -n 1)" -gt 4000000 ] && echo /dev/shm)
ifneq ($(in_memory),)
test test-all: export TMPDIR ?= $(in_memory)
endif

.PHONY: demo
demo: ## A dozen concurrent PySpark and PyIceberg writers load real data, and the result is proved (BACKEND=hive: on HMS and ZooKeeper; BACKEND=rest: Spark SQL through the REST server)
	$(with) python java $(if $(filter rest,$(BACKEND)),maven) -- commit-coord demo $(if $(BACKEND),--backend $(BACKEND)) $(ARGS)

.PHONY: test
test: ## The tests, without those that take minutes or need the Iceberg JVM runtime
# In six processes, each with servers of its own: most tests wait for one. ARGS="-n 0" for one process.
	$(with) python java postgres etcd chromium prometheus tmux -- pytest -m "not slow and not jvm" -n 6 --dist loadfile \
		--no-loadscope-reorder $(ARGS)

.PHONY: test-all
test-all: ## Every test
	$(with) python java postgres maven etcd chromium prometheus tmux -- pytest --hypothesis-profile=default $(ARGS)

.PHONY: etcd
etcd: ## The lock manager for etcd in examples/: the contract, and eight processes that append 200 times each through it
	$(with) python etcd -- pytest tests/contract/test_etcd.py $(ARGS)

.PHONY: integration
integration: ## The tests on real servers of every version: in containers where Docker answers, else natively
# COMMITS=1000 has the three kinds of writers make so many commits on one table instead of 60; SERVERS=native and
# SERVERS=containers choose. ARGS="-k pyiceberg-java" picks the cases with both kinds of unmodified writers.
	$(with) python java postgres maven docker kerberos go -- pytest integration $(ARGS)

.PHONY: check
check: fmt-check lint layers types security test ## What CI runs: format, ruff, layers, types, bandit and `make test`

.PHONY: bench
bench: ## Measure and compare with PyIceberg and the Iceberg JVM runtime; writes bench/results/
	$(with) python java postgres maven -- commit-coord bench $(ARGS)

.PHONY: model
model: ## Check the protocols as models, each also without one of its guards, and write docs/model.md (ARGS=--small: seconds)
	$(with) python java -- python -m tests.proof.model --page docs/model.md $(ARGS)

.PHONY: faults
faults: ## Break real servers, disks, clocks and networks under writers, and write docs/faults.md (ARGS="--only F --on C": one cell)
	$(with) python java postgres maven cuts -- python -m tests.proof.faults --results bench/results/faults.json \
		--page docs/faults.md $(ARGS)

SEED ?= 1
RUNS ?= 2000

.PHONY: sim
sim: ## Simulate the commit protocol under faults: RUNS runs from SEED on; each replays exactly
	$(with) python -- python -m tests.proof.sim --seed $(SEED) --runs $(RUNS) $(ARGS)

.PHONY: rows
rows: ## Random programs on one table, compared with a model of its rows: RUNS programs from SEED on
	$(with) python -- python -m tests.proof.rows --seed $(SEED) --runs $(RUNS) $(ARGS)

.PHONY: rows-readers
rows-readers: ## Tables that random programs leave behind, read by PyIceberg, DuckDB, Iceberg's JVM reader and Spark: RUNS programs
	$(with) python java maven -- python -m tests.proof.rows.kept dist/rows-$(SEED)-$(RUNS) --seed $(SEED) \
		--runs $(RUNS) $(ARGS)

.PHONY: rck
rck: ## Iceberg's REST Compatibility Kit against `commit-coord serve` (ARGS="sqlite postgres hms-2.3.10 hms-4.0.1")
	$(with) python java maven postgres -- python -m integration.rck $(ARGS)

.PHONY: rest-programs
rest-programs: ## Clients of a REST server that race, 200 rounds of each kind, and random programs; no row may be wrong
	$(with) python -- python -m tests.rest.races $(ARGS)

.PHONY: rest-fuzz
rest-fuzz: ## Requests made from Iceberg's specification (SPEC=its rest-catalog-open-api.yaml): no server error, no traceback
	$(with) python tools -- python -m tests.rest.specified $(SPEC) $(ARGS)

.PHONY: rows-servers
rows-servers: ## The same programs on a Hive Metastore and ZooKeeper, each client in a process of its own
	$(with) python java -- python -m tests.proof.rows.far --seed $(SEED) --runs $(RUNS) $(ARGS)

.PHONY: mutants
mutants: ## Break the code in one place after the other; the named test of each place must fail
	$(with) python java postgres -- python -m tests.mutants.mutants $(ARGS)

.PHONY: soak
soak: ## Writers work for an hour, and everything that could grow is measured; writes docs/soak.md (ARGS="--minutes 10")
	$(with) python java postgres -- python -m tests.proof.soak $(ARGS)

.PHONY: figures
figures: ## Print how long commands, the page in Chromium and a call of Spark's data source take, with the limits and a verdict
	$(with) python java chromium -- python -m tests.proof.figures $(ARGS)

.PHONY: links
links: ## Ask the servers whether the documents' links to other sites are dead; needs the internet, and is no part of CI
	$(with) python -- python -m tests.proof.links $(ARGS)

.PHONY: dashboard
dashboard: ## Draw docs/dashboard.png: the Grafana dashboard, as a real Prometheus answers its queries about real writers for a minute
	$(with) python prometheus -- python -m tests.observing.dashboard --to docs/dashboard.png $(ARGS)

.PHONY: fmt
fmt: ## Format the code and fix what ruff can fix
	$(with) python -- ruff check --fix-only --quiet
	$(with) python -- ruff format

.PHONY: fmt-check
fmt-check: ## Check that the code is formatted
	$(with) python -- ruff format --check

.PHONY: lint
lint: ## ruff
	$(with) python -- ruff check

.PHONY: layers
layers: ## Check that imports go down only
	$(with) python -- lint-imports

.PHONY: types
types: ## mypy, strict
	$(with) python -- mypy

.PHONY: security
security: ## bandit
	$(with) python -- bandit --quiet --recursive commit_coord --configfile pyproject.toml

.PHONY: audit
audit: ## Look for known vulnerabilities of locked dependencies (pip-audit; asks the Python Packaging Advisory Database)
	$(with) tools -- uv tool run pip-audit --strict --disable-pip --requirement requirements.lock $(ARGS)

.PHONY: docs
docs: ## Write docs/configuration.md, docs/locks.md and docs/cli.md from the code, and build the manual in site/, strictly
	$(with) python -- python -m commit_coord.config > docs/configuration.md.new
	@mv docs/configuration.md.new docs/configuration.md
	$(with) python -- python -m commit_coord.cli.lock_table > docs/locks.md.new
	@mv docs/locks.md.new docs/locks.md
	$(with) python -- python -m commit_coord.cli.reference > docs/cli.md.new
	@mv docs/cli.md.new docs/cli.md
	$(with) python -- python docs/site/build.py site

.PHONY: lock
lock: ## Write requirements.lock from pyproject.toml (ARGS=--upgrade for newer versions)
	$(with) tools -- uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
		--generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements.lock $(ARGS)

.PHONY: package
package: ## Build sdist and wheel, and type every block of the README and the tutorials into new environments; asks the package index
# In a fresh container of bare Debian, as a stranger: ARGS="--container debian:bookworm-slim --page docs/first-hour.md".
# Where no image registry is reached, `bash docker/base.sh commit-coord-base` makes such an image.
	$(with) python java -- hatchling build --directory dist
	$(with) python java -- python -m tests.packaging.walk $(ARGS)

.PHONY: clean
clean: ## Remove .venv and all files of the tools
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
