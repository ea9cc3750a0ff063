"""Which graphs share a pack: a value that checks, saves and prints itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchkiln.core import OptionsError, StoreError, Unreadable, atomic_path, read_npz
from torchkiln.packing._sizes import GRAPHS, Integers

_FORMAT = "torchkiln pack plan 1"


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """Graphs of a dataset divided into packs that all fit the same slots.

    Args:
        indices: Graph indices, pack after pack; every planned graph once.
        offsets: Pack `i` is `indices[offsets[i]:offsets[i + 1]]`; [num_packs + 1].
        slots: Size of every pack on each axis, filler included; 'graphs' is one of the axes.
        used: What the real graphs of each pack take of each axis but 'graphs'; [num_packs] each.
        skipped: Graphs that fit no pack and were left out.
        oversize: Graphs that have to be trimmed to fit; they are in `indices` too, and count
            in `used` with what is left of them.
        algorithm: Name of the algorithm that made the plan.
    """

    indices: Integers
    offsets: Integers
    slots: Mapping[str, int]
    used: Mapping[str, Integers]
    skipped: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    oversize: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    algorithm: str = "given"

    def __post_init__(self) -> None:
        for name in ("indices", "offsets", "skipped", "oversize"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))
        object.__setattr__(self, "slots", dict(self.slots))
        used = {axis: _read_only(counts) for axis, counts in self.used.items()}
        object.__setattr__(self, "used", used)
        self._check()

    def _check(self) -> None:
        offsets = self.offsets
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(self.indices):
            raise OptionsError(
                f"offsets must run from 0 to the number of graphs, {len(self.indices)}"
            )
        if (np.diff(offsets) < 0).any():
            raise OptionsError("offsets must not decrease")
        planned = np.concatenate([self.indices, self.skipped])
        ordered = np.sort(planned)
        if len(ordered) and ordered[0] < 0:
            raise OptionsError(f"graph indices must not be negative, got {ordered[0]}")
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise OptionsError(f"every graph may be planned once, but graph {twice[0]} is not")
        if GRAPHS not in self.slots or set(self.slots) - {GRAPHS} != set(self.used):
            raise OptionsError(
                f"slots {sorted(self.slots)} must be the axes of used {sorted(self.used)} and "
                f"{GRAPHS!r}"
            )
        for axis, counts in self._all_used().items():
            if len(counts) != len(self):
                raise OptionsError(f"used[{axis!r}] must have one number per pack, {len(self)}")
            over = np.flatnonzero(counts > self.slots[axis])
            if len(over):
                raise OptionsError(
                    f"pack {over[0]} takes {counts[over[0]]} {axis}, but there are only "
                    f"{self.slots[axis]} slots"
                )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, pack: int) -> Integers:
        """Return the graph indices of one pack."""
        if not -len(self) <= pack < len(self):
            raise IndexError(f"pack {pack} of a plan with {len(self)} packs")
        pack %= len(self)
        return self.indices[self.offsets[pack] : self.offsets[pack + 1]]

    def __iter__(self) -> Iterator[Integers]:
        return (self[pack] for pack in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackPlan):
            return NotImplemented
        return (
            self.slots == other.slots
            and self.algorithm == other.algorithm
            and all(
                np.array_equal(getattr(self, name), getattr(other, name))
                for name in ("indices", "offsets", "skipped", "oversize")
            )
            and set(self.used) == set(other.used)
            and all(np.array_equal(self.used[axis], other.used[axis]) for axis in self.used)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_graphs(self) -> int:
        """How many graphs the packs hold."""
        return len(self.indices)

    @property
    def efficiency(self) -> dict[str, float]:
        """Share of all slots that real graphs take, by axis; filler is waste, reserved or not."""
        return {
            axis: float(counts.sum()) / max(len(self) * self.slots[axis], 1)
            for axis, counts in self._all_used().items()
        }

    def for_rank(
        self, rank: int, world: int, *, multiple_of: int = 1, replicas: int = 1
    ) -> PackPlan:
        """Return the packs of one of `world` ranks, equally many on each.

        Packs are dealt in turn, `replicas` at a time: rank 0 gets the first ones, rank 1 the next
        ones, and so on. So turn `j` of all ranks together sees the packs that turn `j` of one
        process with `world * replicas` replicas would see, each replica the same ones. Where packs
        run out, ranks get empty ones (filler only). `skipped` is reported by rank 0 alone.

        Args:
            rank: Whose packs.
            world: Number of ranks.
            multiple_of: Packs that a combined batch of one rank takes; each rank gets a multiple.
            replicas: Packs of a rank that run side by side; `multiple_of` is a multiple of it.
        """
        if not 0 <= rank < world:
            raise OptionsError(f"rank must be in 0..{world - 1}, got {rank}")
        if multiple_of < 1:
            raise OptionsError(f"multiple_of must be at least 1, got {multiple_of}")
        if replicas < 1 or multiple_of % replicas:
            raise OptionsError(
                f"replicas must divide multiple_of, {multiple_of}, got {replicas}: a combined "
                "batch has as many packs for each replica"
            )
        length = multiple_of * -(-len(self) // (world * multiple_of))
        turns, places = np.divmod(np.arange(length), replicas)
        mine = (turns * world + rank) * replicas + places
        mine = mine[mine < len(self)]  # in rising order, so what is missing is at the end
        plan = self.take(mine, num_empty=length - len(mine))
        return plan if rank == 0 else replace(plan, skipped=self.skipped[:0])

    def take(self, packs: ArrayLike, *, num_empty: int = 0) -> PackPlan:
        """Return a plan of these packs, in this order, and then `num_empty` packs of filler."""
        chosen = np.asarray(packs, dtype=np.int64)
        counts = np.diff(self.offsets)[chosen]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        # Where each graph lies in `indices`: the start of its pack, plus its place in the pack.
        starts = np.repeat(self.offsets[chosen] - offsets[:-1], counts)
        indices = self.indices[starts + np.arange(offsets[-1])]
        empty = np.zeros(num_empty, dtype=np.int64)
        return replace(
            self,
            indices=indices,
            offsets=np.concatenate([offsets, empty + offsets[-1]]),
            used={axis: np.append(counts[chosen], empty) for axis, counts in self.used.items()},
            oversize=self.oversize[np.isin(self.oversize, indices)],
        )

    def save(self, path: Path | str) -> None:
        """Write the plan as .npz, in one step and without pickle."""
        arrays: dict[str, Any] = {
            "format": np.array(_FORMAT),
            "algorithm": np.array(self.algorithm),
            "indices": self.indices,
            "offsets": self.offsets,
            "skipped": self.skipped,
            "oversize": self.oversize,
            "axes": np.array(list(self.slots)),
            "slots": np.array(list(self.slots.values()), dtype=np.int64),
            **{f"used:{axis}": counts for axis, counts in self.used.items()},
        }
        with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path | str) -> PackPlan:
        """Read a plan that `save` wrote; it is checked like a new one."""
        try:
            file = read_npz(Path(path))
            if "format" not in file or str(file["format"]) != _FORMAT:
                raise StoreError(f"{path} is not a pack plan of this version; plan again")
            axes = [str(axis) for axis in file["axes"]]
            slots = _whole_numbers(file, "slots")
            return cls(
                _whole_numbers(file, "indices"),
                _whole_numbers(file, "offsets"),
                {axis: int(slot) for axis, slot in zip(axes, slots, strict=True)},
                {axis: _whole_numbers(file, f"used:{axis}") for axis in axes if axis != GRAPHS},
                skipped=_whole_numbers(file, "skipped"),
                oversize=_whole_numbers(file, "oversize"),
                algorithm=str(file["algorithm"]),
            )
        except FileNotFoundError:
            raise
        except (Unreadable, OptionsError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, StoreError) and not isinstance(error, Unreadable):
                raise
            raise StoreError(f"{path} is damaged or no pack plan ({error}); plan again") from error

    def __str__(self) -> str:
        """Draw the plan as a small table."""
        graphs, packs = self.num_graphs, len(self)
        lines = [
            f"{graphs:,} graph{'s' * (graphs != 1)} in {packs:,} pack{'s' * (packs != 1)}, "
            f"algorithm {self.algorithm}",
            f"{'axis':<12}{'slots':>10}{'real':>9}{'fewest':>10}{'most':>10}",
        ]
        efficiency = self.efficiency
        for axis, counts in self._all_used().items():
            fewest, most = (int(counts.min()), int(counts.max())) if packs else (0, 0)
            lines.append(
                f"{axis:<12}{self.slots[axis]:>10,}{efficiency[axis]:>9.2%}{fewest:>10,}{most:>10,}"
            )
        if skipped := len(self.skipped):
            one = skipped == 1
            lines.append(
                f"{skipped:,} {'graph fits' if one else 'graphs fit'} no pack and "
                f"{'was' if one else 'were'} skipped"
            )
        if trimmed := len(self.oversize):
            lines.append(
                f"{trimmed:,} {'graph has' if trimmed == 1 else 'graphs have'} to be trimmed to fit"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        shares = ", ".join(f"{axis} {share:.1%}" for axis, share in self.efficiency.items())
        return f"PackPlan({self.num_graphs:,} graphs in {len(self):,} packs; {shares})"

    def _all_used(self) -> dict[str, Integers]:
        """Return what each pack takes of every axis, in the order of the slots."""
        counts = {**self.used, GRAPHS: np.diff(self.offsets)}
        return {axis: counts[axis] for axis in self.slots}


def _whole_numbers(file: Mapping[str, NDArray[Any]], name: str) -> Integers:
    array = file[name]
    if array.dtype != np.int64 or array.ndim != 1:
        raise Unreadable(f"{name} is {array.dtype} {list(array.shape)}, not a row of int64")
    return array


def _read_only(array: Integers) -> Integers:
    values = np.array(array, dtype=np.int64)
    values.flags.writeable = False
    return values
