import pytest
import torch
from _large_graphs import load_cora

from torchkiln.core import OptionsError
from torchkiln.graphs.sampling._partition import partition_graph


@pytest.fixture(scope="module")
def cora(tmp_path_factory):
    return load_cora(tmp_path_factory.mktemp("cora"))


def cut_share(parts, edge_index):
    return (parts[edge_index[0]] != parts[edge_index[1]]).float().mean().item()


def cliques(count, size):
    """Return the edges of cliques, one node after the other."""
    one = torch.combinations(torch.arange(size)).t()
    return torch.cat([one + size * i for i in range(count)], dim=1)


@pytest.mark.parametrize("num_parts", [2, 10, 100])
def test_parts_of_cora_are_balanced_and_cut_few_edges(cora, num_parts):
    parts = partition_graph(cora.edge_index, cora.num_nodes, num_parts)
    sizes = parts.bincount(minlength=num_parts)
    mean = cora.num_nodes / num_parts
    assert parts.shape == (cora.num_nodes,)
    assert sizes.sum() == cora.num_nodes
    assert sizes.min() >= int(mean * 0.95)
    assert sizes.max() <= mean * 1.05 + 1
    random = torch.randint(num_parts, (cora.num_nodes,))
    # A tenth for few parts; tiny parts of 27 papers cannot keep all citations inside.
    share = {2: 0.1, 10: 0.15, 100: 0.36}[num_parts]
    assert cut_share(parts, cora.edge_index) < share * cut_share(random, cora.edge_index)


def test_partition_is_a_function_of_the_seed(cora):
    first, again, other = (
        partition_graph(cora.edge_index, cora.num_nodes, 12, seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_global_generators_are_left_alone(cora):
    before = torch.get_rng_state()
    partition_graph(cora.edge_index, cora.num_nodes, 5)
    assert torch.equal(before, torch.get_rng_state())


def test_cliques_are_found():
    shuffled = torch.randperm(4 * 30, generator=torch.Generator().manual_seed(0))
    edge_index = shuffled[cliques(4, 30)]
    parts = partition_graph(edge_index, 120, 4)
    assert cut_share(parts, edge_index) == 0
    assert parts.bincount().tolist() == [30] * 4


def test_grid_is_cut_into_compact_parts():
    side = 40
    numbers = torch.arange(side * side).view(side, side)
    edge_index = torch.cat(
        [
            torch.stack([numbers[1:].flatten(), numbers[:-1].flatten()]),
            torch.stack([numbers[:, 1:].flatten(), numbers[:, :-1].flatten()]),
        ],
        dim=1,
    )
    parts = partition_graph(edge_index, side * side, 4)
    quadrants = 2 * side  # edges between four squares
    assert cut_share(parts, edge_index) * edge_index.shape[1] < 2 * quadrants


@pytest.mark.parametrize(
    "edge_index",
    [
        torch.empty(2, 0, dtype=torch.long),
        torch.stack([torch.zeros(99, dtype=torch.long), torch.arange(1, 100)]),
        torch.zeros(2, 50, dtype=torch.long),
    ],
    ids=["no edges", "star", "loops only"],
)
@pytest.mark.parametrize("num_parts", [1, 7, 100])
def test_degenerate_graphs_have_balanced_parts(edge_index, num_parts):
    sizes = partition_graph(edge_index, 100, num_parts).bincount(minlength=num_parts)
    assert sizes.min() >= 100 // num_parts * 0.9
    assert sizes.max() <= 100 / num_parts * 1.05 + 1


def test_direction_and_repetition_of_edges_do_not_matter_for_validity():
    edge_index = cliques(3, 20)
    doubled = torch.cat([edge_index, edge_index.flip(0), edge_index], dim=1)
    assert cut_share(partition_graph(doubled, 60, 3), edge_index) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_parts": 0}, "num_parts must be from 1 to 4"),
        ({"num_parts": 5}, "got 5"),
        ({"num_nodes": 3, "num_parts": 2}, "nodes from 0 to 3, but there are 3"),
        ({"slack": 2.0}, "got 2.0"),
    ],
)
def test_refused_arguments(arguments, message):
    given = {"edge_index": cliques(1, 4), "num_nodes": 4, "num_parts": 2, **arguments}
    with pytest.raises(OptionsError, match=message):
        partition_graph(**given)


def test_parts_are_a_whole_number():
    with pytest.raises(OptionsError, match=r"num_parts must be a whole number, got 2.5"):
        partition_graph(cliques(4, 5), 20, 2.5)
