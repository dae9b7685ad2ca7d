# Every path is relative: make cannot handle a target with a space in it, and
# this book may live in a folder that has one.

PYTHON ?= python3
UV     := uv==0.13.9
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
JOBS   ?= 2
SEED   ?=
BENCH  := .venv-bench
THREADS ?= 1
PYTEST ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONNOUSERSITE := 1

.DEFAULT_GOAL := help
.PHONY: help setup book test pdf lab readme strip lock bench clean distclean

help:  ## list the commands
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | \
	  awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

book: $(STAMP)  ## run every changed chapter, build the site, print where it is
	@$(PY) -m ci.run_notebooks --jobs $(JOBS) $(if $(SEED),--seed $(SEED))
	@$(PY) -m ci.build_book

test: $(STAMP)  ## lint, unit tests, every chapter, strict build, page checks (SEED=7 for another seed)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pytest $(if $(SEED),--seed $(SEED)) $(PYTEST)

pdf: book  ## make book, then print it into one file: _build/book.pdf (needs Chromium)
	@$(PY) -m ci.print_book

lab: $(STAMP)  ## open the chapters in JupyterLab (prints the address)
	@$(PY) -m jupyterlab --no-browser --ServerApp.root_dir=book

readme: $(STAMP)  ## write the pictures and the table of claims of README.md from the last run
	@$(PY) -m ci.from_run model/causal_attention river book/_static/cover.svg
	@$(PY) -m ci.card book/_static/cover.svg book/_static/card.png
	@$(PY) -m ci.claims_table README.md

strip: $(STAMP)  ## remove stored outputs from the chapters, as they are committed
	@$(PY) -m ci.strip_notebooks

lock: $(STAMP)  ## pin requirements.in in requirements.txt
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 \
	  --custom-compile-command "make lock" requirements.in -o requirements.txt

bench: $(BENCH)/.ready  ## measure the speed beside other libraries, for the page of speeds (THREADS=2 for two threads)
	@$(BENCH)/bin/python -m ci.bench --threads $(THREADS)

# An environment of its own: torch asks for an older mpmath than the tests do.
$(BENCH)/.ready: requirements.txt ci/bench/requirements.txt
	@test -x $(BENCH)/bin/python || "$(PYTHON)" -m venv $(BENCH)
	@echo "Installing what is measured into $(BENCH): minutes, and gigabytes where torch comes with CUDA"
	@grep -E '^(numpy|scipy|numba|llvmlite|pyyaml)==' requirements.txt > $(BENCH)/pinned.txt
	@$(BENCH)/bin/python -m pip install --quiet -r $(BENCH)/pinned.txt -r ci/bench/requirements.txt
	@touch $@

setup: $(STAMP)  ## only create .venv and install the pinned requirements

# uv takes seconds where pip takes minutes; pip is enough if uv has no wheel here.
$(STAMP): requirements.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.12")'
	@test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	@echo "Installing the pinned requirements into $(VENV)"
	@if $(PY) -m pip install --quiet "$(UV)"; \
	then $(PY) -m uv pip install --quiet --compile-bytecode --python $(PY) -r requirements.txt; \
	else echo "uv is not available here: using pip, which takes minutes" && \
	  $(PY) -m pip install --quiet -r requirements.txt; fi
	@touch $(STAMP)

clean:  ## remove everything that was built
	rm -rf _build build .ruff_cache .pytest_cache csa_utils.egg-info
	find csa_utils ci book -name __pycache__ -o -name .ipynb_checkpoints | while IFS= read -r folder; do rm -rf "$$folder"; done

distclean: clean  ## remove .venv and .venv-bench too
	rm -rf $(VENV) $(BENCH)
