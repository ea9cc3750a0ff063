"""What a run needs and may not find here, looked for before data are loaded."""

from __future__ import annotations

from torchkiln.apps._device import check_device
from torchkiln.apps.schnet._settings import Settings
from torchkiln.core import OptionsError
from torchkiln.core._extras import require_package


def check_packages(settings: Settings) -> None:
    """Make sure that the optional packages are installed that the settings ask for.

    Raises:
        OptionsError: One is missing; the message says how to install it and how to do without.
    """
    bench = settings.bench
    if bench.use_wandb and not settings.time_dataloader:
        require_package(
            "wandb", wanted_for="--use_wandb", extra="wandb", otherwise="pass --use_wandb false"
        )
    if bench.use_tensorboard and not settings.time_dataloader:
        require_package(
            "tensorboard",
            wanted_for="--use_tensorboard",
            extra="tensorboard",
            otherwise="pass --use_tensorboard false",
        )
    if bench.factory == "qm9" and settings.dataset_factory.root is None:
        require_package(
            "qm9pack",
            wanted_for="QM9",
            extra="qm9",
            otherwise="name your own molecules with --root, or generate some with --factory water",
        )


def check_device_of(settings: Settings) -> None:
    """Make sure that there is the device that the settings name.

    Raises:
        OptionsError: There is none of that name.
    """
    if settings.device is not None:
        check_device(settings.device)
    options = settings.dataset_factory.options
    if options is not None and options.device is not None:
        check_device(options.device, "dataset_factory.options.device")


def check_several(num_processes: int, *, is_eager: bool) -> None:
    """Refuse what only a process alone can do, if there are several.

    Args:
        num_processes: That were started together.
        is_eager: Whether training is in plain eager PyTorch.

    Raises:
        OptionsError: The message says how to do without.
    """
    if is_eager and num_processes > 1:
        raise OptionsError(
            f"plain eager PyTorch (--replication_factor -1) trains in one process, and "
            f"{num_processes} were started; give a positive --replication_factor, the replicas of "
            "each process, or start it without torchrun"
        )
