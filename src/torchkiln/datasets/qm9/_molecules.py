"""QM9's arrays as `Molecules`."""

from __future__ import annotations

from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.molecules._published_targets import QM9_UNITS, qm9_targets
from torchkiln.datasets.qm9._arrays import QM9Arrays


def to_molecules(arrays: QM9Arrays, source: str) -> Molecules:
    """Return molecules with all 19 targets, in PyG's units."""
    return Molecules(
        offsets=arrays.offsets,
        z=arrays.z,
        pos=arrays.pos,
        names=[f"gdb_{index}" for index in arrays.index.tolist()],
        targets=qm9_targets(arrays.targets),
        source=source,
        units=QM9_UNITS,
    )
