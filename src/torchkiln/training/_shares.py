"""Whether each of several processes has a share of the data, or all of them have all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

import torch.utils.data
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from torchkiln.core import Options, OptionsError, warn_user
from torchkiln.training._batches import digest_of
from torchkiln.training._evaluation import keeping_random_numbers
from torchkiln.training._ranks import Ranks

_READ_ALL = (RandomSampler, SequentialSampler)


def refuse_undivided(name: str, loader: Any, options: Options) -> None:
    """Refuse a loader of Torchkiln that was made for another number of processes.

    Args:
        name: What the loader is called.
        loader: Any loader, or None; others than those of Torchkiln do not say what they are for.
        options: Of the training program.

    Raises:
        OptionsError: It would give all processes the same data, or a process less than its share.
    """
    made_for = getattr(loader, "options", None)
    if not isinstance(made_for, Options):
        return
    shares = (made_for.num_processes, made_for.num_pipelines)
    if shares == (options.num_processes, options.num_pipelines):
        return
    if type(getattr(loader, "sampler", None)) not in (*_READ_ALL, type(None)):
        return  # a sampler of the user's may choose a share
    raise OptionsError(
        f"{name} was made with options that say {_shares(made_for)}, the trainer's say "
        f"{_shares(options)}; make both with torchkiln.distributed.start().options(options)"
    )


def _shares(options: Options) -> str:
    stages = f" and {options.num_stages} stages" if options.is_divided else ""
    return f"num_processes={options.num_processes}{stages}"


def warn_if_undivided(loader: Iterable[Any], ranks: Ranks) -> None:
    """Warn if all processes train on the same data, which nothing else would show.

    Called by all processes. What is no list of batches and no loader of torch is not looked at.
    """
    if ranks.num_copies == 1:
        return
    found = ranks.of_copies(ranks.gather(_data_of(loader)))
    if ranks.is_first and found[0] is not None and len(set(found)) == 1:
        warn_user(
            f"all {ranks.size} processes seem to train on the same data, so each sample counts as "
            "often in an epoch; make the loader with world.options(options) of "
            "torchkiln.distributed.start(), or give each process its share, as torch's "
            "DistributedSampler does"
        )


def _data_of(loader: Iterable[Any]) -> tuple[int, str] | None:
    """Return what is the same for loaders that read all of the same data; None: cannot be told."""
    data: Any = loader
    if isinstance(loader, torch.utils.data.DataLoader):
        # Other samplers may choose a share.
        reads_all = type(loader.sampler) in _READ_ALL
        data = loader.dataset
        if not reads_all or isinstance(data, IterableDataset):
            return None
    elif not isinstance(loader, list | tuple):
        return None
    if not isinstance(data, Sized) or not len(data):
        return None
    with keeping_random_numbers():  # reading a sample may draw some
        return len(data), digest_of(data[0])  # type: ignore[index]  # map-style
