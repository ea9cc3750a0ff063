"""Everything that a run of CosmicTagger can be told, in the groups of the original. No torch here.

What shapes the network is checked by `UResNetSettings`, where it lives: beside the network, which
needs torch.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchkiln.core import OptionsError, default_cache_dir
from torchkiln.core._plain_warnings import LogLevel


class ModeKind(enum.Enum):
    """What a run does."""

    train = "train"
    inference = "inference"
    iotest = "iotest"
    fit = "fit"


class ComputeMode(enum.Enum):
    """Where and how a run computes; numbered as in CosmicTagger."""

    CPU = 0  # plain PyTorch, operator by operator
    CUDA = 1  # the same on a GPU
    IPU = 5  # a static program, compiled once


class OptimizerKind(enum.Enum):
    """Which optimiser."""

    adam = "adam"
    rmsprop = "rmsprop"
    sgd = "sgd"


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How weights are updated.

    Args:
        name: adam, rmsprop or sgd (with a momentum of 0.9).
        learning_rate: The highest one; it rises to it linearly, and falls along a cosine to zero.
        warmup: Share of all updates in which it rises.
        gradient_accumulation: Mini-batches that share one update.
        loss_balance_scheme: How pixels are weighed: none, light, even or focal.
    """

    name: OptimizerKind = OptimizerKind.adam
    learning_rate: float = 0.003
    warmup: float = 0.1
    gradient_accumulation: int = 1
    loss_balance_scheme: Literal["none", "light", "even", "focal"] = "light"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise OptionsError(
                f"mode.optimizer.learning_rate must be above 0, got {self.learning_rate}"
            )
        if not 0 <= self.warmup < 1:
            raise OptionsError(
                f"mode.optimizer.warmup is a share of the updates, from 0 to below 1; got "
                f"{self.warmup}"
            )
        _require_least("mode.optimizer.gradient_accumulation", self.gradient_accumulation, 1)


