# Needs python3 (3.11 or newer) with pip, and nothing else; uv is used when it is on PATH.
# ARGS="…" is handed on: make test ARGS="-k lease", make demo ARGS="--seconds 20".

VENV := .venv
PY := $(VENV)/bin/python
TYPED := src $(wildcard tests/typing)
ARGS ?=

# A venv that no longer runs, or that was made in another folder, is made again.
STALE := $(shell grep -qsxF '$(CURDIR)' $(VENV)/.millpond-run && $(PY) -c '' 2>/dev/null || echo FORCE)

# Makes the venv when there is none that works, then installs the given target into it.
# A Python is tried by running it: a version manager may put names on PATH that only fail.
define PREPARE
set -eu
target=$$1
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

quietly() { "$$@" >/dev/null 2>&1; }
have_uv() { quietly uv --version; }
has_pip() { quietly "$$1" -m pip --version; }
can_make_a_venv() { have_uv || quietly "$$1" -c 'import ensurepip' || has_pip "$$1"; }

find_python() {
    python=
    for name in python3.13 python3.12 python3.11 python3; do
        quietly "$$name" -c "$$new_enough" || continue
        python=$$name
        can_make_a_venv "$$name" && return
    done
    if test -z "$$python"; then
        echo "millpond needs Python 3.11 or newer: python3.13, python3.12, python3.11 and python3" >&2
        echo "on this machine are missing, older, or do not start. Install one (Debian, Ubuntu:" >&2
        echo "apt-get install python3 python3-venv) and run make again." >&2
    else
        echo "$$python has neither the module ensurepip nor pip, so it cannot make a venv." >&2
        echo "Install one of them (Debian, Ubuntu: apt-get install python3-venv) and run make again." >&2
    fi
    exit 1
}

make_venv() {
    rm -rf $(VENV)
    if have_uv; then
        uv venv --quiet --python "$$python" $(VENV)
    elif quietly "$$python" -c 'import ensurepip'; then
        "$$python" -m venv $(VENV)
    else
        # Debian splits ensurepip off; the pip outside can put itself into the venv.
        "$$python" -m venv --without-pip $(VENV)
        "$$python" -m pip --python $(PY) install --quiet --disable-pip-version-check --no-input pip
    fi
}

venv_works() {
    ! grep -qsvxF '$(CURDIR)' $(VENV)/.millpond-* &&
        quietly $(PY) -c "$$new_enough" && { have_uv || has_pip $(PY); }
}

install() {
    if have_uv; then
        uv pip install --quiet --python $(PY) --editable "$$1"
    else
        $(PY) -m pip install --quiet --disable-pip-version-check --no-input --editable "$$1"
    fi
}

venv_works || { find_python; make_venv; }
echo "Installing $$target into $(VENV) ($$($(PY) -V))"
install "$$target"
endef

.PHONY: help demo test soak check lint types layers fmt bench venv hooks clean FORCE

help:  ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.millpond-run  ## Install millpond into .venv and watch it work
	@$(VENV)/bin/millpond demo $(ARGS)

test: $(VENV)/.millpond-dev  ## Run the tests, all but the long ones
	@$(PY) -m pytest -n 2 $(ARGS)

soak: $(VENV)/.millpond-dev  ## Run the long tests, alone and without hurry
	@$(PY) -m pytest -m soak --timeout 3600 --hypothesis-profile soak $(ARGS)

check: lint types layers test  ## Everything that must hold before a change lands

lint: $(VENV)/.millpond-dev  ## Check the style and the format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: $(VENV)/.millpond-dev  ## Check the types
	@$(PY) -m mypy --strict $(TYPED)

layers: $(VENV)/.millpond-dev  ## Check who imports whom
	@$(VENV)/bin/lint-imports

fmt: $(VENV)/.millpond-dev  ## Format the code and mend what can be mended safely
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

bench: $(VENV)/.millpond-dev  ## Measure this machine
	@$(PY) -m bench $(ARGS)

venv: $(VENV)/.millpond-dev  ## Make .venv with millpond and the tools to work on it

hooks: $(VENV)/.millpond-dev  ## Check every commit before it is made
	@$(PY) -m pre_commit install

clean:  ## Remove caches and what was built; .venv stays
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.millpond-run $(VENV)/.millpond-dev: export PREPARE_VENV = $(PREPARE)

$(VENV)/.millpond-run: pyproject.toml $(STALE)
	@sh -c "$$PREPARE_VENV" prepare .
	@echo '$(CURDIR)' >$@

# What is installed for work on millpond is enough to run it, too.
$(VENV)/.millpond-dev: pyproject.toml $(STALE)
	@sh -c "$$PREPARE_VENV" prepare '.[dev]'
	@echo '$(CURDIR)' >$(VENV)/.millpond-run
	@echo '$(CURDIR)' >$@

FORCE:
