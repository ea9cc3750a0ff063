"""Which options of the original are accepted here without any effect: found by trying them."""

from __future__ import annotations

import enum
import inspect
import itertools
import logging
import types
import typing
from collections.abc import Iterator
from typing import Any

import torch

from poptorch import _strategies
from poptorch.options import _GROUPS, Options, TensorLocationSettings

# Values that setters of these types accept and that are nobody's default.
_SAMPLES: dict[Any, list[Any]] = {
    bool: [True, False],
    int: [64, 1],
    str: ["a"],
    list[str]: [["a"]],
    dict[str, float]: [{"IPU0": 0.5}],
    dict[str, str]: [{"a": "b"}],
    dict[str, bool]: [{"a": True}],
    torch.dtype: [torch.half],
    TensorLocationSettings: [
        TensorLocationSettings().useOnChipStorage(False),
        TensorLocationSettings().useReplicatedTensorSharding(),
    ],
    _strategies._IExecutionStrategy: [_strategies.ShardedExecution()],
    Any: [1],
}


def options_without_effect() -> list[str]:
    """Return the setters whose value is checked and kept, and changes nothing else.

    Each setter is called on fresh options with values that fit its annotations; one that changes
    anything that is not merely recorded has an effect.
    """
    found = []
    random_state = torch.get_rng_state()  # randomSeed seeds the generator at once
    logging.disable(logging.CRITICAL)  # deprecated setters complain
    try:
        for group in ("", *_GROUPS):
            for name in _setters(group):
                label = f"{group}.{name}" if group else name
                if _is_only_recorded(group, name):
                    found.append(label)
    finally:
        logging.disable(logging.NOTSET)
        torch.set_rng_state(random_state)
    return found


def options_recorded_now() -> dict[str, Any]:
    """Return what the environment (`POPTORCH_DEFAULT_OPTIONS`) sets without effect."""
    return dict(Options()._to_torchkiln().recorded)


def _setters(group: str) -> list[str]:
    kind = type(_member(Options(), group))
    return [name for name in vars(kind) if not name.startswith("_") and callable(vars(kind)[name])]


def _member(options: Options, group: str) -> Any:
    return getattr(options, group) if group else options


def _is_only_recorded(group: str, name: str) -> bool:
    recorded = False
    for arguments in _samples(getattr(type(_member(Options(), group)), name)):
        options = Options()
        before = _state(options)
        member = _member(options, group)
        try:
            if getattr(member, name)(*arguments) is not member:
                return False  # no setter
            changed = {key for key, value in _state(options).items() if before.get(key) != value}
            names = {_without_group(key) for key in options._to_torchkiln().recorded}
        except Exception:  # not a value for this setter; another may be
            continue
        if changed - names:
            return False
        recorded = recorded or bool(changed)
    return recorded


def _without_group(key: str) -> str:
    group, dot, name = key.partition(".")
    return name if dot and group in _GROUPS else key


def _state(options: Options) -> dict[str, Any]:
    """Return everything that setters change, by its name without the group."""
    state = dict(options._values, execution_strategy=repr(options._execution_strategy))
    for group in _GROUPS:
        state.update(getattr(options, group).toDict())
    return {name: repr(value) for name, value in state.items()}


def _samples(setter: Any) -> Iterator[tuple[Any, ...]]:
    """Yield arguments for a setter."""
    hints = typing.get_type_hints(setter)
    parameters = list(inspect.signature(setter).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    yield from itertools.product(*(_values_of(hints.get(p.name, Any)) for p in parameters))


def _values_of(hint: Any) -> list[Any]:
    if isinstance(hint, types.UnionType):
        return [value for part in typing.get_args(hint) for value in _values_of(part)]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list(hint)
    return _SAMPLES.get(hint, [])
