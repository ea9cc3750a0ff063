"""`recompute="auto"`: which modules to recompute so that the least memory is needed.

One forward on tensors without values tells which tensors autograd keeps, and for which modules. A
choice of modules then costs what is still kept (their inputs, and what others keep) and, while one
of them is differentiated, everything inside that one. Starting from the whole forward as one
piece, the piece that costs most is replaced by its parts as long as there are parts; the best
choice on the way is taken, without the modules that bring next to nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.data import flatten
from torchkiln.runtime.passes._origins import following_modules
from torchkiln.runtime.recompute._modules import marks_reported
from torchkiln.torch_internals._tensors import storage_key, version_of

# This much more memory is accepted for recomputing fewer modules.
_TOLERANCE = 0.02


@dataclass(slots=True)
class _Call:
    """One call of a module, and which storages it was given."""

    name: str
    inputs: frozenset[int]


@dataclass(slots=True)
class Survey:
    """What autograd keeps for backward, and for whom."""

    calls: list[_Call] = field(default_factory=list)
    children: dict[str, list[str]] = field(default_factory=dict)
    # Storage -> bytes, and the calls (positions) that were under way at each time it was kept.
    sizes: dict[int, int] = field(default_factory=dict)
    keepers: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    writers: set[str] = field(default_factory=set)
    # Modules that lie in several stages of a pipeline.
    divided: set[str] = field(default_factory=set)
    num_marks: int = 0
    # A freed storage could give its address to another one.
    _alive: list[Any] = field(default_factory=list)

    def storage(self, tensor: Tensor) -> int:
        self._alive.append(tensor.untyped_storage())
        return storage_key(tensor)

    def keep(self, tensor: Tensor, stack: tuple[int, ...]) -> None:
        key = self.storage(tensor)
        self.sizes[key] = tensor.untyped_storage().nbytes()
        self.keepers.setdefault(key, []).append(stack)

    def cost_bytes(self, chosen: set[str]) -> tuple[int, dict[str, int]]:
        """Return bytes kept over forward, and what each chosen module adds in backward."""
        held: set[int] = set()
        for call in self.calls:
            if call.name in chosen:
                held |= call.inputs
        kept = 0
        inside: dict[int, int] = {}
        for key, size in self.sizes.items():
            regions = [
                next((c for c in stack if self.calls[c].name in chosen), None)
                for stack in self.keepers[key]
            ]
            if None in regions or key in held:
                kept += size
                continue
            for region in {region for region in regions if region is not None}:
                inside[region] = inside.get(region, 0) + size
        added: dict[str, int] = {}
        for region, size in inside.items():
            name = self.calls[region].name
            added[name] = max(added.get(name, 0), size)
        return kept, added

    def peak_bytes(self, chosen: set[str]) -> int:
        kept, added = self.cost_bytes(chosen)
        return kept + max(added.values(), default=0)


def choose_modules(survey: Survey) -> tuple[str, ...]:
    """Return the names of the modules to recompute; the whole forward where it has marks."""
    if survey.num_marks:
        return ("",)
    chosen = {""}
    best, best_bytes = set[str](), survey.peak_bytes(set())
    while chosen:
        _, added = survey.cost_bytes(chosen)
        refused = chosen & (survey.writers | survey.divided)
        if not refused and survey.peak_bytes(chosen) < best_bytes:
            best, best_bytes = set(chosen), survey.peak_bytes(chosen)
        largest = max(added, key=lambda name: added[name], default=None)
        parts = next(iter(refused), largest)
        if parts is None:
            break
        chosen.remove(parts)
        chosen |= set(survey.children.get(parts, []))
    _, added = survey.cost_bytes(best)
    for name in sorted(best, key=lambda name: (added.get(name, 0), name)):
        if survey.peak_bytes(best - {name}) <= (1 + _TOLERANCE) * best_bytes:
            best.discard(name)
    order = list(dict.fromkeys(call.name for call in survey.calls))
    return tuple(name for name in order if name in best)


@contextlib.contextmanager
def surveyed(module: nn.Module, foreign: list[Tensor]) -> Iterator[Survey]:
    """Watch one forward; `foreign` tensors (weights, the batch) exist anyway."""
    survey = Survey()
    known = {survey.storage(tensor) for tensor in foreign}
    stack: list[int] = []

    @contextlib.contextmanager
    def around(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        tensors, _ = flatten((args, kwargs))
        versions = [version_of(tensor) for tensor in tensors]
        inputs = frozenset(survey.storage(tensor) for tensor in tensors)
        if stack:
            siblings = survey.children.setdefault(survey.calls[stack[-1]].name, [])
            if name not in siblings:
                siblings.append(name)
        stack.append(len(survey.calls))
        survey.calls.append(_Call(name, inputs))
        try:
            yield
        finally:
            stack.pop()
        if [version_of(tensor) for tensor in tensors] != versions:
            survey.writers.add(name)

    def pack(tensor: Tensor) -> Tensor:
        if survey.storage(tensor) not in known:
            survey.keep(tensor, tuple(stack))
        return tensor

    def count(tensor: Tensor) -> None:
        survey.num_marks += 1

    with (
        following_modules(module, around),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        marks_reported(count),
    ):
        yield survey
