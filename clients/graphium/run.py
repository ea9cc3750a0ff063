"""graphium 2.4.7: its toy multitask training with `accelerator: ipu`, on the data of its wheel."""

from __future__ import annotations

import collections
import collections.abc
import copy
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TORCHKILN_PRETEND_IPU"] = "1"
os.environ["POPTORCH_CACHE_DIR"] = "cache"
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "_shared"))
sys.path.append(str(HERE / "stubs"))
# graphium was written for Python 3.8; 3.10 moved these.
for _name in ("Sequence", "Mapping"):
    setattr(collections, _name, getattr(collections.abc, _name))

from client_report import ClientReport

# Weights after an epoch of Adam, whose first updates have the size of the learning rate.
TOLERANCE = 1e-4
NUM_MOLECULES, BATCH_SIZE, EPOCHS = 120, 8, 3
CONFIGS = (
    "architecture/toymix.yaml",
    "tasks/task_heads/toymix.yaml",
    "tasks/loss_metrics_datamodule/toymix.yaml",
    "training/toymix.yaml",
    "training/model/toymix_gcn.yaml",
)


def make_config(root: Path) -> dict[str, Any]:
    """Return graphium's own toy configuration, on the two datasets that its wheel carries."""
    from omegaconf import OmegaConf

    folder = root / "expts" / "hydra-configs"
    merged = OmegaConf.merge(*[OmegaConf.load(folder / name) for name in CONFIGS])
    merged["trainer"]["model_checkpoint"]["dirpath"] = "checkpoints/"
    config: dict[str, Any] = OmegaConf.to_container(merged, resolve=True)
    config["accelerator"] = {
        "type": "ipu",
        "ipu_config": ["deviceIterations(1)", "replicationFactor(1)"],
        "ipu_inference_config": ["deviceIterations(1)", "replicationFactor(1)"],
    }
    # The third dataset is not in the wheel.
    for place in (
        config["predictor"]["metrics_on_progress_bar"],
        config["predictor"]["loss_fun"],
        config["metrics"],
        config["datamodule"]["args"]["task_specific_args"],
        config["architecture"]["task_heads"],
    ):
        del place["tox21"]
    data = root / "graphium" / "data"
    tasks = config["datamodule"]["args"]["task_specific_args"]
    for name, path in (
        ("qm9", "QM9/micro_qm9.csv"),
        ("zinc", "micro_ZINC/micro_ZINC.csv"),
    ):
        del tasks[name]["splits_path"]
        tasks[name] |= {
            "df_path": str(data / path),
            "sample_size": NUM_MOLECULES,
            "split_val": 0.2,
            "split_test": 0.2,
        }
    tasks["zinc"]["smiles_col"] = "SMILES"
    config["metrics"] = {
        name: [metric for metric in metrics if metric["name"] == "mae"]
        for name, metrics in config["metrics"].items()
    }
    options = {"mode": "sync", "max_num_nodes_per_graph": 44, "max_num_edges_per_graph": 96}
    config["datamodule"]["args"] |= {
        "featurization_n_jobs": 0,
        "featurization_progress": False,
        "processed_graph_data_path": None,
        "num_workers": 0,
        "batch_size_training": BATCH_SIZE,
        "batch_size_inference": BATCH_SIZE,
        "ipu_dataloader_training_opts": dict(options),
        "ipu_dataloader_inference_opts": dict(options),
    }
    config["predictor"]["optim_kwargs"]["lr"] = 1e-3
    config["predictor"]["torch_scheduler_kwargs"] |= {"max_num_epochs": 10, "warmup_epochs": 2}
    config["trainer"]["trainer"] = {
        "precision": "32",
        "max_epochs": EPOCHS,
        "min_epochs": 1,
        "check_val_every_n_epoch": 1,
        "enable_progress_bar": False,
        "logger": False,
        "num_sanity_val_steps": 0,
    }
    config["trainer"].pop("seed", None)
    config["trainer"]["learning_rate_monitor"] = {}
    without_dropout(config)
    return config


def without_dropout(config: Any) -> None:
    """Let training be compared with the CPU without its random numbers."""
    for key, value in config.items():
        if isinstance(value, dict):
            without_dropout(value)
        elif key == "dropout":
            config[key] = 0.0


