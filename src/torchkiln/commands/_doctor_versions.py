"""Which packages are installed, and whether they are the versions that Torchkiln was made for."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from torchkiln.commands._findings import Finding
from torchkiln.core import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_SHOWN = ("torch", "torch_geometric", "numpy", "numba")
_OPTIONAL = {
    "qm9pack": "the molecules of QM9",
    "wandb": "logging to Weights and Biases",
    "tensorboard": "logging to TensorBoard",
    "ase": "comparing file readers",
}


def required_packages() -> Iterator[Finding]:
    """Yield the versions that matter, and every requirement that is not met."""
    yield Finding("torchkiln", __version__)
    yield Finding("Python", platform.python_version())
    for requirement in _requirements():
        version = _version_of(requirement.name)
        wanted = str(requirement.specifier)
        command = f"pip install '{requirement.name}{wanted}'"
        if version is None:
            yield Finding(requirement.name, "not installed", command)
        elif not requirement.specifier.contains(version, prereleases=True):
            yield Finding(requirement.name, f"{version}, but {wanted} is needed", command)
        elif requirement.name in _SHOWN:
            yield Finding(requirement.name, version)


def optional_packages() -> Iterator[Finding]:
    """Yield what else is installed, and what the rest would be good for."""
    for name, purpose in _OPTIONAL.items():
        version = _version_of(name)
        yield Finding(name, version or f"not installed; for {purpose}: pip install {name}")


def _requirements() -> list[Requirement]:
    from packaging.requirements import Requirement

    found = [Requirement(line) for line in metadata.requires("torchkiln") or []]
    return [entry for entry in found if entry.marker is None or entry.marker.evaluate()]


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
