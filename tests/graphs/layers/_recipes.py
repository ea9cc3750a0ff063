"""How to build and call every layer of PyG: the data behind docs/layers.md.

`call` is what a PyG user writes; `flagged` is the same with sizes or flags that make it static by
itself; `real` picks the rows of the result that belong to real graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from _layer_samples import MAX_NODES, TYPES, D, F, Sample
from torch import Tensor, nn

Build = Callable[[], Any]
Call = Callable[[Any, Sample], Any]


@dataclass(frozen=True)
class Recipe:
    """One row of the table."""

    name: str
    group: str
    build: Build | None = None
    call: Call | None = None
    level: str = "node"
    # The flag that makes the layer static without `make_static`, in words, and how to use it.
    flag: str = ""
    flag_build: Build | None = None
    flag_call: Call | None = None
    # Why there is nothing to run.
    missing: str = ""
    # What makes the result differ by design, or what a reader should know.
    note: str = ""


def mlp(first: int, last: int) -> nn.Module:
    return nn.Sequential(nn.Linear(first, last), nn.Tanh(), nn.Linear(last, last))


def xe(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.edge_index)


def xew(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.edge_index, s.edge_weight)


def xea(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.edge_index, s.edge_attr)


def xet(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.edge_index, s.edge_type)


METADATA = (["a", "b"], [("a", "to", "b"), ("b", "to", "a"), ("a", "to", "a")])


def x_dict(s: Sample) -> dict[str, Tensor]:
    return {"a": s.x, "b": s.x2}


def edge_dict(s: Sample) -> dict[Any, Tensor]:
    first, second, third = METADATA[1]
    return {first: s.edge_index, second: s.edge_index2, third: s.edge_index}


def hetero(layer: Any, s: Sample) -> Any:
    out = layer(x_dict(s), edge_dict(s))
    return torch.cat([out["a"], out["b"]], dim=-1)


def with_degrees(**kwargs: Any) -> dict[str, Any]:
    return {"deg": torch.tensor([1, 3, 6, 4, 2, 1]), **kwargs}


LOOPS = "add_self_loops=False"


def looped(name: str, *args: Any, call: Call = xe, **kwargs: Any) -> Recipe:
    """Return the recipe of a layer that adds self-loops unless told otherwise."""
    kind = getattr(pyg, name)
    return Recipe(
        name,
        "conv",
        lambda: kind(*args, **kwargs),
        call,
        flag=LOOPS,
        flag_build=lambda: kind(*args, add_self_loops=False, **kwargs),
    )


def conv(name: str, *args: Any, call: Call = xe, note: str = "", **kwargs: Any) -> Recipe:
    kind = getattr(pyg, name)
    return Recipe(name, "conv", lambda: kind(*args, **kwargs), call, note=note)


CONVS = [
    conv("SimpleConv", combine_root="sum", call=xew),
    looped("GCNConv", F, F, call=xew),
    conv("ChebConv", F, F, K=3, call=xew),
    conv("SAGEConv", F, F),
    Recipe("CuGraphSAGEConv", "conv", missing="needs pylibcugraphops and a GPU"),
    conv("GraphConv", F, F, call=xew),
    Recipe(
        "GravNetConv",
        "conv",
        lambda: pyg.GravNetConv(F, F, 3, 4, k=3),
        lambda m, s: m(s.x, s.batch),
    ),
    conv("GatedGraphConv", F, 2, call=xew),
    conv("ResGatedGraphConv", F, F, edge_dim=D, call=xea),
    looped("GATConv", F, F, heads=2, edge_dim=D, call=xea),
    Recipe("CuGraphGATConv", "conv", missing="needs pylibcugraphops and a GPU"),
    Recipe("FusedGATConv", "conv", missing="needs dgNN and a GPU"),
    looped("GATv2Conv", F, F, heads=2, edge_dim=D, call=xea),
    conv("TransformerConv", F, F, heads=2, edge_dim=D, call=xea),
    looped("AGNNConv"),
    conv("TAGConv", F, F, call=xew),
    Recipe("GINConv", "conv", lambda: pyg.GINConv(mlp(F, F), train_eps=True), xe),
    Recipe("GINEConv", "conv", lambda: pyg.GINEConv(mlp(F, F), edge_dim=D), xea),
    conv("ARMAConv", F, F, num_stacks=2, num_layers=2, call=xew),
    looped("SGConv", F, F, K=2, call=xew),
    looped("SSGConv", F, F, alpha=0.1, K=2, call=xew),
    looped("APPNP", K=3, alpha=0.1, call=xew),
    conv("MFConv", F, F, max_degree=4),
    conv("RGCNConv", F, F, TYPES, call=xet),
    conv("FastRGCNConv", F, F, TYPES, num_bases=2, call=xet),
    Recipe("CuGraphRGCNConv", "conv", missing="needs pylibcugraphops and a GPU"),
    conv("RGATConv", F, F, TYPES, call=xet),
    Recipe(
        "RGATConv(within-relation)",
        "conv",
        lambda: pyg.RGATConv(F, F, TYPES, attention_mechanism="within-relation"),
        xet,
    ),
    Recipe(
        "SignedConv",
        "conv",
        lambda: pyg.SignedConv(F, F, first_aggr=True),
        lambda m, s: m(s.x, s.edge_index, s.edge_index2),
    ),
    looped("DNAConv", F, heads=2, call=lambda m, s: m(s.history, s.edge_index, s.edge_weight)),
    Recipe(
        "PointNetConv",
        "conv",
        lambda: pyg.PointNetConv(mlp(F + 3, F)),
        lambda m, s: m(s.x, s.pos, s.edge_index),
        flag=LOOPS,
        flag_build=lambda: pyg.PointNetConv(mlp(F + 3, F), add_self_loops=False),
    ),
    Recipe(
        "GMMConv",
        "conv",
        lambda: pyg.GMMConv(F, F, dim=3, kernel_size=2),
        lambda m, s: m(s.x, s.edge_index, s.pseudo),
    ),
    Recipe(
        "SplineConv",
        "conv",
        lambda: pyg.SplineConv(F, F, dim=3, kernel_size=[3, 4, 5], degree=2),
        lambda m, s: m(s.x, s.edge_index, s.pseudo),
    ),
    Recipe("NNConv", "conv", lambda: pyg.NNConv(F, F, mlp(D, F * F)), xea),
    conv("CGConv", F, dim=D, call=xea),
    Recipe(
        "CGConv(batch_norm)",
        "conv",
        lambda: pyg.CGConv(F, dim=D, batch_norm=True),
        xea,
    ),
    Recipe("EdgeConv", "conv", lambda: pyg.EdgeConv(mlp(2 * F, F)), xe),
    Recipe(
        "DynamicEdgeConv",
        "conv",
        lambda: pyg.DynamicEdgeConv(mlp(2 * F, F), k=5),
        lambda m, s: m(s.x, s.batch),
    ),
    Recipe(
        "XConv",
        "conv",
        lambda: pyg.XConv(F, F, dim=3, kernel_size=3, hidden_channels=4),
        lambda m, s: m(s.x, s.pos, s.batch),
    ),
    Recipe(
        "PPFConv",
        "conv",
        lambda: pyg.PPFConv(mlp(F + 4, F)),
        lambda m, s: m(s.x, s.pos, s.normal, s.edge_index),
        flag=LOOPS,
        flag_build=lambda: pyg.PPFConv(mlp(F + 4, F), add_self_loops=False),
    ),
    looped("FeaStConv", F, F, heads=2),
    looped("PointTransformerConv", F, F, call=lambda m, s: m(s.x, s.pos, s.edge_index)),
    Recipe(
        "HypergraphConv",
        "conv",
        lambda: pyg.HypergraphConv(F, F),
        lambda m, s: m(s.x, torch.stack([torch.arange(len(s.batch)), s.batch])),
        flag="num_edges=",
        flag_call=lambda m, s: m(
            s.x, torch.stack([torch.arange(len(s.batch)), s.batch]), num_edges=s.num_graphs
        ),
    ),
    conv("LEConv", F, F, call=xew),
    Recipe(
        "PNAConv",
        "conv",
        lambda: pyg.PNAConv(
            F,
            F,
            edge_dim=D,
            aggregators=["mean", "min", "max", "std"],
            scalers=["identity", "amplification", "attenuation"],
            **with_degrees(),
        ),
        xea,
    ),
    conv("ClusterGCNConv", F, F, diag_lambda=0.5),
    conv("GENConv", F, F, edge_dim=D, norm="layer", call=xea),
    Recipe(
        "GENConv(norm='batch')",
        "conv",
        lambda: pyg.GENConv(F, F, edge_dim=D),
        xea,
    ),
    looped("GCN2Conv", F, alpha=0.1, call=lambda m, s: m(s.x, s.x2, s.edge_index, s.edge_weight)),
    Recipe("PANConv", "conv", missing="needs torch_sparse (sparse matrix products)"),
    Recipe(
        "WLConv",
        "conv",
        pyg.WLConv,
        lambda m, s: m(s.node_type, s.edge_index),
        note="a Python dictionary of colours: run it in a dataset transform",
    ),
    conv("WLConvContinuous", call=xew),
    conv("FiLMConv", F, F),
    Recipe(
        "FiLMConv(num_relations=3)",
        "conv",
        lambda: pyg.FiLMConv(F, F, num_relations=TYPES),
        xet,
    ),
    Recipe(
        "SuperGATConv",
        "conv",
        lambda: pyg.SuperGATConv(F, F, heads=2),
        lambda m, s: m(s.x, s.edge_index, s.edge_index2),
        flag=LOOPS + ", neg_edge_index=",
        flag_build=lambda: pyg.SuperGATConv(F, F, heads=2, add_self_loops=False),
        note="pass neg_edge_index= in training; its own attention loss counts filler edges",
    ),
    looped("FAConv", F, call=lambda m, s: m(s.x, s.x2, s.edge_index)),
    looped("EGConv", F, F, num_heads=2, aggregators=["symnorm", "mean", "max"]),
    looped("PDNConv", F, F, edge_dim=D, hidden_channels=6, call=xea),
    conv("GeneralConv", F, F, D, attention=True, call=xea),
    Recipe("HGTConv", "conv", lambda: pyg.HGTConv(F, F, METADATA, heads=2), hetero),
    Recipe(
        "HEATConv",
        "conv",
        lambda: pyg.HEATConv(F, F, TYPES, TYPES, 4, D, 4, heads=2),
        lambda m, s: m(s.x, s.edge_index, s.node_type, s.edge_type, s.edge_attr),
    ),
    Recipe(
        "HeteroConv",
        "conv",
        lambda: pyg.HeteroConv({edge: pyg.SAGEConv(F, F) for edge in METADATA[1]}),
        hetero,
    ),
    Recipe(
        "HANConv",
        "conv",
        lambda: pyg.HANConv(F, F, METADATA, heads=2),
        hetero,
        note="its attention over meta-paths averages over all nodes",
    ),
    conv("LGConv", call=xew),
    Recipe(
        "PointGNNConv",
        "conv",
        lambda: pyg.PointGNNConv(mlp(F, 3), mlp(F + 3, F), mlp(F, F)),
        lambda m, s: m(s.x, s.pos, s.edge_index),
    ),
    Recipe(
        "GPSConv",
        "conv",
        lambda: pyg.GPSConv(F, pyg.SAGEConv(F, F), heads=2),
        lambda m, s: m(s.x, s.edge_index, s.batch),
    ),
    conv("AntiSymmetricConv", F),
    Recipe("DirGNNConv", "conv", lambda: pyg.DirGNNConv(pyg.SAGEConv(F, F)), xe),
    looped("MixHopConv", F, F, call=xew),
    Recipe(
        "MeshCNNConv",
        "conv",
        lambda: pyg.MeshCNNConv(F, F),
        None,
        missing="its input is a mesh with exactly four neighbours an edge, not a batch of graphs",
    ),
]


def aggregate(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.batch)


def aggregate_sized(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.batch, dim_size=s.num_graphs)


def aggregate_dense(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.batch, dim_size=s.num_graphs, max_num_elements=MAX_NODES)


def aggr(name: str, *args: Any, dense: bool = False, note: str = "", **kwargs: Any) -> Recipe:
    kind = getattr(pyg, name)
    return Recipe(
        name,
        "aggr",
        lambda: kind(*args, **kwargs),
        aggregate,
        "graph",
        flag="dim_size=, max_num_elements=" if dense else "dim_size=",
        flag_call=aggregate_dense if dense else aggregate_sized,
        note=note,
    )


WIDTH = "its result depends on the width of the dense batch: fix max_num_elements="

AGGRS = [
    aggr("MultiAggregation", ["mean", "max", "std"]),
    aggr("SumAggregation"),
    aggr("MeanAggregation"),
    aggr("MaxAggregation"),
    aggr("MinAggregation"),
    aggr("MulAggregation"),
    aggr("VarAggregation"),
    aggr("StdAggregation"),
    aggr("SoftmaxAggregation", learn=True),
    aggr("PowerMeanAggregation", learn=True),
    aggr("MedianAggregation"),
    aggr("QuantileAggregation", q=[0.25, 0.75]),
    aggr("LSTMAggregation", F, F, dense=True, note=WIDTH),
    aggr("GRUAggregation", F, F, dense=True, note=WIDTH),
    aggr("Set2Set", F, processing_steps=2),
    aggr("DegreeScalerAggregation", ["mean"], ["identity", "amplification"], **with_degrees()),
    aggr("SortAggregation", k=3, dense=True),
    aggr("GraphMultisetTransformer", F, k=3, heads=2, dense=True),
    Recipe(
        "AttentionalAggregation",
        "aggr",
        lambda: pyg.AttentionalAggregation(mlp(F, 1), mlp(F, F)),
        aggregate,
        "graph",
        flag="dim_size=",
        flag_call=aggregate_sized,
    ),
    aggr(
        "EquilibriumAggregation",
        F,
        F,
        [4],
        grad_iter=2,
        note="its inner optimiser averages over all graphs, filler included",
    ),
    aggr("MLPAggregation", F, F, max_num_elements=MAX_NODES, num_layers=1),
    Recipe(
        "DeepSetsAggregation",
        "aggr",
        lambda: pyg.DeepSetsAggregation(mlp(F, F), mlp(F, F)),
        aggregate,
        "graph",
        flag="dim_size=",
        flag_call=aggregate_sized,
    ),
    aggr("SetTransformerAggregation", F, heads=2, dense=True),
    aggr("LCMAggregation", F, F, dense=True, note=WIDTH),
    aggr("VariancePreservingAggregation"),
    aggr("PatchTransformerAggregation", F, F, 2, F, dense=True),
]


def normalize(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.batch)


def normalize_sized(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.batch, batch_size=s.num_graphs)


def norm(name: str, *args: Any, label: str = "", **kwargs: Any) -> Recipe:
    kind = getattr(pyg, name)
    return Recipe(
        label or name,
        "norm",
        lambda: kind(*args, **kwargs),
        normalize,
        flag="batch_size=",
        flag_call=normalize_sized,
    )


NORMS = [
    Recipe("BatchNorm", "norm", lambda: pyg.BatchNorm(F), lambda m, s: m(s.x)),
    Recipe(
        "HeteroBatchNorm",
        "norm",
        lambda: pyg.HeteroBatchNorm(F, TYPES),
        lambda m, s: m(s.x, s.node_type),
    ),
    norm("InstanceNorm", F, affine=True),
    Recipe(
        "InstanceNorm(track_running_stats)",
        "norm",
        lambda: pyg.InstanceNorm(F, affine=True, track_running_stats=True),
        normalize,
    ),
    norm("LayerNorm", F),
    Recipe(
        "LayerNorm(mode='node')",
        "norm",
        lambda: pyg.LayerNorm(F, mode="node"),
        lambda m, s: m(s.x),
    ),
    Recipe(
        "HeteroLayerNorm",
        "norm",
        lambda: pyg.HeteroLayerNorm(F, TYPES),
        lambda m, s: m(s.x, s.node_type),
    ),
    norm("GraphNorm", F),
    norm("GraphSizeNorm"),
    norm("PairNorm"),
    Recipe(
        "MeanSubtractionNorm",
        "norm",
        pyg.MeanSubtractionNorm,
        normalize,
        flag="dim_size=",
        flag_call=lambda m, s: m(s.x, s.batch, dim_size=s.num_graphs),
    ),
    Recipe(
        "MessageNorm",
        "norm",
        lambda: pyg.MessageNorm(learn_scale=True),
        lambda m, s: m(s.x, s.x2),
    ),
    Recipe("DiffGroupNorm", "norm", lambda: pyg.DiffGroupNorm(F, 2), lambda m, s: m(s.x)),
]


class Function(nn.Module):
    """A function of PyG as a layer, behind a linear map so that it has a gradient to compare."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(F, F)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.lin, *args, **kwargs)


