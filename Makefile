# Two commands matter: `make test` and `make bench`. Both set everything up first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install lint types test slow faults pyg-versions bench fashion cosmic benchmarks wheel clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(STAMP)  ## Create .venv and install Torchkiln with its development tools (once)

# The stamp is newer than pyproject.toml after an install, so a second call does nothing.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

lint: $(STAMP)  ## Check formatting and lint rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)  ## Type-check src (mypy; strict on src/torchkiln)
	$(BIN)/mypy

test: $(STAMP) lint types  ## Lint, type-check and run the tests (7 to 13 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

slow: $(STAMP)  ## Run the long test matrices
	$(BIN)/python -m pytest -m slow -n 2 --dist load --timeout 1800 $(PYTEST_ARGS)

faults: $(STAMP)  ## Run the whole fault suite: failing system calls, damage, kills, fuzzing (about 11 minutes)
	TORCHKILN_FAULTS=whole $(BIN)/python -m pytest tests/faults -m '' -n 3 --dist worksteal -o tmp_path_retention_policy=failed --timeout 900 $(PYTEST_ARGS)

# The oldest PyG that pyproject.toml allows, and the newest there is. They are installed without what they depend
# on, so torch stays the one that is there, and inside site-packages, where libraries are looked for.
PYG_VERSIONS ?= 2.6.0 2.8.1
PYG_TESTS    := tests/graphs/layers tests/poptorch_geometric

pyg-versions: $(STAMP)  ## Run the tests of layers on the oldest and the newest version of PyG
	@site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	for version in $(PYG_VERSIONS); do \
	  folder=$$site/_pyg/$$version; \
	  test -d $$folder/torch_geometric-$$version.dist-info || $(BIN)/python -m pip install --quiet \
	    --disable-pip-version-check --no-deps --upgrade --target $$folder torch_geometric==$$version || exit 1; \
	  echo "torch_geometric $$version"; \
	  PYTHONPATH=$$folder $(BIN)/python -c "import torch_geometric as pyg; assert pyg.__version__ == '$$version'" || exit 1; \
	  PYTHONPATH=$$folder $(BIN)/python -m pytest $(PYG_TESTS) $(PYTEST_ARGS) || exit 1; \
	done

bench: $(STAMP)  ## Run the main job: train SchNet on QM9, packed, and report (a few minutes)
	$(BIN)/python bench.py --config configs/qm9_quick.yml $(BENCH_ARGS)

fashion: $(STAMP)  ## Train on Fashion-MNIST (from Debian's dataset-fashion-mnist, or FASHION_ARGS="--root FOLDER")
	$(BIN)/python examples/fashion_mnist/pytorch_ipu.py --model sensible $(FASHION_ARGS)

cosmic: $(STAMP)  ## Train CosmicTagger on generated events, and draw what it finds
	$(BIN)/python examples/cosmic_tagger.py --config configs/cosmic_quick.yml $(COSMIC_ARGS)

benchmarks: $(STAMP)  ## Run every benchmark and write benchmarks/results/<machine>/*.json
	for script in benchmarks/*.py; do case $$script in */_*) ;; *) $(BIN)/python $$script || exit 1;; esac; done

# Needs nothing but a Python with pip: the wheels are built and tried in environments of their own.
wheel:  ## Build the wheels and test them in a clean environment outside the repository (several minutes)
	$(PYTHON) packaging/make_wheel.py $(WHEEL_ARGS)

clean:  ## Remove build products and caches (keeps .venv)
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