def train(config: dict[str, Any], callback: Any, **fit: Any) -> tuple[Any, Any, Any]:
    """Do what graphium's command does, up to the fit; return predictor, trainer and a copy."""
    import torch
    from graphium.config._loader import (
        load_accelerator,
        load_architecture,
        load_datamodule,
        load_metrics,
        load_predictor,
        load_trainer,
    )

    config, accelerator = load_accelerator(copy.deepcopy(config))
    datamodule = load_datamodule(config, accelerator)
    datamodule.prepare_data()
    torch.manual_seed(0)
    model_class, model_kwargs = load_architecture(config, in_dims=datamodule.in_dims)
    predictor = load_predictor(
        config=config,
        model_class=model_class,
        model_kwargs=model_kwargs,
        metrics=load_metrics(config),
        task_levels=datamodule.get_task_levels(),
        accelerator_type=accelerator,
        featurization=datamodule.featurization,
        task_norms=datamodule.task_norms,
        global_bs=BATCH_SIZE,
    )
    before = copy.deepcopy(predictor)
    config["trainer"].pop("learning_rate_monitor")
    trainer = load_trainer(config, accelerator)
    # Its monitor of learning rates needs a logger.
    trainer.callbacks = [
        one for one in trainer.callbacks if type(one).__name__ != "LearningRateMonitor"
    ]
    trainer.callbacks.append(callback)
    predictor.set_max_nodes_edges_per_graph(datamodule, stages=["train", "val"])
    trainer.fit(model=predictor, datamodule=datamodule, **fit)
    return predictor, trainer, before


with ClientReport("graphium") as report:
    import graphium
    import lightning.pytorch as pl
    import torch
    from graphium.ipu.ipu_wrapper import PredictorModuleIPU
    from lightning_graphcore import IPUStrategy

    report.imports = True
    report.detail = (
        "graphium 2.4.7, installed without its dependencies (torch-scatter, torch-sparse and "
        "torch-cluster must be compiled; three of their names come from stubs on PyG, and "
        "`collections.Sequence` of Python 3.8 is put back); its ToyMix configuration with GCN on "
        "the wheel's micro QM9 and micro ZINC, `accelerator: ipu`, with `TORCHKILN_PRETEND_IPU=1`."
    )

    class Watch(pl.Callback):
        """Keeps batches, learning rates and losses, to do the same again on the CPU."""

        def __init__(self) -> None:
            self.batches: list[Any] = []
            self.rates: list[list[float]] = []
            self.losses: list[float] = []

        def on_train_batch_start(
            self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
        ) -> None:
            self.batches.append(copy.deepcopy(batch))
            self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            self.losses.append(float(outputs["loss"]))

    watch = Watch()
    config = make_config(Path(graphium.__file__).parents[1])
    predictor, trainer, before = train(config, watch)
    if not isinstance(trainer.strategy, IPUStrategy):
        raise TypeError(f"the trainer chose {type(trainer.strategy).__name__}")
    if not isinstance(predictor, PredictorModuleIPU):
        raise TypeError(f"graphium chose {type(predictor).__name__}")
    per_epoch = len(watch.losses) // EPOCHS
    first, last = sum(watch.losses[:per_epoch]), sum(watch.losses[-per_epoch:])
    report.trains = len(watch.losses) >= 30 and last < 0.95 * first

    # The same batches once more, in a loop of plain PyTorch.
    from mup.optim import MuAdam

    before.train()
    optimizer = MuAdam(before.parameters(), impl=torch.optim.Adam, lr=1.0)
    worst = 0.0
    for batch, rates, loss in zip(watch.batches, watch.rates, watch.losses, strict=True):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.zero_grad()
        expected = before.training_step(batch, 0)["loss"]
        expected.backward()
        optimizer.step()
        worst = max(worst, abs(float(expected) - loss) / abs(loss))
    weights = before.state_dict()
    for name, value in predictor.state_dict().items():
        worst = max(worst, float((value - weights[name]).abs().max()) if value.numel() else 0.0)
    report.matches = worst <= TOLERANCE

    path = Path("last.ckpt")
    trainer.save_checkpoint(path)
    longer = copy.deepcopy(config)
    longer["trainer"]["trainer"]["max_epochs"] = EPOCHS + 1
    again = Watch()
    resumed, _, _ = train(longer, again, ckpt_path=str(path))
    report.checkpoints = len(again.losses) == per_epoch and sum(again.losses) < 1.02 * last
    report.detail += (
        f" Loss of an epoch {first / per_epoch:.3f} -> {last / per_epoch:.3f} in {EPOCHS} epochs; "
        f"losses and weights of {len(watch.losses)} updates differ from a plain loop on the same "
        f"batches by at most {worst:.1e}."
    )
