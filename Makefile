PYTHON ?= python3
BIN := .venv/bin

.PHONY: help env check test docs dist prove bench bench-quick demo fmt lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: .venv/.installed ## Set up .venv from the lock (PYTHON=python3.12 picks another interpreter)
	@:

check: env ## The quick half of test: lint, types, import contracts, words
	@$(BIN)/python -m tools.checks lint types contracts words

test: env ## Everything CI runs: lint, types, import contracts, words, all behavior
	@$(BIN)/python -m tools.checks

docs: env ## Build the documentation site to build/docs (open build/docs/index.html)
	@$(BIN)/python -m tools.docs_site

dist: env ## Build wheel and sdist to dist, and check them
	@$(BIN)/python -m tools.release

prove: env ## Measure the long figures and write them to docs/figures
	@$(BIN)/python -m tools.prove

bench: env ## Compare with other job systems and write docs/benchmarks.md (OPTIONS="--budget 30" limits the minutes)
	@$(BIN)/python -m benchmarks.peers $(OPTIONS)

bench-quick: env ## The same with little work, in about five minutes
	@$(BIN)/python -m benchmarks.peers --quick $(OPTIONS)

demo: env ## Watch TaskHarbor do its main job
	@$(BIN)/python -m examples.demo

screenshots: env ## Make the pictures of the dashboard in docs/images from a seeded store
	@$(BIN)/python -m tools.screenshots

fmt: env ## Fix what can be fixed: formatting, import order, simple lint
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

# A lock of uv's own would record where packages were found. The exported one records
# only names, versions and hashes, so it installs from any index, with pip and uv alike.
lock: ## Resolve requirements-dev.lock anew (needs uv and a package index)
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	cp -R pyproject.toml README.md LICENSE src "$$tmp" && \
	uv lock --quiet --project "$$tmp" && \
	uv export --quiet --project "$$tmp" --frozen --no-emit-project --no-header \
		--format requirements.txt --output-file "$$tmp/lock" && \
	cp "$$tmp/lock" requirements-dev.lock

clean: ## Remove the environment and everything generated
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/.installed: requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@rm -rf .venv
	@if command -v uv >/dev/null; then \
		uv venv --quiet --python "$$(command -v $(PYTHON))" .venv && \
		uv pip install --quiet --python .venv --require-hashes -r requirements-dev.lock && \
		uv pip install --quiet --python .venv --no-deps --no-build-isolation --editable .; \
	else \
		$(PYTHON) -m venv .venv && \
		$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock && \
		$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	fi
	@touch $@
