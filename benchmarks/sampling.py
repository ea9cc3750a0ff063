"""How good are the parts of a large graph, and how fast are neighbourhoods sampled?

    python benchmarks/sampling.py [--rounds 5] [--cora DIR]

Three graphs: real Cora (if DIR has its raw files); 200,000 nodes in planted communities; as many
nodes of which few have most of a million edges. For each: seconds and edge cut of a partition,
beside the cut of a random one; sampled nodes and edges a second, and nodes a second in ready
batches of fixed size. Seconds are those of the processor, on one thread, so that other work on the
machine counts less; compiling the kernels is not counted. Prints medians and writes
benchmarks/results/<machine>/sampling.json.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

pin_threads(1)  # before anything loads OpenMP

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from torchkiln.graphs.loaders._neighbor_loader import FixedSizeNeighborLoader
from torchkiln.graphs.sampling._neighbors import NeighborSampler
from torchkiln.graphs.sampling._partition import partition_graph

EDGES_PER_NODE = 5
NUM_FEATURES = 64
NUM_NEIGHBORS = [15, 10]
BATCH_SIZE = 512


def communities(num_nodes: int) -> Data:
    """Return 100 communities that keep nine tenths of their edges."""
    num_edges = EDGES_PER_NODE * num_nodes
    rng = np.random.default_rng(0)
    home = rng.integers(0, 100, num_nodes)
    members = np.argsort(home, kind="stable")
    sources = rng.integers(0, num_nodes, num_edges)
    first, last = (
        np.searchsorted(home[members], home[sources], side=side) for side in ("left", "right")
    )
    inside = members[first + ((last - first) * rng.random(num_edges)).astype(np.int64)]
    outside = rng.integers(0, num_nodes, num_edges)
    targets = np.where(rng.random(num_edges) < 0.9, inside, outside)
    return make_graph(sources, targets, num_nodes)


def hubs(num_nodes: int) -> Data:
    """Return a graph without communities, in which a few nodes have most edges."""
    num_edges = EDGES_PER_NODE * num_nodes
    rng = np.random.default_rng(0)
    sources = rng.integers(0, num_nodes, num_edges)
    targets = (num_nodes * rng.random(num_edges) ** 3).astype(np.int64)
    return make_graph(sources, targets, num_nodes)


def make_graph(sources: np.ndarray, targets: np.ndarray, num_nodes: int) -> Data:
    edge_index = torch.from_numpy(np.stack([sources, targets]))
    return Data(
        x=torch.zeros(num_nodes, NUM_FEATURES),
        edge_index=torch.cat([edge_index, edge_index.flip(0)], dim=1),
    )


def cora(raw: Path) -> Data:
    from torch_geometric.datasets import Planetoid

    with tempfile.TemporaryDirectory() as root:
        shutil.copytree(raw, Path(root) / "Cora" / "raw")
        return Planetoid(root, "Cora")[0]


def median_seconds(run: Callable[[], Any], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def measure_partition(data: Data, num_parts: int, rounds: int) -> dict[str, Any]:
    def cut(parts: torch.Tensor) -> float:
        return (parts[data.edge_index[0]] != parts[data.edge_index[1]]).float().mean().item()

    parts = partition_graph(data.edge_index, data.num_nodes, num_parts)
    seconds = median_seconds(
        lambda: partition_graph(data.edge_index, data.num_nodes, num_parts), rounds
    )
    sizes = parts.bincount(minlength=num_parts)
    random = torch.randint(num_parts, (data.num_nodes,), generator=torch.Generator())
    return {
        "num_parts": num_parts,
        "seconds": seconds,
        "edge_cut": cut(parts),
        "random_edge_cut": cut(random),
        "largest_over_mean": sizes.max().item() * num_parts / data.num_nodes,
    }


def measure_sampling(data: Data, rounds: int) -> dict[str, Any]:
    sampler = NeighborSampler(data, NUM_NEIGHBORS, seed=0)
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    batches = order[: 40 * BATCH_SIZE].split(BATCH_SIZE)
    counts = [0, 0]

    def run() -> None:
        counts[:] = 0, 0
        for batch in batches:
            out = sampler.sample_from_nodes(NodeSamplerInput(None, batch))
            counts[0] += len(out.node)
            counts[1] += len(out.edge)

    loader = FixedSizeNeighborLoader(
        data, NUM_NEIGHBORS, batch_size=BATCH_SIZE, input_nodes=order[: 40 * BATCH_SIZE]
    )
    run()
    seconds = median_seconds(run, rounds)
    ready = median_seconds(lambda: list(loader), rounds)
    return {
        "sampled_nodes_per_s": counts[0] / seconds,
        "sampled_edges_per_s": counts[1] / seconds,
        "loader_seeds_per_s": len(torch.cat(batches)) / ready,
        "loader_nodes_per_s": counts[0] / ready,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cora", type=Path, help="folder with the raw files of Cora")
    parser.add_argument("--nodes", type=int, default=200_000, help="of the generated graphs")
    parser.add_argument("--json", type=Path, default=result_path("sampling"))
    arguments = parse_arguments(parser, rounds=1, nodes=4_000)
    graphs: dict[str, tuple[Callable[[], Data], list[int]]] = {
        "communities": (lambda: communities(arguments.nodes), [100]),
        "hubs": (lambda: hubs(arguments.nodes), [50]),
    }
    if arguments.cora is None:
        print("Cora is left out: name the folder of its raw files with --cora")
    else:
        graphs = {"Cora": (lambda: cora(arguments.cora), [10, 50]), **graphs}
    results: dict[str, Any] = {}
    for name, (make, all_parts) in graphs.items():
        data = make()
        found = {
            "num_nodes": data.num_nodes,
            "num_edges": data.num_edges,
            "partitions": [measure_partition(data, n, arguments.rounds) for n in all_parts],
            **measure_sampling(data, arguments.rounds),
        }
        results[name] = found
        print(f"{name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
        for parts in found["partitions"]:
            print(
                f"  {parts['num_parts']:4d} parts in {parts['seconds']:6.2f} s: "
                f"{parts['edge_cut']:6.1%} of edges cut (random {parts['random_edge_cut']:.1%}), "
                f"largest {parts['largest_over_mean']:.3f} of the mean"
            )
        print(
            f"  sampling {NUM_NEIGHBORS}, {BATCH_SIZE} seeds: "
            f"{found['sampled_nodes_per_s']:,.0f} nodes/s, "
            f"{found['sampled_edges_per_s']:,.0f} edges/s; "
            f"ready batches: {found['loader_nodes_per_s']:,.0f} nodes/s"
        )
    report = {
        "command": f"python benchmarks/sampling.py --rounds {arguments.rounds}",
        **machine(),
        "threads": 1,
        "graphs": results,
    }
    write_result(arguments.json, report)


if __name__ == "__main__":
    main()
