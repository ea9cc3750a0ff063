# Two commands matter: `make test` and `make bench`. Both install what they need first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# `RUN` is newer than pyproject.toml once everything is installed that runs need, `DEV` once the tools for
# development are, too: a second call installs nothing.
RUN    := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install lint types test slow faults pyg-versions bench fashion cosmic benchmarks clients wheel clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(DEV)  ## Create .venv and install Torchkiln with its development tools (once)

$(RUN): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[qm9]'
	touch $@

# After the other one, never at the same time: both write to the same folder.
$(DEV): pyproject.toml $(RUN)
	$(PIP) -e '.[dev]'
	touch $@

lint: $(DEV)  ## Check formatting and lint rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV)  ## Type-check src (mypy; strict on src/torchkiln)
	$(BIN)/mypy

test: $(DEV) lint types  ## Lint, type-check and run the tests (about 15 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

slow: $(DEV)  ## Run the long test matrices
	$(BIN)/python -m pytest -m slow -n 2 --dist load --timeout 1800 $(PYTEST_ARGS)

faults: $(DEV)  ## Run the whole fault suite: failing system calls, damage, kills, fuzzing (about 11 minutes)
	TORCHKILN_FAULTS=whole $(BIN)/python -m pytest tests/faults -m '' -n 3 --dist worksteal -o tmp_path_retention_policy=failed --timeout 900 $(PYTEST_ARGS)

# The oldest PyG that pyproject.toml allows, and the newest there is. They are installed without what they depend
# on, so torch stays the one that is there, and inside site-packages, where libraries are looked for.
PYG_VERSIONS ?= 2.6.0 2.8.1
PYG_TESTS    := tests/graphs/layers tests/poptorch_geometric

pyg-versions: $(DEV)  ## Run the tests of layers on the oldest and the newest version of PyG
	@site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	for version in $(PYG_VERSIONS); do \
	  folder=$$site/_pyg/$$version; \
	  test -d $$folder/torch_geometric-$$version.dist-info || $(BIN)/python -m pip install --quiet \
	    --disable-pip-version-check --no-deps --upgrade --target $$folder torch_geometric==$$version || exit 1; \
	  echo "torch_geometric $$version"; \
	  PYTHONPATH=$$folder $(BIN)/python -c "import torch_geometric as pyg; assert pyg.__version__ == '$$version'" || exit 1; \
	  PYTHONPATH=$$folder $(BIN)/python -m pytest $(PYG_TESTS) $(PYTEST_ARGS) || exit 1; \
	done

bench: $(RUN)  ## Run the main job: train SchNet on QM9, packed, and report (a few minutes)
	$(BIN)/python bench.py --config configs/qm9_quick.yml $(BENCH_ARGS)

fashion: $(RUN)  ## Train on Fashion-MNIST (from Debian's dataset-fashion-mnist, or FASHION_ARGS="--root FOLDER")
	$(BIN)/python examples/fashion_mnist/pytorch_ipu.py --model sensible $(FASHION_ARGS)

cosmic: $(RUN)  ## Train CosmicTagger on generated events, and draw what it finds
	$(BIN)/python examples/cosmic_tagger.py --config configs/cosmic_quick.yml $(COSMIC_ARGS)

benchmarks: $(DEV)  ## Run every benchmark and write benchmarks/results/<machine>/*.json
	for script in benchmarks/*.py; do case $$script in */_*) ;; *) $(BIN)/python $$script || exit 1;; esac; done

clients: $(RUN)  ## Install packages from PyPI that use Torchkiln, and train with each (long; CLIENTS=NAME for one)
	$(BIN)/python clients/run.py $(CLIENTS)

# Needs nothing but a Python with pip: the wheels are built and tried in environments of their own.
wheel:  ## Build the wheels and test them in a clean environment outside the repository (several minutes)
	$(PYTHON) packaging/make_wheel.py $(WHEEL_ARGS)

clean:  ## Remove build products and caches (keeps .venv)
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