def function(name: str, call: Call, **kwargs: Any) -> Recipe:
    target = getattr(pyg, name)
    return Recipe(
        name,
        kwargs.pop("group", "pool"),
        lambda: Function(lambda lin, s, call: call(lambda *a, **k: target(*a, **k), lin, s)),
        lambda m, s: m(s, call),
        **kwargs,
    )


def global_pool(name: str) -> Recipe:
    def sized(m: Any, s: Sample) -> Any:
        return m(s, lambda pool, lin, s: pool(lin(s.x), s.batch, size=s.num_graphs))

    return function(
        name,
        lambda pool, lin, s: pool(lin(s.x), s.batch),
        level="graph",
        flag="size=",
        flag_call=sized,
    )


def cluster_pool(name: str) -> Recipe:
    def sized(m: Any, s: Sample) -> Any:
        def call(pool: Any, lin: Any, s: Sample) -> Any:
            out, _ = pool(s.cluster, lin(s.x), s.batch, batch_size=s.num_graphs, size=MAX_NODES)
            return out

        return m(s, call)

    return function(
        name,
        lambda pool, lin, s: pool(s.cluster, lin(s.x), s.batch)[0],
        level="cluster",
        flag="batch_size=, size=",
        flag_call=sized,
        note="without sizes the number of clusters depends on data",
    )


