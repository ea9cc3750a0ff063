import re

import numpy as np
import pytest
import torch
from _tiny_files import QUICK, write_molecules

from torchkiln import Options
from torchkiln.apps.schnet._arguments import read_settings
from torchkiln.apps.schnet._experiment import checkpoint_plan, load_dataset, make_job
from torchkiln.apps.schnet._program_options import training_options
from torchkiln.apps.schnet._trained import UnknownElement, choose_options, load_trained
from torchkiln.apps.schnet._trainer import train
from torchkiln.checkpoints import CheckpointStore
from torchkiln.core import Backend, CheckpointError
from torchkiln.datasets import Molecules, TargetTransform, directed_edges, molecule_store
from torchkiln.models import SchNet
from torchkiln.report import QuietMonitor

SIZES = {
    "hidden_channels": 16,
    "num_filters": 12,
    "num_interactions": 2,
    "num_gaussians": 10,
    "cutoff": 4.0,
}
TRANSFORM = TargetTransform("U0", "eV", {1: -13.6, 6: -1030.0, 8: -2040.0}, True, -3.0, 0.5)
# Float32 sums in another order, of values around 1 times std and atoms.
TOLERANCE_EV = 1e-4


def random_molecules(count=30, elements=(1, 6, 8)):
    """The first is a single atom, the second a pair too far apart to interact."""
    random = np.random.default_rng(0)
    sizes = np.concatenate([[1, 2], random.integers(2, 12, count - 2)])
    atoms = int(sizes.sum())
    pos = random.normal(size=(atoms, 3)) * 1.5
    pos[2] += 50.0
    return Molecules(
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        z=random.choice(elements, atoms),
        pos=pos,
        names=[f"m{i}" for i in range(count)],
        source="test.xyz",
    )


def save(directory, *, average=True, model=None, dataset=None, **facts):
    torch.manual_seed(0)
    net = SchNet(**SIZES, **(model or {}))
    tensors = {f"model/{name}": torch.zeros_like(t) for name, t in net.state_dict().items()}
    tensors |= {f"average/{name}": t for name, t in net.state_dict().items()}
    if not average:
        tensors = {f"model/{name}": t for name, t in net.state_dict().items()}
    CheckpointStore(directory).save(
        tensors,
        {
            "model": {**SIZES, **(model or {})},
            "transform": TRANSFORM.to_dict(),
            "dataset": {"k": 3, "cutoff_angstrom": 4.0, "elements": [1, 6, 8], **(dataset or {})},
            **facts,
        },
    )
    return net


def one_by_one(net, molecules):
    """The plain way: one molecule at a time, an edge for each message."""
    computed = []
    for graph in molecule_store(molecules, k=3, cutoff_angstrom=4.0):
        edges, weights = directed_edges(graph.edge_index, graph.edge_weight, graph.edge_ways)
        batch = torch.zeros(len(graph.z), dtype=torch.long)
        with torch.no_grad():
            computed.append(float(net(graph.z, edges, weights, batch, num_graphs=1)))
    return TRANSFORM.restore(np.array(computed), molecules.z, molecules.offsets)


@pytest.mark.parametrize("backend", [None, "capture"])
@pytest.mark.parametrize("filters", ["exact", "table"])
def test_packed_predictions_are_those_of_the_plain_model(tmp_path, backend, filters):
    net = save(tmp_path / "net", model={"filter": filters})
    molecules = random_molecules()
    options = None if backend is None else Options(backend=backend)
    got = load_trained(tmp_path / "net").predict(molecules, options=options)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, one_by_one(net, molecules), rtol=0, atol=TOLERANCE_EV)


@pytest.mark.slow
@pytest.mark.inductor
def test_native_predictions_are_those_of_the_plain_model(tmp_path, cache_dir):
    net = save(tmp_path / "net")
    molecules = random_molecules()
    options = Options(backend="inductor", cache_dir=cache_dir, show_progress=False)
    got = load_trained(tmp_path / "net").predict(molecules, options=options)
    np.testing.assert_allclose(got, one_by_one(net, molecules), rtol=0, atol=TOLERANCE_EV)


def test_many_batches_keep_the_order_of_the_molecules(tmp_path, monkeypatch):
    net = save(tmp_path / "net")
    molecules = random_molecules()
    monkeypatch.setattr("torchkiln.apps.schnet._trained._ATOMS_PER_BATCH", 20)
    got = load_trained(tmp_path / "net").predict(molecules)
    np.testing.assert_allclose(got, one_by_one(net, molecules), rtol=0, atol=TOLERANCE_EV)