@dataclass(frozen=True, kw_only=True)
class ModeSettings:
    """What a run does; `mode=train` is short for `mode.name=train`.

    Args:
        name: train; inference, of a checkpoint, with metrics and pictures; iotest, which reads
            all batches and does nothing with them; or fit, which foretells the memory of a training
            step and runs nothing.
        optimizer: How weights are updated (train).
        checkpoint_epochs: Save after every so many epochs, and after the last; 0 saves nothing.
        resume: Go on with the checkpoint of the same run.id.
        num_pictures: Events to draw when all is done, as many as there are at most.
        background_odds: Call a pixel background only if that is so many times as likely as each
            other class, for metrics of held-out events and for pictures.
    """

    name: ModeKind = ModeKind.train
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    checkpoint_epochs: int = 1
    resume: bool = False
    num_pictures: int = 2
    background_odds: float = 1.0
    memory_limit: str | None = None
    stages: int | None = None
    profile: Path | None = None

    def __post_init__(self) -> None:
        if self.stages is not None:
            _require_least("mode.stages", self.stages, 2)
        elif self.profile is not None:
            raise OptionsError("mode.profile tells where to cut the network; add mode.stages=2")
        _require_least("mode.checkpoint_epochs", self.checkpoint_epochs, 0)
        _require_least("mode.num_pictures", self.num_pictures, 0)
        if not (math.isfinite(self.background_odds) and self.background_odds > 0):
            raise OptionsError(f"mode.background_odds must be above 0, got {self.background_odds}")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How it is run.

    Args:
        id: Name of the run: of its folder in output_dir.
        output_dir: Where checkpoints, metrics and pictures go.
        compute_mode: CPU (plain PyTorch), CUDA (plain PyTorch on a GPU) or IPU (a static program,
            compiled once).
        precision: Of convolutions: float32, bfloat16 or float16. Weights stay in float32.
        minibatch_size: Events in a mini-batch.
        epochs: Passes over the training events, those of a resumed run included.
        seed: Of initial weights and of the order of events.
        threads: Each pinned to a core; null: as many as there are cores.
        backend: How static programs run: inductor (native code), capture or eager, which need no
            compiler; null: TORCHKILN_BACKEND, or inductor.
        recompute: Let static programs save memory by computing intermediates again: auto or null.
        cache_dir: Where static programs are kept, so that a second start need not compile; null:
            POPTORCH_CACHE_DIR, or a folder in the user's cache directory.
        quiet: Tell less: no progress and no messages, only results, warnings and errors.
        log_level: Which log messages of Torchkiln and torch to show: those of this level and above;
            error hides warnings, too.
        collective_timeout_s: Seconds that one of several processes waits for the others before it
            gives up.
        pipeline: Divide the network into stages, one process each (IPU): the module at which each
            stage begins, in order, as "first,upsamples.0"; the first one is "first". null: no.
    """

    id: str = "cosmic"
    output_dir: Path = Path("output")
    compute_mode: ComputeMode = ComputeMode.CPU
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    minibatch_size: int = 1
    epochs: int = 1
    seed: int = 0
    threads: int | None = None
    backend: Literal["inductor", "capture", "eager"] | None = None
    recompute: Literal["auto"] | None = None
    cache_dir: Path | None = None
    quiet: bool = False
    log_level: LogLevel = "warning"
    collective_timeout_s: float = 120.0
    pipeline: str | None = None

    def __post_init__(self) -> None:
        _require_least("run.minibatch_size", self.minibatch_size, 1)
        _require_least("run.epochs", self.epochs, 1)
        _require_least("run.seed", self.seed, 0)
        if not (math.isfinite(self.collective_timeout_s) and self.collective_timeout_s > 0):
            raise OptionsError(
                f"run.collective_timeout_s must be above 0, got {self.collective_timeout_s}"
            )
        if not self.id or Path(self.id).name != self.id:
            raise OptionsError(f"run.id must be the name of a folder, got {self.id!r}")

    @property
    def directory(self) -> Path:
        """The folder of this run."""
        return self.output_dir / self.id

    @property
    def stages(self) -> list[str]:
        """The modules of the network at which stages begin; none if it is not divided."""
        return [] if self.pipeline is None else [name.strip() for name in self.pipeline.split(",")]

    @property
    def executable_dir(self) -> Path:
        """The folder of static programs."""
        return self.cache_dir or default_cache_dir()


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which events.

    Args:
        file: larcv3 file, or a folder of such, to train on; null: events are generated,
        num_events: so many,
        seed: from this seed.
        aux_file: larcv3 file of held-out events. null: with a file, those of that file once more;
            else they are generated,
        num_aux_events: so many,
        aux_seed: from this seed; that of training gives the events of training.
        downsample: Squares of so many pixels a side become one: 1 gives images of 1280 x 2048.
        pooling: Signal of such a square: sum of its pixels, or max, in which a track stands out
            more from noise.
        in_memory: Make all images at the start, instead of anew in each epoch.
        num_workers: Processes that make batches ahead; 0: they are made between steps.
    """

    file: Path | None = None
    num_events: int = 1000
    seed: int = 1
    aux_file: Path | None = None
    num_aux_events: int = 64
    aux_seed: int = 2
    downsample: int = 8
    pooling: Literal["sum", "max"] = "sum"
    in_memory: bool = True
    num_workers: int = 0

    def __post_init__(self) -> None:
        for name in ("num_events", "num_aux_events", "downsample"):
            _require_least(f"data.{name}", getattr(self, name), 1)
        for name in ("seed", "aux_seed", "num_workers"):
            _require_least(f"data.{name}", getattr(self, name), 0)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """CosmicTagger: give each pixel of three wire planes a class.

    Args:
        mode: What the run does.
        run: How it is run.
        data: Which events.
        network: Settings of UResNet2D that differ from the original's, by name, such as
            network_depth, n_initial_filters, connections; docs/cosmic.md lists all.
    """

    mode: ModeSettings = field(default_factory=ModeSettings)
    run: RunSettings = field(default_factory=RunSettings)
    data: DataSettings = field(default_factory=DataSettings)
    network: dict[str, Any] = field(default_factory=dict)


def _require_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise OptionsError(f"{name} must be at least {least}, got {value}")