def selected(layer: Any, s: Sample) -> Any:
    return layer(s.x, s.edge_index, batch=s.batch)[0]


def edges_as_rows(layer_or_function: Callable[..., Tensor]) -> Call:
    """Turn neighbour pairs into something that can be compared: sums of neighbours' rows."""

    def call(function: Any, lin: Any, s: Sample) -> Tensor:
        source, target = layer_or_function(function, s)
        real = (source >= 0).to(s.x.dtype)[:, None]
        rows = lin(s.x)[source.clamp(min=0)] * real
        return torch.zeros_like(s.x).index_add(0, target.clamp(min=0), rows)

    return call


KEEPS = "keeps a share of each graph's nodes: their number depends on data"

POOLS = [
    global_pool("global_add_pool"),
    global_pool("global_mean_pool"),
    global_pool("global_max_pool"),
    *(
        Recipe(name, "pool", missing="an index for search on the host (faiss), not a layer")
        for name in (
            "KNNIndex",
            "L2KNNIndex",
            "MIPSKNNIndex",
            "ApproxL2KNNIndex",
            "ApproxMIPSKNNIndex",
        )
    ),
    Recipe("TopKPooling", "pool", lambda: pyg.TopKPooling(F), selected, "pooled", note=KEEPS),
    Recipe("SAGPooling", "pool", lambda: pyg.SAGPooling(F), selected, "pooled", note=KEEPS),
    Recipe(
        "EdgePooling",
        "pool",
        lambda: pyg.EdgePooling(F),
        lambda m, s: m(s.x, s.edge_index, s.batch)[0],
        "pooled",
        note="a greedy loop on the host over the edges' scores",
    ),
    Recipe(
        "ClusterPooling",
        "pool",
        lambda: pyg.ClusterPooling(F),
        lambda m, s: m(s.x, s.edge_index, s.batch)[0],
        "pooled",
        note="connected components are found on the host (SciPy)",
    ),
    Recipe("ASAPooling", "pool", lambda: pyg.ASAPooling(F), selected, "pooled", note=KEEPS),
    Recipe("PANPooling", "pool", missing="needs torch_sparse (its input comes from PANConv)"),
    Recipe(
        "MemPooling",
        "pool",
        lambda: pyg.MemPooling(F, F, heads=2, num_clusters=3),
        lambda m, s: m(s.x, s.batch)[0],
        "graph",
        flag="batch_size=, max_num_nodes=",
        flag_call=lambda m, s: m(s.x, s.batch, batch_size=s.num_graphs, max_num_nodes=MAX_NODES)[0],
    ),
    Recipe("max_pool", "pool", missing="returns a Data object whose size depends on the clusters"),
    Recipe("avg_pool", "pool", missing="returns a Data object whose size depends on the clusters"),
    cluster_pool("max_pool_x"),
    Recipe(
        "max_pool_neighbor_x", "pool", missing="changes a Data object; use SimpleConv(aggr='max')"
    ),
    cluster_pool("avg_pool_x"),
    Recipe(
        "avg_pool_neighbor_x", "pool", missing="changes a Data object; use SimpleConv(aggr='mean')"
    ),
    Recipe("graclus", "pool", missing="needs pyg-lib; a greedy matching on the host"),
    function(
        "voxel_grid",
        lambda grid, lin, s: grid(s.pos, 1.0, s.batch),
        flag="start=, end=",
        flag_call=lambda m, s: m(
            s, lambda grid, lin, s: grid(s.pos, 1.0, s.batch, start=-5.0, end=5.0)
        ),
        note="without them the grid spans filler, too",
    ),
    Recipe("fps", "pool", missing="use torchkiln.ops.farthest_points with a list of bounds"),
    function(
        "knn",
        edges_as_rows(lambda knn, s: knn(s.pos, s.pos, 5, s.batch, s.batch).flip(0)),
    ),
    function("knn_graph", edges_as_rows(lambda graph, s: graph(s.pos, 3, s.batch))),
    Recipe("approx_knn", "pool", missing="an approximate search on the host (pynndescent)"),
    Recipe("approx_knn_graph", "pool", missing="an approximate search on the host (pynndescent)"),
    function(
        "radius",
        edges_as_rows(lambda radius, s: radius(s.pos, s.pos, 1.5, s.batch, s.batch).flip(0)),
    ),
    function("radius_graph", edges_as_rows(lambda graph, s: graph(s.pos, 1.5, s.batch))),
    function(
        "nearest",
        lambda nearest, lin, s: lin(s.x)[nearest(s.pos, s.pos + 0.1, s.batch, s.batch)],
    ),
]


