"""A trainer and a network of the shape that CosmicTagger publishes, with the seed's edits in them.

What stands here is the shape around the edits: the seed's blocks are the rest, each put where the
seed says. Nothing else is changed.
"""

import textwrap
from types import SimpleNamespace

import torch
from _seed_document import find_block, read_blocks
from torch import nn

from torchkiln.apps.cosmic import ComputeMode, OptimizerKind

SEED = "004_70d18cd5a897dec6.txt"

_TRAINER = """
import torch


class Trainer:
    def __init__(self, args, network, loss_calculator, lr_calculator):
        self.args, self._raw_net = args, network
        self.loss_calculator, self.lr_calculator = loss_calculator, lr_calculator
        self.init_network()
        self.init_optimizer()

    def is_training(self):
        return self.args.mode.name == "train"

    def init_network(self):
        self._raw_net.train(self.is_training())
{wrap}

    def init_optimizer(self):
{optimizer}
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self._opt, self.lr_calculator)
"""

_NETWORK = """
import torch


class UResNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.bottleneck = torch.nn.Conv2d(9, 9, 1)

{forward}
        x = tuple(self.layer(plane) for plane in torch.chunk(input_tensor, chunks=3, dim=1))
        x = torch.chunk(self.bottleneck(torch.cat(x, dim=1)), chunks=3, dim=1)

        return x
"""


class Edits:
    """The seed's blocks, and where they belong."""

    def __init__(self):
        blocks = read_blocks(SEED)
        self.compute_mode = find_block(blocks, "class ComputeMode(Enum)").text
        self.import_poptorch = next(b.text for b in blocks if b.text.strip() == "import poptorch")
        self.wrap_before = find_block(blocks, "Foregoing any fusions").text
        self.wrap_after = find_block(blocks, "poptorch.trainingModel(self._net").text
        self.optimizer_before = find_block(blocks, "self._opt", language="pytorch").text
        self.optimizer_after = find_block(blocks, "poptorch.optim.RMSprop", "self._opt").text
        self.forward_before = find_block(blocks, "def forward(self, input_tensor):").text
        self.forward_after = find_block(blocks, "def forward(", "loss_calculator=None").text
        self.loss = find_block(blocks, "if loss_calculator is not None").text
        self.loader = find_block(blocks, "poptorch.DataLoader(").text
        self.optimizer = find_block(blocks, "momentum=0.9").text
        self.training_model = find_block(blocks, "poptorch_model = poptorch.trainingModel").text
        self.training_loop = find_block(blocks, "total_loss").text

    def trainer(self):
        """Return the published trainer's class with the edits."""
        published = _TRAINER.format(wrap=self.wrap_before, optimizer=self.optimizer_before)
        edited = f"{self.import_poptorch}\n{published}"
        edited = edited.replace(self.wrap_before, f"{self.wrap_before}\n\n{self.wrap_after}")
        edited = edited.replace(self.optimizer_before, self.optimizer_after)
        assert edited.count("poptorch.optim.") == 2
        names = {"ComputeMode": ComputeMode, "OptimizerKind": OptimizerKind}
        exec(compile(edited, "trainer.py", "exec"), names)
        return names["Trainer"]

    def network(self):
        """Return the published network's class with the edits."""
        before, after = (
            textwrap.indent(textwrap.dedent(text), "    ")
            for text in (self.forward_before, self.forward_after)
        )
        published = _NETWORK.format(forward=before)
        edited = published.replace(before, after)
        head, _, _ = edited.rpartition("        return x")
        names = {}
        exec(compile(head + self.loss, "uresnet2D.py", "exec"), names)
        return names["UResNet"]


def settings(compute_mode, optimizer=OptimizerKind.adam, quantization_aware=False):
    """Return arguments as CosmicTagger's command line makes them, those that the edits read."""
    mode = SimpleNamespace(
        name="train",
        optimizer=SimpleNamespace(name=optimizer),
        quantization_aware=quantization_aware,
    )
    return SimpleNamespace(mode=mode, run=SimpleNamespace(compute_mode=compute_mode))


def loss_of_planes(labels_image, logits_image):
    """Return the mean of the cross-entropy of three planes, each by itself as in CosmicTagger."""
    planes = zip(logits_image, labels_image, strict=True)
    losses = [nn.functional.cross_entropy(logits, labels) for logits, labels in planes]
    return torch.stack(losses).mean()


def step(trainer, images, labels):
    """Do one update in the trainer's compute mode; return its loss."""
    net = trainer._net
    net.train()
    if trainer.args.run.compute_mode == ComputeMode.IPU:
        logits, planes, loss = net(images, trainer.loss_calculator, labels)
        assert [len(plane) for plane in logits] == [len(plane) for plane in planes] == [2] * 3
        return loss
    trainer._opt.zero_grad()
    planes = [plane.squeeze(1) for plane in labels.long().chunk(3, dim=1)]
    loss = trainer.loss_calculator(planes, net(images))
    loss.backward()
    trainer._opt.step()
    return loss.detach()
