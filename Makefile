# Every target works from a fresh checkout: .venv is made first, once.
PYTHON ?= python3
BIN := .venv/bin
PIP_FLAGS := -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test lint types format lock clean

CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("sfr-cl needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.11" % sys.version_info[:2])'

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/installed ## compare strategies on Split-Digits; it writes results/demo
	$(BIN)/sfr-cl demo

test: lint ## lint, then run every test, doctest and README example
	$(BIN)/pytest

lint: .venv/installed ## check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(MAKE) --no-print-directory types

# mypy reads folders, not setuptools' package-dir: links lay the packages out as they install.
types: .venv/installed ## check types
	@rm -rf .venv/layout && mkdir -p .venv/layout/sfr_cl
	@ln -s $(foreach entry,$(wildcard sfr_cl/*) strategies benchmarks,"$(CURDIR)/$(entry)") .venv/layout/sfr_cl
	cd .venv/layout && ../bin/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p sfr_cl

format: .venv/installed ## format the code and apply safe fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

# The packages torch adds for GPUs follow from torch's own pins, so a lock holds on any machine.
lock: ## renew requirements.lock from pyproject.toml
	@$(CHECK_PYTHON)
	@set -e; env=$$(mktemp -d); trap 'rm -rf "$$env"' EXIT; \
	echo "resolving the newest versions ..."; \
	$(PYTHON) -m venv "$$env"; \
	"$$env/bin/pip" install $(PIP_FLAGS) --upgrade torch==2.13.0 torchvision==0.28.0 -e ".[dev]"; \
	{ \
		echo "# The development environment, version by version. Renew with: make lock PYTHON=python3.11"; \
		echo "# (the oldest supported Python, so that every pin installs on all of them)."; \
		"$$env/bin/pip" freeze --all --exclude pip --exclude-editable --disable-pip-version-check \
			| sed -E 's/\+[A-Za-z0-9.]+$$//' | grep -Ev '^(cuda|nvidia|triton)'; \
	} > "$$env/lock"; \
	cp "$$env/lock" requirements.lock

clean: ## remove .venv, builds and caches; results/ stays
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are written last: an interrupted install starts again.
.venv/pins: requirements.lock
	@$(CHECK_PYTHON)
	@echo "installing the pinned packages into .venv (once) ..."
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/pip install $(PIP_FLAGS) -r requirements.lock
	@touch $@

.venv/installed: .venv/pins pyproject.toml
	@$(BIN)/pip install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	@touch $@
