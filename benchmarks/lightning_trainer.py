"""Steps per second under Lightning's trainer: plain, and with TorchkilnStrategy.

    python benchmarks/lightning_trainer.py [--threads 1] [--rounds 5] [--steps 400]

The same LightningModule with the same batches from the same weights: the Fashion-MNIST CNN of
examples/fashion_mnist (batches of 16, momentum SGD), with batches at hand and with a DataLoader,
and the deep MLP of benchmarks/step.py (Adam). Each round is a fit of its own, the contenders take
turns, and ratios are formed round by round. The clock runs from the end of step 20 to the last, so
what happens once (compilation, set-up) does not count. Losses of both must agree. Needs the package
`lightning`; without it, this says so and ends. Writes
benchmarks/results/<machine>/lightning_trainer.json. (A script of the name `lightning.py` would be
what `import lightning` finds.)
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import importlib.util
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

ROOT = Path(__file__).resolve().parents[1]
BATCH_SIZE, WARM_UP, NUM_BATCHES = 16, 20, 64
# Losses of the first steps: later ones show how rounding errors grow, not whether steps agree.
COMPARED, TOLERANCE = 20, 1e-3


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="of each contender in a round")
    parser.add_argument("--cache", type=Path, help="directory of executables kept between runs")
    parser.add_argument("--json", type=Path, default=result_path("lightning_trainer"))
    return parse_arguments(parser, rounds=1, steps=WARM_UP + 2)


class Batches:
    """Batches at hand; Lightning would take a list for several loaders."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = [tuple(batch) for batch in batches]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def make_workloads() -> dict[str, tuple[Any, Any]]:
    """Return modules that train, with their batches."""
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader

    from torchkiln.apps.steps._workloads import DeepMLP
    from torchkiln.datasets.fashion_mnist import generate_shapes

    sys.path.insert(0, str(ROOT / "examples" / "fashion_mnist"))
    from pytorch_ipu import ClassificationModel
    from settings import LEARNING_RATES

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = ClassificationModel()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            images, labels = batch
            loss = torch.nn.functional.nll_loss(self.model(images), labels)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            rate = LEARNING_RATES["tutorial"]
            return torch.optim.SGD(self.parameters(), lr=rate, momentum=0.9)

    class Regression(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = DeepMLP(256, 20)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            _, loss = self.model(*batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    torch.manual_seed(0)
    images = generate_shapes(BATCH_SIZE * NUM_BATCHES)
    loader = DataLoader(images, batch_size=BATCH_SIZE, drop_last=True)
    data = [torch.randn(128, 256) for _ in range(NUM_BATCHES)]
    targets = [(part, torch.tanh(part)) for part in data]
    classifier = Classifier()
    return {
        "cnn": (classifier, Batches(loader)),
        "cnn, DataLoader": (classifier, loader),
        "mlp": (Regression(), Batches(targets)),
    }


def fit(module: Any, batches: Any, strategy: Any, steps: int) -> tuple[float, list[float]]:
    """Train a copy of a module, and return steps per second and losses."""
    import lightning.pytorch as pl

    class Clock(pl.Callback):
        times: list[float] = []
        losses: list[Any] = []

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
            self.times.append(time.perf_counter())
            self.losses.append(outputs["loss"])

    clock = Clock()
    clock.times, clock.losses = [], []
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        logger=False,
        callbacks=[clock],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(copy.deepcopy(module), batches)
    elapsed = clock.times[-1] - clock.times[WARM_UP - 1]
    return (len(clock.times) - WARM_UP) / elapsed, [float(loss) for loss in clock.losses]


def check_losses(plain: list[float], compiled: list[float], name: str) -> None:
    pairs = zip(plain[:COMPARED], compiled[:COMPARED], strict=True)
    if any(not abs(one - other) <= TOLERANCE * max(1.0, abs(one)) for one, other in pairs):
        raise ArithmeticError(f"{name}: losses differ: {plain[:COMPARED]}, {compiled[:COMPARED]}")


def main() -> None:
    arguments = read_arguments()
    if importlib.util.find_spec("lightning") is None:
        # One package that is not installed must not end `make benchmarks`.
        print("Lightning's trainer is left out: pip install 'torchkiln[lightning]'")
        return
    threads = pin_threads(arguments.threads)
    from torchkiln import Options
    from torchkiln.core import ScratchDirectory
    from torchkiln.lightning import TorchkilnStrategy

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    scratch = ScratchDirectory()
    options = Options(cache_dir=arguments.cache or scratch.path, show_progress=False)
    results = {}
    for name, (module, batches) in make_workloads().items():
        plain_rates, rates = [], []
        for number in range(arguments.rounds + 1):
            plain_rate, plain = fit(module, batches, "auto", arguments.steps)
            rate, compiled = fit(module, batches, TorchkilnStrategy(options), arguments.steps)
            check_losses(plain, compiled, name)
            if number or not arguments.rounds:  # the first one compiles
                plain_rates.append(plain_rate)
                rates.append(rate)
        results[name] = {
            "plain_steps_per_s": statistics.median(plain_rates),
            "torchkiln_steps_per_s": statistics.median(rates),
            "ratio": statistics.median(
                mine / other for mine, other in zip(rates, plain_rates, strict=True)
            ),
            "rounds": {"plain": plain_rates, "torchkiln": rates},
        }
        row = results[name]
        print(
            f"{name:<16}{row['plain_steps_per_s']:>8,.0f} steps/s plain,"
            f"{row['torchkiln_steps_per_s']:>8,.0f} with TorchkilnStrategy,{row['ratio']:>6.2f}x"
        )
    scratch.remove()
    record = {**machine(), "threads": threads, "workloads": results}
    record["lightning"] = importlib.metadata.version("lightning")
    write_result(arguments.json, record)


if __name__ == "__main__":
    main()