@pytest.mark.parametrize("index", [0, 1, 2], ids=["an atom", "no pairs", "a molecule"])
def test_a_single_molecule_is_predicted(tmp_path, index):
    net = save(tmp_path / "net")
    molecules = random_molecules().take([index])
    got = load_trained(tmp_path / "net").predict(molecules)
    np.testing.assert_allclose(got, one_by_one(net, molecules), rtol=0, atol=TOLERANCE_EV)


def test_weights_without_an_average_are_used_as_they_are(tmp_path):
    net = save(tmp_path / "net", average=False)
    trained = load_trained(tmp_path / "net")
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(trained.model.state_dict()[name], tensor, rtol=0, atol=0)
    assert not trained.model.training


def test_what_the_benchmark_saved_predicts_what_it_reported(tmp_path):
    settings = read_settings(
        [
            *[*QUICK, "--root", str(write_molecules(tmp_path)), "--num_epochs", "1"],
            *["--checkpoint", "true", "--checkpoint_dir", str(tmp_path), "--model_name", "saved"],
            *["--bench.ema_decay", "0.9"],
        ]
    )
    dataset = load_dataset(settings)
    job = make_job(settings, dataset, training_options(settings), checkpoint_plan(settings))
    reported = train(job, QuietMonitor()).test.predicted
    molecules = dataset.molecules.take(dataset.splits["test"])
    got = load_trained(tmp_path / "saved").predict(molecules)
    np.testing.assert_allclose(got, reported, rtol=0, atol=TOLERANCE_EV)


def test_only_very_many_molecules_are_worth_compiling(monkeypatch):
    assert choose_options(130_831).backend is Backend.EAGER
    assert choose_options(1_000_000).backend is Backend.INDUCTOR
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    assert choose_options(1).backend is Backend.CAPTURE


def test_unknown_elements_are_named_with_what_is_known(tmp_path):
    save(tmp_path / "net")
    molecules = random_molecules(elements=(1, 6, 17))
    with pytest.raises(
        UnknownElement, match=r"molecule \d+ \(m\d+\) of test\.xyz contains Cl; .* H, C, O and"
    ):
        load_trained(tmp_path / "net").predict(molecules)


def test_a_missing_model_lists_those_that_exist(tmp_path):
    with pytest.raises(CheckpointError, match=r"'net' in .*: there is none at all"):
        load_trained(tmp_path / "net")
    save(tmp_path / "water")
    save(tmp_path / "gap")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="there are gap, water; train one"):
        load_trained(tmp_path / "net")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"model": {"hidden_channels": 8}}, "size mismatch"),
        ({"model": {"layers": 3}}, "unexpected keyword argument 'layers'"),
        ({"transform": {}}, "KeyError: 'references'"),
        ({"dataset": {"k": 3}}, "cutoff_angstrom, elements"),
    ],
)
def test_checkpoints_of_something_else_are_refused(tmp_path, facts, reason):
    save(tmp_path / "net")
    store = CheckpointStore(tmp_path / "net")
    tensors, saved = store.load()
    model = {**SIZES, **facts.get("model", {})}
    store.save(tensors, {**saved, **facts, "model": model})
    with pytest.raises(CheckpointError, match=re.escape(reason)):
        load_trained(tmp_path / "net")


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_channels": 10**7},
        {"num_interactions": 10**9},
        {"num_gaussians": 10**9},
        {"hidden_channels": "many"},
        {"num_interactions": None},
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_memory_is_made(tmp_path, sizes):
    path = tmp_path / "model"
    save(path)
    tensors, facts = CheckpointStore(path).load()
    facts["model"] |= sizes
    CheckpointStore(path).save(tensors, facts)
    with pytest.raises(CheckpointError, match="holds no trained SchNet"):
        load_trained(path)


@pytest.mark.parametrize("facts", [{}, {"model": 3}, {"model": [], "transform": 3}])
def test_checkpoints_of_other_things_are_named(tmp_path, facts):
    CheckpointStore(tmp_path / "model").save({"model/a": torch.zeros(1)}, facts)
    with pytest.raises(CheckpointError, match="model holds no trained SchNet"):
        load_trained(tmp_path / "model")
