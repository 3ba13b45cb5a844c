# Every target is one call of the harness (or of pytest, ruff, mypy) in .venv, which is set up on first use.
# Relative paths throughout: the folder's own name may have spaces.

SHELL := /bin/sh
.DEFAULT_GOAL := help
# Assigned here, so that the environment does not count.
PYTHON := python3
TESTS :=
MINUTES := 10
SEED := 1
BIN := .venv/bin
STAMP := .venv/.stamp

# What was given on make's command line, as one word for the shell: blanks are escaped by make, newlines here.
define newline


endef
GIVEN = '$(subst $(newline),\n,$(subst ','\'',$(MAKEOVERRIDES)))'

PYTEST = $(BIN)/python -m pytest --durations=10 --durations-min=1
# All but those that measure run three at a time, as many wait, a file's in one process, which shares what its fixtures make. Those of
# ranks have a run of their own, as a process in which a test has started MPI cannot start mpirun.
RANKS := mpi or e2e
LONG := slow or cluster or $(RANKS)

# Each is the command of that name. A line of this file has task, name and purpose, with tabs between.
LIST := harness/cli/commands.tsv
COMMANDS := $(shell cut -f 2 $(LIST))

.PHONY: help $(COMMANDS) test test-all gpu-check soak lint docs lock clean

help: ## Show this list.
	@awk -F '\t' '$$1 != task {print "\n" (task = $$1) ":"} {printf "make %-9s %s\n", $$2, $$3}' $(LIST)
	@echo && echo project:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile
	@echo
	@echo 'make sweep DATASET=mnist NODES=1..2        the first thing to try: a few minutes on 2 cores'
	@echo 'make sweep DATASET=higgs NODES=1..8 DATA_DIR=folder'
	@echo
	@echo 'Where a message says "harness probe --force", that is make probe FORCE=1 or .venv/bin/harness probe --force.'
	@echo
	@test -e $(STAMP) || echo 'The settings are listed here once .venv is there: every other target sets it up.'
	@test ! -e $(STAMP) || $(BIN)/harness make help

$(COMMANDS): $(STAMP)
	@$(BIN)/harness make $@ $(GIVEN)

.DEFAULT:
	@test ! -e $(STAMP) || exec $(BIN)/harness make $@
	@test -e $(STAMP) || { echo >&2 "there is no target '$@': make help lists them"; exit 2; }

test: $(STAMP) ## Run what a change passes first, four minutes on 2 cores, or TESTS=tests/sweep/test_sweep_plan.py.
	@$(BIN)/harness make $@ $(GIVEN)
	@$(if $(value TESTS),$(PYTEST) $(TESTS),$(PYTEST) -n 3 -m 'not ($(LONG))' && $(PYTEST) -m smoke tests/whole/test_whole_jobs.py)

test-all: test ## Run every test but campaigns: also all that start ranks or schedulers or take long.
	@$(PYTEST) -n 3 --dist loadfile -m '(slow or cluster) and not (campaign or $(RANKS))'
	@$(PYTEST) -n 3 --dist loadfile -m '($(RANKS)) and not (campaign or smoke or alone)'
	@$(PYTEST) -m 'alone and not campaign'

gpu-check: ## Check all that needs a GPU, in five minutes; needs no network, so that .venv is not set up for it.
	@$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.gpu.check

soak: $(STAMP) ## Kill, stop, cut off, fill up and take up launches at random: MINUTES=10 SEED=1.
	@$(BIN)/harness make $@ $(GIVEN)
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

lint: $(STAMP) ## Check style, types, floors, dead code and shell scripts.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.house
	@$(BIN)/vulture | { ! grep -v "unused variable '[a-z]"; }
	@$(BIN)/shellcheck .ci/run

docs: $(STAMP) ## Render the documentation into build/docs.
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs
	@echo build/docs/index.html

lock: $(STAMP) ## Choose the newest versions for requirements.lock.
	@$(BIN)/uv pip compile pyproject.toml --extra dev --generate-hashes --no-annotate --upgrade --python-version 3.11 \
		--no-emit-index-url --custom-compile-command 'make lock' --quiet --output-file requirements.lock

clean: ## Remove .venv and caches; results and reports stay.
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find harness tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
		'Python 3.11 or newer is needed: install it and say make PYTHON=python3.11'; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo >&2 \
		'Python has no venv: install it (Debian: apt-get install python3-venv)'; exit 2; }
	@echo >&2 'setting up .venv from requirements.lock: once, a few minutes, about 3 GB'
	@rm -f $(STAMP)
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m harness.comm.native.build
	@touch $(STAMP)
