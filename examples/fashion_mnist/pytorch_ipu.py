"""Tell ten kinds of clothing apart with a small convolutional network, ported to poptorch."""

import sys

import torch
from settings import LEARNING_RATES, load_datasets, parse_arguments
from torch import nn
from view import Confusion, EpochBar, draw_pictures

import poptorch


class ClassificationModel(nn.Module):
    """The tutorial's model. Its softmax runs over the batch (dim=0), an oddity that is kept."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(5, 12, 5)
        self.norm = nn.GroupNorm(3, 12)
        self.fc1 = nn.Linear(972, 100)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(100, 10)
        self.log_softmax = nn.LogSoftmax(dim=0)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.norm(self.relu(self.conv2(x)))
        x = torch.flatten(x, start_dim=1)
        x = self.relu(self.fc1(x))
        return self.log_softmax(self.fc2(x))


class SensibleModel(nn.Module):
    """Two convolutions, each with a pooling; the loss takes the logits as they are."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = torch.flatten(x, start_dim=1)
        x = self.relu(self.fc1(x))
        return self.fc2(x)


class ModelwithLoss(nn.Module):
    """Any model and its loss: training needs both in one forward."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, labels=None):
        output = self.model(x)
        if labels is not None:
            return output, self.criterion(output, labels)
        return output


def main():
    args = parse_arguments(__doc__)
    torch.manual_seed(args.seed)
    opts = poptorch.Options()
    opts.deviceIterations(25)  # steps in a call: 16 x 25 images divide 60,000 and 10,000
    opts.outputMode(poptorch.OutputMode.All)  # the loss of each of them
    opts.showCompilationProgressBar(sys.stderr.isatty())

    train_dataset, test_dataset = load_datasets(args)
    train_dataloader = poptorch.DataLoader(
        opts,
        train_dataset,
        batch_size=args.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(args.seed),
        mode=poptorch.DataLoaderMode.Async,
    )
    test_dataloader = poptorch.DataLoader(opts, test_dataset, batch_size=args.test_batch_size)

    if args.model == "tutorial":
        model, criterion = ClassificationModel(), nn.NLLLoss()
    else:
        model, criterion = SensibleModel(), nn.CrossEntropyLoss()
    model.train()
    model = ModelwithLoss(model, criterion)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=LEARNING_RATES[args.model], momentum=0.9)
    training_model = poptorch.trainingModel(model, options=opts, optimizer=optimizer)

    losses = []
    for epoch in range(args.epochs):
        bar = EpochBar(epoch, train_dataloader, len(train_dataset))
        for data, labels in bar:
            output, loss = training_model(data, labels)
            bar.show(loss)
        losses += bar.losses
    train_dataloader.terminate()

    model.eval()
    inference_model = poptorch.inferenceModel(model, options=opts)
    confusion = Confusion(test_dataset.class_names)
    for data, labels in test_dataloader:
        output = inference_model(data)
        confusion.add(labels, output.argmax(dim=1))
    print(f"Eval accuracy: {confusion.accuracy:.2%} of {confusion.num_images:,} images")
    draw_pictures(args, losses, confusion)


if __name__ == "__main__":
    main()