def dense_inputs(s: Sample) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, adjacency and mask of the batch in dense form, by fixed-size operations."""
    from torch_geometric.utils import to_dense_batch

    x, mask = to_dense_batch(s.x, s.batch, batch_size=s.num_graphs, max_num_nodes=MAX_NODES)
    begin = s.ptr[:-1][s.batch]
    source, target = s.edge_index
    graph = s.batch[source]
    adj = x.new_zeros(s.num_graphs, MAX_NODES, MAX_NODES).index_put(
        (graph, source - begin[source], target - begin[target]), s.edge_weight, accumulate=True
    )
    return x, adj, mask


def dense(name: str, build: Build) -> Recipe:
    return Recipe(name, "dense", build, lambda m, s: m(*dense_inputs(s)), "graph")


def dense_pool(name: str) -> Recipe:
    def call(pool: Any, lin: Any, s: Sample) -> Any:
        x, adj, mask = dense_inputs(s)
        return pool(x, adj, lin(x)[..., :3], mask)[0]

    return function(name, call, group="dense", level="graph")


DENSE = [
    Recipe("Linear", "dense", lambda: pyg.Linear(F, F), lambda m, s: m(s.x)),
    Recipe("Linear(-1)", "dense", lambda: pyg.Linear(-1, F), lambda m, s: m(s.x)),
    Recipe(
        "HeteroLinear",
        "dense",
        lambda: pyg.HeteroLinear(F, F, TYPES),
        lambda m, s: m(s.x, s.node_type),
    ),
    Recipe(
        "HeteroDictLinear",
        "dense",
        lambda: pyg.HeteroDictLinear(F, F, types=["a", "b"]),
        lambda m, s: torch.cat(list(m(x_dict(s)).values()), dim=-1),
    ),
    dense("DenseGCNConv", lambda: pyg.DenseGCNConv(F, F)),
    dense("DenseGINConv", lambda: pyg.DenseGINConv(mlp(F, F))),
    dense("DenseGraphConv", lambda: pyg.DenseGraphConv(F, F)),
    dense("DenseSAGEConv", lambda: pyg.DenseSAGEConv(F, F)),
    dense("DenseGATConv", lambda: pyg.DenseGATConv(F, F, heads=2)),
    dense_pool("dense_diff_pool"),
    dense_pool("dense_mincut_pool"),
    Recipe(
        "DMoNPooling",
        "dense",
        lambda: pyg.DMoNPooling(F, 3),
        lambda m, s: m(*dense_inputs(s))[1],
        "graph",
    ),
]

UNPOOLS = [
    function(
        "knn_interpolate",
        lambda interpolate, lin, s: interpolate(
            lin(s.x), s.pos, s.pos + 0.1, s.batch, s.batch, k=5
        ),
        group="unpool",
    ),
]


def model(name: str, build: Build, call: Call = xe, **kwargs: Any) -> Recipe:
    return Recipe(name, "model", build, call, **kwargs)


MODELS = [
    model("GCN", lambda: pyg.GCN(F, F, 2)),
    model("GraphSAGE", lambda: pyg.GraphSAGE(F, F, 2, norm="layer_norm")),
    model("GIN", lambda: pyg.GIN(F, F, 2, norm="batch")),
    model("GAT", lambda: pyg.GAT(F, F, 2, v2=True)),
    model(
        "PNA",
        lambda: pyg.PNA(
            F, F, 2, aggregators=["mean", "max"], scalers=["identity"], **with_degrees()
        ),
    ),
    model("EdgeCNN", lambda: pyg.EdgeCNN(F, F, 2)),
]


def scored(layer: Any, s: Sample) -> Any:
    """Score the edges as triples of a knowledge graph with at most 30 nodes."""
    return layer(s.edge_index[0], s.edge_type, s.edge_index[1])


def embedding(name: str) -> Recipe:
    kind = getattr(pyg, name)
    return Recipe(name, "other", lambda: kind(30, TYPES, F), scored, "edge")


def hetero_net() -> Any:
    net = pyg.GraphSAGE((-1, -1), F, 2)
    return pyg.to_hetero(net, METADATA)


OTHERS = [
    Recipe(
        "PositionalEncoding",
        "other",
        lambda: pyg.PositionalEncoding(F),
        lambda m, s: m(s.pos[:, 0]),
    ),
    Recipe(
        "TemporalEncoding", "other", lambda: pyg.TemporalEncoding(F), lambda m, s: m(s.pos[:, 0])
    ),
    Recipe(
        "Sequential",
        "other",
        lambda: pyg.Sequential("x, e", [(pyg.SAGEConv(F, F), "x, e -> x"), nn.ReLU()]),
        xe,
    ),
    Recipe("to_hetero(GraphSAGE)", "other", hetero_net, hetero),
    *(embedding(name) for name in ("TransE", "ComplEx", "DistMult", "RotatE")),
]

RECIPES = [*CONVS, *AGGRS, *NORMS, *POOLS, *DENSE, *UNPOOLS, *MODELS, *OTHERS]
BY_NAME = {recipe.name: recipe for recipe in RECIPES}
