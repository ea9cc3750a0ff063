"""docs/poptorch_geometric.md lists every public name of the package, and nothing else."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import poptorch_geometric
from poptorch_geometric import FixedSizeOptions, TrainingStepper

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "poptorch_geometric.md"
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(poptorch_geometric.__path__, "poptorch_geometric.")
    if not info.name.rpartition(".")[2].startswith("_")
)
# Where the original has its names.
ORIGINAL = {
    "": "FixedSizeDataLoader FixedSizeOptions FixedSizeStrategy OverSizeStrategy TrainingStepper "
    "set_aggregation_dim_size make_exclude_keys PyGArgsParser registerCustomArgParsers __version__",
    ".dataloader": "DataLoader FixedSizeDataLoader FixedSizeStrategy OverSizeStrategy",
    ".fixed_size_options": "FixedSizeOptions",
    ".cluster_loader": "FixedSizeClusterLoader",
    ".neighbor_loader": "FixedSizeNeighborLoader PyGFixedSizeNeighborLoader",
    ".collate": "FixedSizeCollater CombinedBatchingCollater make_exclude_keys",
    ".pyg_collate": "Collater",
    ".pyg_dataloader": "DataLoader FixedSizeDataLoader FixedSizeStrategy OverSizeStrategy",
    ".pyg_cluster_loader": "FixedSizeClusterLoader",
    ".stream_packing_sampler": "StreamPackingSampler",
    ".masker": "Layer Masker NoMasker LayerMasker PreLayerMasker",
    ".types": "PyGArgsParser registerCustomArgParsers",
    ".common": "DataBatch HeteroDataBatch call_once",
    ".ops": "Aggregation ClusterGCNConv HeteroLinear InstanceNorm MFConv knn knn_graph "
    "knn_interpolate radius radius_graph",
    ".ops.knn": "knn",
    ".ops.knn_graph": "knn_graph",
    ".ops.knn_interpolate": "knn_interpolate",
    ".ops.radius": "radius radius_graph",
    ".override": "substitutions",
}


def read_tables():
    tables, heading = {}, ""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip()
        row = re.match(r"\| `([^`]+)` \| ([a-z ]+) \|", line)
        if row:
            names = tables.setdefault(heading, {})
            assert row[1] not in names, f"{row[1]} is listed twice under {heading}"
            names[row[1]] = row[2].strip()
    return tables


TABLES = read_tables()


@pytest.mark.parametrize("module", ["poptorch_geometric", *MODULES])
def test_every_public_name_is_listed_and_nothing_else(module):
    names = set(ORIGINAL[module.removeprefix("poptorch_geometric")].split())
    assert set(TABLES[module]) == names
    assert set(getattr(importlib.import_module(module), "__all__", names)) == names


@pytest.mark.parametrize("module", ["poptorch_geometric", *MODULES])
def test_every_listed_name_exists_and_says_what_it_is(module):
    for name in TABLES[module]:
        value = getattr(importlib.import_module(module), name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{module}.{name}"


@pytest.mark.parametrize("kind", [FixedSizeOptions, TrainingStepper])
def test_members_are_listed(kind):
    members = {name for name in vars(kind) if not name.startswith("_")}
    assert set(TABLES[kind.__name__]) == members


def test_states_are_the_two_that_are_explained():
    assert {state for names in TABLES.values() for state in names.values()} <= {"works", "differs"}


def test_names_are_also_where_the_original_has_them():
    top = poptorch_geometric
    assert top.FixedSizeDataLoader is top.dataloader.FixedSizeDataLoader
    assert top.FixedSizeOptions is top.fixed_size_options.FixedSizeOptions
    assert top.PyGArgsParser is top.types.PyGArgsParser
    assert top.make_exclude_keys is top.collate.make_exclude_keys
    assert top.dataloader.OverSizeStrategy is top.pyg_dataloader.OverSizeStrategy
    assert not hasattr(top, "DataLoader")
