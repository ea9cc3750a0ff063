"""What one run of the SchNet benchmark is asked for; every flag and config key is a field here.

The command line is derived from these classes: names, types, defaults and help come from here and
nowhere else. No torch in this module, so that `--help` is instant.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchkiln.core import Options, OptionsError
from torchkiln.core._plain_warnings import LogLevel

_MOST = 2**31 - 1  # sizes beyond do not fit into the integers of the kernels, nor into any memory
_LONGEST_NAME = 255  # of usual file systems


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Molecules, interaction graphs and batches.

    Args:
        root: Your own molecules: a file (.xyz, .extxyz, .sdf) or a folder of them; or your own copy
            of the dataset. Default: what is installed or generated.
        splits: Training, validation and test: shares such as 80/10/10, numbers of molecules such
            as [100000, 10000, 5000], or "schnet" (110,000 and 10,000, the rest for the test).
        batch_size: Packs (or, padded, molecules) in one mini-batch.
        use_packing: Fill batches with molecules of different sizes; false gives each molecule the
            room of the largest.
        k: Each atom interacts with at most so many nearest neighbours; null: all within the cutoff.
        cutoff: Radius of interaction in angstrom; also the range of the model's filters.
        max_num_atoms: Atoms of a pack (or room of a padded molecule); null: those of the largest
            molecule. A packed batch is filled as one, which leaves fewer holes than separate packs.
        use_qm9_energy: Train on the energy of formation per atom: subtract the energies of the free
            atoms, divide by the number of atoms. False leaves energies as they are. This setting is
            about the energies of QM9 (U0, U, H, G and their _atom forms) and about nothing else.
        use_standardized_energy: Scale the target to mean 0 and deviation 1 of the training split.
            Errors are reported in physical units all the same.
        options: Further options of the compiled program (torchkiln.Options), as JSON or YAML or the
            path of such a file.
        target: The property to learn; for QM9 one of its 19 (U0, gap, mu, ...), for water energy,
            for your own molecules a name that stands in their file.
        references: Energy to subtract for each atom: none, atoms (free atoms, from QM9's tables) or
            fitted (linear regression on the training split); null: what suits the target. Energies
            of QM9 have atoms, other targets that grow with the molecule fitted, the rest none.
        per_atom: Divide the target by the number of atoms; null: if it grows with the molecule.
        unit: Unit of the target of your own molecules, such as eV, Ha or kcal/mol, for the report.
            Numbers are not converted.
        seed: Decides which molecules are for training, validation and test.
    """

    root: Path | None = None
    splits: list[int] | list[float] | str = "80/10/10"
    batch_size: int = 12
    use_packing: bool = True
    k: int | None = 28
    cutoff: float = 6.0
    max_num_atoms: int | None = None
    use_qm9_energy: bool = True
    use_standardized_energy: bool = True
    options: Options | None = None
    target: str | None = None
    references: Literal["none", "atoms", "fitted"] | None = None
    per_atom: bool | None = None
    unit: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _require_least("dataset_factory.batch_size", self.batch_size, 1)
        _require_least("dataset_factory.k", self.k, 1)
        _require_least("dataset_factory.max_num_atoms", self.max_num_atoms, 1)
        _require_seed("dataset_factory.seed", self.seed)
        _require_most("dataset_factory.batch_size", self.batch_size)
        _require_positive("dataset_factory.cutoff", self.cutoff)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The SchNet network.

    Args:
        num_features: Numbers that describe an atom (hidden channels).
        num_filters: How many numbers a message between atoms has; null: as many as num_features.
        num_interactions: Interaction blocks, one after the other.
        num_gaussians: How many Gaussian functions describe a distance up to the cutoff.
        readout: How atoms make up a molecule: add, mean, or auto. Auto takes the sum for totals and
            the mean for targets per atom and for those that do not grow with the molecule.
        filter: How filters are computed: exact runs the filter network for every pair of atoms;
            table runs it on a grid of distances and lays splines through it, which is several times
            as fast; auto takes the table where a mini-batch has at least four times as many pairs
            of atoms as the grid has distances, and never in the eager loop.
    """

    num_features: int = 100
    num_filters: int | None = None
    num_interactions: int = 4
    num_gaussians: int = 25
    readout: Literal["auto", "add", "mean"] = "auto"
    filter: Literal["auto", "exact", "table"] = "auto"

    def __post_init__(self) -> None:
        _require_least("model.num_features", self.num_features, 2)
        _require_least("model.num_filters", self.num_filters, 1)
        _require_least("model.num_interactions", self.num_interactions, 1)
        _require_least("model.num_gaussians", self.num_gaussians, 2)


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """How to train.

    Args:
        synthetic_data: Train on one batch that stays in memory: throughput without any loading.
        replication_factor: Data-parallel copies of each process, folded into its accumulation loop;
            under torchrun there are so many in each of several processes. A negative number trains
            the same model operator by operator, without compiling, for comparison.
        device_iterations: Weight updates per call of the compiled program.
        gradient_accumulation: Mini-batches that share one weight update.
        learning_rate: The learning rate of the Adam optimiser.
        num_epochs: Passes over the training split.
        profile_dir: Measure some of the first calls of the programs, and write a report of where
            their time and memory go into a folder for each, training and validation, in this one.
        factory: Which dataset: qm9 or water.
        water_dataset: How much of the water clusters: debug, test, train or all.
        half_precision: Compute matrix products in 16 bits (bfloat16 or float16, whichever the
            device has).
        num_workers: Processes that make batches ahead; 0: batches are made between steps.
        use_wandb: Log to Weights and Biases (WANDB_MODE=offline keeps it on disk).
        use_tensorboard: Log to TensorBoard, below the output folder.
        loss: What is minimised: mse (squared errors) or mae (absolute errors).
        learning_rate_decay: The learning rate is multiplied by this after each epoch.
        ema_decay: Validate, test and predict with an exponential moving average of the weights that
            keeps this share of itself per update, such as 0.999; null: with the weights themselves.
        seed: Decides the initial weights and the order of the molecules.
        backend: How the step runs: inductor (native code), capture (recorded graph, nothing
            generated) or eager; null: inductor, or TORCHKILN_BACKEND.
        collective_timeout_s: Seconds that one of several processes waits for the others before it
            gives up.
    """

    synthetic_data: bool = False
    replication_factor: int = 1
    device_iterations: int = 6
    gradient_accumulation: int = 2
    learning_rate: float = 0.001
    num_epochs: int = 10
    profile_dir: Path | None = None
    factory: Literal["qm9", "water"] = "qm9"
    water_dataset: Literal["debug", "test", "train", "all"] = "debug"
    half_precision: bool = False
    num_workers: int = 0
    use_wandb: bool = False
    use_tensorboard: bool = False
    loss: Literal["mse", "mae"] = "mse"
    learning_rate_decay: float = 1.0
    ema_decay: float | None = None
    seed: int = 0
    backend: Literal["inductor", "capture", "eager"] | None = None
    collective_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.replication_factor == 0:
            raise OptionsError(
                "bench.replication_factor must not be 0: 1 or more copies, or a negative number "
                "for plain eager PyTorch"
            )
        for name in ("device_iterations", "gradient_accumulation", "num_epochs"):
            _require_least(f"bench.{name}", getattr(self, name), 1)
            _require_most(f"bench.{name}", getattr(self, name))
        _require_least("bench.num_workers", self.num_workers, 0)
        _require_seed("bench.seed", self.seed)
        _require_positive("bench.learning_rate", self.learning_rate)
        _require_positive("bench.collective_timeout_s", self.collective_timeout_s)
        _require_positive("bench.learning_rate_decay", self.learning_rate_decay)
        if self.ema_decay is not None and not 0.0 <= self.ema_decay < 1.0:
            raise OptionsError(
                f"bench.ema_decay must be at least 0 and below 1, got {self.ema_decay}: the share "
                "of the average that an update keeps, such as 0.999; null for no average"
            )

    @property
    def is_plain_eager(self) -> bool:
        """True for the uncompiled PyTorch loop that compiled runs are compared with."""
        return self.replication_factor < 0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The run as a whole.

    Args:
        dataset_factory: Molecules, interaction graphs and batches.
        bench: How to train.
        model: The SchNet network.
        time_dataloader: Measure how fast batches are made, without training.
        project: Project of the run in Weights and Biases.
        run_name: Name of the run there, and of its folder below output_dir; default: made of the
            settings and the time.
        validation: Validate after each epoch, keep the weights with the smallest validation error,
            and test those at the end. False keeps the last weights.
        num_workers: Processes that make batches ahead; wins over bench.num_workers.
        checkpoint: Save the training under model_name, so that it can be resumed.
        checkpoint_epochs: Save every so many epochs; always at the end and on Ctrl-C.
        model_name: Name of the checkpoint, a folder below checkpoint_dir; `torchkiln predict` takes
            it too.
        checkpoint_dir: Folder of all checkpoints.
        resume: Continue the checkpoint of that name, to the same bits as without a break.
        limit: Use only so many molecules, to try things out: drawn at random; of water, evenly from
            all sizes.
        output_dir: Folder of all runs; results and plots of this one go to a folder below it.
        threads: Threads to use, each pinned to a core; default: all cores.
        device: Where to compute: cpu, cuda, cuda:1 and so on; null: what the options of the program
            say, or else cpu.
        verbose: Tell more: the plan of the batches, the options of the program.
        quiet: Tell less: no progress and no messages, only results, warnings and errors; wins over
            verbose.
        log_level: Which log messages of Torchkiln and torch to show: those of this level and above;
            error hides warnings, too.
        json: Print the results as one JSON record instead of a table.
    """

    dataset_factory: DatasetSettings = field(default_factory=DatasetSettings)
    bench: BenchSettings = field(default_factory=BenchSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    time_dataloader: bool = False
    project: str = "torchkiln-schnet"
    run_name: str | None = None
    validation: bool = True
    num_workers: int | None = None
    checkpoint: bool = False
    checkpoint_epochs: int = 1
    model_name: str = "schnet"
    checkpoint_dir: Path = Path("checkpoints")
    resume: bool = False
    limit: int | None = None
    output_dir: Path = Path("runs")
    threads: int | None = None
    device: str | None = None
    verbose: bool = False
    quiet: bool = False
    log_level: LogLevel = "warning"
    json: bool = False

    def __post_init__(self) -> None:
        for name in ("checkpoint_epochs", "limit", "threads"):
            _require_least(name, getattr(self, name), 1)
        _require_least("num_workers", self.num_workers, 0)
        _require_file_name("model_name", self.model_name)
        if self.run_name is not None:
            _require_file_name("run_name", self.run_name)

    @property
    def loader_workers(self) -> int:
        """Processes that make batches: the flag at the top wins over the one of `bench`."""
        return self.bench.num_workers if self.num_workers is None else self.num_workers

    @property
    def target(self) -> str:
        if self.dataset_factory.target is not None:
            return self.dataset_factory.target
        return "U0" if self.bench.factory == "qm9" else "energy"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON types, nested like a config file."""
        return {
            "dataset_factory": _plain_fields(self.dataset_factory),
            "bench": _plain_fields(self.bench),
            "model": _plain_fields(self.model),
            **{
                name: value
                for name, value in _plain_fields(self).items()
                if name not in ("dataset_factory", "bench", "model")
            },
        }


def _plain_fields(settings: Any) -> dict[str, Any]:
    return {
        entry.name: _to_plain(getattr(settings, entry.name))
        for entry in dataclasses.fields(settings)
    }


def _to_plain(value: Any) -> Any:
    if isinstance(value, Options):
        return value.to_dict()
    return str(value) if isinstance(value, Path) else value


def _require_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise OptionsError(f"{name} must be at least {least}, got {value}")


def _require_most(name: str, value: int) -> None:
    if value > _MOST:
        raise OptionsError(f"{name} must be at most {_MOST:,}, got {value}")


def _require_seed(name: str, value: int) -> None:
    if not 0 <= value < 2**63:
        raise OptionsError(f"{name} must be at least 0 and below 2**63, got {value}")


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise OptionsError(f"{name} must be a positive number, got {value}")


def _require_file_name(name: str, value: str) -> None:
    if not value.isprintable() or Path(value).name != value or value in ("", ".", ".."):
        raise OptionsError(f"{name} must be a plain name without folders, got {value!r}")
    if len(os.fsencode(value)) > _LONGEST_NAME:
        raise OptionsError(
            f"{name} must have at most {_LONGEST_NAME} bytes to be the name of a folder, got "
            f"{value[:20]!r} and more"
        )
