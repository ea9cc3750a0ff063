"""The trainer with the real network."""

import numpy as np
import pytest
import torch
from _tiny_training import CAPTURE, make_dataset, make_job

from torchkiln.apps.schnet._batches import arguments_of
from torchkiln.apps.schnet._trainer import train
from torchkiln.graphs import FixedSizeLoader
from torchkiln.models import MoleculeRegression, SchNet
from torchkiln.report import QuietMonitor

# float32, sums in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def dataset():
    return make_dataset()


def schnet_job(dataset, loss="mse", num_knots=256, **changes):
    arguments = {
        "hidden_channels": 8,
        "num_filters": 8,
        "num_interactions": 2,
        "num_gaussians": 5,
        "cutoff": 3.0,
        "filter": changes.pop("filter", "exact"),
    }
    torch.manual_seed(1)
    regression = MoleculeRegression(SchNet(**arguments, num_knots=num_knots), loss)
    optimizer = torch.optim.Adam(regression.parameters(), lr=0.01)
    return make_job(
        dataset,
        regression=regression,
        optimizer=optimizer,
        model_arguments=arguments,
        **{"num_epochs": 2, **changes},
    )


class Messages(QuietMonitor):
    def __init__(self):
        self.texts = []

    def message(self, text):
        self.texts.append(text)


def predict(regression, dataset, split):
    """Return physical predictions molecule by molecule, in plain eager PyTorch."""
    regression.eval()
    values = []
    for index in dataset.splits[split].tolist():
        batch = next(iter(FixedSizeLoader(dataset.store[[index]], batch_size=1)))
        with torch.no_grad():
            values.append(float(regression(**arguments_of(batch))[0][0]))
    return dataset.restore(np.array(values), dataset.splits[split])


@pytest.mark.parametrize("filter_form", ["exact", "table"])
def test_schnet_learns_and_its_errors_are_right(dataset, filter_form):
    monitor = Messages()
    job = schnet_job(dataset, filter=filter_form, options=CAPTURE, num_epochs=3)
    result = train(job, monitor)
    assert result.status == "finished"
    assert result.epochs[-1].loss < result.epochs[0].loss
    # What is told is told of the best weights: those of a run that ends after that epoch.
    until_best = schnet_job(
        dataset, filter=filter_form, options=CAPTURE, num_epochs=result.best_epoch + 1
    )
    train(until_best)
    expected = predict(until_best.regression, dataset, "validation")
    assert result.validation.predicted == pytest.approx(expected, rel=TOLERANCE)
    assert ("table_error" in result.model) == (filter_form == "table")
    assert not any("filters from tables" in text for text in monitor.texts)


def test_exact_filters_and_tables_learn_the_same(dataset):
    exact, table = (train(schnet_job(dataset, filter=form)) for form in ("exact", "table"))
    losses = [[loss for _, loss in result.steps] for result in (exact, table)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert table.model["table_error"] < 1e-4


def test_the_average_is_baked_anew_for_each_validation(dataset):
    """Tables that were computed before training would give the error of the initial weights."""
    result = train(schnet_job(dataset, filter="table", ema_decay=0.5))
    errors = [record.validation_mae for record in result.epochs]
    assert errors[0] != errors[1]
    again = train(schnet_job(dataset, filter="table", ema_decay=0.5, num_epochs=1))
    assert again.epochs[0].validation_mae == errors[0]


def test_a_table_that_is_too_coarse_is_said_once(dataset):
    monitor = Messages()
    result = train(schnet_job(dataset, filter="table", num_knots=6), monitor)
    said = [text for text in monitor.texts if "filters from tables are off by" in text]
    assert len(said) == 1
    assert "--model.filter exact" in said[0]
    assert result.model["table_error"] > 1e-4


def test_the_absolute_loss(dataset):
    job = schnet_job(dataset, loss="mae", num_epochs=1)
    result = train(job)
    std = dataset.transform.std
    assert result.epochs[0].validation_loss * std == pytest.approx(result.validation.mae, rel=1e-4)
