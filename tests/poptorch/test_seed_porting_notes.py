"""Fragments of the other seed documents: a printed model, and the notes on porting UResNet2D."""

import textwrap
from types import SimpleNamespace

import torch
from _seed_document import find_block, read_blocks
from torch import nn

import poptorch


def test_a_wrapped_model_prints_as_in_the_padding_tutorial(tmp_path):
    blocks = read_blocks("002_8bc90f0703ad1a58.txt")
    names = {
        "dataset": SimpleNamespace(num_features=11, num_classes=19),
        "batch_size": 10,
        "executable_cache_dir": str(tmp_path),
    }
    exec(find_block(blocks, "class GcnForBatching").text, names)
    exec(find_block(blocks, "poptorch.trainingModel(").text, names)
    printed = find_block(blocks, "PoptorchGcnForBatching", language="output").text
    # The original indents nested lines by the character "2"; we do it by spaces.
    expected = [
        line.replace("2", "  ", 1) if line[0] == "2" else line for line in printed.split("\n")
    ]
    assert repr(names["poptorch_model"]).splitlines() == expected
    assert names["poptorch_model"].options._to_torchkiln().cache_dir == tmp_path


class Segmentation(nn.Module):
    """A tiny network that ends as the notes tell the user to let UResNet2D end."""

    def __init__(self, ending):
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 1)
        self.ending = ending

    def forward(self, input_tensor, loss_calculator=None, labels_image=None):
        x = torch.chunk(self.layer(input_tensor), chunks=3, dim=1)
        return self.ending(x, loss_calculator, labels_image)


def test_the_notes_on_uresnet_train(monkeypatch):
    blocks = read_blocks("004_70d18cd5a897dec6.txt")
    ending = textwrap.dedent(find_block(blocks, "if loss_calculator is not None").text)
    names = {"torch": torch}
    signature = "def ending(x, loss_calculator, labels_image):\n"
    exec(signature + textwrap.indent(ending, "    "), names)

    def loss_calculator(labels, logits):
        planes = zip(logits, labels, strict=True)
        return sum(nn.functional.cross_entropy(plane, label) for plane, label in planes)

    net = Segmentation(names["ending"])
    # The notes wrap with one optimiser and train with another one, which comes from the wrapper.
    model = poptorch.trainingModel(
        net, poptorch.Options(), optimizer=torch.optim.SGD(net.parameters(), lr=1e-3)
    )
    torch.manual_seed(0)
    images = torch.randn(2, 3, 4, 4)
    labels = torch.randint(0, 2, (2, 3, 4, 4)).float()
    model.compile(images, loss_calculator, labels)
    losses = [model(images, loss_calculator, labels)[-1] for _ in range(5)]
    assert losses[-1] < losses[0]
    logits, labels_image, _ = model(images, loss_calculator, labels)
    assert len(logits) == len(labels_image) == 3


def test_optimizers_are_made_from_the_wrapper_as_in_the_notes():
    net = nn.Linear(2, 1)
    wrapped = poptorch.trainingModel(net)
    optimizer = poptorch.optim.RMSprop(wrapped.parameters(), 1.0, eps=1e-4)
    assert optimizer.param_groups[0]["params"][0] is net.weight
