"""Trains a classifier as public programs for PopTorch do, alone or under poprun.

python3 train_classifier.py --replicas 2 --output folder
poprun --num-instances=2 --num-replicas=2 python3 train_classifier.py --output folder
"""

import argparse
import logging
import os

import torch

import popdist
import popdist.poptorch
import poptorch


class TrainingModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        )
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, data, labels):
        logits = self.layers(data)
        return logits, self.loss(logits, labels)


class ValidationModel(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, data):
        return self.layers(data).argmax(dim=1)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--shuffle", action="store_true")
    args = parser.parse_args()
    args.use_popdist = popdist.isPopdistEnvSet()
    if args.use_popdist:
        popdist.init()
        if popdist.getNumTotalReplicas() != args.replicas:
            logging.warning(
                "The number of replicas is overridden by poprun. The new value is %d.",
                popdist.getNumTotalReplicas(),
            )
        args.replicas = popdist.getNumLocalReplicas()
    args.instance = popdist.getInstanceIndex() if args.use_popdist else 0
    return args


def create_options(args):
    if args.use_popdist:
        opts = popdist.poptorch.Options(ipus_per_replica=1)
    else:
        opts = poptorch.Options()
        opts.replicationFactor(args.replicas)
    opts.deviceIterations(2)
    opts.Training.gradientAccumulation(1)
    opts.outputMode(poptorch.OutputMode.All)
    opts.randomSeed(42)
    opts.showCompilationProgressBar(False)
    return opts


def create_dataset():
    generator = torch.Generator().manual_seed(7)
    data = torch.randn(64, 8, generator=generator)
    return torch.utils.data.TensorDataset(data, data[:, :3].argmax(dim=1))


def main():
    args = parse_arguments()
    torch.manual_seed(args.instance)  # weights are those of instance 0
    dataset = create_dataset()
    opts = create_options(args)
    loader = poptorch.DataLoader(opts, dataset, batch_size=4, shuffle=args.shuffle)
    model = TrainingModel().train()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training_model = poptorch.trainingModel(model, opts, optimizer=optimizer)
    losses = []
    for _ in range(args.epochs):
        for data, labels in loader:
            _, loss = training_model(data, labels)
            losses.append(loss.flatten())

    # Every instance validates its share; metrics are summed over all of them.
    validation_opts = poptorch.Options()
    validation_opts.showCompilationProgressBar(False)
    validation_model = poptorch.inferenceModel(ValidationModel(model.layers), validation_opts)
    validation_loader = poptorch.DataLoader(validation_opts, dataset, 8, drop_last=False)
    counts = torch.zeros(2)
    for data, labels in validation_loader:
        correct = (validation_model(data) == labels).sum()
        counts += torch.tensor([correct.item(), float(len(labels))])
    if args.use_popdist:
        torch.distributed.all_reduce(counts)

    result = {"weights": model.state_dict(), "losses": losses, "counts": counts}
    torch.save(result, os.path.join(args.output, f"instance{args.instance}.pt"))
    popdist.execute_on_instances({0}, print, "accuracy", (counts[0] / counts[1]).item())


if __name__ == "__main__":
    main()
