"""Runs with figures like those of real ones, for the tests of the report."""

from __future__ import annotations

import numpy as np

from torchkiln.report import (
    EpochRecord,
    PredictedMolecule,
    RunResult,
    StepRecord,
    ValidationResult,
)

WATER = ((0.0, 0.0, 0.12), (0.0, 0.76, -0.48), (0.0, -0.76, -0.48))
AMMONIA = ((0.0, 0.0, 0.1), (0.0, 0.94, -0.24), (0.81, -0.47, -0.24), (-0.81, -0.47, -0.24))


def step_record(
    epoch: int, step: int, steps_in_epoch: int, loss: float, samples: int, seconds: float
) -> StepRecord:
    return StepRecord(
        epoch=epoch,
        step=step,
        steps_in_epoch=steps_in_epoch,
        loss=loss,
        samples=samples,
        seconds=seconds,
    )


def sample_run(
    *, num_epochs: int = 12, steps_per_epoch: int = 85, num_molecules: int = 10_000
) -> RunResult:
    """A finished run on QM9's U0: loss and error fall, the first epoch is slow."""
    rng = np.random.default_rng(0)
    total = num_epochs * steps_per_epoch
    curve = 0.9 / (1 + np.arange(total) / 9) ** 1.15 * rng.lognormal(0, 0.25, total)
    epochs = []
    for epoch in range(num_epochs):
        rate = (1650 if epoch == 0 else 2150) * rng.normal(1, 0.015)
        loss = float(curve[epoch * steps_per_epoch : (epoch + 1) * steps_per_epoch].mean())
        mae = 0.95 / (1 + epoch) ** 1.05
        epochs.append(
            EpochRecord(
                epoch, loss, 10_000 / rate, 10_000, rate, 1e-3 * 0.96**epoch, mae, loss * 1.1
            )
        )
    true = rng.normal(-11_179, 1_085, num_molecules)
    predicted = true + rng.laplace(0.004, 0.07, num_molecules)
    reference = true + rng.laplace(0.0, 0.44, num_molecules)
    test = ValidationResult.compare(predicted, true, reference=reference, baseline_mae=0.437)
    validation = ValidationResult.compare(
        predicted[::2], true[::2], reference=reference[::2], baseline_mae=0.441
    )
    return RunResult(
        status="finished",
        settings={
            "dataset_factory": {"batch_size": 12, "use_packing": True, "target": "U0"},
            "bench": {"learning_rate": 0.001, "num_epochs": num_epochs, "profile_dir": None},
            "run_name": "qm9 <packed>",
        },
        dataset={
            "name": "QM9",
            "target": "U0",
            "unit": "eV",
            "sizes": {"train": 104_665, "validation": 13_083, "test": 13_083},
            "source": "qm9pack 0.1",
        },
        model={"name": "SchNet", "parameters": 455_809, "hidden_channels": 128},
        machine={"cpu": "AMD EPYC", "threads": 2, "torch": "2.13.0"},
        compile_seconds=38.4,
        packing={"nodes": 0.983, "edges": 0.972, "graphs": 0.94},
        epochs=epochs,
        steps=[(step, float(loss)) for step, loss in enumerate(curve)],
        validation=validation,
        test=test,
        counted="molecules",
        worst=[
            PredictedMolecule("water <1>", (8, 1, 1), WATER, -2079.5, -2078.25),
            PredictedMolecule("ammonia", (7, 1, 1, 1), AMMONIA, -1538.0, -1538.031),
        ],
    )
