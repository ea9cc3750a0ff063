"""CosmicTagger's trainer with exactly the edits of the seed document runs, in both modes alike."""

import copy
import enum

import pytest
import torch
from _seed_trainer import Edits, loss_of_planes, settings, step

import poptorch
from torchkiln.apps.cosmic import ComputeMode, OptimizerKind
from torchkiln.models import UResNet2D, UResNetSettings

SMALL = UResNetSettings(
    n_initial_filters=2,
    network_depth=1,
    blocks_per_layer=1,
    blocks_deepest_layer=1,
    bottleneck_deepest=4,
    filter_size_deepest=3,
)
LEARNING_RATE = 0.001


@pytest.fixture(scope="module")
def edits():
    return Edits()


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 2, 3, 8, 16, generator=generator) * 3
    # Float, as CosmicTagger's loader hands them over.
    return images, (images > 2).float() + (images > 2.8).float()


@pytest.fixture(params=["published", "torchkiln"])
def network(request, edits):
    torch.manual_seed(0)
    if request.param == "published":
        return edits.network()()
    return UResNet2D(SMALL, planes_apart=True)


def make_trainer(edits, network, *args, **kwargs):
    return edits.trainer()(settings(*args, **kwargs), network, loss_of_planes, learning_rate)


def learning_rate(step):
    return LEARNING_RATE


def losses_of(trainer, batches):
    return torch.stack([step(trainer, *batch).reshape(()) for batch in zip(*batches, strict=True)])


def assert_same_weights(ours, theirs):
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_edited_trainer_trains_with_the_optimiser_that_it_wraps_with(edits, network, batches):
    twin = copy.deepcopy(network)
    ipu = make_trainer(edits, network, ComputeMode.IPU)
    cpu = make_trainer(edits, twin, ComputeMode.CPU)
    # That of the seed's wrapper.
    cpu._opt = torch.optim.SGD(twin.parameters(), lr=1e-3)
    torch.testing.assert_close(losses_of(ipu, batches), losses_of(cpu, batches))
    assert_same_weights(network, twin)


@pytest.mark.parametrize("kind", [OptimizerKind.adam, OptimizerKind.rmsprop])
def test_the_edited_trainer_goes_on_with_the_optimiser_of_the_mode(edits, batches, kind):
    torch.manual_seed(0)
    network = edits.network()()
    twin = copy.deepcopy(network)
    ipu = make_trainer(edits, network, ComputeMode.IPU, kind)
    cpu = make_trainer(edits, twin, ComputeMode.CPU, kind)
    assert type(ipu._opt).__module__.startswith("poptorch")
    ipu._net.setOptimizer(ipu._opt)
    torch.testing.assert_close(losses_of(ipu, batches), losses_of(cpu, batches), rtol=1e-4, atol=0)
    assert_same_weights(network, twin)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max:UserWarning")
def test_the_edited_trainer_trains_quantisation_aware(edits, network, batches):
    twin = copy.deepcopy(network)
    ipu = make_trainer(edits, network, ComputeMode.IPU, quantization_aware=True)
    cpu = make_trainer(edits, twin, ComputeMode.CPU, quantization_aware=True)
    cpu._opt = torch.optim.SGD(cpu._net.parameters(), lr=1e-3)
    torch.testing.assert_close(losses_of(ipu, batches), losses_of(cpu, batches))
    assert_same_weights(ipu._net, cpu._net)


def test_the_trained_network_is_wrapped_for_inference(network, batches):
    network.eval()
    images = batches[0][0]
    inference = poptorch.inferenceModel(network, poptorch.Options())
    with torch.no_grad():
        expected = network(images)
    for got, plane in zip(inference(images), expected, strict=True):
        torch.testing.assert_close(got, plane, rtol=1e-4, atol=1e-5)


def test_compute_modes_have_the_numbers_of_the_seed(edits):
    names = {"Enum": enum.Enum}
    exec(edits.compute_mode, names)
    assert {mode.name: mode.value for mode in names["ComputeMode"]} == {"CPU": 0, "IPU": 5}
    for mode in names["ComputeMode"]:
        assert ComputeMode[mode.name].value == mode.value


def test_the_notes_on_loader_optimiser_and_loop_run(edits, batches):
    images, labels = (part.flatten(end_dim=1) for part in batches)

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = UResNet2D(SMALL)

        def forward(self, data, labels):
            x, _, loss = self.network(data, loss_of_planes, labels)
            return x, loss

    torch.manual_seed(0)
    names = {
        "poptorch": poptorch,
        "model": Tagger(),
        "train_dataset": torch.utils.data.TensorDataset(images, labels),
        "tqdm": lambda iterable, **kwargs: iterable,
    }
    # Eight events and two cores need neither as large batches nor as many workers.
    exec(edits.loader.replace("=16", "=4").replace("=20", "=0"), names)
    for text in (edits.optimizer, edits.training_model, edits.training_loop):
        exec(text, names)
    assert torch.isfinite(names["total_loss"])
    assert names["poptorch_model"].isCompiled()
