# Every target but `clean` sets up its own .venv first; the stamp says it is up to date.

VENV  := .venv
PEERS := .venv-peers
RUN   := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PEERS_STAMP := $(PEERS)/.installed

# The first interpreter that is there and new enough; `make PYTHON=...` overrides.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$name && break; done)

# Arguments for the command behind a target: make demo ARGS="--resume", make test ARGS="-k floors".
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test sweep check bench gpu golden map clean

help: ## say what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(STAMP) ## train a small GPT on real text, and measure it beside PyTorch
	$(VENV)/bin/tilewright train --demo $(ARGS)

test: $(STAMP) ## what a change must pass; needs neither a GPU nor a network
	$(RUN) -m pytest -n 2 --dist loadfile $(ARGS)

sweep: $(STAMP) ## the rest of the suite: the other cases of the laws that `test` asks
	$(RUN) -m pytest -n 2 --dist loadfile -m "sweep and not slow" $(ARGS)

check: $(STAMP) ## format, lint, types, floors, sizes, map, docs/operators.md
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) scripts/package_map.py --check
	$(RUN) scripts/operators_page.py --check
	$(RUN) -m pytest -q tests/test_floors.py tests/test_style.py

bench: $(STAMP) $(PEERS_STAMP) ## the numbers of the README, measured on this machine
	$(RUN) -m bench.cpu_models --readme README.md $(ARGS)

gpu: $(STAMP) ## what needs a CUDA device; says so where there is none
	$(RUN) scripts/gpu_tests.py $(ARGS)

golden: $(STAMP) ## rewrite the golden texts, show what changed, and fail: a person must look
	-$(RUN) -m pytest -q --rewrite-golden -m "not slow" $(ARGS)
	git --no-pager diff -- tests
	git status --short -- tests
	@echo "Golden texts were rewritten: read the difference above, then commit it like code." && exit 1

map: $(STAMP) ## rewrite the package map of ARCHITECTURE.md, and docs/operators.md
	$(RUN) scripts/package_map.py
	$(RUN) scripts/operators_page.py

clean: ## remove everything that was built
	rm -rf $(VENV) $(PEERS) build dist out src/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and alone, so that a failing download is seen for what it is.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=path"; exit 1; }
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q torch==2.13.0 setuptools -c constraints.txt
	$(RUN) -m pip install -q --no-build-isolation -e '.[dev]' -c constraints.txt
	@touch $@

$(PEERS_STAMP): pyproject.toml constraints-peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -q -r constraints-peers.txt
	@touch $@
