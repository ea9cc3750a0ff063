"""Layers of PyG on padded batches: a sample here, all of them in `make slow`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch_geometric.nn as pyg
from _layer_parity import TOLERANCE, compare
from _layer_samples import MAX_NODES, SLOTS
from _recipes import BY_NAME, RECIPES

from torchkiln.core import Options
from torchkiln.graphs.layers import make_static, provide_point_layers

ROOT = Path(__file__).parents[3]

# One of each mechanism; the slow suite runs everything.
AS_IS = ["ChebConv", "RGCNConv", "MFConv", "HeteroLinear", "EdgeConv"]
FLAGGED = ["GCNConv", "MedianAggregation", "LSTMAggregation", "InstanceNorm", "global_max_pool"]
STATIC = [
    "GCNConv",
    "PDNConv",
    "GATConv",
    "EGConv",
    "GPSConv",
    "XConv",
    "HANConv",
    "BatchNorm",
    "HeteroBatchNorm",
    "InstanceNorm(track_running_stats)",
    "MemPooling",
    "global_mean_pool",
    "GIN",
]
NATIVE = ["GCNConv"]
MORE_NATIVE = [
    "GATConv",
    "SAGEConv",
    "GINEConv",
    "TransformerConv",
    "PNAConv",
    "RGCNConv",
    "DynamicEdgeConv",
    "ChebConv",
    "BatchNorm",
    "GPSConv",
    "SortAggregation",
    "EGConv",  # maximum and sum in one stack: Inductor gave their memory away too early
]

# The spec's lists of what must be supported (section 11), by the names of this table.
REQUIRED = """
AGNNConv AntiSymmetricConv APPNP ARMAConv CGConv ClusterGCNConv DNAConv DynamicEdgeConv
EdgeConv EGConv FAConv FastRGCNConv FeaStConv FiLMConv GATConv GATv2Conv GatedGraphConv
GCNConv GCN2Conv GENConv GeneralConv GINConv GINEConv GMMConv GraphConv GravNetConv HANConv
HEATConv HeteroConv HGTConv HypergraphConv LEConv LGConv MFConv NNConv PDNConv PNAConv
PointNetConv PointGNNConv PointTransformerConv PPFConv ResGatedGraphConv RGATConv SAGEConv
SGConv SignedConv SimpleConv SSGConv TAGConv TransformerConv WLConvContinuous XConv SplineConv
SumAggregation MeanAggregation MaxAggregation MinAggregation MulAggregation VarAggregation
StdAggregation SoftmaxAggregation PowerMeanAggregation MedianAggregation QuantileAggregation
MultiAggregation AttentionalAggregation DeepSetsAggregation Set2Set DegreeScalerAggregation
SortAggregation LSTMAggregation GRUAggregation MLPAggregation BatchNorm InstanceNorm LayerNorm
GraphNorm GraphSizeNorm PairNorm MeanSubtractionNorm MessageNorm DiffGroupNorm global_add_pool
global_mean_pool global_max_pool max_pool_x avg_pool_x MemPooling knn knn_graph radius
voxel_grid nearest Linear HeteroLinear DenseGCNConv DenseGINConv DenseGraphConv DenseSAGEConv
knn_interpolate GCN GraphSAGE GIN GAT PNA EdgeCNN
TransE ComplEx DistMult RotatE Sequential PositionalEncoding TemporalEncoding
to_hetero(GraphSAGE)
"""


@pytest.fixture(autouse=True, scope="module")
def _point_layers():
    provide_point_layers()


def static(module):
    return make_static(module, num_graphs=SLOTS["graphs"], max_num_nodes=MAX_NODES, verbose=False)


def assert_exact(parity) -> None:
    assert not parity.refused, parity.refused
    assert parity.output <= TOLERANCE
    assert parity.gradient <= TOLERANCE
    assert parity.buffers <= TOLERANCE


@pytest.mark.parametrize("name", AS_IS)
def test_layer_is_static_as_it_is(name):
    assert_exact(compare(BY_NAME[name]))


@pytest.mark.parametrize("name", FLAGGED)
def test_layer_is_static_with_a_flag(name):
    assert_exact(compare(BY_NAME[name], flagged=True))


@pytest.mark.parametrize("name", STATIC)
def test_layer_is_static_after_make_static(name):
    assert_exact(compare(BY_NAME[name], prepare=static))


def test_the_table_knows_every_layer_of_pyg():
    groups = (pyg.conv, pyg.aggr, pyg.norm, pyg.pool, pyg.dense, pyg.unpool)
    known = {recipe.name for recipe in RECIPES}
    bases = {"MessagePassing", "Aggregation"}
    assert not {name for group in groups for name in group.__all__} - known - bases


@pytest.mark.inductor
@pytest.mark.parametrize("name", NATIVE)
def test_native_layer_after_make_static(name, cache_dir):
    options = Options(show_progress=False, cache_dir=cache_dir)
    assert_exact(compare(BY_NAME[name], prepare=static, options=options))


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("name", MORE_NATIVE)
def test_more_native_layers(name, cache_dir):
    options = Options(show_progress=False, cache_dir=cache_dir)
    assert_exact(compare(BY_NAME[name], prepare=static, options=options))


@pytest.mark.slow
def test_the_documented_table_is_current():
    generator = runpy.run_path(str(ROOT / "docs" / "make_layers_table.py"))
    rows = generator["measure"]()
    by_name = {row.recipe.name: row for row in rows}
    refused = [name for name in REQUIRED.split() if by_name[name].status == "no"]
    assert not refused, f"spec section 11 wants these: {refused}"
    written = (ROOT / "docs" / "layers.md").read_text()
    for row in rows:
        assert row.facts() in written, f"run docs/make_layers_table.py: {row.line()}"
