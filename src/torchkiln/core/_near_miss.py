"""What somebody probably meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Names that other programs use for the same thing. Each points at names of ours; those that the
# command at hand does not have are passed over.
_OTHER_WORDS = {
    "amp": ("half_precision", "run.precision"),
    "batch": ("batch_size", "run.minibatch_size"),
    "bf16": ("half_precision", "run.precision"),
    "bs": ("batch_size", "run.minibatch_size"),
    "cuda": ("device", "run.compute_mode"),
    "data": ("root", "data.file", "dataset"),
    "data_dir": ("root", "data.file"),
    "dataset": ("factory",),
    "debug": ("log_level",),
    "device": ("run.compute_mode",),
    "ema": ("ema_decay",),
    "epoch": ("num_epochs", "run.epochs"),
    "epochs": ("num_epochs", "run.epochs"),
    "evaluate": ("predict",),
    "fp16": ("half_precision", "run.precision"),
    "gamma": ("learning_rate_decay",),
    "gpu": ("device", "run.compute_mode"),
    "hidden_channels": ("num_features",),
    "infer": ("predict",),
    "lr": ("learning_rate", "mode.optimizer.learning_rate"),
    "lr_decay": ("learning_rate_decay",),
    "max_epochs": ("num_epochs", "run.epochs"),
    "memory": ("fit",),
    "model": ("model_name",),
    "name": ("run_name", "model_name", "run.id"),
    "out": ("output", "output_dir", "run.output_dir"),
    "pack": ("plan",),
    "precision": ("half_precision", "run.precision"),
    "replicas": ("replication_factor",),
    "silent": ("quiet", "run.quiet"),
    "tensorboard": ("use_tensorboard",),
    "test": ("predict",),
    "train": ("bench",),
    "wandb": ("use_wandb",),
    "workers": ("num_workers", "data.num_workers"),
}
_LONGEST = 100  # comparing names takes time that grows with their length


def near_misses(name: str, known: Iterable[str], *, most: int = 1) -> list[str]:
    """Return the names that are most like `name`, the best first; none if nothing is like it.

    A name in the words of another program counts first, then one whose last part is the same
    (`seed` and `bench.seed`), then one that is spelled alike.

    Args:
        name: What was written.
        known: What could have been written.
        most: How many to return at most. All names of several groups are returned anyway.
    """
    names = list(dict.fromkeys(known))
    small = name[:_LONGEST].lower().replace("-", "_")
    translated = [word for word in _OTHER_WORDS.get(small, ()) if word in names]
    if translated:
        return translated[:1]
    same_end = [word for word in names if word.lower().rpartition(".")[2] == small]
    if same_end:
        return same_end
    by_spelling = {word.lower(): word for word in reversed(names)}
    close = difflib.get_close_matches(small, by_spelling, n=most)
    return [by_spelling[word] for word in close]


def did_you_mean(name: str, known: Iterable[str], *, before: str = "", otherwise: str = "") -> str:
    """Return `did you mean X?`, or `otherwise` if nothing is like `name`.

    Args:
        name: What was written.
        known: What could have been written.
        before: What stands before each name, such as two dashes.
        otherwise: What to say if nothing is like it.
    """
    close = near_misses(name, known, most=2)
    if not close:
        return otherwise
    return f"did you mean {' or '.join(before + word for word in close)}?"
