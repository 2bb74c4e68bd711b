# Penstock's commands. `make help` lists them.

PYTHON  ?= python3
UV      ?= uv
WORKERS ?= 4

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq

# More than the cores: many tests wait for processes, leases and sockets.
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS)
COMPILE := $(UV) pip compile --quiet --generate-hashes --no-emit-index-url --no-header --universal \
           --python-version 3.11

.DEFAULT_GOAL := help
.PHONY: help env demo test compiled lint docs nightly bench chaos lock pgbouncer chromium promtool buildah pictures clean

help: ## List these commands.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(VENV)/.stamp-dev ## Create .venv with everything that tests and checks need.

demo: $(VENV)/.stamp-run ## Run the demonstration in demo/, with its desk, until Ctrl-C (DEMO_ARGS=--once: to its end alone).
	$(BIN)/penstock demo --dir demo $(DEMO_ARGS)

# Each worker imports every test, and hundreds of tests start processes: all is compiled once, the tests by pytest itself,
# while mypy has the other core; also where the environment forbids Python to write bytecode.
test: pgbouncer chromium promtool ## Run every check, then the tests.
	@$(MAKE) --no-print-directory -j 2 --output-sync lint compiled
	$(PYTEST)

compiled: $(VENV)/.stamp-dev
	@$(BIN)/python -m compileall -q src tests
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -qq >/dev/null || true  # the run itself tells what is wrong

lint: $(VENV)/.stamp-dev ## Check style, formatting, types and layers.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.stamp-dev ## Write the documentation as a site, to build/site (open index.html; it needs no server).
	$(BIN)/python docs/make_site.py

nightly: $(VENV)/.stamp-dev pgbouncer chromium promtool buildah ## Run the long tests, then make every fault; a target that is missed is an error.
	$(PYTEST) -m nightly --timeout 3600
	$(BIN)/python -m chaos.run --strict

bench: $(VENV)/.stamp-dev ## Measure.
	$(BIN)/python -m benchmarks.run

chaos: $(VENV)/.stamp-dev ## Make every fault, and write what it cost to docs/reliability.md (CHAOS_ARGS=--quick).
	$(BIN)/python -m chaos.run $(CHAOS_ARGS)

lock: ## Resolve the dependencies anew (needs uv; LOCK_ARGS=--upgrade for newer versions).
	$(COMPILE) $(LOCK_ARGS) --extra dev -o requirements-dev.lock pyproject.toml >/dev/null
	$(COMPILE) $(LOCK_ARGS) -c requirements-dev.lock --no-annotate -o requirements.lock pyproject.toml >/dev/null
	printf 'editables\nhatchling\n' | \
	    $(COMPILE) $(LOCK_ARGS) -c requirements-dev.lock --no-annotate -o requirements-build.lock - >/dev/null

# Some tests need a program of the distribution's, and are skipped without. Nobody is asked, and a failure is no failure
# of ours. RUNLEVEL: installed, not started. The program, its package, seconds, and how the tests need it.
define installed
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! PATH="$$PATH:/usr/sbin" command -v $(1) >/dev/null; then \
	    install="timeout $(3) apt-get install -y -qq --no-install-recommends $(2)"; \
	    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; \
	    echo "Installing $(1)"; \
	    $$install >/dev/null 2>&1 || { timeout 120 apt-get update -qq >/dev/null 2>&1; $$install >/dev/null 2>&1; } \
	        || echo "$(1) could not be installed; the tests $(4) it are skipped"; \
	fi
endef

pgbouncer: ## Install pgbouncer for the tests, where that can be done (root, apt-get).
	$(call installed,pgbouncer,pgbouncer,120,behind)

chromium: ## Install Chromium for the tests, where that can be done (root, apt-get).
	$(call installed,chromium,chromium,300,in)

promtool: ## Install promtool, which comes with Prometheus, for the tests, where that can be done (root, apt-get).
	$(call installed,promtool,prometheus,180,with)

buildah: ## Install buildah and debootstrap for the nightly test of the container file, where that can be done (root, apt-get).
	$(call installed,buildah,buildah,180,with)
	$(call installed,debootstrap,debootstrap,60,with)

pictures: $(VENV)/.stamp-dev ## Take the screenshots of the documentation (needs Chromium).
	$(BIN)/python -m tests.browser.pictures --overview docs/pictures

clean: ## Remove .venv, caches and the demonstration.
	rm -rf $(VENV) .venv-bench demo build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks chaos -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The runtime alone. The build packages are there only to install Penstock itself in place.
$(VENV)/.stamp-run: requirements.lock requirements-build.lock pyproject.toml | $(BIN)/python
	@echo "Installing the runtime packages into $(VENV)"
	@$(PIP) install --require-hashes --no-deps -r requirements-build.lock -r requirements.lock
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.stamp-dev: requirements-dev.lock requirements.lock requirements-build.lock pyproject.toml | $(BIN)/python
	@echo "Installing the development packages into $(VENV)"
	@$(PIP) install --require-hashes --no-deps -r requirements-dev.lock
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $(VENV)/.stamp-run $@

# Debian ships `venv` without `ensurepip` unless python3-venv is installed: then borrow the pip of the
# interpreter, and if there is none say what to install.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "Penstock needs Python 3.11 or newer: $(PYTHON) was not found." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Penstock needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -c 'import platform; print(platform.python_version())')." \
	         "Try: make $(or $(MAKECMDGOALS),env) PYTHON=python3.12" >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	    $(PYTHON) -m venv --clear $(VENV); \
	elif $(PYTHON) -m venv --clear --without-pip $(VENV) 2>/dev/null \
	        && $(PYTHON) -m pip --python $@ --quiet install pip 2>/dev/null; then \
	    echo "ensurepip is missing: pip was installed into $(VENV) by $(PYTHON) -m pip"; \
	else \
	    rm -rf $(VENV); \
	    echo "$(PYTHON) cannot create virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; \
	    exit 1; \
	fi
