"""Whole programs as people write them: they train as eager PyTorch does, and quietly."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import poptorch

STAGES, ITERATIONS, ACCUMULATION, MICRO_BATCH = 2, 2, 3, 2


class TinyBert(nn.Module):
    def __init__(self, num_tokens=20, width=8):
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
            for _ in range(STAGES)
        )
        self.tokens = nn.Linear(width, num_tokens)
        self.tokens.weight = self.embedding.weight
        self.next_sentence = nn.Linear(width, 2)

    def forward(self, ids, labels, next_labels):
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = poptorch.recomputationCheckpoint(layer(hidden))
        token_loss = functional.cross_entropy(
            self.tokens(hidden).transpose(1, 2), labels, ignore_index=-100
        )
        next_loss = functional.cross_entropy(self.next_sentence(hidden[:, 0]), next_labels)
        total = poptorch.identity_loss(token_loss + next_loss, reduction="none")
        return total, token_loss, next_loss


def bert_batch():
    size = ITERATIONS * ACCUMULATION * MICRO_BATCH
    ids = torch.randint(0, 20, (size, 6))
    labels = torch.where(torch.rand(size, 6) < 0.5, ids, -100)
    return ids, labels, torch.randint(0, 2, (size,))


def grouped_adamw(module, kind):
    named = list(module.named_parameters())
    return kind(
        [
            {"params": [p for name, p in named if "bias" not in name], "weight_decay": 0.1},
            {"params": [p for name, p in named if "bias" in name], "weight_decay": 0.0},
        ],
        lr=1e-2,
        # The gradient of a key's bias is zero but for rounding; a small eps would blow that up.
        eps=1e-3,
    )


def eager_bert(module, batch):
    optimizer = grouped_adamw(module, torch.optim.AdamW)
    losses = []
    micro_batches = list(zip(*(tensor.split(MICRO_BATCH) for tensor in batch), strict=True))
    for start in range(0, len(micro_batches), ACCUMULATION):
        optimizer.zero_grad()
        for micro_batch in micro_batches[start : start + ACCUMULATION]:
            total, *_ = module(*micro_batch)
            (total / ACCUMULATION).backward()
            losses.append(total.detach())
        optimizer.step()
    return torch.stack(losses)


def test_a_pipelined_model_with_several_losses_trains_as_eager(caplog):
    torch.manual_seed(0)
    model = TinyBert()
    plain, batch = copy.deepcopy(model), bert_batch()
    model.embedding = poptorch.BeginBlock(model.embedding, "embedding", ipu_id=0)
    for index, layer in enumerate(model.layers):
        model.layers[index] = poptorch.BeginBlock(layer, f"layer {index}", ipu_id=index)
    opts = poptorch.Options().deviceIterations(ITERATIONS).outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(ACCUMULATION)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    opts.setAvailableMemoryProportion({f"IPU{index}": 0.2 for index in range(STAGES)})
    off_chip = poptorch.TensorLocationSettings().useOnChipStorage(False)
    opts.TensorLocations.setOptimizerLocation(off_chip.useReplicatedTensorSharding(True))
    opts._Popart.set("disableGradAccumulationTensorStreams", True)
    optimizer = grouped_adamw(model, poptorch.optim.AdamW)
    training = poptorch.trainingModel(model, opts, optimizer)
    total, token_loss, next_loss = training(*batch)
    torch.testing.assert_close(total, token_loss + next_loss)
    torch.testing.assert_close(total, eager_bert(plain, batch))
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    assert model.tokens.weight is model.embedding.weight
    assert not caplog.messages


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(4 * 6 * 6, 3)
        self.loss = nn.NLLLoss()

    def forward(self, x, labels=None):
        hidden = self.dropout(functional.relu(self.norm(self.conv(x))).flatten(1))
        scores = functional.log_softmax(self.head(hidden), dim=1)
        return (scores, self.loss(scores, labels)) if self.training else scores


class Run:
    """A training script: model, optimiser, schedule, loader."""

    def __init__(self, images):
        self.model = Classifier().train()
        opts = poptorch.Options().deviceIterations(2)
        opts.Training.gradientAccumulation(2)
        self.loader = poptorch.DataLoader(opts, images, batch_size=2)
        self.optimizer = poptorch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.training = poptorch.trainingModel(self.model, opts, self.optimizer)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

    def epoch(self):
        losses = [self.training(images, labels)[1] for images, labels in self.loader]
        self.schedule.step()
        self.training.setOptimizer(self.optimizer)
        return losses


@pytest.fixture
def images():
    torch.manual_seed(0)
    return TensorDataset(torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,)))


def test_train_evaluate_save_and_resume(images, tmp_path, caplog, capfd):
    first = Run(images)
    first.epoch()
    first.training.detachFromDevice()
    first.model.eval()
    inference = poptorch.inferenceModel(first.model)
    scores = inference(images.tensors[0])
    torch.testing.assert_close(scores, first.model(images.tensors[0]).detach())
    inference.detachFromDevice()
    first.model.train()
    first.training.attachToDevice()
    torch.save(
        {
            "model": first.model.state_dict(),
            "optimizer": first.optimizer.state_dict(),
            "schedule": first.schedule.state_dict(),
            "generator": torch.get_rng_state(),
        },
        tmp_path / "checkpoint.pt",
    )
    expected = first.epoch() + first.epoch()

    second = Run(images)
    checkpoint = torch.load(tmp_path / "checkpoint.pt")
    second.training.load_state_dict(checkpoint["model"])
    second.optimizer.load_state_dict(checkpoint["optimizer"])
    second.schedule.load_state_dict(checkpoint["schedule"])
    second.training.setOptimizer(second.optimizer)
    torch.set_rng_state(checkpoint["generator"])
    assert second.epoch() + second.epoch() == expected
    assert not caplog.messages
    # Nothing but progress bars reaches the terminal.
    out, err = capfd.readouterr()
    assert out == ""
    assert all(part.startswith("Graph compilation") for part in err.split("\r") if part.strip())
