# Works with GNU make 3.81 and with BSD or GNU tools. `make` alone lists the interface.

# A Python that is named has an environment of its own beside .venv, e.g. .venv-python3.12.
ifdef PYTHON
VENV = .venv-$(notdir $(PYTHON))
else
VENV = .venv
endif
PY = $(VENV)/bin/python
ARGS =
BASE = HEAD
# Many images of containers set this. Then each of the thousands of processes that the tests start
# would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test fast campaign check format bench benchjobs benchboundary benchproviders \
		benchscale benchlibraries benchconnectors bench-check bench-plots docs screenshots pins pyright clean

help: ## this list
	@echo "Each command first sets up what it needs in .venv; all it takes is Python 3.11 or newer."
	@echo
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Settings:  PYTHON=python3.12  the Python to use     UV=  install with pip alone"
	@echo "           ARGS='...'         more arguments for demo, test, fast and the benchmarks"

demo: $(VENV)/.ready-core ## see the product at work
	$(PY) -m examples.demo $(ARGS)

test: $(VENV)/.ready-dev ## run every test
	$(PY) tools/run_tests.py $(ARGS)

fast: $(VENV)/.ready-dev ## run the unit and twin tests only, in seconds
	$(PY) tools/run_tests.py --fast $(ARGS)

campaign: $(VENV)/.ready-dev ## every store: 1,000 kills, 100,000 compared operations, a minute without its server, every kill point; 10,000 faults in each engine
	@code=0; \
	$(PY) -m tests.campaign --kills 1000 $(ARGS) || code=1; \
	$(PY) -m tests.differential || code=1; \
	$(PY) -m tests.fleet || code=1; \
	$(PY) -m tests.engine || code=1; \
	$(PY) -m pytest -q -m campaign tests || code=1; \
	exit $$code

check: $(VENV)/.ready-dev ## lint, format, types, imports, sizes and the conformance matrix
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) tools/source_rules.py
	$(PY) tools/glossary_check.py
	$(PY) tools/size_report.py
	$(PY) tools/state_docs.py --check
	$(PY) tools/notice_docs.py --check
	$(PY) tools/connector_docs.py --check
	$(PY) tools/overview_picture.py --check
	$(PY) benchmarks/plots.py --check
	$(PY) tools/conformance.py --check

pyright: $(VENV)/.ready-pyright ## check the types of what users write with pyright, which brings its own Node.js
	$(VENV)/bin/basedpyright --project tools/pyright.json --pythonpath $(PY)

format: $(VENV)/.ready-dev ## format the code and apply safe fixes
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

bench: $(VENV)/.ready-bench ## measure the engines beside their peers
	$(PY) benchmarks/engine.py $(ARGS)

benchjobs: $(VENV)/.ready-benchjobs ## measure jobs beside other queues, on Redis, PostgreSQL and SQLite
	$(PY) benchmarks/jobs.py $(ARGS)

benchboundary: $(VENV)/.ready-benchboundary ## measure the boundary beside durable logs
	$(PY) benchmarks/boundary.py $(ARGS)

benchproviders: $(VENV)/.ready-benchproviders ## measure provider calls beside retry and breaker libraries
	$(PY) benchmarks/providers.py $(ARGS)

benchscale: $(VENV)/.ready-benchscale ## measure jobs and facts on PostgreSQL, Redis and NATS beside their peers
	$(PY) benchmarks/scale.py $(ARGS)

benchlibraries: $(VENV)/.ready-benchlibraries ## measure what is written by hand beside libraries that do the same
	$(PY) benchmarks/libraries.py $(ARGS)

benchconnectors: $(VENV)/.ready-benchconnectors ## measure consuming from brokers beside their bare clients and FastStream
	$(PY) benchmarks/connectors.py $(ARGS)

bench-check: $(VENV)/.ready-dev ## compare every race with another commit, turn by turn: make bench-check BASE=main~1
	$(PY) benchmarks/check.py $(BASE) $(ARGS)

bench-plots: $(VENV)/.ready-core ## draw the kept results into docs/; anew: make bench-plots ARGS='--measure providers'
	$(PY) benchmarks/plots.py $(ARGS)

# The variable is the theme's own switch for a notice about its successor; warnings stay on.
docs: $(VENV)/.ready-docs ## regenerate the reference pages and build the site into build/docs
	$(PY) tools/state_docs.py
	$(PY) tools/notice_docs.py
	$(PY) tools/connector_docs.py
	$(PY) tools/overview_picture.py
	$(PY) tools/conformance.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --config-file tools/mkdocs.yml
	@echo "the site is in build/docs"

screenshots: $(VENV)/.ready-dev ## take the pictures of the console anew, with a Chromium that is on the path
	$(PY) -m tools.console_pictures

pins: ## resolve all dependencies anew and write constraints.txt
	@python=$$(sh tools/setup.sh python) && "$$python" tools/pins.py

clean: ## remove everything these commands made
	rm -rf .venv .venv-* build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests tools examples benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

# One stamp per set of dependencies: a second run is instant, a changed pin installs again.
$(VENV)/.ready-core $(VENV)/.ready-dev $(VENV)/.ready-bench $(VENV)/.ready-benchjobs $(VENV)/.ready-docs \
		$(VENV)/.ready-benchboundary $(VENV)/.ready-benchproviders $(VENV)/.ready-benchscale \
		$(VENV)/.ready-benchlibraries $(VENV)/.ready-benchconnectors $(VENV)/.ready-pyright: \
		pyproject.toml constraints.txt tools/setup.sh tools/requirements.py
	@VENV=$(VENV) sh tools/setup.sh $(patsubst $(VENV)/.ready-%,%,$@)
